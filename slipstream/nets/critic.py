"""The value network, with targets standardised in a way that leaves its output unchanged (PopArt)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from slipstream.nets.inputs import VECTOR, Inputs, RunningNorm
from slipstream.nets.mlp import Linear
from slipstream.nets.torso import Network, Torso, forward_together

SLOWEST = 0.1  # newest batch's weight in the target statistics never falls below this: returns drift as policies learn


class Critic(nn.Module):
    """Inputs (or an actor's features) -> value; predicts (value - mean) / deviation of the targets seen so far."""

    mean: Tensor
    deviation: Tensor
    batches: Tensor

    def __init__(self, torso: Torso | None, features: int, generator: torch.Generator, state_size: int = 0) -> None:
        """A critic with a torso of its own, or None to read the actor's features; `features` is the head's width."""
        super().__init__()
        self.torso = torso
        self._state_size = 0 if torso is not None else state_size  # of the global state, which no torso reads
        self.head = Linear(features + self._state_size, 1, 1.0, generator)
        self.state_norm = RunningNorm(state_size) if state_size else None
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("deviation", torch.ones((), dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.float64))

    @property
    def network(self) -> Network | None:
        """Torso and head; None where the actor's torso is shared."""
        return None if self.torso is None else Network(self.torso, self.head)

    def forward(self, features: Tensor | None, inputs: Inputs) -> Tensor:
        """Standardised value, [rows]; reads the actor's `features` when it has no torso of its own."""
        if self.torso is not None:
            out: Tensor = self.torso(inputs, self.head)
            return out.squeeze(-1)
        assert features is not None
        out = self.head(self.head_inputs(features, inputs))
        return out.squeeze(-1)

    def head_inputs(self, features: Tensor, inputs: Inputs) -> Tensor:
        """What the head reads beside an actor's features: the global state, where there is one."""
        if not self._state_size:
            return features
        return torch.cat([features, inputs[VECTOR][:, : self._state_size]], 1)  # it stands first in the vector

    def value(self, features: Tensor | None, inputs: Inputs) -> Tensor:
        """Value in units of reward, [rows]."""
        out: Tensor = self(features, inputs) * self.deviation.float() + self.mean.float()
        return out

    def standardise(self, value: Tensor) -> Tensor:
        """Units of reward -> what forward predicts."""
        return (value - self.mean.float()) / self.deviation.float()

    def norm_state(self, state: Tensor) -> Tensor:
        """Standardised global state."""
        return state if self.state_norm is None else self.state_norm(state)

    def observe_state(self, state: Tensor) -> None:
        """Take global states into their statistics."""
        if self.state_norm is not None:
            self.state_norm.update(state.to(self.mean.device))

    @torch.no_grad()
    def rescale(self, targets: Tensor) -> None:
        """Move the target statistics towards these, and the head the other way, so that `value` stays the same."""
        if (
            len(targets) < 2 or not torch.isfinite(targets).all()
        ):  # statistics of NaN would stay NaN, and the head with them
            return
        targets = targets.to(torch.float64)
        weight = max(SLOWEST, 1.0 / (1.0 + float(self.batches)))
        second = (1.0 - weight) * (self.deviation.square() + self.mean.square()) + weight * targets.square().mean()
        mean = (1.0 - weight) * self.mean + weight * targets.mean()
        deviation = (second - mean.square()).clamp_min(1e-8).sqrt()
        self.head.weight.mul_(self.deviation / deviation)
        self.head.bias.mul_(self.deviation / deviation).add_((self.mean - mean) / deviation)
        self.mean.copy_(mean)
        self.deviation.copy_(deviation)
        self.batches += 1.0


class ActionCritics(nn.Module):
    """Several critics of the same shape, trained alike but begun apart: inputs -> one value each, or one per choice."""

    def __init__(self, torsos: Sequence[Torso]) -> None:
        super().__init__()
        self.networks = tuple(Network(torso) for torso in torsos)
        self.members = nn.ModuleList(torsos)  # type: ignore[arg-type]

    def forward(self, *inputs: Inputs) -> Tensor:
        """Values [members, rows, outputs], of the same inputs or of each member's own."""
        if len(inputs) == 1:
            return torch.stack(forward_together(self.networks, inputs[0]))
        return torch.stack([network(own) for network, own in zip(self.networks, inputs, strict=True)])
