// Cars, walls and scanners, by hand; against recorded numbers and brute force in tests/worlds/racing.
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "racing/centerline.hpp"
#include "racing/circuit.hpp"
#include "racing/dynamics.hpp"
#include "racing/lidar.hpp"
#include "racing/map.hpp"
#include "slipstream/ziggurat.hpp"

using namespace slipstream;
using namespace slipstream::racing;

namespace {

// 10 x 8 cells of 0.5 m, free but for one cell at row 2, column 6.
GridMap room() {
  std::vector<std::uint8_t> cells(80);
  cells[2 * 10 + 6] = 1;
  return GridMap(cells, 8, 10, 0.5, {});
}

template <class Call>
bool throws(Call&& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void a_car_at_rest_stays_at_rest() {
  for (const Mode mode : {Mode::kClean, Mode::kCompat}) {
    State state;
    Delay delay;
    for (int i = 0; i < 100; ++i) advance(state, delay, {}, vehicle_named("f1tenth"), mode);
    CHECK(state.x == 0.0 && state.y == 0.0 && state.speed == 0.0 && state.yaw == 0.0);
  }
}

void steering_in_compat_comes_two_steps_late() {
  State state;
  Delay delay;
  const Vehicle& car = vehicle_named("f1tenth");
  for (int i = 0; i < 2; ++i) {
    advance(state, delay, {0.2, 0.0}, car, Mode::kCompat);
    CHECK(state.steer == 0.0);
  }
  advance(state, delay, {0.2, 0.0}, car, Mode::kCompat);
  CHECK(std::abs(state.steer - 0.032) < 1e-12);
}

void rays_meet_the_first_wall() {
  const GridMap map = room();
  CHECK(std::abs(map.ray(1.0, 1.25, 1.0, 0.0, 30.0) - 2.0) < 1e-12);   // the cell: x from 3.0
  CHECK(std::abs(map.ray(1.0, 0.75, 1.0, 0.0, 30.0) - 4.0) < 1e-12);   // the end of the grid
  CHECK(std::abs(map.ray(1.0, 1.25, -1.0, 0.0, 30.0) - 1.0) < 1e-12);  // the other end
  CHECK(std::abs(map.ray(3.25, 3.5, 0.0, -1.0, 30.0) - 2.0) < 1e-12);  // down onto the cell
  CHECK(map.ray(1.0, 0.75, 1.0, 0.0, 2.5) == 2.5);                     // no farther than the range
  CHECK(map.ray(3.25, 1.25, 1.0, 0.0, 30.0) == 0.0);                   // from within a wall
  CHECK(map.ray(-1.0, 1.0, 1.0, 0.0, 30.0) == 0.0);                    // from outside
  const double slant = std::numbers::sqrt2 / 2.0;
  CHECK(std::abs(map.ray(1.8, 0.1, slant, slant, 30.0) - 1.2 / slant) < 1e-6);  // x 3.0, y 1.3
}

void free_squares_hold_what_they_promise() {
  const GridMap map = room();
  for (int r = 0; r < map.rows(); ++r)
    for (int c = 0; c < map.columns(); ++c) {
      const int free = map.king_distance(r, c);
      for (int i = r - free + 1; i < r + free; ++i)
        for (int j = c - free + 1; j < c + free; ++j) {
          CHECK(i >= 0 && i < map.rows() && j >= 0 && j < map.columns());
          CHECK(map.king_distance(i, j) > 0);
        }
    }
  CHECK(map.king_distance(2, 6) == 0 && map.king_distance(2, 7) == 1 && map.king_distance(4, 4) == 2);
}

void rectangles_touch_walls_exactly() {
  const GridMap map = room();
  const auto touches = [&](double x, double y, double yaw) { return map.touches(Box({x, y, yaw}, 0.6, 0.3)); };
  CHECK(!touches(2.69, 1.25, 0.0) && touches(2.71, 1.25, 0.0));  // its nose at 3.0
  const double quarter = 0.5 * std::numbers::pi;
  CHECK(!touches(2.84, 1.25, quarter) && touches(2.86, 1.25, quarter));
  CHECK(!touches(0.31, 2.0, 0.0) && touches(0.29, 2.0, 0.0));  // leaving the grid
  CHECK(touches(9.0, 1.0, 0.0));
}

void a_scan_sees_cars_where_they_are() {
  const GridMap map = room();
  const Lidar lidar(5, std::numbers::pi, 30.0);  // right, half right, ahead, half left, left
  std::array<float, 5> out{};
  const Pose pose{1.0, 2.0, 0.0};
  lidar.walls(map, pose, out);
  CHECK(std::abs(out[0] - 2.0F) < 1e-6F && std::abs(out[2] - 4.0F) < 1e-6F && std::abs(out[4] - 2.0F) < 1e-6F);
  const std::array<float, 5> free = out;
  lidar.occlude(Box({0.5, 2.0, 0.0}, 0.6, 0.3), pose, out);  // behind
  CHECK(out == free);
  lidar.occlude(Box({2.0, 2.0, 0.0}, 0.6, 0.3), pose, out);
  CHECK(std::abs(out[2] - 0.7F) < 1e-6F && out[1] == free[1] && out[3] == free[3]);
  lidar.occlude(Box({1.0, 1.5, 0.0}, 0.6, 0.3), pose, out);
  CHECK(std::abs(out[0] - 0.35F) < 1e-6F && out[1] == free[1]);
}

void a_line_knows_where_it_is() {
  const Centerline square({{0, 0}, {4, 0}, {4, 4}, {0, 4}}, true);
  CHECK(square.length() == 16.0);
  const Progress inside = square.project(3.0, 1.0);  // as near to the right side
  CHECK(inside.lateral == 1.0 && (inside.s == 3.0 || inside.s == 5.0));
  const Progress outside = square.project(-1.0, 3.0);
  CHECK(outside.s == 13.0 && outside.lateral == -1.0 && std::abs(outside.heading + 0.5 * std::numbers::pi) < 1e-12);
  CHECK(square.at(17.0).x == 1.0 && square.at(-1.0).y == 1.0);
  const Centerline straight({{0, 0}, {3, 0}}, false);
  CHECK(straight.length() == 3.0 && straight.project(9.0, 1.0).s == 3.0 && straight.at(9.0).x == 3.0);
}

void following_a_line_keeps_to_its_part_of_it() {
  // There and back again, half a metre apart.
  const Centerline hairpin({{0, 0}, {2, 0}, {4, 0}, {6, 0}, {6, 0.5}, {4, 0.5}, {2, 0.5}, {0, 0.5}}, false);
  Progress at = hairpin.project(1.0, 0.1);
  CHECK(std::abs(at.s - 1.0) < 1e-12);
  at = hairpin.project_near(1.5, 0.3, at, 1.0);  // nearer the way back, which is 9 m on
  CHECK(std::abs(at.s - 1.5) < 1e-12 && std::abs(at.lateral - 0.3) < 1e-12);
  CHECK(hairpin.project(1.5, 0.3).s > 10.0);
}

void rays_asked_for_together_are_the_same_as_alone() {
  Rng rng(3, Domain::kWorld, 0, 0);
  const Track track = circuit({}, rng);
  const Point from = track.line.at(3.0);
  std::vector<double> dx;
  std::vector<double> dy;
  for (int i = 0; i < 100; ++i) {
    dx.push_back(std::cos(0.0628 * i));
    dy.push_back(std::sin(0.0628 * i));
  }
  for (const std::size_t count : {1UL, 7UL, 8UL, 9UL, 100UL}) {
    std::vector<float> out(count);
    track.map.rays(from.x, from.y, {dx.data(), count}, {dy.data(), count}, 10.0, out);
    for (std::size_t i = 0; i < count; ++i)
      CHECK(out[i] == static_cast<float>(track.map.ray(from.x, from.y, dx[i], dy[i], 10.0)));
  }
}

void a_circuit_drawn_into_used_memory_is_the_same() {
  CircuitMaker maker({});
  Track used = maker.blank();
  Rng other(9, Domain::kWorld, 0, 0);
  maker.draw(other, used);
  Rng a(4, Domain::kWorld, 0, 0);
  Rng b(4, Domain::kWorld, 0, 0);
  maker.draw(a, used);
  const Track fresh = circuit({}, b);
  CHECK(used.map.occupied() == fresh.map.occupied());
  CHECK(used.line.length() == fresh.line.length() && used.map.origin().x == fresh.map.origin().x);
  for (int r = 0; r < fresh.map.rows(); ++r)
    for (int c = 0; c < fresh.map.columns(); ++c) CHECK(used.map.king_distance(r, c) == fresh.map.king_distance(r, c));
}

void quick_normal_numbers_have_the_moments_of_normal_ones() {
  Rng rng(1, Domain::kWorld, 0, 0);
  double sum = 0.0;
  double squares = 0.0;
  double fourth = 0.0;
  int beyond = 0;
  constexpr int kCount = 1000000;
  for (int i = 0; i < kCount; ++i) {
    const double x = Ziggurat::shared().draw(rng);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    beyond += std::abs(x) > 3.5 ? 1 : 0;  // in the tail's own branch
  }
  CHECK(std::abs(sum / kCount) < 0.004 && std::abs(squares / kCount - 1.0) < 0.006);
  CHECK(std::abs(fourth / kCount - 3.0) < 0.05);
  CHECK(beyond > 350 && beyond < 590);  // 465 are expected
}

void streams_for_other_purposes_are_other_streams() {
  const Rng rng(1, Domain::kWorld, 2, 3);
  Rng plain = rng;
  Rng one = rng.fork(1);
  Rng two = rng.fork(2);
  Rng later = rng.fork(1);
  later.skip_to(1);
  const std::uint32_t first = one.next_u32();
  CHECK(first != plain.next_u32() && first != two.next_u32() && first != later.next_u32());
  Rng again = rng.fork(1);
  CHECK(again.next_u32() == first);
}

void what_makes_no_sense_is_refused() {
  CHECK(throws([] { (void)vehicle_named("bus"); }));
  CHECK(throws([] { GridMap({1, 1}, 1, 2, 0.5, {}); }));
  CHECK(throws([] { GridMap({0, 0}, 1, 2, 0.0, {}); }));
  CHECK(throws([] { GridMap({0, 0}, 2, 2, 0.5, {}); }));
  CHECK(throws([] { Lidar(0, 1.0, 30.0); }));
  CHECK(throws([] { Centerline({{0, 0}, {0, 0}, {1, 1}}, true); }));
}

}  // namespace

int main() {
  a_car_at_rest_stays_at_rest();
  steering_in_compat_comes_two_steps_late();
  rays_meet_the_first_wall();
  free_squares_hold_what_they_promise();
  rectangles_touch_walls_exactly();
  a_scan_sees_cars_where_they_are();
  a_line_knows_where_it_is();
  following_a_line_keeps_to_its_part_of_it();
  rays_asked_for_together_are_the_same_as_alone();
  a_circuit_drawn_into_used_memory_is_the_same();
  quick_normal_numbers_have_the_moments_of_normal_ones();
  streams_for_other_purposes_are_other_streams();
  what_makes_no_sense_is_refused();
  return test::finish();
}
