// V-trace (Espeholt et al. 2018, arXiv:1802.01561) over decisions of any duration: off-policy value targets.
#pragma once

#include <cstdint>

#include "kernels/gae.hpp"

namespace slipstream {

// How far the policy that learns is from the one that acted, and where the ratio of the two is cut.
struct VtraceRatios {
  const float* log_ratio = nullptr;  // [rows, columns] on decision rows: log pi(a|x) - log mu(a|x)
  double rho_bar = 1.0;              // rho = min(rho_bar, ratio): decides which policy's values are learned
  double c_bar = 1.0;                // c = lambda min(c_bar, ratio): decides how far corrections travel
};

// Fills on decision rows, with Gamma = gamma^duration and lambda per decision:
//   target    v_s = V_s + sum_t (prod_{s<=i<t} Gamma_i c_i) rho_t (R_t + Gamma_t V_{t+1} - V_t)   (equation 1)
//   advantage R_s + Gamma_s v_{s+1} - V_s
// The policy gradient is rho_s * advantage * grad log pi (section 4.2); rho is left to the learner, whose policy moves
// between gradient steps on one slab. The sum ends with the agent's episode or the slab; v_{s+1} is V(final_obs) where
// the episode was truncated and 0 where it terminated. complete[r, c] = 1 where the decision's outcome is in the slab.
// Everything else is set to 0.
void vtrace(const GaeInput& in, const VtraceRatios& ratios, float* advantage, float* target, std::uint8_t* complete);

}  // namespace slipstream
