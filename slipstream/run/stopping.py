"""When training may end before its budget is spent: pure functions of evaluation results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.config.scenario import BandRule, StopConfig


class StopState(msgspec.Struct, frozen=True):
    """What the rules remember between evaluations; saved in checkpoints."""

    streak: int = 0  # consecutive clean evaluation episodes, up to now
    evaluations: int = 0  # consecutive evaluations with clean episodes only, up to now
    band_start: int = 0  # step at which the present band began
    band_episodes: int = 0
    band_unclean: int = 0
    bands: int = 0
    good_bands: int = 0  # consecutive, up to the last finished band


def after_evaluation(
    config: StopConfig, state: StopState, steps: int, mean_return: float, clean: Sequence[bool] | None
) -> tuple[StopState, str | None]:
    """The state after an evaluation, and why to stop if a rule was met.

    Args:
        config: The rules.
        state: Before the evaluation.
        steps: Training steps done.
        mean_return: Of the evaluation's episodes, summed over agents.
        clean: Per episode, in order; None where the world does not say.
    """
    reason = None
    if config.target_return is not None and mean_return >= config.target_return:
        reason = f"evaluation return {mean_return:.2f} reached the target {config.target_return:g}"
    if clean is None:
        return state, reason
    streak = state.streak
    for episode in clean:
        streak = streak + 1 if episode else 0
    evaluations = state.evaluations + 1 if all(clean) else 0
    state = msgspec.structs.replace(state, streak=streak, evaluations=evaluations)
    if config.bands is not None:
        state, band_reason = _after_bands(config.bands, state, steps, clean)
        reason = reason or band_reason
    if config.zero_conflict_streak is not None and streak >= config.zero_conflict_streak:
        reason = f"{streak} consecutive clean evaluation episodes"
    if config.clean_evaluations is not None and evaluations >= config.clean_evaluations:
        reason = f"{evaluations} consecutive evaluations with clean episodes only"
    return state, reason


def stop_rows(state: StopState) -> dict[str, int]:
    """How near the rules are, for the metrics file."""
    return {"stop/zero_conflict_streak": state.streak, "stop/clean_evaluations": state.evaluations}


def _after_bands(rule: BandRule, state: StopState, steps: int, clean: Sequence[bool]) -> tuple[StopState, str | None]:
    """Count this evaluation into the present band, and close the band when its steps are over."""
    episodes = state.band_episodes + len(clean)
    unclean = state.band_unclean + sum(not episode for episode in clean)
    if steps < state.band_start + rule.band_steps:
        return msgspec.structs.replace(state, band_episodes=episodes, band_unclean=unclean), None
    good = episodes >= rule.clean_episodes and unclean == 0
    state = msgspec.structs.replace(
        state,
        band_start=steps,
        band_episodes=0,
        band_unclean=0,
        bands=state.bands + 1,
        good_bands=state.good_bands + 1 if good else 0,
    )
    if state.bands >= rule.min_bands and state.good_bands >= rule.good_bands:
        return state, f"{state.good_bands} consecutive good bands of {rule.band_steps} steps"
    return state, None
