#include "kernels/conv.hpp"

#include <nanobind/stl/tuple.h>

#include <array>
#include <tuple>

#include "bind/bind.hpp"

namespace slipstream {
namespace {

struct Pointers {
  std::array<const float*, kMaxConvLayers> weight{}, bias{};
  std::size_t layers;

  Pointers(const ConvShape& shape, const std::vector<Address>& parameters) : layers(shape.layers.size()) {
    if (parameters.size() != 2 * layers) throw std::invalid_argument("one weight and one bias per layer, in turn");
    for (std::size_t l = 0; l < layers; ++l) {
      weight[l] = at<const float>(parameters[2 * l]);
      bias[l] = at<const float>(parameters[2 * l + 1]);
    }
  }
  [[nodiscard]] ConvWeights view() const { return {{weight.data(), layers}, {bias.data(), layers}}; }
};

ConvShape shape_of(std::array<int, 3> image, bool channels_first, float low, float scale,
                   const std::vector<std::tuple<int, int, int>>& layers) {
  if (layers.empty() || layers.size() > static_cast<std::size_t>(kMaxConvLayers))
    throw std::invalid_argument("there are 1 to " + std::to_string(kMaxConvLayers) + " convolutions, not " +
                                std::to_string(layers.size()));
  std::vector<ConvStep> steps;
  auto [channels, height, width] = image;
  for (const auto& [kernel, stride, outputs] : layers) {
    if (kernel < 1 || stride < 1 || outputs < 1 || channels < 1 || kernel > height || kernel > width)
      throw std::invalid_argument("a convolution of " + std::to_string(kernel) + " pixels with stride " +
                                  std::to_string(stride) + " has no place in an image of " + std::to_string(height) +
                                  " x " + std::to_string(width));
    steps.push_back({kernel, stride, outputs});
    channels = outputs;
    height = (height - kernel) / stride + 1;
    width = (width - kernel) / stride + 1;
  }
  return {image, channels_first, low, scale, steps};
}

}  // namespace

void bind_conv(nb::module_& m) {
  nb::class_<ConvShape>(m, "ConvShape", "Sizes of convolutions over images of bytes; the weights are torch's.")
      .def(
          "__init__",
          [](ConvShape* self, int channels, int height, int width, bool channels_first, float low, float scale,
             const std::vector<std::tuple<int, int, int>>& layers) {
            new (self) ConvShape(shape_of({channels, height, width}, channels_first, low, scale, layers));
          },
          nb::arg("channels"), nb::arg("height"), nb::arg("width"), nb::arg("channels_first"), nb::arg("low"),
          nb::arg("scale"), nb::arg("layers"),
          "Each layer is (kernel, stride, outputs); a byte b counts (b - low) * scale.")
      .def_prop_ro("image_bytes", &ConvShape::image_bytes)
      .def_prop_ro("features", &ConvShape::features)
      .def_prop_ro("parameter_floats", &ConvShape::parameter_floats)
      .def("hidden_floats", &ConvShape::hidden_floats, nb::arg("rows"));
  m.def(
      "conv_forward",
      [](const ConvShape& shape, const std::vector<Address>& parameters, Address images, int rows, Address hidden,
         Address out) {
        const Pointers pointers(shape, parameters);
        const nb::gil_scoped_release release;
        conv_forward(shape, pointers.view(), at<const std::uint8_t>(images), rows, at<float>(hidden), at<float>(out));
      },
      nb::arg("shape"), nb::arg("parameters"), nb::arg("images"), nb::arg("rows"), nb::arg("hidden"), nb::arg("out"),
      "Features of images: addresses of contiguous memory, of images uint8 and else float32; hidden 0: no backward "
      "pass "
      "will follow.");
  m.def(
      "conv_backward",
      [](const ConvShape& shape, const std::vector<Address>& parameters, Address images, int rows, Address hidden,
         Address out, Address grad_out, Address grads) {
        const Pointers pointers(shape, parameters);
        const nb::gil_scoped_release release;
        conv_backward(shape, pointers.view(), at<const std::uint8_t>(images), rows, at<const float>(hidden),
                      at<const float>(out), at<const float>(grad_out), at<float>(grads));
      },
      nb::arg("shape"), nb::arg("parameters"), nb::arg("images"), nb::arg("rows"), nb::arg("hidden"), nb::arg("out"),
      nb::arg("grad_out"), nb::arg("grads"), "The same back, to the gradients of all parameters.");
}

}  // namespace slipstream
