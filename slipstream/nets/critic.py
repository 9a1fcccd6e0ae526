"""The value network, with targets standardised in a way that leaves its output unchanged (PopArt)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slipstream.nets.boards import BoardSpec, ColumnTorso
from slipstream.nets.normalise import RunningNorm
from slipstream.nets.torsos import Linear, Mlp, Pass, run

SLOWEST = 0.1  # newest batch's weight in the target statistics never falls below this: returns drift as policies learn


class Critic(nn.Module):
    """Inputs (or an actor's features) -> value; predicts (value - mean) / deviation of the targets seen so far."""

    mean: Tensor
    deviation: Tensor
    batches: Tensor

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...],
        activation: str,
        shared_torso: bool,
        state_size: int,
        generator: torch.Generator,
        board: BoardSpec | None = None,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.torso: Mlp | ColumnTorso | None = None
        if board is not None:
            self.torso = ColumnTorso(board, hidden, activation, generator)
        elif not shared_torso:
            self.torso = Mlp((inputs, *hidden), activation, None, generator)
        self.head = Linear((inputs, *hidden)[-1], 1, 1.0, generator)
        self.state_norm = RunningNorm(state_size) if state_size else None
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("deviation", torch.ones((), dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.float64))

    def forward(self, features: Tensor | None, x: Tensor) -> Tensor:
        """Standardised value, [rows]; reads `features` of the actor when it has no torso of its own."""
        out: Tensor = self.torso(x, self.head) if self.torso is not None else self.head(features)
        return out.squeeze(-1)

    def value(self, features: Tensor | None, x: Tensor) -> Tensor:
        """Value in units of reward, [rows]."""
        out: Tensor = self(features, x) * self.deviation.float() + self.mean.float()
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
        if len(targets) < 2 or not torch.isfinite(targets).all():  # statistics of NaN would poison the head for good
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

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
        members: int = 2,
    ) -> None:
        super().__init__()
        self._mlps = tuple(Mlp((inputs, *hidden, outputs), activation, 1.0, generator) for _ in range(members))
        self.members = nn.ModuleList(self._mlps)

    def forward(self, x: Tensor) -> Tensor:
        """Values [members, rows, outputs]."""
        return torch.stack(run(*self.over(x)))

    def over(self, x: Tensor, members: int | None = None) -> list[Pass]:
        """The passes that `forward` makes, those of the first `members`, for who wants to know the way back."""
        return [member.over(x) for member in self._mlps[:members]]
