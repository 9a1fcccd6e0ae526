// Random traffic through a round sector, with a stated share of aircraft on a course to meet another.
#pragma once

#include <span>
#include <vector>

#include "airspace/config.hpp"
#include "slipstream/rng.hpp"

namespace slipstream::airspace {

// One aircraft as drawn, NM from the sector's centre.
struct Entry {
  double east_nm = 0.0;
  double north_nm = 0.0;
  double heading_deg = 0.0;
  double exit_east_nm = 0.0;
  double exit_north_nm = 0.0;
  double cas_kt = 0.0;
  double speed_nmps = 0.0;
  std::size_t type = 0;  // index into random_sector.types
};

// True airspeed of one type at the sector's min_cas_kt and max_cas_kt; taken as linear between.
struct SpeedRange {
  double slowest_nmps = 0.0;
  double fastest_nmps = 0.0;
};

// Fills `out` (one entry per aircraft) without allocating. Starts are at least min_start_separation_nm apart.
void draw_sector(const AirspaceConfig& config, const std::vector<SpeedRange>& speeds, Rng& rng, std::span<Entry> out);

}  // namespace slipstream::airspace
