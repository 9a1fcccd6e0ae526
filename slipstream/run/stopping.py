"""Why a run ends: every reason has a kind, and every rule that ends one is a pure function in one list.

To add a rule, give `config.scenario.StopConfig` its field and add a function to `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from slipstream.config.scenario import EVALUATED_RULES, BandRule, Scenario, StopConfig


class StopKind(Enum):
    """What kind of reason ended a session. Where several come at once, the one listed first counts."""

    GIVEN_UP = "given_up"  # training cannot go on
    PARKED = "parked"  # a round of its federation is not over, and this run does not wait for it
    SIGNAL = "signal"  # a person or a scheduler asked for it, or nobody reads the output any more
    RULE = "rule"  # a stop rule was met by an evaluation
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


def first(*stops: Stop | None) -> Stop | None:
    """The reason that counts, of several."""
    ranks = list(StopKind)
    return min((stop for stop in stops if stop is not None), key=lambda stop: ranks.index(stop.kind), default=None)


class StopState(msgspec.Struct, frozen=True):
    """What the rules remember between evaluations; saved in checkpoints."""

    streak: int = 0  # consecutive clean evaluation episodes, up to now
    evaluations: int = 0  # consecutive evaluations with clean episodes only, up to now
    band_start: int = 0  # step at which the present band began
    band_episodes: int = 0
    band_unclean: int = 0
    bands: int = 0
    good_bands: int = 0  # consecutive, up to the last finished band


class RunPosition(NamedTuple):
    """All that rules look at."""

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
    """A reason to stop, as a function: the sentence where it is met, None where it is not."""

    kind: StopKind
    ask: Callable[[Scenario, RunPosition], str | None]
    field: str | None = None  # of StopConfig


# The first that is met counts. Those judged by evaluations are asked only where there was one.
RULES = (
    StopRule(StopKind.RULE, _clean_evaluations, "clean_evaluations"),
    StopRule(StopKind.RULE, _zero_conflict_streak, "zero_conflict_streak"),
    StopRule(StopKind.RULE, _target_return, "target_return"),
    StopRule(StopKind.RULE, _bands, "bands"),
    StopRule(StopKind.BUDGET, _budget),
    StopRule(StopKind.EPISODES, _episodes, "episodes"),
    StopRule(StopKind.WALL_TIME, _wall_time, "wall_time_s"),
    StopRule(StopKind.PAUSED, _pause),
)


def asked(scenario: Scenario, now: RunPosition) -> Stop | None:
    """Why to stop here, if a rule is met."""
    for kind, ask, _ in RULES:
        if kind is StopKind.RULE and now.mean_return is None:
            continue
        if (sentence := ask(scenario, now)) is not None:
            return Stop(kind, sentence)
    return None


def asked_at_start(scenario: Scenario, now: RunPosition, ended_by_rule: str | None) -> Stop | None:
    """Why a session that begins has nothing to do, if so."""
    has_rule = any(getattr(scenario.stop, name) is not None for name in EVALUATED_RULES)
    if ended_by_rule is not None and has_rule:
        return Stop(StopKind.RULE, f"it had ended before: {ended_by_rule}")
    if now.steps >= scenario.timesteps:
        return Stop(StopKind.BUDGET, f"the {budget(scenario)} was spent before")
    paused = _pause(scenario, now)
    return None if paused is None else Stop(StopKind.PAUSED, paused)


def budget(scenario: Scenario) -> str:
    """The budget in words; where it is no whole number of rollouts, that these are taken whole."""
    rollout = scenario.rollout_steps
    whole = "" if scenario.timesteps % rollout == 0 else f" (in whole rollouts of {rollout:,})"
    return f"budget of {scenario.timesteps:,} steps{whole}"


# --- what they remember ---


def after_evaluation(config: StopConfig, state: StopState, steps: int, clean: Sequence[bool] | None) -> StopState:
    """The state after an evaluation.

    Args:
        config: The rules.
        state: Before the evaluation.
        steps: Training steps done.
        clean: Per episode, in order; None where the world does not say.
    """
    if clean is None:
        return state
    streak = state.streak
    for episode in clean:
        streak = streak + 1 if episode else 0
    evaluations = state.evaluations + 1 if all(clean) else 0
    state = msgspec.structs.replace(state, streak=streak, evaluations=evaluations)
    return state if config.bands is None else _after_bands(config.bands, state, steps, clean)


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
    """How near the rules are, for the metrics file."""
    return {"stop/zero_conflict_streak": state.streak, "stop/clean_evaluations": state.evaluations}
