"""What PPO and APPO minimise: the clipped surrogate with entropy bonus and KL penalty, and the critic's error.

`in_torch` is the definition, and what runs on a GPU. On the CPU a native kernel (core/kernels/surrogate.hpp) gives the
same numbers and their gradient in one pass: a minibatch has a few hundred rows, and thirty small torch operations with
their graph would cost as much as the networks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from slipstream import _core
from slipstream.algos.batch import Batch, Policy
from slipstream.nets.heads import Categorical, Gaussian


class Weights(NamedTuple):
    """How far a ratio may go, and what bonus and penalty count."""

    clip: float
    entropy: float
    kl: float = 0.0


class Terms(NamedTuple):
    """Means over rows, for people to read."""

    policy_loss: float
    entropy: float
    approx_kl: float  # of the policy that acted from the new one; k3 estimator: unbiased, never negative
    clip_fraction: float
    kl_penalty: float  # KL(old || new) where the batch has the old policy


def surrogate(new: Policy, batch: Batch, weights: Weights) -> tuple[Tensor, Terms]:
    """What to minimise on these rows, and its parts; `batch.old`, where given, is what the penalty pulls towards."""
    if batch.logp.device.type != "cpu":
        return in_torch(new, batch, weights)
    if isinstance(new, Gaussian):
        return _Gaussian.apply(new.mean, new.log_std, batch, weights)  # type: ignore[no-any-return, no-untyped-call]
    return _Categorical.apply(new.logits, batch, weights)  # type: ignore[no-any-return, no-untyped-call]


def in_torch(new: Policy, batch: Batch, weights: Weights) -> tuple[Tensor, Terms]:
    """The surrogate in plain torch."""
    log_ratio = new.logp(batch.action) - batch.logp
    ratio = torch.exp(log_ratio)
    kept = ratio.clamp(1.0 - weights.clip, 1.0 + weights.clip)
    policy = -torch.minimum(batch.advantage * ratio, batch.advantage * kept).mean()
    entropy = new.entropy().mean()
    approx_kl = (ratio - 1.0 - log_ratio).mean()
    clipped = ((ratio - 1.0).abs() > weights.clip).float().mean()
    kl = torch.zeros_like(policy) if batch.old is None else kl_penalty(batch.old, new)
    total = policy - weights.entropy * entropy + weights.kl * kl
    return total, Terms(*torch.stack([policy, entropy, approx_kl, clipped, kl]).tolist())


def kl_penalty(old: Policy, new: Policy) -> Tensor:
    """Mean KL(old || new)."""
    if isinstance(old, Gaussian) and isinstance(new, Gaussian):
        return new.kl_from(old).mean()
    assert isinstance(old, Categorical)
    assert isinstance(new, Categorical)
    return new.kl_from(old).mean()


def value_loss(prediction: Tensor, target: Tensor, before: Tensor, clip: float | None) -> Tensor:
    """Half squared error; with `clip` the worse of it and that of a prediction kept within ± clip of the old one."""
    if prediction.device.type == "cpu":
        return _ValueError.apply(prediction, target, before, clip)  # type: ignore[no-any-return, no-untyped-call]
    if clip is None:
        return 0.5 * functional.mse_loss(prediction, target)
    kept = before + (prediction - before).clamp(-clip, clip)
    return 0.5 * torch.max((prediction - target).square(), (kept - target).square()).mean()


# --- native ---


def _address(tensor: Tensor, shape: torch.Size, dtype: torch.dtype = torch.float32) -> int:
    """Where the kernel finds it; it reads what it is told to, so this is where mistakes must end."""
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"expected a contiguous {dtype} tensor of {tuple(shape)}, got {tensor.dtype} {tensor.shape}")
    return tensor.data_ptr()


class _Gaussian(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, batch: Batch, weights: Weights) -> tuple[Tensor, Terms]:
        shape, rows, axes = mean.shape, mean.shape[:1], mean.shape[1:]
        old = batch.old
        assert old is None or isinstance(old, Gaussian)
        grads = torch.empty_like(mean), torch.empty_like(log_std)
        total, *terms = _core.gaussian_surrogate(
            *shape,
            mean=_address(mean, shape),
            log_std=_address(log_std, axes),
            old_mean=0 if old is None else _address(old.mean, shape),
            old_log_std=0 if old is None else _address(old.log_std, axes),
            action=_address(batch.action, shape),
            logp=_address(batch.logp, rows),
            advantage=_address(batch.advantage, rows),
            weights=weights,
            grad_mean=grads[0].data_ptr(),
            grad_log_std=grads[1].data_ptr(),
        )
        ctx.save_for_backward(*grads)
        return mean.new_tensor(total), Terms(*terms)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
        by_mean, by_log_std = ctx.saved_tensors
        return by_mean * grad, by_log_std * grad, None, None


class _Categorical(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, batch: Batch, weights: Weights) -> tuple[Tensor, Terms]:
        shape, rows = logits.shape, logits.shape[:1]
        old = batch.old
        assert old is None or isinstance(old, Categorical)
        grad = torch.empty_like(logits)
        total, *terms = _core.categorical_surrogate(
            *shape,
            logits=_address(logits, shape),
            old_logits=0 if old is None else _address(old.logits, shape),
            action=_address(batch.action, rows, torch.int32),
            logp=_address(batch.logp, rows),
            advantage=_address(batch.advantage, rows),
            weights=weights,
            grad_logits=grad.data_ptr(),
        )
        ctx.save_for_backward(grad)
        return logits.new_tensor(total), Terms(*terms)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
        (by_logits,) = ctx.saved_tensors
        return by_logits * grad, None, None


class _ValueError(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prediction: Tensor, target: Tensor, before: Tensor, clip: float | None) -> Tensor:
        rows = prediction.shape
        grad = torch.empty_like(prediction)
        total = _core.value_error(
            *rows,
            prediction=_address(prediction, rows),
            target=_address(target, rows),
            before=_address(before, rows),
            clip=clip or 0.0,
            grad=grad.data_ptr(),
        )
        ctx.save_for_backward(grad)
        return prediction.new_tensor(total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (by_prediction,) = ctx.saved_tensors
        return by_prediction * grad, None, None, None
