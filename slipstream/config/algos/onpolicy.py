"""Hyper-parameters of the algorithms that learn from rollouts and then forget them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slipstream.config.algos.network import AnyNetwork, MlpNetwork
from slipstream.config.algos.schedule import Schedule
from slipstream.config.base import Config

Hidden = Annotated[tuple[Annotated[int, Field(ge=1, le=8192)], ...], Field(max_length=8)]


class LearnerConfig(Config):
    """What every learner has: networks, a discount and an optimiser."""

    learning_rate: Schedule = Field(
        3e-4, description="Adam's step size: a number, or [fraction of the budget, value] points."
    )
    adam_eps: float = Field(
        1e-5, gt=0, description="Adam's epsilon: weights whose gradients are much smaller than this hardly move."
    )
    network: AnyNetwork = Field(
        default_factory=MlpNetwork,
        description="Kind of network, with the settings of that kind, or its name alone; mlp is a perceptron over the "
        "whole observation.",
    )
    hidden: Hidden = Field((64, 64), description="Width of each hidden layer, of every network.")
    activation: Literal["tanh", "relu"] = Field("tanh", description="Nonlinearity after each hidden layer.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount per tick of the world.")
    gamma_per_second: float | None = Field(
        None, gt=0, le=1, description="Discount per second of the world's own time, from which a run works out gamma; "
        "null: gamma itself is given."
    )  # fmt: skip
    max_grad_norm: float | None = Field(
        0.5, gt=0, description="Gradients are scaled down to this norm; null: not clipped."
    )
    normalize_observation: bool = Field(
        True, description="Standardise observations by running mean and deviation (saved with the policy)."
    )
    exploration_hold: int = Field(
        1,
        ge=1,
        le=10_000,
        description="Steps for which an agent keeps the noise it explores with: more than 1 leads further where the "
        "noise of single steps cancels out.",
    )
    discrete_actions: bool = Field(
        False, description="Choose from the action table of a continuous world instead of its axes."
    )

    @model_validator(mode="after")
    def _network_reads_its_inputs(self) -> Self:
        if self.network.reads_raw_inputs and self.normalize_observation:
            raise ValueError(
                f"network {self.network.kind} reads inputs as they are; it needs normalize_observation: false"
            )
        return self


class ActorCriticConfig(LearnerConfig):
    """What learners with a value function share, who take gradient steps on minibatches of a rollout."""

    shared_torso: bool = Field(False, description="Actor and critic share the hidden layers.")
    minibatch_size: int = Field(
        256,
        ge=1,
        description="Agent steps per gradient step; a rollout is split into equal parts, at most a tenth larger.",
    )
    accumulate: int = Field(
        1,
        ge=1,
        le=1024,
        description="Pieces that a minibatch is learned in, one after the other, before its step: less memory, the "
        "same gradient.",
    )
    epochs: int = Field(10, ge=1, le=1000, description="Passes over a rollout in one update.")
    value_coef: float = Field(0.5, ge=0, description="Weight of the value loss.")
    entropy_coef: Schedule = Field(
        0.0, description="Weight of the entropy bonus: a number, or [fraction of the budget, value] points."
    )
    normalize_advantage: bool = Field(True, description="Standardise the advantages within each minibatch.")
    normalize_value: bool = Field(
        True, description="Standardise value targets by their running mean and deviation (PopArt)."
    )
    init_log_std: float = Field(
        0.0, ge=-10, le=2, description="Log standard deviation of continuous actions at the start."
    )

    @model_validator(mode="after")
    def _torso_can_be_shared(self) -> Self:
        if self.network.for_placements and self.shared_torso:
            raise ValueError(
                f"network {self.network.kind} and its critic look at different things; they cannot share a torso"
            )
        return self


class PpoConfig(ActorCriticConfig):
    """Proximal policy optimisation, one network shared by the agents of a team."""

    kind: Literal["ppo"] = Field("ppo", description="Proximal policy optimisation.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Trace decay of GAE, per decision.")
    clip_coef: float = Field(0.2, gt=0, description="The surrogate's ratio is kept within 1 ± this.")
    value_clip: float | None = Field(
        None, gt=0, description="A value may move this far from the one collected; null: freely."
    )
    kl_coef: float = Field(0.0, ge=0, description="Weight of the KL(old, new) penalty at the start; 0: none.")
    kl_target: float | None = Field(
        None,
        gt=0,
        description="After an update kl_coef grows by half when the KL is above twice this, and halves when "
        "it is below half of it; null: kl_coef stays.",
    )
    kl_stop: float | None = Field(
        None, gt=0, description="End an update's epochs when the approximate KL exceeds this; null: never."
    )
    centralised_critic: bool = Field(
        False, description="The critic sees the world's global state (MAPPO); needs a world that has one."
    )
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Judge an exponential moving average of the acting network's weights, of which this share stays at "
        "every update (less in the first ones, so that the start is soon forgotten); learning goes on with the newest "
        "weights; null: those are judged too.",
    )


class VtraceConfig(ActorCriticConfig):
    """What learners share that correct for a policy lag with V-trace."""

    epochs: int = Field(1, ge=1, le=1000, description="Passes over a rollout in one update.")
    normalize_advantage: bool = Field(False, description="Standardise the advantages within each minibatch.")
    rho_clip: float = Field(1.0, gt=0, description="Importance weights of the value targets are clipped at this.")
    trace_clip: float = Field(1.0, gt=0, description="Importance weights of the traces are clipped at this.")
    vtrace_lambda: float = Field(1.0, ge=0, le=1, description="Trace decay of V-trace, per decision.")


class ImpalaConfig(VtraceConfig):
    """IMPALA: an actor-critic whose rollouts may come from an older policy."""

    kind: Literal["impala"] = Field("impala", description="Actor-critic with V-trace corrections.")


class AppoConfig(VtraceConfig):
    """Asynchronous PPO: the clipped surrogate on V-trace targets of a target network."""

    kind: Literal["appo"] = Field("appo", description="Asynchronous PPO on V-trace targets.")
    clip_coef: float = Field(0.2, gt=0, description="The surrogate's ratio is kept within 1 ± this.")
    target_update: int = Field(1, ge=1, description="Updates between refreshes of the target network.")
    kl_coef: float = Field(0.0, ge=0, description="Weight of the KL(target, new) penalty; 0: none.")


class ReinforceConfig(LearnerConfig):
    """REINFORCE: the smallest policy gradient, for comparison."""

    kind: Literal["reinforce"] = Field("reinforce", description="Monte-Carlo policy gradient.")
    entropy_coef: Schedule = Field(
        0.0, description="Weight of the entropy bonus: a number, or [fraction of the budget, value] points."
    )
    init_log_std: float = Field(
        0.0, ge=-10, le=2, description="Log standard deviation of continuous actions at the start."
    )
