// The game frame by frame, for one player or two. A frame: counters tick, buttons are read, one routine runs.
#pragma once

#include <array>
#include <cstdint>

#include "drmario/field.hpp"
#include "drmario/level.hpp"
#include "drmario/pill.hpp"

namespace slipstream::drmario {

enum class Terminal : std::uint8_t { kNone, kClear, kTopOut };

// What a player's bottle does on its next frame.
enum class Action : std::uint8_t { kFall, kPlaced, kAttack, kSent, kPause, kThrow };

// What the others may want to know about the frame just run.
struct Happened {
  bool fell = false;     // the pill was under control
  bool locked = false;   // and came to rest, at this pose
  bool spawned = false;  // a pill was put into the bottle
  bool landed = false;   // somebody else's garbage did
  Pose pose;
  int cells = 0;    // newly matched
  int viruses = 0;  // among them
  int runs = 0;     // rows and columns they were matched in
};

// One bottle. Everything is public: it is a value, and worlds, planners and tests look into it.
struct Player {
  Cells cells{};
  Reserve reserve{};
  Fall fall;
  Colours colours{};  // of the pill that falls
  Colours preview{};
  std::uint8_t next = 3;   // of the reserve, to become the preview
  std::uint8_t pills = 2;  // thrown, two decimal digits
  std::uint8_t speed_ups = 0;
  std::uint8_t speed = 0;  // 0 low, 1 medium, 2 high
  std::uint8_t held = 0;   // buttons, on the frame before
  Action action = Action::kFall;
  std::uint8_t step = 0;          // of what follows a lock
  std::uint8_t rows_left = 0xFF;  // to be drawn before loose things fall; 0xFF: none
  std::uint8_t thrown = 0;        // frames of the throw
  std::uint8_t frayed = 0;        // a half may have lost the other without a match: at the top, or to garbage
  std::uint8_t matched = 0;       // anything, in this pass
  std::uint8_t kills = 0;         // viruses, by this pill
  std::uint8_t combo = 0;         // runs since the last pill or attack
  std::uint8_t attack = 0;        // garbage for the other player
  std::array<std::uint8_t, 4> attack_colours{};
  Terminal terminal = Terminal::kNone;
  std::int32_t viruses = 0;
  std::int32_t score = 0;

  [[nodiscard]] int threshold() const;  // a row is lost when the speed counter exceeds it
};

// A player whose first pill is about to fall.
[[nodiscard]] Player start(const Cells& cells, const Reserve& reserve, int speed);

// The pill with this number of the reserve.
constexpr Colours colours_of(std::uint8_t id) {
  return {static_cast<std::uint8_t>(id / 3), static_cast<std::uint8_t>(id % 3)};
}

// The pill comes to rest where it is.
Happened lock(Player& me);

// One frame of a player alone, and of a player with an opponent. `counter` is the frame counter of this frame.
Happened play_frame(Player& me, std::uint8_t counter, std::uint8_t buttons);
Happened play_frame(Player& me, Player& other, std::uint8_t counter, std::uint8_t buttons);

}  // namespace slipstream::drmario
