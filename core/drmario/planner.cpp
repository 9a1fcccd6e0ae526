// How it works. A pill's state is its pose, the frames since it last lost a row, which direction is held and whether it
// is about to move again, and which rotate button is held. Poses of one rotation are one bitmap of 16 x 8 bits, so a
// frame's moves are a few shifts and masks. Pills that came into their rows on the same frame are kept together (a
// Layer): they lose the next row to gravity on the same frame too, and until then nobody has to count.
//
// Two things keep it small. They are argued, not proved; that nothing is lost was checked against the plain search
// (oracle.cpp, bench/planner.py):
//   - A held direction matters only where the pill is pushed against something: then it moves as soon as it can.
//     Waiting for the automatic repeat is never faster than letting go and pressing again. The one exception, a
//     direction held since before the start, is followed by itself.
//   - Not holding anything is never worse than holding a button that does nothing.
#include "drmario/planner.hpp"

#include <algorithm>
#include <bit>

namespace slipstream::drmario {
namespace {

// Poses of two opposite rotations, 16 rows of 8 columns each: words 0 and 1 are the lower and upper eight rows of the
// first rotation, words 2 and 3 of the second; bit 8 * row + column. Rotations 0 and 2 lie, 1 and 3 stand, and what is
// in the way of one of them is in the way of the other, so that a mask serves both.
using Bits = std::uint64_t __attribute__((vector_size(32)));

constexpr Bits both(std::uint64_t low, std::uint64_t high) { return Bits{low, high, low, high}; }
constexpr Bits column(int col) { return both(0x0101010101010101ULL << col, 0x0101010101010101ULL << col); }
constexpr Bits kTopRow = both(0, 0xFFULL << 56);

// Callers mask the column that would leave the row.
inline Bits left(Bits x) { return x >> 1; }
inline Bits right(Bits x) { return x << 1; }
inline Bits down(Bits x) {
  constexpr Bits kLow = {~0ULL, 0, ~0ULL, 0};
  return x >> 8 | (__builtin_shufflevector(x, x, 1, 0, 3, 2) << 56 & kLow);
}
inline Bits up(Bits x) {
  constexpr Bits kHigh = {0, ~0ULL, 0, ~0ULL};
  return x << 8 | (__builtin_shufflevector(x, x, 1, 0, 3, 2) >> 56 & kHigh);
}
inline Bits swapped(Bits x) { return __builtin_shufflevector(x, x, 2, 3, 0, 1); }
inline bool any(Bits x) { return (x[0] | x[1] | x[2] | x[3]) != 0; }

inline bool has(Bits x, const Pose& p) {
  return (x[2 * (p.rot >> 1) + (p.row >> 3)] >> (8 * (p.row & 7) + p.col) & 1U) != 0;
}
inline Bits only(const Pose& p) {
  Bits x{};
  x[2 * (p.rot >> 1) + (p.row >> 3)] = 1ULL << (8 * (p.row & 7) + p.col);
  return x;
}

// Which direction is held, and whether the pill is pushed against something with it.
enum Hold : std::uint8_t { kNone, kHeldLeft, kPushesLeft, kHeldRight, kPushesRight, kSinceStart, kHolds };
// Which rotate button is.
enum Turn : std::uint8_t { kNoTurn, kTurnA, kTurnB, kTurnBoth, kTurns };
// Lying or standing pills.
enum Way : std::uint8_t { kLying, kStanding, kWays };

// Where pills of one way can be, and can go.
struct Room {
  Bits fits, drops, left, right;   // can be there; can also be a row lower, a column to the left, to the right
  Bits kicks;                      // could be a column to the left, whether or not they can be there
  Bits pushes_left, pushes_right;  // something is in the way that is not the wall

  void find(Bits free, Way way) {
    fits = way == kStanding ? free & (down(free) | kTopRow) : free & drmario::left(free & ~column(0));
    drops = fits & up(fits);
    kicks = drmario::right(fits & ~column(7));
    left = fits & kicks;
    right = fits & drmario::left(fits & ~column(0));
    pushes_left = fits & ~left & ~column(0);
    pushes_right = fits & ~right & ~column(way == kStanding ? 7 : 6);
  }
};

using Rooms = std::array<Room, kWays>;
using Poses = std::array<Bits, kWays>;

Rooms rooms_of(const Cells& cells) {
  std::array<std::uint64_t, 2> free{};
  for (int row = 0; row < kRows; ++row) {
    std::uint64_t bits = 0;
    for (int col = 0; col < kColumns; ++col)
      bits |= static_cast<std::uint64_t>(is_free(cells[cell_index(row, col)])) << col;
    free[static_cast<std::size_t>(row / 8)] |= bits << (8 * (row & 7));
  }
  Rooms rooms;
  rooms[kLying].find(both(free[0], free[1]), kLying);
  rooms[kStanding].find(both(free[0], free[1]), kStanding);
  return rooms;
}

// A takes 0 to 3, 1 to 0, 2 to 1, 3 to 2, B the other way: one of them changes the order of a pair, the other does not.
inline Bits reordered(Bits x, Way from, bool a) { return (from == kLying) == a ? swapped(x) : x; }

// Pills for which a rotation succeeds, where it takes them.
inline Bits rotated(const Rooms& rooms, Bits x, Way from, bool a, bool left_held) {
  const Room& room = rooms[1 - from];
  x = reordered(x, from, a);
  if (from == kLying) return x & room.fits;
  const Bits in_place = x & room.fits;
  const Bits kicked = left(x & ~room.fits & room.kicks);
  if (!left_held) return in_place | kicked;
  const Bits twice = in_place & room.kicks;
  return (in_place & ~twice) | left(twice) | kicked;
}

// One search. `Both` is whether A and B may be pressed together, `Since` whether a direction is held at the start.
template <bool Both, bool Since>
class Search {
 public:
  static constexpr std::size_t kTurnsUsed = Both ? kTurns : kTurnBoth;
  static constexpr std::size_t kHoldsUsed = Since ? kHolds : kSinceStart;
  using Held = std::array<std::array<Bits, kTurnsUsed>, kHoldsUsed>;

  struct Layer {
    int entered;  // the frame on which the pills came into their rows
    std::array<Held, kWays> pills;

    [[nodiscard]] bool has(const Pose& pose, std::size_t hold, std::size_t turn) const {
      return hold < kHoldsUsed && turn < kTurnsUsed && drmario::has(pills[pose.vertical() ? 1 : 0][hold][turn], pose);
    }
  };

  Search(const Cells& cells, const Start& start) : rooms_(rooms_of(cells)), start_(start) {
    since_left_ = (start.held & kPressLeft) != 0;
    velocity_ = start.hor_velocity;
    const int turn = (start.held >> 7 & 1) | (start.held >> 6 & 1) << 1;
    blocked_turns_ = !Both && turn == kTurnBoth;
    layers_[0].entered = -start.speed_counter;
    layers_[0].pills = {};
    const Way way = start.pose.vertical() ? kStanding : kLying;
    layers_[0].pills[way][Since ? kSinceStart : kNone][blocked_turns_ ? 0 : static_cast<std::size_t>(turn)] =
        only(start.pose);
    count_ = 1;
    seek(way);
  }

  // Runs until every placement there may be is found; `found(way, poses)` hears of locks, `frame_over()` of frames.
  template <class Found, class Over>
  void run(Found&& found, Over&& frame_over) {
    for (frame_ = 1; count_ > 0 && any(wanted_[kLying] | wanted_[kStanding]); ++frame_) {
      step(found);
      frame_over();
    }
  }

  [[nodiscard]] int frame() const { return frame_; }
  [[nodiscard]] int layers() const { return count_; }
  [[nodiscard]] const Layer& layer(int i) const {
    return layers_[static_cast<std::size_t>((first_ + i) % kMostLayers)];
  }

 private:
  static constexpr int kMostLayers = 72;  // a row takes 70 frames at most
  static constexpr int kQuiet = 3;        // frames without a find after which it is asked what can still be found

  Layer& at(int i) { return layers_[static_cast<std::size_t>((first_ + i) % kMostLayers)]; }

  // What could be reached if time did not matter, and of that where pills can rest.
  void seek(Way from) {
    Poses seen{};
    seen[from] = only(start_.pose);
    for (bool grew = true; grew;) {
      grew = false;
      for (const Way way : {kLying, kStanding}) {
        const Room& room = rooms_[way];
        Bits here = seen[way];
        here |= down(here & room.drops) | left(here & room.left) | right(here & room.right);
        Bits there = seen[1 - way];
        for (const bool a : {true, false})
          for (const bool held : {true, false}) there |= rotated(rooms_, here, way, a, held);
        grew = grew || any((here ^ seen[way]) | (there ^ seen[1 - way]));
        seen[way] = here;
        seen[1 - way] = there;
      }
    }
    wanted_[kLying] = seen[kLying] & ~rooms_[kLying].drops;
    wanted_[kStanding] = seen[kStanding] & ~rooms_[kStanding].drops & ~kTopRow;  // a half above the bottle is lost
    useful_ = seen;
  }

  // From where something wanted could still be reached, if time did not matter.
  void find_useful() {
    Poses seen = wanted_;
    for (bool grew = true; grew;) {
      grew = false;
      for (const Way way : {kLying, kStanding}) {
        const Room& room = rooms_[way];
        const Bits here = seen[way];
        // A rotation ends in place or one column to the left, in either order of a pair.
        const Bits ends = seen[1 - way] | swapped(seen[1 - way]);
        const Bits from = (up(here) & room.drops) | (right(here & ~column(7)) & room.left) |
                          (left(here & ~column(0)) & room.right) | ends | right(ends & ~column(7));
        seen[way] |= from & room.fits;
        grew = grew || any(seen[way] ^ here);
      }
    }
    useful_ = seen;
  }

  template <class Found>
  void step(Found& found) {
    const bool odd = start_.odd_next == ((frame_ & 1) != 0);
    if constexpr (Since) {
      tries_ = ++velocity_ >= 16;
      if (tries_) velocity_ = 10;
    }
    const bool due = frame_ - at(0).entered > start_.threshold;
    Layer& entering = at(count_);
    Poses locked{};
    if (odd || due) entering.pills = {};
    if (odd) push_down(entering, locked);
    if (due) lose_row(at(0), entering, locked);
    for (int i = due ? 1 : 0; i < count_; ++i) stay(at(i));
    if (odd || due) {
      entering.entered = frame_;
      ++count_;
    }
    if (due) {
      first_ = (first_ + 1) % kMostLayers;
      --count_;
    }
    if ((odd || due) && is_empty(at(count_ - 1))) --count_;
    for (const Way way : {kLying, kStanding}) {
      const Bits first = locked[way] & wanted_[way];
      if (!any(first)) continue;
      found(way, first);
      wanted_[way] &= ~first;
      last_found_ = frame_;
    }
    if (frame_ - last_found_ == kQuiet) find_useful();
  }

  static bool is_empty(const Layer& layer) {
    Bits all{};
    for (const Held& held : layer.pills)
      for (const auto& turns : held)
        for (const Bits x : turns) all |= x;
    return !any(all);
  }

  // Down is pressed: every pill that can loses a row, the others lock.
  void push_down(Layer& entering, Poses& locked) {
    for (const Way way : {kLying, kStanding}) {
      std::array<Bits, kTurnsUsed> all{};
      for (int i = 0; i < count_; ++i)
        for (std::size_t hold = 0; hold < kHoldsUsed; ++hold)
          for (std::size_t turn = 0; turn < kTurnsUsed; ++turn) all[turn] |= at(i).pills[way][hold][turn];
      const Bits drops = rooms_[way].drops;
      for (Bits& x : all) {
        locked[way] |= x & ~drops;
        x = down(x & drops);
      }
      for (std::size_t choice = 0; choice < kTurnsUsed; ++choice)
        put(entering, way, kNone, choice, pressable(all, choice), false);
    }
  }

  // Gravity: as above, whatever else is pressed.
  void lose_row(const Layer& layer, Layer& entering, Poses& locked) {
    for (const Way way : {kLying, kStanding}) {
      const Bits drops = rooms_[way].drops;
      Held moved;
      for (std::size_t hold = 0; hold < kHoldsUsed; ++hold)
        for (std::size_t turn = 0; turn < kTurnsUsed; ++turn) {
          const Bits x = layer.pills[way][hold][turn];
          locked[way] |= x & ~drops;
          moved[hold][turn] = down(x & drops);
        }
      press_all(entering, way, moved);
    }
  }

  void stay(Layer& layer) {
    const std::array<Held, kWays> before = layer.pills;
    layer.pills = {};
    for (const Way way : {kLying, kStanding}) press_all(layer, way, before[way]);
  }

  // Pills that this choice of rotation is a press for: anything may be held for none, the other button for one,
  // nothing for both.
  [[nodiscard]] Bits pressable(const std::array<Bits, kTurnsUsed>& turns, std::size_t choice) const {
    Bits x = turns[kNoTurn];
    if (choice == kNoTurn || choice == kTurnB) x |= turns[kTurnA];
    if (choice == kNoTurn || choice == kTurnA) x |= turns[kTurnB];
    if constexpr (Both) {
      if (choice == kNoTurn) x |= turns[kTurnBoth];
    }
    return blocked_turns_ && frame_ == 1 && choice != kNoTurn ? Bits{} : x;
  }

  // The rest of a frame, after the row: every direction, then every rotation.
  void press_all(Layer& to, Way way, const Held& from) {
    for (std::size_t choice = 0; choice < kTurnsUsed; ++choice) {
      std::array<Bits, kHoldsUsed> held;
      for (std::size_t hold = 0; hold < kHoldsUsed; ++hold) held[hold] = pressable(from[hold], choice);
      const std::array<Bits, kHoldsUsed> moved = shifted(way, held);
      for (std::size_t hold = 0; hold < kHoldsUsed; ++hold) {
        const bool left_held = hold == kHeldLeft || hold == kPushesLeft || (hold == kSinceStart && since_left_);
        put(to, way, hold, choice, moved[hold], left_held);
      }
    }
  }

  void put(Layer& to, Way way, std::size_t hold, std::size_t choice, Bits x, bool left_held) {
    if (choice == kTurnBoth) {
      x = rotated(rooms_, rotated(rooms_, x, way, true, left_held), way == kLying ? kStanding : kLying, false,
                  left_held);
    } else if (choice != kNoTurn) {
      x = rotated(rooms_, x, way, choice == kTurnA, left_held);
      way = way == kLying ? kStanding : kLying;
    }
    to.pills[way][hold][choice] |= x & useful_[way];
  }

  // Pills by what is held afterwards.
  std::array<Bits, kHoldsUsed> shifted(Way way, const std::array<Bits, kHoldsUsed>& held) const {
    const Room& room = rooms_[way];
    std::array<Bits, kHoldsUsed> to{};
    const Bits free = held[kNone] | held[kPushesLeft] | held[kPushesRight];
    Bits goes_left = free | held[kHeldRight];
    Bits goes_right = free | held[kHeldLeft];
    if constexpr (Since) {
      const Bits since = held[kSinceStart];
      (since_left_ ? goes_right : goes_left) |= since;
      const Bits can = since_left_ ? room.left : room.right;
      const Bits pushes = since_left_ ? room.pushes_left : room.pushes_right;
      to[kNone] = since;
      if (tries_) {
        to[kSinceStart] = (since_left_ ? left(since & can) : right(since & can)) | (since & ~can & ~pushes);
        to[since_left_ ? kPushesLeft : kPushesRight] = since & pushes;
      } else {
        to[kSinceStart] = since;
      }
    }
    to[kNone] |= goes_left | goes_right;
    to[kHeldLeft] = left(goes_left & room.left) | (goes_left & column(0)) | held[kHeldLeft];
    to[kPushesLeft] |= goes_left & room.pushes_left;
    to[kHeldRight] = right(goes_right & room.right) | (goes_right & ~room.right & ~room.pushes_right);
    to[kPushesRight] |= goes_right & room.pushes_right;
    return to;
  }

  Rooms rooms_;
  Start start_;
  Poses wanted_{};  // places to rest that are not found yet
  Poses useful_{};
  std::array<Layer, kMostLayers> layers_;  // a ring, oldest first; not initialised beyond count_
  int first_ = 0;
  int count_ = 0;
  int frame_ = 0;
  int last_found_ = 0;
  int velocity_ = 0;
  bool tries_ = false;  // the direction held since the start moves the pill on this frame
  bool since_left_ = false;
  bool blocked_turns_ = false;  // A and B are both held at the start: neither can be pressed on the first frame
};

template <class Fn>
void for_each_pose(Way way, Bits poses, Fn&& fn) {
  for (int word = 0; word < 4; ++word)
    for (std::uint64_t bits = poses[word]; bits != 0; bits &= bits - 1) {
      const int at = std::countr_zero(bits) + 64 * (word & 1);
      const int rot = 2 * (word >> 1) + way;
      fn(Pose{static_cast<std::int8_t>(at / 8), static_cast<std::int8_t>(at % 8), static_cast<std::int8_t>(rot)});
    }
}

// A pill in the middle of a plan, and how a frame of buttons changes it: the game's own rules, with what the search
// keeps of the counters.
struct Pill {
  int entered = 0;
  Pose pose;
  std::size_t hold = kNone;
  std::size_t turn = kNoTurn;
  friend bool operator==(const Pill&, const Pill&) = default;
};

struct Rules {
  const Cells& cells;
  const Start& start;

  [[nodiscard]] bool odd(int frame) const { return start.odd_next == ((frame & 1) != 0); }
  [[nodiscard]] bool since_left() const { return (start.held & kPressLeft) != 0; }

  // The repeat counter of a direction held since the start, before a frame.
  [[nodiscard]] std::uint8_t velocity(int frame) const {
    int value = start.hor_velocity;
    for (int f = 1; f < frame; ++f) value = value + 1 >= 16 ? 10 : value + 1;
    return static_cast<std::uint8_t>(value);
  }
  [[nodiscard]] std::uint8_t held_by(const Pill& pill) const {
    const bool left = pill.hold == kHeldLeft || pill.hold == kPushesLeft || (pill.hold == kSinceStart && since_left());
    const std::uint8_t pad = pill.hold == kNone ? 0 : left ? kPressLeft : kPressRight;
    return static_cast<std::uint8_t>(pad | (pill.turn & 1) << 7 | (pill.turn >> 1 & 1) << 6);
  }

  // After this frame; `locked` says that the pill came to rest instead.
  [[nodiscard]] Pill after(const Pill& before, int frame, std::uint8_t buttons, bool& locked) const {
    const std::uint8_t held = frame == 1 ? start.held : held_by(before);
    const auto pressed = static_cast<std::uint8_t>(buttons & ~held);
    const bool pushes = before.hold == kPushesLeft || before.hold == kPushesRight;
    const std::uint8_t speed = before.hold == kSinceStart ? velocity(frame) : pushes ? 15 : 0;
    Fall fall{before.pose, static_cast<std::uint8_t>(frame - 1 - before.entered), speed};
    locked = drop(cells, fall, buttons, odd(frame), start.threshold);
    Pill after{fall.speed_counter == 0 ? frame : before.entered, fall.pose};
    if (locked) return after;
    shift(cells, fall, buttons, pressed);
    rotate(cells, fall, buttons, pressed);
    after.pose = fall.pose;
    const bool left = (buttons & kPressLeft) != 0;
    const bool sideways = left || (buttons & kPressRight) != 0;
    if (sideways) {
      const bool blocked = fall.hor_velocity == 15 && (speed == 15 || (pressed & (kPressLeft | kPressRight)) != 0);
      const bool kept = before.hold == kSinceStart && (pressed & (kPressLeft | kPressRight)) == 0;
      after.hold = kept && !(speed == 15 && blocked) ? kSinceStart
                   : left                            ? (blocked ? kPushesLeft : kHeldLeft)
                                                     : (blocked ? kPushesRight : kHeldRight);
    }
    after.turn = static_cast<std::size_t>((buttons >> 7 & 1) | (buttons >> 6 & 1) << 1);
    return after;
  }
};

// A pill of the frame before, and the buttons, that lead to `pill` (or to its lock) on this frame.
template <class Layer>
bool step_back(const Rules& rules, const std::vector<Layer>& layers, int frame, bool locks, Pill& pill,
               std::uint8_t& buttons) {
  constexpr std::array<std::uint8_t, 4> kPads{0, kPressDown, kPressLeft, kPressRight};
  constexpr std::array<std::uint8_t, 4> kButtons{0, kPressA, kPressB, kPressA | kPressB};
  const Pill wanted = pill;
  for (std::size_t hold = 0; hold < kHolds; ++hold)
    for (std::size_t turn = 0; turn < kTurns; ++turn)
      for (const Layer& layer : layers) {
        if (!locks && wanted.entered != frame && layer.entered != wanted.entered) continue;
        const int row = wanted.pose.row + (!locks && wanted.entered == frame ? 1 : 0);
        if (row >= kRows) continue;
        for (int rot = 0; rot < 4; ++rot)
          for (int col = std::max(0, wanted.pose.col - 2); col <= std::min(kColumns - 1, wanted.pose.col + 2); ++col) {
            const Pill from{
                layer.entered,
                {static_cast<std::int8_t>(row), static_cast<std::int8_t>(col), static_cast<std::int8_t>(rot)},
                hold,
                turn};
            if (!layer.has(from.pose, hold, turn)) continue;
            for (const std::uint8_t pad : kPads) {
              const auto input = static_cast<std::uint8_t>(pad | kButtons[locks ? 0 : wanted.turn]);
              bool locked = false;
              const Pill after = rules.after(from, frame, input, locked);
              if (locked != locks || (locks ? !(after.pose == wanted.pose) : !(after == wanted))) continue;
              pill = from;
              buttons = input;
              return true;
            }
          }
      }
  return false;
}

template <bool Both, bool Since>
std::vector<std::uint8_t> script_with(const Cells& cells, const Start& start, int placement) {
  Search<Both, Since> search(cells, start);
  std::vector<std::vector<typename Search<Both, Since>::Layer>> history;  // after each frame
  const auto remember = [&] {
    history.emplace_back();
    for (int i = 0; i < search.layers(); ++i) history.back().push_back(search.layer(i));
  };
  remember();
  int frames = 0;
  search.run(
      [&](Way way, Bits poses) {
        for_each_pose(way, poses, [&](const Pose& pose) {
          if (placement_of(pose) == placement) frames = search.frame();
        });
      },
      [&] {
        if (frames == 0) remember();
      });
  std::vector<std::uint8_t> buttons(static_cast<std::size_t>(frames));
  const Rules rules{cells, start};
  Pill pill{0, pose_of(placement)};
  for (int frame = frames; frame >= 1; --frame) {
    const auto at = static_cast<std::size_t>(frame - 1);
    if (!step_back(rules, history[at], frame, frame == frames, pill, buttons[at])) return {};
  }
  return buttons;
}

template <bool Both, bool Since>
void plan_with(const Cells& cells, const Start& start, Costs& costs) {
  Search<Both, Since> search(cells, start);
  search.run(
      [&](Way way, Bits poses) {
        for_each_pose(way, poses, [&](const Pose& pose) {
          costs[static_cast<std::size_t>(placement_of(pose))] = static_cast<std::uint16_t>(search.frame());
        });
      },
      [] {});
}

}  // namespace

void plan(const Cells& cells, const Start& start, Costs& costs, bool both) {
  costs.fill(kUnreachable);
  if (!fits(cells, start.pose)) return;
  const bool since = (start.held & (kPressLeft | kPressRight)) != 0;
  if (both) {
    since ? plan_with<true, true>(cells, start, costs) : plan_with<true, false>(cells, start, costs);
  } else {
    since ? plan_with<false, true>(cells, start, costs) : plan_with<false, false>(cells, start, costs);
  }
}

std::vector<std::uint8_t> script(const Cells& cells, const Start& start, int placement, bool both) {
  if (placement < 0 || placement >= kPlacements || !fits(cells, start.pose)) return {};
  const bool since = (start.held & (kPressLeft | kPressRight)) != 0;
  if (both)
    return since ? script_with<true, true>(cells, start, placement) : script_with<true, false>(cells, start, placement);
  return since ? script_with<false, true>(cells, start, placement) : script_with<false, false>(cells, start, placement);
}

}  // namespace slipstream::drmario
