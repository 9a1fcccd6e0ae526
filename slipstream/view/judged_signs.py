"""Signs of problems beside what the run's policy was worth over fresh episodes: none says what the judgement denies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slipstream.stats.intervals import Interval
from slipstream.view.history import Curve
from slipstream.view.judgement import Judged
from slipstream.view.sign_kinds import EXPLORE_MORE, Sign
from slipstream.view.signs import SOLVED, Curves


def settle(signs: Sequence[Sign], curves: Curves, judged: Sequence[Judged]) -> list[Sign]:
    """Signs of a run's curves that its judgement leaves, told with what it knows.

    Args:
        signs: Found in the curves.
        curves: The run's metrics.
        judged: The run's policy over fresh episodes, and then the scripts; () where it was not judged.
    """
    settled = [_settled(sign, curves, judged) if judged else sign for sign in signs]
    return [sign for sign in settled if sign is not None]


def _settled(sign: Sign, curves: Curves, judged: Sequence[Judged]) -> Sign | None:
    if sign.name == "negative_plateau":
        return beside_scripts(sign, judged)
    if sign.name == "streak_at_zero":
        return clean_beside_scripts(sign, judged)
    trained = curves.get("env/return_mean")
    denied = (sign.name == "entropy_collapsed" and _is_solved(judged)) or (
        sign.name == "evaluation_below" and trained is not None and _earns(judged, trained, sign.first)
    )
    return None if denied else sign


def beside_scripts(plateau: Sign, judged: Sequence[Judged]) -> Sign | None:
    """A plateau with what scripts earn; none where the policy earns more than 0, or more than every script."""
    own, scripts = _judged_returns(judged)
    if own is None:
        return plateau
    if own.estimate >= 0 or (scripts and all(own.low > value.high for value in scripts.values())):
        return None
    told = "".join(f", {name} {value.estimate:.3g}" for name, value in scripts.items())
    found = f"{plateau.found} Over {judged[0].episodes} fresh episodes: learned {own.estimate:.3g}{told}."
    level = [name for name, value in scripts.items() if value.high >= own.low and value.low <= own.high]
    above = [name for name, value in scripts.items() if value.low > own.high]
    words = f"The policy earns no more than {_and(level)}. " if level else ""
    words += f"{_and(above)} {'earns' if len(above) == 1 else 'earn'} more, so more can be earned. " if above else ""
    return replace(plateau, found=found, tries=(words + EXPLORE_MORE) if words else "")


def clean_beside_scripts(streak: Sign, judged: Sequence[Judged]) -> Sign | None:
    """No streak, with how often scripts are clean; none where fresh episodes of the policy were clean all the same."""
    shares = {row.policy: share for row in judged if (share := _share(row)) is not None}
    if judged[0].policy not in shares:
        return streak
    own = shares.pop(judged[0].policy)
    if own >= SOLVED:
        return None
    found = f"{streak.found} Of {judged[0].episodes} fresh episodes {own:.0%} were clean or succeeded."
    best = max(shares, key=lambda name: shares[name], default=None)
    if best is None:
        return replace(streak, found=found)
    told = "none of the scripts' either" if shares[best] == 0 else f"{best}'s in {shares[best]:.0%}"
    return replace(streak, found=f"{found[:-1]}, {told}.")


def _is_solved(judged: Sequence[Judged]) -> bool:
    """Whether most fresh episodes were clean or succeeded, or the policy beats a script and is beaten by none."""
    own, scripts = _judged_returns(judged)
    if own is not None and all(own.high >= value.low for value in scripts.values()):
        return any(own.low > value.high for value in scripts.values())
    share = _share(judged[0])
    return share is not None and share >= SOLVED


def _earns(judged: Sequence[Judged], trained: Curve, since: int) -> bool:
    """Whether fresh episodes earned what training did of late: then the evaluations before were unlucky."""
    own, _ = _judged_returns(judged)
    late = [value for step, value in zip(trained.steps, trained.values, strict=True) if step >= since]
    return own is not None and bool(late) and own.high >= float(np.median(late))


def _judged_returns(judged: Sequence[Judged]) -> tuple[Interval | None, dict[str, Interval]]:
    """What the policy earned, and the scripts by name."""
    known = [(row.policy, row.figures["return"]) for row in judged if "return" in row.figures]
    known = [(name, value) for name, value in known if math.isfinite(value.estimate)]
    if not known or known[0][0] != judged[0].policy:
        return None, {}
    return known[0][1], dict(known[1:])


def _share(row: Judged) -> float | None:
    found = [row.figures[name].estimate for name in ("clean", "success") if name in row.figures]
    return max((value for value in found if math.isfinite(value)), default=None)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
