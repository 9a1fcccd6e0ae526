"""Run folders made by hand: what a run would have left, without training one."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipstream.data.run_folder import EVENTS_FILE, METRICS_FILE
from slipstream.run import folder as run_folder

NOW = datetime(2026, 11, 16, tzinfo=UTC)


@functools.cache
def described() -> dict[str, Any]:
    """What metadata.json says; asking git once is enough."""
    return run_folder.describe_run(seed=0, command=["slipstream", "train", "duel"], now=NOW)


def make_run(
    path: Path,
    values: Sequence[float] = (),
    *,
    metric: str = "eval/return_mean",
    seed: int = 0,
    every: int = 100,
    scenario: str = "duel",
    algo: str = "ppo",
    rows: Sequence[Mapping[str, Any]] = (),
    events: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
    timesteps: int = 1000,
    ended: bool = True,
) -> Path:
    """A run with values of a metric at every so many steps, or with whole rows of reports."""
    plain = {
        "name": scenario,
        "description": "made by hand",
        "seed": seed,
        "timesteps": timesteps,
        "world": {"kind": "probe"},
        "algo": {"kind": algo, "learning_rate": 1e-3},
        "policies": {"main": {"kind": "learning", "algo": None}},
    }
    metadata = described() | {"seed": seed}
    made = run_folder.create(
        path.parent, "made", "ppo", NOW, scenario_yaml=f"name: {scenario}\n", config=plain | dict(config or {}),
        metadata=metadata, out=path,
    )  # fmt: skip
    reports = [{"timesteps_total": (k + 1) * every, "time_total_s": k + 1.0, metric: v} for k, v in enumerate(values)]
    lines = [json.dumps(row) + "\n" for row in (*reports, *rows)]
    (path / METRICS_FILE).write_text("".join(lines))
    (path / EVENTS_FILE).write_text("".join(json.dumps(e, separators=(",", ":")) + "\n" for e in events))
    if ended:
        run_folder.end_session(made, NOW, 1.0, "timesteps reached", len(lines) * every)
    made.close()
    return path
