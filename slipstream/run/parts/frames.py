"""Recorded episodes in the form viewers read: small enough to be sent to a page, exact enough to look right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slipstream.collect.episodes import Episodes
from slipstream.run.folder import Ground, Track, write_track
from slipstream.run.parts.evaluation import EpisodeWriter
from slipstream.spec import WorldSpec
from slipstream.worlds.vec_env import F64, Backdrop

if TYPE_CHECKING:
    from slipstream.run.context import Run

MOST_VALUES = 1_000_000  # of an episode; ten bytes each stay below run_folder.MAX_RECORD_BYTES


def as_track(spec: WorldSpec, index: int, timesteps_total: int, frames: F64, backdrop: Backdrop | None) -> Track:
    """An episode's frames [T, A, F]; of one that is too long only every n-th, with ticks n times as long."""
    every = -(-frames.size // MOST_VALUES)
    return Track(
        index=index,
        timesteps_total=timesteps_total,
        fields=spec.frame_fields,
        agents=spec.agents,
        tick_seconds=spec.tick_seconds * every,
        states=np.round(frames[::every], 6).tolist(),
        backdrop=None if backdrop is None else as_ground(backdrop),
    )


def as_ground(backdrop: Backdrop) -> Ground:
    """The grid as lengths of equal cells: roads are wide, so there are few."""
    cells = np.concatenate([[False], (backdrop.occupied != 0).ravel()])
    changes = np.flatnonzero(cells[1:] != cells[:-1])
    ends = np.concatenate([[0], changes, [backdrop.occupied.size]])
    rows, columns = backdrop.occupied.shape
    return Ground(rows, columns, backdrop.resolution_m, backdrop.origin, np.diff(ends).tolist())


def track_writer(run: Run) -> EpisodeWriter:
    """Keeps the first episode of every few evaluations for the viewers."""
    log = run.scenario.log
    every = log.frames_every or 1

    def write(episodes: Episodes, number: int) -> None:
        frames, backdrop = episodes.frames[0], episodes.backdrops[0]
        track = as_track(run.worlds.spec, number // every, run.counters.steps, frames, backdrop)
        write_track(run.folder.path, track, log.frames_keep)

    return EpisodeWriter(lambda number: int(number % every == 0), write)
