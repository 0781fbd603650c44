// A program's C function as Python calls it: through TVM's foreign function interface, whose calls cost a
// fifth of what ctypes takes, and which lets other threads run meanwhile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace tileops {

// TVMFFIAny: integers, addresses and truth values share a slot, floating numbers have their own.
struct Any {
  int32_t type;
  uint32_t zero;
  union {
    int64_t integer;
    double real;
  };
};
constexpr int32_t kInt = 1, kFloat = 3;
constexpr int64_t kWrongCount = INT32_MIN;  // and how many came is added to it

template <class T>
T as(const Any& value) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(value.integer);
  else return value.type == kFloat ? static_cast<T>(value.real) : static_cast<T>(value.integer);
}

template <class... P, std::size_t... I>
int64_t apply(int (*function)(P...), const Any* values, std::index_sequence<I...>) {
  return function(as<P>(values[I])...);
}

template <class... P>
int answer(int (*function)(P...), const Any* values, int32_t count, Any* result) {
  result->type = kInt;
  result->zero = 0;
  result->integer = count == sizeof...(P) ? apply(function, values, std::index_sequence_for<P...>{}) : kWrongCount + count;
  return 0;
}

}  // namespace tileops

#define TILEOPS_CALLABLE(function)                                                                       \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_call(                                  \
      void*, const tileops::Any* values, int32_t count, tileops::Any* result) {                          \
    return tileops::answer(function, values, count, result);                                             \
  }
