"""Hyper-parameters of the learning algorithms, as pure data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from slipstream.config.base import Config

Points = tuple[tuple[float, float], ...]


def _check_shape(value: Any) -> Any:
    """Says in one sentence what a schedule may be, instead of one complaint per member of the union."""
    if _is_number(value):
        return value
    if not isinstance(value, tuple) or not value:
        raise ValueError("must be a number, or a list of [fraction of the budget, value] points")
    for point in value:
        if not isinstance(point, tuple) or len(point) != 2 or not all(map(_is_number, point)):
            raise ValueError("each point of a schedule must be [fraction of the budget, value]")
    return value


def _check_points(value: float | Points) -> float | Points:
    points = ((0.0, value),) if isinstance(value, float) else value
    fractions = [fraction for fraction, _ in points]
    if fractions != sorted(set(fractions)) or fractions[0] < 0 or fractions[-1] > 1:
        raise ValueError("the fractions of a schedule must rise within 0..1")
    if min(value for _, value in points) < 0:
        raise ValueError("must not be negative")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Schedule = Annotated[float | Points, BeforeValidator(_check_shape), AfterValidator(_check_points)]
"""A number >= 0, or points [fraction of the budget, value] joined by straight lines and flat outside them."""


def schedule_at(schedule: float | Points, fraction: float) -> float:
    """Value of a schedule when `fraction` (0..1) of the training budget has been spent."""
    if isinstance(schedule, float):
        return schedule
    before = schedule[0]
    for after in schedule:
        if fraction <= after[0]:
            width = after[0] - before[0]
            share = (fraction - before[0]) / width if width > 0 else 1.0
            return before[1] + share * (after[1] - before[1])
        before = after
    return before[1]


class PpoConfig(Config):
    """Proximal policy optimisation, one network shared by the agents of a team."""

    kind: Literal["ppo"] = Field("ppo", description="Proximal policy optimisation.")
    learning_rate: Schedule = Field(
        3e-4, description="Adam's step size: a number, or [fraction of the budget, value] points."
    )
    hidden: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = Field(
        (64, 64), max_length=8, description="Width of each hidden layer, of the actor and of the critic."
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="Nonlinearity after each hidden layer.")
    shared_torso: bool = Field(False, description="Actor and critic share the hidden layers.")
    minibatch_size: int = Field(
        256, ge=1, description="Agent steps per gradient step; must divide the agent steps of a rollout."
    )
    epochs: int = Field(10, ge=1, le=1000, description="Passes over a rollout in one update.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount per tick of the world.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Trace decay of GAE, per decision.")
    clip_coef: float = Field(0.2, gt=0, description="The surrogate's ratio is kept within 1 ± this.")
    value_clip: float | None = Field(
        None, gt=0, description="A value may move this far from the one collected; null: freely."
    )
    value_coef: float = Field(0.5, ge=0, description="Weight of the value loss.")
    entropy_coef: Schedule = Field(
        0.0, description="Weight of the entropy bonus: a number, or [fraction of the budget, value] points."
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
    max_grad_norm: float | None = Field(
        0.5, gt=0, description="Gradients are scaled down to this norm; null: not clipped."
    )
    normalize_advantage: bool = Field(True, description="Standardise the advantages within each minibatch.")
    normalize_observation: bool = Field(
        True, description="Standardise observations by running mean and deviation (saved with the policy)."
    )
    normalize_value: bool = Field(
        True, description="Standardise value targets by their running mean and deviation (PopArt)."
    )
    init_log_std: float = Field(
        0.0, ge=-10, le=2, description="Log standard deviation of continuous actions at the start."
    )
    centralised_critic: bool = Field(
        False, description="The critic sees the world's global state (MAPPO); needs a world that has one."
    )
    discrete_actions: bool = Field(
        False, description="Choose from the action table of a continuous world instead of its axes."
    )
    gradient_shards: int = Field(
        1,
        ge=1,
        le=64,
        description="Pieces the rows of a minibatch are cut into; gradients are summed in order. Actor and critic are "
        "worked on side by side in any case; more pieces help where there are more than two cores.",
    )


AlgoConfig = Annotated[PpoConfig, Field(description="The learning algorithm and its hyper-parameters.")]
"""One member per algorithm. With a second: Annotated[PpoConfig | SacConfig, Field(discriminator="kind")]."""
