"""Why a run ends: the fields of `stop`, and the rule that belongs to each, a pure function in the list `RULES`.

To add a rule, give `StoppingConfig` its field, write its function and list it in `RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
from pydantic import Field

from slipstream.config.base import Config, Count, Name, Positive
from slipstream.config.parts import CertificateConfig

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario


class BandRule(Config):
    """Stop after several good bands in a row, where a band is a stretch of training."""

    band_steps: Count = Field(100_000, description="Length of a band, in steps.")
    min_bands: Count = Field(3, description="Bands that must be over before the rule may stop training.")
    good_bands: Count = Field(2, description="Good bands in a row that stop training.")
    clean_episodes: Count = Field(
        20,
        description="A band is good when its evaluations have at least this many episodes, all of them clean.",
    )


class PlateauRule(Config):
    """Stop when a figure of the evaluations has stopped getting better, while another is good enough."""

    figure: Name = Field(
        "return",
        description="Figure that must go on getting better: return, length, or one that the world reports, such as "
        "extra_distance_nm. Means over an evaluation's episodes count.",
    )
    direction: Literal["up", "down"] = Field("up", description="Which way is better.")
    evaluations: Count = Field(5, description="Evaluations in a row without an improvement that stop training.")
    improvement: float = Field(
        0.0, ge=0, description="How much better than at the last improvement the figure must be to count as one."
    )
    provided: Name | None = Field(
        None,
        description="Another figure, such as clean: evaluations in which it is below `at_least` start the count again; "
        "null: all count.",
    )
    at_least: float = Field(1.0, description="What the figure of `provided` must be.")


class CertificateRule(CertificateConfig):
    """Stop when a statistical test on new episodes has shown that the policy succeeds often enough.

    A test begins after an evaluation in which at least this share of the episodes succeeded.
    """

    figure: Name = Field("clean", description="What a success is: a figure that is 0 or 1 in every episode.")


@dataclass(frozen=True)
class Needs:
    """Marks a stop rule that looks at evaluations: without them, it could never stop a run."""

    clean_episodes: bool = False  # the world must also say which episodes are clean


class StoppingConfig(Config):
    """When to stop before the budget is spent: the first rule that is met stops training; null turns a rule off.

    The world decides what a clean episode is: in airspace, no loss of separation at any 1 s substep and every aircraft
    at its waypoint.
    """

    zero_conflict_streak: Annotated[Count | None, Needs(clean_episodes=True)] = Field(
        None,
        description="Stop after this many clean evaluation episodes in a row. With 95 % confidence, 100 in a row show "
        "that at least 97 % are clean, and 20 that at least 86 % are.",
    )
    clean_evaluations: Annotated[Count | None, Needs(clean_episodes=True)] = Field(
        None, description="Stop after this many evaluations in a row in which every episode was clean."
    )
    target_return: Annotated[float | None, Needs()] = Field(
        None, description="Stop when the mean return of an evaluation, summed over agents, reaches this."
    )
    plateau: Annotated[PlateauRule | None, Needs()] = Field(
        None, description="Stop when a figure of the evaluations has stopped getting better."
    )
    certificate: Annotated[CertificateRule | None, Needs()] = Field(
        None, description="Stop when a certificate shows that the policy succeeds often enough."
    )
    episodes: Count | None = Field(None, description="Stop after this many training episodes.")
    wall_time_s: Positive | None = Field(None, description="Stop after this many seconds of wall-clock time.")
    bands: Annotated[BandRule | None, Needs(clean_episodes=True)] = Field(
        None, description="Stop after several good bands of training in a row."
    )
    bad_batches: Count = Field(
        10,
        description="Give up after this many batches in a row with NaN or infinity. Such a batch is kept in quarantine "
        "and never learned from.",
    )


# The rules of StoppingConfig that look at evaluations, with what they need.
EVALUATED_RULES = {
    name: mark
    for name, field in StoppingConfig.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, Needs)
}


class StopKind(Enum):
    """What kind of reason ended a session. Where several come at once, the one listed first counts."""

    GIVEN_UP = "given_up"  # training cannot go on
    PARKED = "parked"  # a round of its federation is not over, and this run does not wait for it
    SIGNAL = "signal"  # a person or a scheduler asked for it, or nobody reads the output any more
    RULE = "rule"  # a stop rule was met: the policy is as good, or as bad, as was asked for
    BUDGET = "budget"  # all steps are taken
    EPISODES = "episodes"
    WALL_TIME = "wall_time"
    PAUSED = "paused"  # the caller asked for no more steps than these

    @property
    def finishes(self) -> bool:
        """Whether the run is done; else it can be resumed."""
        return self in (StopKind.RULE, StopKind.BUDGET, StopKind.EPISODES, StopKind.WALL_TIME)


class Stop(NamedTuple):
    """Why a session ends."""

    kind: StopKind
    sentence: str  # for people


def most_important(*stops: Stop | None) -> Stop | None:
    """The reason that counts, of several: the kind that is listed first."""
    ranks = list(StopKind)
    return min((stop for stop in stops if stop is not None), key=lambda stop: ranks.index(stop.kind), default=None)


FIRST_STREAK = 20  # clean evaluation episodes in a row, of the metric; no rule


class StopState(msgspec.Struct, frozen=True):
    """What the rules remember between evaluations; saved in checkpoints."""

    streak: int = 0  # consecutive clean evaluation episodes, up to now
    evaluations: int = 0  # consecutive evaluations with clean episodes only, up to now
    band_start: int = 0  # step at which the present band began
    band_episodes: int = 0
    band_unclean: int = 0
    bands: int = 0
    good_bands: int = 0  # consecutive, up to the last finished band
    first_streak: int | None = None  # steps at which FIRST_STREAK clean episodes in a row were first reached
    plateau_best: float | None = None  # the figure at its last improvement; None: nothing counts yet
    plateau_since: int = 0  # consecutive evaluations without an improvement
    certified: str | None = None  # what a certificate has shown
    certificate_failed: int | None = None  # update after which the last one was refused


class RunPosition(NamedTuple):
    """What rules may look at."""

    steps: int
    episodes: int = 0
    seconds: float = 0.0
    state: StopState = StopState()
    mean_return: float | None = None  # of an evaluation after this update, summed over agents; None: there was none
    pause_at: int | None = None


# --- the rules ---


def _clean_evaluations(scenario: Scenario, now: RunPosition) -> str | None:
    wanted, found = scenario.stop.clean_evaluations, now.state.evaluations
    met = wanted is not None and found >= wanted
    return f"{found} consecutive evaluations with clean episodes only" if met else None


def _zero_conflict_streak(scenario: Scenario, now: RunPosition) -> str | None:
    wanted, found = scenario.stop.zero_conflict_streak, now.state.streak
    return f"{found} consecutive clean evaluation episodes" if wanted is not None and found >= wanted else None


def _target_return(scenario: Scenario, now: RunPosition) -> str | None:
    target, mean = scenario.stop.target_return, now.mean_return
    if target is None or mean is None or mean < target:
        return None
    return f"evaluation return {mean:.2f} reached the target {target:g}"


def _plateau(scenario: Scenario, now: RunPosition) -> str | None:
    rule, state = scenario.stop.plateau, now.state
    if rule is None or state.plateau_best is None or state.plateau_since < rule.evaluations:
        return None
    held = f" with {rule.provided} at {rule.at_least:g} or more" if rule.provided else ""
    return f"{rule.figure} has not improved on {state.plateau_best:.4g} in {state.plateau_since} evaluations{held}"


def _certificate(scenario: Scenario, now: RunPosition) -> str | None:
    return now.state.certified if scenario.stop.certificate is not None else None


def _bands(scenario: Scenario, now: RunPosition) -> str | None:
    rule, state = scenario.stop.bands, now.state
    if rule is None or state.band_start != now.steps:  # no band ends here
        return None
    met = state.bands >= rule.min_bands and state.good_bands >= rule.good_bands
    return f"{state.good_bands} consecutive good bands of {rule.band_steps} steps" if met else None


def _budget(scenario: Scenario, now: RunPosition) -> str | None:
    return f"the {budget(scenario)} is spent" if now.steps >= scenario.timesteps else None


def _episodes(scenario: Scenario, now: RunPosition) -> str | None:
    most, done = scenario.stop.episodes, now.episodes
    met = most is not None and done >= most
    return f"{done:,} episodes have ended, where {most:,} were asked for" if met else None


def _wall_time(scenario: Scenario, now: RunPosition) -> str | None:
    limit = scenario.stop.wall_time_s
    return f"{limit:g} s of wall time are over" if limit is not None and now.seconds >= limit else None


def _pause(scenario: Scenario, now: RunPosition) -> str | None:
    met = now.pause_at is not None and now.steps >= now.pause_at
    return "it was asked to pause here" if met else None


class StopRule(NamedTuple):
    """A rule: its function returns a sentence if the run should stop, else None."""

    kind: StopKind
    ask: Callable[[Scenario, RunPosition], str | None]
    field: str | None = None  # of StoppingConfig


# The first that is met counts. Those whose field `Needs` evaluations are asked only where there was one.
RULES = (
    StopRule(StopKind.RULE, _clean_evaluations, "clean_evaluations"),
    StopRule(StopKind.RULE, _zero_conflict_streak, "zero_conflict_streak"),
    StopRule(StopKind.RULE, _target_return, "target_return"),
    StopRule(StopKind.RULE, _plateau, "plateau"),
    StopRule(StopKind.RULE, _certificate, "certificate"),
    StopRule(StopKind.RULE, _bands, "bands"),
    StopRule(StopKind.BUDGET, _budget),
    StopRule(StopKind.EPISODES, _episodes, "episodes"),
    StopRule(StopKind.WALL_TIME, _wall_time, "wall_time_s"),
    StopRule(StopKind.PAUSED, _pause),
)
# Fields of rules that stay met once they are: a run that one of them has ended goes on only with these turned off.
RULE_FIELDS = tuple(rule.field for rule in RULES if rule.kind is StopKind.RULE and rule.field is not None)


def reason_to_stop(scenario: Scenario, now: RunPosition) -> Stop | None:
    """The reason to stop after an update, if a rule is met."""
    for kind, ask, field in RULES:
        if field in EVALUATED_RULES and now.mean_return is None:
            continue
        if (sentence := ask(scenario, now)) is not None:
            return Stop(kind, sentence)
    return None


def reason_to_stop_at_start(scenario: Scenario, now: RunPosition, ended_by_rule: str | None) -> Stop | None:
    """The reason why a session has nothing to do, if there is one."""
    has_rule = any(getattr(scenario.stop, name) is not None for name in RULE_FIELDS)
    if ended_by_rule is not None and has_rule:
        return Stop(StopKind.RULE, f"it had ended before: {ended_by_rule}")
    if now.steps >= scenario.timesteps:
        return Stop(StopKind.BUDGET, f"the {budget(scenario)} was spent before")
    paused = _pause(scenario, now)
    return None if paused is None else Stop(StopKind.PAUSED, paused)


def budget(scenario: Scenario) -> str:
    """The budget in words, with the length of a rollout if it is not a multiple of that."""
    rollout = scenario.rollout_steps
    whole = "" if scenario.timesteps % rollout == 0 else f" (in whole rollouts of {rollout:,})"
    return f"budget of {scenario.timesteps:,} steps{whole}"


# --- what they remember ---


def after_evaluation(
    config: StoppingConfig,
    state: StopState,
    steps: int,
    clean: Sequence[bool] | None,
    figures: Mapping[str, float],
) -> StopState:
    """The state after an evaluation.

    Args:
        config: The rules.
        state: Before the evaluation.
        steps: Training steps done.
        clean: Per episode, in order; None where the world does not say.
        figures: Means over its episodes, by name.
    """
    if config.plateau is not None:
        state = _after_figures(config.plateau, state, figures)
    if clean is None:
        return state
    streak, first = state.streak, state.first_streak
    for episode in clean:
        streak = streak + 1 if episode else 0
        first = steps if first is None and streak >= FIRST_STREAK else first
    evaluations = state.evaluations + 1 if all(clean) else 0
    state = msgspec.structs.replace(state, streak=streak, evaluations=evaluations, first_streak=first)
    return state if config.bands is None else _after_bands(config.bands, state, steps, clean)


def _after_figures(rule: PlateauRule, state: StopState, figures: Mapping[str, float]) -> StopState:
    """Count this evaluation, or start again where it does not count."""
    value = figures[rule.figure]
    if math.isnan(value) or (rule.provided is not None and not figures[rule.provided] >= rule.at_least):
        return msgspec.structs.replace(state, plateau_best=None, plateau_since=0)
    best = state.plateau_best
    gain = math.inf if best is None else value - best if rule.direction == "up" else best - value
    if gain > rule.improvement:
        return msgspec.structs.replace(state, plateau_best=value, plateau_since=0)
    return msgspec.structs.replace(state, plateau_since=state.plateau_since + 1)


def _after_bands(rule: BandRule, state: StopState, steps: int, clean: Sequence[bool]) -> StopState:
    """Count this evaluation into the present band, and close the band when its steps are over."""
    episodes = state.band_episodes + len(clean)
    unclean = state.band_unclean + sum(not episode for episode in clean)
    if steps < state.band_start + rule.band_steps:
        return msgspec.structs.replace(state, band_episodes=episodes, band_unclean=unclean)
    good = episodes >= rule.clean_episodes and unclean == 0
    return msgspec.structs.replace(
        state,
        band_start=steps,
        band_episodes=0,
        band_unclean=0,
        bands=state.bands + 1,
        good_bands=state.good_bands + 1 if good else 0,
    )


def stop_rows(state: StopState) -> dict[str, int]:
    """Metrics stop/…."""
    first = {} if state.first_streak is None else {"stop/first_streak_steps": state.first_streak}
    return {"stop/zero_conflict_streak": state.streak, "stop/clean_evaluations": state.evaluations, **first}
