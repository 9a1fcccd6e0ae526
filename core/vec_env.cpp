#include "slipstream/vec_env.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace slipstream {
namespace {

constexpr std::uint32_t kSnapshotMagic = 0x56504C53;  // "SLPV"
// 1 had no final_mask, 2 no phase, 3 no ticks, 4 one phase for all worlds and no decisions. 6 is 5 with stats by agent,
// for worlds that have them.
constexpr std::uint32_t kSnapshotVersion = 6;

std::size_t zu(int value) { return static_cast<std::size_t>(value); }

template <class T>
T* row(std::vector<T>& buffer, int i, std::size_t width) {
  return buffer.empty() ? nullptr : buffer.data() + zu(i) * width;
}

void check_parts(const WorldSpec& spec) {
  const ActionSpec& action = spec.action;
  const bool fits = zu(action.size) >= action.parts.size() && !action.discrete && action.table.empty();
  const bool filled = std::all_of(action.parts.begin(), action.parts.end(), [](int choices) { return choices > 0; });
  if (!action.parts.empty() && !(fits && filled))
    throw std::invalid_argument(spec.name +
                                " has an action of parts that is discrete, has a table, an empty part, or " +
                                "fewer numbers than parts");
}

bool selected(std::span<const std::uint8_t> mask, int i) { return mask.empty() || mask[zu(i)] != 0; }

}  // namespace

VecEnv::VecEnv(std::unique_ptr<Worlds> worlds, const VecEnvOptions& options)
    : worlds_(std::move(worlds)), options_(options), pool_(options.threads) {
  const WorldSpec& spec = worlds_->spec();
  const std::size_t n = zu(worlds_->size());
  agents_ = zu(spec.num_agents());
  figures_ = spec.stat_rows() * spec.stats.size();
  if (n == 0) throw std::invalid_argument("num_worlds is 0; a batch needs at least one world");
  if (options.threads < 1)
    throw std::invalid_argument("threads is " + std::to_string(options.threads) + "; it must be at least 1");
  if (spec.phases.size() > zu(kPhases)) throw std::invalid_argument(spec.name + " has more than 256 phases");
  if (agents_ == 0) throw std::invalid_argument(spec.name + " has no agents");
  check_parts(spec);
  if (spec.obs.size() > zu(kMaxObsBlocks)) throw std::invalid_argument(spec.name + " has too many observation blocks");

  const std::size_t rows = n * agents_;
  for (const ObsBlock& block : spec.obs) {
    buffers_.obs.emplace_back(rows * block.bytes());
    buffers_.final_obs.emplace_back(rows * block.bytes());
  }
  buffers_.state.resize(n * zu(spec.state_size));
  buffers_.final_state.resize(n * zu(spec.state_size));
  if (spec.action.discrete) {
    buffers_.choice.resize(rows);
  } else {
    buffers_.action.resize(rows * zu(spec.action.size));
  }
  if (spec.masked) {
    buffers_.action_mask.resize(rows * zu(spec.action.mask_size()), 1);
    buffers_.final_mask.resize(rows * zu(spec.action.mask_size()), 1);
  }
  buffers_.rewards.resize(rows);
  if (spec.has_potential) {
    buffers_.potential.resize(rows);
    buffers_.final_potential.resize(rows);
  }
  if (options.reward_parts) buffers_.reward_parts.resize(rows * spec.reward_parts.size());
  for (auto* flags : {&buffers_.terminated, &buffers_.truncated, &buffers_.alive, &buffers_.acting})
    flags->resize(rows);
  buffers_.duration.resize(rows);
  buffers_.ticks.resize(n);
  buffers_.episode_done.resize(n);
  buffers_.episode_length.resize(n);
  buffers_.episode_return.resize(rows);
  buffers_.episode_stats.resize(n * figures_);
  buffers_.episode_index.resize(n);
  buffers_.episode_decisions.resize(rows);

  seed_.assign(n, options.seed);
  stream_.resize(n);
  for (std::size_t i = 0; i < n; ++i) stream_[i] = options.first_world + static_cast<std::uint32_t>(i);
  next_episode_.resize(n);
  present_.resize(rows);
  length_.resize(n);
  phases_.resize(n);
  decisions_.resize(rows);
  elapsed_.resize(rows);
  returns_.resize(rows);
  stats_.resize(n * figures_);
  owed_.resize(rows);
  discount_.resize(rows, 1.0);
  discounted_.resize(rows);
}

Slices VecEnv::slices(int i) {
  const WorldSpec& spec = worlds_->spec();
  Slices s;
  for (std::size_t b = 0; b < spec.obs.size(); ++b) s.obs[b] = row(buffers_.obs[b], i, agents_ * spec.obs[b].bytes());
  s.state = row(buffers_.state, i, zu(spec.state_size));
  s.action = row(buffers_.action, i, agents_ * zu(spec.action.size));
  s.choice = row(buffers_.choice, i, agents_);
  s.action_mask = row(buffers_.action_mask, i, agents_ * zu(spec.action.mask_size()));
  s.rewards = row(buffers_.rewards, i, agents_);
  s.potential = row(buffers_.potential, i, agents_);
  s.terminated = row(buffers_.terminated, i, agents_);
  s.truncated = row(buffers_.truncated, i, agents_);
  s.alive = row(buffers_.alive, i, agents_);
  s.present = row(present_, i, agents_);
  s.acting = row(buffers_.acting, i, agents_);
  s.reward_parts = row(buffers_.reward_parts, i, agents_ * spec.reward_parts.size());
  s.stats = row(stats_, i, figures_);
  s.ticks = &buffers_.ticks[zu(i)];
  s.discounted = row(discounted_, i, agents_);
  s.tick_discount = options_.tick_discount;
  s.phase = phases_[zu(i)] % kPhases;
  s.time_limit = phases_[zu(i)] / kPhases;
  return s;
}

template <class Fn>
void VecEnv::for_each_world(Fn&& fn) {
  const int n = num_worlds();
  // Several pieces per thread, so that a late worker costs only its own share.
  const int grain = std::max(1, n / (16 * pool_.threads()));
  pool_.run(
      n, grain,
      [](void* context, int begin, int end) {
        for (int i = begin; i < end; ++i) (*static_cast<std::remove_reference_t<Fn>*>(context))(i);
      },
      &fn);
}

void VecEnv::reset(std::span<const std::uint8_t> mask) {
  for_each_world([&](int i) {
    if (!selected(mask, i)) return;
    start_episode(i);
    const std::size_t first = zu(i) * agents_;
    std::fill_n(&buffers_.rewards[first], agents_, 0.0F);
    std::fill_n(&buffers_.terminated[first], agents_, std::uint8_t{0});
    std::fill_n(&buffers_.truncated[first], agents_, std::uint8_t{0});
    std::copy_n(&present_[first], agents_, &buffers_.alive[first]);
    std::fill_n(&buffers_.duration[first], agents_, 0);
    buffers_.ticks[zu(i)] = 0;
    buffers_.episode_done[zu(i)] = 0;
  });
}

void VecEnv::step(std::span<const std::uint8_t> active) {
  for_each_world([&](int i) { step_world(i, selected(active, i)); });
}

void VecEnv::step_world(int i, bool active) {
  const Slices s = slices(i);
  const std::size_t first = zu(i) * agents_;
  std::fill_n(s.rewards, agents_, 0.0F);
  std::fill_n(s.terminated, agents_, std::uint8_t{0});
  std::fill_n(s.truncated, agents_, std::uint8_t{0});
  std::fill_n(&buffers_.duration[first], agents_, 0);
  if (s.reward_parts != nullptr) std::fill_n(s.reward_parts, agents_ * spec().reward_parts.size(), 0.0F);
  buffers_.episode_done[zu(i)] = 0;
  const bool running = std::any_of(&present_[first], &present_[first] + agents_, [](auto p) { return p != 0; });
  *s.ticks = active && running ? 1 : 0;
  if (!active || !running) {
    std::fill_n(&buffers_.alive[first], agents_, std::uint8_t{0});
    return;
  }
  std::copy_n(&present_[first], agents_, &buffers_.alive[first]);
  for (std::size_t a = first; a < first + agents_; ++a) decisions_[a] += present_[a] & buffers_.acting[a];
  std::fill_n(s.discounted, agents_, 0.0);

  worlds_->step(i, s);

  length_[zu(i)] += *s.ticks;
  clear_departed(i);
  pay(i);
  const bool over = std::none_of(&present_[first], &present_[first] + agents_, [](auto p) { return p != 0; });
  if (!over) return;
  finish_episode(i);
  if (options_.autoreset) start_episode(i);
}

// Agents that end now keep their last observation and mask in the final_ buffers; agents gone before show zeros.
void VecEnv::clear_departed(int i) {
  const WorldSpec& spec = worlds_->spec();
  const std::size_t first = zu(i) * agents_;
  const std::size_t choices = zu(spec.action.mask_size());
  bool any_end = false;
  for (std::size_t a = first; a < first + agents_; ++a) {
    if (buffers_.alive[a] == 0) {
      buffers_.rewards[a] = 0.0F;
      buffers_.terminated[a] = buffers_.truncated[a] = 0;
      const std::size_t parts = buffers_.reward_parts.empty() ? 0 : spec.reward_parts.size();
      std::fill_n(buffers_.reward_parts.data() + a * parts, parts, 0.0F);
    }
    const bool ends = (buffers_.terminated[a] | buffers_.truncated[a]) != 0;
    any_end |= ends;
    if (ends) {
      for (std::size_t b = 0; b < spec.obs.size(); ++b) {
        const std::size_t bytes = spec.obs[b].bytes();
        std::memcpy(&buffers_.final_obs[b][a * bytes], &buffers_.obs[b][a * bytes], bytes);
      }
      if (spec.has_potential) buffers_.final_potential[a] = buffers_.potential[a];
      if (spec.masked) std::memcpy(&buffers_.final_mask[a * choices], &buffers_.action_mask[a * choices], choices);
      present_[a] = 0;
    }
    if (present_[a] == 0) clear_row(a);
  }
  if (any_end && spec.state_size > 0) {
    const std::size_t width = zu(spec.state_size);
    std::copy_n(&buffers_.state[zu(i) * width], width, &buffers_.final_state[zu(i) * width]);
  }
}

// What an agent shows that is not in the episode.
void VecEnv::clear_row(std::size_t a) {
  const WorldSpec& spec = worlds_->spec();
  for (std::size_t b = 0; b < spec.obs.size(); ++b) {
    const std::size_t bytes = spec.obs[b].bytes();
    std::memset(&buffers_.obs[b][a * bytes], 0, bytes);
  }
  if (spec.has_potential) buffers_.potential[a] = 0.0F;
  const std::size_t choices = zu(spec.action.mask_size());
  if (spec.masked) std::memset(&buffers_.action_mask[a * choices], 1, choices);
  buffers_.acting[a] = 0;
}

// Rewards between an agent's decisions are paid, discounted tick by tick, on the row where it decides again or ends.
void VecEnv::pay(int i) {
  const std::size_t first = zu(i) * agents_;
  const int ticks = buffers_.ticks[zu(i)];
  const double later = ticks == 1 ? options_.tick_discount : std::pow(options_.tick_discount, ticks);
  for (std::size_t a = first; a < first + agents_; ++a) {
    if (buffers_.alive[a] == 0) continue;
    const double reward = buffers_.rewards[a];
    returns_[a] += reward;
    owed_[a] += discount_[a] * (ticks == 1 ? reward : discounted_[a]);
    discount_[a] *= later;
    elapsed_[a] += ticks;
    buffers_.duration[a] = elapsed_[a];
    const bool due = buffers_.acting[a] != 0 || present_[a] == 0;
    buffers_.rewards[a] = due ? static_cast<float>(owed_[a]) : 0.0F;
    if (!due) continue;
    owed_[a] = 0.0;
    discount_[a] = 1.0;
    elapsed_[a] = 0;
  }
}

void VecEnv::finish_episode(int i) {
  buffers_.episode_done[zu(i)] = 1;
  buffers_.episode_length[zu(i)] = length_[zu(i)];
  buffers_.episode_index[zu(i)] = next_episode_[zu(i)] - 1;
  std::copy_n(&returns_[zu(i) * agents_], agents_, &buffers_.episode_return[zu(i) * agents_]);
  std::copy_n(&decisions_[zu(i) * agents_], agents_, &buffers_.episode_decisions[zu(i) * agents_]);
  std::copy_n(stats_.data() + zu(i) * figures_, figures_, buffers_.episode_stats.data() + zu(i) * figures_);
}

void VecEnv::start_episode(int i) {
  const std::size_t first = zu(i) * agents_;
  std::fill_n(&present_[first], agents_, std::uint8_t{1});
  std::fill_n(&returns_[first], agents_, 0.0);
  std::fill_n(&decisions_[first], agents_, 0);
  std::fill_n(&owed_[first], agents_, 0.0);
  std::fill_n(&discount_[first], agents_, 1.0);
  std::fill_n(&elapsed_[first], agents_, 0);
  std::fill_n(&buffers_.acting[first], agents_, std::uint8_t{1});
  std::fill_n(stats_.data() + zu(i) * figures_, figures_, 0.0);
  length_[zu(i)] = 0;
  const Rng rng(seed_[zu(i)], options_.domain, stream_[zu(i)], next_episode_[zu(i)]++);
  worlds_->reset(i, rng, slices(i));
  for (std::size_t a = first; a < first + agents_; ++a) {
    if (present_[a] == 0) clear_row(a);
  }
}

void VecEnv::act_scripted(int script, std::span<const int> agents) {
  if (script < 0 || zu(script) >= spec().scripts.size())
    throw std::invalid_argument(spec().name + " has no such script");
  for (const int agent : agents) {
    if (agent < 0 || zu(agent) >= agents_) throw std::invalid_argument(spec().name + " has no such agent");
  }
  for_each_world([&](int i) {
    const Slices s = slices(i);
    for (const int agent : agents) {
      if (s.acting[agent] != 0) worlds_->scripted(i, script, agent, s);
    }
  });
}

void VecEnv::reseed(std::span<const std::uint64_t> seeds, std::span<const std::uint32_t> worlds,
                    std::span<const std::uint8_t> mask) {
  const std::size_t n = zu(num_worlds());
  if (seeds.size() != n || worlds.size() != n)
    throw std::invalid_argument("reseed needs one seed and one number per world");
  for (int i = 0; i < num_worlds(); ++i) {
    if (!selected(mask, i)) continue;
    seed_[zu(i)] = seeds[zu(i)];
    stream_[zu(i)] = worlds[zu(i)];
    next_episode_[zu(i)] = 0;
  }
}

template <class Archive>
void VecEnv::archive(Archive& ar, std::uint32_t version) {
  for (auto& block : buffers_.obs) ar(block);
  for (auto& block : buffers_.final_obs) ar(block);
  ar(buffers_.state, buffers_.final_state, buffers_.action, buffers_.choice, buffers_.action_mask, buffers_.rewards,
     buffers_.potential, buffers_.final_potential, buffers_.reward_parts, buffers_.terminated, buffers_.truncated,
     buffers_.alive, buffers_.acting, buffers_.duration, buffers_.episode_done, buffers_.episode_length,
     buffers_.episode_return);
  archive_stats(ar, version, buffers_.episode_stats);
  ar(buffers_.episode_index);
  if (version >= 2) ar(buffers_.final_mask);
  if (version == 3 || version == 4) {
    std::int32_t phase = 0;
    ar(phase);
    std::fill(phases_.begin(), phases_.end(), phase);
  }
  if (version >= 4) ar(buffers_.ticks);
  if (version >= 5) ar(phases_, buffers_.episode_decisions, decisions_);
  ar(seed_, stream_, next_episode_, present_, length_, elapsed_, returns_);
  archive_stats(ar, version, stats_);
  ar(owed_, discount_);
}

// Before version 6 a world had one row of figures, its first agent's: until it writes them anew, all agents get that.
template <class Archive>
void VecEnv::archive_stats(Archive& ar, std::uint32_t version, std::vector<double>& stats) {
  const std::size_t q = spec().stats.size();
  if (version >= 6 || figures_ == q) {
    ar(stats);
    return;
  }
  std::vector<double> one(zu(num_worlds()) * q);
  ar(one);
  for (std::size_t r = 0; r < stats.size() / q; ++r) std::copy_n(&one[r / spec().stat_rows() * q], q, &stats[r * q]);
}

namespace {

// Of every array with rows for all worlds, the rows of some: what an archive would see in a batch of them alone.
template <class Inner>
class SomeRows {
 public:
  SomeRows(Inner& inner, int worlds, int first, int count)
      : inner_(inner),
        worlds_(static_cast<std::size_t>(worlds)),
        first_(static_cast<std::size_t>(first)),
        count_(static_cast<std::size_t>(count)) {}

  template <class... T>
  void operator()(T&... values) {
    (some(values), ...);
  }

 private:
  template <Plain T>
  void some(T& value) {
    inner_(value);
  }
  template <Plain T>
  void some(std::vector<T>& values) {
    const std::size_t width = values.size() / worlds_;
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(first_ * width);
    std::vector<T> rows(from, from + static_cast<std::ptrdiff_t>(count_ * width));
    inner_(rows);
    std::copy(rows.begin(), rows.end(), from);
  }

  Inner& inner_;
  std::size_t worlds_, first_, count_;
};

}  // namespace

std::vector<std::byte> VecEnv::snapshot(int first, int count) {
  if (first < 0 || count < 1 || first > num_worlds() - count)
    throw std::invalid_argument("no such worlds in this batch");
  std::vector<std::byte> bytes;
  SnapshotWriter out(bytes);
  std::uint32_t magic = kSnapshotMagic;
  std::uint32_t version = spec().stats_per_agent ? kSnapshotVersion : kSnapshotVersion - 1;
  std::vector<char> name(spec().name.begin(), spec().name.end());
  out(magic, version, name);
  SomeRows rows(out, num_worlds(), first, count);
  archive(rows, version);
  for (int i = first; i < first + count; ++i) worlds_->save(i, out);
  return bytes;
}

void VecEnv::restore(std::span<const std::byte> bytes, int first, int count) {
  const std::vector<std::byte> before = snapshot();
  try {
    read(bytes, first, count);
  } catch (const std::invalid_argument&) {
    if (before.size() != bytes.size() || !std::equal(before.begin(), before.end(), bytes.begin())) restore(before);
    throw;
  }
}

void VecEnv::read(std::span<const std::byte> bytes, int first, int count) {
  if (first < 0 || count < 1 || first > num_worlds() - count)
    throw std::invalid_argument("no such worlds in this batch");
  SnapshotReader in(bytes);
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  in(magic, version);
  if (magic != kSnapshotMagic) throw std::invalid_argument("these bytes are not a snapshot of worlds");
  if (version < 1 || version > kSnapshotVersion) throw std::invalid_argument("snapshot has an unknown version");
  // What an old version lacks is filled in for all worlds, so it can only be read whole.
  const std::uint32_t newest = spec().stats_per_agent ? kSnapshotVersion : kSnapshotVersion - 1;
  if (version < newest && count < num_worlds()) throw std::invalid_argument("snapshot has an old version");
  std::vector<char> name(spec().name.size());
  in(name);
  if (!std::equal(name.begin(), name.end(), spec().name.begin())) {
    throw std::invalid_argument("snapshot was taken from another world");
  }
  SomeRows rows(in, num_worlds(), first, count);
  archive(rows, version);
  if (version < 2) std::fill(buffers_.final_mask.begin(), buffers_.final_mask.end(), std::uint8_t{1});
  if (version < 3) std::fill(phases_.begin(), phases_.end(), 0);
  if (version < 4) std::fill(buffers_.ticks.begin(), buffers_.ticks.end(), 1);
  for (int i = first; i < first + count; ++i) worlds_->restore(i, in);
  if (!in.at_end()) throw std::invalid_argument("snapshot was taken from a different configuration");
}

void VecEnv::set_phases(std::span<const std::int32_t> phases) {
  const int count = std::max<int>(1, static_cast<int>(spec().phases.size()));
  if (phases.size() != phases_.size())
    throw std::invalid_argument("phases has " + std::to_string(phases.size()) + " numbers for " +
                                std::to_string(phases_.size()) + " worlds");
  for (const std::int32_t phase : phases) {
    if (phase < 0 || phase % kPhases >= count)
      throw std::invalid_argument(spec().name + " has no phase " + std::to_string(phase) + "; it has " +
                                  std::to_string(count));
  }
  std::copy(phases.begin(), phases.end(), phases_.begin());
}

namespace {

void check_world(int world, int num_worlds) {
  if (world < 0 || world >= num_worlds)
    throw std::invalid_argument("there is no world " + std::to_string(world) + " in a batch of " +
                                std::to_string(num_worlds));
}

}  // namespace

Backdrop VecEnv::backdrop(int world) const {
  check_world(world, num_worlds());
  return worlds_->backdrop(world);
}

void VecEnv::frame(int world, double* out) const {
  check_world(world, num_worlds());
  worlds_->frame(world, out);
}

}  // namespace slipstream
