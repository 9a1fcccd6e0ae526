"""DQN (Mnih et al. 2015): values of discrete choices, learned from replay.

With double targets (van Hasselt et al. 2016), dueling heads (Wang et al. 2016), n-step returns and prioritised replay
(both in `algo.replay`), and quantiles of the return instead of its mean (QR-DQN, Dabney et al. 2018). Where we depart
from the papers: masks forbid choices in acting and in bootstraps; a truncated episode bootstraps from its final
observation; the target network is refreshed by gradient steps, not by frames. With a memory it is R2D2 (Kapturowski et
al. 2019) without its rescaling of values: `algos/remembered.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import ALONE, FlatAdam, Share, TargetNetwork, joined
from slipstream.algos.losses import (
    HUBER,
    GradientStep,
    Loss,
    autograd_loss,
    gradient_step,
    quantile_loss,
    quantile_losses,
)
from slipstream.algos.offpolicy import (
    RowPrivacy,
    Rows,
    RowSlice,
    coin,
    over_pieces,
    pieces_of,
    random_actions,
    rows_of,
    saved_steps,
)
from slipstream.algos.protocol import Progress, ReplayAlgorithm, StateLayout, Traits, UpdateResult, action_shape
from slipstream.algos.remembered import actor_rows
from slipstream.config.algos import DqnConfig, schedule_at
from slipstream.config.algos.offpolicy import QuantileValues
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample, Transitions
from slipstream.errors import ScenarioError
from slipstream.nets.actor import Acted, act, tensors
from slipstream.nets.heads import masked
from slipstream.nets.inputs import VECTOR
from slipstream.nets.networks import make_networks
from slipstream.nets.runner import Forward, runner_of
from slipstream.spec import WorldSpec
from slipstream.types import Arrays


class Dqn(ReplayAlgorithm):
    """Values of every choice, shared by the agents of a team; the best is taken."""

    traits: ClassVar[Traits] = Traits(
        "dqn", "replay", continuous=False, discrete=True, masks=True, durations=True, lagged=True
    )
    layout: ClassVar[StateLayout] = StateLayout(("actor",), ("target",), {"steps": Rule("count")})

    def __init__(self, config: DqnConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config, self.device = config, device
        networks = make_networks(config, spec, action_shape(config, self.traits, spec), seed, device)
        quantiles = config.values.quantiles if isinstance(config.values, QuantileValues) else 1
        self.actor = networks.actor(head="values", quantiles=quantiles, dueling=config.dueling)
        self.share: Share = ALONE
        self.optimiser = FlatAdam({"actor": self.actor}, config.adam_eps)
        self.target = TargetNetwork(self.actor, self.optimiser.vector)
        self.runner = runner_of(self.actor)
        self.steps = 0  # gradient steps taken
        self.epsilon = 1.0
        self.private: RowPrivacy | None = None
        self.modules = {"actor": self.actor, "target": self.target.network}
        self.optimisers = {"optim": self.optimiser}

    def numbers(self) -> Arrays:
        """Gradient steps taken, which noise and delays are counted by."""
        return {"steps": np.array(self.steps, np.int64)}

    def load_numbers(self, state: Arrays, strict: bool) -> None:
        """Take over the number of gradient steps."""
        self.steps = saved_steps(state, self.steps, strict)

    def hide_rows(self, private: RowPrivacy) -> None:
        """From now on take gradients from `private`, in which no single row stands out (DP-SGD)."""
        options = "".join(f" with {name}" for name in self.actor.spec.layout if self.actor.spec.network == "mlp")
        if self.actor.spec.network != "mlp" or options:
            raise ScenarioError(
                f"federated.dp_sgd: gradients of single rows are known for plain perceptrons only, not for network "
                f"{self.actor.spec.network}{options}; use algo.network mlp without options"
            )
        self.private = private

    def explore(self, progress: Progress) -> None:
        """Act at random until there is enough to learn from, then as scheduled."""
        warming_up = progress.steps < self.config.learning_starts
        self.epsilon = 1.0 if warming_up else schedule_at(self.config.epsilon, progress.fraction)

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """The best choice of every row; with noise, some rows choose at random."""
        chosen = act(self.actor, obs, mask, None, self.device)
        if noise is None:
            return chosen
        return chosen._replace(
            action=np.where(coin(noise, mask) < self.epsilon, random_actions(noise, mask, True), chosen.action)
        )

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""
        self.actor.observe(tensors(rows.obs, self.device))

    def update(self, sample: Sample, progress: Progress) -> UpdateResult:
        """Targets, values, and now and then a new target network."""
        rate = schedule_at(self.config.learning_rate, progress.fraction)
        rows = rows_of(sample, self.actor, self.device, self.share, self.config.replay.n_step)
        pieces = [
            piece._replace(rows=actor_rows(self.actor, piece.rows))
            for piece in pieces_of(rows, 1 if self.private is not None else self.config.accumulate, self.share)
        ]
        best = over_pieces(pieces, lambda piece: self._next_quantiles(piece.rows))
        target = rows.reward.unsqueeze(1) + rows.discount.unsqueeze(1) * best
        loss, td_error, norm = self._step(pieces, target, rate)
        self.steps += 1
        if self.steps % self.config.target_update == 0:
            self.target.follow(1.0)
        stats: dict[str, float | Tensor] = {
            **({"value_loss": loss, "q_mean": target.mean()} if len(target) else {}),
            "grad_norm": norm,
            "learning_rate": rate,
            "epsilon": self.epsilon,
        }
        return UpdateResult(stats, joined(self.share, td_error))

    def _step(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> GradientStep:
        """Minimise the error of the values of the choices taken; reports how wrong each is, [B]."""

        def loss(piece: RowSlice, out: Tensor) -> tuple[Tensor, Tensor]:
            rows = piece.rows
            return quantile_loss(taken(self.actor.as_quantiles(out), rows.action), target[piece.at], rows.weight)

        def loss_of(piece: RowSlice) -> tuple[Forward, Loss]:
            forward, rows = self.runner.forward(piece.rows.inputs), piece.rows
            if self.actor.spec.quantiles == 1 and not self.actor.spec.dueling:
                (out,) = forward.outputs
                return forward, huber_grads(out, rows.action, target[piece.at], rows.weight)
            return forward, autograd_loss(partial(loss, piece), *forward.outputs)

        if self.private is None:
            return gradient_step(self.optimiser, pieces, loss_of, rate, self.config.max_grad_norm)
        (draw,) = pieces
        rows = draw.rows
        value, td_error = loss(draw, *self.runner.forward(rows.inputs).outputs)
        grads = self.private.gradients(self._row_losses, rows.inputs[VECTOR], rows.action, target)
        self.optimiser.add_gradient(grads)
        norm, _ = self.optimiser.step(rate, self.config.max_grad_norm)
        return GradientStep(value, td_error, norm)

    def _row_losses(self, out: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """The loss of every row, from the network's plain outputs."""
        return quantile_losses(taken(out.view(len(out), self.actor.spec.outputs, -1), action), target)[0]

    @torch.no_grad()
    def _next_quantiles(self, rows: Rows) -> Tensor:
        """Quantiles of the best choice of what follows, [B, quantiles]; `double` lets the learning network choose."""
        judged = self.target.network.quantiles(actor_rows(self.target.network, rows).next_inputs)
        choosing = self.actor.quantiles(rows.next_inputs) if self.config.double else judged
        return rows.following(taken(judged, masked(choosing.mean(2), rows.next_mask).argmax(1)))


def taken(quantiles: Tensor, action: Tensor) -> Tensor:
    """The quantiles of one choice per row: [B, choices, quantiles] and [B] -> [B, quantiles]."""
    index = action.view(-1, 1, 1).expand(-1, 1, quantiles.shape[2])
    return quantiles.gather(1, index).squeeze(1)


def huber_grads(out: Tensor, action: Tensor, target: Tensor, weight: Tensor) -> Loss:
    """`quantile_loss` of the plain value of one choice a row, from the outputs [B, choices], with its output gradient.

    It has autograd's bits.
    """
    index = action.unsqueeze(1)
    error = target - out.gather(1, index)  # [B, 1]
    size, clipped = error.abs(), error.clamp(-HUBER, HUBER)
    loss = (weight * torch.where(size <= HUBER, 0.5 * error.square(), HUBER * (size - 0.5 * HUBER)).squeeze(1)).mean()
    of_rows = (weight * (1.0 / len(weight))).unsqueeze(1)
    return Loss(loss, size.squeeze(1), [torch.zeros_like(out).scatter_(1, index, of_rows * -clipped)])
