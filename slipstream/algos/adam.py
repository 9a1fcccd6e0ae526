"""Adam over all parameters of a learner as one vector.

A small network has a dozen tensors, and the work per tensor (norms, scaling, one step each) costs more than the
arithmetic. Here the parameters are views of one vector, and clipping and stepping are one native call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream import _core
from slipstream.algos.protocol import Arrays
from slipstream.config.errors import CheckpointError

BETA1, BETA2 = 0.9, 0.999
MOMENTS = ("exp_avg", "exp_avg_sq")
Slopes = Sequence[Tensor] | None


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
        self._anchors: tuple[Tensor, ...] = ()  # by parameter, while there is a pull
        self._pull = 0.0

    def pull_towards(self, reference: Mapping[str, NDArray[Any]], strength: float) -> None:
        """From now on every loss has strength / 2 times the squared distance to these weights (FedProx); 0: none.

        Weights of other networks may be among them.
        """
        self._pull, self._anchors = strength, ()
        if strength > 0.0:
            wanted = [
                np.asarray(reference[name], np.float32).reshape(shape) for name, (_, shape) in self.places.items()
            ]
            self._anchors = tuple(torch.tensor(array, device=self.vector.device) for array in wanted)

    def step(
        self, loss: Tensor | Sequence[Tensor], learning_rate: float, max_norm: float | None, slopes: Slopes = None
    ) -> float:
        """One step down a loss, or down what has these slopes by several tensors; returns the gradient's norm.

        The norm is that before clipping. A gradient that is not finite is skipped: a step on NaN would poison the
        weights for good.
        """
        grads = torch.autograd.grad(loss, self.parameters, slopes)
        if self._anchors:
            near = zip(grads, self.parameters, self._anchors, strict=True)
            grads = tuple(g + self._pull * (p.detach() - anchor) for g, p, anchor in near)
        mean, square = self.moments.values()
        if self.vector.device.type != "cpu":
            return self._step_by_torch(grads, learning_rate, max_norm)
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
        self.steps += int(np.isfinite(norm))
        return norm

    @torch.no_grad()
    def _step_by_torch(self, grads: tuple[Tensor, ...], learning_rate: float, max_norm: float | None) -> float:
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
        for moment, vector in self.moments.items():
            values = vector.cpu().numpy()
            for name, (place, shape) in self.places.items():
                arrays[f"{prefix}.{name}.{moment}"] = values[place].reshape(shape).copy()
        return arrays

    def load(self, state: Arrays, prefix: str) -> None:
        """Take over saved moments; problems are named, and then nothing is changed."""
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
