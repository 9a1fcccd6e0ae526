"""Going through a world's phases as they are mastered: pure functions of how episodes ended."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.collect.serial import Episode
from slipstream.config.scenario import CurriculumConfig


class CurriculumState(msgspec.Struct, frozen=True):
    """Where a run is; saved in checkpoints."""

    phase: int = 0
    latest: tuple[bool, ...] = ()  # whether the latest episodes of this phase succeeded, the newest last
    stale: tuple[int, ...] = ()  # worlds whose running episode began in the phase before
    judged: float | None = None  # share of successes in this phase's latest evaluation


def after_episodes(
    config: CurriculumConfig, state: CurriculumState, episodes: Sequence[Episode], success: int
) -> CurriculumState:
    """The state after episodes have ended; `success` is which of their figures says whether they succeeded."""
    stale, latest = set(state.stale), list(state.latest)
    for episode in episodes:
        if episode.world in stale:
            stale.remove(episode.world)
        else:
            latest.append(episode.stats[success] > 0)
    kept = tuple(latest[-config.window :])
    return msgspec.structs.replace(state, latest=kept, stale=tuple(sorted(stale)))


def advanced(
    config: CurriculumConfig, state: CurriculumState, phases: int, num_worlds: int
) -> tuple[CurriculumState, str | None]:
    """The next phase's state and why, where this one is mastered and not the last."""
    if state.phase + 1 >= phases or len(state.latest) < config.window:
        return state, None
    share = sum(state.latest) / len(state.latest)
    if share < config.success_rate:
        return state, None
    if config.evaluation_success is not None and (state.judged is None or state.judged < config.evaluation_success):
        return state, None
    judged = "" if state.judged is None else f", {state.judged:.0%} of the latest evaluation"
    why = f"{share:.0%} of the last {len(state.latest)} episodes succeeded{judged}"
    return CurriculumState(phase=state.phase + 1, stale=tuple(range(num_worlds))), why
