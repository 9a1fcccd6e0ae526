"""Adam over all parameters of a learner as one vector.

A small network has a dozen tensors, and the work per tensor (norms, scaling, one step each) costs more than the
arithmetic. Here the parameters are views of one vector, so that clipping and stepping are a handful of operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from slipstream.algos.protocol import Arrays
from slipstream.config.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq")


class FlatAdam:
    """Kingma & Ba 2015 with gradient-norm clipping; saved per parameter, as if it were many."""

    def __init__(self, named: Mapping[str, nn.Parameter], eps: float = 1e-5) -> None:
        self.vector = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in named.values()]))
        self.places: dict[str, tuple[slice, torch.Size]] = {}
        offset = 0
        for name, parameter in named.items():
            place = slice(offset, offset + parameter.numel())
            self.places[name] = (place, parameter.shape)
            parameter.data = self.vector.data[place].view(parameter.shape)
            offset = place.stop
        self._adam = torch.optim.Adam([self.vector], eps=eps, fused=True)

    def step(self, grads: Sequence[Tensor], learning_rate: float, max_norm: float | None) -> Tensor:
        """One step along these gradients, in the order of the parameters; returns their norm before clipping.

        Gradients that are not finite are skipped: a step on NaN would poison the weights for good.
        """
        grad = torch.cat([g.flatten() for g in grads])
        norm: Tensor = torch.linalg.vector_norm(grad)
        if not torch.isfinite(norm):
            return norm
        if max_norm is not None:
            grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        self.vector.grad = grad
        self._adam.param_groups[0]["lr"] = learning_rate
        self._adam.step()
        return norm

    def arrays(self, prefix: str) -> Arrays:
        """Moments named prefix.parameter.moment and the step count (copies); empty before the first step."""
        state = self._adam.state.get(self.vector)
        if not state:
            return {}
        arrays: Arrays = {f"{prefix}.step": state["step"].detach().cpu().numpy().copy()}
        for moment in MOMENTS:
            values = state[moment].detach().cpu().numpy()
            for name, (place, shape) in self.places.items():
                arrays[f"{prefix}.{name}.{moment}"] = values[place].reshape(shape).copy()
        return arrays

    def load(self, state: Arrays, prefix: str) -> None:
        """Take over saved moments; problems are named, and then nothing is changed."""
        if f"{prefix}.step" not in state:
            self._adam.state.pop(self.vector, None)
            return
        slots = {"step": torch.from_numpy(np.array(state[f"{prefix}.step"], np.float32))}
        for moment in MOMENTS:
            flat = torch.empty_like(self.vector.data)
            for name, (place, shape) in self.places.items():
                key = f"{prefix}.{name}.{moment}"
                if key not in state:
                    raise CheckpointError(
                        f"{key}: the saved state lacks it; it comes from another network or algorithm"
                    )
                if state[key].shape != tuple(shape):
                    raise CheckpointError(f"{key}: saved with shape {state[key].shape}, needed {tuple(shape)}")
                flat[place] = torch.from_numpy(np.array(state[key])).flatten().to(flat)
            slots[moment] = flat
        self._adam.state[self.vector] = slots
