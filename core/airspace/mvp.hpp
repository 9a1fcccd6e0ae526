// Scripted policies that act through the ordinary action: straight to the waypoint, and the Modified Voltage Potential
// (MVP) resolution that BlueSky ships, the classical bar a learned policy is measured against.
#pragma once

#include "airspace/config.hpp"
#include "airspace/scene.hpp"

namespace slipstream::airspace {

// Normalised heading and speed change, each within [-1, 1].
struct Action {
  float heading = 0.0F;
  float speed = 0.0F;
};

// Turns toward the waypoint and back to the entry speed, whatever the traffic.
Action direct_action(const AirspaceConfig& config, const Scene& scene, std::size_t own);

// Pushes the closest point of approach of every predicted conflict out of the protected zone; direct otherwise.
// Remembers in scene.resolving which conflicts are not yet over.
Action mvp_action(const AirspaceConfig& config, Scene& scene, std::size_t own);

}  // namespace slipstream::airspace
