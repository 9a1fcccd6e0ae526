// Airspace dynamics and world, checked against slow and obvious sums.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <vector>

#include "airspace/aircraft.hpp"
#include "airspace/dynamics.hpp"
#include "airspace/geo.hpp"
#include "airspace/sector.hpp"
#include "airspace/separation.hpp"
#include "airspace/world.hpp"
#include "check.hpp"
#include "slipstream/vec_env.hpp"

using namespace slipstream;
using namespace slipstream::airspace;

namespace {

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance; }

// One second of the three steps as the reference states them: a sine or cosine wherever one is written.
struct SlowAircraft {
  double lat, lon, heading, tas;

  void step(const Performance& p, double target_heading, double target_tas, double wind_east, double wind_north) {
    const Atmosphere& air = p.atmosphere();
    const auto& points = p.type().acceleration;
    const double cas_kt = air.cas_of_tas(tas) / kKnot;
    double ax = points.back().mps2;
    if (cas_kt <= points.front().cas_kt) ax = points.front().mps2;
    for (std::size_t i = 1; i < points.size(); ++i) {
      if (cas_kt < points[i - 1].cas_kt || cas_kt > points[i].cas_kt) continue;
      const double share = (cas_kt - points[i - 1].cas_kt) / (points[i].cas_kt - points[i - 1].cas_kt);
      ax = (1.0 - share) * points[i - 1].mps2 + share * points[i].mps2;
    }
    const double missing = target_tas - tas;
    tas = std::abs(missing) > ax ? tas + std::copysign(ax, missing) : target_tas;
    const double rate = degrees(kGravity * std::tan(radians(25.0)) / tas);
    double turn = std::fmod(target_heading - heading + 540.0, 360.0) - 180.0;
    if (std::abs(turn) > rate) turn = std::copysign(rate, turn);
    heading = std::fmod(heading + turn + 360.0, 360.0);
    lat += degrees((tas * std::cos(radians(heading)) + wind_north) / kEarthRadiusM);
    lon += degrees((tas * std::sin(radians(heading)) + wind_east) / (kEarthRadiusM * std::cos(radians(lat))));
  }
};

void flight_follows_the_three_steps() {
  for (const char* type : {"A320", "B744", "CRJ9"}) {
    const Performance performance(find_aircraft_type(type), 10000.0);
    const Atmosphere& air = performance.atmosphere();
    const Wind wind = wind_from(30.0, 250.0);
    Fleet fleet(1);
    fleet.place(0, 52.0, 4.0, 359.0, 250.0 * kKnot, air);
    SlowAircraft slow{52.0, 4.0, 359.0, fleet.tas_mps[0]};
    Rng rng(7, Domain::kWorld, 0, 0);
    for (int decision = 0; decision < 60; ++decision) {
      const double cas = performance.limit_cas(rng.uniform(120.0, 360.0) * kKnot);
      fleet.target_heading_deg[0] = wrap_360(fleet.heading_deg[0] + rng.uniform(-40.0, 40.0));
      fleet.aim_speed(0, cas, air);
      Vec3 last;
      int visited = 0;
      fly(fleet, 0, performance, wind, 1.0, 10, [&](int, const Vec3& p) {
        last = p;
        ++visited;
        return true;
      });
      CHECK(visited == 10);
      for (int s = 0; s < 10; ++s)
        slow.step(performance, fleet.target_heading_deg[0], fleet.target_tas_mps[0], wind.east_mps, wind.north_mps);
      const Vec3 expected = unit_vector(slow.lat, slow.lon);
      CHECK(near(fleet.lat_deg[0], slow.lat, 1e-6));
      CHECK(near(fleet.lon_deg[0], slow.lon, 1e-6));
      CHECK(near(wrap_180(fleet.heading_deg[0] - slow.heading), 0.0, 1e-4));
      CHECK(near(fleet.tas_mps[0], slow.tas, 1e-3));
      // The sines and cosines carried along are still those of the angles they belong to.
      const Vec3 own = unit_vector(fleet.lat_deg[0], fleet.lon_deg[0]);
      CHECK(near(last.x, own.x, 1e-13) && near(last.y, own.y, 1e-13) && near(last.z, own.z, 1e-13));
      CHECK(near(fleet.heading[0].sin, std::sin(radians(fleet.heading_deg[0])), 1e-13));
      CHECK(near(expected.x, own.x, 1e-7));
    }
  }
}

void long_substeps_turn_right_too() {
  const Performance performance(find_aircraft_type("A320"), 10000.0);
  Fleet fleet(1);
  fleet.place(0, 52.0, 4.0, 0.0, 250.0 * kKnot, performance.atmosphere());
  fleet.target_heading_deg[0] = 90.0;
  fly(fleet, 0, performance, {}, 5.0, 1, [](int, const Vec3&) { return true; });
  const double rate = degrees(kGravity * std::tan(radians(25.0)) / fleet.tas_mps[0]);
  CHECK(near(fleet.heading_deg[0], 5.0 * rate, 1e-9));
  CHECK(near(fleet.heading[0].sin, std::sin(radians(5.0 * rate)), 1e-14));
}

void small_angles_are_exact() {
  for (double x = -0.35; x <= 0.35; x += 0.007) {
    CHECK(near(sin_cos_small(x).sin, std::sin(x), 3e-16));
    CHECK(near(sin_cos_small(x).cos, std::cos(x), 3e-16));
  }
  for (double x = -1e-3; x <= 1e-3; x += 1e-5) {
    CHECK(near(sin_cos_tiny(x).sin, std::sin(x), 1e-17));
    CHECK(near(sin_cos_tiny(x).cos, std::cos(x), 2e-16));
  }
}

void angles_wrap() {
  CHECK(wrap_360(-1e-20) == 0.0);
  CHECK(wrap_360(720.5) == 0.5);
  CHECK(wrap_360(-90.0) == 270.0);
  CHECK(wrap_180(180.0) == -180.0);
  CHECK(wrap_180(-190.0) == 170.0);
}

void speeds_convert_there_and_back() {
  for (const double altitude_ft : {0.0, 10000.0, 35000.0}) {
    const Atmosphere air(altitude_ft);
    for (double cas = 60.0; cas < 180.0; cas += 7.0) CHECK(near(air.cas_of_tas(air.tas_of_cas(cas)), cas, 1e-9));
  }
  CHECK(near(Atmosphere(0.0).tas_of_cas(130.0), 130.0, 1e-2));                         // sea level: the same
  CHECK(near(Atmosphere(10000.0).tas_of_cas(250.0 * kKnot) / kKnot, 288.7118, 1e-4));  // the published figure
}

void chords_measure_great_circles() {
  for (const double nm : {0.01, 0.5, 5.0, 36.0, 300.0, 2000.0}) CHECK(near(nm_of_chord2(chord2_of_nm(nm)), nm, 1e-9));
  const Vec3 d = unit_vector(52.0, 4.0) - unit_vector(51.3, 5.1);
  CHECK(near(nm_of_chord2(dot(d, d)), haversine_nm(52.0, 4.0, 51.3, 5.1), 1e-9));
}

AirspaceConfig head_on() {
  AirspaceConfig config;
  config.aircraft.resize(2);
  config.aircraft[0] = {"A1", "aircraft", "A320", 51.7, 4.0, 0.0, 250.0, 52.3, 4.0};
  config.aircraft[1] = {"A2", "aircraft", "A320", 52.3, 4.0, 180.0, 250.0, 51.7, 4.0};
  return config;
}

void separation_counts_each_pair_once() {
  // Two aircraft pass each other in 20 substeps of 1 NM, at 2 NM across.
  const int substeps = 20;
  Tracks tracks(2, substeps);
  for (int s = 0; s <= substeps; ++s) {
    const auto at = static_cast<std::size_t>(s);
    tracks.put(0, at, unit_vector(0.0, 0.0));
    tracks.put(1, at, unit_vector((s - 10) / 60.0, 2.0 / 60.0));
  }
  tracks.stay = {20, 20};
  Separation separation(2, substeps, 5.0, 3.0, 1.0);
  separation.reset({unit_vector(0.0, 0.0), unit_vector(-10.0 / 60.0, 2.0 / 60.0)}, {1, 1});
  separation.update(tracks);
  const SeparationFigures& figures = separation.figures();
  CHECK(figures.conflicts == 1.0);
  CHECK(figures.lost_substeps == 9.0);  // |s - 10| <= 4: sqrt(16 + 4) < 5, sqrt(25 + 4) > 5
  CHECK(figures.collisions == 1.0);
  CHECK(figures.nmac == 0.0);
  CHECK(near(nm_of_chord2(figures.least_chord2), 2.0, 2e-3));
  // One that has left is not counted.
  separation.reset({unit_vector(0.0, 0.0), unit_vector(-10.0 / 60.0, 2.0 / 60.0)}, {1, 1});
  tracks.stay = {20, 3};
  separation.update(tracks);
  CHECK(figures.conflicts == 0.0);
  CHECK(std::isinf(separation.own_chord2(0)[4]));
  // Nor is one that is not in the episode.
  separation.reset({unit_vector(0.0, 0.0), unit_vector(0.0, 0.0)}, {1, 0});
  CHECK(std::isinf(figures.least_chord2));
}

void nonsense_is_refused() {
  const auto refused = [](auto change) {
    AirspaceConfig config = head_on();
    change(config);
    CHECK_THROWS(AirspaceWorld(config), std::invalid_argument);
  };
  refused([](auto& c) { c.aircraft.clear(); });
  refused([](auto& c) { c.aircraft[1].id = "A1"; });
  refused([](auto& c) { c.aircraft[0].type = "A330"; });
  refused([](auto& c) { c.aircraft[0].lat_deg = 91.0; });
  refused([](auto& c) { c.aircraft[0].cas_kt = 400.0; });
  refused([](auto& c) { c.aircraft[0].cas_kt = std::nan(""); });
  refused([](auto& c) { c.separation_nm = 0.0; });
  refused([](auto& c) { c.position_jitter_nm = -1.0; });
  refused([](auto& c) { c.decision_s = 2.5; });
  refused([](auto& c) { c.random_sector.emplace().num_aircraft = 4; });
  refused([](auto& c) {
    c.aircraft.clear();
    c.random_sector.emplace().num_aircraft = 32;
    c.random_sector->density_per_nm2 = 0.1;
  });
  refused([](auto& c) {
    c.aircraft.clear();
    c.random_sector.emplace().num_aircraft = 4;
    c.random_sector->min_aircraft = 5;
  });
}

// Starts and exits on the edge, starts apart, courses that cross; `met` counts those drawn to meet an earlier one.
void draw_many(int aircraft, int episodes, double least_met) {
  AirspaceConfig config;
  config.random_sector.emplace().num_aircraft = aircraft;
  config.random_sector->conflict_share = 1.0;
  config.random_sector->types = {"A320", "CRJ9"};
  config.validate();
  const std::vector<SpeedRange> speeds{{0.074, 0.086}, {0.074, 0.086}};
  std::vector<Entry> entries(static_cast<std::size_t>(aircraft));
  const double radius = config.sector_radius_nm(entries.size());
  int met = 0;
  int through_the_middle = 0;
  for (int episode = 0; episode < episodes; ++episode) {
    Rng rng(3, Domain::kWorld, 0, static_cast<std::uint32_t>(episode));
    draw_sector(config, speeds, rng, entries);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const Entry& e = entries[i];
      CHECK(near(std::hypot(e.east_nm, e.north_nm), radius, 1e-6));
      CHECK(near(std::hypot(e.exit_east_nm, e.exit_north_nm), radius, 1e-6));
      CHECK(
          near(wrap_180(e.heading_deg - degrees(std::atan2(e.exit_east_nm - e.east_nm, e.exit_north_nm - e.north_nm))),
               0.0, 1e-6));
      through_the_middle += std::hypot(e.exit_east_nm + e.east_nm, e.exit_north_nm + e.north_nm) < 1e-6;
      bool meets = false;
      for (std::size_t j = 0; j < i; ++j) {
        const Entry& o = entries[j];
        const Vec2 r{o.east_nm - e.east_nm, o.north_nm - e.north_nm};
        const Vec2 v{velocity_east(o.heading_deg, o.speed_nmps) - velocity_east(e.heading_deg, e.speed_nmps),
                     velocity_north(o.heading_deg, o.speed_nmps) - velocity_north(e.heading_deg, e.speed_nmps)};
        CHECK(norm(r) >= config.random_sector->min_start_separation_nm);
        meets |= closest_approach(r, v, 0.0, 400.0).distance <= config.random_sector->conflict_cpa_nm + 1e-9;
      }
      met += meets;
    }
  }
  CHECK(met > least_met * episodes * (aircraft - 1));  // the rest found no room within the bounded tries
  CHECK(through_the_middle < 0.01 * episodes * aircraft);
}

void sector_keeps_its_promises() {
  draw_many(2, 200, 0.95);
  draw_many(12, 200, 0.95);
  draw_many(24, 50, 0.8);
  draw_many(40, 50, 0.6);  // too crowded for starts one by one
}

void steps_are_finite_for_any_action() {
  AirspaceConfig config;
  config.random_sector.emplace().num_aircraft = 32;
  config.random_sector->density_per_nm2 = 0.002;
  config.max_episode_steps = 40;
  VecEnv env(std::make_unique<WorldsOf<AirspaceWorld>>(config, 3), VecEnvOptions{});
  env.reset({});
  Rng rng(1, Domain::kWorld, 0, 0);
  auto& action = env.buffers().action;
  for (int k = 0; k < 100; ++k) {
    for (float& a : action) a = static_cast<float>(rng.uniform(-2.0, 2.0));
    action[0] = std::numeric_limits<float>::quiet_NaN();
    action[1] = std::numeric_limits<float>::infinity();
    env.step({});
    const auto* obs = reinterpret_cast<const float*>(env.buffers().obs[0].data());
    for (std::size_t i = 0; i < env.buffers().obs[0].size() / sizeof(float); ++i)
      CHECK(std::isfinite(obs[i]) && std::abs(obs[i]) <= 3.0F);
    for (const float reward : env.buffers().rewards) CHECK(std::isfinite(reward));
    for (const float value : env.buffers().state) CHECK(std::isfinite(value));
  }
}

void a_restored_world_flies_on_alike() {
  AirspaceConfig config = head_on();
  config.position_jitter_nm = 1.0;
  const auto run = [&](VecEnv& env, int steps) {
    for (int k = 0; k < steps; ++k) {
      env.act_scripted(1, std::vector<int>{0, 1});  // mvp: its memory must come along
      env.step({});
    }
    return env.snapshot();
  };
  VecEnv first(std::make_unique<WorldsOf<AirspaceWorld>>(config, 4), VecEnvOptions{});
  first.reset({});
  const auto middle = run(first, 23);
  VecEnv second(std::make_unique<WorldsOf<AirspaceWorld>>(config, 4), VecEnvOptions{});
  second.restore(middle);
  CHECK(run(first, 60) == run(second, 60));
}

}  // namespace

static_assert(World<AirspaceWorld>);

int main() {
  flight_follows_the_three_steps();
  long_substeps_turn_right_too();
  small_angles_are_exact();
  angles_wrap();
  speeds_convert_there_and_back();
  chords_measure_great_circles();
  separation_counts_each_pair_once();
  nonsense_is_refused();
  sector_keeps_its_promises();
  steps_are_finite_for_any_action();
  a_restored_world_flies_on_alike();
  return test::finish();
}
