#include "kernels/mlp.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <array>
#include <tuple>

#include "bind/bind.hpp"
#include "kernels/adam.hpp"
#include "kernels/share.hpp"

namespace slipstream {
namespace {

// shape, parameters, x, rows, hidden, out
using ForwardPass = std::tuple<const MlpShape*, std::vector<Address>, Address, int, Address, Address>;
// and grad_out, grad_parameters, grad_x
using BackwardPass =
    std::tuple<const MlpShape*, std::vector<Address>, Address, int, Address, Address, Address, Address, Address>;

struct Pointers {
  std::array<const float*, kMaxLayers> weight{}, bias{}, gain{}, shift{};
  std::size_t layers;

  Pointers(const MlpShape& shape, const std::vector<Address>& parameters)
      : layers(static_cast<std::size_t>(shape.layers())) {
    if (parameters.size() != static_cast<std::size_t>(shape.tensors()))
      throw std::invalid_argument("one weight and one bias per layer, and one gain and one shift of its norm, in turn");
    std::size_t next = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      weight[l] = at<const float>(parameters[next++]);
      bias[l] = at<const float>(parameters[next++]);
      if (!shape.normed(static_cast<int>(l))) continue;
      gain[l] = at<const float>(parameters[next++]);
      shift[l] = at<const float>(parameters[next++]);
    }
  }
  [[nodiscard]] MlpWeights view() const {
    return {{weight.data(), layers}, {bias.data(), layers}, {gain.data(), layers}, {shift.data(), layers}};
  }
};

// Where the weights of several passes are, and what each pass costs.
struct Passes {
  std::vector<Pointers> pointers;
  std::vector<std::size_t> costs;

  template <class Pass>
  explicit Passes(const std::vector<Pass>& passes) {
    for (const Pass& pass : passes) {
      const MlpShape& shape = *std::get<0>(pass);
      pointers.emplace_back(shape, std::get<1>(pass));
      costs.push_back(mlp_cost(shape, std::get<3>(pass)));
    }
  }
  [[nodiscard]] const Pointers& operator[](int i) const { return pointers[static_cast<std::size_t>(i)]; }
};

// A learner frees and takes the same few megabytes thousands of times a second; by default glibc returns them to the
// system each time, and the page faults cost as much as the optimiser.
void keep_freed_memory() {
#if defined(M_MMAP_THRESHOLD)
  constexpr int kLargest = 32 << 20;  // glibc takes no larger threshold
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
}

Activation activation(const std::string& name) {
  constexpr std::array kNames{"identity", "relu", "tanh", "elu", "silu", "gelu"};  // as they stand in Activation
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<Activation>(i);
  throw std::invalid_argument("activation '" + name + "' is none of relu, tanh, identity, elu, silu, gelu");
}

}  // namespace

void bind_mlp(nb::module_& m) {
  nb::class_<MlpShape>(m, "MlpShape", "Widths and activations of a perceptron; the weights are torch's.")
      .def(
          "__init__",
          [](MlpShape* self, std::vector<int> widths, const std::string& hidden, const std::string& last, bool norm,
             bool residual) {
            if (widths.size() < 2) throw std::invalid_argument("a perceptron has inputs and outputs");
            if (widths.size() > kMaxLayers + 1)
              throw std::invalid_argument("a perceptron of " + std::to_string(widths.size() - 1) +
                                          " layers is too deep: the kernel takes at most " +
                                          std::to_string(kMaxLayers));
            for (const int width : widths)
              if (width < 1) throw std::invalid_argument("every layer needs at least one unit");
            new (self) MlpShape{std::move(widths), activation(hidden), activation(last), norm, residual};
          },
          nb::arg("widths"), nb::arg("hidden"), nb::arg("last"), nb::arg("norm") = false, nb::arg("residual") = false)
      .def_prop_ro("layers", &MlpShape::layers)
      .def_prop_ro("tensors", &MlpShape::tensors)
      .def_prop_ro("parameter_floats", &MlpShape::parameter_floats)
      .def("hidden_floats", &MlpShape::hidden_floats, nb::arg("rows"));
  m.def(
      "mlp_forward",
      [](const std::vector<ForwardPass>& passes) {
        const Passes all(passes);
        const nb::gil_scoped_release release;
        share_jobs(all.costs, [&](int i) {
          const auto& [shape, parameters, x, rows, hidden, out] = passes[static_cast<std::size_t>(i)];
          mlp_forward(*shape, all[i].view(), at<const float>(x), rows, at<float>(hidden), at<float>(out));
        });
      },
      nb::arg("passes"),
      "Passes that do not wait for each other, each (shape, parameters, x, rows, hidden, out): addresses of contiguous "
      "float32 memory; hidden 0: no backward pass will follow.");
  m.def(
      "mlp_backward",
      [](const std::vector<BackwardPass>& passes) {
        const Passes all(passes);
        const nb::gil_scoped_release release;
        share_jobs(all.costs, [&](int i) {
          const auto& [shape, parameters, x, rows, hidden, out, grad_out, grad_parameters, grad_x] =
              passes[static_cast<std::size_t>(i)];
          mlp_backward(*shape, all[i].view(), at<const float>(x), rows, at<const float>(hidden), at<const float>(out),
                       at<const float>(grad_out), {at<float>(grad_parameters), at<float>(grad_x)});
        });
      },
      nb::arg("passes"),
      "The same back, each (shape, parameters, x, rows, hidden, out, grad_out, grad_parameters, grad_x): gradients "
      "that "
      "are not wanted have the address 0.");
  m.def(
      "adam_step",
      [](const std::vector<std::pair<Address, std::size_t>>& gradients, double learning_rate, double beta1,
         double beta2, double eps, double max_norm, double step, Address parameters, Address first_moment,
         Address second_moment) {
        std::vector<GradientPiece> pieces;
        for (const auto& [address, size] : gradients) pieces.push_back({at<const float>(address), size});
        const nb::gil_scoped_release release;
        return adam_step(pieces, {learning_rate, beta1, beta2, eps, max_norm}, step, at<float>(parameters),
                         at<float>(first_moment), at<float>(second_moment));
      },
      nb::arg("gradients"), nb::kw_only(), nb::arg("learning_rate"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"),
      nb::arg("max_norm"), nb::arg("step"), nb::arg("parameters"), nb::arg("first_moment"), nb::arg("second_moment"),
      "One step over pieces (address, size) of a gradient; returns its norm before clipping, and does nothing where "
      "that is not finite. max_norm 0: no clipping. Addresses are of contiguous float32 memory.");
  m.def("set_kernel_threads", &set_kernel_threads, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
        "Threads the kernels share their work over; changes no bit.");
  m.def("keep_freed_memory", &keep_freed_memory,
        "Let the C library keep what is freed, up to 256 MB, instead of handing it back and taking it anew at each "
        "step.");
  m.def("kernel_threads", &kernel_threads, "Threads the kernels share their work over.");
}

}  // namespace slipstream
