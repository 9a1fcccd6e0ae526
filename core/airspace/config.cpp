#include "airspace/config.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <stdexcept>
#include <unordered_set>

#include "airspace/aircraft.hpp"
#include "airspace/geo.hpp"

namespace slipstream::airspace {
namespace {

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

void check_aircraft(const std::vector<AircraftConfig>& list) {
  std::unordered_set<std::string> seen;
  for (const AircraftConfig& a : list) {
    require(seen.insert(a.id).second, "two aircraft are called '", a.id, "'; every aircraft needs an id of its own");
    check_cas("aircraft '" + a.id + "'", a.type, a.cas_kt);
  }
}

void check_sector(const AirspaceConfig& config) {
  const RandomSectorConfig& sector = *config.random_sector;
  const std::string who = "random_sector";
  require(sector.min_cas_kt <= sector.max_cas_kt, who, " has min_cas_kt ", sector.min_cas_kt, " above max_cas_kt ",
          sector.max_cas_kt);
  for (const std::string& type : sector.types) {
    check_cas(who, type, sector.min_cas_kt);
    check_cas(who, type, sector.max_cas_kt);
  }
  require(sector.conflict_before_s >= sector.conflict_after_s, who, " needs conflict_after_s <= conflict_before_s");
  require(sector.min_start_separation_nm >= config.separation_nm, who, " has min_start_separation_nm ",
          sector.min_start_separation_nm, " below separation_nm ", config.separation_nm,
          ", so episodes would start in a conflict");
  require(config.min_aircraft() <= sector.num_aircraft, who, " has min_aircraft ", config.min_aircraft(),
          " above num_aircraft ", sector.num_aircraft);
  for (int n = std::max(2, config.min_aircraft()); n <= sector.num_aircraft; ++n) {
    const double spacing = 2.0 * config.sector_radius_nm(static_cast<std::size_t>(n)) * std::sin(std::numbers::pi / n);
    require(spacing >= kSectorMargin * sector.min_start_separation_nm, who, ": ", n, " aircraft at ",
            sector.density_per_nm2, " per NM^2 stand ", spacing, " NM apart on the edge, less than ", kSectorMargin,
            " times min_start_separation_nm ", sector.min_start_separation_nm, "; lower one of them");
  }
}

}  // namespace

double AirspaceConfig::sector_radius_nm(std::size_t count) const {
  return std::sqrt(static_cast<double>(count) / (std::numbers::pi * random_sector->density_per_nm2));
}

void AirspaceConfig::validate() const {
  check_fields(*this);
  require(num_aircraft() > 0, "the scene has no aircraft; list some under aircraft or set random_sector");
  require(!random_sector || aircraft.empty(), "the scene has both a list of aircraft and a random_sector; choose one");
  require(!random_sector || !legacy(),
          "random_sector draws its traffic, but preset legacy is deterministic; use preset unified");
  require(!legacy_reward() || distance_penalty() == 0.0,
          "distance_penalty_per_nm is no part of the legacy reward; leave it out, or use reward unified");
  require(!shows_time_left() || !legacy_observation(),
          "time_left is no part of the legacy observation; leave it out, or use observation own_frame");
  check_aircraft(aircraft);
  if (random_sector) check_sector(*this);
  require(decision_s >= substep_s && std::abs(decision_s - substeps() * substep_s) < 1e-9, "decision_s ", decision_s,
          " is not a whole number of substeps of ", substep_s, " s");
  require(substeps() <= kMaxSubsteps, "a decision has ", substeps(), " substeps; at most ", kMaxSubsteps,
          " are supported");
}

}  // namespace slipstream::airspace
