"""The scenario: one frozen value that says which world, who acts in it, how they learn and when to stop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from slipstream.config.algos import AlgoConfig, AnyAlgo, PpoConfig
from slipstream.config.algos.offpolicy import ReplayLearnerConfig
from slipstream.config.algos.onpolicy import ActorCriticConfig
from slipstream.config.base import Config
from slipstream.config.federated import FederatedConfig
from slipstream.config.names import NAME_PATTERN
from slipstream.config.world import WorldConfig
from slipstream.errors import ScenarioError, suggest
from slipstream.worlds.entry_points import config_classes

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Count = Annotated[int, Field(ge=1)]

if TYPE_CHECKING:
    AnyWorld = WorldConfig
else:
    AnyWorld = Annotated[reduce(or_, config_classes()), Field(discriminator="kind")]


class LearningPolicy(Config):
    """A policy that is trained in this run."""

    kind: Literal["learning"] = Field("learning", description="A policy that is trained in this run.")
    algo: AlgoConfig | None = Field(None, description="Its own algorithm; null: the scenario's algo.")


class FrozenPolicy(Config):
    """A policy trained before, which acts and does not learn."""

    kind: Literal["frozen"] = Field("frozen", description="A policy trained before, which does not learn.")
    path: str = Field(min_length=1, description="A checkpoint or exported model, relative to where the command is run.")


class ScriptedPolicy(Config):
    """A policy the world itself can act with, such as noop or mvp."""

    kind: Literal["scripted"] = Field("scripted", description="A policy the world itself can act with.")
    script: Name = Field(description="Its name among the world's scripts, such as noop or mvp.")


class PastPolicy(Config):
    """Past selves of a policy that learns in this run: opponents that get better as it does."""

    kind: Literal["past"] = Field("past", description="Past selves of a policy that learns in this run.")
    of: Name = Field(description="The learning policy whose past selves these are.")
    every: Count = Field(20, description="Updates of that policy between two selves.")
    keep: Count = Field(
        10, le=1000, description="Selves that are kept, the latest ones; one is drawn for each rollout."
    )


PolicyConfig = Annotated[LearningPolicy | FrozenPolicy | ScriptedPolicy | PastPolicy, Field(discriminator="kind")]


def _one_learner() -> dict[str, PolicyConfig]:
    return {"main": LearningPolicy()}


class CollectConfig(Config):
    """How experience is gathered."""

    num_worlds: Count = Field(16, le=65_536, description="Worlds stepped as one batch.")
    rollout_length: Count = Field(128, le=1_000_000, description="Steps of each world in one rollout.")
    world_threads: Literal["auto"] | Count = Field(
        "auto",
        description="Threads that step the worlds, which change no result; auto is resolved once.",
    )
    workers: int = Field(
        0,
        ge=0,
        le=1024,
        description="Workers that collect, each with neighbouring worlds of its own; 0: the learner's process does. "
        "Their number changes no result, but with overlap free.",
    )
    mode: Literal["process", "thread"] = Field(
        "process", description="What a worker is: a process, or a thread of this one (which cannot be replaced)."
    )
    deadline_s: float = Field(
        60.0,
        gt=0,
        description="Longest wait for a worker that shows no sign of life, within a step too: after four fifths of it, "
        "it is replaced.",
    )
    overlap: Literal["none", "deterministic", "free"] = Field(
        "none",
        description="Collect while the learner learns (workers, or a thread), for algorithms that can learn from an "
        "older policy (all but ppo and reinforce): deterministic (always `lag` updates behind, so the bits do not "
        "depend on timing) or free (whoever is fastest).",
    )
    lag: Count = Field(
        1,
        le=64,
        description="With overlap: updates a rollout's policy is behind (deterministic), or after which the learner "
        "waits for a worker's rollout (free).",
    )
    prefetch: Count = Field(
        1, le=64, description="With overlap free: rollouts, of each worker, that may wait for the learner."
    )
    seed_stride: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="Worlds of other libraries: episode e of world i is reset with seed + stride × i + e; 0: with a "
        "hash of the three. Native worlds have streams of their own.",
    )


class ShapingConfig(Config):
    """Rewards that lead the way and leave the best policy as it is: κ(γ^duration Φ′ − Φ) with a potential Φ."""

    use_potential_shaping: bool = Field(True, description="Add them, wherever there is a potential.")
    kappa: float = Field(1.0, gt=0, description="Their weight κ.")
    evaluator: str | None = Field(
        None,
        min_length=1,
        description="A model of how long it will take, relative to where the command is run: Φ is minus the time it "
        "expects, as a share of its horizon. null: the world's own potential, if it has one.",
    )


class EvaluateConfig(Config):
    """How the policies are judged during training: exploration off, seeds apart from training's."""

    evaluation_interval: Count | None = Field(
        5, description="Updates between evaluations (one more follows the last update); null: no evaluation."
    )
    evaluation_duration: Count = Field(
        10, le=100_000, description="Episodes in one evaluation, each in a world of its own."
    )
    seed: int = Field(
        12345, ge=0, lt=2**63, description="Seed of the evaluation episodes, drawn apart from training's."
    )
    opponent: str | None = Field(
        None,
        description="Worlds whose agents play against each other: the script on the other side where one policy learns "
        "all sides, or `self`; null: the world's own choice (Dr. Mario: greedy, racing: follow_gap).",
    )
    enable_hallucination_detection: bool = Field(
        False, description="Airspace: read alerts, missed conflicts and collision risk from every evaluation."
    )


class BandRule(Config):
    """Stop when consecutive bands of training were judged good."""

    band_steps: Count = Field(100_000, description="Length of a band in steps of training.")
    min_bands: Count = Field(3, description="Bands to see before the rule may stop training.")
    good_bands: Count = Field(2, description="Consecutive good bands that stop training.")
    clean_episodes: Count = Field(
        20,
        description="A band is good when its evaluations hold at least this many episodes, all clean.",
    )


@dataclass(frozen=True)
class Needs:
    """Marks a stop rule that looks at evaluations: without them, it could never stop a run."""

    clean_episodes: bool = False  # the world must also say which episodes are clean


class StopConfig(Config):
    """When to stop before the budget is spent; null switches a rule off, the first rule met stops training.

    A clean episode is what the world reports as clean: in airspace, no loss of separation at any 1 s substep
    and every aircraft at its waypoint.
    """

    zero_conflict_streak: Annotated[Count | None, Needs(clean_episodes=True)] = Field(
        None,
        description="Stop after this many consecutive clean evaluation episodes. 100 in a row show, with 95 % "
        "confidence, that at least 97 % are clean; 20 show 86 %.",
    )
    clean_evaluations: Annotated[Count | None, Needs(clean_episodes=True)] = Field(
        None, description="Stop after this many consecutive evaluations in which every episode was clean."
    )
    target_return: Annotated[float | None, Needs()] = Field(
        None, description="Stop when an evaluation's mean return (summed over agents) reaches this."
    )
    episodes: Count | None = Field(None, description="Stop once this many training episodes have ended.")
    wall_time_s: float | None = Field(None, gt=0, description="Stop after this many seconds of wall time.")
    bands: Annotated[BandRule | None, Needs(clean_episodes=True)] = Field(
        None, description="Stop after consecutive good bands of training."
    )
    bad_batches: Count = Field(
        10, description="Give up after this many batches in a row that held NaN or infinity; they never reach weights."
    )


# The rules of StopConfig that look at evaluations, with what they need.
EVALUATED_RULES = {
    name: mark for name, field in StopConfig.model_fields.items() for mark in field.metadata if isinstance(mark, Needs)
}


class CheckpointConfig(Config):
    """What is saved while training; the final state is always saved."""

    checkpoint_every: Count | None = Field(
        None, description="Steps between periodic checkpoints; null: a tenth of the budget."
    )
    keep: Count = Field(3, description="Periodic checkpoints kept, the latest ones.")
    keep_best: Count = Field(1, description="Best checkpoints kept: each was the best evaluation when it was saved.")
    best_min_improvement: float = Field(
        0.0, ge=0, description="How far an evaluation's mean return must exceed the best to be saved as best."
    )


class CertificateConfig(Config):
    """What must be shown of the policy, held still between two updates, before a phase is left."""

    at_least: float = Field(0.9, gt=0, lt=1, description="Success rate that must be shown to be exceeded.")
    alpha: float = Field(
        0.05, gt=0, lt=1, description="Chance that any certificate of the run is false; the k-th attempt may spend "
        "alpha / (k (k + 1))."
    )  # fmt: skip
    max_episodes: Count = Field(2000, description="An attempt is given up after so many episodes.")
    expected: float | None = Field(
        None, gt=0, lt=1, description="The rate that is expected, above at_least: decides sooner if it is about right "
        "(a sequential probability ratio test); null: any rate above at_least (a mixture)."
    )  # fmt: skip
    retry_updates: Count = Field(20, description="Updates to learn from before the next attempt at the same phase.")

    @model_validator(mode="after")
    def _can_pass(self) -> CertificateConfig:
        if self.expected is not None and self.expected <= self.at_least:
            raise ValueError(f"expected {self.expected:g} must be above at_least {self.at_least:g}")
        return self


class CurriculumConfig(Config):
    """How the world's phases are gone through: one after the other as they are mastered, or all at once."""

    order: Literal["in_turn", "adaptive"] = Field(
        "in_turn", description="One phase after the other, each until it is mastered; or all of them from the start, "
        "those more often that succeed less."
    )  # fmt: skip

    start_phase: str | None = Field(None, min_length=1, description="Name of the phase to begin with; null: the first.")
    success_rate: float = Field(0.7, gt=0, le=1, description="Share of the latest episodes that must succeed.")
    window: Count = Field(100, description="How many episodes of the phase that share is of.")
    evaluation_success: float | None = Field(
        1.0, gt=0, le=1, description="Share of the latest evaluation's episodes that must succeed; null: not asked for."
    )
    certificate: CertificateConfig | None = Field(
        None, description="Shown on fresh episodes before a phase is left; null: not asked for."
    )

    @model_validator(mode="after")
    def _fits_its_order(self) -> CurriculumConfig:
        if self.order == "adaptive" and (self.certificate is not None or self.start_phase is not None):
            raise ValueError(
                "order 'adaptive' plays all phases at once: there is none to start with or to be certified"
            )
        return self


class LogConfig(Config):
    """What is written for people and viewers."""

    log_trajectories: bool = Field(
        False, description="Write the track of every evaluation episode as CSV (traj_ep_*.csv)."
    )
    training_worlds: int = Field(
        0,
        ge=0,
        description="Write every decision of this many training worlds as CSV (train_*.csv): observations by name, "
        "actions, rewards, ends.",
    )
    log_episodes: bool = Field(False, description="Write every training episode's end to events.jsonl.")
    diagnostics: bool = Field(
        True, description="Report the norm of every network's weights and how far each update moves them (diag/…)."
    )
    frames_every: Count | None = Field(
        1, description="Record the first episode of every n-th evaluation for the viewers; null: never."
    )
    frames_keep: Count = Field(50, description="Recorded episodes kept, the latest ones.")


class Scenario(Config):
    """Everything a run needs: the same scenario and seed give the same bits on the same machine."""

    name: Name = Field("scenario", description="Used in folder names; the file's own name unless given.")
    description: str = Field("", max_length=2000, description="What happens here, for people.")
    preset: Name | None = Field(
        None, description="Which preset set the hyper-parameters (a note: the values are written out below)."
    )
    seed: int = Field(42, ge=0, lt=2**63, description="Seed of everything drawn in training.")
    timesteps: Count = Field(
        100_000, description="Budget in steps of worlds (not agent steps), all together; spent in whole rollouts."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where networks run; auto is resolved once and saved."
    )
    learner_threads: Literal["auto"] | Count = Field(
        "auto",
        description="Threads of the learners; auto is measured once and saved (the result is the same).",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Numbers that networks are multiplied in while learning; weights, losses and acting stay float32. "
        "bfloat16 pays on processors that have it, float16 needs a GPU.",
    )
    compile: bool = Field(
        False, description="Let torch.compile make the networks' passes while learning; instead of the native ones."
    )
    learners: int = Field(
        1,
        ge=1,
        le=64,
        description="Learners in step, each a process with its share of every batch's rows; together they take the "
        "steps of one.",
    )
    world: AnyWorld = Field(description="The world and its settings.")
    algo: AlgoConfig = Field(default_factory=PpoConfig, description="The algorithm of the learning policies.")
    policies: dict[Name, PolicyConfig] = Field(
        default_factory=_one_learner,
        min_length=1,
        max_length=64,
        description="Who acts: policies by name, each learning, frozen or scripted.",
    )
    teams: dict[str, Name] = Field(
        default_factory=dict,
        description="Agent name or role -> policy. An agent's name beats its role; agents that are not "
        "listed belong to the policy 'main', or to the only one.",
    )
    collect: CollectConfig = Field(default_factory=CollectConfig, description="How experience is gathered.")
    shaping: ShapingConfig = Field(default_factory=ShapingConfig, description="Rewards that lead the way.")
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig, description="How policies are judged.")
    stop: StopConfig = Field(default_factory=StopConfig, description="When to stop early.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="What is saved.")
    log: LogConfig = Field(default_factory=LogConfig, description="What is written.")
    curriculum: CurriculumConfig | None = Field(
        None, description="Go through the world's phases; null: play the last one only."
    )
    federated: FederatedConfig = Field(default_factory=FederatedConfig, description="Learning with other runs.")

    @property
    def rollout_steps(self) -> int:
        """Steps of a world in one rollout, over all worlds: what an update advances the budget by."""
        return self.collect.num_worlds * self.collect.rollout_length

    @property
    def checkpoint_steps(self) -> int:
        """Steps between periodic checkpoints."""
        return self.checkpoint.checkpoint_every or max(1, self.timesteps // 10)

    @property
    def is_offline(self) -> bool:
        """Whether every learner learns from a dataset, or from what others add, so that nothing is collected."""
        return all(
            isinstance(algo, ReplayLearnerConfig) and not algo.replay.collects
            for name in self.policies
            if (algo := self.algo_of(name)) is not None
        )

    def algo_of(self, policy: str) -> AnyAlgo | None:
        """The algorithm that trains `policy`; None for frozen and scripted ones."""
        config = self.policies[policy]
        return (config.algo or self.algo) if isinstance(config, LearningPolicy) else None

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        problems = list(_problems(self))
        if problems:
            text = "; ".join(f"{dotted(path)}: {sentence}" for path, sentence in problems)
            raise PydanticCustomError("cross_field", "{text}", {"text": text, "problems": problems})
        return self


def assign_teams(scenario: Scenario, agents: Sequence[str], roles: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Policy name -> indices of the agents it acts for; raises when a name fits nothing or a policy idles.

    `agents` and `roles` are the world spec's, one entry per agent.
    """
    problems = list(_team_problems(scenario, agents, roles))
    _refuse(scenario, problems)
    owners = [_owner(scenario, agent, role) for agent, role in zip(agents, roles, strict=True)]
    return {name: tuple(i for i, owner in enumerate(owners) if owner == name) for name in scenario.policies}


def check_batch(scenario: Scenario, num_agents_by_policy: Mapping[str, int]) -> None:
    """Raises when the agent steps of a rollout cannot be split into minibatches of about the size asked for."""
    problems = list(_batch_problems(scenario, num_agents_by_policy))
    _refuse(scenario, problems)


def dotted(path: Iterable[str | int]) -> str:
    """A path as people write it: world.aircraft.0.speed_kt."""
    return ".".join(map(str, path))


Problem = tuple[tuple[str, ...], str]  # path, sentence


def _refuse(scenario: Scenario, problems: list[Problem]) -> None:
    if problems:
        lines = (f"{scenario.name}: {dotted(path)}: {sentence}" for path, sentence in problems)
        raise ScenarioError("\n".join(lines))


def _problems(scenario: Scenario) -> Iterator[Problem]:
    """Everything wrong between fields that are each right alone."""
    yield from _unknown_policies(scenario)
    yield from _past_problems(scenario)
    yield from _stop_problems(scenario)
    yield from _curriculum_problems(scenario)
    yield from _worker_problems(scenario.collect)
    if not any(_unknown_policies(scenario)):
        agents = scenario.world.agents()
        yield from _agent_problems(scenario, [agent for agent, _ in agents], [role for _, role in agents])
        yield from _federated_problems(scenario)


def shared_policies(scenario: Scenario) -> tuple[str, ...]:
    """Policies that are exchanged with other clients: those named, or those that act for the agents named."""
    owners = _learning_names(scenario)
    asked = scenario.federated.agents
    named = set(owners.values()) if asked is None else {owners[name] for name in asked}
    return tuple(name for name in scenario.policies if name in named)


def _learning_names(scenario: Scenario) -> dict[str, str]:
    """Everything a learning policy may be called by: its own name, roles and agents it acts for."""
    learning = {name for name, policy in scenario.policies.items() if isinstance(policy, LearningPolicy)}
    names = {agent: policy for agent, policy in scenario.teams.items() if policy in learning}
    for agent, role in scenario.world.agents():
        owner = _owner(scenario, agent, role)
        names |= {agent: owner} if owner in learning else {}
    return names | {name: name for name in learning}


def _federated_problems(scenario: Scenario) -> Iterator[Problem]:
    owners = _learning_names(scenario)
    for name in scenario.federated.agents or ():
        if name not in owners:
            known = ", ".join(sorted(owners))
            yield ("federated", "agents"), f"'{name}' does not learn here (these do: {known}){suggest(name, owners)}"
    if scenario.federated.enabled and scenario.federated.clients > 1 and scenario.is_offline:
        yield ("federated", "enabled"), "rounds come every so many episodes, but a run that learns offline plays none"
    for name in shared_policies(scenario) if scenario.federated.has_others else ():
        algo = scenario.algo_of(name)
        if isinstance(algo, ReplayLearnerConfig) and algo.replay.role == "add":
            yield ("federated", "enabled"), f"'{name}' only adds to a replay (replay.role), and learns nothing to share"


def _worker_problems(collect: CollectConfig) -> Iterator[Problem]:
    workers, worlds = collect.workers, collect.num_worlds
    if workers > worlds:
        yield ("collect", "workers"), f"{workers} workers cannot share {worlds} worlds; a worker needs at least one"
    elif workers and worlds % workers and collect.overlap == "free":
        yield (
            ("collect", "workers"),
            f"{worlds} worlds cannot be shared evenly by {workers} workers, which overlap free needs, as any of them "
            "may come first; try another number of either",
        )


def _agent_problems(scenario: Scenario, agents: Sequence[str], roles: Sequence[str]) -> Iterator[Problem]:
    """Everything wrong between the scenario and the agents of its world, where they are known."""
    problems = list(_team_problems(scenario, agents, roles)) if agents else []
    yield from problems
    if agents and not problems:
        teams = assign_teams(scenario, agents, roles)
        yield from _batch_problems(scenario, {policy: len(members) for policy, members in teams.items()})


def _unknown_policies(scenario: Scenario) -> Iterator[Problem]:
    for key, policy in scenario.teams.items():
        if policy not in scenario.policies:
            known = ", ".join(scenario.policies)
            hint = suggest(policy, scenario.policies)
            yield ("teams", key), f"there is no policy '{policy}' (policies: {known}){hint}"


def _past_problems(scenario: Scenario) -> Iterator[Problem]:
    learning = [name for name, policy in scenario.policies.items() if isinstance(policy, LearningPolicy)]
    for name, policy in scenario.policies.items():
        if not isinstance(policy, PastPolicy):
            continue
        if policy.of not in learning:
            known = ", ".join(learning) or "none"
            hint = suggest(policy.of, learning)
            yield ("policies", name, "of"), f"no policy '{policy.of}' learns here (these do: {known}){hint}"
        if scenario.collect.overlap != "none":
            yield ("policies", name), "past selves change between rollouts, which needs collect.overlap none"


def _curriculum_problems(scenario: Scenario) -> Iterator[Problem]:
    curriculum = scenario.curriculum
    if curriculum is None:
        return
    phases = scenario.world.phase_names()
    if not phases:
        yield ("curriculum",), "the world has no phases to go through; list them under world.phases"
    elif curriculum.start_phase is not None and curriculum.start_phase not in phases:
        hint = suggest(curriculum.start_phase, phases)
        yield ("curriculum", "start_phase"), f"there is no phase '{curriculum.start_phase}'{hint}"
    yield from scenario.world.curriculum_problems(curriculum.order)
    if scenario.collect.overlap != "none":
        yield ("curriculum",), "phases change between rollouts, which needs collect.overlap none"
    if curriculum.evaluation_success is not None and scenario.evaluate.evaluation_interval is None:
        yield (
            ("curriculum", "evaluation_success"),
            "is judged by evaluation episodes, but evaluate.evaluation_interval is null; set an interval or make this "
            "null",
        )


def _owner(scenario: Scenario, agent: str, role: str) -> str | None:
    named = scenario.teams.get(agent) or scenario.teams.get(role)
    if named is not None:
        return named
    only = next(iter(scenario.policies)) if len(scenario.policies) == 1 else None
    return "main" if "main" in scenario.policies else only


def _team_problems(scenario: Scenario, agents: Sequence[str], roles: Sequence[str]) -> Iterator[Problem]:
    known = list(dict.fromkeys([*agents, *roles]))
    for key in scenario.teams:
        if key not in known:
            hint = suggest(key, known)
            yield ("teams", key), f"the world has no agent or role '{key}' (it has {', '.join(known)}){hint}"
    owners = [_owner(scenario, agent, role) for agent, role in zip(agents, roles, strict=True)]
    for agent, owner in zip(agents, owners, strict=True):
        if owner is None:
            yield (
                ("teams",),
                f"agent '{agent}' has no policy; list it here, or call one of the policies 'main'",
            )
    for policy in scenario.policies:
        if policy not in owners:
            yield ("policies", policy), "no agent is on its team; name one under teams, or remove the policy"


def _batch_problems(scenario: Scenario, num_agents_by_policy: Mapping[str, int]) -> Iterator[Problem]:
    for policy, agents in num_agents_by_policy.items():
        algo = scenario.algo_of(policy)
        rows = scenario.rollout_steps * agents
        if not isinstance(algo, ActorCriticConfig):
            continue
        size = rows / max(1, rows // algo.minibatch_size)  # what the learner makes of it: equal parts
        if abs(size - algo.minibatch_size) <= 0.1 * algo.minibatch_size:
            continue
        own = isinstance(config := scenario.policies[policy], LearningPolicy) and config.algo is not None
        path = ("policies", policy, "algo", "minibatch_size") if own else ("algo", "minibatch_size")
        collect = scenario.collect
        tries = " or ".join(map(str, _nearest_divisors(rows, algo.minibatch_size)))
        yield (
            path,
            f"{algo.minibatch_size} does not divide the rollout of {rows} agent steps "
            f"({collect.rollout_length} steps × {collect.num_worlds} worlds × {agents} "
            f"agent{'s' * (agents != 1)}); try {tries}",
        )


def _nearest_divisors(rows: int, wanted: int) -> list[int]:
    """The two divisors of `rows` nearest to `wanted`, ascending."""
    small = [d for d in range(1, int(rows**0.5) + 1) if rows % d == 0]
    divisors = {*small, *(rows // d for d in small)}
    return sorted(sorted(divisors, key=lambda d: (abs(d - wanted), d))[:2])


def _stop_problems(scenario: Scenario) -> Iterator[Problem]:
    """A rule that can never fire is a mistake, not a preference."""
    stop, evaluate = scenario.stop, scenario.evaluate
    if evaluate.evaluation_interval is None:
        for rule in EVALUATED_RULES:
            if getattr(stop, rule) is not None:
                yield (
                    ("stop", rule),
                    "is judged by evaluation episodes, but evaluate.evaluation_interval is null; "
                    "set an interval or remove the rule",
                )
    elif stop.bands is not None:
        wanted, duration = stop.bands.clean_episodes, evaluate.evaluation_duration
        spacing = evaluate.evaluation_interval * scenario.rollout_steps
        evaluations = stop.bands.band_steps // spacing
        if evaluations * duration < wanted:
            yield (
                ("stop", "bands", "clean_episodes"),
                f"{wanted} clean episodes cannot happen in a band of {stop.bands.band_steps} steps, which "
                f"holds {evaluations} evaluations of {duration} episodes (one every {spacing} steps); "
                f"try stop.bands.band_steps {-(-wanted // duration) * spacing}",
            )
