"""REINFORCE (Williams 1992) with a running baseline: the smallest policy gradient, for comparison.

A decision is learned from when its agent's episode ended inside the slab, so that its return is known and nothing has
to be guessed: without a critic, a return cut at the end of the slab would be too small by an amount that depends on
what was done. Slabs should therefore be several episodes long; decisions of episodes that outlast their slab are
dropped. An episode cut by a time limit counts as ended there, since there is nothing to bootstrap from: what is
maximised is the return up to the limit, and a task whose reward lies beyond it is out of reach.

The baseline is one number for all states, the mean return of the slabs so far, and returns are scaled by their
deviation. Returns are discounted over durations of any length. One gradient step per slab.
"""

from __future__ import annotations

from operator import itemgetter
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import FlatAdam
from slipstream.algos.batch import actor_inputs, flat_rows, observe, split
from slipstream.algos.protocol import Arrays, Progress, StateLayout, Stats, Traits, action_shape
from slipstream.algos.returns import Values, gae
from slipstream.algos.share import ALONE, Share
from slipstream.algos.state import copy_into, load_module, module_arrays, refuse_differences, refuse_unknown
from slipstream.config.algos import ReinforceConfig, schedule_at
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import F32, Blocks, Rollout
from slipstream.nets.actor import Acted, ActorSpec, act
from slipstream.nets.blocks import pick
from slipstream.nets.networks import make_networks
from slipstream.spec import WorldSpec

SLOWEST = 0.1  # newest slab's weight in the baseline never falls below this: returns drift as the policy learns


class Reinforce:
    """One policy shared by the agents of a team."""

    traits: ClassVar[Traits] = Traits(
        "reinforce", "rollout", continuous=True, discrete=True, masks=True, durations=True
    )
    layout: ClassVar[StateLayout] = StateLayout(("actor",), numbers={"baseline": Rule("baseline")})

    def __init__(self, config: ReinforceConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        networks = make_networks(config, spec, action_shape(config, self.traits, spec), seed, device)
        self.actor = networks.actor(init_log_std=config.init_log_std)
        self.baseline = np.zeros(3)  # mean return, mean squared return, slabs
        self.share: Share = ALONE
        self.optimiser = FlatAdam({"actor": self.actor}, config.adam_eps)

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        self.share = self.optimiser.share = share

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def explore(self, progress: Progress) -> None:
        """The policy's own entropy is the exploration."""

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
        index, advantage, part = self._own(index, advantage)
        take = torch.from_numpy(index).to(self.device)
        inputs = pick(actor_inputs(self.actor, rollout.obs, leading=3), itemgetter(take))
        mask = None if rollout.mask is None else flat_rows(rollout.mask, index, self.device)
        dist = self.actor.distribution(inputs, mask)
        policy = policy_loss(dist.logp(flat_rows(rollout.action, index, self.device)), advantage)
        entropy = dist.entropy().mean()
        terms = {"policy_loss": float(policy.detach()), "entropy": float(entropy.detach())}
        self.optimiser.add_loss(policy - entropy_coef * entropy, part=part, terms=terms)
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

    def _own(self, index: NDArray[np.int64], advantage: Tensor) -> tuple[NDArray[np.int64], Tensor, float]:
        """The rows of this learner's share, and what part of all they are."""
        ranks, rows = self.share.ranks, len(index)
        if ranks == 1 or rows < ranks:
            return index, advantage, 1.0 / ranks
        mine = split(rows, ranks)[self.share.rank]
        return index[mine], advantage[mine.start : mine.stop], (mine.stop - mine.start) / rows

    def _judge(self, returns: F32) -> F32:
        """How much better than the baseline each return is, after the baseline has taken them in."""
        if np.isfinite(returns).all():  # a baseline of NaN would never recover
            weight = max(SLOWEST, 1.0 / (1.0 + self.baseline[2]))
            moments = np.array([returns.mean(dtype=np.float64), np.square(returns, dtype=np.float64).mean()])
            self.baseline[:2] += weight * (moments - self.baseline[:2])
            self.baseline[2] += 1.0
        mean, square, _ = self.baseline
        return np.asarray((returns - mean) / np.sqrt(max(square - mean**2, 1e-8)), np.float32)

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""
        return self.actor.spec

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics."""
        return module_arrays(self.actor, "actor")

    def pull_towards(self, reference: Arrays, strength: float) -> None:
        """Stay near these weights: every loss gains strength / 2 times the squared distance to them (FedProx)."""
        self.optimiser.pull_towards(reference, strength)

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Network, statistics and baseline; with the optimiser's moments unless told otherwise."""
        state = {**module_arrays(self.actor, "actor"), "baseline": self.baseline.copy()}
        return state | self.optimiser.arrays("optim") if include_optim else state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named."""
        refuse_unknown(state, self.layout.parts, strict)
        load_module(self.actor, state, "actor", strict)
        if strict:
            refuse_differences({"baseline"}, {"baseline"} & state.keys(), "reinforce")
        if "baseline" in state:
            copy_into(torch.from_numpy(self.baseline), state["baseline"], "baseline")
        if include_optim:
            self.optimiser.load(state, "optim", strict)


def episode_returns(rollout: Rollout, gamma: float) -> tuple[F32, NDArray[np.int64]]:
    """Discounted returns of the decisions whose episode ended in the slab, and their flat rows."""
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
