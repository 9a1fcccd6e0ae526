// Shared by the binding files, one per family.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "slipstream/vec_env.hpp"

namespace nb = nanobind;

namespace slipstream {

// What a family's make function returns: num_worlds worlds of type W behind one VecEnv.
template <World W>
std::unique_ptr<VecEnv> make_vec_env(const typename W::Config& config, int num_worlds, const VecEnvOptions& options) {
  if (num_worlds < 1)
    throw std::invalid_argument("num_worlds is " + std::to_string(num_worlds) + "; it must be at least 1");
  return std::make_unique<VecEnv>(std::make_unique<WorldsOf<W>>(config, num_worlds), options);
}

template <class T, int Dims>
using In = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
template <class T, int Dims>
using Out = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

inline void require(bool fine, const char* sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}

// Addresses, not arrays, where converting a dozen tensors would cost more than the work. The one caller in Python of
// each such function checks type, layout, device and shapes.
using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void bind_vec_env(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_mlp(nb::module_& m);
void bind_recurrent(nb::module_& m);
void bind_conv(nb::module_& m);
void bind_surrogate(nb::module_& m);
void bind_vtrace(nb::module_& m);
void bind_replay(nb::module_& m);
void bind_probe(nb::module_& m);
void bind_airspace(nb::module_& m);
void bind_horizontal_cr(nb::module_& m);
void bind_drmario(nb::module_& m);
void bind_racing(nb::module_& m);
void bind_racing_world(nb::module_& m);

}  // namespace slipstream
