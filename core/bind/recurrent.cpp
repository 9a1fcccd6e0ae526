#include "kernels/recurrent.hpp"

#include <nanobind/stl/array.h>

#include "bind/bind.hpp"

namespace slipstream {
namespace {

using Parameters = std::array<Address, 4>;

RecurrentWeights weights_at(const Parameters& parameters) {
  return {at<const float>(parameters[0]), at<const float>(parameters[1]), at<const float>(parameters[2]),
          at<const float>(parameters[3])};
}

// Lengths come from a learner's own code, and a wrong one would be read far beyond the rows.
Sequences sequences_at(Address x, Address before, int rows, Address lengths, int count) {
  const Sequences sequences{at<const float>(x), at<const float>(before), rows, at<const std::int64_t>(lengths), count};
  std::int64_t total = sequences.lengths == nullptr ? count : 0;
  for (int i = 0; sequences.lengths != nullptr && i < count; ++i) {
    const std::int64_t length = sequences.lengths[i];
    if (length < 1 || length > rows)
      throw std::invalid_argument("a sequence of " + std::to_string(length) + " rows among " + std::to_string(rows) +
                                  "; each has at least one");
    total += length;
  }
  if (total != rows)
    throw std::invalid_argument("sequences of " + std::to_string(total) + " rows together were given " +
                                std::to_string(rows) + " rows");
  return sequences;
}

CellKind kind_of(const std::string& name) {
  if (name == "gru") return CellKind::kGru;
  if (name == "lstm") return CellKind::kLstm;
  throw std::invalid_argument("cell '" + name + "' is none of gru, lstm");
}

}  // namespace

void bind_recurrent(nb::module_& m) {
  nb::class_<RecurrentShape>(m, "RecurrentShape", "Kind and widths of a recurrent cell; the weights are torch's.")
      .def(
          "__init__",
          [](RecurrentShape* self, const std::string& cell, int inputs, int size) {
            if (inputs < 1 || size < 1) throw std::invalid_argument("a cell has at least one input and one unit");
            new (self) RecurrentShape{kind_of(cell), inputs, size};
          },
          nb::arg("cell"), nb::arg("inputs"), nb::arg("size"))
      .def_prop_ro("memory", &RecurrentShape::memory)
      .def_prop_ro("parameter_floats", &RecurrentShape::parameter_floats)
      .def("kept_floats", &RecurrentShape::kept_floats, nb::arg("rows"));
  m.def(
      "recurrent_forward",
      [](const RecurrentShape& shape, const Parameters& parameters, Address x, Address before, int rows,
         Address lengths, int count, Address kept, Address out, Address after) {
        const Sequences sequences = sequences_at(x, before, rows, lengths, count);
        const nb::gil_scoped_release release;
        recurrent_forward(shape, weights_at(parameters), sequences, at<float>(kept), at<float>(out), at<float>(after));
      },
      nb::arg("shape"), nb::arg("parameters"), nb::arg("x"), nb::arg("before"), nb::arg("rows"), nb::arg("lengths"),
      nb::arg("count"), nb::arg("kept"), nb::arg("out"), nb::arg("after"),
      "A cell over sequences: addresses of contiguous float32 memory, of lengths int64; lengths 0: every row is a "
      "sequence; kept 0: no backward pass will follow; after 0: not wanted.");
  m.def(
      "recurrent_backward",
      [](const RecurrentShape& shape, const Parameters& parameters, Address x, Address before, int rows,
         Address lengths, int count, Address kept, Address grad_out, Address grad_after, Address grad_parameters,
         Address grad_x, Address grad_before) {
        const Sequences sequences = sequences_at(x, before, rows, lengths, count);
        const nb::gil_scoped_release release;
        recurrent_backward(shape, weights_at(parameters), sequences, at<const float>(kept), at<const float>(grad_out),
                           at<const float>(grad_after),
                           {at<float>(grad_parameters), at<float>(grad_x), at<float>(grad_before)});
      },
      nb::arg("shape"), nb::arg("parameters"), nb::arg("x"), nb::arg("before"), nb::arg("rows"), nb::arg("lengths"),
      nb::arg("count"), nb::arg("kept"), nb::arg("grad_out"), nb::arg("grad_after"), nb::arg("grad_parameters"),
      nb::arg("grad_x"), nb::arg("grad_before"),
      "The same back; grad_after 0: zeros; gradients that are not wanted have the address 0.");
}

}  // namespace slipstream
