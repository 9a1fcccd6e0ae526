"""Adam and target networks over all parameters of a learner as one vector, and learners in step.

A small network has a dozen tensors, and the work per tensor (norms, scaling, one step each) costs more than the
arithmetic. Here the parameters are views of one vector, and clipping and stepping are one native call.

Learners in step hold the same weights, are given the same batches and make the same draws. Each takes its share of
the rows, and all take the same step: only the sum of their gradients travels. It is summed in the learners' order, so
that all of them get the same bits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream import _core
from slipstream.algos.state import refuse_differences
from slipstream.errors import CheckpointError
from slipstream.nets.arithmetic import learning_dtype
from slipstream.types import Arrays

BETA1, BETA2 = 0.9, 0.999
MOMENTS = ("exp_avg", "exp_avg_sq")
Grads = tuple[Tensor, ...]  # tensors that, laid end to end, are the gradient of the whole vector
SCALE, PATIENCE = 2.0**16, 2000  # of losses in float16, and steps after which it is doubled: torch's GradScaler
Module = TypeVar("Module", bound=nn.Module)


# --- learners in step ---


class Share(Protocol):
    """One learner's place among those in step."""

    rank: int
    ranks: int

    def gather(self, mine: Tensor) -> Tensor:
        """[ranks, n]: the vectors of all learners, each of length n, in their order."""


class WholeBatch:
    """A learner that takes every batch whole."""

    rank, ranks = 0, 1

    def gather(self, mine: Tensor) -> Tensor:
        """Its own."""
        return mine.unsqueeze(0)


ALONE: Share = WholeBatch()


def summed(share: Share, mine: Tensor) -> Tensor:
    """The sum of all learners' vectors, added up in their order."""
    vectors = share.gather(mine)
    total = vectors[0].clone()
    for other in vectors[1:]:
        total += other
    return total


def joined(share: Share, mine: Tensor) -> Tensor:
    """The rows of all learners, in their order."""
    return mine if share.ranks == 1 else torch.cat(list(share.gather(mine)))


# --- the optimiser ---


class Backward(Protocol):
    """A forward pass that can be run backward."""

    def backward(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of the parameters, in the optimiser's order, given those of the outputs."""


class FlatAdam:
    """Kingma & Ba 2015 with gradient-norm clipping; saved per parameter, as if it were many."""

    def __init__(self, modules: Mapping[str, nn.Module], eps: float = 1e-5) -> None:
        named = {f"{prefix}.{name}": p for prefix, module in modules.items() for name, p in module.named_parameters()}
        self.parameters = list(named.values())
        self.vector = flatten_parameters(self.parameters)
        self.places: dict[str, tuple[slice, torch.Size]] = {}
        offset = 0
        for name, parameter in named.items():
            self.places[name] = (slice(offset, offset + parameter.numel()), parameter.shape)
            offset += parameter.numel()
        self.eps = eps
        self.steps = 0
        self.moments = {moment: torch.zeros_like(self.vector) for moment in MOMENTS}
        self.share: Share = ALONE
        self._anchor: Tensor | None = None  # where the vector is pulled to
        self._pull = 0.0
        self._scale, self._fine = SCALE, 0  # and steps since it last changed; used where products are float16
        self._grads: Grads = ()  # summed over the pieces (micro-batches) of the step to come
        self._terms: dict[str, float] = {}

    def pull_towards(self, reference: Mapping[str, NDArray[Any]], strength: float) -> None:
        """From now on every loss has strength / 2 times the squared distance to these weights (FedProx); 0: none.

        Weights of other networks may be among them.
        """
        self._pull, self._anchor = strength, None
        if strength > 0.0:
            weights = [
                np.asarray(reference[name], np.float32).reshape(shape).ravel()
                for name, (_, shape) in self.places.items()
            ]
            self._anchor = torch.tensor(np.concatenate(weights), device=self.vector.device)

    @property
    def scale(self) -> float:
        """The factor by which output gradients are multiplied before a backward pass; `add_gradient` divides by it."""
        return self._scale if learning_dtype() == torch.float16 else 1.0

    def minimize(self, loss: Tensor, learning_rate: float, max_norm: float | None) -> float:
        """One step on a loss; returns the gradient's norm before clipping."""
        self.add_loss(loss)
        return self.step(learning_rate, max_norm)[0]

    def add_loss(self, loss: Tensor, fraction: float | None = None, terms: Mapping[str, float] | None = None) -> None:
        """Add the gradient of a piece's mean loss, by autograd, to that of the next step.

        `fraction` is the piece's rows by all learners' rows; None: every learner has one piece, of the same size.
        """
        scale = self.scale  # small gradients would vanish among float16's few exponents
        grads = torch.autograd.grad(loss if scale == 1.0 else scale * loss, self.parameters)
        self.add_gradient(grads, fraction, terms, scale)

    def add_output_grads(
        self,
        forward: Backward,
        output_grads: Sequence[Tensor],
        fraction: float | None = None,
        terms: Mapping[str, float] | None = None,
    ) -> None:
        """The same for a piece that was run forward, given the gradients of its mean loss by the outputs."""
        scale = self.scale
        if scale != 1.0:
            output_grads = [scale * grads for grads in output_grads]
        self.add_gradient(forward.backward(output_grads), fraction, terms, scale)

    def add_gradient(
        self,
        grads: Sequence[Tensor],
        fraction: float | None = None,
        terms: Mapping[str, float] | None = None,
        scale: float = 1.0,
    ) -> None:
        """The same for a piece whose mean gradient is known, `scale` times too large."""
        weight = 1.0 / self.share.ranks if fraction is None else fraction
        if weight != scale:
            grads = tuple(weight / scale * g for g in grads)
        if self._grads:
            grads = tuple(before + g for before, g in zip(self._grads, grads, strict=True))
        self._grads = tuple(grads)
        for name, value in (terms or {}).items():
            self._terms[name] = self._terms.get(name, 0.0) + weight * value

    def step(self, learning_rate: float, max_norm: float | None) -> tuple[float, dict[str, float]]:
        """One step on the gradient that was added; returns its norm before clipping, and the means of the terms."""
        grads, terms = self._grads, self._terms
        self._grads, self._terms = (), {}
        if self.share.ranks > 1:
            grads, terms = self._all_reduce(grads, terms)
        if self._anchor is not None:
            far = torch.split(self._pull * (self.vector - self._anchor), [g.numel() for g in grads])
            grads = tuple(g.flatten() + pull for g, pull in zip(grads, far, strict=True))
        if learning_dtype() == torch.float16 and self._is_too_large(grads):
            return 0.0, terms
        if self.vector.device.type != "cpu":
            return self._step_by_torch(grads, learning_rate, max_norm), terms
        mean, square = self.moments.values()
        grads = tuple(g.contiguous() for g in grads)
        norm = _core.adam_step(
            [(g.data_ptr(), g.numel()) for g in grads],
            learning_rate=learning_rate,
            beta1=BETA1,
            beta2=BETA2,
            eps=self.eps,
            max_norm=max_norm or 0.0,
            step=self.steps + 1,
            parameters=self.vector.data_ptr(),
            first_moment=mean.data_ptr(),
            second_moment=square.data_ptr(),
        )
        self.steps += math.isfinite(norm)
        return norm, terms

    def _is_too_large(self, grads: Grads) -> bool:
        """Whether the scaled loss left float16's range: then the step is skipped, and the next scale is smaller.

        A gradient that is not finite without any scale is reported as such: a smaller scale would not help.
        """
        if self._scale > 1.0 and not all(bool(torch.isfinite(g).all()) for g in grads):
            self._scale, self._fine = max(1.0, self._scale / 2.0), 0
            return True
        self._fine += 1
        if self._fine == PATIENCE:
            self._scale, self._fine = self._scale * 2.0, 0
        return False

    @torch.no_grad()
    def _all_reduce(self, grads: Grads, terms: dict[str, float]) -> tuple[Grads, dict[str, float]]:
        """Sums over all learners, of the gradient and of the terms beside it."""
        numbers = torch.tensor(list(terms.values()), dtype=torch.float32, device=self.vector.device)
        total = summed(self.share, torch.cat([*(g.flatten() for g in grads), numbers]))
        return (total[: len(self.vector)],), dict(zip(terms, total[len(self.vector) :].tolist(), strict=True))

    @torch.no_grad()
    def _step_by_torch(self, grads: Grads, learning_rate: float, max_norm: float | None) -> float:
        """The same on a GPU."""
        grad = torch.cat([g.flatten() for g in grads])
        norm = float(torch.linalg.vector_norm(grad, dtype=torch.float64))
        if not np.isfinite(norm):
            return norm
        if max_norm is not None:
            grad *= min(1.0, max_norm / (norm + 1e-6))
        self.steps += 1
        mean, square = self.moments.values()
        mean.lerp_(grad, 1.0 - BETA1)
        square.mul_(BETA2).addcmul_(grad, grad, value=1.0 - BETA2)
        root = (square / (1.0 - BETA2**self.steps)).sqrt_().add_(self.eps)
        self.vector.addcdiv_(mean, root, value=-learning_rate / (1.0 - BETA1**self.steps))
        return norm

    def arrays(self, prefix: str) -> Arrays:
        """Moments named prefix.parameter.moment and the step count (copies); empty before the first step."""
        if self.steps == 0:
            return {}
        arrays: Arrays = {f"{prefix}.step": np.array(self.steps, np.float32)}
        if (self._scale, self._fine) != (SCALE, 0):
            arrays[f"{prefix}.loss_scale"] = np.array([self._scale, self._fine], np.float64)
        for moment, vector in self.moments.items():
            values = vector.cpu().numpy()
            for name, (place, shape) in self.places.items():
                arrays[f"{prefix}.{name}.{moment}"] = values[place].reshape(shape).copy()
        return arrays

    def load(self, state: Arrays, prefix: str, strict: bool = True) -> None:
        """Take over saved moments; problems are named, and then nothing is changed."""
        if strict:
            own = {"step", "loss_scale", *(f"{name}.{moment}" for name in self.places for moment in MOMENTS)}
            given = {key.removeprefix(f"{prefix}.") for key in state if key.startswith(f"{prefix}.")}
            refuse_differences(own & given, given, prefix)
        loaded = {moment: torch.zeros_like(self.vector) for moment in MOMENTS}
        steps = int(state.get(f"{prefix}.step", np.array(0.0)))
        for moment, vector in loaded.items() if steps else ():
            for name, (place, shape) in self.places.items():
                key = f"{prefix}.{name}.{moment}"
                if key not in state:
                    raise CheckpointError(
                        f"{key}: the saved state lacks it; it comes from another network or algorithm"
                    )
                if state[key].shape != tuple(shape):
                    raise CheckpointError(f"{key}: saved with shape {state[key].shape}, needed {tuple(shape)}")
                vector[place] = torch.from_numpy(np.array(state[key])).flatten().to(vector)
        self.steps = steps
        self._scale, fine = state.get(f"{prefix}.loss_scale", np.array([SCALE, 0.0])).tolist()
        self._fine = int(fine)
        for moment, vector in loaded.items():
            self.moments[moment].copy_(vector)


def flatten_parameters(parameters: list[nn.Parameter]) -> Tensor:
    """Move these parameters into one vector, of which they become views; what is done to it is done to them."""
    if odd := {str(parameter.dtype) for parameter in parameters} - {"torch.float32"}:
        raise ValueError(f"parameters of {', '.join(sorted(odd))} cannot be put in one vector; they must be float32")
    vector = torch.cat([parameter.detach().flatten() for parameter in parameters])
    offset = 0
    for parameter in parameters:
        parameter.data = vector[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    return vector


class TargetNetwork(Generic[Module]):
    """A copy of a network that follows it slowly: the target of a bootstrap, or an average that is evaluated."""

    def __init__(self, network: Module, vector: Tensor) -> None:
        """`vector` holds the network's parameters as one (FlatAdam's)."""
        self.network = copy.deepcopy(network).requires_grad_(False)
        self._source = vector
        self._vector = flatten_parameters(list(self.network.parameters()))

    def follow(self, share: float) -> None:
        """Move this share of the way to the network; 1 copies it."""
        self._vector.lerp_(self._source, share)
