"""A minute of workers and a replay service together: are their metrics all there, finite and plausible?"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SCENARIO = "probe_target"


class Expected(NamedTuple):
    """A metric, and between what its mean over a run must lie; above `least` where that is asked for."""

    key: str
    least: float
    most: float
    above: bool = False


class MetricCheck(NamedTuple):
    """What a run said about a metric."""

    expected: Expected
    rows: int
    least: float
    mean: float
    most: float
    problem: str  # nothing where there is none


def smoke(seconds: float, workers: int) -> list[MetricCheck]:
    """Train SAC on a tiny world for that long, with workers and a replay service, and look at what was reported."""
    from slipstream.config.load import load
    from slipstream.data.run_folder import METRICS_FILE
    from slipstream.run.metrics import read_rows
    from slipstream.run.session import train

    changes: dict[str, Any] = {
        "algo": "sac",
        "timesteps": 10**9,
        "learner_threads": 1,
        "stop.wall_time_s": seconds,
        "algo.replay.kind": "service",
        "algo.learning_starts": 1,
        "collect.workers": workers,
        "collect.num_worlds": max(8, workers),
        "collect.rollout_length": 16,
        "evaluate.evaluation_interval": None,
    }
    with tempfile.TemporaryDirectory(prefix="slipstream-smoke-") as folder:
        result = train(load(SCENARIO, changes), out=Path(folder) / "run", models=Path(folder))
        rows = list(read_rows(result.run / METRICS_FILE))
    return check_metrics(rows, expectations(rows, seconds, workers))


def expectations(rows: Sequence[Mapping[str, Any]], seconds: float, workers: int) -> list[Expected]:
    """What such a run must report; lanes of the service are named by the run itself."""
    lanes = sorted({key for row in rows for key in row if key.startswith("replay/share/")}) or ["replay/share/<lane>"]
    longest = max([seconds, *(row["time_total_s"] for row in rows)])
    return [
        Expected("collector/eps_per_min", 0.0, 1e9, above=True),
        Expected("collector/latency_mean_s", 0.0, longest, above=True),
        Expected("collector/latency_max_s", 0.0, longest, above=True),
        Expected("collector/policy_lag_mean", 0.0, 0.0),  # a replay learner and its workers take turns
        Expected("collector/policy_lag_max", 0.0, 0.0),
        *(Expected(f"collector/worker_{i}/steps_per_s", 0.0, 1e9, above=True) for i in range(workers)),
        *(Expected(f"collector/worker_{i}/heartbeat_age_s", 0.0, longest) for i in range(workers)),
        Expected("replay/fill", 0.0, 1.0, above=True),
        Expected("replay/sample_insert_ratio", 0.0, 1e6, above=True),
        *(Expected(f"replay/wait_{what}_s", 0.0, longest) for what in ("add", "sample", "connect")),
        *(Expected(lane, 0.0, 1.0) for lane in lanes),
    ]


def check_metrics(rows: Sequence[Mapping[str, Any]], expected: Iterable[Expected]) -> list[MetricCheck]:
    """Every expectation beside what was reported; a metric must be in every row."""
    return [_check(rows, each) for each in expected]


def _check(rows: Sequence[Mapping[str, Any]], expected: Expected) -> MetricCheck:
    values = [row[expected.key] for row in rows if expected.key in row]
    if not values:
        return MetricCheck(expected, 0, math.nan, math.nan, math.nan, "missing")
    if any(value is None or not math.isfinite(value) for value in values):
        return MetricCheck(expected, len(values), math.nan, math.nan, math.nan, "not finite")
    mean = sum(values) / len(values)
    problem = ""
    if len(values) < len(rows):
        problem = f"missing in {len(rows) - len(values)} of {len(rows)} rows"
    elif not expected.least <= mean <= expected.most or (expected.above and mean == expected.least):
        bound = "above" if expected.above else "at least"
        problem = f"{mean:g}, where {bound} {expected.least:g} and at most {expected.most:g} is plausible"
    return MetricCheck(expected, len(values), min(values), mean, max(values), problem)


def table(seen: Sequence[MetricCheck]) -> list[str]:
    """As lines for a person."""
    width = max(len(each.expected.key) for each in seen)
    lines = [f"{'metric':<{width}}  {'rows':>6}  {'least':>11}  {'mean':>11}  {'most':>11}"]
    for each in seen:
        figures = "".join(f"  {value:>11.4g}" for value in (each.least, each.mean, each.most))
        lines.append(f"{each.expected.key:<{width}}  {each.rows:>6}{figures}  {each.problem or 'ok'}")
    return lines
