#include "airspace/config.hpp"

#include <cmath>
#include <numbers>
#include <sstream>
#include <stdexcept>
#include <unordered_set>

#include "airspace/aircraft.hpp"
#include "airspace/geo.hpp"

namespace slipstream::airspace {
namespace {

// Nearer the poles than this, offsets in degrees of longitude stop meaning anything.
constexpr double kMaxLatitudeDeg = 80.0;

template <class... Parts>
void require(bool fine, const Parts&... parts) {
  if (fine) return;
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::invalid_argument(sentence.str());
}

bool between(double value, double low, double high) { return value >= low && value <= high; }  // false for NaN

void check_cas(const std::string& who, const std::string& type_name, double cas_kt) {
  const AircraftType& type = find_aircraft_type(type_name);
  const double low = std::ceil(type.min_cas_mps / kKnot);
  const double high = std::floor(type.max_cas_mps / kKnot);
  require(between(cas_kt, low, high), who, " flies at cas_kt ", cas_kt, ", but a ", type_name, " flies between ", low,
          " and ", high, " kt");
}

void check_position(const std::string& what, double lat_deg, double lon_deg) {
  require(between(lat_deg, -kMaxLatitudeDeg, kMaxLatitudeDeg), what, " has latitude ", lat_deg, "; it must be within ",
          kMaxLatitudeDeg, " degrees of the equator");
  require(between(lon_deg, -180.0, 180.0), what, " has longitude ", lon_deg,
          "; it must be within -180 and 180 degrees");
}

void check_aircraft(const std::vector<AircraftConfig>& list) {
  std::unordered_set<std::string> seen;
  for (const AircraftConfig& a : list) {
    require(!a.id.empty(), "an aircraft has an empty id; every aircraft needs a name of its own");
    require(seen.insert(a.id).second, "two aircraft are called '", a.id, "'; every aircraft needs an id of its own");
    const std::string who = "aircraft '" + a.id + "'";
    check_position(who, a.lat_deg, a.lon_deg);
    check_position("the waypoint of " + who, a.waypoint_lat_deg, a.waypoint_lon_deg);
    require(std::isfinite(a.heading_deg), who, " has a heading that is not a number");
    check_cas(who, a.type, a.cas_kt);
  }
}

void check_sector(const AirspaceConfig& config) {
  const RandomSectorConfig& sector = config.random_sector;
  const std::string who = "random_sector";
  require(!sector.types.empty(), who, " names no aircraft type");
  require(sector.min_cas_kt <= sector.max_cas_kt, who, " has min_cas_kt ", sector.min_cas_kt, " above max_cas_kt ",
          sector.max_cas_kt);
  for (const std::string& type : sector.types) {
    check_cas(who, type, sector.min_cas_kt);
    check_cas(who, type, sector.max_cas_kt);
  }
  check_position(who, sector.center_lat_deg, sector.center_lon_deg);
  require(sector.density_per_nm2 > 0.0, who, " has density_per_nm2 ", sector.density_per_nm2, "; it must be above 0");
  require(between(sector.conflict_share, 0.0, 1.0), who, " has conflict_share ", sector.conflict_share,
          "; it must be within 0 and 1");
  require(sector.conflict_cpa_nm >= 0.0 && sector.conflict_after_s > 0.0 &&
              sector.conflict_before_s >= sector.conflict_after_s,
          who, " needs conflict_cpa_nm >= 0 and 0 < conflict_after_s <= conflict_before_s");
  require(sector.min_start_separation_nm >= config.separation_nm, who, " has min_start_separation_nm ",
          sector.min_start_separation_nm, " below separation_nm ", config.separation_nm,
          ", so episodes would start in a conflict");
  const double radius = config.sector_radius_nm();
  const double spacing = 2.0 * radius * std::sin(std::numbers::pi / sector.num_aircraft);
  require(sector.num_aircraft == 1 || spacing >= kSectorMargin * sector.min_start_separation_nm, who, ": ",
          sector.num_aircraft, " aircraft at ", sector.density_per_nm2, " per NM^2 stand ", spacing,
          " NM apart on the edge, less than min_start_separation_nm ", sector.min_start_separation_nm,
          "; lower one of them");
}

}  // namespace

double AirspaceConfig::sector_radius_nm() const {
  return std::sqrt(random_sector.num_aircraft / (std::numbers::pi * random_sector.density_per_nm2));
}

void AirspaceConfig::validate() const {
  require(num_aircraft() > 0, "the scene has no aircraft; list some under aircraft or set random_sector");
  require(num_aircraft() <= kMaxAircraft, "the scene has ", num_aircraft(), " aircraft; at most ", kMaxAircraft,
          " are supported");
  require(random_sector.num_aircraft == 0 || aircraft.empty(),
          "the scene has both a list of aircraft and a random_sector; choose one");
  require(random_sector.num_aircraft == 0 || preset != Preset::kLegacy,
          "random_sector draws its traffic, but preset legacy is deterministic; use preset unified");
  check_aircraft(aircraft);
  if (random_sector.num_aircraft > 0) check_sector(*this);
  require(between(altitude_ft, 0.0, 36000.0), "altitude_ft is ", altitude_ft,
          "; the atmosphere here reaches from 0 to 36000 ft");
  require(between(wind_speed_kt, 0.0, 100.0), "wind_speed_kt is ", wind_speed_kt,
          "; it must be within 0 and 100, so that aircraft still fly forward");
  require(std::isfinite(wind_from_deg), "wind_from_deg is not a number");
  for (const double jitter : {position_jitter_nm, heading_jitter_deg, speed_jitter_kt})
    require(jitter >= 0.0 && std::isfinite(jitter), "a jitter range is ", jitter, "; it must be 0 or more");
  require(substep_s > 0.0 && substep_s <= 10.0, "substep_s is ", substep_s, "; it must be above 0 and at most 10");
  require(decision_s >= substep_s && std::abs(decision_s - substeps() * substep_s) < 1e-9, "decision_s ", decision_s,
          " is not a whole number of substeps of ", substep_s, " s");
  require(substeps() <= kMaxSubsteps, "a decision has ", substeps(), " substeps; at most ", kMaxSubsteps,
          " are supported");
  require(max_episode_steps > 0, "max_episode_steps is ", max_episode_steps, "; it must be at least 1");
  require(between(heading_step_deg, 0.0, 180.0), "heading_step_deg is ", heading_step_deg,
          "; it must be within 0 and 180");
  require(speed_step_kt >= 0.0 && heading_deadband_deg >= 0.0 && speed_deadband_kt >= 0.0,
          "speed_step_kt and the dead-bands must be 0 or more");
  require(separation_nm > 0.0, "separation_nm is ", separation_nm, "; it must be above 0");
  require(collision_nm > 0.0, "collision_nm is ", collision_nm, "; it must be above 0");
  require(waypoint_radius_nm > 0.0, "waypoint_radius_nm is ", waypoint_radius_nm, "; it must be above 0");
  require(deep_breach_nm > 0.0, "deep_breach_nm is ", deep_breach_nm, "; it must be above 0");
  require(neighbor_topk >= 0, "neighbor_topk is ", neighbor_topk, "; it must be 0 or more");
}

}  // namespace slipstream::airspace
