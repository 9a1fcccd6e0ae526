#include <string>

#include "bind/bind.hpp"
#include "bind/slab.hpp"
#include "kernels/frame_pool.hpp"
#include "kernels/nstep.hpp"
#include "kernels/rows.hpp"
#include "kernels/sum_tree.hpp"

namespace slipstream {
namespace {

using AnyRows = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const In<T, 1>& array) {
  return {array.data(), array.shape(0)};
}
template <class T>
std::span<T> span_of(const Out<T, 1>& array) {
  return {array.data(), array.shape(0)};
}

void bind_sum_tree(nb::module_& m) {
  nb::class_<SumTree>(m, "SumTree",
                      "Weights that change often and are drawn from in proportion; float64, any capacity.")
      .def(nb::init<std::int64_t>(), nb::arg("capacity"))
      .def_prop_ro("capacity", &SumTree::capacity)
      .def("total", &SumTree::total, "The sum of all weights.")
      .def(
          "set",
          [](SumTree& tree, const In<std::int64_t, 1>& index, const In<double, 1>& value) {
            const nb::gil_scoped_release release;
            tree.set(span_of(index), span_of(value));
          },
          nb::arg("index").noconvert(), nb::arg("value").noconvert(),
          "Change weights in order: of equal indices the last counts.")
      .def(
          "get",
          [](const SumTree& tree, const In<std::int64_t, 1>& index, const Out<double, 1>& out) {
            const nb::gil_scoped_release release;
            tree.get(span_of(index), span_of(out));
          },
          nb::arg("index").noconvert(), nb::arg("out").noconvert(), "Write the weights of these leaves to out.")
      .def(
          "sample",
          [](const SumTree& tree, const In<double, 1>& u, const Out<std::int64_t, 1>& index,
             const Out<double, 1>& weight) {
            const nb::gil_scoped_release release;
            tree.sample(span_of(u), span_of(index), span_of(weight));
          },
          nb::arg("u").noconvert(), nb::arg("index").noconvert(), nb::arg("weight").noconvert(),
          "Write the leaf in which u * total falls, and its weight, for every u in [0, 1).");
}

void bind_rows(nb::module_& m) {
  m.def(
      "write_rows",
      [](const Out<std::uint8_t, 2>& store, std::int64_t first, const std::vector<AnyRows>& arrays) {
        std::vector<const std::byte*> data;
        std::vector<std::size_t> sizes;
        std::size_t total = 0;
        const std::size_t rows = arrays.empty() || arrays[0].ndim() == 0 ? 0 : arrays[0].shape(0);
        for (const AnyRows& array : arrays) {
          if (array.ndim() == 0 || array.shape(0) != rows) {
            throw std::invalid_argument("array " + std::to_string(data.size()) + " has " +
                                        std::to_string(array.ndim() == 0 ? 0 : array.shape(0)) +
                                        " rows where the first has " + std::to_string(rows));
          }
          data.push_back(static_cast<const std::byte*>(array.data()));
          sizes.push_back(rows == 0 ? 0 : array.nbytes() / rows);
          total += sizes.back();
        }
        if (total > store.shape(1)) throw std::invalid_argument("the rows are wider than a record of the store");
        if (first < 0 || store.shape(0) == 0) throw std::invalid_argument("there is no such record in the store");
        const RowStore ring{reinterpret_cast<std::byte*>(store.data()), static_cast<std::int64_t>(store.shape(0)),
                            store.shape(1)};
        const nb::gil_scoped_release release;
        write_rows(ring, first, static_cast<std::int64_t>(rows), data, sizes);
      },
      nb::arg("store").noconvert(), nb::arg("first"), nb::arg("arrays"),
      nb::sig("def write_rows(store: numpy.typing.NDArray[numpy.uint8], first: int, "
              "arrays: collections.abc.Sequence[numpy.typing.NDArray[typing.Any]]) -> None"),
      "Write rows, one array per field, into records [capacity, stride] from `first` on, wrapping at the end.");
  m.def(
      "gather_rows",
      [](const Out<std::uint8_t, 2>& store, const In<std::int64_t, 1>& index, const In<std::uint64_t, 1>& sizes,
         const Out<std::uint8_t, 1>& out) {
        std::size_t total = 0;
        for (const std::uint64_t size : span_of(sizes)) total += size;
        if (total > store.shape(1) || total * index.shape(0) != out.shape(0)) {
          throw std::invalid_argument("out does not fit the rows and fields asked for");
        }
        const auto capacity = static_cast<std::int64_t>(store.shape(0));
        for (const std::int64_t i : span_of(index)) {
          if (i < 0 || i >= capacity) throw std::invalid_argument("there is no such record in the store");
        }
        const std::vector<std::size_t> widths(sizes.data(), sizes.data() + sizes.shape(0));
        const RowStore ring{reinterpret_cast<std::byte*>(store.data()), capacity, store.shape(1)};
        const nb::gil_scoped_release release;
        gather_rows(ring, span_of(index), widths, reinterpret_cast<std::byte*>(out.data()));
      },
      nb::arg("store").noconvert(), nb::arg("index").noconvert(), nb::arg("sizes").noconvert(),
      nb::arg("out").noconvert(), "Copy scattered records to out: one array per field, one behind the other.");
  m.def(
      "fill_draw",
      [](const Out<double, 1>& out, std::uint64_t seed, std::uint64_t draw) {
        const nb::gil_scoped_release release;
        fill_draw(seed, draw, span_of(out));
      },
      nb::arg("out").noconvert(), nb::kw_only(), nb::arg("seed"), nb::arg("draw"),
      "Uniform numbers in [0, 1) keyed by seed and draw.");
}

void bind_frame_pool(nb::module_& m) {
  using Id = FramePool::Id;
  const auto known = [](const FramePool& pool, const In<Id, 1>& ids) {
    for (const Id id : span_of(ids))
      if (!pool.knows(id)) throw std::invalid_argument("there is no frame " + std::to_string(id) + " in the pool");
  };
  const auto sized = [](const FramePool& pool, std::size_t ids, std::size_t bytes) {
    if (ids * pool.size() != bytes)
      throw std::invalid_argument(std::to_string(bytes) + " bytes are not " + std::to_string(ids) + " frames of " +
                                  std::to_string(pool.size()));
  };
  nb::class_<FramePool>(m, "FramePool", "Frames of one size, each held once however many rows show it.")
      .def(
          "__init__",
          [](FramePool* self, std::size_t size, std::size_t chunk) {
            if (size < 1 || chunk < 1) throw std::invalid_argument("a pool has frames of at least 1 byte");
            new (self) FramePool(size, chunk);
          },
          nb::arg("size"), nb::arg("chunk"))
      .def_prop_ro("frames", &FramePool::frames, "Different frames that are held.")
      .def_prop_ro("nbytes", &FramePool::bytes, "Memory taken.")
      .def(
          "hold",
          [sized](FramePool& pool, const In<std::uint8_t, 1>& frames, const Out<Id, 1>& ids) {
            sized(pool, ids.shape(0), frames.shape(0));
            const nb::gil_scoped_release release;
            pool.hold(reinterpret_cast<const std::byte*>(frames.data()), span_of(ids));
          },
          nb::arg("frames").noconvert(), nb::arg("ids").noconvert(),
          "Hold these frames, one behind the other, once more each, and write their ids; 0 is none's.")
      .def(
          "release",
          [known](FramePool& pool, const In<Id, 1>& ids) {
            known(pool, ids);
            const nb::gil_scoped_release release;
            pool.release(span_of(ids));
          },
          nb::arg("ids").noconvert(), "Give up one hold of each; what nothing holds makes room.")
      .def(
          "gather",
          [known, sized](const FramePool& pool, const In<Id, 1>& ids, const Out<std::uint8_t, 1>& out) {
            known(pool, ids);
            sized(pool, ids.shape(0), out.shape(0));
            const nb::gil_scoped_release release;
            pool.gather(span_of(ids), reinterpret_cast<std::byte*>(out.data()));
          },
          nb::arg("ids").noconvert(), nb::arg("out").noconvert(),
          "Copy frames to out, one behind the other; zeros for id 0.")
      .def("clear", &FramePool::clear, "Hold nothing any more.");
}

void bind_nstep(nb::module_& m) {
  m.def(
      "nstep",
      [](const In<std::uint8_t, 2>& decided, const In<std::uint8_t, 2>& paid, const In<float, 2>& reward,
         const In<std::int32_t, 2>& duration, const In<std::uint8_t, 2>& terminated,
         const In<std::uint8_t, 2>& truncated, double gamma, int steps, const Out<float, 2>& span_reward,
         const Out<float, 2>& discount, const Out<std::int32_t, 2>& outcome, const Out<std::int32_t, 2>& last,
         const Out<std::int32_t, 2>& next, const Out<std::uint8_t, 2>& complete) {
        same_shape(decided, paid, "paid");
        same_shape(decided, reward, "reward");
        same_shape(decided, duration, "duration");
        same_shape(decided, terminated, "terminated");
        same_shape(decided, truncated, "truncated");
        same_shape(decided, span_reward, "span_reward");
        same_shape(decided, discount, "discount");
        same_shape(decided, outcome, "outcome");
        same_shape(decided, last, "last");
        same_shape(decided, next, "next");
        same_shape(decided, complete, "complete");
        if (steps < 1) throw std::invalid_argument("n-step needs at least 1 step");
        const NstepInput in{static_cast<int>(decided.shape(0)),
                            static_cast<int>(decided.shape(1)),
                            decided.data(),
                            paid.data(),
                            reward.data(),
                            duration.data(),
                            terminated.data(),
                            truncated.data(),
                            gamma,
                            steps};
        const NstepOutput out{span_reward.data(), discount.data(), outcome.data(),
                              last.data(),        next.data(),     complete.data()};
        const nb::gil_scoped_release release;
        nstep(in, out);
      },
      nb::kw_only(), nb::arg("decided").noconvert(), nb::arg("paid").noconvert(), nb::arg("reward").noconvert(),
      nb::arg("duration").noconvert(), nb::arg("terminated").noconvert(), nb::arg("truncated").noconvert(),
      nb::arg("gamma"), nb::arg("steps"), nb::arg("span_reward").noconvert(), nb::arg("discount").noconvert(),
      nb::arg("outcome").noconvert(), nb::arg("last").noconvert(), nb::arg("next").noconvert(),
      nb::arg("complete").noconvert(), "n-step outcomes of decisions of any duration; [rows, columns], time-major.");
}

}  // namespace

void bind_replay(nb::module_& m) {
  bind_sum_tree(m);
  bind_rows(m);
  bind_frame_pool(m);
  bind_nstep(m);
  m.attr("TERMINATED") = kTerminated;
  m.attr("TRUNCATED") = kTruncated;
}

}  // namespace slipstream
