// The clipped surrogate of PPO (Schulman et al. 2017) with entropy bonus and KL penalty, and the squared error of a
// critic: values and gradients of a minibatch in one pass. The plain definition is slipstream/algos/surrogate.py.
#pragma once

namespace slipstream {

struct SurrogateRates {
  double clip = 0.2;         // of the probability ratio, around 1
  double entropy = 0.0;      // weight of the bonus
  double kl = 0.0;           // weight of the penalty
  bool standardise = false;  // advantages to mean 0 and deviation 1 first, where there are two rows or more
};

// Means over rows, all but the total for people to read.
struct SurrogateTerms {
  double total = 0.0;  // policy - rates.entropy * entropy + rates.kl * kl
  double policy = 0.0;
  double entropy = 0.0;
  double approx_kl = 0.0;
  double clipped = 0.0;
  double kl = 0.0;  // from the old policy, where that is given
};

// What was done, how likely it was and how good; contiguous rows.
struct Decisions {
  int rows = 0;
  const float* logp = nullptr;       // [rows]
  const float* advantage = nullptr;  // [rows]
};

// A diagonal Gaussian over `size` axes with one deviation for all rows.
struct GaussianRows {
  int size = 0;
  const float* mean = nullptr;         // [rows, size]
  const float* log_std = nullptr;      // [size]
  const float* old_mean = nullptr;     // null: no penalty
  const float* old_log_std = nullptr;  // [size]
  const float* action = nullptr;       // [rows, size]
};

// A choice among `size`; forbidden ones have a logit so low that their probability is 0.
struct CategoricalRows {
  int size = 0;
  const float* logits = nullptr;      // [rows, size]
  const float* old_logits = nullptr;  // null: no penalty
  const int* action = nullptr;        // [rows]
};

// Gradients of the total by the means and log deviations. A number that is not finite makes them not finite.
SurrogateTerms gaussian_surrogate(const Decisions& rows, const GaussianRows& policy, const SurrogateRates& rates,
                                  float* by_mean, float* by_log_std);

// Gradient of the total by the logits.
SurrogateTerms categorical_surrogate(const Decisions& rows, const CategoricalRows& policy, const SurrogateRates& rates,
                                     float* by_logits);

// Half the mean squared error and its gradient. Where clip > 0, a row counts the worse of it and that of a prediction
// kept within `clip` of the one before.
double value_error(int rows, const float* prediction, const float* target, const float* before, double clip,
                   float* grad);

}  // namespace slipstream
