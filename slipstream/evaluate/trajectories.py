"""Trajectory logs: every step of judged episodes as one Parquet file, and in the format people of a field know."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.config.world import WorldConfig
from slipstream.data.disk import replace_file
from slipstream.errors import ScenarioError
from slipstream.spec import WorldSpec
from slipstream.worlds.recorded import Recorded
from slipstream.worlds.registry import trajectory_csv

Columns = dict[str, NDArray[Any]]


def columns(spec: WorldSpec, recorded: Sequence[Recorded]) -> Columns:
    """Episodes as a table: a row per agent and step in which it was there, with the frame after the step."""
    parts = [_episode(spec, number, played) for number, played in enumerate(recorded)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _episode(spec: WorldSpec, number: int, played: Recorded) -> Columns:
    step, agent = np.nonzero(played.alive)
    seconds = np.cumsum(played.ticks) * spec.tick_seconds
    table: Columns = {
        "episode": np.full(len(step), number, np.int32),
        "step": step.astype(np.int32),
        "time_s": seconds[step],
        "agent": np.array(spec.agents)[agent],
    }
    table |= {name: played.frames[1:][step, agent, k] for k, name in enumerate(spec.frame_fields)}
    actions = played.actions[step, agent]
    if actions.ndim == 1:
        table["action"] = actions
    else:
        names = spec.action.names or tuple(str(k) for k in range(actions.shape[1]))
        table |= {f"action_{name}": actions[:, k] for k, name in enumerate(names)}
    table["reward"] = played.rewards[step, agent]
    if played.parts is not None:
        table |= {f"reward_{name}": played.parts[step, agent, k] for k, name in enumerate(spec.reward_parts)}
    return table


def write(folder: Path, config: WorldConfig, spec: WorldSpec, recorded: Mapping[str, Sequence[Recorded]]) -> list[Path]:
    """Write trajectories.parquet of all policies and, where the world has such logs, traj_ep_*.csv of the first."""
    pyarrow, parquet = _arrow()
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for policy, episodes in recorded.items():
        table = columns(spec, episodes)
        rows = len(table["episode"])
        who = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [policy])
        tables.append(pyarrow.table({"policy": who} | {name: pyarrow.array(value) for name, value in table.items()}))
    sink = io.BytesIO()
    parquet.write_table(pyarrow.concat_tables([table.unify_dictionaries() for table in tables]), sink)
    written = [folder / "trajectories.parquet"]
    replace_file(written[0], sink.getvalue(), durable=False)
    for number, played in enumerate(next(iter(recorded.values()))):
        text = trajectory_csv(config, spec, played, number)
        if text is not None:
            written.append(folder / f"traj_ep_{number:04d}.csv")
            replace_file(written[-1], text.encode(), durable=False)
    return written


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ScenarioError(
            "trajectories are written as Parquet, which needs pyarrow: pip install 'slipstream[data]'"
        ) from None
    return pyarrow, parquet
