#include "airspace/sector.hpp"

#include <cmath>
#include <numbers>

#include "airspace/geo.hpp"

namespace slipstream::airspace {
namespace {

constexpr int kTriesPerAircraft = 256;
constexpr double kShortestCrossing = 1.2;  // of the radius: nobody merely clips the edge

double two_pi() { return 2.0 * std::numbers::pi; }

// Straight across from a point of the edge along a direction; false when the way is too short to matter.
bool set_course(Entry& e, double radius, double east, double north) {
  const double inward = -(e.east_nm * east + e.north_nm * north);
  const double crossing = 2.0 * inward;
  if (crossing < kShortestCrossing * radius) return false;
  e.heading_deg = wrap_360(degrees(std::atan2(east, north)));
  e.exit_east_nm = e.east_nm + crossing * east;
  e.exit_north_nm = e.north_nm + crossing * north;
  return true;
}

bool try_free(double radius, Rng& rng, Entry& e) {
  const double angle = rng.uniform(0.0, two_pi());
  e.east_nm = radius * std::sin(angle);
  e.north_nm = radius * std::cos(angle);
  const double course = angle + std::numbers::pi + rng.uniform(-0.3, 0.3) * std::numbers::pi;
  return set_course(e, radius, std::sin(course), std::cos(course));
}

// Aims at where `other` will be in t seconds, give or take the wanted miss distance: the start is where the edge meets
// the circle of everything this aircraft could have come from.
bool try_conflict(const RandomSectorConfig& sector, double radius, const Entry& other, Rng& rng, Entry& e) {
  const double t = rng.uniform(sector.conflict_after_s, sector.conflict_before_s);
  const double miss = rng.uniform(0.0, sector.conflict_cpa_nm);
  const double miss_angle = rng.uniform(0.0, two_pi());
  const bool from_left = rng.below(2) == 0;
  const double flown = other.speed_nmps * t;
  const double crossing = std::hypot(other.exit_east_nm - other.east_nm, other.exit_north_nm - other.north_nm);
  if (flown > crossing - 2.0) return false;  // it would be leaving
  const double east = other.east_nm + flown * std::sin(radians(other.heading_deg)) + miss * std::sin(miss_angle);
  const double north = other.north_nm + flown * std::cos(radians(other.heading_deg)) + miss * std::cos(miss_angle);
  const double away = std::hypot(east, north);
  const double reach = e.speed_nmps * t;
  if (away < 1e-6) return false;
  const double cosine = (away * away + reach * reach - radius * radius) / (2.0 * away * reach);
  if (std::abs(cosine) > 1.0) return false;
  const double course = std::atan2(east, north) + (from_left ? 1.0 : -1.0) * std::acos(cosine);
  e.east_nm = east - reach * std::sin(course);
  e.north_nm = north - reach * std::cos(course);
  return set_course(e, radius, std::sin(course), std::cos(course)) &&
         reach < std::hypot(e.exit_east_nm - e.east_nm, e.exit_north_nm - e.north_nm) - 2.0;
}

bool clear_of(const std::vector<Entry>& entries, std::size_t count, const Entry& e, double distance_nm) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::hypot(entries[i].east_nm - e.east_nm, entries[i].north_nm - e.north_nm) < distance_nm) return false;
  }
  return true;
}

// Always possible (the config was checked): evenly round the edge, straight through the middle.
void draw_evenly(double radius, Rng& rng, std::vector<Entry>& out) {
  const double first = rng.uniform(0.0, two_pi());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double angle = first + two_pi() * static_cast<double>(i) / static_cast<double>(out.size());
    out[i].east_nm = radius * std::sin(angle);
    out[i].north_nm = radius * std::cos(angle);
    set_course(out[i], radius, -std::sin(angle), -std::cos(angle));
  }
}

}  // namespace

void draw_sector(const AirspaceConfig& config, const std::vector<SpeedRange>& speeds, Rng& rng,
                 std::vector<Entry>& out) {
  const RandomSectorConfig& sector = *config.random_sector;
  const double radius = config.sector_radius_nm();
  const double apart = kSectorMargin * sector.min_start_separation_nm;
  for (Entry& e : out) {
    e.type = rng.below(static_cast<std::uint32_t>(speeds.size()));
    const double share = rng.uniform();
    e.cas_kt = sector.min_cas_kt + share * (sector.max_cas_kt - sector.min_cas_kt);
    e.speed_nmps = speeds[e.type].slowest_nmps + share * (speeds[e.type].fastest_nmps - speeds[e.type].slowest_nmps);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool conflicting = i > 0 && rng.uniform() < sector.conflict_share;
    bool placed = false;
    for (int attempt = 0; attempt < kTriesPerAircraft && !placed; ++attempt) {
      // The second half of the tries settles for any course, so that a crowded edge does not end the draw.
      const bool aim = conflicting && attempt < kTriesPerAircraft / 2;
      const bool drawn = aim ? try_conflict(sector, radius, out[rng.below(static_cast<std::uint32_t>(i))], rng, out[i])
                             : try_free(radius, rng, out[i]);
      placed = drawn && clear_of(out, i, out[i], apart);
    }
    if (!placed) return draw_evenly(radius, rng, out);
  }
}

}  // namespace slipstream::airspace
