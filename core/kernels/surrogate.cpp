#include "kernels/surrogate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace slipstream {
namespace {

constexpr double kHalfLog2Pi = 0.91893853320467274178;

// Takes one row into the means; returns the derivative of its part of the policy loss by its log-probability.
double clip_row(double logp, double old_logp, double advantage, double clip, int rows, SurrogateTerms& terms) {
  const double log_ratio = logp - old_logp;
  const double ratio = std::exp(log_ratio);
  const double free = advantage * ratio;
  const double kept = advantage * std::clamp(ratio, 1.0 - clip, 1.0 + clip);
  const double scale = 1.0 / rows;
  terms.policy -= scale * std::min(free, kept);
  terms.approx_kl += scale * (ratio - 1.0 - log_ratio);  // k3 estimator: unbiased, never negative
  terms.clipped += std::abs(ratio - 1.0) > clip ? scale : 0.0;
  return -scale * free * (free <= kept ? 1.0 : 0.0);  // times 0, not 0: what is not finite must not vanish
}

// What an advantage is counted from and multiplied by.
struct Scale {
  double mean = 0.0;
  double factor = 1.0;

  Scale(const Decisions& rows, bool standardise) {
    if (!standardise || rows.rows < 2) return;
    for (int i = 0; i < rows.rows; ++i) mean += rows.advantage[i];
    mean /= rows.rows;
    double squares = 0.0;
    for (int i = 0; i < rows.rows; ++i) squares += (rows.advantage[i] - mean) * (rows.advantage[i] - mean);
    factor = 1.0 / (std::sqrt(squares / (rows.rows - 1)) + 1e-8);
  }
  [[nodiscard]] double operator()(double advantage) const { return (advantage - mean) * factor; }
};

void add_up(const SurrogateRates& rates, SurrogateTerms& terms) {
  terms.total = terms.policy - rates.entropy * terms.entropy + rates.kl * terms.kl;
}

// Log of the sum of exponentials: a logit less this is a log-probability.
double log_sum(const float* logits, int size) {
  const double top = *std::max_element(logits, logits + size);
  double sum = 0.0;
  for (int j = 0; j < size; ++j) sum += std::exp(logits[j] - top);
  return top + std::log(sum);
}

}  // namespace

SurrogateTerms gaussian_surrogate(const Decisions& rows, const GaussianRows& policy, const SurrogateRates& rates,
                                  float* by_mean, float* by_log_std) {
  const int size = policy.size;
  const double scale = 1.0 / rows.rows;
  const Scale advantage(rows, rates.standardise);
  SurrogateTerms terms;
  double log_volume = 0.0;  // of one deviation in every axis, with the constant
  for (int k = 0; k < size; ++k) {
    log_volume += policy.log_std[k] + kHalfLog2Pi;
    by_log_std[k] = 0.0F;
  }
  for (int i = 0; i < rows.rows; ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i) * size;
    double squares = 0.0;
    for (int k = 0; k < size; ++k) {
      const double z = (policy.action[at + k] - policy.mean[at + k]) * std::exp(-policy.log_std[k]);
      squares += z * z;
    }
    const double slope =
        clip_row(-0.5 * squares - log_volume, rows.logp[i], advantage(rows.advantage[i]), rates.clip, rows.rows, terms);
    for (int k = 0; k < size; ++k) {
      const double inverse = std::exp(-policy.log_std[k]);
      const double z = (policy.action[at + k] - policy.mean[at + k]) * inverse;
      double mean_slope = slope * z * inverse;
      double std_slope = slope * (z * z - 1.0);
      if (policy.old_mean != nullptr) {
        const double moved = (policy.mean[at + k] - policy.old_mean[at + k]) * inverse;
        terms.kl += 0.5 * scale * moved * moved;
        mean_slope += rates.kl * scale * moved * inverse;
        std_slope -= rates.kl * scale * moved * moved;
      }
      by_mean[at + k] = static_cast<float>(mean_slope);
      by_log_std[k] += static_cast<float>(std_slope);
    }
  }
  for (int k = 0; k < size; ++k) {
    terms.entropy += policy.log_std[k] + kHalfLog2Pi + 0.5;
    double std_slope = -rates.entropy;
    if (policy.old_mean != nullptr) {
      const double change = policy.log_std[k] - policy.old_log_std[k];
      const double ratio = std::exp(-2.0 * change);
      terms.kl += change + 0.5 * (ratio - 1.0);
      std_slope += rates.kl * (1.0 - ratio);
    }
    by_log_std[k] += static_cast<float>(std_slope);
  }
  add_up(rates, terms);
  return terms;
}

SurrogateTerms categorical_surrogate(const Decisions& rows, const CategoricalRows& policy, const SurrogateRates& rates,
                                     float* by_logits) {
  const int size = policy.size;
  const double scale = 1.0 / rows.rows;
  const Scale advantage(rows, rates.standardise);
  SurrogateTerms terms;
  for (int i = 0; i < rows.rows; ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i) * size;
    const float* logits = policy.logits + at;
    const double shift = log_sum(logits, size);
    const double slope = clip_row(logits[policy.action[i]] - shift, rows.logp[i], advantage(rows.advantage[i]),
                                  rates.clip, rows.rows, terms);
    double entropy = 0.0;
    for (int j = 0; j < size; ++j) {
      const double logp = logits[j] - shift;
      entropy -= std::exp(logp) * logp;
    }
    terms.entropy += scale * entropy;
    for (int j = 0; j < size; ++j) {
      const double logp = logits[j] - shift;
      const double p = std::exp(logp);
      const double chosen = j == policy.action[i] ? 1.0 : 0.0;
      // By this logit: of log-probability chosen - p, of entropy -p (log p + entropy).
      by_logits[at + j] = static_cast<float>(slope * (chosen - p) + rates.entropy * scale * p * (logp + entropy));
    }
    if (policy.old_logits == nullptr) continue;
    const float* old = policy.old_logits + at;
    const double old_shift = log_sum(old, size);
    for (int j = 0; j < size; ++j) {
      const double old_logp = old[j] - old_shift;
      const double old_p = std::exp(old_logp);
      const double logp = logits[j] - shift;
      terms.kl += scale * old_p * (old_logp - logp);
      by_logits[at + j] += static_cast<float>(rates.kl * scale * (std::exp(logp) - old_p));
    }
  }
  add_up(rates, terms);
  return terms;
}

double value_error(int rows, const float* prediction, const float* target, const float* before, double clip,
                   float* grad) {
  const double scale = 1.0 / rows;
  double total = 0.0;
  for (int i = 0; i < rows; ++i) {
    const double error = static_cast<double>(prediction[i]) - target[i];
    double worst = error * error;
    double slope = scale * error;
    if (clip > 0.0) {
      const double moved = static_cast<double>(prediction[i]) - before[i];
      const double kept = before[i] + std::clamp(moved, -clip, clip) - target[i];
      if (std::abs(moved) > clip && kept * kept > worst) {
        worst = kept * kept;
        slope = 0.0;
      }
    }
    total += 0.5 * scale * worst;
    grad[i] = static_cast<float>(slope);
  }
  return total;
}

}  // namespace slipstream
