"""Blocks of a scenario that say how a run goes: collecting, shaping, evaluation, stopping, curriculum, saving, logs.

What configures each part of a run (slipstream/run/parts/):

    evaluation               EvaluationConfig
    stopping, quarantine     StoppingConfig (quarantine: `bad_batches`)
    curriculum, certificates CurriculumConfig, CertificateConfig
    best checkpoints         CheckpointConfig
    diagnostics, frames, trajectories  LogConfig
    self-play                SelfPlayPolicy (scenario.py)
    federation, privacy      FederatedConfig (federated.py)
    learners in step         Scenario.learners
    exporters, debugger      flags of `slipstream train`: --tensorboard, --wandb, --ui debug
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from slipstream.config.base import Config, Count, Positive


class CollectConfig(Config):
    """How experience is collected: worlds, rollouts, threads and workers."""

    num_worlds: Count = Field(16, le=65_536, description="Number of worlds, stepped as one batch.")
    rollout_length: Count = Field(128, le=1_000_000, description="Steps of each world in one rollout.")
    world_threads: Literal["auto"] | Count = Field(
        "auto", description="Threads that step the worlds; auto: chosen once and saved. Does not change results."
    )
    workers: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        0,
        description="Number of workers that collect, each with its own share of the worlds; 0: the learner's process "
        "collects; null: measured once and saved. Does not change results, except with overlap free.",
    )
    mode: Literal["process", "thread"] = Field(
        "process",
        description="What a worker is: a process, or a thread of the learner's process (which cannot be restarted).",
    )
    deadline_s: Positive = Field(
        60.0,
        description="Longest wait for a worker, in seconds. One that shows no sign of life for four fifths of it is "
        "restarted, even in the middle of a step.",
    )
    overlap: Literal["none", "deterministic", "free"] = Field(
        "none",
        description="Collect while the learner learns, for algorithms that can learn from an older policy (all but ppo "
        "and reinforce). deterministic: always `lag` updates behind, so results do not depend on timing; free: "
        "rollouts are used in the order they arrive.",
    )
    lag: Count = Field(
        1,
        le=64,
        description="With overlap: how many updates the collecting policy is behind (deterministic), or may be behind "
        "before the learner waits for a worker (free).",
    )
    prefetch: Count = Field(
        1, le=64, description="With overlap free: finished rollouts that may wait for the learner, per worker."
    )
    seed_statistics: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Steps at random, in worlds of their own, by which observations are standardised from the first "
        "rollout on. They do not count as timesteps.",
    )
    world: dict[str, JsonValue] | None = Field(
        None,
        description="Settings of the world that are others while collecting, such as more jitter or "
        "wind; null: none. Evaluations, tables and certificates play the world as it is.",
    )
    seed_stride: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="Seeds of worlds from other libraries: episode e of world i is reset with seed + stride × i + e; "
        "0: with a hash of seed, i and e. Native worlds ignore it.",
    )


class ShapingConfig(Config):
    """Potential-based reward shaping, which does not change the optimal policy: adds κ(γ^duration Φ′ − Φ)."""

    use_potential_shaping: bool = Field(True, description="Add the shaping reward, where there is a potential Φ.")
    kappa: Positive = Field(1.0, description="Weight κ of the shaping reward.")
    evaluator: str | None = Field(
        None,
        min_length=1,
        description="Time-to-success model to use as potential (a path, relative to the working directory): Φ is minus "
        "the time it predicts, as a fraction of its horizon; null: the world's own potential, if it has one.",
    )


class EvaluationConfig(Config):
    """Evaluation during training: episodes without exploration, on seeds that training never uses."""

    evaluation_interval: Count | None = Field(
        5, description="Updates between evaluations; the final policy is always evaluated too. null: no evaluation."
    )
    evaluation_duration: Count = Field(10, le=100_000, description="Episodes in one evaluation, each in its own world.")
    share: float | None = Field(
        None,
        gt=0,
        description="Steps in evaluations over steps of training, at most: evaluations that would exceed it are left "
        "out, but for the first and the last. null: no bound.",
    )
    seed: int = Field(12345, ge=0, lt=2**63, description="Seed of the evaluation episodes.")
    opponent: str | None = Field(
        None,
        description="In games where one policy learns all sides: the script that plays the other side, or `self`; "
        "null: the world's default (Dr. Mario: greedy, racing: follow_gap).",
    )


class CheckpointConfig(Config):
    """Which checkpoints are saved; the final state always is."""

    checkpoint_every: Count | None = Field(
        None, description="Steps between periodic checkpoints; null: a tenth of the budget."
    )
    keep: Count = Field(3, description="How many of the latest periodic checkpoints to keep.")
    keep_best: Count = Field(
        1, description="How many of the latest best checkpoints to keep; each had the best evaluation so far."
    )
    best_by: tuple[Annotated[str, Field(pattern=r"^-?[A-Za-z0-9_]+$")], ...] = Field(
        ("return",),
        min_length=1,
        description="Figures by which evaluations are compared, the first that differs decides: return, length, or "
        "what the world reports; a minus sign: less is better. For example clean, -extra_distance_nm.",
    )
    best_min_improvement: float | tuple[float, ...] = Field(
        0.0,
        description="How much a figure of best_by must differ from the best so far to count: one number for all, or "
        "one for each.",
    )

    @property
    def tolerances(self) -> tuple[float, ...]:
        """One for each figure of best_by."""
        least = self.best_min_improvement
        return least if isinstance(least, tuple) else (least,) * len(self.best_by)

    @model_validator(mode="after")
    def _one_for_each(self) -> CheckpointConfig:
        if len(self.tolerances) != len(self.best_by):
            raise ValueError(
                f"best_min_improvement has {len(self.tolerances)} numbers, and best_by {len(self.best_by)} figures"
            )
        if min(self.tolerances) < 0:
            raise ValueError(f"best_min_improvement {min(self.tolerances):g} is below 0")
        return self


class CertificateConfig(Config):
    """A statistical test that the policy succeeds often enough, which must pass before a phase ends."""

    at_least: float = Field(0.9, gt=0, lt=1, description="Success rate that must be exceeded.")
    alpha: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Probability that any certificate of the run is false; the k-th attempt may use alpha / (k (k + "
        "1)) of it.",
    )
    max_episodes: Count = Field(2000, description="Episodes after which an attempt is given up.")
    expected: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Success rate you expect, above at_least. Decides sooner if it is about right (sequential "
        "probability ratio test); null: no expectation (mixture test).",
    )
    retry_updates: Count = Field(20, description="Updates between two attempts at the same phase.")

    @model_validator(mode="after")
    def _can_pass(self) -> CertificateConfig:
        if self.expected is not None and self.expected <= self.at_least:
            raise ValueError(f"expected {self.expected:g} must be above at_least {self.at_least:g}")
        return self


class CurriculumConfig(Config):
    """How a run goes through the world's phases: one after the other, or all at once."""

    order: Literal["in_turn", "adaptive"] = Field(
        "in_turn",
        description="in_turn: one phase after the other, each until it is mastered; adaptive: all phases from the "
        "start, more often those with less success.",
    )
    start_phase: str | None = Field(None, min_length=1, description="Phase to start with; null: the first.")
    success_rate: float = Field(
        0.7, gt=0, le=1, description="Success rate in training that a phase needs before the next one starts."
    )
    window: Count = Field(100, description="Number of latest episodes of the phase that success_rate is taken over.")
    evaluation_success: float | None = Field(
        1.0,
        gt=0,
        le=1,
        description="Success rate in the latest evaluation that a phase needs too; null: not required.",
    )
    certificate: CertificateConfig | None = Field(
        None, description="Statistical test that a phase must pass as well, on new episodes; null: not required."
    )

    @model_validator(mode="after")
    def _fits_its_order(self) -> CurriculumConfig:
        if self.order == "adaptive" and (self.certificate is not None or self.start_phase is not None):
            raise ValueError("order adaptive plays all phases at once: leave out start_phase and certificate")
        return self


class LogConfig(Config):
    """What is written to the run folder besides metrics."""

    log_trajectories: bool = Field(
        False, description="Write the trajectory of every evaluation episode as CSV (traj_ep_*.csv)."
    )
    training_worlds: int = Field(
        0,
        ge=0,
        description="Write every decision in this many training worlds as CSV (train_*.csv): observations by name, "
        "actions, rewards, ends; 0: none.",
    )
    log_episodes: bool = Field(False, description="Write the end of every training episode to events.jsonl.")
    diagnostics: bool = Field(
        True, description="Report the weight norm of every network and the size of each update (diag/…)."
    )
    frames_every: Count | None = Field(
        1, description="Record the first episode of every n-th evaluation for the viewers; null: never."
    )
    frames_keep: Count = Field(50, description="How many of the latest recorded episodes to keep.")
