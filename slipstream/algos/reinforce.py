"""REINFORCE (Williams 1992) with a running baseline: the smallest policy gradient, for comparison.

A decision is learned from when its agent's episode ended inside the rollout, so that its return is known and nothing
has to be guessed: without a critic, a return cut at the end of the rollout would be too small by an amount that depends
on what was done. Rollouts should therefore be several episodes long; decisions of episodes that outlast their rollout
are dropped. An episode cut by a time limit counts as ended there, since there is nothing to bootstrap from: what is
maximised is the return up to the limit, and a task whose reward lies beyond it is out of reach.

The baseline is one number for all states, the mean return of the rollouts so far, and returns are scaled by their
deviation. Returns are discounted over durations of any length. One gradient step per rollout.
"""

from __future__ import annotations

from operator import itemgetter
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import ALONE, FlatAdam, Share
from slipstream.algos.extra_losses import ExtraLosses
from slipstream.algos.protocol import Progress, RolloutAlgorithm, StateLayout, Stats, Traits, action_shape
from slipstream.algos.rollout_batch import Values, actor_inputs, flat_rows, gae, observe, split
from slipstream.algos.state import copy_into, refuse_differences
from slipstream.config.algos import ReinforceConfig, schedule_at
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, act
from slipstream.nets.inputs import LENGTHS, Inputs, map_blocks
from slipstream.nets.networks import make_networks
from slipstream.spec import WorldSpec
from slipstream.types import F32, I64, Arrays

SLOWEST = 0.1  # newest rollout's weight in the baseline never falls below this: returns drift as the policy learns


class Reinforce(RolloutAlgorithm):
    """One policy shared by the agents of a team."""

    traits: ClassVar[Traits] = Traits(
        "reinforce", "rollout", continuous=True, discrete=True, masks=True, durations=True, parts=True
    )
    layout: ClassVar[StateLayout] = StateLayout(("actor",), numbers={"baseline": Rule("baseline")})

    def __init__(self, config: ReinforceConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        networks = make_networks(config, spec, action_shape(config, self.traits, spec), seed, device)
        self.actor = networks.actor(init_log_std=config.init_log_std)
        self.baseline = np.zeros(3)  # mean return, mean squared return, rollouts
        self.share: Share = ALONE
        self.optimiser = FlatAdam({"actor": self.actor}, config.adam_eps)
        self.extra = ExtraLosses(config.extra_losses)
        self.modules = {"actor": self.actor}
        self.optimisers = {"optim": self.optimiser}

    def numbers(self) -> Arrays:
        """The baseline."""
        return {"baseline": self.baseline.copy()}

    def load_numbers(self, state: Arrays, strict: bool) -> None:
        """Take over the baseline."""
        if strict:
            refuse_differences({"baseline"}, {"baseline"} & state.keys(), "reinforce")
        if "baseline" in state:
            copy_into(torch.from_numpy(self.baseline), state["baseline"], "baseline")

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Returns of finished episodes, one gradient step; the observation statistics move last."""
        config = self.config
        learning_rate = schedule_at(config.learning_rate, progress.fraction)
        entropy_coef = schedule_at(config.entropy_coef, progress.fraction)

        returns, index = episode_returns(rollout, config.gamma)
        if len(index) == 0:
            observe(rollout, self.actor)
            return {"rows": 0.0}
        advantage = torch.from_numpy(self._judge(returns)).to(self.device)
        index, advantage, fraction, lengths = self._own(rollout, index, advantage)
        take = torch.from_numpy(index).to(self.device)
        inputs = map_blocks(actor_inputs(self.actor, rollout.obs, leading=3), itemgetter(take))
        if lengths is not None:
            inputs[LENGTHS] = torch.from_numpy(lengths).to(self.device)
        mask = None if rollout.mask is None else flat_rows(rollout.mask, index, self.device)
        dist = self.actor.distribution(inputs, mask)
        action = flat_rows(rollout.action, index, self.device)
        policy = policy_loss(dist.logp(action), advantage)
        entropy = dist.entropy().mean()
        terms = {"policy_loss": float(policy.detach()), "entropy": float(entropy.detach())}
        loss = policy - entropy_coef * entropy
        if self.extra:
            self.extra.fraction = progress.fraction
            more, own = self.extra.total(dist, PolicyRows(inputs, action, mask))
            loss, terms = loss + more, terms | own
        self.optimiser.add_loss(loss, fraction=fraction, terms=terms)
        norm, terms = self.optimiser.step(learning_rate, config.max_grad_norm)
        observe(rollout, self.actor)
        return {
            **terms,
            "return_baseline": float(self.baseline[0]),
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "entropy_coef": entropy_coef,
            "rows": float(len(returns)),
        }

    def _own(self, rollout: Rollout, index: I64, advantage: Tensor) -> tuple[I64, Tensor, float, I64 | None]:
        """The rows of this learner's share, what fraction of all they are, and lengths of sequences with a memory."""
        ranks, rank, rows = self.share.ranks, self.share.rank, len(index)
        if self.actor.sequence:
            from slipstream.algos.sequences import in_sequences, share_of_sequences

            found = in_sequences(rollout, index, self.actor.sequence)
            mine, fraction = share_of_sequences(found.lengths, rank, ranks)
            chosen = found.rows[mine.rows]
            return chosen, advantage[np.searchsorted(index, chosen)], fraction, mine.lengths
        if ranks == 1 or rows < ranks:
            return index, advantage, 1.0 / ranks, None
        part = split(rows, ranks)[rank]
        return index[part], advantage[part.start : part.stop], (part.stop - part.start) / rows, None

    def _judge(self, returns: F32) -> F32:
        """How much better than the baseline each return is, after the baseline has taken them in."""
        if np.isfinite(returns).all():  # a baseline of NaN would never recover
            weight = max(SLOWEST, 1.0 / (1.0 + self.baseline[2]))
            moments = np.array([returns.mean(dtype=np.float64), np.square(returns, dtype=np.float64).mean()])
            self.baseline[:2] += weight * (moments - self.baseline[:2])
            self.baseline[2] += 1.0
        mean, square, _ = self.baseline
        return np.asarray((returns - mean) / np.sqrt(max(square - mean**2, 1e-8)), np.float32)


class PolicyRows(NamedTuple):
    """Rows as losses of the user's see them."""

    inputs: Inputs  # standardised
    action: Tensor
    mask: Tensor | None


def episode_returns(rollout: Rollout, gamma: float) -> tuple[F32, NDArray[np.int64]]:
    """Discounted returns of the decisions whose episode ended in the rollout, and their flat rows."""
    rows, worlds, agents = rollout.shape
    nothing = np.zeros((rows, worlds * agents), np.float32)
    estimates = gae(rollout, Values(nothing, nothing[0], nothing), gamma, 1.0)
    ended = rollout.paid & (rollout.terminated | rollout.truncated)
    ends_later = np.logical_or.accumulate(ended.reshape(rows, -1)[::-1] != 0)[::-1]
    index = np.flatnonzero((estimates.complete != 0) & ends_later)
    return estimates.target.reshape(-1)[index], index


def policy_loss(logp: Tensor, advantage: Tensor) -> Tensor:
    """-advantage · log π (to minimise)."""
    return -(advantage * logp).mean()
