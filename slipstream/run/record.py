"""Recording datasets: a policy plays, and the finished decisions of its team are kept as transitions.

The same subject, policy, seed and number of worlds give the same rows, bit for bit, and fewer transitions are the first
of more. Another number of worlds gives other rows: world i has a stream of its own, and rows are ordered by tick, then
world, then agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
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
from slipstream.collect.shaping import Shaping
from slipstream.collect.slab import under
from slipstream.collect.teams import Player, Team, columns
from slipstream.config.load import load, to_plain
from slipstream.config.scenario import Scenario, assign_teams
from slipstream.data.arrays_file import not_finite
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.dataset_file import (
    Dataset,
    DatasetPart,
    DatasetRecord,
    Returns,
    allocate,
    from_arrays,
)
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Chain, to_fields
from slipstream.errors import CheckpointError, ScenarioError, WorldContractError, suggest
from slipstream.nets.actor import Acted
from slipstream.run.policy_file import from_checkpoint
from slipstream.run.progress import Display
from slipstream.run.saved_cast import frozen_team, load_cast, scripted_team
from slipstream.run.setup import gammas, make_shaping, with_gamma
from slipstream.run.views import by_role, refuse_other_view, told_apart, view_of
from slipstream.spec import ActionSpec, WorldSpec, action_columns, clip_axes
from slipstream.types import F32, U8
from slipstream.worlds.registry import make_worlds, spec_of
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
    spec = spec_of(scenario.world)
    scenario = by_role(scenario, spec)
    seed = scenario.seed if seed is None else seed
    _refuse_numbers(transitions, seed, num_worlds, gamma)
    name = _recorded_team(scenario, team)
    gamma = gammas(scenario)[name] if gamma is None else gamma
    policy = policy or ("random" if saved is None else "learned")
    assigned = assign_teams(scenario, spec.agents, spec.roles)
    num_worlds = num_worlds or _worlds_for(transitions, scenario, spec, len(assigned[name]))
    with closing(make_worlds(scenario.world, num_worlds, EnvOptions(seed=seed, tick_discount=gamma))) as worlds:
        teams = _teams(scenario, saved, worlds, assigned, policy, noise)
        shaping = make_shaping(scenario, spec)
        source = scenario.name if isinstance(subject, Scenario) else str(subject)
        part = DatasetPart(
            *(transitions, transitions, source, policy, noise and policy == "learned", name),
            agents=tuple(spec.agents[i] for i in assigned[name]),
            seed=seed,
            num_worlds=num_worlds,
            world=to_plain(scenario)["world"],
            returns=None,
        )
        asked = _asked(spec, teams, name, gamma, shaping, part)
        announce(asked)
        one_gamma = dict.fromkeys(gammas(scenario), gamma)
        collector = Collector(worlds, teams, max(1, SLAB_STEPS // num_worlds), seed, one_gamma, shaping)
        return _play(collector, asked, assigned[name], display, stop)


def _asked(
    spec: WorldSpec, teams: Sequence[Team], name: str, gamma: float, shaping: Shaping, part: DatasetPart
) -> DatasetRecord:
    team = next(team for team in teams if team.policy == name)
    model = None if shaping.model is None else shaping.model.digest
    return DatasetRecord(team.view(spec), team.discrete, gamma, shaping.kappa, part.rows, (part,), model)


def _worlds_for(transitions: int, scenario: Scenario, spec: WorldSpec, agents: int) -> int:
    """The scenario's number of worlds, but no more than can end an episode each."""
    whole_episodes = transitions // (max(1, spec.max_episode_steps) * agents)
    return min(scenario.collect.num_worlds, max(1, whole_episodes))


def _play(
    collector: Collector, asked: DatasetRecord, agents: Sequence[int], display: Display | None, stop: Callable[[], bool]
) -> Dataset:
    """Play until all rows are recorded, or some are and `stop` returns True."""
    (part,) = asked.parts
    arrays, count, returns = allocate(asked), 0, list[float]()
    chain = Chain(collector.recorders[part.team].rollout, asked.gamma)
    if display is not None:
        display.start(f"{part.policy} in {asked.world.name}", 0, asked.rows)
    try:
        while count < asked.rows and not (count and stop()):
            rollouts, episodes = collector.collect(0)
            rows = to_fields(chain.extend(rollouts[part.team])) | {"end": chain.ended}
            here = slice(count, min(count + len(rows["end"]), asked.rows))
            for name, array in arrays.items():  # a policy's own memory is no observation of the world
                array[here] = rows[name][: here.stop - here.start]
            if bad := not_finite({name: array[here] for name, array in arrays.items()}):
                raise WorldContractError(
                    f"{asked.world.name}: NaN or infinity in {', '.join(bad)}, so the recording was given up"
                )
            count = here.stop
            returns += [sum(episode.returns[agent] for agent in agents) for episode in episodes]
            if display is not None:
                display.advance(count, f"{len(returns):,} episodes")
    finally:
        if display is not None:
            display.stop()
    told = Returns(len(returns), float(np.mean(returns)), min(returns), max(returns)) if returns else None
    part = msgspec.structs.replace(part, rows=count, recorded=count, returns=told)
    record = msgspec.structs.replace(asked, rows=count, parts=(part,))
    return from_arrays(record, {name: array[:count] for name, array in arrays.items()})


def load_subject(subject: str | Path) -> tuple[Scenario, Checkpoint | None]:
    """Scenario and checkpoint of a run, checkpoint or model; a scenario by name or file has no checkpoint."""
    path, is_yaml = Path(subject), str(subject).endswith((".yaml", ".yml"))
    if not is_yaml and path.exists():
        return load_cast(path)
    if not is_yaml and "/" in str(subject):
        raise ScenarioError(f"{path}: there is no such run, checkpoint or model; they lie under runs/ and models/")
    return load(subject), None


# --- who plays ---


@dataclass(frozen=True)
class RandomPlayer:
    """Uniform actions: axes within their bounds, or one of the allowed choices, of each part one."""

    discrete: bool
    parts: tuple[int, ...] = ()

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Uniform actions from the noise."""
        assert noise is not None
        return Acted(random_actions(noise, mask, self.discrete, self.parts), np.zeros(len(noise), np.float32))


@dataclass(frozen=True)
class Scripted:
    """A script of the world as a player, so that what it does can be recorded."""

    worlds: VecEnv
    script: str
    agents: tuple[int, ...]

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Ask the world."""
        self.worlds.act_scripted(self.script, self.agents)
        spec = self.worlds.spec
        place = (slice(None), columns(self.agents, spec.num_agents), *action_columns(spec, self.agents))
        action = self.worlds.actions[place]
        if spec.seen_by(self.agents).action.discrete:
            action = action.astype(np.int32)
        rows = action.shape[0] * action.shape[1]
        return Acted(action.reshape(rows, *action.shape[2:]).copy(), np.zeros(rows, np.float32))


@dataclass(frozen=True)
class Bounded:
    """A player whose actions are clipped to the world's bounds, so that rows hold the actions that had effect."""

    player: Player
    spec: ActionSpec
    noise: bool

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """The player's choice."""
        acted = self.player.act(obs, mask, noise if self.noise else None)
        action: NDArray[Any] = acted.action
        return Acted(action if action.ndim == 1 else clip_axes(self.spec, action), acted.logp, acted.memory)


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
        if config.kind == "learning":
            team = _acting_team(scenario, saved, worlds, name, agents, policy)
            assert team.player is not None
            bounded = Bounded(team.player, spec.seen_by(agents).action, noise or policy == "random")
            teams.append(replace(team, player=bounded))
        elif config.kind == "past":
            teams.append(_acting_team(scenario, saved, worlds, config.of, agents, policy))
        elif config.kind == "scripted":
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
    known = assign_teams(scenario, spec.agents, spec.roles)[name]
    view = view_of(scenario, name, known, spec)
    table = action_table(algo, ALGORITHMS[algo.kind].traits, view)
    if view.action.parts and policy not in ("learned", "random"):
        table = ()  # scripts act on parts; who takes these for one choice reads them so
    discrete = view.action.discrete or bool(table)
    memory = 0
    if policy == "learned":
        assert saved is not None
        learner = _learned(scenario, saved, name, view)
        player: Player = learner
        memory = learner.actor_spec().memory
    elif policy == "random":
        player = RandomPlayer(discrete, () if table else view.action.parts)
    elif table:
        raise ScenarioError(
            f"{scenario.name}: the script '{policy}' moves the axes of {spec.name}, but {algo.kind} chooses from its "
            "action table, so the script's actions are none it could learn from; record a scenario that acts on axes"
        )
    else:
        player = Scripted(worlds, policy, agents)
    team = Team(name, agents, player, learns=True, discrete=discrete, table=table, memory=memory)
    return told_apart(team, view, known, f"policies.{name}")


def _learned(scenario: Scenario, saved: Checkpoint, name: str, view: WorldSpec) -> Algorithm:
    """The algorithm itself with the saved network, so that it explores in its own way."""
    policy = from_checkpoint(saved, Path(scenario.name), name)
    refuse_other_view(policy.record, view, f"policies.{name}")
    algo = scenario.algo_of(name)
    assert algo is not None
    learner: Algorithm = ALGORITHMS[algo.kind](algo, view, 0, torch.device("cpu"))
    saved_as, described = (msgspec.to_builtins(spec) for spec in (policy.record.actor, learner.actor_spec()))
    if odd := [key for key in described if saved_as[key] != described[key]]:
        wrong = ", ".join(f"{key} {saved_as[key]} and not {described[key]}" for key in odd)
        raise CheckpointError(f"{scenario.name}: the saved policy '{name}' is not what its scenario describes: {wrong}")
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
        policies = ", ".join(scenario.policies)
        raise ScenarioError(f"{scenario.name}: none of its policies ({policies}) learns, so nothing would be recorded")
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
