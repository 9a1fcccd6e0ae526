#include "bind/bind.hpp"
#include "kernels/gae.hpp"
#include "kernels/noise.hpp"

namespace slipstream {
namespace {

template <class T, int Dims>
using In = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
template <class T, int Dims>
using Out = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

template <class A, class B>
void same_shape(const A& a, const B& b, const char* what) {
  if (a.shape(0) != b.shape(0) || a.shape(1) != b.shape(1)) {
    throw std::invalid_argument(std::string(what) + " does not have the shape of the other arrays");
  }
}

void bind_gae(nb::module_& m) {
  m.def(
      "gae",
      [](In<std::uint8_t, 2> decided, In<float, 2> value, In<std::uint8_t, 2> paid, In<float, 2> reward,
         In<std::int32_t, 2> duration, In<std::uint8_t, 2> terminated, In<std::uint8_t, 2> truncated,
         In<float, 2> end_value, In<float, 1> last_value, double gamma, double gae_lambda, Out<float, 2> advantage,
         Out<float, 2> target, Out<std::uint8_t, 2> complete) {
        same_shape(decided, value, "value");
        same_shape(decided, paid, "paid");
        same_shape(decided, reward, "reward");
        same_shape(decided, duration, "duration");
        same_shape(decided, terminated, "terminated");
        same_shape(decided, truncated, "truncated");
        same_shape(decided, end_value, "end_value");
        same_shape(decided, advantage, "advantage");
        same_shape(decided, target, "target");
        same_shape(decided, complete, "complete");
        if (last_value.shape(0) != decided.shape(1))
          throw std::invalid_argument("last_value needs one entry per column");
        const GaeInput in{static_cast<int>(decided.shape(0)),
                          static_cast<int>(decided.shape(1)),
                          decided.data(),
                          value.data(),
                          paid.data(),
                          reward.data(),
                          duration.data(),
                          terminated.data(),
                          truncated.data(),
                          end_value.data(),
                          last_value.data(),
                          gamma,
                          gae_lambda};
        const nb::gil_scoped_release release;
        gae(in, advantage.data(), target.data(), complete.data());
      },
      nb::kw_only(), nb::arg("decided").noconvert(), nb::arg("value").noconvert(), nb::arg("paid").noconvert(),
      nb::arg("reward").noconvert(), nb::arg("duration").noconvert(), nb::arg("terminated").noconvert(),
      nb::arg("truncated").noconvert(), nb::arg("end_value").noconvert(), nb::arg("last_value").noconvert(),
      nb::arg("gamma"), nb::arg("gae_lambda"), nb::arg("advantage").noconvert(), nb::arg("target").noconvert(),
      nb::arg("complete").noconvert(),
      "Generalised advantages of decisions of any duration; [rows, columns], time-major.");
}

template <auto Fill>
void bind_noise(nb::module_& m, const char* name, const char* doc) {
  m.def(
      name,
      [](Out<float, 3> out, std::uint64_t seed, std::uint32_t step, std::uint32_t first_world) {
        const nb::gil_scoped_release release;
        Fill({seed, first_world, step}, static_cast<int>(out.shape(0)), static_cast<int>(out.shape(1)),
             static_cast<int>(out.shape(2)), out.data());
      },
      nb::arg("out").noconvert(), nb::kw_only(), nb::arg("seed"), nb::arg("step"), nb::arg("first_world") = 0, doc);
}

}  // namespace

void bind_kernels(nb::module_& m) {
  bind_gae(m);
  bind_noise<&fill_normal>(m, "fill_normal", "Standard normal noise [worlds, agents, width] keyed by seed and step.");
  bind_noise<&fill_uniform>(m, "fill_uniform", "Uniform (0, 1) noise [worlds, agents, width] keyed by seed and step.");
}

}  // namespace slipstream
