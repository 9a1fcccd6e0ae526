// The plain way to plan: breadth first over every state there is. Slow and obvious, to test the planner with.
#pragma once

#include "drmario/planner.hpp"

namespace slipstream::drmario {

void plan_plainly(const Cells& cells, const Start& start, Costs& costs, bool both = false);

}  // namespace slipstream::drmario
