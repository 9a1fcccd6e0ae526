"""After a round: the clients' policies, as one ensemble, are distilled into a student, and it is played who is better.

Whoever closes the round does it, with nothing that a client has not sent: observations come from episodes that the
clients' policies and the aggregate play here. All of it is drawn from the scenario's `federated.init_seed` and the
number of the round, so that whoever does it again comes to the same. Only the acting network can change; critics,
statistics and all else are the aggregate's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import FlatAdam
from slipstream.algos.state import AVERAGE, load_module, module_arrays
from slipstream.collect.episodes import Episodes, play
from slipstream.collect.teams import Team
from slipstream.config.algos import DqnConfig
from slipstream.config.federated import DistillConfig
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.data.rollout import Blocks
from slipstream.errors import FederationError, ScenarioError
from slipstream.federate.aggregate import MergeReport
from slipstream.federate.distill import (
    Axes,
    Choices,
    DistilledComparison,
    Policy,
    Student,
    choose,
    distill,
    matched,
    mixture,
)
from slipstream.federate.update import ClientUpdate
from slipstream.nets.actor import Acted, Actor, ActorSpec, act, make_actor, tensors
from slipstream.nets.heads import Categorical, Distribution, Gaussian, Squashed
from slipstream.nets.inputs import flatten
from slipstream.run.setup import make_cast, make_evaluation_worlds
from slipstream.spec import WorldSpec
from slipstream.types import F32, U8, Arrays
from slipstream.worlds.vec_env import VecEnv

CPU = torch.device("cpu")
AGGREGATE, DISTILLED = "aggregate", "distilled"
MAX_GRAD_NORM = 1.0
OWN = 1 << 61  # keeps the episodes played here apart from those of a run with the same seed


def refuse_distilling(scenario: Scenario, spec: WorldSpec) -> None:
    """Refuse distillation without a stochastic policy, of actions with parts, or with other policies that change."""
    if spec.action.parts:
        raise ScenarioError(
            f"federated.distill: an action in {spec.name} has {spec.action.words}, and a student learns one choice or "
            "axes alone; leave it out"
        )
    others = [
        name
        for name, policy in scenario.policies.items()
        if policy.from_run and name not in shared_policies(scenario)[:1]
    ]
    if others:
        raise ScenarioError(
            f"federated.distill: policies are compared by playing them, and '{others[0]}' plays otherwise in every "
            "client; it works where all other policies are scripted or frozen"
        )
    if isinstance(scenario.algo_of(shared_policies(scenario)[0]), DqnConfig):
        raise ScenarioError(
            "federated.distill: dqn learns values, not chances of choices, so there is no divergence to bring down; "
            "leave it out"
        )


def distilled_round(
    scenario: Scenario, policy: str, updates: Sequence[ClientUpdate], merged: Arrays, report: MergeReport
) -> tuple[Arrays, MergeReport]:
    """The aggregate, or with the distilled policy in it where that plays better; the report says which, and by what."""
    config = scenario.federated.distill
    assert config is not None
    worlds = make_evaluation_worlds(scenario, config.episodes)
    try:
        stage = _Stage(scenario, policy, worlds, config.episodes, updates[0].round)
        arrays, said = _compare(config, stage, {u.client: u.arrays for u in updates}, merged, report)
    except FederationError as error:  # the round has an aggregate all the same
        arrays, said = merged, DistilledComparison(AGGREGATE, reason=str(error))
    finally:
        worlds.close()
    return arrays, msgspec.structs.replace(report, distilled=said)


class _Stage:
    """Where candidates play: the same episodes for all."""

    def __init__(self, scenario: Scenario, policy: str, worlds: VecEnv, episodes: int, number: int) -> None:
        cast = make_cast(scenario, worlds.spec)
        self.spec: ActorSpec = cast.learners[policy].actor_spec()
        if self.spec.blocks or self.spec.entities:
            named = ", ".join([b.name for b in self.spec.blocks] + [rows.block for rows in self.spec.entities])
            raise FederationError(f"distillation reads observations as one vector; {self.spec.network} reads {named}")
        self.seed = (scenario.federated.init_seed * 1_000_003 + number) % OWN ^ OWN
        self._teams, self._policy, self._worlds, self._episodes = cast.teams, policy, worlds, episodes

    def actor(self, arrays: Arrays) -> Actor:
        """The acting network among these arrays."""
        network = make_actor(self.spec)
        load_module(network, arrays, "actor", strict=True)
        return network

    def play(self, actor: Actor, first: int) -> tuple[Episodes, F32]:
        """Episodes from number `first` on, and all the rows that the actor was asked about."""
        player = _Watching(actor)

        def seated(team: Team) -> Team:
            return replace(team, player=player) if team.policy == self._policy else team

        teams = [seated(team) for team in self._teams]
        played = play(self._worlds, teams, self._episodes, self.seed, first)
        return played, np.concatenate(player.seen)


def _compare(
    config: DistillConfig, stage: _Stage, clients: dict[str, Arrays], merged: Arrays, report: MergeReport
) -> tuple[Arrays, DistilledComparison]:
    teachers = {client: stage.actor(clients[client]) for client in report.chosen}
    student = stage.actor(merged)
    seen = np.concatenate([stage.play(actor, 0)[1] for _, actor in sorted(teachers.items())])
    seen = np.concatenate([seen, stage.play(student, 0)[1]])
    rng = np.random.default_rng(stage.seed)
    rows = seen[np.sort(rng.permutation(len(seen))[: config.observations])]
    weights = [report.shares[client] for client in sorted(teachers)]
    combine: Any = partial(mixture if stage.spec.discrete else matched, weights=weights)
    policies: dict[str, Policy[Any]] = {client: partial(_doing, actor) for client, actor in teachers.items()}
    learner = _student(student, config.learning_rate)
    result = distill(policies, learner, rows, combine=combine, seed=stage.seed, epochs=config.epochs)
    candidates = {AGGREGATE: merged, DISTILLED: with_actor(merged, result.arrays)}

    def score(arrays: Arrays) -> float:
        fresh = config.episodes  # the first of those that no observation comes from
        return float(stage.play(stage.actor(arrays), fresh)[0].team_returns.mean())

    chosen = choose(candidates, score, AGGREGATE, config.margin)
    said = DistilledComparison(chosen.name, chosen.scores, result.divergence, result.began_at, result.epochs)
    return candidates[chosen.name], said


def with_actor(merged: Arrays, actor: Arrays) -> Arrays:
    """These arrays with another acting network, also where its weights are averaged over time."""
    averaged = {f"{AVERAGE}.{name.partition('.')[2]}": array for name, array in actor.items()}
    return {**merged, **actor, **{name: array for name, array in averaged.items() if name in merged}}


class _Watching:
    """Acts, and keeps what it was asked about."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.seen: list[F32] = []

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row."""
        columns = [flatten(tensors(obs, CPU)).numpy(), *([] if mask is None else [mask.astype(np.float32)])]
        self.seen.append(np.concatenate(columns, axis=1))
        return act(self._actor, obs, mask, noise, CPU)


# --- a network as a policy, and as a student ---


def _distribution(actor: Actor, rows: F32) -> Distribution:
    """What the network makes of rows as `_Watching` keeps them: inputs, then the mask where there is one."""
    inputs = torch.from_numpy(rows)
    mask = inputs[:, actor.spec.inputs :].to(torch.uint8)
    found: Distribution = actor({"rows": inputs[:, : actor.spec.inputs]}, mask if mask.shape[1] else None)
    return found


def _axes(found: Distribution) -> tuple[Tensor, Tensor]:
    """Mean and log deviation on every axis; that of one action alone is 1, so that only its distance counts."""
    if isinstance(found, Gaussian | Squashed):  # tanh on both sides changes no divergence
        return found.mean, found.log_std.expand_as(found.mean)
    mean = found.mode()
    return mean, torch.zeros_like(mean)


@torch.no_grad()
def _doing(actor: Actor, rows: NDArray[Any]) -> Choices | Axes:
    found = _distribution(actor, rows)
    if isinstance(found, Categorical):
        return Choices(found.logits.double().numpy())
    mean, log_std = _axes(found)
    return Axes(mean.double().numpy(), log_std.double().exp().numpy())


def _student(actor: Actor, rate: float) -> Student[Any]:
    """The network as what learns: Adam down KL(target, student)."""
    optimiser = FlatAdam({"actor": actor})

    def fit(rows: NDArray[Any], target: Choices | Axes) -> None:
        found = _distribution(actor, rows)
        if isinstance(target, Choices):
            assert isinstance(found, Categorical)
            wanted = torch.softmax(torch.from_numpy(target.logits), 1).float()
            loss = -(wanted * torch.log_softmax(found.logits, 1)).sum(1).mean()
        else:
            mean, log_std = _axes(found)
            goal = torch.from_numpy(target.mean).float(), torch.from_numpy(target.deviation).float()
            spread = (goal[1].square() + (goal[0] - mean).square()) * torch.exp(-2.0 * log_std)
            loss = (log_std + 0.5 * spread).sum(1).mean()
        optimiser.minimize(loss, rate, MAX_GRAD_NORM)

    act_now: Callable[[NDArray[Any]], Choices | Axes] = partial(_doing, actor)
    return Student(
        act_now, fit, lambda: module_arrays(actor, "actor"), lambda arrays: load_module(actor, arrays, "actor", True)
    )
