#include "drmario/world.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace slipstream::drmario {
namespace {

constexpr std::uint32_t kDiceStream = 1;
constexpr int kIds = 9;
constexpr double kFramesPerSecond = 60.0988;
constexpr float kCostScale = 1.0F / 128.0F;
constexpr int kSharedAux = 26;
constexpr int kVersusAux = 4;
constexpr double kHalfTime = 30.0;  // seconds left of which 0.5 is shown

// Buttons of a controller's choices: every direction with every rotation.
constexpr std::array<std::uint8_t, 12> kChoices{
    0,       kPressLeft,           kPressRight,           kPressDown,
    kPressA, kPressA | kPressLeft, kPressA | kPressRight, kPressA | kPressDown,
    kPressB, kPressB | kPressLeft, kPressB | kPressRight, kPressB | kPressDown};
constexpr std::array<const char*, 12> kChoiceNames{"none",    "left",   "right", "down",   "a",       "a_left",
                                                   "a_right", "a_down", "b",     "b_left", "b_right", "b_down"};

enum Script { kRandom, kFastest, kGreedy };

int aux_size(const DrMarioConfig& config) {
  return kSharedAux + (config.players == 2 ? kVersusAux : 0) + (config.shows_time_left() ? 1 : 0);
}

std::vector<std::string> aux_names(const DrMarioConfig& config) {
  std::vector<std::string> names{"speed_low",   "speed_medium", "speed_high", "viruses",    "yellow_viruses",
                                 "red_viruses", "blue_viruses", "level",      "pills_used", "max_height",
                                 "occupied",    "virus_height", "options",    "gravity",    "odd_frame",
                                 "progress",    "matches_left", "pill_row"};
  for (int c = 0; c < kColumns; ++c) names.push_back("height_" + std::to_string(c));
  if (config.shows_time_left()) names.emplace_back("time_left");
  if (config.players == 2)
    for (const char* name : {"other_viruses", "other_height", "attack_waiting", "attack_sent"})
      names.emplace_back(name);
  return names;
}

std::vector<std::string> plane_names(const Planes& planes) {
  std::vector<std::string> names;
  const auto add = [&](bool shown, const std::string& prefix, std::initializer_list<const char*> words) {
    if (!shown) return;
    for (const char* word : words) names.push_back(prefix + word);
  };
  add(planes.colour, "", {"yellow", "red", "blue"});
  add(planes.virus, "", {"virus"});
  add(planes.joined, "joined_", {"up", "down", "left", "right"});
  add(planes.virus_colour, "virus_", {"yellow", "red", "blue"});
  add(planes.pill_colour, "pill_", {"yellow", "red", "blue"});
  add(planes.falling, "falling_", {"yellow", "red", "blue"});
  add(planes.opponent, "other_",
      {"yellow", "red", "blue", "virus", "joined_up", "joined_down", "joined_left", "joined_right"});
  add(planes.feasible, "second_", {"right", "below", "left", "above"});
  return names;
}

int height(const Cells& cells, int col) {
  for (int y = 0; y < kRows; ++y)
    if (!is_free(cells[static_cast<std::size_t>(y * kColumns + col)])) return kRows - y;
  return 0;
}

void require(bool fine, const std::string& sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}

// The pill that has just locked and everything that follows, until the next one could be thrown.
struct Outcome {
  int viruses = 0;
  int cells = 0;
  int runs = 0;
};

Outcome settle_whole(Cells& cells) {
  Outcome seen;
  for (;;) {
    while (drop_loose(cells)) {
    }
    const Matches rows = match_rows(cells);
    const Matches columns = match_columns(cells);
    if (rows.runs + columns.runs == 0) return seen;
    seen.viruses += rows.viruses + columns.viruses;
    seen.cells += rows.cells + columns.cells;
    seen.runs += rows.runs + columns.runs;
    clear_matched(cells);
  }
}

}  // namespace

std::vector<GamesConfig> DrMarioConfig::games() const {
  if (!phases.empty()) return phases;
  GamesConfig all;
  all.name = "all";
  all.levels = levels;
  return {all};
}

void DrMarioConfig::validate() const {
  check_fields(*this);
  require(first_seed <= last_seed,
          "first_seed " + std::to_string(first_seed) + " comes after last_seed " + std::to_string(last_seed));
  for (const GamesConfig& phase : phases) {
    require(!phase.matches || !phase.viruses, "phase '" + phase.name + "' cannot ask for matches and for viruses");
    require(!phase.matches || players == 1, "matches are a goal for one player only");
  }
  require(!planes.opponent || players == 2, "there is no opponent's bottle to show with one player");
  require(!planes.feasible || actions == Actions::kPlacement, "feasible planes are for placements");
}

DrMarioWorld::DrMarioWorld(const DrMarioConfig& config) : config_((config.validate(), config)) {
  for (const GamesConfig& games : config_.games()) {
    const double frames =
        games.max_seconds ? std::max(1.0, std::nearbyint(*games.max_seconds * kFramesPerSecond)) : 0.0;
    stages_.push_back({games.levels, games.viruses.value_or(0), games.matches.value_or(0), static_cast<int>(frames)});
  }
}

WorldSpec DrMarioWorld::spec(const DrMarioConfig& config) {
  config.validate();
  WorldSpec spec;
  spec.name = config.players == 2 ? "drmario_versus" : "drmario";
  spec.agents =
      config.players == 2 ? std::vector<std::string>{"player_1", "player_2"} : std::vector<std::string>{"player"};
  spec.roles.assign(spec.agents.size(), "player");
  spec.obs.push_back(
      {"planes", DType::kU8, {config.planes.count(), kRows, kColumns}, 0.0F, 1.0F, plane_names(config.planes)});
  std::vector<std::string> pills;
  for (const char* which : {"pill", "preview"})
    for (int id = 0; id < kIds; ++id) pills.push_back(std::string(which) + "_" + std::to_string(id));
  spec.obs.push_back({"pills", DType::kU8, {2 * kIds}, 0.0F, 1.0F, pills});
  spec.obs.push_back({"aux", DType::kF32, {aux_size(config)}, 0.0F, 1.0F, aux_names(config)});
  if (config.actions == Actions::kPlacement && config.show_costs)
    spec.obs.push_back({"costs", DType::kF32, {4, kRows, kColumns}, 0.0F, 1.0F, {"right", "below", "left", "above"}});
  spec.action.discrete = true;
  spec.has_durations = true;
  if (config.actions == Actions::kPlacement) {
    spec.action.size = kPlacements;
    spec.masked = true;
  } else {
    spec.action.size = static_cast<int>(kChoices.size());
    for (const char* name : kChoiceNames) spec.action.names.emplace_back(name);
  }
  for (const char* name : choice_names(Part{})) spec.reward_parts.emplace_back(name);
  spec.stats = {"success", "clean",   "clear_frames", "frames",  "pills",   "viruses_left", "virus_share",
                "score",   "top_out", "timeout",      "matches", "garbage", "level",        "seed"};
  spec.stats_per_agent = config.players == 2;
  for (int cell = 0; cell < kCells; ++cell) spec.frame_fields.push_back("cell_" + std::to_string(cell));
  for (const char* name : {"pill_row", "pill_col", "pill_rot", "pill_id", "preview_id", "falling", "viruses", "pills",
                           "score", "level", "frames", "terminal", "seed", "counter"})
    spec.frame_fields.emplace_back(name);
  spec.scripts = {"random"};
  if (config.actions == Actions::kPlacement) spec.scripts.insert(spec.scripts.end(), {"fastest", "greedy"});
  for (const GamesConfig& games : config.games()) spec.phases.push_back(games.name);
  const int per_pill = config.actions == Actions::kPlacement ? 1 : kRows * 70;
  spec.max_episode_steps = config.max_pills * config.players * per_pill;
  spec.tick_seconds = 1.0 / kFramesPerSecond;
  return spec;
}

// --- starting ---

void DrMarioWorld::reset(const Rng& rng, const Slices& s) {
  Rng stream = rng;
  dice_ = rng.fork(kDiceStream);
  stage_ = std::clamp(s.phase, 0, static_cast<int>(stages_.size()) - 1) + kPhases * s.time_limit;
  const auto& levels = stage().levels;
  level_ = levels[stream.below(static_cast<std::uint32_t>(levels.size()))];
  seed_ =
      config_.seeds.empty()
          ? config_.first_seed +
                static_cast<int>(stream.below(static_cast<std::uint32_t>(config_.last_seed - config_.first_seed + 1)))
          : config_.seeds[stream.below(static_cast<std::uint32_t>(config_.seeds.size()))];
  Level made = generate(level_, Lfsr::numbered(seed_));
  if (stage().matches > 0) made.cells.fill(kEmpty);
  if (stage().viruses > 0) {
    for (int left = count_viruses(made.cells); left > stage().viruses; --left) {
      auto which = static_cast<int>(stream.below(static_cast<std::uint32_t>(left)));
      for (std::uint8_t& cell : made.cells)
        if (kind_of(cell) == kVirus && which-- == 0) {
          cell = kEmpty;
          break;
        }
    }
  }
  // At low speed a pill is thrown on odd frames, so the first one falls on an odd frame too.
  counter_ = config_.speed == Speed::kLow ? 1 : static_cast<std::uint8_t>(stream.below(256));
  frames_ = 0;
  for (std::size_t p = 0; p < players(); ++p) {
    seats_[p] = Seat{};
    seats_[p].game = start(made.cells, made.reserve, static_cast<int>(config_.speed));
    seats_[p].viruses = seats_[p].game.viruses;
    arrive(seats_[p]);
  }
  show(s);
}

// --- playing ---

bool DrMarioWorld::cleared(const Seat& seat) const {
  return stage().matches > 0 ? seat.matches >= stage().matches : seat.game.terminal == Terminal::kClear;
}

bool DrMarioWorld::over() const {
  return std::any_of(seats_.begin(), seats_.begin() + config_.players,
                     [&](const Seat& seat) { return cleared(seat) || seat.game.terminal == Terminal::kTopOut; });
}

// A pill has come under control: its player decides, unless there is nothing to decide.
void DrMarioWorld::arrive(Seat& seat) {
  seat.arrived = 0;
  if (config_.actions == Actions::kController) {
    seat.decides = 1;
    return;
  }
  const Player& game = seat.game;
  plan(game.cells,
       {game.fall.pose, game.threshold(), game.fall.speed_counter, game.fall.hor_velocity, game.held,
        (counter_ & 1) != 0},
       seat.costs);
  if (game.colours[0] == game.colours[1])  // the other way round is the same pill
    std::fill(seat.costs.begin() + 2 * kCells, seat.costs.end(), kUnreachable);
  seat.decides =
      std::any_of(seat.costs.begin(), seat.costs.end(), [](auto cost) { return cost != kUnreachable; }) ? 1 : 0;
}

void DrMarioWorld::choose(Seat& seat, int action) const {
  seat.decides = 0;
  if (config_.actions == Actions::kController) {
    seat.buttons = kChoices[static_cast<std::size_t>(std::clamp<int>(action, 0, kChoices.size() - 1))];
    return;
  }
  ++seat.pills;
  if (action < 0 || action >= kPlacements || seat.costs[static_cast<std::size_t>(action)] == kUnreachable)
    return;  // falls
  seat.lock_in = seat.costs[static_cast<std::size_t>(action)];
  seat.target = pose_of(action);
}

void DrMarioWorld::pay(std::size_t p, Part part, double amount, int tick, const Slices& s) const {
  const auto which = static_cast<std::size_t>(part);
  const double paid = config_.reward[which] * amount;
  if (paid == 0.0 || s.rewards == nullptr) return;
  s.pay(p, paid, tick);
  if (s.reward_parts != nullptr) s.reward_parts[p * kNumParts + which] += static_cast<float>(paid);
}

// One frame of one player.
void DrMarioWorld::play(std::size_t p, int tick, const Slices& s) {
  Seat& seat = seats_[p];
  Player& me = seat.game;
  pay(p, Part::kSecond, 1.0 / kFramesPerSecond, tick, s);
  Happened happened;
  if (seat.lock_in > 0) {
    // The placement's buttons are known to lead there: only the last frame of them changes anything.
    if (--seat.lock_in > 0) return;
    me.held = 0;
    me.fall = {seat.target, 0, 0};
    happened = lock(me);
  } else {
    const std::uint8_t sent = me.attack;
    happened = players() == 2 ? play_frame(me, seats_[1 - p].game, counter_, seat.buttons)
                              : play_frame(me, counter_, seat.buttons);
    seat.buttons = 0;
    if (me.attack > sent) {
      seat.garbage += me.attack - sent;
      pay(p, Part::kGarbage, me.attack - sent, tick, s);
    }
  }
  if (happened.locked) {
    if (config_.actions == Actions::kController) ++seat.pills;
    pay(p, Part::kPill, 1.0, tick, s);
  }
  if (happened.runs > 0) {
    seat.matches += happened.runs;
    const double goal = stage().matches > 0 ? static_cast<double>(happened.runs) / stage().matches
                                            : static_cast<double>(happened.viruses) / std::max(1, seat.viruses);
    pay(p, Part::kVirus, goal, tick, s);
    pay(p, Part::kMatch, happened.cells - happened.viruses, tick, s);
  }
  const bool controlled = me.action == Action::kFall && me.terminal == Terminal::kNone;
  seat.arrived = controlled && (!happened.fell || config_.actions == Actions::kController) ? 1 : 0;
}

// Frames on which nobody's buttons or bottle matter.
int DrMarioWorld::skip(const Slices& s) {
  int frames = std::numeric_limits<int>::max();
  for (std::size_t p = 0; p < players(); ++p) frames = std::min(frames, seats_[p].lock_in - 1);
  if (frames <= 0) return 0;
  for (std::size_t p = 0; p < players(); ++p) {
    seats_[p].lock_in -= frames;
    if (config_.reward[static_cast<std::size_t>(Part::kSecond)] == 0.0) continue;
    for (int tick = 0; tick < frames; ++tick) pay(p, Part::kSecond, 1.0 / kFramesPerSecond, tick, s);
  }
  counter_ = static_cast<std::uint8_t>(counter_ + frames);
  frames_ += frames;
  return frames;
}

void DrMarioWorld::step(const Slices& s) {
  for (std::size_t p = 0; p < players(); ++p)
    if (s.acting[p] != 0) choose(seats_[p], s.choice[p]);
  int tick = skip(s);
  bool decides = false;
  do {
    for (std::size_t p = 0; p < players(); ++p) play(p, tick, s);
    ++counter_;
    ++frames_;
    ++tick;
    if (over()) break;
    for (std::size_t p = 0; p < players(); ++p) {
      if (seats_[p].arrived != 0) arrive(seats_[p]);
      decides |= seats_[p].decides != 0;
    }
  } while (!decides);
  *s.ticks = tick;
  bool spent = false;
  for (std::size_t p = 0; p < players(); ++p) {
    const Seat& seat = seats_[p];
    spent |= seat.decides != 0 && (seat.pills >= config_.max_pills || !in_time());
    if (cleared(seat) && in_time()) pay(p, Part::kClear, 1.0, tick - 1, s);
    if (seat.game.terminal == Terminal::kTopOut) pay(p, Part::kTopOut, 1.0, tick - 1, s);
    if (players() == 2)
      pay(p, Part::kWin, winner() < 0 ? 0.0 : static_cast<std::size_t>(winner()) == p ? 1.0 : -1.0, tick - 1, s);
  }
  if (over() || (spent && !in_time() && config_.shows_time_left())) {
    std::fill_n(s.terminated, players(), std::uint8_t{1});
  } else if (spent) {
    std::fill_n(s.truncated, players(), std::uint8_t{1});
  }
  show(s);
}

// --- what is seen ---

// Of two players, once it is over; -1: nobody.
int DrMarioWorld::winner() const {
  const auto good = [&](std::size_t p) {
    return cleared(seats_[p]) || seats_[1 - p].game.terminal == Terminal::kTopOut;
  };
  if (players() != 2 || good(0) == good(1)) return -1;
  return good(0) ? 0 : 1;
}

void DrMarioWorld::show(const Slices& s) {
  for (std::size_t p = 0; p < players(); ++p) {
    const Seat& seat = seats_[p];
    s.acting[p] = seat.decides;
    if (s.action_mask != nullptr) {
      std::uint8_t* mask = s.action_mask + p * kPlacements;
      if (seat.decides == 0) {
        std::fill_n(mask, kPlacements, std::uint8_t{1});
      } else {
        for (std::size_t a = 0; a < kPlacements; ++a) mask[a] = seat.costs[a] != kUnreachable ? 1 : 0;
      }
    }
    observe(p, s);
  }
  write_stats(s.stats);
}

namespace {

// Planes of one bottle; `out` advances.
void write_colours(const Cells& cells, std::uint8_t*& out) {
  for (std::size_t i = 0; i < kCells; ++i)
    if (!is_free(cells[i])) out[colour_of(cells[i]) * kCells + i] = 1;
  out += 3 * kCells;
}

void write_kind(const Cells& cells, bool virus, std::uint8_t*& out) {
  for (std::size_t i = 0; i < kCells; ++i)
    if (!is_free(cells[i]) && (kind_of(cells[i]) == kVirus) == virus) out[colour_of(cells[i]) * kCells + i] = 1;
  out += 3 * kCells;
}

void write_viruses(const Cells& cells, std::uint8_t*& out) {
  for (std::size_t i = 0; i < kCells; ++i) out[i] = kind_of(cells[i]) == kVirus ? 1 : 0;
  out += kCells;
}

void write_joined(const Cells& cells, std::uint8_t*& out) {
  constexpr std::array<std::uint8_t, 4> kKinds{kBottom, kTop, kRight, kLeft};  // joined up, down, left, right
  for (const std::uint8_t kind : kKinds) {
    for (std::size_t i = 0; i < kCells; ++i) out[i] = kind_of(cells[i]) == kind ? 1 : 0;
    out += kCells;
  }
}

}  // namespace

void DrMarioWorld::observe(std::size_t p, const Slices& s) const {
  const Seat& seat = seats_[p];
  const Planes& planes = config_.planes;
  const auto size = static_cast<std::size_t>(planes.count()) * kCells;
  std::uint8_t* out = s.obs_u8(0) + p * size;
  std::fill_n(out, size, std::uint8_t{0});
  const Cells& cells = seat.game.cells;
  if (planes.colour) write_colours(cells, out);
  if (planes.virus) write_viruses(cells, out);
  if (planes.joined) write_joined(cells, out);
  if (planes.virus_colour) write_kind(cells, true, out);
  if (planes.pill_colour) write_kind(cells, false, out);
  if (planes.falling) {
    if (seat.decides != 0) {
      Cells alone;
      alone.fill(kEmpty);
      write_pill(alone, seat.game.fall.pose, seat.game.colours);
      write_colours(alone, out);
    } else {
      out += 3 * kCells;
    }
  }
  if (planes.opponent) {
    const Cells& other = seats_[1 - p].game.cells;
    write_colours(other, out);
    write_viruses(other, out);
    write_joined(other, out);
  }
  if (planes.feasible && seat.decides != 0)
    for (std::size_t a = 0; a < kPlacements; ++a) out[a] = seat.costs[a] != kUnreachable ? 1 : 0;

  std::uint8_t* pills = s.obs_u8(1) + p * 2 * kIds;
  std::fill_n(pills, 2 * kIds, std::uint8_t{0});
  pills[3 * seat.game.colours[0] + seat.game.colours[1]] = 1;
  pills[kIds + 3 * seat.game.preview[0] + seat.game.preview[1]] = 1;
  write_aux(p, s.obs_f32(2) + p * static_cast<std::size_t>(aux_size(config_)));
  if (config_.actions == Actions::kPlacement && config_.show_costs) {
    float* costs = s.obs_f32(3) + p * kPlacements;
    for (std::size_t a = 0; a < kPlacements; ++a)
      costs[a] = seat.decides == 0 ? 1.0F : std::min(1.0F, static_cast<float>(seat.costs[a]) * kCostScale);
  }
}

void DrMarioWorld::write_aux(std::size_t p, float* out) const {
  const Seat& seat = seats_[p];
  const Player& game = seat.game;
  std::array<int, 3> viruses{};
  int occupied = 0;
  int virus_height = 0;
  for (std::size_t i = 0; i < kCells; ++i) {
    if (is_free(game.cells[i])) continue;
    ++occupied;
    if (kind_of(game.cells[i]) != kVirus) continue;
    ++viruses[colour_of(game.cells[i])];
    virus_height = std::max(virus_height, kRows - static_cast<int>(i) / kColumns);
  }
  std::array<int, kColumns> heights{};
  for (int c = 0; c < kColumns; ++c) heights[static_cast<std::size_t>(c)] = height(game.cells, c);
  const auto options =
      std::count_if(seat.costs.begin(), seat.costs.end(), [](auto cost) { return cost != kUnreachable; });
  const auto put = [&](double value) { *out++ = static_cast<float>(std::clamp(value, 0.0, 1.0)); };
  constexpr double kMostViruses = viruses_of(kMaxLevel);
  for (int speed = 0; speed < 3; ++speed) put(static_cast<int>(config_.speed) == speed ? 1.0 : 0.0);
  put(game.viruses / kMostViruses);
  for (const int count : viruses) put(count / kMostViruses);
  put(level_ / static_cast<double>(kHighestDistinctLevel));
  put(seat.pills / static_cast<double>(config_.max_pills));
  put(*std::max_element(heights.begin(), heights.end()) / static_cast<double>(kRows));
  put(occupied / static_cast<double>(kCells));
  put(virus_height / static_cast<double>(kRows));
  put(seat.decides != 0 && config_.actions == Actions::kPlacement ? static_cast<double>(options) / kCells : 0.0);
  put(game.threshold() / 69.0);
  put(counter_ & 1);
  put(seat.viruses > 0 ? 1.0 - game.viruses / static_cast<double>(seat.viruses) : 0.0);
  put(stage().matches > 0 ? (stage().matches - seat.matches) / static_cast<double>(stage().matches) : 0.0);
  put(game.fall.pose.row / 15.0);
  for (const int h : heights) put(h / static_cast<double>(kRows));
  if (config_.shows_time_left()) {
    const double seconds = std::max(0.0, (most_frames() - frames_) / kFramesPerSecond);
    put(most_frames() == 0 ? 1.0 : seconds / (seconds + kHalfTime));
  }
  if (players() != 2) return;
  const Player& other = seats_[1 - p].game;
  int highest = 0;
  for (int c = 0; c < kColumns; ++c) highest = std::max(highest, height(other.cells, c));
  put(other.viruses / kMostViruses);
  put(highest / static_cast<double>(kRows));
  put(other.attack / 4.0);
  put(game.attack / 4.0);
}

void DrMarioWorld::write_stats(double* stats) const {
  for (std::size_t p = 0; p < players(); ++p) write_stats(p, stats);
}

// One player's own; `stats` advances.
void DrMarioWorld::write_stats(std::size_t p, double*& stats) const {
  const Seat& me = seats_[p];
  const bool versus = players() == 2;
  const bool done = cleared(me) && in_time();
  const bool success = versus ? winner() == static_cast<int>(p) : done;
  const bool out_of_pills = std::any_of(seats_.begin(), seats_.begin() + config_.players,
                                        [&](const Seat& seat) { return seat.pills >= config_.max_pills; });
  const bool spent = !over() ? out_of_pills || !in_time() : !versus && !done && cleared(me);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value :
       {success ? 1.0 : 0.0, success ? 1.0 : 0.0, done ? static_cast<double>(frames_) : nan,
        static_cast<double>(frames_), static_cast<double>(me.pills), static_cast<double>(me.game.viruses),
        me.viruses > 0 ? 1.0 - me.game.viruses / static_cast<double>(me.viruses) : nan,
        static_cast<double>(me.game.score), me.game.terminal == Terminal::kTopOut ? 1.0 : 0.0, spent ? 1.0 : 0.0,
        static_cast<double>(me.matches), static_cast<double>(me.garbage), static_cast<double>(level_),
        static_cast<double>(seed_)})
    *stats++ = value;
}

void DrMarioWorld::frame(double* out) const {
  for (std::size_t p = 0; p < players(); ++p) {
    const Seat& seat = seats_[p];
    const Player& game = seat.game;
    for (const std::uint8_t cell : game.cells) *out++ = cell;
    for (const int value :
         {static_cast<int>(game.fall.pose.row), static_cast<int>(game.fall.pose.col),
          static_cast<int>(game.fall.pose.rot), 3 * game.colours[0] + game.colours[1],
          3 * game.preview[0] + game.preview[1], static_cast<int>(seat.decides), game.viruses, seat.pills, game.score,
          level_, frames_, static_cast<int>(game.terminal), seed_, static_cast<int>(counter_)})
      *out++ = value;
  }
}

// --- scripts ---

// Clears most now; otherwise stacks on its own colour, low, and covers little.
int DrMarioWorld::greedy(const Seat& seat) const {
  int best = -1;
  double most = -std::numeric_limits<double>::infinity();
  for (int a = 0; a < kPlacements; ++a) {
    if (seat.costs[static_cast<std::size_t>(a)] == kUnreachable) continue;
    const Pose pose = pose_of(a);
    Cells cells = seat.game.cells;
    write_pill(cells, pose, seat.game.colours);
    double value = -0.3 * pose.row - 0.002 * seat.costs[static_cast<std::size_t>(a)];
    for (int half = 0; half < (pose.vertical() ? 1 : 2); ++half) {
      const int col = pose.col + half;
      const std::uint8_t own = colour_of(cells[cell_index(pose.row, col)]);
      for (int row = pose.row - 1; row >= 0; --row) {
        const std::uint8_t below = cells[cell_index(row, col)];
        if (is_free(below)) {
          value -= 0.2;
          continue;
        }
        const bool virus = kind_of(below) == kVirus;
        value += colour_of(below) == own ? (virus ? 3.0 : 1.0) : virus ? -2.5 : -0.8;
        if (colour_of(below) != own) break;
      }
    }
    if (pose.vertical() && seat.game.colours[0] != seat.game.colours[1]) value -= 0.7;
    const Outcome seen = settle_whole(cells);
    value += 8.0 * seen.viruses + 0.25 * (seen.cells - seen.viruses);
    if (!is_free(cells[cell_index(kRows - 1, 3)]) || !is_free(cells[cell_index(kRows - 1, 4)])) value -= 100.0;
    if (value > most) {
      most = value;
      best = a;
    }
  }
  return best;
}

void DrMarioWorld::scripted(int script, int agent, const Slices& s) {
  const Seat& seat = seats_[static_cast<std::size_t>(agent)];
  std::int32_t& choice = s.choice[agent];
  if (config_.actions == Actions::kController) {
    choice = static_cast<std::int32_t>(dice_.below(kChoices.size()));
    return;
  }
  switch (script) {
    case kFastest:
      choice = static_cast<std::int32_t>(std::min_element(seat.costs.begin(), seat.costs.end()) - seat.costs.begin());
      return;
    case kGreedy:
      choice = greedy(seat);
      return;
    default: {
      const auto options = static_cast<std::uint32_t>(
          std::count_if(seat.costs.begin(), seat.costs.end(), [](auto c) { return c != kUnreachable; }));
      auto which = static_cast<int>(dice_.below(std::max(1U, options)));
      for (choice = 0; choice < kPlacements; ++choice)
        if (seat.costs[static_cast<std::size_t>(choice)] != kUnreachable && which-- == 0) return;
    }
  }
}

}  // namespace slipstream::drmario
