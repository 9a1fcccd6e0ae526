"""Pure functions over numbers: intervals, tests that may be looked at at any time, strengths of players."""

from slipstream.stats.intervals import (
    Interval,
    bootstrap,
    improvement_interval,
    iqm,
    iqm_interval,
    mean_interval,
    performance_profile,
    resampled_rows,
    wilson,
)
from slipstream.stats.ratings import EloTest, Score, elo, expected
from slipstream.stats.sequential import (
    Certificate,
    Certifier,
    Sprt,
    Verdict,
    evidence_above,
    evidence_below,
    least_trials,
    spent,
)

__all__ = [
    "Certificate",
    "Certifier",
    "EloTest",
    "Interval",
    "Score",
    "Sprt",
    "Verdict",
    "bootstrap",
    "elo",
    "evidence_above",
    "evidence_below",
    "expected",
    "improvement_interval",
    "iqm",
    "iqm_interval",
    "least_trials",
    "mean_interval",
    "performance_profile",
    "resampled_rows",
    "spent",
    "wilson",
]
