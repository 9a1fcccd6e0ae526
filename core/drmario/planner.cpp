// How it works. A pill's state is its pose, the frames since it last lost a row, which direction is held and whether it
// is about to move again, and which rotate button is held. Poses of one rotation are one bitmap of 16 x 8 bits, so a
// frame's moves are a few shifts and masks. Pills that came into their rows on the same frame are kept together (a
// Layer): they lose the next row to gravity on the same frame too, and until then nobody has to count.
//
// Two facts keep it small, both checked against the plain search (oracle.cpp):
//   - A held direction matters only where the pill is pushed against something: then it moves on the first frame it
//   can.
//     Waiting for the automatic repeat is never faster than letting go and pressing again. The one exception, a
//     direction held since before the start, is followed by itself.
//   - Not holding anything is never worse than holding a button that does nothing.
#include "drmario/planner.hpp"

#include <algorithm>
#include <bit>

namespace slipstream::drmario {
namespace {

// 16 rows of 8 columns; bit 8 * row + column, row 0 the lowest.
struct Bits {
  std::uint64_t low = 0;   // rows 0 to 7
  std::uint64_t high = 0;  // rows 8 to 15

  friend constexpr Bits operator&(Bits a, Bits b) { return {a.low & b.low, a.high & b.high}; }
  friend constexpr Bits operator|(Bits a, Bits b) { return {a.low | b.low, a.high | b.high}; }
  friend constexpr Bits operator~(Bits a) { return {~a.low, ~a.high}; }
  friend constexpr bool operator==(Bits, Bits) = default;
  constexpr Bits& operator|=(Bits b) { return *this = *this | b; }
  constexpr Bits& operator&=(Bits b) { return *this = *this & b; }
  // Callers mask the column that would leave the row.
  [[nodiscard]] constexpr Bits left() const { return {low >> 1, high >> 1}; }
  [[nodiscard]] constexpr Bits right() const { return {low << 1, high << 1}; }
  [[nodiscard]] constexpr Bits down() const { return {low >> 8 | high << 56, high >> 8}; }
  [[nodiscard]] constexpr Bits up() const { return {low << 8, high << 8 | low >> 56}; }
  [[nodiscard]] constexpr bool any() const { return (low | high) != 0; }
  [[nodiscard]] constexpr bool has(int row, int col) const {
    return (((row < 8 ? low : high) >> (8 * (row & 7) + col)) & 1U) != 0;
  }
};

constexpr Bits column(int col) {
  const std::uint64_t bits = 0x0101010101010101ULL << col;
  return {bits, bits};
}

constexpr Bits cell(int row, int col) {
  const std::uint64_t bit = 1ULL << (8 * (row & 7) + col);
  return row < 8 ? Bits{bit, 0} : Bits{0, bit};
}

// Which direction is held, and whether the pill is pushed against something with it.
enum Hold : std::uint8_t { kNone, kHeldLeft, kPushesLeft, kHeldRight, kPushesRight, kSinceStart, kHolds };
// Which rotate button is.
enum Turn : std::uint8_t { kNoTurn, kTurnA, kTurnB, kTurnBoth, kTurns };

// Where pills of one alignment can be, and can go.
struct Room {
  Bits fits, drops, left, right;  // can be there; can also be a row lower, a column to the left, to the right
  Bits at_left, at_right;         // walls

  void find(Bits free, bool vertical) {
    fits = vertical ? free & (free.down() | Bits{0, 0xFFULL << 56}) : free & ((free & ~column(0)).left());
    drops = fits & fits.up();
    left = fits & (fits & ~column(7)).right();
    right = fits & (fits & ~column(0)).left();
    at_left = column(0);
    at_right = column(vertical ? 7 : 6);
  }
};

using Rooms = std::array<Room, 2>;  // lying, standing
using Poses = std::array<Bits, 4>;  // by rotation

// Pills of one rotation, by what is held.
using Held = std::array<std::array<Bits, kTurns>, kHolds>;

struct Layer {
  int entered = 0;  // the frame on which the pills came into their rows
  std::array<Held, 4> pills;
};

Rooms rooms_of(const Cells& cells) {
  Bits free;
  for (int row = 0; row < kRows; ++row) {
    std::uint64_t bits = 0;
    for (int col = 0; col < kColumns; ++col)
      bits |= static_cast<std::uint64_t>(is_free(cells[cell_index(row, col)])) << col;
    (row < 8 ? free.low : free.high) |= bits << (8 * (row & 7));
  }
  Rooms rooms;
  rooms[0].find(free, false);
  rooms[1].find(free, true);
  return rooms;
}

constexpr int turned(int rot, int by) { return (rot + by) & 3; }

// Pills that a rotation to this alignment succeeds for, where it takes them.
Bits rotated(const Rooms& rooms, Bits from, int to, bool left_held) {
  const Room& room = rooms[static_cast<std::size_t>(to & 1)];
  if ((to & 1) != 0) return from & room.fits;
  const Bits in_place = from & room.fits;
  // One column to the left, where a lying pill fits there.
  const Bits beside = (room.fits & ~column(7)).right();
  const Bits kicked = (from & ~room.fits & beside & ~column(0)).left();
  if (!left_held) return in_place | kicked;
  const Bits doubled = in_place & beside & ~column(0);
  return (in_place & ~doubled) | doubled.left() | kicked;
}

// One search. `Both` is whether A and B may be pressed together, `Since` whether a direction is held at the start.
template <bool Both, bool Since>
class Search {
 public:
  static constexpr std::size_t kTurnsUsed = Both ? 4 : 3;
  static constexpr std::size_t kHoldsUsed = Since ? kHolds : kSinceStart;

  Search(const Cells& cells, const Start& start) : rooms_(rooms_of(cells)), start_(start) {
    since_left_ = (start.held & kPressLeft) != 0;
    velocity_ = start.hor_velocity;
    Layer& first = layers_[0];
    clear(first);
    first.entered = -start.speed_counter;
    const Hold hold = Since ? kSinceStart : kNone;
    const int turn = (start.held >> 7 & 1) | (start.held >> 6 & 1) << 1;
    if constexpr (!Both) {
      if (turn == 3) both_held_ = true;
    }
    const Bits at = cell(start.pose.row, start.pose.col);
    first.pills[static_cast<std::size_t>(start.pose.rot)][hold][both_held_ ? 0 : static_cast<std::size_t>(turn)] = at;
    count_ = 1;
    seek(at);
  }

  // Runs until every placement there may be is found; `found(rot, poses)` hears of locks, `frame_over()` of frames.
  template <class Found, class Over>
  void run(Found&& found, Over&& frame_over) {
    for (frame_ = 1; count_ > 0 && wanted_any(); ++frame_) {
      step(found);
      frame_over();
    }
  }

  [[nodiscard]] int frame() const { return frame_; }
  [[nodiscard]] int layers() const { return count_; }
  [[nodiscard]] const Layer& layer(int i) const { return layers_[static_cast<std::size_t>(i)]; }

 private:
  static void clear(Layer& layer) {
    for (Held& held : layer.pills) held = {};
  }

  // What could be reached if time did not matter, and of that what pills can rest on.
  void seek(Bits at) {
    Poses seen{};
    seen[static_cast<std::size_t>(start_.pose.rot)] = at;
    for (bool grew = true; grew;) {
      const Poses before = seen;
      for (std::size_t rot = 0; rot < 4; ++rot) {
        const Room& room = rooms_[rot & 1];
        Bits& here = seen[rot];
        here |= (here & room.drops).down() | (here & room.left).left() | (here & room.right).right();
        for (const int by : {1, 3}) {
          const int to = turned(static_cast<int>(rot), by);
          Bits& there = seen[static_cast<std::size_t>(to)];
          there |= rotated(rooms_, here, to, false) | rotated(rooms_, here, to, true);
        }
      }
      grew = seen != before;
    }
    for (std::size_t rot = 0; rot < 4; ++rot) {
      wanted_[rot] = seen[rot] & ~rooms_[rot & 1].drops;
      if ((rot & 1) != 0) wanted_[rot] &= Bits{~0ULL, ~(0xFFULL << 56)};  // a half above the bottle is no placement
    }
    useful_ = seen;
  }

  [[nodiscard]] bool wanted_any() const { return (wanted_[0] | wanted_[1] | wanted_[2] | wanted_[3]).any(); }

  // From where something wanted can still be reached, if time did not matter.
  void find_useful() {
    Poses seen = wanted_;
    for (bool grew = true; grew;) {
      const Poses before = seen;
      for (std::size_t rot = 0; rot < 4; ++rot) {
        const Room& room = rooms_[rot & 1];
        const Bits here = seen[rot];
        Bits from = (here.up() & room.drops) | ((here & ~column(7)).right() & room.left) |
                    ((here & ~column(0)).left() & room.right);
        for (const int by : {1, 3}) {
          // A rotation leads here in place or one column to the left; whether it does is not asked.
          const std::size_t to = static_cast<std::size_t>(turned(static_cast<int>(rot), by));
          const Bits ends = seen[to];
          from |= ends | (ends & ~column(7)).right();
        }
        seen[rot] |= from & room.fits;
      }
      grew = seen != before;
    }
    useful_ = seen;
  }

  template <class Found>
  void step(Found& found) {
    const bool odd = start_.odd_next == ((frame_ & 1) != 0);
    if constexpr (Since) {
      tries_ = false;
      if (++velocity_ >= 16) {
        velocity_ = 10;
        tries_ = true;
      }
    }
    Layer entering;
    bool enters = false;
    Poses locked{};
    if (odd) enters |= push_down(entering, locked);
    const bool due = frame_ - layers_[0].entered > start_.threshold;
    if (due) {
      if (!enters) clear(entering);
      enters |= lose_row(layers_[0], entering, locked);
      for (int i = 1; i < count_; ++i) layers_[static_cast<std::size_t>(i - 1)] = layers_[static_cast<std::size_t>(i)];
      --count_;
    }
    for (int i = 0; i < count_; ++i) stay(layers_[static_cast<std::size_t>(i)]);
    if (enters) {
      entering.entered = frame_;
      layers_[static_cast<std::size_t>(count_++)] = entering;
    }
    bool news = false;
    for (std::size_t rot = 0; rot < 4; ++rot) {
      const Bits first = locked[rot] & wanted_[rot];
      if (!first.any()) continue;
      found(static_cast<int>(rot), first);
      wanted_[rot] &= ~first;
      news = true;
    }
    if (news) find_useful();
  }

  // Down is pressed: every pill that can loses a row, the others lock.
  bool push_down(Layer& entering, Poses& locked) {
    clear(entering);
    bool any = false;
    for (std::size_t rot = 0; rot < 4; ++rot) {
      std::array<Bits, kTurnsUsed> all{};
      for (int i = 0; i < count_; ++i)
        for (std::size_t hold = 0; hold < kHoldsUsed; ++hold)
          for (std::size_t turn = 0; turn < kTurnsUsed; ++turn)
            all[turn] |= layers_[static_cast<std::size_t>(i)].pills[rot][hold][turn];
      const Bits drops = rooms_[rot & 1].drops;
      Held moved{};
      for (std::size_t turn = 0; turn < kTurnsUsed; ++turn) {
        locked[rot] |= all[turn] & ~drops;
        moved[kNone][turn] = (all[turn] & drops).down() & useful_[rot];
        any |= moved[kNone][turn].any();
      }
      turn_all(entering, static_cast<int>(rot), moved, false);
    }
    return any;
  }

  // Gravity: as above, whatever else is pressed.
  bool lose_row(const Layer& layer, Layer& entering, Poses& locked) {
    bool any = false;
    for (std::size_t rot = 0; rot < 4; ++rot) {
      const Bits drops = rooms_[rot & 1].drops;
      Held moved{};
      for (std::size_t hold = 0; hold < kHoldsUsed; ++hold)
        for (std::size_t turn = 0; turn < kTurnsUsed; ++turn) {
          const Bits at = layer.pills[rot][hold][turn];
          locked[rot] |= at & ~drops;
          moved[hold][turn] = (at & drops).down();
          any |= moved[hold][turn].any();
        }
      turn_all(entering, static_cast<int>(rot), moved, true);
    }
    return any;
  }

  void stay(Layer& layer) {
    const std::array<Held, 4> before = layer.pills;
    clear(layer);
    for (std::size_t rot = 0; rot < 4; ++rot) turn_all(layer, static_cast<int>(rot), before[rot], true);
  }

  // The rest of a frame, after the row: sideways where that is free to choose, then every choice of rotation.
  void turn_all(Layer& to, int rot, const Held& from, bool sideways) {
    for (std::size_t choice = 0; choice < kTurnsUsed; ++choice) {
      // What may be held for this to be a press: anything for none, the other button for one, nothing for both.
      std::array<Bits, kHolds> held{};
      for (std::size_t hold = 0; hold < kHoldsUsed; ++hold) {
        Bits at = from[hold][kNoTurn];
        if (choice == kNoTurn || choice == kTurnB) at |= from[hold][kTurnA];
        if (choice == kNoTurn || choice == kTurnA) at |= from[hold][kTurnB];
        if constexpr (Both) {
          if (choice == kNoTurn) at |= from[hold][kTurnBoth];
        }
        held[hold] = at;
      }
      if (both_held_ && frame_ == 1 && choice != kNoTurn) continue;  // both are held: neither can be pressed
      const std::array<Bits, kHolds> moved = sideways ? shifted(rot, held) : held;
      for (std::size_t hold = 0; hold < kHoldsUsed; ++hold) {
        if (!moved[hold].any()) continue;
        const bool left = hold == kHeldLeft || hold == kPushesLeft || (hold == kSinceStart && since_left_);
        put(to, rot, hold, choice, moved[hold], left);
      }
    }
  }

  void put(Layer& to, int rot, std::size_t hold, std::size_t choice, Bits at, bool left) {
    int ends = rot;
    if (choice == kTurnA || choice == kTurnBoth) at = rotated(rooms_, at, ends = turned(ends, 3), left);
    if (choice == kTurnB || choice == kTurnBoth) at = rotated(rooms_, at, ends = turned(ends, 1), left);
    to.pills[static_cast<std::size_t>(ends)][hold][choice] |= at & useful_[static_cast<std::size_t>(ends)];
  }

  // Pills by what is held afterwards.
  std::array<Bits, kHolds> shifted(int rot, const std::array<Bits, kHolds>& held) const {
    const Room& room = rooms_[static_cast<std::size_t>(rot & 1)];
    std::array<Bits, kHolds> to{};
    Bits all = held[kNone] | held[kHeldLeft] | held[kPushesLeft] | held[kHeldRight] | held[kPushesRight];
    Bits left = held[kNone] | held[kHeldRight] | held[kPushesRight] | held[kPushesLeft];
    Bits right = held[kNone] | held[kHeldLeft] | held[kPushesLeft] | held[kPushesRight];
    if constexpr (Since) {
      const Bits since = held[kSinceStart];
      all |= since;
      (since_left_ ? right : left) |= since;
      if (!tries_) {
        to[kSinceStart] = since;
      } else {
        const Bits free = since_left_ ? room.left : room.right;
        const Bits wall = since_left_ ? room.at_left : room.at_right;
        const Bits gone = since_left_ ? (since & free).left() : (since & free).right();
        to[kSinceStart] = gone | (since & wall);
        to[since_left_ ? kPushesLeft : kPushesRight] = since & ~free & ~wall;
      }
    }
    to[kNone] = all;
    to[kHeldLeft] = (left & room.left).left() | (left & room.at_left) | held[kHeldLeft];
    to[kPushesLeft] |= left & ~room.left & ~room.at_left;
    to[kHeldRight] = (right & room.right).right() | (right & room.at_right);
    to[kPushesRight] |= right & ~room.right & ~room.at_right;
    return to;
  }

  Rooms rooms_;
  Start start_;
  Poses wanted_{};  // places to rest that are not found yet
  Poses useful_{};
  std::array<Layer, 72> layers_;  // oldest first; uninitialised beyond count_
  int count_ = 0;
  int frame_ = 0;
  int velocity_ = 0;
  bool tries_ = false;  // the direction held since the start moves the pill on this frame
  bool since_left_ = false;
  bool both_held_ = false;
};

template <class Fn>
void for_each_pose(int rot, Bits poses, Fn&& fn) {
  for (int half = 0; half < 2; ++half)
    for (std::uint64_t bits = half == 0 ? poses.low : poses.high; bits != 0; bits &= bits - 1) {
      const int at = std::countr_zero(bits) + 64 * half;
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

// Every layer as it was after each frame of a search.
using History = std::vector<std::vector<Layer>>;

// A pill of the frame before, and the buttons, that lead to `pill` (or to its lock) on this frame.
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
            if (!layer.pills[static_cast<std::size_t>(rot)][hold][turn].has(row, col)) continue;
            const Pill from{
                layer.entered,
                {static_cast<std::int8_t>(row), static_cast<std::int8_t>(col), static_cast<std::int8_t>(rot)},
                hold,
                turn};
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
  History history;
  const auto remember = [&] {
    history.emplace_back();
    for (int i = 0; i < search.layers(); ++i) history.back().push_back(search.layer(i));
  };
  remember();
  int frames = 0;
  search.run(
      [&](int rot, Bits poses) {
        for_each_pose(rot, poses, [&](const Pose& pose) {
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
      [&](int rot, Bits poses) {
        for_each_pose(rot, poses, [&](const Pose& pose) {
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
