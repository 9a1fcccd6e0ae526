// What a car is paid for one decision: a sum of named terms, each with a weight.
#pragma once

#include <array>
#include <cstddef>

#include "racing/fields.hpp"

namespace slipstream::racing {

// The terms that are paid come first. The others shape: they are parts of the potential, so whatever their weight,
// nothing is earned by holding a place (Ng et al. 1999).
inline constexpr auto kNumPaid = static_cast<std::size_t>(Term::kPocket);

using TermWeights = std::array<double, kNumTerms>;
using Terms = std::array<double, kNumTerms>;

constexpr double& at(Terms& terms, Term term) { return terms[static_cast<std::size_t>(term)]; }

}  // namespace slipstream::racing
