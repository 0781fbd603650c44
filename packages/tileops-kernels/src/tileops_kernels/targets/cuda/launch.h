// What a generated host function stands on: the driver's own entry points, found when the first program is
// loaded, so that a library compiles and loads on a machine without a GPU.
#pragma once
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>

#include "call.h"

#define TL_EXPORT __attribute__((visibility("default")))

// Element types that TileLang names in the signature; the host only passes their addresses.
struct half_t;
struct bfloat16_t;
struct fp8_e4_t;
struct fp8_e5_t;

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x, unsigned y, unsigned z) : x(x), y(y), z(z) {}
};

static thread_local char error_buf[1024];
#define ERROR_BUF_SIZE sizeof(error_buf)

namespace driver {

struct Table {
  decltype(&::cuGetErrorString) error_string;
  decltype(&::cuLibraryLoadData) load;
  decltype(&::cuLibraryGetKernel) find;
  decltype(&::cuKernelSetAttribute) set_attribute;
  decltype(&::cuLaunchKernelEx) launch;
  decltype(&::cuTensorMapEncodeTiled) encode_tiled;
  decltype(&::cuTensorMapEncodeIm2col) encode_im2col;
  decltype(&::cuCtxGetCurrent) get_context;
  decltype(&::cuCtxSetCurrent) set_context;
  decltype(&::cuDevicePrimaryCtxRetain) retain;
};

static Table api;

static int fail(const char* what, CUresult status) {
  const char* text = nullptr;
  if (api.error_string) api.error_string(status, &text);
  snprintf(error_buf, ERROR_BUF_SIZE, "%s: %s (%d)", what, text ? text : "unknown driver error", (int)status);
  return -1;
}

template <class F>
static bool resolve(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function) snprintf(error_buf, ERROR_BUF_SIZE, "the CUDA driver has no %s; CUDA 12.0 or newer is needed", name);
  return function;
}

static int open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(error_buf, ERROR_BUF_SIZE, "no CUDA driver: %s", dlerror());
    return -1;
  }
  // The table is complete or the program is never called: `load` fails where this does.
  bool found = resolve(library, "cuGetErrorString", api.error_string) &&
               resolve(library, "cuLibraryLoadData", api.load) &&
               resolve(library, "cuLibraryGetKernel", api.find) &&
               resolve(library, "cuKernelSetAttribute", api.set_attribute) &&
               resolve(library, "cuLaunchKernelEx", api.launch) &&
               resolve(library, "cuTensorMapEncodeTiled", api.encode_tiled) &&
               resolve(library, "cuTensorMapEncodeIm2col", api.encode_im2col) &&
               resolve(library, "cuCtxGetCurrent", api.get_context) &&
               resolve(library, "cuCtxSetCurrent", api.set_context) &&
               resolve(library, "cuDevicePrimaryCtxRetain", api.retain);
  return found ? 0 : -1;
}

// A thread that has not touched the GPU has no context; torch and the runtime then mean device 0.
static int enter() {
  static thread_local bool entered = false;
  if (entered) return 0;
  CUcontext context = nullptr;
  CUresult status = api.get_context(&context);
  if (status == CUDA_SUCCESS && !context) {
    status = api.retain(&context, 0);
    if (status == CUDA_SUCCESS) status = api.set_context(context);
  }
  if (status != CUDA_SUCCESS) return fail("entering the device's context", status);
  entered = true;
  return 0;
}

template <class... A>
static int launch(CUkernel kernel, const char* name, dim3 grid, dim3 block, unsigned shared, CUstream stream,
                  dim3 cluster, A... arguments) {
  void* addresses[] = {(void*)&arguments..., nullptr};
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = cluster.x;
  attribute.value.clusterDim.y = cluster.y;
  attribute.value.clusterDim.z = cluster.z;
  CUlaunchConfig config = {};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = block.x;
  config.blockDimY = block.y;
  config.blockDimZ = block.z;
  config.sharedMemBytes = shared;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster.x * cluster.y * cluster.z > 1;
  CUresult status = api.launch(&config, (CUfunction)kernel, addresses, nullptr);
  return status == CUDA_SUCCESS ? 0 : fail(name, status);
}

static int find(CUlibrary library, const char* name, CUkernel* kernel) {
  CUresult status = api.find(kernel, library, name);
  return status == CUDA_SUCCESS ? 0 : fail(name, status);
}

static int allow_shared(CUkernel kernel, const char* name, int bytes, int device) {
  CUresult status =
      api.set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes, kernel, (CUdevice)device);
  return status == CUDA_SUCCESS ? 0 : fail(name, status);
}

}  // namespace driver

// How TileLang's tensor-map code spells a driver call.
#define cuTensorMapEncodeTiled encode_tiled
#define cuTensorMapEncodeIm2col encode_im2col
#define CUTLASS_CUDA_DRIVER_WRAPPER_CALL(function) driver::api.function

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }
