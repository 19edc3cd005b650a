// What the files of the Python module share: its parts, arrays that leave without a copy, and work
// that Ctrl-C can end.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "base/function_ref.h"

namespace dsmoe::python {

namespace nb = nanobind;

void bind_errors(nb::module_& module);
void bind_model(nb::module_& module);
void bind_training(nb::module_& module);
void bind_layer(nb::module_& module);

template <class T>
using Array = nb::ndarray<nb::numpy, T>;

// The numbers themselves: the array owns them from now on.
template <class T>
Array<T> to_array(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T>(kept->data(), shape, owner);
}

using TokenArray = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline std::span<const int32_t> tokens_of(const TokenArray& array) {
  return {array.data(), array.size()};
}

// Runs `work` without the interpreter's lock. Where signals are heard, which is Python's main
// thread, it runs on a thread of its own while this one listens: Ctrl-C raises the flag, and what
// the handler raised comes out of here once `work` has ended.
void run_interruptible(FunctionRef<void(const std::atomic<bool>& cancelled)> work);

// True in Python's main thread: the only one in which signals are heard.
bool hears_signals();

}  // namespace dsmoe::python
