#include "racing/config.hpp"

#include <cmath>
#include <stdexcept>

namespace slipstream::racing {
namespace {

void require(bool fine, const std::string& sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}

std::string number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

Box box_at(const Course& course, const Spot& spot, const Vehicle& car) {
  const Point middle = course.track.line.at(spot.s_m);
  const double heading = course.track.line.heading_at(spot.s_m);
  return {{middle.x - spot.lateral_m * std::sin(heading), middle.y + spot.lateral_m * std::cos(heading),
           heading + spot.yaw_rad},
          car.length_m,
          car.width_m};
}

void check_spawns(const RacingConfig& config) {
  const SpawnConfig& spawn = config.spawn;
  const auto check = [&](const std::string& what, const std::vector<Spot>& spots) {
    if (config.course == nullptr) return;
    for (std::size_t i = 0; i < spots.size(); ++i) {
      const Box own = box_at(*config.course, spots[i], vehicle_named(config.cars[i].vehicle));
      require(!config.course->track.map.touches(own), what + ": " + config.cars[i].id + " would start in a wall, at " +
                                                          number(spots[i].s_m) + " m along the centreline and " +
                                                          number(spots[i].lateral_m) + " m beside it");
      for (std::size_t j = 0; j < i; ++j)
        require(!overlap(own, box_at(*config.course, spots[j], vehicle_named(config.cars[j].vehicle))),
                what + ": " + config.cars[j].id + " and " + config.cars[i].id + " would start in the same place");
    }
  };
  if (spawn.kind == SpawnKind::kSets) {
    require(!spawn.sets.empty(), "spawn: there are no spawn sets to choose from");
    for (const SpawnSet& set : spawn.sets) {
      require(set.cars.size() == config.cars.size(), "spawn set " + set.name + " has " +
                                                         std::to_string(set.cars.size()) + " places for " +
                                                         std::to_string(config.cars.size()) + " cars");
      check("spawn set " + set.name, set.cars);
    }
    return;
  }
  if (spawn.kind == SpawnKind::kRandom && config.course != nullptr && !config.course->track.line.closed()) {
    const double length = spawn.gap_m * (config.num_cars() - 1);
    require(length + 1.0 < 0.5 * config.course->track.line.length(), "spawn: the road is too short for all cars");
  }
  if (spawn.kind == SpawnKind::kGrid) {
    std::vector<Spot> grid;
    for (int i = 0; i < config.num_cars(); ++i)
      grid.push_back({spawn.start_m - spawn.gap_m * i, i % 2 == 0 ? spawn.stagger_m : -spawn.stagger_m, 0.0});
    check("spawn grid", grid);
  }
}

}  // namespace

void RacingConfig::validate() const {
  check_fields(*this);
  require(!cars.empty() && num_cars() <= kMaxCars,
          "a race has 1 to " + std::to_string(kMaxCars) + " cars, not " + std::to_string(cars.size()));
  const bool duel = task == Task::kGaplock || task == Task::kConvoyLock;
  require(!duel || num_cars() == 2,
          "task: it is between 2 cars, an attacker and its target, not " + std::to_string(cars.size()));
  require(num_cars() > 1 || task == Task::kTimeTrial, "task: it needs other cars; there is 1");
  require(num_cars() == 1 || task != Task::kTimeTrial,
          "task: a time trial is driven alone; there are " + std::to_string(cars.size()) + " cars");
  require(num_cars() > 1 || !observation.target, "observation.target: there is no other car to observe");
  for (const CarConfig& car : cars) {
    const Vehicle& vehicle = vehicle_named(car.vehicle);
    require(car.speed_min_mps < car.speed_max_mps && car.speed_min_mps >= vehicle.speed_min &&
                car.speed_max_mps <= vehicle.speed_max,
            car.id + ": speeds from " + number(car.speed_min_mps) + " to " + number(car.speed_max_mps) +
                " m/s are not within what a " + car.vehicle + " drives, " + number(vehicle.speed_min) + " to " +
                number(vehicle.speed_max));
  }
  require(!phases.empty(), "a race needs at least one phase");
  for (const Phase& phase : phases) {
    require(phase.speed_from_mps <= phase.speed_to_mps, "phase " + phase.name + ": speeds are drawn from " +
                                                            number(phase.speed_from_mps) + " to " +
                                                            number(phase.speed_to_mps) + " m/s, which is nothing");
    for (const int set : phase.spawns)
      require(set >= 0 && static_cast<std::size_t>(set) < spawn.sets.size(),
              "phase " + phase.name + ": there is no such spawn set");
  }
  require(physics == Mode::kClean || course == nullptr || !course->distance.empty(),
          "compat scans need the map's distances");
  if (course != nullptr) {
    require(course->ideal.speed.size() == course->ideal.line.points().size(), "one speed for every point of the line");
    require(course->track.line.closed() || task != Task::kHeadToHead || laps == 1, "an open road has no laps");
  } else {
    (void)CircuitMaker(circuits);
  }
  check_spawns(*this);
}

}  // namespace slipstream::racing
