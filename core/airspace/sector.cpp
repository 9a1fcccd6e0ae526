#include "airspace/sector.hpp"

#include <algorithm>
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

void start_at(Entry& e, double radius, double angle) {
  e.east_nm = radius * std::sin(angle);
  e.north_nm = radius * std::cos(angle);
}

// Across, at most 54 degrees from straight through the middle.
bool try_course(double radius, double angle, Rng& rng, Entry& e) {
  const double course = angle + std::numbers::pi + rng.uniform(-0.3, 0.3) * std::numbers::pi;
  return set_course(e, radius, std::sin(course), std::cos(course));
}

bool try_free(double radius, Rng& rng, Entry& e) {
  const double angle = rng.uniform(0.0, two_pi());
  start_at(e, radius, angle);
  return try_course(radius, angle, rng, e);
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

// From where it starts, aims at where `other` will be, give or take the wanted miss distance: t solves
// |from own start to there| = own speed * t.
bool try_intercept(const RandomSectorConfig& sector, double radius, const Entry& other, Rng& rng, Entry& e) {
  const double miss = rng.uniform(0.0, sector.conflict_cpa_nm);
  const double miss_angle = rng.uniform(0.0, two_pi());
  const double vx = other.speed_nmps * std::sin(radians(other.heading_deg));
  const double vy = other.speed_nmps * std::cos(radians(other.heading_deg));
  const double dx = other.east_nm + miss * std::sin(miss_angle) - e.east_nm;
  const double dy = other.north_nm + miss * std::cos(miss_angle) - e.north_nm;
  const double a = e.speed_nmps * e.speed_nmps - vx * vx - vy * vy;
  const double b = dx * vx + dy * vy;
  const double c = dx * dx + dy * dy;
  const double root = b * b + a * c;
  if (root < 0.0) return false;
  // The earlier meeting; written so that equal speeds (a = 0) divide by nothing small.
  const double t = c / (std::sqrt(root) - b);
  if (!(t >= sector.conflict_after_s && t <= sector.conflict_before_s)) return false;
  const double crossing = std::hypot(other.exit_east_nm - other.east_nm, other.exit_north_nm - other.north_nm);
  if (other.speed_nmps * t > crossing - 2.0) return false;  // it would be leaving
  const double reach = e.speed_nmps * t;
  return set_course(e, radius, (dx + vx * t) / reach, (dy + vy * t) / reach) &&
         reach < std::hypot(e.exit_east_nm - e.east_nm, e.exit_north_nm - e.north_nm) - 2.0;
}

bool clear_of(std::span<const Entry> entries, const Entry& e, double distance_nm) {
  return std::none_of(entries.begin(), entries.end(), [&](const Entry& other) {
    return std::hypot(other.east_nm - e.east_nm, other.north_nm - e.north_nm) < distance_nm;
  });
}

// Where the edge is too crowded for starts one by one: in order round it, each gap the least one and a random share of
// the room that is left. Always possible (the config was checked), and all ways to stand so far apart are equally
// likely.
void draw_crowded(const RandomSectorConfig& sector, double radius, double apart_nm, Rng& rng, std::span<Entry> out) {
  const double least = 2.0 * std::asin(std::min(1.0, apart_nm / (2.0 * radius)));
  const double room = std::max(0.0, two_pi() - static_cast<double>(out.size()) * least);
  double shares = 0.0;
  for (Entry& e : out) {
    e.heading_deg = -std::log(1.0 - rng.uniform());  // its share of the room, until it has a heading
    shares += e.heading_deg;
  }
  double angle = rng.uniform(0.0, two_pi());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double gap = least + room * out[i].heading_deg / shares;
    start_at(out[i], radius, angle);
    const bool conflicting = i > 0 && rng.uniform() < sector.conflict_share;
    bool on_course = false;
    for (int attempt = 0; attempt < kTriesPerAircraft && !on_course; ++attempt) {
      const bool aim = conflicting && attempt < kTriesPerAircraft / 2;
      on_course = aim ? try_intercept(sector, radius, out[rng.below(static_cast<std::uint32_t>(i))], rng, out[i])
                      : try_course(radius, angle, rng, out[i]);
    }
    if (!on_course) set_course(out[i], radius, -std::sin(angle), -std::cos(angle));
    angle += gap;
  }
}

}  // namespace

void draw_sector(const AirspaceConfig& config, const std::vector<SpeedRange>& speeds, Rng& rng, std::span<Entry> out) {
  const RandomSectorConfig& sector = *config.random_sector;
  const double radius = config.sector_radius_nm(out.size());
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
      placed = drawn && clear_of(out.first(i), out[i], apart);
    }
    if (!placed) return draw_crowded(sector, radius, apart, rng, out);
  }
}

}  // namespace slipstream::airspace
