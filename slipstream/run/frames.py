"""Recorded episodes in the form viewers read: small enough to be sent to a page, exact enough to look right."""

from __future__ import annotations

import numpy as np

from slipstream.run.folder import Ground, Track
from slipstream.spec import WorldSpec
from slipstream.worlds.vec_env import F64, Backdrop

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
