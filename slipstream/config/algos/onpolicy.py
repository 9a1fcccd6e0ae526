"""Hyper-parameters of the algorithms that learn from rollouts and then discard them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from slipstream.config.algos.learner import LearnerConfig, Schedule


class ActorCriticConfig(LearnerConfig):
    """What learners with a value function share: gradient steps on minibatches of a rollout."""

    shared_torso: bool | None = Field(
        None, description="Let actor and critic share all layers but the last; null: unless network is mlp."
    )
    minibatch_size: int = Field(
        256,
        ge=1,
        description="Agent steps per gradient step; a rollout is split into equal parts within a tenth of this size.",
    )
    accumulate: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of parts in which the gradient of a minibatch is accumulated: needs less memory, gives "
        "the same gradient.",
    )
    epochs: int = Field(10, ge=1, le=1000, description="Passes over a rollout per update.")
    value_coef: float = Field(0.5, ge=0, description="Weight of the value loss.")
    entropy_coef: Schedule = Field(
        0.0,
        description="Weight of the entropy bonus: a number, or a schedule of [fraction of the budget, value] points.",
    )
    normalize_advantage: bool = Field(True, description="Standardise advantages within each minibatch.")
    normalize_value: bool = Field(
        True, description="Standardise value targets by their running mean and deviation (PopArt)."
    )
    init_log_std: float = Field(0.0, ge=-10, le=2, description="Initial log standard deviation of continuous actions.")

    @property
    def rollout_minibatch(self) -> int | None:
        """Agent steps in a minibatch of a rollout."""
        return self.minibatch_size

    @model_validator(mode="after")
    def _torso_can_be_shared(self) -> Self:
        if self.network is not None and self.network.for_placements and self.shared_torso:
            raise ValueError(
                f"network {self.network.kind} and its critic read different inputs; it needs shared_torso: false"
            )
        if self.network is not None and self.network.remembers and self.shared_torso is False:
            raise ValueError(f"network {self.network.kind} has one memory for actor and critic; leave shared_torso out")
        return self


class PpoConfig(ActorCriticConfig):
    """Proximal policy optimisation; the agents of a team share one network."""

    kind: Literal["ppo"] = Field("ppo", description="Proximal policy optimisation.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Lambda of generalised advantage estimation, per decision.")
    clip_coef: float = Field(0.2, gt=0, description="Clip the probability ratio of the surrogate to 1 ± this.")
    value_clip: float | None = Field(
        None, gt=0, description="Clip value predictions to this distance from the collected ones; null: no clipping."
    )
    kl_coef: float = Field(0.0, ge=0, description="Initial weight of the KL(old, new) penalty; 0: no penalty.")
    kl_target: float | None = Field(
        None,
        gt=0,
        description="Adapt kl_coef after every update: times 1.5 when the KL of its last epoch is above twice this, "
        "halved when it is below half of this; null: kl_coef stays constant.",
    )
    kl_stop: float | None = Field(
        None, gt=0, description="End the epochs of an update when the approximate KL exceeds this; null: never."
    )
    centralised_critic: bool = Field(
        False, description="Give the critic the world's global state (MAPPO); needs a world that has one."
    )
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Decay per update of an exponential moving average of the actor's weights (smaller in the first "
        "updates). The average acts wherever exploration is off, as in evaluations; null: no average.",
    )

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Fields that have no effect because of others."""
        yield from super().without_effect()
        if self.kl_target is not None and self.kl_coef == 0:
            yield "kl_target", "it adapts kl_coef, which is 0"


class VtraceConfig(ActorCriticConfig):
    """What learners share that correct for policy lag with V-trace."""

    epochs: int = Field(1, ge=1, le=1000, description="Passes over a rollout per update.")
    normalize_advantage: bool = Field(False, description="Standardise advantages within each minibatch.")
    rho_clip: float = Field(1.0, gt=0, description="Upper bound (rho) of the importance weights of value targets.")
    trace_clip: float = Field(1.0, gt=0, description="Upper bound (c) of the importance weights of traces.")
    vtrace_lambda: float = Field(1.0, ge=0, le=1, description="Lambda of V-trace, per decision.")

    @model_validator(mode="after")
    def _knows_the_chance_of_its_actions(self) -> Self:
        if self.exploration_hold > 1:
            raise ValueError(
                f"exploration_hold is {self.exploration_hold}: with noise that is held, actions have other "
                "probabilities than V-trace corrects for; set it to 1, or use ppo, which is less sensitive to that"
            )
        return self


class ImpalaConfig(VtraceConfig):
    """IMPALA: an actor-critic whose rollouts may come from an older policy."""

    kind: Literal["impala"] = Field("impala", description="IMPALA: actor-critic with V-trace.")


class AppoConfig(VtraceConfig):
    """Asynchronous PPO: the clipped surrogate with V-trace targets from a target network."""

    kind: Literal["appo"] = Field("appo", description="Asynchronous PPO with V-trace targets.")
    clip_coef: float = Field(0.2, gt=0, description="Clip the probability ratio of the surrogate to 1 ± this.")
    target_update: int = Field(1, ge=1, description="Updates between two copies of the weights to the target network.")
    kl_coef: float = Field(0.0, ge=0, description="Weight of the KL(target, new) penalty; 0: no penalty.")


class ReinforceConfig(LearnerConfig):
    """REINFORCE: the simplest policy gradient, for comparison."""

    kind: Literal["reinforce"] = Field("reinforce", description="REINFORCE: Monte-Carlo policy gradient.")
    entropy_coef: Schedule = Field(
        0.0,
        description="Weight of the entropy bonus: a number, or a schedule of [fraction of the budget, value] points.",
    )
    init_log_std: float = Field(0.0, ge=-10, le=2, description="Initial log standard deviation of continuous actions.")
