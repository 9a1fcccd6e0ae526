"""Going through a world's phases: pure functions of how episodes ended.

In turn, a phase is played until it is mastered; where a certificate is asked for, run/certify.py has the last word.
Adaptively, all phases are played at once, and those more often that succeed less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from slipstream.collect.serial import Episode
from slipstream.config.scenario import CurriculumConfig

LEAST_WEIGHT = 0.1  # of a phase that always succeeds, beside 1.1 for one that never does


class CurriculumState(msgspec.Struct, frozen=True):
    """Where a run is; saved in checkpoints."""

    phase: int = 0
    latest: tuple[bool, ...] = ()  # whether the latest episodes of this phase succeeded, the newest last
    judged: float | None = None  # share of successes in this phase's latest evaluation
    failed_at: int | None = None  # update after which this phase was last refused a certificate
    certified: tuple[int, ...] = ()  # phases, in order
    limits: tuple[int, ...] = ()  # by phase, as far as they began: ticks an episode may last; 0: as the phase has it
    # adaptive:
    rates: tuple[float, ...] = ()  # success of late, by phase
    playing: tuple[int, ...] = ()  # phase of each world's running episode
    assigned: tuple[int, ...] = ()  # phase of each world's next one
    # Of checkpoints before phases were restarted whole: read and not used.
    stale: tuple[int, ...] = ()


# --- in turn ---


def after_episodes(
    config: CurriculumConfig, state: CurriculumState, episodes: Sequence[Episode], success: int
) -> CurriculumState:
    """The state after episodes have ended; `success` is which of their figures says whether they succeeded."""
    latest = (*state.latest, *(episode.stats[success] > 0 for episode in episodes))
    return msgspec.structs.replace(state, latest=latest[-config.window :])


def mastered(config: CurriculumConfig, state: CurriculumState, update: int) -> str | None:
    """Why the phase looks mastered; None where it does not, or where a certificate was refused a moment ago."""
    if len(state.latest) < config.window:
        return None
    share = sum(state.latest) / len(state.latest)
    if share < config.success_rate:
        return None
    if config.evaluation_success is not None and (state.judged is None or state.judged < config.evaluation_success):
        return None
    certificate = config.certificate
    if certificate is not None:
        if state.phase in state.certified:
            return None
        if state.failed_at is not None and update < state.failed_at + certificate.retry_updates:
            return None
    judged = "" if state.judged is None else f", {state.judged:.0%} of the latest evaluation"
    return f"{share:.0%} of the last {len(state.latest)} episodes succeeded{judged}"


def following(state: CurriculumState) -> CurriculumState:
    """The next phase, from its beginning."""
    return CurriculumState(phase=state.phase + 1, certified=state.certified, limits=state.limits)


# --- adaptive ---


def first_assignment(phases: int, num_worlds: int) -> CurriculumState:
    """Every phase is equally likely to be hard."""
    spread = tuple(i % phases for i in range(num_worlds))
    return CurriculumState(rates=(0.0,) * phases, playing=spread, assigned=spread)


def reassigned(
    config: CurriculumConfig,
    state: CurriculumState,
    episodes: Sequence[Episode],
    success: int,
    seed: int,
    update: int,
) -> CurriculumState:
    """The state after episodes have ended, and what each world plays next.

    Worlds are shared out in proportion to how much a phase fails, without more luck than one draw for all of them and
    a shuffle; `seed` and `update` key both. Rates forget half of what they knew in `config.window` episodes.
    """
    rates, playing = list(state.rates), list(state.playing)
    new = 1.0 - math.pow(0.5, 1.0 / config.window)
    for episode in episodes:
        phase = playing[episode.world]
        rates[phase] += new * ((episode.stats[success] > 0) - rates[phase])
        playing[episode.world] = state.assigned[episode.world]  # what began after it
    weights = np.array([1.0 + LEAST_WEIGHT - rate for rate in rates])
    draws = np.random.Generator(np.random.Philox(key=[seed, update]))
    worlds = len(playing)
    points = (np.arange(worlds) + draws.random()) / worlds
    phases = np.minimum(np.searchsorted(np.cumsum(weights / weights.sum()), points), len(rates) - 1)
    assigned = tuple(draws.permutation(phases).tolist())
    return msgspec.structs.replace(state, rates=tuple(rates), playing=tuple(playing), assigned=assigned)
