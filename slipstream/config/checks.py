"""What is wrong between fields that are each right alone, and settings that have no effect because of others.

Problems are refused when a scenario is loaded. A setting without effect is only reported (`without_effect`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from slipstream.config.base import Config, Problem, dotted
from slipstream.config.parts import CollectConfig
from slipstream.config.stopping import EVALUATED_RULES
from slipstream.errors import suggest

if TYPE_CHECKING:
    from slipstream.config.algos import AnyAlgo
    from slipstream.config.scenario import Scenario


def problems(scenario: Scenario) -> Iterator[Problem]:
    """Every problem between the fields of a scenario."""
    unknown = list(_unknown_policies(scenario))
    yield from unknown
    yield from _self_play_problems(scenario)
    yield from _stop_problems(scenario)
    yield from _curriculum_problems(scenario)
    yield from _worker_problems(scenario.collect)
    yield from _training_world_problems(scenario)
    yield from _learner_problems(scenario)
    if not unknown:
        yield from _agent_problems(scenario)
        yield from _federated_problems(scenario)


def teams(scenario: Scenario, agents: Sequence[str], roles: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Policy name -> indices of the agents it acts for."""
    owners = [_owner(scenario, agent, role) for agent, role in zip(agents, roles, strict=True)]
    return {name: tuple(i for i, owner in enumerate(owners) if owner == name) for name in scenario.policies}


def _owner(scenario: Scenario, agent: str, role: str) -> str | None:
    named = scenario.teams.get(agent) or scenario.teams.get(role)
    if named is not None:
        return named
    only = next(iter(scenario.policies)) if len(scenario.policies) == 1 else None
    return "main" if "main" in scenario.policies else only


def learning_names(scenario: Scenario) -> dict[str, str]:
    """Everything a learning policy may be called by: its own name, and the roles and agents it acts for."""
    learning = scenario.learning
    names = {agent: policy for agent, policy in scenario.teams.items() if policy in learning}
    for agent, role in scenario.world.agents():
        owner = _owner(scenario, agent, role)
        if owner is not None and owner in learning:
            names[agent] = owner
    return names | {name: name for name in learning}


def _federated_problems(scenario: Scenario) -> Iterator[Problem]:
    owners, federated = learning_names(scenario), scenario.federated
    unknown = [name for name in federated.agents or () if name not in owners]
    for name in unknown:
        known = ", ".join(sorted(owners))
        yield ("federated", "agents"), f"'{name}' does not learn here (these do: {known}){suggest(name, owners)}"
    if not federated.has_others:
        return
    if scenario.is_offline:
        yield ("federated", "enabled"), "rounds are held every so many episodes, but an offline run plays none"
    shared = {owners[name] for name in federated.agents or owners if name in owners}
    for name, algo in scenario.learning.items():
        if name in shared and algo.replay_config is not None and algo.replay_config.role == "add":
            yield ("federated", "enabled"), f"'{name}' has replay.role add: it learns nothing that could be shared"


def _worker_problems(collect: CollectConfig) -> Iterator[Problem]:
    workers, worlds = collect.workers or 0, collect.num_worlds
    if workers > worlds:
        yield ("collect", "workers"), f"{workers} workers cannot share {worlds} worlds; each needs at least one"
    elif workers and worlds % workers and collect.overlap == "free":
        yield (
            ("collect", "workers"),
            f"overlap free needs the same number of worlds for every worker, and {worlds} worlds cannot be divided by "
            f"{workers} workers; change either number",
        )


def _training_world_problems(scenario: Scenario) -> Iterator[Problem]:
    """Settings under `collect.world` that the world does not have, or not with these values."""
    if not scenario.collect.world:
        return
    if "kind" in scenario.collect.world:
        yield ("collect", "world", "kind"), "training is in worlds of the same kind; leave it out"
        return
    try:
        _ = scenario.training_world
    except ValidationError as error:
        from slipstream.config.explain import explain

        told = explain(error, scenario.collect.world, lambda path: "", type(scenario.world))
        yield from ((("collect", "world"), line) for line in str(told).splitlines())


def _learner_problems(scenario: Scenario) -> Iterator[Problem]:
    if scenario.learners == 1:
        return
    for algo in scenario.learning.values():
        if algo.replay_config is not None and algo.network is not None and algo.network.remembers:
            yield (
                ("learners",),
                f"{algo.kind} with network {algo.network.kind} draws sequences, which {scenario.learners} learners in "
                "step cannot share; set learners to 1",
            )


def _agent_problems(scenario: Scenario) -> Iterator[Problem]:
    """Problems with the agents of the world, where the config alone determines them."""
    agents = [agent for agent, _ in scenario.world.agents()]
    roles = [role for _, role in scenario.world.agents()]
    found = list(team_problems(scenario, agents, roles)) if agents else []
    yield from found
    if agents and not found:
        assigned = teams(scenario, agents, roles)
        yield from batch_problems(scenario, {policy: len(members) for policy, members in assigned.items()})


def _unknown_policies(scenario: Scenario) -> Iterator[Problem]:
    for key, policy in scenario.teams.items():
        if policy not in scenario.policies:
            known = ", ".join(scenario.policies)
            hint = suggest(policy, scenario.policies)
            yield ("teams", key), f"there is no policy '{policy}' (policies: {known}){hint}"


def _self_play_problems(scenario: Scenario) -> Iterator[Problem]:
    for name, policy in scenario.policies.items():
        if policy.kind != "past":
            continue
        if policy.of not in scenario.learning:
            known = ", ".join(scenario.learning) or "none"
            hint = suggest(policy.of, scenario.learning)
            yield ("policies", name, "of"), f"'{policy.of}' does not learn here (these do: {known}){hint}"
        if scenario.collect.overlap != "none":
            yield ("policies", name), "the version that acts changes between rollouts, which needs collect.overlap none"


def _curriculum_problems(scenario: Scenario) -> Iterator[Problem]:
    curriculum = scenario.curriculum
    if curriculum is None:
        return
    phases = scenario.world.phase_names()
    if not phases:
        yield ("curriculum",), "the world has no phases; list them under world.phases"
    elif curriculum.start_phase is not None and curriculum.start_phase not in phases:
        hint = suggest(curriculum.start_phase, phases)
        yield ("curriculum", "start_phase"), f"there is no phase '{curriculum.start_phase}'{hint}"
    yield from scenario.world.curriculum_problems(curriculum.order)
    if scenario.collect.overlap != "none":
        yield ("curriculum",), "the phase changes between rollouts, which needs collect.overlap none"
    if curriculum.evaluation_success is not None and scenario.evaluate.evaluation_interval is None:
        yield (
            ("curriculum", "evaluation_success"),
            "needs evaluations, but evaluate.evaluation_interval is null; set an interval, or set this to null",
        )


def team_problems(scenario: Scenario, agents: Sequence[str], roles: Sequence[str]) -> Iterator[Problem]:
    """Names in `teams` that fit nothing, agents without a policy, and policies without an agent."""
    known = list(dict.fromkeys([*agents, *roles]))
    for key in scenario.teams:
        if key not in known:
            hint = suggest(key, known)
            yield ("teams", key), f"the world has no agent or role '{key}' (it has {', '.join(known)}){hint}"
    owners = [_owner(scenario, agent, role) for agent, role in zip(agents, roles, strict=True)]
    for agent, owner in zip(agents, owners, strict=True):
        if owner is None:
            yield ("teams",), f"agent '{agent}' has no policy; list it here, or name one of the policies 'main'"
    for policy in scenario.policies:
        if policy not in owners:
            yield ("policies", policy), "acts for no agent; name one under teams, or remove the policy"


def batch_problems(scenario: Scenario, num_agents_by_policy: Mapping[str, int]) -> Iterator[Problem]:
    """Minibatches that a rollout cannot be split into."""
    for policy, agents in num_agents_by_policy.items():
        algo = scenario.algo_of(policy)
        wanted = None if algo is None else algo.rollout_minibatch
        if wanted is None:
            continue
        rows = scenario.rollout_steps * agents
        size = rows / max(1, rows // wanted)  # what the learner makes of it: equal parts
        if abs(size - wanted) <= 0.1 * wanted:
            continue
        collect = scenario.collect
        tries = " or ".join(map(str, _nearest_divisors(rows, wanted)))
        yield (
            (*scenario.algo_path(policy), "minibatch_size"),
            f"{wanted} does not divide the rollout of {rows} agent steps ({collect.rollout_length} steps × "
            f"{collect.num_worlds} worlds × {agents} agent{'s' * (agents != 1)}); try {tries}",
        )


def _nearest_divisors(rows: int, wanted: int) -> list[int]:
    """The two divisors of `rows` nearest to `wanted`, ascending."""
    small = [d for d in range(1, int(rows**0.5) + 1) if rows % d == 0]
    divisors = {*small, *(rows // d for d in small)}
    return sorted(sorted(divisors, key=lambda d: (abs(d - wanted), d))[:2])


def _stop_problems(scenario: Scenario) -> Iterator[Problem]:
    """A rule that could never stop a run is a mistake."""
    stop, evaluate = scenario.stop, scenario.evaluate
    if evaluate.evaluation_interval is None:
        for rule in EVALUATED_RULES:
            if getattr(stop, rule) is not None:
                yield (
                    ("stop", rule),
                    "needs evaluations, but evaluate.evaluation_interval is null; set an interval or remove the rule",
                )
        return
    if stop.certificate is not None and scenario.curriculum is not None:
        yield (
            ("stop", "certificate"),
            "the curriculum has certificates of its own, of the last phase too; use curriculum.certificate",
        )
    if stop.bands is not None:
        wanted, duration = stop.bands.clean_episodes, evaluate.evaluation_duration
        spacing = evaluate.evaluation_interval * scenario.rollout_steps
        evaluations = stop.bands.band_steps // spacing
        if evaluations * duration < wanted:
            yield (
                ("stop", "bands", "clean_episodes"),
                f"{wanted} clean episodes cannot happen in a band of {stop.bands.band_steps} steps, which "
                f"has {evaluations} evaluations of {duration} episodes (one every {spacing} steps); "
                f"try stop.bands.band_steps {-(-wanted // duration) * spacing}",
            )


# --- settings without effect ---

COUNT_ALONE = frozenset({"enabled", "client", "clients", "dp_sgd"})  # fields of `federated` that need no other client
OF_EVALUATIONS = (
    ("world", "detect_alerts"),
    ("log", "log_trajectories"),
    ("log", "frames_keep"),
    ("checkpoint", "best_min_improvement"),
)


def without_effect(scenario: Scenario) -> list[str]:
    """A sentence for every setting that differs from its default and has no effect in this scenario."""
    found = (*_collecting(scenario), *_evaluating(scenario), *_federating(scenario), *_learning(scenario))
    return [f"{path} has no effect here: {why}" for path, why in found]


def _collecting(scenario: Scenario) -> Iterator[tuple[str, str]]:
    collect, changed = scenario.collect, _changed(scenario.collect)
    if scenario.is_offline:
        for name in sorted(changed - {"num_worlds", "rollout_length", "world_threads"}):
            yield f"collect.{name}", "the run collects nothing: it learns from a dataset, or from what others add"
        return
    if "prefetch" in changed and collect.overlap != "free":
        yield "collect.prefetch", f"it needs collect.overlap free (which is {collect.overlap})"
    if "lag" in changed and collect.overlap == "none":
        yield "collect.lag", "collect.overlap is none, so collecting and learning take turns"
    if "lag" in changed and collect.overlap == "free" and not collect.workers:
        yield "collect.lag", "there are no workers; without them, collect.prefetch limits the lag"
    if "mode" in changed and not collect.workers:
        yield "collect.mode", "there are no workers (collect.workers is 0)"
    if collect.seed_stride and scenario.world.is_native:
        yield "collect.seed_stride", f"worlds of kind {scenario.world.kind} are native and have their own streams"
    if not scenario.world.is_native and collect.world_threads not in ("auto", 1):
        yield "collect.world_threads", "environments of other libraries are stepped by one thread; try collect.workers"
    if not scenario.shaping.use_potential_shaping:
        for name in sorted(_changed(scenario.shaping) - {"use_potential_shaping"}):
            yield f"shaping.{name}", "shaping.use_potential_shaping is false"


def _evaluating(scenario: Scenario) -> Iterator[tuple[str, str]]:
    if scenario.evaluate.evaluation_interval is None:
        for part, name in OF_EVALUATIONS:
            if name in _changed(getattr(scenario, part)):
                yield f"{part}.{name}", "it is about evaluation episodes, and evaluate.evaluation_interval is null"
    elif scenario.log.frames_every is None and "frames_keep" in _changed(scenario.log):
        yield "log.frames_keep", "no episode is recorded (log.frames_every is null)"


def _federating(scenario: Scenario) -> Iterator[tuple[str, str]]:
    federated = scenario.federated
    if federated.enabled:
        return
    counts = COUNT_ALONE | ({"agents"} if federated.dp_sgd is not None else set())
    counts |= {"defence"} if federated.secure else set()  # set by `secure`, not by the user
    for name in sorted(_changed(federated) - counts):
        yield f"federated.{name}", "federated.enabled is false, so weights are not exchanged"


def _learning(scenario: Scenario) -> Iterator[tuple[str, str]]:
    algos = {dotted(scenario.algo_path(name)): algo for name, algo in scenario.learning.items()}
    for where, algo in algos.items():
        if scenario.federated.dp_sgd is not None and algo.replay_config is not None and "accumulate" in _changed(algo):
            yield f"{where}.accumulate", "gradient steps of federated.dp_sgd take every batch whole"
        for name, why in (*algo.without_effect(), *_sharing(algo)):
            yield f"{where}.{name}", why


def _sharing(algo: AnyAlgo) -> Iterator[tuple[str, str]]:
    replay = algo.replay_config
    if replay is None:
        return
    changed = _changed(replay.sharing)
    if replay.kind == "local":
        for name in sorted(changed):
            yield f"replay.sharing.{name}", "the replay buffer is local (replay.kind) and not shared"
    elif replay.address is None:
        for name in sorted(changed & {"mixing", "weight", "follow_performance"}):
            yield f"replay.sharing.{name}", "the run is the only client of its own service (replay.address is null)"


def _changed(config: Config) -> set[str]:
    """Names of the fields that differ from their default."""
    fields = type(config).model_fields
    return {
        name for name, field in fields.items()
        if getattr(config, name) != field.get_default(call_default_factory=True)
    }  # fmt: skip
