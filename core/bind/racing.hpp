// Shared by the racing bindings.
#pragma once

#include <vector>

#include "bind/bind.hpp"
#include "racing/map.hpp"

namespace slipstream::racing {

// A map and what compat rays need of it, made when first asked for.
struct SharedMap {
  GridMap grid;
  std::vector<double> distance;

  const std::vector<double>& distances() {
    if (distance.empty()) distance = euclidean_distance(grid);
    return distance;
  }
};

}  // namespace slipstream::racing
