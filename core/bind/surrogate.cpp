#include "kernels/surrogate.hpp"

#include <nanobind/stl/tuple.h>

#include "bind/bind.hpp"

namespace slipstream {
namespace {

// Addresses of contiguous memory; slipstream/algos/surrogate.py, the only caller, checks what they point to.
using Weights = std::tuple<double, double, double, bool>;  // clip, entropy, kl, standardise
using Terms = std::tuple<double, double, double, double, double, double>;

SurrogateRates rates(const Weights& weights) { return std::make_from_tuple<SurrogateRates>(weights); }

Terms terms(const SurrogateTerms& t) { return {t.total, t.policy, t.entropy, t.approx_kl, t.clipped, t.kl}; }

}  // namespace

void bind_surrogate(nb::module_& m) {
  m.def(
      "gaussian_surrogate",
      [](int rows, int size, Address mean, Address log_std, Address old_mean, Address old_log_std, Address action,
         Address logp, Address advantage, const Weights& weights, Address by_mean, Address by_log_std) {
        return terms(
            gaussian_surrogate({rows, at<const float>(logp), at<const float>(advantage)},
                               {size, at<const float>(mean), at<const float>(log_std), at<const float>(old_mean),
                                at<const float>(old_log_std), at<const float>(action)},
                               rates(weights), at<float>(by_mean), at<float>(by_log_std)));
      },
      nb::arg("rows"), nb::arg("size"), nb::kw_only(), nb::arg("mean"), nb::arg("log_std"), nb::arg("old_mean"),
      nb::arg("old_log_std"), nb::arg("action"), nb::arg("logp"), nb::arg("advantage"), nb::arg("weights"),
      nb::arg("by_mean"), nb::arg("by_log_std"),
      "Total, policy loss, entropy, approximate KL, share of clipped rows, KL; addresses of contiguous memory.");
  m.def(
      "categorical_surrogate",
      [](int rows, int size, Address logits, Address old_logits, Address action, Address logp, Address advantage,
         const Weights& weights, Address by_logits) {
        const int* const chosen = at<const int>(action);
        for (int i = 0; i < rows; ++i)
          if (chosen[i] < 0 || chosen[i] >= size)
            throw std::invalid_argument("action " + std::to_string(chosen[i]) + " of row " + std::to_string(i) +
                                        " is none of the " + std::to_string(size) + " choices");
        return terms(categorical_surrogate({rows, at<const float>(logp), at<const float>(advantage)},
                                           {size, at<const float>(logits), at<const float>(old_logits), chosen},
                                           rates(weights), at<float>(by_logits)));
      },
      nb::arg("rows"), nb::arg("size"), nb::kw_only(), nb::arg("logits"), nb::arg("old_logits"), nb::arg("action"),
      nb::arg("logp"), nb::arg("advantage"), nb::arg("weights"), nb::arg("by_logits"),
      "Total, policy loss, entropy, approximate KL, share of clipped rows, KL; addresses of contiguous memory.");
  m.def(
      "value_error",
      [](int rows, Address prediction, Address target, Address before, double clip, Address grads) {
        return value_error(rows, at<const float>(prediction), at<const float>(target), at<const float>(before), clip,
                           at<float>(grads));
      },
      nb::arg("rows"), nb::kw_only(), nb::arg("prediction"), nb::arg("target"), nb::arg("before"), nb::arg("clip"),
      nb::arg("grads"), "Half the mean squared error; clip 0: no clipping. Addresses of contiguous float32 memory.");
}

}  // namespace slipstream
