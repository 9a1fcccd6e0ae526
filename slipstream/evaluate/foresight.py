"""A player that looks one decision ahead: of a policy's likely choices the one after which it is soonest over.

How soon is a quantile of the time until success, estimated by a model (`slipstream/run/time_to_success.py`) for what
each choice leads to. A low quantile is optimistic, a high one cautious.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slipstream.data.rollout import F32, F64, U8, Blocks
from slipstream.errors import ScenarioError
from slipstream.nets.actor import Acted, tensors
from slipstream.nets.heads import Categorical
from slipstream.run.policy_file import CPU, Policy
from slipstream.run.time_to_success import Times
from slipstream.worlds.outcome import Look, Outcome

MOST = 6  # choices that are looked at
LIKELY = 0.05  # of the likeliest one's probability, at least


@dataclass(frozen=True)
class Foresighted:
    """A policy's likely choices, judged by what they lead to."""

    policy: Policy
    times: Times
    level: float  # of the quantile, between 0 and 1
    look: Look

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ScenarioError(f"a quantile's level lies between 0 and 1, not at {self.level:g}")
        trained, acts = self.times.record.world, self.policy.record.world
        if trained.obs != acts.obs:
            raise ScenarioError(
                f"the model of times has learned from {trained.name} with {trained.obs_size} inputs, the policy from "
                f"{acts.name} with {acts.obs_size}; train one on the games of the other"
            )

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row; there is no exploration, so no noise."""
        del noise
        logp = self._log_probabilities(obs, mask)
        chosen, outcomes = [likely(row) for row in logp], list[list[Outcome]]()
        for i, choices in enumerate(chosen):
            row = {name: block[i] for name, block in obs.items()}
            outcomes.append(self.look(row, choices) if len(choices) > 1 else [])
        ahead = iter(self._soonest([outcome for row in outcomes for outcome in row]).tolist())
        action = []
        for choices, row_outcomes in zip(chosen, outcomes, strict=True):
            times = [next(ahead) for _ in row_outcomes]
            action.append(choices[int(np.argmin(times))] if times else choices[0])  # of equal ones the likeliest
        taken = np.array(action, np.int32)
        return Acted(taken, logp[np.arange(len(taken)), taken])

    @torch.no_grad()
    def _log_probabilities(self, obs: Blocks, mask: U8 | None) -> F32:
        dist = self.policy.network(tensors(obs, CPU), None if mask is None else torch.from_numpy(mask))
        if not isinstance(dist, Categorical):
            raise ScenarioError("looking ahead is for policies that choose, and this one acts on axes")
        found: F32 = torch.log_softmax(dist.logits, dim=-1).numpy()
        return found

    def _soonest(self, outcomes: Sequence[Outcome]) -> F64:
        """The quantile of the ticks until success by each outcome, at most the model's horizon: what is not expected.

        Among several that are not, being a little sooner lost is no merit; they are equal.
        """
        going = [outcome for outcome in outcomes if outcome.success is None]
        left = iter(self._left(going) if going else ())
        horizon = float(self.times.record.horizon)
        ticks = [o.ticks + (next(left) if o.success is None else 0.0 if o.success else horizon) for o in outcomes]
        return np.minimum(np.array(ticks, np.float64), horizon)

    def _left(self, going: Sequence[Outcome]) -> F64:
        obs = {name: np.concatenate([outcome.obs[name] for outcome in going]) for name in going[0].obs}
        counts = [len(next(iter(outcome.obs.values()))) for outcome in going]
        parts = np.split(self.times.quantiles(obs).astype(np.float64), np.cumsum(counts)[:-1])
        return np.array([np.quantile(part, self.level) for part in parts])  # of what may follow, mixed


def likely(logp: F32) -> list[int]:
    """The choices that are worth a look, the likeliest first."""
    order = np.argsort(-logp, kind="stable")[:MOST]
    return [int(choice) for choice in order if logp[choice] >= logp[order[0]] + np.log(LIKELY)]
