// A CUDA driver that runs nothing and prints what it was asked for, one line a call.
#include <cuda.h>

#include <cstdio>
#include <cstring>

extern "C" {
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "as the fake was told";
  return CUDA_SUCCESS;
}
CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned,
                           CUlibraryOption*, void**, unsigned) {
  printf("load %d\n", std::memcmp(code, "\x7f" "ELF", 4) == 0);
  *library = (CUlibrary)1;
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  printf("kernel %s\n", name);
  *kernel = (CUkernel)2;
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int value, CUkernel, CUdevice device) {
  printf("shared %d device %d\n", value, device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  printf("retain %d\n", device);
  *context = (CUcontext)3;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  printf("enter %zu\n", (size_t)context);
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  printf("map %u %zu %llu %llu\n", rank, (size_t)address, (unsigned long long)sizes[0], (unsigned long long)sizes[1]);
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const int*, const int*, cuuint32_t, cuuint32_t,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction, void** arguments, void**) {
  printf("launch %u %u %u block %u shared %u stream %zu attributes %u\n", c->gridDimX, c->gridDimY, c->gridDimZ,
         c->blockDimX, c->sharedMemBytes, (size_t)c->hStream, c->numAttrs);
  return c->hStream == (CUstream)13 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
}
