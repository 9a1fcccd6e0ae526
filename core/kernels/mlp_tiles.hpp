// Products and elementwise loops of a perceptron's passes, once for each width of vector registers.
//
// Every sum runs over its inner index one by one, in order, whatever the shape of a tile: the tables differ in speed
// and in no bit.
#pragma once

#include <cstddef>

namespace slipstream {

// The first three are known from their outputs: a product applies them as it goes.
enum class Activation { kIdentity, kRelu, kTanh, kElu, kSilu, kGelu };

using Index = std::ptrdiff_t;

// A(i, k) = data[i * row + k * inner].
struct Strided {
  const float* data;
  Index row;
  Index inner;
};

// A(i, k) = data[row[i] + inner[k]]: an image as a matrix of the patches in it.
struct Gathered {
  const float* data;
  const Index* row;
  const Index* inner;
};

// Rows of a matrix, which lie `stride` apart; 0: all rows are the same.
template <class T>
struct Rows {
  T* data;
  Index stride;
};

// What follows the product of a hidden layer that is more than a product and an activation.
struct Finish {
  Activation activation;
  const float* gain;   // of layer normalisation, [columns]; null: none
  const float* shift;  // [columns]
};

// Where the gradients of a finish go, [rows, columns] each.
struct FinishGradients {
  Rows<float> product;
  Rows<float> gain;   // of every row, to be summed; data null where there is none
  Rows<float> shift;  // the same
};

constexpr std::size_t kLine = 64;  // bytes of a cache line: registers that lie across two are read at half the speed

struct Tiles {
  Index rows;   // of a tile, whose sums stay in registers while the inner index runs
  Index lanes;  // of a register; packed columns are a multiple of them, those beyond the last filled with zeros
  Index group;  // columns of one task of a gradient, several panels

  // Columns of B are rows of `w` [columns, inner]: what a forward pass multiplies by.
  void (*pack_transposed)(const float* w, Index columns, Index inner, float* out);
  // All panels of b [inner, columns].
  void (*pack)(const float* b, Index columns, Index inner, float* out);
  // out [rows, columns] = activation(A [rows, inner] B + bias), with B packed; bias null: 0.
  void (*product)(const Strided& a, Index rows, const float* packed, Index inner, Index columns, const float* bias,
                  Activation activation, const Rows<float>& out);
  // The same, without a bias where `add` says that what is in `out` is added to.
  void (*gathered)(const Gathered& a, Index rows, const float* packed, Index inner, Index columns, const float* bias,
                   Activation activation, bool add, const Rows<float>& out);
  // Columns [begin, end) of out [rows, columns] = A [rows, inner] b [inner, columns]; `add`: plus what is there. At
  // most `group` of them.
  void (*gradient)(const Strided& a, Index rows, const float* b, Index inner, Index columns, Index begin, Index end,
                   bool add, float* out);
  // Gradients before an activation, from those after it and its outputs.
  void (*derivatives)(Activation activation, Index rows, Index columns, const Rows<const float>& grad,
                      const Rows<const float>& y, const Rows<float>& out);
  // out = activation(norm(z)) + skip, with z [rows, columns] a product, in `out` itself or elsewhere; skip null: 0.
  void (*finish)(const Finish& what, Index rows, Index columns, const Rows<const float>& z,
                 const Rows<const float>& skip, const Rows<float>& out);
  // From the gradient of out to those of z, gain and shift; that of skip is the gradient of out.
  void (*unfinish)(const Finish& what, Index rows, Index columns, const Rows<const float>& grad,
                   const Rows<const float>& z, const FinishGradients& out);
};

// By the width of registers; null where this was not built for such processors, or does not run on one.
[[nodiscard]] const Tiles& tiles_of_8();
[[nodiscard]] const Tiles* tiles_of_16();
[[nodiscard]] const Tiles& fastest_tiles();

extern const Tiles* const kTilesOf16;  // whatever processor this is; null where it was not built

}  // namespace slipstream
