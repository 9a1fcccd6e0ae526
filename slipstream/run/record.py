"""Recording datasets: a policy plays, and the finished decisions of its team are kept as transitions.

The same subject, policy, seed and number of worlds give the same rows, bit for bit, and fewer transitions are the first
of more. Another number of worlds gives other rows: world i has a stream of its own, and rows are ordered by tick, then
world, then agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.algos.offpolicy import random_actions
from slipstream.algos.protocol import Algorithm, Progress, action_table
from slipstream.algos.registry import ALGORITHMS
from slipstream.collect.serial import Collector
from slipstream.collect.slab import under
from slipstream.collect.teams import Player, Team, columns
from slipstream.config.load import load, to_plain
from slipstream.config.scenario import LearningPolicy, PastPolicy, Scenario, ScriptedPolicy, assign_teams
from slipstream.data.arrays_file import not_finite
from slipstream.data.chain import Chain
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.dataset_file import (
    Dataset,
    DatasetPart,
    DatasetRecord,
    Returns,
    allocate,
    from_arrays,
)
from slipstream.data.rollout import F32, U8, Blocks
from slipstream.data.transitions import to_fields
from slipstream.errors import CheckpointError, ScenarioError, WorldContractError, suggest
from slipstream.nets.actor import Acted
from slipstream.run.policy_file import from_checkpoint
from slipstream.run.progress import Display, Quiet
from slipstream.run.saved_cast import load_cast
from slipstream.run.setup import frozen_team, gammas, make_shaping, refuse_other_world, scripted_team, with_gamma
from slipstream.spec import WorldSpec
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, VecEnv

SLAB_STEPS = 1024  # of all worlds together, played between two looks at the clock and at Ctrl+C


def record(
    subject: str | Path | Scenario,
    transitions: int = 100_000,
    *,
    policy: str | None = None,
    noise: bool = True,
    team: str | None = None,
    gamma: float | None = None,
    seed: int | None = None,
    num_worlds: int | None = None,
    announce: Callable[[DatasetRecord], None] = lambda record: None,
    display: Display | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Dataset:
    """Play and return the transitions; `save_dataset` writes them.

    Args:
        subject: A run, checkpoint or model; or a scenario, by value, name or file.
        transitions: Finished decisions to record.
        policy: random, learned, or a script of the world; it acts for every learning team of the scenario. None:
            learned where the subject has learned, else random.
        noise: A learned policy explores as it did when it was saved; False: it takes its most likely action.
        team: Whose decisions are kept, by the name of their policy, where several learn.
        gamma: Discount per tick; None: the scenario's.
        seed: Of the worlds and of the actions; None: the scenario's.
        num_worlds: Worlds played at once; None: the scenario's, but no more than can end an episode each.
        announce: Told what will be recorded, and so how large it will be, before the first step; may raise.
        display: Where to show how far it is.
        stop: Asked every SLAB_STEPS steps whether what there is will do.
    """
    scenario, saved = (subject, None) if isinstance(subject, Scenario) else load_subject(subject)
    scenario = with_gamma(scenario)
    seed = scenario.seed if seed is None else seed
    _refuse_numbers(transitions, seed, num_worlds, gamma)
    name = _recorded_team(scenario, team)
    gamma = gammas(scenario)[name] if gamma is None else gamma
    policy = policy or ("random" if saved is None else "learned")
    spec = _spec_of(scenario)
    assigned = assign_teams(scenario, spec.agents, spec.roles)
    if num_worlds is None:
        whole_episodes = transitions // (max(1, spec.max_episode_steps) * len(assigned[name]))
        num_worlds = min(scenario.collect.num_worlds, max(1, whole_episodes))
    worlds = make_worlds(scenario.world, num_worlds, EnvOptions(seed=seed, tick_discount=gamma))
    try:
        teams = _teams(scenario, saved, worlds, assigned, policy, noise)
        shaping = make_shaping(scenario, spec)
        part = DatasetPart(
            rows=transitions,
            recorded=transitions,
            source=scenario.name if isinstance(subject, Scenario) else str(subject),
            policy=policy,
            noise=noise and policy == "learned",
            team=name,
            agents=tuple(spec.agents[i] for i in assigned[name]),
            seed=seed,
            num_worlds=num_worlds,
            world=to_plain(scenario)["world"],
            returns=None,
        )
        discrete = next(team.discrete for team in teams if team.policy == name)
        model = None if shaping.model is None else shaping.model.digest
        asked = DatasetRecord(spec, discrete, gamma, shaping.kappa, transitions, (part,), model)
        announce(asked)
        one_gamma = dict.fromkeys(gammas(scenario), gamma)
        collector = Collector(worlds, teams, max(1, SLAB_STEPS // num_worlds), seed, one_gamma, shaping)
        return _play(collector, asked, assigned[name], display or Quiet(), stop)
    finally:
        worlds.close()


def _play(
    collector: Collector, asked: DatasetRecord, agents: Sequence[int], display: Display, stop: Callable[[], bool]
) -> Dataset:
    """Play until all rows are there, or some and `stop` says so."""
    (part,) = asked.parts
    arrays, count, returns = allocate(asked), 0, list[float]()
    chain = Chain(collector.recorders[part.team].rollout, asked.gamma)
    display.start(f"{part.policy} in {asked.world.name}", 0, asked.rows)
    try:
        while count < asked.rows and not (count and stop()):
            rollouts, episodes = collector.collect(0)
            rows = to_fields(chain.extend(rollouts[part.team])) | {"end": chain.ended}
            here = slice(count, min(count + len(rows["end"]), asked.rows))
            for name, array in rows.items():
                arrays[name][here] = array[: here.stop - here.start]
            if bad := not_finite({name: array[here] for name, array in arrays.items()}):
                raise WorldContractError(
                    f"{asked.world.name}: NaN or infinity in {', '.join(bad)}, so the recording was given up"
                )
            count = here.stop
            returns += [sum(episode.returns[agent] for agent in agents) for episode in episodes]
            display.advance(count, f"{len(returns):,} episodes")
    finally:
        display.stop()
    told = Returns(len(returns), float(np.mean(returns)), min(returns), max(returns)) if returns else None
    part = msgspec.structs.replace(part, rows=count, recorded=count, returns=told)
    record = msgspec.structs.replace(asked, rows=count, parts=(part,))
    return from_arrays(record, {name: array[:count] for name, array in arrays.items()})


def load_subject(subject: str | Path) -> tuple[Scenario, Checkpoint | None]:
    """A run, checkpoint or model with its scenario; or a scenario, by name or file, that has learned nothing."""
    path, is_yaml = Path(subject), str(subject).endswith((".yaml", ".yml"))
    if not is_yaml and path.exists():
        return load_cast(path)
    if not is_yaml and "/" in str(subject):
        raise ScenarioError(f"{path}: there is no such run, checkpoint or model; they lie under runs/ and models/")
    return load(subject), None


def _spec_of(scenario: Scenario) -> WorldSpec:
    one = make_worlds(scenario.world, 1)
    one.close()
    return one.spec


# --- who plays ---


@dataclass(frozen=True)
class RandomPlayer:
    """Uniform actions: axes within their bounds, or one of the allowed choices."""

    discrete: bool

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Let the noise choose."""
        assert noise is not None
        return Acted(random_actions(noise, mask, self.discrete), np.zeros(len(noise), np.float32))


@dataclass(frozen=True)
class Scripted:
    """A script of the world as a player, so that what it does can be recorded."""

    worlds: VecEnv
    script: str
    agents: tuple[int, ...]

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Ask the world."""
        self.worlds.act_scripted(self.script, self.agents)
        action = self.worlds.actions[:, columns(self.agents, self.worlds.spec.num_agents)]
        rows = action.shape[0] * action.shape[1]
        return Acted(action.reshape(rows, *action.shape[2:]).copy(), np.zeros(rows, np.float32))


@dataclass(frozen=True)
class Bounded:
    """A player whose axes are kept within the world's bounds, as the world would, so that rows hold what was done."""

    player: Player
    low: float
    high: float
    noise: bool

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """The player's choice."""
        acted = self.player.act(obs, mask, noise if self.noise else None)
        action: NDArray[Any] = acted.action
        return Acted(action if action.ndim == 1 else np.clip(action, self.low, self.high), acted.logp)


def _teams(
    scenario: Scenario,
    saved: Checkpoint | None,
    worlds: VecEnv,
    assigned: Mapping[str, tuple[int, ...]],
    policy: str,
    noise: bool,
) -> list[Team]:
    """The scenario's teams, with `policy` in the learners' places."""
    spec, teams = worlds.spec, []
    _refuse_policy(policy, spec, scenario, saved)
    for name, agents in assigned.items():
        config = scenario.policies[name]
        if isinstance(config, LearningPolicy):
            team = _acting_team(scenario, saved, worlds, name, agents, policy)
            assert team.player is not None
            bounded = Bounded(team.player, spec.action.low, spec.action.high, noise or policy == "random")
            teams.append(replace(team, player=bounded))
        elif isinstance(config, PastPolicy):
            teams.append(_acting_team(scenario, saved, worlds, config.of, agents, policy))
        elif isinstance(config, ScriptedPolicy):
            teams.append(scripted_team(name, agents, config.script, spec, f"policies.{name}.script"))
        else:
            teams.append(frozen_team(name, agents, config, spec))
    return teams


def _acting_team(
    scenario: Scenario,
    saved: Checkpoint | None,
    worlds: VecEnv,
    name: str,
    agents: tuple[int, ...],
    policy: str,
) -> Team:
    """A team whose decisions are recorded (`learns`), in the terms its algorithm acts in."""
    spec, algo = worlds.spec, scenario.algo_of(name)
    assert algo is not None
    table = action_table(algo, ALGORITHMS[algo.kind].traits, spec)
    discrete = spec.action.discrete or bool(table)
    if policy == "learned":
        assert saved is not None
        player: Player = _learned(scenario, saved, name, spec)
    elif policy == "random":
        player = RandomPlayer(discrete)
    elif table:
        raise ScenarioError(
            f"{scenario.name}: the script '{policy}' moves the axes of {spec.name}, but {algo.kind} chooses from its "
            "action table, so the script's actions are none it could learn from; record a scenario that acts on axes"
        )
    else:
        player = Scripted(worlds, policy, agents)
    return Team(name, agents, player, learns=True, discrete=discrete, table=table)


def _learned(scenario: Scenario, saved: Checkpoint, name: str, spec: WorldSpec) -> Algorithm:
    """The algorithm itself with the saved network, so that it explores in its own way."""
    policy = from_checkpoint(saved, Path(scenario.name), name)
    refuse_other_world(policy, spec, f"policies.{name}")
    algo = scenario.algo_of(name)
    assert algo is not None
    learner: Algorithm = ALGORITHMS[algo.kind](algo, spec, 0, torch.device("cpu"))
    if learner.actor_spec() != policy.record.actor:
        raise CheckpointError(f"{scenario.name}: the saved policy '{name}' is not what its scenario describes")
    learner.load_state_dict(under(saved.arrays, f"policy.{name}."), strict=False, include_optim=False)
    counters = saved.meta.get("counters")
    steps = counters.get("steps", 0) if isinstance(counters, dict) else 0
    # Past every warm-up, whose actions would be random.
    learner.explore(Progress(min(1.0, steps / scenario.timesteps), update=0, steps=2**62))
    return learner


# --- refusals ---


def _recorded_team(scenario: Scenario, wanted: str | None) -> str:
    """The learning policy whose decisions are kept."""
    learning = list(gammas(scenario))
    if not learning:
        raise ScenarioError(f"{scenario.name}: none of its policies learns, so nobody's decisions would be recorded")
    if wanted is None and len(learning) > 1:
        raise ScenarioError(f"{scenario.name}: several policies learn ({', '.join(learning)}); name one with --team")
    if wanted is not None and wanted not in learning:
        raise ScenarioError(
            f"--team: no policy '{wanted}' learns in {scenario.name} (those that do: {', '.join(learning)})"
            + suggest(wanted, learning)
        )
    return wanted or learning[0]


def _refuse_policy(policy: str, spec: WorldSpec, scenario: Scenario, saved: Checkpoint | None) -> None:
    known = ("random", "learned", *spec.scripts)
    if policy not in known:
        raise ScenarioError(
            f"--policy: {spec.name} has no policy '{policy}' (it has: {', '.join(known)}){suggest(policy, known)}"
        )
    if policy == "learned" and saved is None:
        raise ScenarioError(
            f"--policy learned: {scenario.name} is a scenario, in which nothing was learned yet; name a run, "
            "checkpoint or model"
        )


def _refuse_numbers(transitions: int, seed: int, num_worlds: int | None, gamma: float | None) -> None:
    for flag, value, least, most in (
        ("--transitions", transitions, 1, 10**12),
        ("--seed", seed, 0, 2**63 - 1),
        ("--num-worlds", num_worlds, 1, 65_536),
        ("--gamma", gamma, 0, 1),
    ):
        if value is not None and not least <= value <= most:
            raise ScenarioError(f"{flag} {value}: must be from {least} to {most:,}")
