#include "racing/reward.hpp"

namespace slipstream::racing {

std::vector<std::string> term_names() {
  return {"lap",     "finish",   "win",      "overtake", "wall",    "contact", "target_crash", "target_finish",
          "idle",    "timeout",  "progress", "gap",      "time",    "speed",   "reverse",      "lateral",
          "heading", "steering", "pressure", "pocket",   "squeeze", "close"};
}

}  // namespace slipstream::racing
