// Cars seen from above: rectangles, whether two touch, and where a ray meets one.
#pragma once

#include <cmath>

namespace slipstream::racing {

struct Pose {
  double x = 0.0;
  double y = 0.0;
  double yaw = 0.0;
};

struct Box {
  double x = 0.0;  // of its centre
  double y = 0.0;
  double cosine = 1.0;  // of its yaw
  double sine = 0.0;
  double half_length = 0.0;
  double half_width = 0.0;

  Box(const Pose& pose, double length, double width)
      : x(pose.x),
        y(pose.y),
        cosine(std::cos(pose.yaw)),
        sine(std::sin(pose.yaw)),
        half_length(0.5 * length),
        half_width(0.5 * width) {}

  [[nodiscard]] double radius() const { return std::hypot(half_length, half_width); }
};

// Whether they have a point in common (separating axes, exact up to rounding).
[[nodiscard]] bool overlap(const Box& a, const Box& b);

// Distance along the unit direction at which a ray from (x, y) enters the box; infinity where it misses, 0 inside.
[[nodiscard]] double ray_distance(const Box& box, double x, double y, double dx, double dy);

}  // namespace slipstream::racing
