"""Hyper-parameters of the algorithms that learn from transitions kept in a replay, or in a dataset."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slipstream.config.algos.onpolicy import Hidden, LearnerConfig
from slipstream.config.algos.schedule import Schedule
from slipstream.config.base import Config


class PrioritisedConfig(Config):
    """Draw transitions in proportion to (|TD error| + eps)^alpha (Schaul et al. 2016)."""

    alpha: float = Field(0.6, ge=0, le=1, description="How strongly priorities count; 0: uniform.")
    beta: Schedule = Field(
        ((0.0, 0.4), (1.0, 1.0)), description="How much of the bias importance weights take back; 1: all of it."
    )
    eps: float = Field(1e-6, gt=0, description="Added to every |TD error|, so that nothing is never drawn.")


class LimitConfig(Config):
    """How many rows are drawn from a table per row added to it (as in Reverb)."""

    samples_per_insert: float | None = Field(
        None, gt=0, description="Rows drawn per row added, over all clients; null: no bound."
    )
    tolerance: float = Field(0.0, ge=0, description="Rows drawn by which that may be off; producers or learners wait.")
    min_size: int = Field(1, ge=1, description="Rows that must have been added before any are drawn.")


class SharingConfig(Config):
    """What a run is among the clients of a replay service."""

    table: str | None = Field(
        None, min_length=1, max_length=128, description="Table to share; null: named after the world and the policy."
    )
    client: str | None = Field(
        None, min_length=1, max_length=128, description="Name of this run there; null: scenario and process."
    )
    token_file: str | None = Field(None, min_length=1, description="File with the service's token; tcp needs one.")
    mixing: Literal["own_heavy", "uniform", "by_size", "newest", "local"] = Field(
        "own_heavy",
        description="Whose rows are drawn: 80 % own, every client alike, by rows held, by rows of late, or own only.",
    )
    weight: float = Field(1.0, ge=0, description="How much this run's rows count in mixtures.")
    follow_performance: float = Field(
        0.0, ge=0, le=10, description="A client one deviation above the others counts exp(this) times as much; 0: off."
    )
    timeout_s: float = Field(60.0, gt=0, description="Every wait for the service ends after this, with an error.")
    limit: LimitConfig = Field(default_factory=LimitConfig, description="Rows drawn per row added.")


class ReplayConfig(Config):
    """Where transitions are kept until they are learned from."""

    kind: Literal["local", "service"] = Field(
        "local", description="In the learner's memory, or in a replay service that several runs can use."
    )
    address: str | None = Field(
        None,
        min_length=1,
        description="The service's, ipc://PATH or tcp://HOST:PORT; null: the run starts one of its own.",
    )
    sharing: SharingConfig = Field(
        default_factory=SharingConfig, description="What the run is there; read where kind is service."
    )
    role: Literal["both", "add", "draw"] = Field(
        "both",
        description="What the run does with the table of a service at an address: add what it collects and learn from "
        "draws, in turn; only collect and add (add); or only draw and learn, and collect nothing (draw).",
    )
    weights: str | None = Field(
        None,
        min_length=1,
        description="With role add: folder of the run whose newest checkpoint's weights it acts with, relative to "
        "where the command is run; null: its own first ones.",
    )
    capacity: int = Field(100_000, ge=1, le=1_000_000_000, description="Transitions kept; the oldest make room.")
    n_step: int = Field(1, ge=1, le=1000, description="Decisions whose rewards a transition sums before it bootstraps.")
    prioritised: PrioritisedConfig | None = Field(None, description="Prioritised draws; null: uniform.")
    dataset: str | None = Field(
        None,
        min_length=1,
        description="Learn offline from this recorded dataset, relative to where the command is run; null: from "
        "what the policy itself meets.",
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "local" and self.address is not None:
            raise ValueError(f"address {self.address} is a service's; set kind to service, or leave it out")
        if self.role != "both" and self.address is None:
            raise ValueError(f"role {self.role}: nobody else would draw or add; give kind service and an address")
        if self.weights is not None and self.role != "add":
            raise ValueError(
                "weights: a run that learns acts with weights of its own; set role to add, or leave it out"
            )
        if self.kind == "service" and self.dataset is not None:
            raise ValueError("a dataset is read into memory; set kind to local, or dataset to null")
        if self.kind == "service" and self.address is None and self.sharing.limit != LimitConfig():
            raise ValueError(
                "sharing.limit: a run that is the only client of its own service adds and draws in turn, as its "
                "training_intensity says, and would wait for itself for ever; give an address, or leave the limit out"
            )
        return self

    @property
    def collects(self) -> bool:
        """Whether rows come from worlds that this run steps."""
        return self.dataset is None and self.role != "draw"


class ReplayLearnerConfig(LearnerConfig):
    """What learners share that draw batches from a replay."""

    hidden: Hidden = Field((256, 256), description="Width of each hidden layer, of every network.")
    activation: Literal["tanh", "relu"] = Field("relu", description="Nonlinearity after each hidden layer.")
    max_grad_norm: float | None = Field(
        None, gt=0, description="Gradients are scaled down to this norm; null: not clipped."
    )
    normalize_observation: bool = Field(
        False, description="Standardise observations by running mean and deviation (saved with the policy)."
    )
    batch_size: int = Field(256, ge=1, le=1_000_000, description="Transitions in one gradient step.")
    accumulate: int = Field(
        1,
        ge=1,
        le=1024,
        description="Pieces that a batch is learned in, one after the other, before its step: less memory, the same "
        "gradient.",
    )
    training_intensity: float = Field(
        0.25, gt=0, le=64, description="Gradient steps per environment step; at most 0.25 suits a small machine."
    )
    learning_starts: int = Field(
        1000, ge=0, description="Environment steps taken with random actions before learning begins."
    )
    replay: ReplayConfig = Field(default_factory=ReplayConfig, description="Where transitions are kept.")

    @model_validator(mode="after")
    def _network_has_values_of_actions(self) -> Self:
        if self.network.for_placements:
            raise ValueError(
                f"network {self.network.kind} scores placements and has no values of actions; use network mlp, or ppo, "
                "appo, impala or reinforce"
            )
        return self

    @model_validator(mode="after")
    def _sees_what_it_standardises(self) -> Self:
        if self.replay.role != "both" and self.normalize_observation:
            raise ValueError(
                f"replay.role {self.replay.role}: statistics of observations are of what a run itself has collected "
                "and learned from; it needs normalize_observation: false"
            )
        return self


class SacConfig(ReplayLearnerConfig):
    """Soft actor-critic with twin critics, for continuous axes or discrete choices."""

    kind: Literal["sac"] = Field("sac", description="Soft actor-critic.")
    critic_learning_rate: Schedule | None = Field(None, description="Of the critics; null: learning_rate.")
    tau: float = Field(0.005, gt=0, le=1, description="Share of the new weights the target critics take at each step.")
    temperature: float = Field(1.0, gt=0, description="Weight of the entropy (at the start, where it is learned).")
    learn_temperature: bool = Field(True, description="Adapt the temperature so that the entropy meets its target.")
    target_entropy: Literal["auto"] | float = Field(
        "auto", description="Entropy to keep; auto: minus the number of axes, or half of the largest for choices."
    )


class CqlConfig(SacConfig):
    """Conservative Q-learning: SAC whose critics are pessimistic about actions the data do not show."""

    kind: Literal["cql"] = Field("cql", description="Conservative Q-learning on top of SAC.")  # type: ignore[assignment]
    conservative_coef: float = Field(5.0, ge=0, description="Weight of the conservative term; 0: plain SAC.")
    sampled_actions: int = Field(
        10, ge=1, le=1000, description="Actions drawn from each of three sources to estimate the term's soft maximum."
    )


class Td3Config(ReplayLearnerConfig):
    """TD3: a deterministic policy, twin critics, delayed and smoothed."""

    kind: Literal["td3"] = Field("td3", description="Twin delayed deterministic policy gradient.")
    learning_rate: Schedule = Field(
        1e-3, description="Adam's step size: a number, or [fraction of the budget, value] points."
    )
    # the authors' own, torch's default: where tanh is nearly flat a policy's gradients are small
    adam_eps: float = Field(
        1e-8, gt=0, description="Adam's epsilon: weights whose gradients are much smaller than this hardly move."
    )
    critic_learning_rate: Schedule | None = Field(None, description="Of the critics; null: learning_rate.")
    tau: float = Field(0.005, gt=0, le=1, description="Share of the new weights the targets take at each policy step.")
    policy_delay: int = Field(2, ge=1, description="Critic steps per step of the policy and the targets.")
    target_noise: float = Field(0.2, ge=0, description="Deviation of the noise on the target policy's actions.")
    target_noise_clip: float = Field(0.5, ge=0, description="That noise is kept within ± this.")
    exploration_noise: Schedule = Field(
        0.1, description="Deviation of the noise on actions while collecting: a number, or [fraction, value] points."
    )


class ExpectedValues(Config):
    """One value for every choice."""

    kind: Literal["expected"] = Field("expected", description="One value for every choice.")


class QuantileValues(Config):
    """Quantiles of the return of every choice (QR-DQN, Dabney et al. 2018)."""

    kind: Literal["quantile"] = Field("quantile", description="Quantiles of the return of every choice (QR-DQN).")
    quantiles: int = Field(50, ge=2, le=1000, description="Quantiles of every choice's return.")


class DqnConfig(ReplayLearnerConfig):
    """Deep Q-learning: double, dueling, n-step, prioritised, quantile."""

    kind: Literal["dqn"] = Field("dqn", description="Deep Q-learning.")
    values: Annotated[ExpectedValues | QuantileValues, Field(discriminator="kind")] = Field(
        default_factory=ExpectedValues, description="What is learned of every choice: its value, or quantiles."
    )
    max_grad_norm: float | None = Field(
        10.0, gt=0, description="Gradients are scaled down to this norm; null: not clipped."
    )
    double: bool = Field(True, description="The learning network chooses, the target network judges.")
    dueling: bool = Field(False, description="A state's value and its choices' advantages as separate outputs.")
    target_update: int = Field(250, ge=1, description="Gradient steps between refreshes of the target network.")
    epsilon: Schedule = Field(
        ((0.0, 1.0), (0.2, 0.05)), description="Share of random choices while collecting: a number, or points."
    )
