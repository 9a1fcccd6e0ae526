// The aircraft of one world and where they are going: what observations, rewards and scripts look at.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "airspace/aircraft.hpp"
#include "airspace/dynamics.hpp"
#include "airspace/geo.hpp"

namespace slipstream::airspace {

struct Waypoint {
  double lat_deg = 0.0;
  double lon_deg = 0.0;
  Vec3 position;
};

inline Waypoint waypoint_at(double lat_deg, double lon_deg) {
  return {lat_deg, lon_deg, unit_vector(lat_deg, lon_deg)};
}

// Everything an aircraft sees is in its own frame: x to the right of the nose, y ahead of it.
struct OwnAxes {
  Vec3 right;
  Vec3 forward;

  [[nodiscard]] Vec2 seen(const Vec3& v) const { return {dot(v, right), dot(v, forward)}; }
};

struct Guidance {
  double distance_nm = 0.0;  // to the waypoint
  Vec2 direction;            // unit vector
  double drift_deg = 0.0;    // bearing minus heading, [-180, 180]
};

// Another aircraft; velocity is over the ground.
struct Relative {
  Vec2 offset_nm;
  Vec2 velocity_nmps;
};

struct Scene {
  explicit Scene(std::size_t count)
      : fleet(count),
        waypoint(count),
        cruise_cas_mps(count),
        type_of(count),
        present(count),
        reached(count),
        position(count),
        velocity_mps(count),
        axes(count),
        guidance(count),
        resolving(count * count) {}

  [[nodiscard]] std::size_t size() const { return fleet.size(); }
  // Whether an aircraft flies in this episode, or did until it reached its waypoint.
  [[nodiscard]] bool in_episode(std::size_t i) const { return present[i] != 0 || reached[i] != 0; }
  [[nodiscard]] const Performance& performance(std::size_t i) const { return *performances[type_of[i]]; }

  // Call after aircraft moved: works out what is derived from the fleet, for those present.
  void refresh();
  [[nodiscard]] Relative relative(std::size_t own, std::size_t other) const;
  [[nodiscard]] Vec2 ground_velocity_mps(std::size_t i) const { return axes[i].seen(velocity_mps[i]); }
  // The wind in aircraft i's own frame, m/s.
  [[nodiscard]] Vec2 wind_mps(std::size_t i) const {
    const SinCos& h = fleet.heading[i];
    return {wind.east_mps * h.cos - wind.north_mps * h.sin, wind.east_mps * h.sin + wind.north_mps * h.cos};
  }
  [[nodiscard]] double distance_nm(std::size_t i, std::size_t j) const {
    const Vec3 d = position[i] - position[j];
    return nm_of_chord2(dot(d, d));
  }
  // Least distance to any aircraft present, NM; infinite when alone.
  [[nodiscard]] double own_separation_nm(std::size_t i) const;
  [[nodiscard]] double least_separation_nm() const;

  template <class Archive>
  void archive(Archive& ar) {
    fleet.archive(ar);
    ar(waypoint, cruise_cas_mps, type_of, present, reached, position, velocity_mps, axes, guidance, resolving);
  }

  // Fixed when the world is built.
  std::vector<std::shared_ptr<const Performance>> performances;  // the types of this scene
  Wind wind;
  Fleet fleet;
  std::vector<Waypoint> waypoint;
  std::vector<double> cruise_cas_mps;  // the speed an aircraft entered with and returns to
  std::vector<std::uint8_t> type_of;   // index into performances
  std::vector<std::uint8_t> present;   // flies and counts for separation
  std::vector<std::uint8_t> reached;   // has been at its waypoint
  // Derived by refresh().
  std::vector<Vec3> position;      // on the unit sphere
  std::vector<Vec3> velocity_mps;  // over the ground
  std::vector<OwnAxes> axes;
  std::vector<Guidance> guidance;
  std::vector<std::uint8_t> resolving;  // [own, other]: conflicts MVP has not yet let go of
};

}  // namespace slipstream::airspace
