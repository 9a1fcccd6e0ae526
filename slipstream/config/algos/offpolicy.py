"""Hyper-parameters of the algorithms that learn from a replay buffer or a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slipstream.config.algos.learner import ACTIVATION, RATE, ActivationName, Hidden, LearnerConfig, Schedule
from slipstream.config.base import Config


class PrioritisedConfig(Config):
    """Prioritised replay: sample transitions in proportion to (|TD error| + eps)^alpha (Schaul et al. 2016)."""

    alpha: float = Field(0.6, ge=0, le=1, description="Exponent of the priorities; 0: uniform sampling.")
    beta: Schedule = Field(
        ((0.0, 0.4), (1.0, 1.0)),
        description="Exponent of the importance weights, a number or a schedule; 1: the bias is fully corrected.",
    )
    eps: float = Field(1e-6, gt=0, description="Added to every |TD error|, so that every transition can be sampled.")


class LimitConfig(Config):
    """Rate limiter of a table: rows sampled per row added (as in Reverb)."""

    samples_per_insert: float | None = Field(
        None, gt=0, description="Rows sampled per row added, over all clients; null: no limit."
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        description="Sampled rows by which the ratio may be off before those who add, or those who sample, must wait.",
    )
    min_size: int = Field(1, ge=1, description="Rows that must have been added before any can be sampled.")


class SharingConfig(Config):
    """How a run uses a replay service that it shares with others."""

    table: str | None = Field(
        None, min_length=1, max_length=128, description="Table to use; null: named after the world and the policy."
    )
    client: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Name of this run in the service; null: name and seed of the scenario (pendulum.1), with .draw "
        "at the end for role draw.",
    )
    token_file: str | None = Field(
        None, min_length=1, description="File with the token of the service; required for tcp."
    )
    mixing: Literal["own_heavy", "uniform", "by_size", "newest", "local"] = Field(
        "own_heavy",
        description="Whose rows are sampled: 80 % own (own_heavy), equally from every client (uniform), in proportion "
        "to rows held (by_size) or to rows added recently (newest), or own rows only (local).",
    )
    weight: float = Field(1.0, ge=0, description="Weight of this run's rows when clients' rows are mixed.")
    follow_performance: float = Field(
        0.0, ge=0, le=10, description="Weight each client by exp(this × z), z its standardised recent reward; 0: off."
    )
    timeout_s: float = Field(
        60.0, gt=0, description="Longest wait for the service, in seconds; after it the run ends with an error."
    )
    limit: LimitConfig = Field(default_factory=LimitConfig, description="Rate limiter of the table.")


class DemonstrationsConfig(Config):
    """Recorded rows beside the run's own: a share of every batch (RLPD, Ball et al. 2023)."""

    path: str | None = Field(
        None,
        min_length=1,
        description="Dataset that was recorded with the world and the rewards of this run (slipstream dataset record); "
        "relative to the working directory.",
    )
    script: str | None = Field(
        None, min_length=1, description="Instead of a path: script of the world that the run records when it begins."
    )
    transitions: int = Field(100_000, ge=1, le=1_000_000_000, description="Decisions of the script to record.")
    share: Schedule = Field(
        0.5,
        description="Fraction of every batch that is drawn from it, rounded to whole rows: a number, or a schedule of "
        "[fraction of the budget, value] points.",
    )

    @model_validator(mode="after")
    def _come_from_somewhere(self) -> Self:
        if (self.path is None) == (self.script is None):
            found = "neither is set" if self.path is None else f"both are, to {self.path} and {self.script}"
            raise ValueError(f"demonstrations come from a path or from a script, and {found}; give one of the two")
        return self

    @model_validator(mode="after")
    def _is_a_fraction(self) -> Self:
        values = (self.share,) if isinstance(self.share, float) else tuple(value for _, value in self.share)
        if max(values) > 1.0:
            raise ValueError(f"share {max(values):g} is more than a whole batch; give a fraction from 0 to 1")
        return self


class ReplayConfig(Config):
    """The replay buffer: in this process, or in a service that several runs share; or a recorded dataset."""

    kind: Literal["local", "service"] = Field(
        "local", description="local: in the learner's memory; service: in a replay service that runs can share."
    )
    address: str | None = Field(
        None,
        min_length=1,
        description="Address of the service, ipc://PATH or tcp://HOST:PORT; null: the run starts its own.",
    )
    sharing: SharingConfig = Field(
        default_factory=SharingConfig, description="How the run uses the service (kind service)."
    )
    role: Literal["both", "add", "draw"] = Field(
        "both",
        description="What the run does with a shared table: collect, add and learn (both); only collect and add (add); "
        "or only sample and learn (draw). add and draw need an address.",
    )
    weights: str | None = Field(
        None,
        min_length=1,
        description="With role add: folder of the run whose newest checkpoint it acts with, relative to the working "
        "directory; null: its own initial weights.",
    )
    capacity: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        100_000,
        description="Transitions kept; the oldest are overwritten. null: all of the run's, but at most a million and "
        "what fits into a quarter of the free memory; chosen once and saved.",
    )
    n_step: int = Field(
        1,
        ge=1,
        le=1000,
        description="Decisions summed in an n-step return before bootstrapping; with a memory (algo.network), fewer at "
        "the end of a sequence.",
    )
    burn_in: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None,
        description="With a memory (algo.network gru or lstm): decisions before each sequence that bring the memory up "
        "to date and are not learned from; null: half of network.length.",
    )
    prioritised: PrioritisedConfig | None = Field(
        None,
        description="Prioritised replay, for values: the policy of sac, td3 or cql learns from a second, uniform draw; "
        "null: uniform sampling.",
    )
    dataset: str | None = Field(
        None,
        min_length=1,
        description="Learn offline from this recorded dataset (a path, relative to the working directory); null: learn "
        "from what the run collects.",
    )
    demonstrations: DemonstrationsConfig | None = Field(
        None, description="Draw a share of every batch from a recorded dataset; null: all of it from the buffer."
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "local" and self.address is not None:
            raise ValueError(f"address {self.address} needs kind service; set it, or leave the address out")
        if self.role != "both" and self.address is None:
            raise ValueError(f"role {self.role} needs other runs at the same table; set kind service and an address")
        if self.weights is not None and self.role != "add":
            raise ValueError("weights needs role add: a run that learns acts with its own; leave it out")
        if self.kind == "service" and self.dataset is not None:
            raise ValueError(
                "dataset needs kind local, as it is read into memory; set kind to local, or dataset to null"
            )
        if self.kind == "service" and self.demonstrations is not None:
            raise ValueError(
                "demonstrations need kind local, as all rows of a service come from its lanes; set kind to local, or "
                "leave them out"
            )
        if self.dataset is not None and self.demonstrations is not None:
            raise ValueError(
                "demonstrations stand beside what a run collects, which with a dataset is nothing; merge the two "
                "(slipstream dataset merge), or leave one out"
            )
        if self.kind == "service" and self.address is None and self.sharing.limit != LimitConfig():
            raise ValueError(
                "sharing.limit: the only client of a service adds and samples in turn (training_intensity), and would "
                "wait for itself forever; give an address, or leave the limit out"
            )
        return self

    @property
    def collects(self) -> bool:
        """Whether the run steps worlds of its own."""
        return self.dataset is None and self.role != "draw"


class ReplayLearnerConfig(LearnerConfig):
    """What learners share that sample batches from a replay buffer."""

    hidden: Hidden = Field((256, 256), description="Width of each hidden layer, in every network.")
    activation: ActivationName = Field("relu", description=ACTIVATION)
    max_grad_norm: float | None = Field(None, gt=0, description="Clip gradients to this norm; null: no clipping.")
    normalize_observation: bool = Field(
        False, description="Standardise observations by their running mean and deviation (saved with the policy)."
    )
    batch_size: int = Field(256, ge=1, le=1_000_000, description="Transitions per gradient step.")
    accumulate: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of parts in which the gradient of a batch is accumulated: needs less memory, gives the "
        "same gradient.",
    )
    training_intensity: float = Field(
        0.25, gt=0, le=64, description="Gradient steps per environment step; up to 0.25 suits a small machine."
    )
    learning_starts: int = Field(
        1000, ge=0, description="Environment steps with random actions before learning starts; 0: none."
    )
    replay: ReplayConfig = Field(default_factory=ReplayConfig, description="The replay buffer.")

    @property
    def replay_config(self) -> ReplayConfig:
        """Its replay buffer."""
        return self.replay

    @property
    def gradient_rows(self) -> int:
        """Rows in one gradient step."""
        return self.batch_size

    @model_validator(mode="after")
    def _network_has_values_of_actions(self) -> Self:
        if self.network is not None and self.network.for_placements:
            raise ValueError(
                f"network {self.network.kind} scores placements and has no action values; use network mlp, or one of "
                "ppo, appo, impala and reinforce"
            )
        return self

    @model_validator(mode="after")
    def _memory_has_what_it_needs(self) -> Self:
        if self.network is None or not self.network.remembers:
            return self
        for setting, is_set, why, instead in (
            ("replay.dataset", self.replay.dataset, "recorded rows hold no states of its memory", "train online"),
            (
                "replay.demonstrations",
                self.replay.demonstrations,
                "recorded rows hold no states of its memory",
                "leave them out",
            ),
            ("replay.kind service", self.replay.kind == "service", "a service draws single rows", "set kind local"),
        ):
            if is_set:
                raise ValueError(
                    f"network {self.network.kind} learns from sequences, and {why}: {setting} does not go with it; "
                    f"{instead}, or use a network without a memory"
                )
        return self

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Fields that have no effect because of others."""
        yield from super().without_effect()
        if self.replay.burn_in is not None and not (self.network is not None and self.network.remembers):
            yield "replay.burn_in", "the network has no memory (algo.network)"

    @model_validator(mode="after")
    def _sees_what_it_standardises(self) -> Self:
        if self.replay.role != "both" and self.normalize_observation:
            raise ValueError(
                f"replay.role {self.replay.role} needs normalize_observation: false: the statistics of observations "
                "come from rows that a run both collects and learns from"
            )
        return self


class SacConfig(ReplayLearnerConfig):
    """Soft actor-critic with twin critics, for continuous or discrete actions."""

    kind: Literal["sac"] = Field("sac", description="Soft actor-critic.")
    critic_learning_rate: Schedule | None = Field(
        None, description="Learning rate of the critics; null: learning_rate."
    )
    tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Fraction by which the target critics move towards the critics per gradient step.",
    )
    temperature: float = Field(1.0, gt=0, description="Weight of the entropy; its initial value if it is learned.")
    learn_temperature: bool = Field(
        True, description="Adapt the temperature so that the entropy reaches target_entropy."
    )
    target_entropy: Literal["auto"] | float = Field(
        "auto",
        description="Target of the entropy; auto: minus the number of axes, or half of the maximum for discrete "
        "actions.",
    )

    init_log_std: float = Field(
        -1.5,
        gt=-5,
        lt=2,
        description="Initial log standard deviation of continuous actions, before they are squashed.",
    )

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Fields that have no effect because of others."""
        yield from super().without_effect()
        if self.target_entropy != "auto" and not self.learn_temperature:
            yield "target_entropy", "the temperature is not learned (learn_temperature is false)"


class CqlConfig(SacConfig):
    """Conservative Q-learning: SAC whose critics are pessimistic about actions that are not in the data."""

    kind: Literal["cql"] = Field("cql", description="Conservative Q-learning on top of SAC.")  # type: ignore[assignment]
    backup_entropy: bool = Field(
        True, description="Count the policy's entropy in the targets of the critics, as SAC does; other CQLs do not."
    )
    conservative_coef: float = Field(5.0, ge=0, description="Weight of the conservative loss; 0: plain SAC.")
    sampled_actions: int = Field(
        10,
        ge=1,
        le=1000,
        description="Actions sampled from each of three sources to estimate the log-sum-exp of the conservative loss.",
    )

    @model_validator(mode="after")
    def _remembers_nothing(self) -> Self:
        if self.network is not None and self.network.remembers:
            raise ValueError(
                f"network {self.network.kind} remembers, and cql values many actions at every decision, of recorded "
                "rows that hold no states of a memory; use sac, dqn or td3, or a network without a memory"
            )
        return self


class Td3Config(ReplayLearnerConfig):
    """TD3: a deterministic policy with twin critics, delayed policy updates and target smoothing."""

    kind: Literal["td3"] = Field("td3", description="Twin delayed deterministic policy gradient.")
    learning_rate: Schedule = Field(1e-3, description=RATE)
    # the authors' own, torch's default: where tanh is nearly flat a policy's gradients are small
    adam_eps: float = Field(
        1e-8, gt=0, description="Adam's epsilon: weights with much smaller gradients than this hardly move."
    )
    critic_learning_rate: Schedule | None = Field(
        None, description="Learning rate of the critics; null: learning_rate."
    )
    tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Fraction by which the target networks move towards the networks per policy step.",
    )
    policy_delay: int = Field(2, ge=1, description="Critic steps per step of the policy and the target networks.")
    target_noise: float = Field(
        0.2, ge=0, description="Standard deviation of the noise on the target policy's actions; 0: none."
    )
    target_noise_clip: float = Field(0.5, ge=0, description="Clip that noise to ± this.")
    exploration_noise: Schedule = Field(
        0.1,
        description="Standard deviation of the noise on actions while collecting: a number, or a schedule of [fraction "
        "of the budget, value] points.",
    )


class ExpectedValues(Config):
    """One expected return per action."""

    kind: Literal["expected"] = Field("expected", description="One expected return per action.")


class QuantileValues(Config):
    """Quantiles of the return of every action (QR-DQN, Dabney et al. 2018)."""

    kind: Literal["quantile"] = Field("quantile", description="Quantiles of the return of every action (QR-DQN).")
    quantiles: int = Field(50, ge=2, le=1000, description="Number of quantiles per action.")


class DqnConfig(ReplayLearnerConfig):
    """Deep Q-learning: double, dueling, n-step, prioritised, quantile."""

    kind: Literal["dqn"] = Field("dqn", description="Deep Q-learning.")
    values: Annotated[ExpectedValues | QuantileValues, Field(discriminator="kind")] = Field(
        default_factory=ExpectedValues,
        description="What is learned per action: its expected return, or quantiles of the return.",
    )
    max_grad_norm: float | None = Field(10.0, gt=0, description="Clip gradients to this norm; null: no clipping.")
    double: bool = Field(
        True, description="Double Q-learning: the online network chooses actions, the target network values them."
    )
    dueling: bool = Field(
        False,
        description="Dueling network: separate outputs for the state value and the advantages of actions. The hidden "
        "layers are common, where Wang et al. split the last one too.",
    )
    target_update: int = Field(
        250, ge=1, description="Gradient steps between two copies of the weights to the target network."
    )
    epsilon: Schedule = Field(
        ((0.0, 1.0), (0.2, 0.05)),
        description="Fraction of random actions while collecting: a number, or a schedule of [fraction of the budget, "
        "value] points.",
    )

    @model_validator(mode="after")
    def _has_no_policy(self) -> Self:
        if self.extra_losses:
            raise ValueError("dqn values choices and has no policy that a loss could move; leave extra_losses out")
        return self
