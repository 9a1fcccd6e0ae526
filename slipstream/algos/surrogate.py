"""What PPO and APPO minimise: the clipped surrogate with entropy bonus and KL penalty, and the critic's error.

Each comes with its gradients with respect to the networks' outputs, which `backward` takes to the weights. `in_torch`
is the definition, and runs on GPUs and for actions of several parts. Elsewhere a native kernel
(core/kernels/surrogate.hpp) gives the same numbers in one pass: a minibatch has a few hundred rows, and thirty small
torch operations with their graph would cost as much as the networks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from slipstream import _core
from slipstream.algos.protocol import Terms
from slipstream.algos.rollout_batch import Batch, Policy, standardise
from slipstream.nets.heads import Categorical, Composite, Gaussian, tensors_of, with_tensors
from slipstream.nets.networks import PolicyAndValue


class LossWeights(NamedTuple):
    """How far a ratio may go, and what bonus and penalty count; in the order that core/bind/surrogate.cpp reads."""

    clip: float
    entropy: float
    kl: float = 0.0
    standardise: bool = False  # advantages within these rows


class LossTerms(NamedTuple):
    """Means over rows, for reports."""

    total: float  # policy_loss - weights.entropy * entropy + weights.kl * kl_penalty: what is minimised
    policy_loss: float
    entropy: float
    approx_kl: float  # KL(old || new), by the k3 estimator: unbiased, never negative
    clip_fraction: float
    kl_penalty: float  # KL(old || new) where the batch has the old policy


PolicyGrads = tuple[Tensor, ...]  # of the total by each tensor of the policy


def surrogate(new: Policy, batch: Batch, weights: LossWeights) -> tuple[LossTerms, PolicyGrads]:
    """What to minimise on these rows; `batch.old`, where given, is what the penalty pulls towards."""
    if batch.logp.device.type != "cpu" or isinstance(new, Composite):
        return in_torch(new, batch, weights)
    return _gaussian(new, batch, weights) if isinstance(new, Gaussian) else _categorical(new, batch, weights)


def in_torch(new: Policy, batch: Batch, weights: LossWeights) -> tuple[LossTerms, PolicyGrads]:
    """The same in plain torch."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors_of(new)]
    new = with_tensors(new, leaves)
    with torch.enable_grad():
        advantage = standardise(batch.advantage) if weights.standardise else batch.advantage
        log_ratio = new.logp(batch.action) - batch.logp
        ratio = torch.exp(log_ratio)
        kept = ratio.clamp(1.0 - weights.clip, 1.0 + weights.clip)
        policy = -torch.minimum(advantage * ratio, advantage * kept).mean()
        entropy = new.entropy().mean()
        kl = torch.zeros_like(policy) if batch.old is None else kl_penalty(batch.old, new)
        total = policy - weights.entropy * entropy + weights.kl * kl
    grads = torch.autograd.grad(total, leaves)
    approx_kl = (ratio - 1.0 - log_ratio).mean()
    clipped = ((ratio - 1.0).abs() > weights.clip).float().mean()
    return LossTerms(*torch.stack([total, policy, entropy, approx_kl, clipped, kl]).tolist()), grads


def kl_penalty(old: Policy, new: Policy) -> Tensor:
    """Mean KL(old || new); both of one kind."""
    return new.kl_from(old).mean()  # type: ignore[arg-type]


def value_error(prediction: Tensor, target: Tensor, before: Tensor, clip: float | None) -> tuple[float, Tensor]:
    """Half squared error and its gradient; with `clip` the worse of it and that of a value within ± clip of the old."""
    rows = prediction.shape
    if prediction.device.type == "cpu":
        grads = torch.empty_like(prediction)
        total = _core.value_error(
            *rows,
            prediction=_address(prediction, rows),
            target=_address(target, rows),
            before=_address(before, rows),
            clip=clip or 0.0,
            grads=grads.data_ptr(),
        )
        return total, grads
    prediction = prediction.detach()
    error = prediction - target
    grads = error / len(error)
    if clip is not None:
        kept = before + (prediction - before).clamp(-clip, clip) - target
        held = ((prediction - before).abs() > clip) & (kept.square() > error.square())
        error, grads = torch.where(held, kept, error), torch.where(held, 0.0, grads)
    return 0.5 * float(error.square().mean()), grads


def actor_critic_loss(
    forward: PolicyAndValue, batch: Batch, weights: LossWeights, value_coef: float, value_clip: float | None = None
) -> tuple[Terms, tuple[Tensor, ...]]:
    """Terms for reports, and the gradients of the total (surrogate plus value_coef * value error) by all outputs.

    The gradients are of the policy's tensors, then of the value.
    """
    terms, policy_grads = surrogate(forward.policy, batch, weights)
    value_loss, value_grads = value_error(forward.value, batch.target, batch.value, value_clip)
    named = {"policy_loss": terms.policy_loss, "value_loss": value_loss, **terms._asdict()}
    del named["total"]
    return named, (*policy_grads, value_coef * value_grads)


# --- native ---


def _address(tensor: Tensor, shape: torch.Size, dtype: torch.dtype = torch.float32) -> int:
    """The tensor's address for a kernel, which checks nothing itself."""
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"expected a contiguous {dtype} tensor of {tuple(shape)}, got {tensor.dtype} {tensor.shape}")
    return tensor.data_ptr()


def _gaussian(new: Gaussian, batch: Batch, weights: LossWeights) -> tuple[LossTerms, PolicyGrads]:
    shape, rows, axes = new.mean.shape, new.mean.shape[:1], new.mean.shape[1:]
    old = batch.old
    assert old is None or isinstance(old, Gaussian)
    by_mean, by_log_std = torch.empty_like(new.mean), torch.empty_like(new.log_std)
    terms = _core.gaussian_surrogate(
        *shape,
        mean=_address(new.mean, shape),
        log_std=_address(new.log_std, axes),
        old_mean=0 if old is None else _address(old.mean, shape),
        old_log_std=0 if old is None else _address(old.log_std, axes),
        action=_address(batch.action, shape),
        logp=_address(batch.logp, rows),
        advantage=_address(batch.advantage, rows),
        weights=weights,
        by_mean=by_mean.data_ptr(),
        by_log_std=by_log_std.data_ptr(),
    )
    return LossTerms(*terms), (by_mean, by_log_std)


def _categorical(new: Categorical, batch: Batch, weights: LossWeights) -> tuple[LossTerms, PolicyGrads]:
    shape, rows = new.logits.shape, new.logits.shape[:1]
    old = batch.old
    assert old is None or isinstance(old, Categorical)
    by_logits = torch.empty_like(new.logits)
    terms = _core.categorical_surrogate(
        *shape,
        logits=_address(new.logits, shape),
        old_logits=0 if old is None else _address(old.logits, shape),
        action=_address(batch.action, rows, torch.int32),
        logp=_address(batch.logp, rows),
        advantage=_address(batch.advantage, rows),
        weights=weights,
        by_logits=by_logits.data_ptr(),
    )
    return LossTerms(*terms), (by_logits,)
