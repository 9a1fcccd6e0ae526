"""Losses of the user's beside an algorithm's own (`algo.extra_losses`): functions of the policy on a batch.

    def calm(policy, batch):  # keep actions small
        return policy.mean.square().mean()

A policy is a distribution of nets/heads.py: Gaussian and Squashed have `mean`, Categorical has `logits`, Point has
`action`; Composite has `choices` (logits [rows, parts, most choices]) and `axes`, a Gaussian or None. All have
`logp(action)`. The batch has `inputs` (standardised, by block), `action` and `mask`, and what the algorithm learns from
besides: `Batch` of rollout_batch.py, or `Rows` of offpolicy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slipstream.algos.protocol import Terms
from slipstream.algos.rollout_batch import Batch, Policy
from slipstream.config.algos.learner import ExtraLossConfig, schedule_at
from slipstream.errors import ScenarioError, TrainingError
from slipstream.nets.heads import tensors_of, with_tensors
from slipstream.nets.runner import Forward
from slipstream.own_code import find_own

if TYPE_CHECKING:
    from slipstream.algos.losses import Loss
    from slipstream.algos.offpolicy import RowSlice

    LossOf = Callable[[RowSlice], tuple[Forward, Loss]]


class ExtraLosses:
    """The functions of a scenario, with their weights."""

    def __init__(self, configs: Sequence[ExtraLossConfig]) -> None:
        self._configs = tuple(configs)
        self._functions = [find_own(each.target, f"algo.extra_losses.{i}.target") for i, each in enumerate(configs)]
        self._names = [each.target.partition(":")[2] for each in configs]
        if len(set(self._names)) < len(self._names):
            raise ScenarioError(f"algo.extra_losses: two functions have the same name ({', '.join(self._names)})")
        self.fraction = 0.0  # of the budget: weights may be schedules

    def __bool__(self) -> bool:
        return bool(self._configs)

    def total(self, policy: Any, batch: Any) -> tuple[Tensor, Terms]:
        """Their weighted sum on these rows, and each of them for reports."""
        terms: Terms = {}
        values = []
        for each, name, function in zip(self._configs, self._names, self._functions, strict=True):
            value = function(policy, batch)
            if not isinstance(value, Tensor) or value.dim() != 0 or not value.requires_grad:
                found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise TrainingError(
                    f"algo.extra_losses: {each.target} returned {found}; it must return one number that depends on the "
                    "policy, such as policy.mean.square().mean()"
                )
            terms[name] = float(value.detach())
            values.append(schedule_at(each.weight, self.fraction) * value)
        return torch.stack(values).sum(), terms

    def beside(
        self, policy: Policy, batch: Batch, terms: Terms, output_grads: tuple[Tensor, ...]
    ) -> tuple[Terms, tuple[Tensor, ...]]:
        """Terms and gradients by the policy's tensors, and by what follows them, with theirs added."""
        if not self:
            return terms, output_grads
        grads, more = self._grads(lambda *tensors: with_tensors(policy, tensors), tensors_of(policy), batch)
        own, others = output_grads[: len(grads)], output_grads[len(grads) :]
        return {**terms, **more}, (*(a + b for a, b in zip(own, grads, strict=True)), *others)

    def around(self, policy_of: Callable[..., Any], loss_of: LossOf) -> LossOf:
        """An actor's loss on a piece of a draw with theirs added; `policy_of` makes a policy of its outputs."""
        if not self:
            return loss_of

        def both(piece: RowSlice) -> tuple[Forward, Loss]:
            forward, loss = loss_of(piece)
            grads, _ = self._grads(policy_of, forward.outputs, piece.rows)
            return forward, loss._replace(output_grads=[a + b for a, b in zip(loss.output_grads, grads, strict=True)])

        return both

    def _grads(
        self, policy_of: Callable[..., Any], outputs: Sequence[Tensor], batch: Any
    ) -> tuple[list[Tensor], Terms]:
        leaves = [out.detach().requires_grad_() for out in outputs]
        with torch.enable_grad():
            total, terms = self.total(policy_of(*leaves), batch)
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        return [torch.zeros_like(a) if g is None else g for a, g in zip(leaves, found, strict=True)], terms
