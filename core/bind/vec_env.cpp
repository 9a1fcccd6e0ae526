#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <utility>

#include "bind/bind.hpp"

namespace slipstream {
namespace {

using Array = nb::ndarray<nb::numpy>;
using Mask = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Seeds = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Streams = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::dlpack::dtype dtype_of(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return nb::dtype<std::uint8_t>();
    case DType::kI32:
      return nb::dtype<std::int32_t>();
    case DType::kF32:
      break;
  }
  return nb::dtype<float>();
}

std::string name_of(DType dtype) { return dtype == DType::kU8 ? "uint8" : dtype == DType::kI32 ? "int32" : "float32"; }

// A view of native memory that keeps the VecEnv alive.
Array view(nb::handle owner, void* data, const std::vector<std::size_t>& shape, nb::dlpack::dtype dtype) {
  return Array(data, shape.size(), shape.data(), owner, nullptr, dtype);
}

template <class T>
nb::object view_or_none(nb::handle owner, std::vector<T>& buffer, const std::vector<std::size_t>& shape) {
  if (buffer.empty()) return nb::none();
  return nb::cast(view(owner, buffer.data(), shape, nb::dtype<T>()));
}

nb::dict action_dict(const ActionSpec& action) {
  nb::dict d;
  d["discrete"] = action.discrete;
  d["size"] = action.size;
  d["low"] = action.low;
  d["high"] = action.high;
  d["names"] = action.names;
  d["table"] = action.table;
  d["parts"] = action.parts;
  return d;
}

nb::dict spec_dict(const WorldSpec& spec) {
  nb::list obs;
  for (const ObsBlock& block : spec.obs) {
    nb::dict d;
    d["name"] = block.name;
    d["dtype"] = name_of(block.dtype);
    d["shape"] = nb::tuple(nb::cast(block.shape));
    d["low"] = block.low;
    d["high"] = block.high;
    d["features"] = nb::tuple(nb::cast(block.features));
    obs.append(d);
  }
  nb::list unlike;
  for (const RoleSpec& role : spec.unlike) {
    nb::dict d;
    d["role"] = role.role;
    d["obs"] = role.obs;
    d["action"] = action_dict(role.action);
    d["masked"] = role.masked;
    unlike.append(d);
  }
  nb::list entities;
  for (const EntityRows& rows : spec.entities) {
    nb::dict d;
    d["block"] = rows.block;
    d["first"] = rows.first;
    d["features"] = nb::tuple(nb::cast(rows.features));
    entities.append(d);
  }
  nb::dict d;
  d["name"] = spec.name;
  d["agents"] = spec.agents;
  d["roles"] = spec.roles;
  d["obs"] = obs;
  d["entities"] = entities;
  d["state_size"] = spec.state_size;
  d["action"] = action_dict(spec.action);
  d["masked"] = spec.masked;
  d["has_potential"] = spec.has_potential;
  d["has_durations"] = spec.has_durations;
  d["reward_parts"] = spec.reward_parts;
  d["stats"] = spec.stats;
  d["stats_per_agent"] = spec.stats_per_agent;
  d["frame_fields"] = spec.frame_fields;
  d["scripts"] = spec.scripts;
  d["phases"] = spec.phases;
  d["max_episode_steps"] = spec.max_episode_steps;
  d["tick_seconds"] = spec.tick_seconds;
  d["unlike"] = unlike;
  return d;
}

nb::dict obs_views(nb::handle self, VecEnv& env, std::vector<std::vector<std::byte>>& blocks) {
  nb::dict views;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const ObsBlock& block = env.spec().obs[b];
    std::vector<std::size_t> shape{static_cast<std::size_t>(env.num_worlds()), env.spec().agents.size()};
    for (const int d : block.shape) shape.push_back(static_cast<std::size_t>(d));
    views[block.name.c_str()] = view(self, blocks[b].data(), shape, dtype_of(block.dtype));
  }
  return views;
}

nb::dict views_of(nb::handle self) {
  auto& env = nb::cast<VecEnv&>(self);
  Buffers& b = env.buffers();
  const WorldSpec& spec = env.spec();
  const auto n = static_cast<std::size_t>(env.num_worlds());
  const auto agents = spec.agents.size();
  const auto width = static_cast<std::size_t>(spec.action.size);
  const auto choices = static_cast<std::size_t>(spec.action.mask_size());
  nb::dict d;
  d["obs"] = obs_views(self, env, b.obs);
  d["final_obs"] = obs_views(self, env, b.final_obs);
  d["state"] = view_or_none(self, b.state, {n, static_cast<std::size_t>(spec.state_size)});
  d["final_state"] = view_or_none(self, b.final_state, {n, static_cast<std::size_t>(spec.state_size)});
  d["actions"] = spec.action.discrete ? view_or_none(self, b.choice, {n, agents})
                                      : view_or_none(self, b.action, {n, agents, width});
  d["action_mask"] = view_or_none(self, b.action_mask, {n, agents, choices});
  d["final_mask"] = view_or_none(self, b.final_mask, {n, agents, choices});
  d["rewards"] = view_or_none(self, b.rewards, {n, agents});
  d["potential"] = view_or_none(self, b.potential, {n, agents});
  d["final_potential"] = view_or_none(self, b.final_potential, {n, agents});
  d["reward_parts"] = view_or_none(self, b.reward_parts, {n, agents, spec.reward_parts.size()});
  d["terminated"] = view_or_none(self, b.terminated, {n, agents});
  d["truncated"] = view_or_none(self, b.truncated, {n, agents});
  d["alive"] = view_or_none(self, b.alive, {n, agents});
  d["acting"] = view_or_none(self, b.acting, {n, agents});
  d["duration"] = view_or_none(self, b.duration, {n, agents});
  d["ticks"] = view_or_none(self, b.ticks, {n});
  d["episode_done"] = view_or_none(self, b.episode_done, {n});
  d["episode_length"] = view_or_none(self, b.episode_length, {n});
  d["episode_return"] = view_or_none(self, b.episode_return, {n, agents});
  d["agent_stats"] =
      nb::cast(view(self, b.episode_stats.data(), {n, spec.stat_rows(), spec.stats.size()}, nb::dtype<double>()));
  d["episode_index"] = view_or_none(self, b.episode_index, {n});
  d["episode_decisions"] = view_or_none(self, b.episode_decisions, {n, agents});
  return d;
}

// The pointer and length of an optional mask, checked while the GIL is still held.
std::span<const std::uint8_t> mask_of(const VecEnv& env, const std::optional<Mask>& mask) {
  if (!mask) return {};
  if (mask->shape(0) != static_cast<std::size_t>(env.num_worlds())) {
    throw std::invalid_argument("the mask has " + std::to_string(mask->shape(0)) + " entries for " +
                                std::to_string(env.num_worlds()) + " worlds");
  }
  return {mask->data(), mask->shape(0)};
}

}  // namespace

void bind_vec_env(nb::module_& m) {
  nb::class_<VecEnvOptions>(m, "VecEnvOptions", "How a batch of worlds is seeded and stepped.")
      .def(
          "__init__",
          [](VecEnvOptions* self, std::uint64_t seed, bool evaluation, std::uint32_t first_world, int threads,
             bool autoreset, bool reward_parts, double tick_discount) {
            new (self) VecEnvOptions{seed,         evaluation ? Domain::kEvaluation : Domain::kWorld,
                                     first_world,  threads,
                                     autoreset,    reward_parts,
                                     tick_discount};
          },
          nb::kw_only(), nb::arg("seed") = 0, nb::arg("evaluation") = false, nb::arg("first_world") = 0,
          nb::arg("threads") = 1, nb::arg("autoreset") = true, nb::arg("reward_parts") = false,
          nb::arg("tick_discount") = 1.0);

  nb::class_<VecEnv>(m, "VecEnv", "Many worlds stepped as one; buffers are owned here and shown as views.")
      .def_prop_ro("num_worlds", &VecEnv::num_worlds)
      .def_prop_ro("threads", &VecEnv::threads)
      .def(
          "spec", [](const VecEnv& env) { return spec_dict(env.spec()); },
          nb::sig("def spec(self) -> dict[str, typing.Any]"), "The world's spec as plain data.")
      .def("views", &views_of, nb::sig("def views(self) -> dict[str, typing.Any]"),
           "Every buffer as a numpy view, by name.")
      .def(
          "reset",
          [](VecEnv& env, std::optional<Mask> mask) {
            const auto span = mask_of(env, mask);
            const nb::gil_scoped_release release;
            env.reset(span);
          },
          nb::arg("mask").none() = nb::none())
      .def(
          "step",
          [](VecEnv& env, std::optional<Mask> active) {
            const auto span = mask_of(env, active);
            const nb::gil_scoped_release release;
            env.step(span);
          },
          nb::arg("active").none() = nb::none())
      .def(
          "act_scripted",
          [](VecEnv& env, int script, const std::vector<int>& agents) {
            const nb::gil_scoped_release release;
            env.act_scripted(script, agents);
          },
          nb::arg("script"), nb::arg("agents"))
      .def(
          "reseed",
          [](VecEnv& env, const Seeds& seeds, const Streams& worlds, std::optional<Mask> mask) {
            env.reseed({seeds.data(), seeds.shape(0)}, {worlds.data(), worlds.shape(0)}, mask_of(env, mask));
          },
          nb::arg("seeds"), nb::arg("worlds"), nb::arg("mask").none() = nb::none())
      .def_prop_rw(
          "phases", [](const VecEnv& env) { return env.phases(); },
          [](VecEnv& env, const std::vector<std::int32_t>& phases) { env.set_phases(phases); },
          "Of the episodes of each world that start from now on.")
      .def(
          "snapshot",
          [](VecEnv& env, int first, std::optional<int> count) {
            const auto bytes = env.snapshot(first, count.value_or(env.num_worlds() - first));
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("first") = 0, nb::arg("count") = nb::none(), "All worlds, or `count` from the first on, as bytes.")
      .def(
          "restore",
          [](VecEnv& env, const nb::bytes& bytes, int first, std::optional<int> count) {
            env.restore({static_cast<const std::byte*>(bytes.data()), bytes.size()}, first,
                        count.value_or(env.num_worlds() - first));
          },
          nb::arg("bytes"), nb::arg("first") = 0, nb::arg("count") = nb::none())
      .def(
          "frame",
          [](const VecEnv& env, int world) {
            const std::array shape{env.spec().agents.size(), env.spec().frame_fields.size()};
            auto data = std::make_unique<double[]>(std::max<std::size_t>(1, shape[0] * shape[1]));
            env.frame(world, data.get());
            double* raw = data.release();
            const nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<double*>(p); });
            return nb::ndarray<nb::numpy, double, nb::ndim<2>>(raw, {shape[0], shape[1]}, owner);
          },
          nb::arg("world"), "What a viewer needs of one world: [agents, fields].")
      .def(
          "backdrop",
          [](const VecEnv& env, int world) -> nb::object {
            Backdrop seen = env.backdrop(world);
            if (seen.occupied.empty()) return nb::none();
            const auto rows = static_cast<std::size_t>(seen.rows);
            const auto columns = static_cast<std::size_t>(seen.columns);
            auto* cells = new std::vector<std::uint8_t>(std::move(seen.occupied));
            const nb::capsule owner(cells, [](void* p) noexcept { delete static_cast<std::vector<std::uint8_t>*>(p); });
            return nb::make_tuple(
                nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>>(cells->data(), {rows, columns}, owner),
                seen.resolution_m, nb::make_tuple(seen.x_m, seen.y_m, seen.yaw_rad));
          },
          nb::arg("world"),
          nb::sig("def backdrop(self, world: int) -> tuple[numpy.typing.NDArray[numpy.uint8], float, tuple[float, "
                  "float, float]] | None"),
          "What stands still in one world: occupied cells, metres per cell, origin.");
}

}  // namespace slipstream
