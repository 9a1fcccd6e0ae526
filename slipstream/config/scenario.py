"""The scenario: one frozen value that says which world, who acts in it, how they learn and when to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from slipstream.config import checks
from slipstream.config.algos import AlgoConfig, AnyAlgo, PpoConfig
from slipstream.config.base import Config, Count, Name, OwnCode, OwnName, Problem, dotted, plain, refuse_problems
from slipstream.config.federated import FederatedConfig
from slipstream.config.parts import (
    CheckpointConfig,
    CollectConfig,
    CurriculumConfig,
    EvaluationConfig,
    LogConfig,
    ShapingConfig,
)
from slipstream.config.stopping import StoppingConfig
from slipstream.config.world import WorldConfig
from slipstream.errors import ScenarioError


class LearningPolicy(Config):
    """A policy that is trained in this run."""

    from_run: ClassVar[bool] = True  # its weights come from this run
    kind: Literal["learning"] = Field("learning", description="A policy that is trained in this run.")
    algo: AlgoConfig | None = Field(None, description="Its own algorithm; null: the scenario's algo.")


class FrozenPolicy(Config):
    """A policy trained before, which acts and does not learn."""

    from_run: ClassVar[bool] = False
    kind: Literal["frozen"] = Field("frozen", description="A policy trained before, which does not learn.")
    path: str = Field(
        min_length=1, description="Path of a checkpoint or exported model, relative to the working directory."
    )
    policy: Name | None = Field(None, description="Which policy there, where it holds several; null: the only one.")


class ScriptedPolicy(Config):
    """A policy that is code: built into the world, such as noop or mvp, or a function of the user's."""

    from_run: ClassVar[bool] = False
    kind: Literal["scripted"] = Field("scripted", description="A policy that is code.")
    script: Name | OwnName = Field(
        description="Name of a script of the world, such as noop or mvp, or a function of your own as module:function."
    )


class SelfPlayPolicy(Config):
    """Earlier versions of a policy that learns in this run: opponents that get better as it does (self-play)."""

    from_run: ClassVar[bool] = True
    kind: Literal["past"] = Field("past", description="Earlier versions of a policy that learns in this run.")
    of: Name = Field(description="The learning policy whose earlier versions act.")
    every: Count = Field(20, description="Updates between two saved versions.")
    keep: Count = Field(10, le=1000, description="How many of the latest versions to keep; each rollout draws one.")
    draw: Literal["even", "hard"] = Field(
        "even",
        description="Which version acts: all equally often, or those more often that the learner loses to (prioritised "
        "fictitious self-play).",
    )
    explore: bool = Field(
        True,
        description="Draw their actions as the learner draws its own; false: they take the most likely ones. "
        "Evaluations are without exploration in any case.",
    )


class InitConfig(Config):
    """Weights to begin with: fine-tuning."""

    path: str = Field(
        min_length=1, description="Run, checkpoint or model to take weights from, relative to the working directory."
    )
    policy: Name | None = Field(None, description="Which policy there; null: the only one, or that of the same name.")
    parts: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="What to take, such as actor, or actor.torso and actor.norm; null: all that fits. The rest begins "
        "anew.",
    )


def _path_alone(value: Any) -> Any:
    """A path alone, as in `init_from: models/NAME`, stands for all of it."""
    return {"path": value} if isinstance(value, str) else value


PolicyConfig = Annotated[LearningPolicy | FrozenPolicy | ScriptedPolicy | SelfPlayPolicy, Field(discriminator="kind")]


def _one_learner() -> dict[str, PolicyConfig]:
    return {"main": LearningPolicy()}


class Scenario(Config):
    """Everything a run needs: the same scenario and seed give the same bits on the same machine."""

    name: Name = Field("scenario", description="Name used in folder names; default: the name of the file.")
    description: str = Field("", max_length=2000, description="What happens here, for people.")
    preset: Name | None = Field(
        None, description="Preset that the hyper-parameters came from. A note only: the values are written out below."
    )
    seed: int = Field(42, ge=0, lt=2**63, description="Seed of all random numbers in training.")
    timesteps: Count = Field(
        100_000,
        description="Budget in environment steps (not agent steps), summed over all worlds; spent in whole rollouts.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device for the networks; auto: a GPU if there is one, chosen once and saved."
    )
    learner_threads: Literal["auto"] | Count = Field(
        "auto", description="Threads of the learners; auto: measured once and saved. Does not change results."
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Precision of matrix products while learning; weights, losses and acting stay float32. bfloat16 "
        "is faster on processors that support it, float16 needs a GPU.",
    )
    compile: bool = Field(
        False, description="Run the networks through torch.compile while learning, instead of the native kernels."
    )
    learners: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of data-parallel learner processes; each computes gradients for its share of every batch.",
    )
    world: SerializeAsAny[WorldConfig] = Field(description="The world and its settings.")
    algo: AlgoConfig = Field(default_factory=PpoConfig, description="The algorithm of the learning policies.")
    policies: dict[Name, PolicyConfig] = Field(
        default_factory=_one_learner,
        min_length=1,
        max_length=64,
        description="Who acts: policies by name, each learning, frozen, scripted or past.",
    )
    teams: dict[str, Name] = Field(
        default_factory=dict,
        description="Which policy acts for which agents: agent name or role -> policy. A name takes precedence over a "
        "role; agents that are not listed get the policy 'main', or the only one.",
    )
    collect: CollectConfig = Field(default_factory=CollectConfig, description="How experience is collected.")
    shaping: ShapingConfig = Field(default_factory=ShapingConfig, description="Potential-based reward shaping.")
    evaluate: EvaluationConfig = Field(default_factory=EvaluationConfig, description="Evaluation during training.")
    stop: StoppingConfig = Field(default_factory=StoppingConfig, description="When to stop early.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Which checkpoints are saved.")
    log: LogConfig = Field(default_factory=LogConfig, description="What is logged.")
    curriculum: CurriculumConfig | None = Field(
        None, description="How to go through the world's phases; null: play only the last one."
    )
    federated: FederatedConfig = Field(default_factory=FederatedConfig, description="Federated learning.")
    init_from: Annotated[InitConfig | None, BeforeValidator(_path_alone)] = Field(
        None, description="Weights to begin with, for fine-tuning: a path, or its settings; null: random ones."
    )
    callbacks: tuple[OwnCode, ...] = Field(
        (), description="Code of your own between updates: subclasses of slipstream.Callback, called in this order."
    )

    @property
    def rollout_steps(self) -> int:
        """Steps of a world in one rollout, over all worlds: what an update advances the budget by."""
        return self.collect.num_worlds * self.collect.rollout_length

    @property
    def training_world(self) -> WorldConfig:
        """The world that experience is collected in: with the settings of `collect.world`, and the world's own."""
        return (changed_world(self.world, self.collect.world) if self.collect.world else self.world).in_training()

    @property
    def checkpoint_steps(self) -> int:
        """Steps between periodic checkpoints."""
        return self.checkpoint.checkpoint_every or max(1, self.timesteps // 10)

    @property
    def learning(self) -> dict[str, AnyAlgo]:
        """The policies that are trained, each with its algorithm."""
        found = self.policies.items()
        return {name: policy.algo or self.algo for name, policy in found if policy.kind == "learning"}

    @property
    def is_offline(self) -> bool:
        """Whether every learner learns from a dataset, or from what others add, so that nothing is collected."""
        return not any(algo.collects for algo in self.learning.values())

    def algo_of(self, policy: str) -> AnyAlgo | None:
        """The algorithm that trains `policy`; None where it does not learn."""
        return self.learning.get(policy)

    def algo_path(self, policy: str) -> tuple[str, ...]:
        """Where the algorithm of a learning policy is written: its own, or the scenario's."""
        own = self.policies[policy]
        return ("policies", policy, "algo") if own.kind == "learning" and own.algo is not None else ("algo",)

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        refuse_problems(checks.problems(self))
        return self


def changed_world(world: WorldConfig, changes: Mapping[str, Any]) -> WorldConfig:
    """The same world with other settings, checked as a whole; mappings are merged deeply."""
    return type(world).model_validate(_laid_over(plain(world), changes))


def _laid_over(values: Any, changes: Any) -> Any:
    if not isinstance(values, dict) or not isinstance(changes, Mapping):
        return changes
    return values | {key: _laid_over(values.get(key), value) for key, value in changes.items()}


def assign_teams(scenario: Scenario, agents: Sequence[str], roles: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Policy name -> indices of the agents it acts for; raises when a name fits nothing or a policy has no agent.

    `agents` and `roles` are the world spec's, one entry per agent.
    """
    _refuse(scenario, list(checks.team_problems(scenario, agents, roles)))
    return checks.teams(scenario, agents, roles)


def check_batch(scenario: Scenario, num_agents_by_policy: Mapping[str, int]) -> None:
    """Raises when the agent steps of a rollout cannot be split into minibatches of about the size asked for."""
    _refuse(scenario, list(checks.batch_problems(scenario, num_agents_by_policy)))


def shared_policies(scenario: Scenario) -> tuple[str, ...]:
    """Policies that are exchanged with other clients: those named, or those that act for the agents named."""
    owners = checks.learning_names(scenario)
    asked = scenario.federated.agents
    named = set(owners.values()) if asked is None else {owners[name] for name in asked}
    return tuple(name for name in scenario.policies if name in named)


def _refuse(scenario: Scenario, problems: list[Problem]) -> None:
    if problems:
        lines = (f"{scenario.name}: {dotted(path)}: {sentence}" for path, sentence in problems)
        raise ScenarioError("\n".join(lines), keys=tuple(dotted(path) for path, _ in problems))


# --- former names ---


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """Plain values of a scenario with every old key under its new name; what is wrong with them is said later."""
    return _detect_alerts(_shaping_coef(values))


def _detect_alerts(values: dict[str, Any]) -> dict[str, Any]:
    """`evaluate.enable_hallucination_detection` became `world.detect_alerts`, in the worlds that have alerts."""
    evaluate, world = values.get("evaluate"), values.get("world")
    if (
        not isinstance(evaluate, dict)
        or "enable_hallucination_detection" not in evaluate
        or not isinstance(world, dict)
    ):
        return values
    rest = {key: value for key, value in evaluate.items() if key != "enable_hallucination_detection"}
    wanted = evaluate["enable_hallucination_detection"]
    if wanted is not False or "detect_alerts" in world:
        world = {**world, "detect_alerts": wanted}
    return {**values, "evaluate": rest, "world": world}


def _shaping_coef(values: dict[str, Any]) -> dict[str, Any]:
    """`collect.shaping_coef`, of which 0 meant none, became `shaping.kappa` and `.use_potential_shaping`."""
    collect, shaping = values.get("collect"), values.get("shaping", {})
    if not isinstance(collect, dict) or "shaping_coef" not in collect or not isinstance(shaping, dict):
        return values
    kappa = collect["shaping_coef"]
    new = {"use_potential_shaping": False} if kappa == 0 else {"use_potential_shaping": True, "kappa": kappa}
    rest = {key: value for key, value in collect.items() if key != "shaping_coef"}
    return {**values, "collect": rest, "shaping": {**shaping, **new}}
