"""Our statistics beside rliable's (Agarwal et al. 2021): the same scores, the same resamples, equal to 1e-9.

rliable needs pandas below 3, so it lives in an environment of its own that is not part of the project:

    python -m venv .venv-rliable && .venv-rliable/bin/pip install rliable "pandas<3"
    .venv-rliable/bin/python studies/check_rliable.py            # compares, and writes tests/fixtures/rliable.json

The fixture keeps rliable's own numbers, so that tests/test_stats.py repeats the comparison without it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slipstream.stats.intervals import Interval, improvement_interval, iqm_interval, performance_profile, resampled_rows

ROOT = Path(__file__).resolve().parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "rliable.json"
RESAMPLES, SEED, TOLERANCE = 500, 3, 1e-9
THRESHOLDS = (-1.0, 0.0, 0.5, 1.0, 2.0)


def scores() -> tuple[np.ndarray, np.ndarray]:
    """Runs that differ in number and overlap, with ties within a task and between the two."""
    rng = np.random.default_rng(2021)
    ours, theirs = rng.normal(0.3, 1.0, (5, 4)).round(3), rng.normal(0.0, 1.0, (7, 4)).round(3)
    ours[:, 3], theirs[:, 3] = 1.0, 1.0  # as CartPole's 500 of both
    theirs[2, 0], theirs[5, 0] = ours[1, 0], ours[1, 0]
    return ours, theirs


def theirs_on_our_rows(matrices: Sequence[np.ndarray], function: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
    """rliable's estimate [K] and interval [2, K], its draws replaced by the rows that ours would draw."""
    from rliable import library

    rng = np.random.default_rng(SEED)
    rows = [resampled_rows(rng, matrix, RESAMPLES) for matrix in matrices]
    in_order = iter([matrix_rows[k] for k in range(RESAMPLES) for matrix_rows in rows])
    given = matrices[0] if len(matrices) == 1 else list(matrices)
    with mock.patch("numpy.random.choice", side_effect=in_order):
        point, interval = library.get_interval_estimates({"x": given}, function, reps=RESAMPLES)
    assert next(in_order, None) is None, "rliable drew fewer rows than ours"
    return np.atleast_1d(point["x"]), interval["x"]


def main() -> None:
    from rliable import library, metrics

    ours, theirs = scores()
    cases: dict[str, tuple[list[Interval], tuple[np.ndarray, np.ndarray]]] = {
        "iqm": (
            [iqm_interval(ours, resamples=RESAMPLES, seed=SEED)],
            theirs_on_our_rows([ours], lambda x: np.array([metrics.aggregate_iqm(x)])),
        ),
        "improvement": (
            [improvement_interval(ours, theirs, resamples=RESAMPLES, seed=SEED)],
            theirs_on_our_rows([ours, theirs], lambda x, y: np.array([metrics.probability_of_improvement(x, y)])),
        ),
        "profile": (
            performance_profile(ours, THRESHOLDS, resamples=RESAMPLES, seed=SEED),
            theirs_on_our_rows([ours], lambda x: library.score_distributions(x, THRESHOLDS)),
        ),
    }
    recorded = {}
    for name, (mine, (point, (low, high))) in cases.items():
        worst = float(np.abs(np.array(mine) - np.stack([point, low, high], 1)).max())
        print(f"{name:12} ours {mine[0].estimate:.6f}  largest difference {worst:.1e}")
        if not worst <= TOLERANCE:
            sys.exit(f"{name} differs from rliable's by {worst}")
        recorded[name] = np.stack([point, low, high], 1).tolist()
    versions = {package: version(package) for package in ("rliable", "arch", "numpy", "scipy")}
    record = {
        "source": "rliable (Agarwal et al. 2021), studies/check_rliable.py",
        "versions": versions,
        "resamples": RESAMPLES,
        "seed": SEED,
        "thresholds": THRESHOLDS,
        "ours": ours.tolist(),
        "theirs": theirs.tolist(),
        "rliable": recorded,
    }
    FIXTURE.write_text(json.dumps(record) + "\n")
    print(f"equal to {TOLERANCE:g}; written: {FIXTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
