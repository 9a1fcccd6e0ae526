// What a game of Dr. Mario is, for worlds: the generated fields, and what a scenario's are worked out into.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "drmario/fields.hpp"
#include "drmario/level.hpp"

namespace slipstream::drmario {

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

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("colour", &Planes::colour);
    visit("virus", &Planes::virus);
    visit("joined", &Planes::joined);
    visit("virus_colour", &Planes::virus_colour);
    visit("pill_colour", &Planes::pill_colour);
    visit("falling", &Planes::falling);
    visit("opponent", &Planes::opponent);
    visit("feasible", &Planes::feasible);
  }
  [[nodiscard]] int count() const {
    return 3 * colour + virus + 4 * joined + 3 * virus_colour + 3 * pill_colour + 3 * falling + 8 * opponent +
           4 * feasible;
  }
};

struct DrMarioConfig : DrMarioFields {
  std::vector<int> seeds;  // games are drawn from these; empty: from the range
  Planes planes;
  std::array<double, kNumParts> reward = kPartDefaults;

  // Whether running out of time is part of the task, and so is shown.
  [[nodiscard]] bool shows_time_left() const {
    return time_left.value_or(std::any_of(phases.begin(), phases.end(), [](const auto& p) { return p.max_seconds; }));
  }
  // The phases; a game without any is one phase.
  [[nodiscard]] std::vector<GamesConfig> games() const;
  void validate() const;  // throws std::invalid_argument

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    DrMarioFields::fields(visit);
    visit("seeds", &DrMarioConfig::seeds, Bounds{}, Bounds{.low = 1, .high = kSeeds});
    visit("planes", &DrMarioConfig::planes);
    visit("reward", &DrMarioConfig::reward);
  }
};

}  // namespace slipstream::drmario
