"""Makes worlds, teams and learners from a scenario, and refuses scenarios that cannot work."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from slipstream import _core
from slipstream.algos.protocol import Algorithm, Progress, action_table, refuse_mismatch
from slipstream.algos.registry import ALGORITHMS
from slipstream.collect.shaping import Shaping
from slipstream.collect.teams import Team
from slipstream.config.algos import AnyAlgo, DqnConfig
from slipstream.config.algos.learner import LearnerConfig
from slipstream.config.algos.offpolicy import ReplayLearnerConfig
from slipstream.config.base import dotted
from slipstream.config.load import override
from slipstream.config.scenario import Scenario, assign_teams, check_batch, shared_policies
from slipstream.config.stopping import EVALUATED_RULES
from slipstream.errors import ScenarioError, suggest
from slipstream.nets.arithmetic import PLAIN, Arithmetic
from slipstream.nets.mlp import fastest_threads
from slipstream.nets.torso import network_kind
from slipstream.run.policy_file import PolicyRecord
from slipstream.run.saved_cast import frozen_team, scripted_team
from slipstream.run.views import by_role, refuse_other_view, told_apart, view_of, with_networks
from slipstream.runtime.platform import available_memory, cores
from slipstream.spec import WorldSpec
from slipstream.worlds.registry import make_worlds, spec_of
from slipstream.worlds.vec_env import EnvOptions, VecEnv
from slipstream.worlds.world import tools_of

if TYPE_CHECKING:
    from slipstream.run.parts.self_play import OpponentPool

MOST_ROWS = 1_000_000  # of a replay for which no number was asked
MOST_WORKERS = 8  # where no number was asked
WORTH_S = 15.0  # that workers must save, for processes to be started without being asked for
MANY_ROWS = 512  # agents in a batch from which a second world thread pays (bench/worlds.py)


@dataclass(frozen=True)
class Cast:
    """Who takes part: the learners by policy name, and every team."""

    learners: Mapping[str, Algorithm]
    teams: tuple[Team, ...]
    records: Mapping[str, PolicyRecord]  # how to build each learner's acting network again
    past: Mapping[str, OpponentPool]  # by policy name
    shaping: Shaping


def resolve(scenario: Scenario) -> Scenario:
    """Replace what is to be chosen before worlds are made: device, workers and world threads."""
    changes: dict[str, object] = {}
    if scenario.device == "auto":
        changes["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    elif scenario.device == "cuda" and not torch.cuda.is_available():
        raise ScenarioError("device: cuda was asked for, but this machine has no usable GPU; try --no-gpu")
    if scenario.precision == "float16" and changes.get("device", scenario.device) == "cpu":
        raise ScenarioError(
            "precision: float16 was asked for, but networks run on the CPU here, which multiplies it far slower than "
            "float32; try bfloat16, or --gpu on a machine that has one"
        )
    if scenario.collect.workers is None:
        workers = usual_workers(scenario)
        changes["collect.workers"] = workers
        scenario = override(scenario, {"collect.workers": workers})
    if scenario.collect.world_threads == "auto":
        is_foreign = not scenario.world.is_native  # stepped by one thread anyway
        many = scenario.collect.num_worlds >= MANY_ROWS and not scenario.collect.workers and not is_foreign
        changes["collect.world_threads"] = min(2, os.cpu_count() or 1) if many else 1
    return with_gamma(override(scenario, changes) if changes else scenario)


def with_gamma(scenario: Scenario) -> Scenario:
    """The scenario with every discount per second worked out per tick."""
    asked = {where: s for where, algo in _algos(scenario).items() if (s := algo.gamma_per_second) is not None}
    if not asked:
        return scenario
    spec = spec_of(scenario.world)
    if spec.tick_seconds <= 0:
        where = next(iter(asked))
        raise ScenarioError(
            f"{where}.gamma_per_second: {spec.name} does not say how long a tick is; give {where}.gamma"
        )
    changes: dict[str, object] = {f"{where}.gamma": share**spec.tick_seconds for where, share in asked.items()}
    return override(scenario, changes | {f"{where}.gamma_per_second": None for where in asked})


def _algos(scenario: Scenario) -> dict[str, AnyAlgo]:
    """Every algorithm of a scenario by its path in it."""
    own = {dotted(scenario.algo_path(name)): algo for name, algo in scenario.learning.items()}
    return {"algo": scenario.algo, **own}


def make_training_worlds(scenario: Scenario, share: range | None = None, reward_parts: bool = False) -> VecEnv:
    """The worlds a run learns in, or a worker's share of them."""
    collect = scenario.collect
    assert collect.world_threads != "auto"
    share = range(collect.num_worlds) if share is None else share
    worlds = make_worlds(
        scenario.training_world,
        len(share),
        EnvOptions(
            seed=scenario.seed,
            first_world=share.start,
            threads=collect.world_threads,
            reward_parts=reward_parts,
            tick_discount=_tick_discount(scenario),
            seed_stride=collect.seed_stride,
        ),
    )
    if collect.world and (seen := _looks(worlds.spec)) != (other := _looks(spec_of(scenario.world))):
        worlds.close()
        which = ", ".join(name for name in seen if seen[name] != other[name])
        raise ScenarioError(f"collect.world: the worlds of training differ in their {which} from those of evaluation")
    return worlds


def _looks(spec: WorldSpec) -> dict[str, object]:
    """What a policy depends on."""
    return {"agents": spec.agents, "observation": spec.obs, "action": spec.action, "state": spec.state_size}


def make_evaluation_worlds(scenario: Scenario, episodes: int, reward_parts: bool = False) -> VecEnv:
    """Worlds for evaluation, with random streams of their own and without autoreset."""
    return make_worlds(
        scenario.world,
        min(episodes, 64),
        EnvOptions(
            seed=scenario.evaluate.seed,
            evaluation=True,
            autoreset=False,
            reward_parts=reward_parts,
            tick_discount=_tick_discount(scenario),
        ),
    )


def gammas(scenario: Scenario) -> dict[str, float]:
    """Discount of every learning policy."""
    return {name: algo.gamma for name in scenario.policies if (algo := scenario.algo_of(name)) is not None}


def make_cast(scenario: Scenario, spec: WorldSpec) -> Cast:
    """Build every policy of the scenario for this world, or raise ScenarioError if it cannot work."""
    assigned = assign_teams(scenario, spec.agents, spec.roles)
    check_batch(scenario, {name: len(agents) for name, agents in assigned.items()})
    for rule, needs in EVALUATED_RULES.items():
        if needs.clean_episodes and getattr(scenario.stop, rule) is not None and "clean" not in spec.stats:
            raise ScenarioError(
                f"stop.{rule}: {spec.name} does not say which episodes are clean; remove the rule or use "
                "stop.target_return"
            )
    if spec.has_durations and len(set(gammas(scenario).values())) > 1:
        raise ScenarioError(
            f"policies: decisions in {spec.name} last several ticks, and it pays rewards with one discount per tick; "
            f"give its learners the same gamma (now {', '.join(map(str, gammas(scenario).values()))})"
        )
    _refuse_bad_offline(scenario)
    _refuse_pace(scenario, assigned, spec)
    _refuse_hopeless_certificates(scenario)
    _refuse_unknown_figures(scenario, spec)
    if scenario.federated.distill is not None:
        from slipstream.run.federated.distillation import refuse_distilling

        refuse_distilling(scenario, spec)
    learners: dict[str, Algorithm] = {}
    teams, records, past = [], {}, {}
    for index, (name, agents) in enumerate(assigned.items()):
        policy = scenario.policies[name]
        if policy.kind == "learning":
            view = view_of(scenario, name, agents, spec)
            learner, table = make_learner(scenario, name, view, index)
            learners[name] = learner
            actor = learner.actor_spec()
            records[name] = PolicyRecord(actor=actor, world=view, agents=agents, table=table)
            hold = (policy.algo or scenario.algo).exploration_hold
            team = Team(name, agents, learner, None, True, actor.discrete, table, hold, actor.memory)
            teams.append(told_apart(team, view, agents, f"policies.{name}"))
        elif policy.kind == "past":
            continue  # once all learners are there
        elif policy.kind == "scripted":
            scripted = scripted_team(name, agents, policy.script, spec, f"policies.{name}.script")
            teams.append(replace(scripted, rival=True))
        else:
            teams.append(replace(frozen_team(name, agents, policy, spec), rival=True))
    if not learners:
        raise ScenarioError("policies: none of them learns, so there is nothing to train; try slipstream eval")
    for name, agents in assigned.items():
        policy = scenario.policies[name]
        if policy.kind == "past":
            from slipstream.run.parts.self_play import OpponentPool

            past[name] = OpponentPool(policy, learners[policy.of], scenario.seed, torch.device(scenario.device))
            of, player = records[policy.of], past[name]
            discrete, memory, explores = of.actor.discrete, of.actor.memory, policy.explore
            refuse_other_view(of, spec.seen_by(agents), f"policies.{name}")
            team = Team(name, agents, player, None, False, discrete, of.table, memory=memory, explores=explores)
            teams.append(replace(told_apart(team, of.world, of.agents, f"policies.{name}"), rival=True))
    return Cast(learners, tuple(teams), records, past, make_shaping(scenario, spec))


def make_shaping(scenario: Scenario, spec: WorldSpec) -> Shaping:
    """The reward shaping of a scenario in this world."""
    config = scenario.shaping
    if not config.use_potential_shaping or (config.evaluator is None and not spec.has_potential):
        return Shaping()
    if config.evaluator is None:
        return Shaping(config.kappa)
    from slipstream.run.time_to_success import load_times

    times = load_times(Path(config.evaluator))
    if times.record.world.obs != spec.obs:
        trained = times.record.world
        raise ScenarioError(
            f"shaping.evaluator: {config.evaluator} has learned from {trained.name} ({trained.obs_size} inputs) and "
            f"cannot read {spec.name} ({spec.obs_size}); train one there, or set it to null"
        )
    return Shaping(config.kappa, times)


def _refuse_pace(scenario: Scenario, assigned: Mapping[str, tuple[int, ...]], spec: WorldSpec) -> None:
    """Refuse a samples-per-insert limit of a replay service that this run's own ratio would break."""
    for name, agents in assigned.items():
        algo = scenario.algo_of(name)
        if not isinstance(algo, ReplayLearnerConfig) or (algo.replay.kind, algo.replay.role) != ("service", "both"):
            continue  # who only adds, or only draws, waits for others
        from slipstream.replay.sharing import Limit, Pace, refuse_pace

        limit, steps = algo.replay.sharing.limit, scenario.rollout_steps
        pace = Pace(
            rollouts=math.ceil(scenario.timesteps / steps),
            rows=steps * len(agents),
            steps=algo.training_intensity * steps,
            batch=algo.batch_size,
            warm_up=max(0, math.ceil(algo.learning_starts / steps) - 1),
            at_most=spec.has_durations,
        )
        where = dotted(scenario.algo_path(name))
        refuse_pace(Limit(limit.min_size, limit.samples_per_insert, limit.tolerance), pace, where)


def _refuse_bad_offline(scenario: Scenario) -> None:
    """Refuse a dataset that cannot be read, and a run of which only some policies learn offline."""
    replays = {name: algo.replay_config for name, algo in scenario.learning.items()}
    offline = {name: replay for name, replay in replays.items() if replay is not None and not replay.collects}
    online = [name for name in replays if name not in offline]
    if offline and online:
        name, replay = next(iter(offline.items()))
        raise ScenarioError(
            f"policies.{name}: learns offline from {replay.dataset or 'what others add'}, but '{online[0]}' learns "
            "from worlds it acts in, and a run does one or the other; train them apart, each with the other frozen or "
            "scripted"
        )
    for replay in offline.values():
        if replay.dataset is not None:
            from slipstream.data.dataset_file import read_record

            read_record(Path(replay.dataset))  # before a run folder is made for what cannot be read


def _refuse_hopeless_certificates(scenario: Scenario) -> None:
    """Refuse a certificate that even the first attempt, which has the largest share of alpha, could not pass."""
    of_phases = None if scenario.curriculum is None else scenario.curriculum.certificate
    for where, asked in (("curriculum", of_phases), ("stop", scenario.stop.certificate)):
        if asked is None:
            continue
        from slipstream.stats.sequential import Certifier, spent

        try:
            Certifier(asked.at_least, spent(asked.alpha, 1), asked.max_episodes, expected=asked.expected).check()
        except ValueError as error:
            raise ScenarioError(f"{where}.certificate.max_episodes: {error}") from None


def _refuse_unknown_figures(scenario: Scenario, spec: WorldSpec) -> None:
    """Refuse to compare evaluations by a figure that they do not have."""
    stop, known = scenario.stop, ("return", "length", *spec.stats)
    asked = {f"checkpoint.best_by.{k}": name.lstrip("-") for k, name in enumerate(scenario.checkpoint.best_by)}
    if stop.plateau is not None:
        asked |= {"stop.plateau.figure": stop.plateau.figure}
        asked |= {"stop.plateau.provided": stop.plateau.provided} if stop.plateau.provided else {}
    for where, name in asked.items():
        if name not in known:
            raise ScenarioError(
                f"{where}: {spec.name} reports no '{name}' (figures: {', '.join(known)}){suggest(name, known)}"
            )
    flags = [name for name in tools_of(scenario.world.kind).proportions if name in spec.stats]
    if stop.certificate is not None and stop.certificate.figure not in flags:
        raise ScenarioError(
            f"stop.certificate.figure: only what happened or did not in an episode can be certified; in {spec.name} "
            f"that is {', '.join(flags) or 'nothing'}, and not '{stop.certificate.figure}'"
        )


def progress_at(scenario: Scenario, update: int) -> Progress:
    """The progress of a run at the start of its slab of this number."""
    steps = update * scenario.rollout_steps
    return Progress(min(1.0, steps / scenario.timesteps), update, steps)


def make_learner(
    scenario: Scenario, name: str, spec: WorldSpec, index: int
) -> tuple[Algorithm, tuple[tuple[float, ...], ...]]:
    """A policy's learner and its action table; `index` is the policy's place among all, and part of its seed."""
    algo = scenario.algo_of(name)
    assert algo is not None
    kind = ALGORITHMS[algo.kind]
    if (problem := refuse_mismatch(kind.traits, spec, f"policies.{name}")) is not None:
        raise ScenarioError(problem)
    if scenario.collect.overlap != "none" and not kind.traits.lagged:
        raise ScenarioError(
            f"collect.overlap: '{scenario.collect.overlap}' collects with an older policy than the one that learns, "
            f"but {kind.traits.name} (policies.{name}) cannot learn from that; set it to none, or use one that can: "
            + ", ".join(name for name, kind in ALGORITHMS.items() if kind.traits.lagged)
        )
    replay = algo.replay_config
    if replay is not None and replay.dataset is not None and replay.n_step > 1:
        raise ScenarioError(
            f"algo.replay.n_step: {replay.dataset} holds single decisions, which cannot be joined into returns over "
            f"{replay.n_step}; set it to 1"
        )
    if algo.kind == "ppo" and algo.centralised_critic and not spec.state_size:
        raise ScenarioError(
            f"algo.centralised_critic: {spec.name} has no global state for a centralised critic; set it to false"
        )
    if scenario.federated.dp_sgd is not None and name in shared_policies(scenario):
        _refuse_dp_sgd(scenario, kind.traits.name, algo)
    if algo.discrete_actions and not spec.action.discrete and not (spec.action.table or spec.action.joint_table):
        raise ScenarioError(
            f"algo.discrete_actions: {spec.name} acts on {spec.action.words} and has no action table; set it to false"
        )
    seed = (scenario.seed * 1_000_003 + index) % 2**63
    return kind(algo, spec, seed, torch.device(scenario.device)), action_table(algo, kind.traits, spec)


def arithmetic_of(scenario: Scenario) -> Arithmetic:
    """Precision and compilation of networks while they learn."""
    return Arithmetic(getattr(torch, scenario.precision), scenario.compile)


def _refuse_dp_sgd(scenario: Scenario, name: str, algo: LearnerConfig) -> None:
    """Refuse DP-SGD where it does not work or would protect nothing."""
    from slipstream.federate.dpsgd import refuse_algorithm

    replay = algo.replay_config
    prioritised = replay is not None and replay.prioritised is not None
    problem = refuse_algorithm(name, prioritised, getattr(algo, "normalize_observation", False))
    if problem is None and replay is not None and replay.kind != "local":
        problem = (
            "rows must be drawn independently of each other, which a service does not; set algo.replay.kind to local"
        )
    if problem is None and replay is not None and replay.demonstrations is not None:
        problem = "its account of rows leaves recorded ones out; leave out algo.replay.demonstrations"
    if problem is None and isinstance(algo, DqnConfig) and algo.dueling:
        problem = "it covers plain perceptrons; set algo.dueling to false"
    if problem is None and scenario.learners > 1:
        problem = "its noise is drawn once for all rows of a step; set learners to 1"
    if problem is None and scenario.device != "cpu":
        problem = "its noise is drawn on the CPU; try --no-gpu"
    if problem is not None:
        raise ScenarioError(f"federated.dp_sgd: {problem}")


def complete(scenario: Scenario, spec: WorldSpec) -> Scenario:
    """The scenario with all that depends on its world chosen: networks, and their threads, which are set now.

    The number of threads is the scenario's, or the fastest by a measurement; bits do not depend on it.
    """
    scenario = by_role(scenario, spec)
    open_rows = {
        f"{where}.replay.capacity": usual_capacity(scenario, spec, algo)
        for where, algo in _algos(scenario).items()
        if (replay := algo.replay_config) and replay.capacity is None
    }
    if open_rows:
        scenario = override(scenario, open_rows)
    scenario = with_networks(scenario, spec)
    _core.keep_freed_memory()
    torch.set_num_threads(1)  # torch's own threads cost small networks more than they bring, and change the bits
    if scenario.learner_threads == "auto":
        algo, candidates = scenario.algo, sorted({1, min(2, cores()), min(4, cores())})
        is_native = algo.network is None or algo.network.reads_hidden  # others run in torch, on one thread
        widths = (spec.obs_size, *algo.hidden, 1)
        best = fastest_threads(widths, algo.activation, algo.gradient_rows, candidates) if is_native else 1
        scenario = override(scenario, {"learner_threads": best})
    _core.set_kernel_threads(int(scenario.learner_threads))
    if arithmetic_of(scenario) != PLAIN:
        torch.set_num_threads(int(scenario.learner_threads))  # its passes are torch's
    return scenario


def usual_workers(scenario: Scenario) -> int:
    """Workers where none were asked for: as many as processors, where that saves more time than it takes to start."""
    world, processors = scenario.world, min(cores(), MOST_WORKERS, scenario.collect.num_worlds)
    if world.is_native or processors < 2 or not world.can_be_made_anywhere():
        return 0
    from slipstream.worlds.speed import TimedWorlds

    worlds = TimedWorlds(world, 1, 1)
    try:
        taken = worlds.take(0.1)
    finally:
        worlds.close()
    seconds = scenario.timesteps * taken.seconds / taken.steps
    return processors if seconds * (1.0 - 1.0 / processors) > WORTH_S else 0


def _remembered(algo: LearnerConfig, spec: WorldSpec) -> int:
    """Numbers that its network remembers for each agent."""
    if algo.network is None:
        return 0
    kind = network_kind(algo.network.kind)
    return kind.memory(kind.layout(algo.network, spec))


def usual_capacity(scenario: Scenario, spec: WorldSpec, algo: LearnerConfig) -> int:
    """Rows of a replay for which none were asked: see `algo.replay.capacity`.

    A replay in memory holds large images once, unless the network remembers: then a memory is in each plain row.
    """
    memory, replay = _remembered(algo, spec), algo.replay_config
    if memory or replay is None or replay.kind != "local":
        seen = 2 * sum(block.size * np.dtype(block.dtype).itemsize for block in spec.obs)
    else:
        from slipstream.replay.frames import usual_bytes

        seen = usual_bytes(spec.obs)
    row_bytes = seen + 8 * (spec.action.size + 4) + 4 * memory
    return max(1, min(MOST_ROWS, scenario.timesteps * spec.num_agents, available_memory() // 4 // row_bytes))


def _tick_discount(scenario: Scenario) -> float:
    """The discount per tick within a decision; it matters only in worlds whose decisions last several ticks."""
    return next(iter(gammas(scenario).values()), 1.0)
