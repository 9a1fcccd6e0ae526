#include "racing/box.hpp"

#include <algorithm>
#include <limits>

namespace slipstream::racing {

bool overlap(const Box& a, const Box& b) {
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double cosine = std::abs(a.cosine * b.cosine + a.sine * b.sine);  // of the angle between them
  const double sine = std::abs(a.cosine * b.sine - a.sine * b.cosine);
  // Along each axis of each box: are the centres farther apart than both half extents?
  const auto apart = [&](const Box& own, const Box& other) {
    const double ahead = std::abs(dx * own.cosine + dy * own.sine);
    const double aside = std::abs(dy * own.cosine - dx * own.sine);
    return ahead > own.half_length + other.half_length * cosine + other.half_width * sine ||
           aside > own.half_width + other.half_length * sine + other.half_width * cosine;
  };
  return !apart(a, b) && !apart(b, a);
}

double ray_distance(const Box& box, double x, double y, double dx, double dy) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // In the box's own frame: two slabs.
  const double px = (x - box.x) * box.cosine + (y - box.y) * box.sine;
  const double py = (y - box.y) * box.cosine - (x - box.x) * box.sine;
  const double ux = dx * box.cosine + dy * box.sine;
  const double uy = dy * box.cosine - dx * box.sine;
  double enter = 0.0;
  double leave = kNever;
  const auto slab = [&](double p, double u, double half) {
    if (u == 0.0) return std::abs(p) <= half;
    const double near = (std::copysign(half, -u) - p) / u;
    const double far = (std::copysign(half, u) - p) / u;
    enter = std::max(enter, near);
    leave = std::min(leave, far);
    return enter <= leave;
  };
  return slab(px, ux, box.half_length) && slab(py, uy, box.half_width) ? enter : kNever;
}

}  // namespace slipstream::racing
