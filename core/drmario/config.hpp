// What a game of Dr. Mario is, for worlds. slipstream/worlds/drmario/config.py tells users; a test keeps defaults
// equal.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "drmario/level.hpp"

namespace slipstream::drmario {

// What an action is: where the pill goes, or the buttons of one frame.
enum class Control : std::uint8_t { kPlacement, kController };

// Which planes an observation has, in this order.
struct Planes {
  bool colour = true;         // 3: yellow, red, blue, whatever the cell is
  bool virus = true;          // 1
  bool joined = true;         // 4: to the half above, below, left, right
  bool virus_colour = false;  // 3
  bool pill_colour = false;   // 3: what lies in the bottle and is no virus
  bool falling = false;       // 3: the pill under control
  bool opponent = false;      // 8: the other bottle's colour, virus, joined
  bool feasible = true;       // 4: where the first half may go, by where the second is then

  [[nodiscard]] int count() const {
    return 3 * colour + virus + 4 * joined + 3 * virus_colour + 3 * pill_colour + 3 * falling + 8 * opponent +
           4 * feasible;
  }
};

// What is paid, and when; see worlds/drmario/config.py.
enum class Part : std::uint8_t { kVirus, kClear, kTopOut, kMatch, kPill, kSecond, kGarbage, kWin, kParts };
inline constexpr std::size_t kNumParts = static_cast<std::size_t>(Part::kParts);
inline constexpr std::array<const char*, kNumParts> kPartNames{"virus", "clear",  "top_out", "match",
                                                               "pill",  "second", "garbage", "win"};

// One stage of a curriculum; a game without stages is one stage.
struct Stage {
  std::string name;
  std::vector<int> levels{0};  // one is drawn for each game
  int viruses = 0;             // left in the bottle, of the level's; 0: all of them
  int matches = 0;             // to be made in a bottle without viruses; 0: viruses are the goal
  int max_frames = 0;          // a game is cut off after so many; 0: only pills are counted
};

struct DrMarioConfig {
  Control control = Control::kPlacement;
  int players = 1;
  int speed = 2;  // 0 low, 1 medium, 2 high
  int max_pills = 400;
  int first_seed = 1;  // of the console's, from which games are drawn
  int last_seed = kSeeds;
  std::vector<int> seeds;  // or from these; empty: from the range
  std::vector<Stage> stages{Stage{}};
  Planes planes;
  bool costs = true;  // are shown
  std::array<double, kNumParts> reward{};

  void validate() const;  // throws std::invalid_argument
};

}  // namespace slipstream::drmario
