#include "bind/racing.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>

#include "bind/bind.hpp"
#include "racing/centerline.hpp"
#include "racing/circuit.hpp"
#include "racing/drive.hpp"
#include "racing/dynamics.hpp"
#include "racing/lidar.hpp"
#include "racing/map.hpp"

namespace slipstream {

namespace {

using namespace racing;  // NOLINT(google-build-using-namespace)

using Doubles1 = In<double, 1>;
using Doubles2 = In<double, 2>;

State state_of(const double* from) { return {from[0], from[1], from[2], from[3], from[4], from[5], from[6]}; }

void check_state(const Doubles1& state) {
  if (state.shape(0) != 7)
    throw std::invalid_argument("a state is [x, y, steer, speed, yaw, yaw rate, slip], not " +
                                std::to_string(state.shape(0)) + " numbers");
}

void check_drive(int repeat, int laps) {
  if (repeat < 1 || laps < 1)
    throw std::invalid_argument("repeat is " + std::to_string(repeat) + ", laps is " + std::to_string(laps) +
                                "; both must be at least 1");
}

void put(const State& s, double* to) {
  const double values[] = {s.x, s.y, s.steer, s.speed, s.yaw, s.yaw_rate, s.slip};
  std::copy(std::begin(values), std::end(values), to);
}

// A new array that owns its memory.
template <class T>
nb::ndarray<nb::numpy, T> array(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(kept->data(), shape, owner);
}

void bind_cars(nb::module_& m) {
  m.def("racing_vehicles", &vehicle_names, "Names of the cars.");
  m.def(
      "racing_vehicle",
      [](const std::string& name) {
        const Vehicle& car = vehicle_named(name);
        return std::array{car.length_m,  car.width_m,   car.steer_max,  car.speed_min,
                          car.speed_max, car.accel_max, car.wheelbase()};
      },
      nb::arg("name"), "Length, width, largest steering angle, least and largest speed, acceleration, wheelbase.");
  m.def(
      "racing_derivative",
      [](Doubles1 state, Doubles1 inputs, const std::string& vehicle, const std::string& mode) {
        check_state(state);
        require(inputs.shape(0) == 2, "inputs are [steering rate, acceleration]");
        std::vector<double> out(7);
        put(derivative(state_of(state.data()), {inputs.data()[0], inputs.data()[1]}, vehicle_named(vehicle),
                       choice_named<Mode>(mode)),
            out.data());
        return array<double>(std::move(out), {7});
      },
      nb::arg("state"), nb::arg("inputs"), nb::arg("vehicle"), nb::arg("mode"), "Time derivative of a state, [7].");
  m.def(
      "racing_simulate",
      [](Doubles1 state, Doubles2 commands, const std::string& vehicle, const std::string& mode) {
        check_state(state);
        if (commands.shape(1) != 2)
          throw std::invalid_argument("commands has rows of " + std::to_string(commands.shape(1)) +
                                      " numbers; they are [steer, speed]");
        const Vehicle& car = vehicle_named(vehicle);
        const Mode how = choice_named<Mode>(mode);
        const std::size_t steps = commands.shape(0);
        std::vector<double> out(steps * 7);
        State now = state_of(state.data());
        Delay delay;
        for (std::size_t k = 0; k < steps; ++k) {
          advance(now, delay, {commands.data()[2 * k], commands.data()[2 * k + 1]}, car, how);
          put(now, out.data() + 7 * k);
        }
        return array<double>(std::move(out), {steps, 7});
      },
      nb::arg("state"), nb::arg("commands"), nb::arg("vehicle"), nb::arg("mode"),
      "The state after each command, [T, 7], at steps of 0.01 s.");
  m.def(
      "racing_overlap",
      [](Doubles2 a, Doubles2 b, double length, double width) {
        require(a.shape(1) == 3 && b.shape(1) == 3 && a.shape(0) == b.shape(0),
                "poses are rows of [x, y, yaw], as many of one as of the other");
        if (!(length > 0.0 && width > 0.0))
          throw std::invalid_argument("length is " + std::to_string(length) + " m, width " + std::to_string(width) +
                                      " m; both must be above 0");
        std::vector<std::uint8_t> out;
        for (std::size_t i = 0; i < a.shape(0); ++i) {
          const double* p = a.data() + 3 * i;
          const double* q = b.data() + 3 * i;
          out.push_back(overlap(Box({p[0], p[1], p[2]}, length, width), Box({q[0], q[1], q[2]}, length, width)) ? 1
                                                                                                                : 0);
        }
        const std::size_t count = out.size();
        return array<std::uint8_t>(std::move(out), {count});
      },
      nb::arg("a"), nb::arg("b"), nb::arg("length"), nb::arg("width"),
      "1 where two cars touch, for each pair of rows.");
}

void bind_map(nb::module_& m) {
  nb::class_<Lidar>(m, "RacingLidar", "A scanner's beams.")
      .def(nb::init<int, double, double>(), nb::arg("beams"), nb::arg("fov"), nb::arg("range"));
  nb::class_<SharedMap>(m, "RacingMap", "A grid of free and occupied cells; row 0 is the lowest.")
      .def(
          "__init__",
          [](SharedMap* self, nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> occupied,
             double resolution, double x, double y, double yaw) {
            std::vector<std::uint8_t> cells(occupied.data(), occupied.data() + occupied.size());
            new (self) SharedMap{GridMap(std::move(cells), static_cast<int>(occupied.shape(0)),
                                         static_cast<int>(occupied.shape(1)), resolution, {x, y, yaw}),
                                 {}};
          },
          nb::arg("occupied"), nb::arg("resolution"), nb::arg("x"), nb::arg("y"), nb::arg("yaw"))
      .def(
          "distance",
          [](SharedMap& self) {
            return array<double>(self.distances(), {static_cast<std::size_t>(self.grid.rows()),
                                                    static_cast<std::size_t>(self.grid.columns())});
          },
          "Metres between the centre of each cell and that of the nearest occupied one.")
      .def(
          "scan",
          [](SharedMap& self, const Lidar& lidar, Doubles1 pose, const std::string& mode, Doubles2 opponents,
             double length, double width) {
            require(pose.shape(0) == 3, "a pose is [x, y, yaw]");
            require(opponents.shape(1) == 3, "opponents are rows of [x, y, yaw]");
            const Pose from{pose.data()[0], pose.data()[1], pose.data()[2]};
            std::vector<float> out(static_cast<std::size_t>(lidar.beams()));
            if (choice_named<Mode>(mode) == Mode::kCompat) {
              lidar.march(self.grid, self.distances(), from, out);
            } else {
              lidar.walls(self.grid, from, out);
            }
            for (std::size_t i = 0; i < opponents.shape(0); ++i) {
              const double* p = opponents.data() + 3 * i;
              lidar.occlude(Box({p[0], p[1], p[2]}, length, width), from, out);
            }
            const std::size_t count = out.size();
            return array<float>(std::move(out), {count});
          },
          nb::arg("lidar"), nb::arg("pose"), nb::arg("mode"), nb::arg("opponents"), nb::arg("length"), nb::arg("width"),
          "Metres along each beam, the rightmost first.")
      .def(
          "touches",
          [](const SharedMap& self, Doubles2 poses, double length, double width) {
            require(poses.shape(1) == 3, "poses are rows of [x, y, yaw]");
            std::vector<std::uint8_t> out;
            for (std::size_t i = 0; i < poses.shape(0); ++i) {
              const double* p = poses.data() + 3 * i;
              out.push_back(self.grid.touches(Box({p[0], p[1], p[2]}, length, width)) ? 1 : 0);
            }
            const std::size_t count = out.size();
            return array<std::uint8_t>(std::move(out), {count});
          },
          nb::arg("poses"), nb::arg("length"), nb::arg("width"), "1 where a car touches a wall or leaves the grid.");
}

void bind_centerline(nb::module_& m) {
  nb::class_<Centerline>(m, "RacingCenterline", "The line a track is measured along.")
      .def(
          "__init__",
          [](Centerline* self, Doubles2 points, bool closed) {
            require(points.shape(1) == 2, "points are rows of [x, y]");
            std::vector<Point> all;
            for (std::size_t i = 0; i < points.shape(0); ++i)
              all.push_back({points.data()[2 * i], points.data()[2 * i + 1]});
            new (self) Centerline(std::move(all), closed);
          },
          nb::arg("points"), nb::arg("closed"))
      .def_prop_ro("length", &Centerline::length)
      .def_prop_ro("closed", &Centerline::closed)
      .def(
          "project",
          [](const Centerline& self, Doubles2 points) {
            require(points.shape(1) == 2, "points are rows of [x, y]");
            const std::size_t count = points.shape(0);
            std::vector<double> out;
            for (std::size_t i = 0; i < count; ++i) {
              const Progress progress = self.project(points.data()[2 * i], points.data()[2 * i + 1]);
              out.insert(out.end(), {progress.s, progress.lateral, progress.heading});
            }
            return array<double>(std::move(out), {count, 3});
          },
          nb::arg("points"), "Rows of [metres along, metres beside (left positive), heading of the line].")
      .def(
          "at",
          [](const Centerline& self, Doubles1 s) {
            const std::size_t count = s.shape(0);
            std::vector<double> out;
            for (std::size_t i = 0; i < count; ++i) {
              const Point point = self.at(s.data()[i]);
              out.insert(out.end(), {point.x, point.y});
            }
            return array<double>(std::move(out), {count, 2});
          },
          nb::arg("s"), "Points [x, y] this far along.");
}

// Grid, resolution, origin, centreline, and whether that is closed.
using Parts = std::tuple<nb::ndarray<nb::numpy, std::uint8_t>, double, std::array<double, 3>,
                         nb::ndarray<nb::numpy, double>, bool>;

Parts parts_of(const Track& track) {
  const GridMap& map = track.map;
  std::vector<double> points;
  for (const Point& point : track.line.points()) points.insert(points.end(), {point.x, point.y});
  const std::size_t count = track.line.points().size();
  return {array<std::uint8_t>(map.occupied(),
                              {static_cast<std::size_t>(map.rows()), static_cast<std::size_t>(map.columns())}),
          map.resolution(),
          {map.origin().x, map.origin().y, map.origin().yaw},
          array<double>(std::move(points), {count, 2}),
          track.line.closed()};
}

void bind_tracks(nb::module_& m) {
  m.def(
      "racing_corridor",
      [](double length, double width, double resolution) { return parts_of(corridor(length, width, resolution)); },
      nb::arg("length"), nb::arg("width"), nb::arg("resolution"));
  m.def(
      "racing_oval",
      [](double straight, double radius, double width, double resolution) {
        return parts_of(oval(straight, radius, width, resolution));
      },
      nb::arg("straight"), nb::arg("radius"), nb::arg("width"), nb::arg("resolution"));
  m.def(
      "racing_circuit",
      [](std::uint64_t seed, const CircuitConfig& config) {
        Rng rng(seed, Domain::kWorld, 0, 0);
        return parts_of(circuit(config, rng));
      },
      nb::arg("seed"), nb::arg("config"));
}

// Path [T, 7], seconds of each lap, whether it crashed, metres along.
using Driven = std::tuple<nb::ndarray<nb::numpy, double>, std::vector<double>, bool, double>;

Driven driven(const Drive& drive) {
  std::vector<double> path(drive.path.size() * 7);
  for (std::size_t i = 0; i < drive.path.size(); ++i) put(drive.path[i], path.data() + 7 * i);
  return {array<double>(std::move(path), {drive.path.size(), 7}), drive.lap_s, drive.crashed, drive.progress_m};
}

void bind_drivers(nb::module_& m) {
  m.def(
      "racing_follow_gap",
      [](const SharedMap& map, const Centerline& line, Doubles1 start, const std::string& vehicle,
         const std::string& mode, int repeat, int laps, double limit_s, int beams, double fov, double range,
         const FollowGap& driver) {
        check_state(start);
        check_drive(repeat, laps);
        const Vehicle& car = vehicle_named(vehicle);
        const Lidar lidar(beams, fov, range);
        std::vector<float> scan(static_cast<std::size_t>(beams));
        std::vector<float> scratch(scan.size());
        double steer = 0.0;
        return driven(drive(map.grid, line, state_of(start.data()),
                            [&](const State& state) {
                              lidar.walls(map.grid, {state.x, state.y, state.yaw}, scan);
                              const Command command = driver.drive(scan, fov, steer, car, scratch);
                              steer = command.steer;
                              return command;
                            },
                            {&car, choice_named<Mode>(mode), repeat, laps, limit_s}));
      },
      nb::arg("map"), nb::arg("line"), nb::arg("start"), nb::arg("vehicle"), nb::arg("mode"), nb::arg("repeat"),
      nb::arg("laps"), nb::arg("limit_s"), nb::arg("beams"), nb::arg("fov"), nb::arg("range"), nb::arg("driver"));
  m.def(
      "racing_pure_pursuit",
      [](const SharedMap& map, const Centerline& line, Doubles1 start, const std::string& vehicle,
         const std::string& mode, int repeat, int laps, double limit_s, const Centerline& along, Doubles1 speed,
         const PurePursuit& driver) {
        check_state(start);
        check_drive(repeat, laps);
        require(speed.shape(0) == along.points().size(), "one speed for every point of the line");
        const Vehicle& car = vehicle_named(vehicle);
        const SpeedLine goal{along, {speed.data(), speed.data() + speed.shape(0)}};
        return driven(drive(
            map.grid, line, state_of(start.data()),
            [&](const State& state) { return driver.drive(state, goal, goal.line.project(state.x, state.y), car); },
            {&car, choice_named<Mode>(mode), repeat, laps, limit_s}));
      },
      nb::arg("map"), nb::arg("line"), nb::arg("start"), nb::arg("vehicle"), nb::arg("mode"), nb::arg("repeat"),
      nb::arg("laps"), nb::arg("limit_s"), nb::arg("along"), nb::arg("speed"), nb::arg("driver"));
  m.def(
      "racing_speeds",
      [](const Centerline& line, double speed_max, double lateral_max, double accel_max) {
        SpeedLine along{line, {}};
        set_speeds(along, {speed_max, lateral_max, accel_max});
        const std::size_t count = along.speed.size();
        return array<double>(std::move(along.speed), {count});
      },
      nb::arg("line"), nb::arg("speed_max"), nb::arg("lateral_max"), nb::arg("accel_max"),
      "How fast each point of a line can be driven.");
}

}  // namespace

void bind_racing(nb::module_& m) {
  bind_racing_world(m);
  bind_cars(m);
  bind_map(m);
  bind_centerline(m);
  bind_tracks(m);
  bind_drivers(m);
}

}  // namespace slipstream
