#include "bind/bind.hpp"
#include "bind/slab.hpp"
#include "kernels/gae.hpp"
#include "kernels/noise.hpp"
#include "kernels/windows.hpp"

namespace slipstream {
namespace {

void bind_gae(nb::module_& m) {
  m.def(
      "gae",
      [](In<std::uint8_t, 2> decided, In<float, 2> value, In<std::uint8_t, 2> paid, In<float, 2> reward,
         In<std::int32_t, 2> duration, In<std::uint8_t, 2> terminated, In<std::uint8_t, 2> truncated,
         In<float, 2> end_value, In<float, 1> last_value, double gamma, double gae_lambda, Out<float, 2> advantage,
         Out<float, 2> target, Out<std::uint8_t, 2> complete) {
        const GaeInput in = slab(decided, value, paid, reward, duration, terminated, truncated, end_value, last_value,
                                 gamma, gae_lambda);
        same_shape(decided, advantage, "advantage");
        same_shape(decided, target, "target");
        same_shape(decided, complete, "complete");
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

void bind_windows(nb::module_& m) {
  m.def(
      "copy_windows",
      [](In<float, 4> boards, In<std::int64_t, 1> board, In<std::int64_t, 1> corner, std::size_t height,
         std::size_t width, Out<float, 2> out) {
        const WindowShape shape{boards.shape(1), boards.shape(2), boards.shape(3), height, width};
        const std::size_t count = out.shape(0);
        if (board.shape(0) != count || corner.shape(0) != count || out.shape(1) < shape.planes * height * width)
          throw std::invalid_argument("windows need a board and a corner each, and a row that is long enough");
        for (std::size_t k = 0; k < count; ++k) {
          const std::int64_t at = corner.data()[k];
          const auto columns = static_cast<std::int64_t>(shape.board_width);
          const bool inside =
              at >= 0 && at % columns + static_cast<std::int64_t>(width) <= columns &&
              at / columns + static_cast<std::int64_t>(height) <= static_cast<std::int64_t>(shape.board_height);
          if (!inside || board.data()[k] < 0 || board.data()[k] >= static_cast<std::int64_t>(boards.shape(0)))
            throw std::invalid_argument("window " + std::to_string(k) + ": board " + std::to_string(board.data()[k]) +
                                        ", corner " + std::to_string(at) + " is not on a board");
        }
        const nb::gil_scoped_release release;
        copy_windows(boards.data(), shape, board.data(), corner.data(), count, out.data(), out.shape(1));
      },
      nb::kw_only(), nb::arg("boards").noconvert(), nb::arg("board").noconvert(), nb::arg("corner").noconvert(),
      nb::arg("height"), nb::arg("width"), nb::arg("out").noconvert(),
      "Windows of boards [boards, planes, height, width] into the first columns of `out` [windows, at least their "
      "size].");
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
  bind_windows(m);
  bind_noise<&fill_normal>(m, "fill_normal", "Standard normal noise [worlds, agents, width] keyed by seed and step.");
  bind_noise<&fill_uniform>(m, "fill_uniform", "Uniform (0, 1) noise [worlds, agents, width] keyed by seed and step.");
}

}  // namespace slipstream
