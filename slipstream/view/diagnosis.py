"""Looks for problems in a run's curves and events: what was found, where, and what to try.

Each check is a pure function of curves, and cautious: a run that learned well passes all, and a finding is a hint, not
a proof. docs/reports.md describes each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.types import F64
from slipstream.view.history import Curve
from slipstream.view.problems import SOLVED, Problem
from slipstream.view.tail import Row

FEWEST = 8  # values of a curve before anything is read out of it
HIGH_KL = 0.05  # nats, where the scenario names no target

Curves = Mapping[str, Curve]


def crashes(session: Mapping[str, Any], events: Sequence[Row]) -> list[Problem]:
    """The error that ended a run's last session, if one did, and what failed when a run ended."""
    problems = []
    if isinstance(error := session.get("crashed"), dict):
        steps = int(session.get("timesteps_at_end", 0))
        problems.append(Problem("crashed", f"{error.get('kind')}: {error.get('message')}", steps, steps))
    for event in events:
        if event.get("event") == "end_failed":
            steps = int(event.get("timesteps_total", 0))
            found = f"{event.get('what')}: {event.get('kind')}: {event.get('message')}"
            problems.append(Problem("end_failed", found, steps, steps))
    return problems


def find_problems(
    curves: Curves, config: Mapping[str, Any], counts: Mapping[str, int], events: Sequence[Row]
) -> list[Problem]:
    """All problems of a run.

    Args:
        curves: Its metrics; those of evaluations whole, others may be sampled.
        config: The resolved scenario.
        counts: How many events of each kind there were.
        events: Those of them that tell of workers and quarantined batches.
    """
    curves = {key: found for key, curve in curves.items() if (found := _finite(curve)).values}
    evaluated, trained = curves.get("eval/return_mean"), curves.get("env/return_mean")
    returns = evaluated if evaluated is not None and len(evaluated.values) >= FEWEST else trained
    noise = evaluation_noise(curves) if returns is evaluated else 0.0
    looked: list[Problem | None] = []
    if returns is not None:
        looked += [negative_plateau(returns), oscillation(returns, noise)]
    streak = curves.get("stop/zero_conflict_streak")
    if streak is not None and (config.get("stop") or {}).get("zero_conflict_streak"):
        looked.append(streak_at_zero(streak, evaluated))
    looked += _of_learners(curves, config, returns)
    if evaluated is not None and trained is not None and not config.get("curriculum"):
        looked.append(evaluation_below(evaluated, trained, evaluation_noise(curves)))
    waits = curves.get("replay/wait_sample_s")
    if waits is not None and "time_total_s" in curves:
        looked.append(replay_starved(waits, curves["time_total_s"], curves.get("updates_total")))
    looked += [not_finite(curves, counts, events), workers_lost(counts, events)]
    return list(dict.fromkeys(problem for problem in looked if problem is not None))


def _of_learners(curves: Curves, config: Mapping[str, Any], returns: Curve | None) -> Iterator[Problem | None]:
    solved = max(_last(curves.get(f"eval/{key}")) for key in ("clean_fraction", "success_mean", "success_fraction"))
    for policy, algo in _learners(config):
        prefix = f"train/{policy}/" if f"train/{policy}/learning_rate" in curves else "train/"
        of = {key.removeprefix(prefix): curve for key, curve in curves.items() if key.startswith(prefix)}
        if "entropy" in of and returns is not None and solved < SOLVED:
            yield entropy_collapsed(of["entropy"], returns)
        target = algo.get("kl_stop") or algo.get("kl_target")
        # Who corrects for old data (rho_clip: V-trace) may be far from it, unless a target says otherwise.
        if "approx_kl" in of and (target or "rho_clip" not in algo):
            yield high_kl(of["approx_kl"], target)
        if "explained_variance" in of:
            yield blind_critic(of["explained_variance"])
        if "learning_rate" in of:
            yield rate_at_zero(of["learning_rate"], int(config.get("timesteps") or 0))
        if "gradient_steps" in of:
            yield never_drawn(of["gradient_steps"], of.get("replay_size"))
        if prefix == "train/":  # one policy learns: the others would say the same
            break


# --- returns ---


def negative_plateau(returns: Curve) -> Problem | None:
    """Flat over its second half, below 0, and nearer to where it began than to 0."""
    values = _values(returns)
    if len(values) < FEWEST:
        return None
    third, last = values[len(values) // 2 : 3 * len(values) // 4], values[3 * len(values) // 4 :]
    begin, level = float(values[: max(1, len(values) // 10)].mean()), float(last.mean())
    flat = abs(level - float(third.mean())) <= max(0.1 * float(np.ptp(values)), 0.05 * abs(level))
    if level >= 0 or not flat or (begin < 0 and level > 0.5 * begin):
        return None
    return _problem("negative_plateau", f"The return stays at about {level:.3g}; it began at {begin:.3g}.", returns)


def oscillation(returns: Curve, noise: float = 0.0) -> Problem | None:
    """Four turns or more in the later half, each of two fifths of all that the return ever moved, and above noise."""
    values = _values(returns)
    if len(values) < 12:
        return None
    later = values[len(values) // 2 :]
    least = max(0.4 * float(np.ptp(values)), 4.0 * noise)
    turns = count_turns(later, least)
    if turns < 4 or least == 0:
        return None
    return _problem(
        "oscillation",
        f"The return turned {turns} times by {least:.3g} or more, between {later.min():.3g} and {later.max():.3g}.",
        returns,
    )


def count_turns(values: F64, least: float) -> int:
    """How often a curve turns round, counting only ways of at least a given size between two turns."""
    turns, direction = 0, 0
    top = bottom = values[0]
    for value in values:
        top, bottom = max(top, value), min(bottom, value)
        if direction >= 0 and top - value >= least:
            turns, direction, bottom = turns + direction, -1, value
        elif direction <= 0 and value - bottom >= least:
            turns, direction, top = turns - direction, 1, value
    return turns


def evaluation_noise(curves: Curves) -> float:
    """A standard error of an evaluation's mean, rather too large: half the range of its returns, over √episodes."""
    low, high, many = (curves.get(f"eval/{key}") for key in ("return_min", "return_max", "episodes"))
    if low is None or high is None or many is None:
        return 0.0
    length = min(len(low.values), len(high.values), len(many.values))
    spread = np.array(high.values[-length:]) - np.array(low.values[-length:])
    return float(np.median(spread / 2 / np.sqrt(np.maximum(1.0, np.array(many.values[-length:])))))


def evaluation_below(evaluated: Curve, trained: Curve, noise: float = 0.0) -> Problem | None:
    """Over the later half, evaluations are below training's return by a quarter of all that either ever moved."""
    if len(evaluated.values) < FEWEST or len(trained.values) < 2:
        return None
    half = len(evaluated.steps) // 2
    steps, values = np.array(evaluated.steps[half:]), _values(evaluated)[half:]
    beside = np.interp(steps, trained.steps, _values(trained))
    gap = float(np.median(beside - values))
    moved = float(max(np.ptp(_values(evaluated)), np.ptp(_values(trained))))
    if gap <= 0.25 * moved or gap <= 3.0 * noise or gap <= 0:
        return None
    return _problem(
        "evaluation_below",
        f"Evaluations earn {gap:.3g} less than training: {np.median(values):.3g} against {np.median(beside):.3g}.",
        evaluated,
    )


def streak_at_zero(streak: Curve, evaluated: Curve | None) -> Problem | None:
    """No evaluation of the later half ended with a clean episode, though the run waits for a streak of them."""
    values = _values(streak)
    evaluations = len(evaluated.values) if evaluated is not None else 0
    later = values[len(values) // 2 :]
    if evaluations < FEWEST or not len(later) or later.max() > 0:
        return None
    return _problem(
        "streak_at_zero",
        f"The streak of clean episodes that would end the run was 0 in all its later half; {evaluations} evaluations.",
        streak,
    )


# --- learning ---


def entropy_collapsed(entropy: Curve, returns: Curve) -> Problem | None:
    """The entropy fell in the first half to almost nothing, and the return rose no more from there."""
    values, earned = _values(entropy), _values(returns)
    if len(values) < FEWEST or len(earned) < 4:
        return None
    first = float(values[: max(1, len(values) // 20)].mean())
    # Of choices it is at least 0. Of continuous actions it may be below, and 6 nats less is a spread 400 times smaller.
    floor = 0.03 * first if values.min() >= 0 else first - 6.0
    below = np.flatnonzero(values <= floor)
    if not len(below) or below[0] > len(values) // 2 or values[-1] > floor:
        return None
    when = entropy.steps[int(below[0])]
    before = earned[: max(1, int(np.searchsorted(returns.steps, when, side="right")))]
    gained = float(earned[-max(1, len(earned) // 4) :].mean() - before[-max(1, len(before) // 4) :].mean())
    if gained > 0.1 * float(np.ptp(earned)) and gained > 0:
        return None
    return _problem(
        "entropy_collapsed",
        f"The entropy fell from {first:.3g} to {values[-1]:.3g} nats, and the return has not risen since.",
        entropy,
        int(below[0]),
    )


def high_kl(kl: Curve, target: float | None) -> Problem | None:
    """Half of the later updates go more than twice as far as the target, or than 0.05 nats where there is none."""
    later = _later(kl)
    middle = float(np.median(later)) if len(later) else 0.0
    if middle <= (2.0 * target if target else HIGH_KL):
        return None
    aim = f"the target of {target:g}" if target else f"{HIGH_KL:g}, which is much for any update"
    return _problem(
        "high_kl", f"An update changes the policy by a KL of {middle:.3g} nats (median), far above {aim}.", kl
    )


def blind_critic(explained: Curve) -> Problem | None:
    """In most of the later updates the critic is no better than a constant."""
    later = _later(explained)
    share = float((later <= 0).mean()) if len(later) else 0.0
    if share < 0.6:
        return None
    return _problem(
        "blind_critic",
        f"The explained variance is at or below 0 in {share:.0%} of the later updates (median {np.median(later):.2g}).",
        explained,
    )


def rate_at_zero(rate: Curve, timesteps: int) -> Problem | None:
    """The learning rate is a thousandth of its highest before nine tenths of the budget are spent."""
    values = _values(rate)
    if not len(values) or values.max() <= 0:
        return None
    low = np.flatnonzero(values <= 1e-3 * values.max())
    low = low[low > int(values.argmax())]
    if not len(low) or not timesteps or (when := rate.steps[int(low[0])]) >= 0.9 * timesteps:
        return None
    return _problem(
        "rate_at_zero",
        f"The learning rate was {values[low[0]]:.2g} at {when:,} of {timesteps:,} steps: nothing was learned after.",
        rate,
        int(low[0]),
    )


# --- data ---


def never_drawn(gradient_steps: Curve, size: Curve | None) -> Problem | None:
    """Learning from replay has not begun, though rows were added for a long time."""
    values = _values(gradient_steps)
    if len(values) < FEWEST or values.max() > 0:
        return None
    held = f" though the replay holds {size.values[-1]:,.0f} rows" if size is not None else ""
    return _problem("replay_starved", f"No gradient step was taken yet{held}.", gradient_steps, 0)


def replay_starved(waits: Curve, seconds: Curve, updates: Curve | None) -> Problem | None:
    """A quarter of the time or more goes into waiting for rows to learn from."""
    if len(waits.values) < FEWEST:
        return None
    count = updates.values[-1] - updates.values[0] if updates is not None else len(waits.values) - 1
    each = (seconds.values[-1] - seconds.values[0]) / max(1.0, count)
    share = float(np.mean(waits.values)) / each if each > 0 else 0.0
    if share < 0.25:
        return None
    return _problem(
        "replay_starved",
        f"{min(share, 1.0):.0%} of the time went into waiting for rows from the replay service.",
        waits,
        0,
    )


def not_finite(curves: Curves, counts: Mapping[str, int], events: Sequence[Row]) -> Problem | None:
    """Batches were set aside because of numbers that are none."""
    steps = [int(event.get("timesteps_total", 0)) for event in events if event.get("event") == "quarantine"]
    for key, curve in curves.items():
        if key.startswith("train/") and key.endswith("quarantined"):
            steps += [step for step, value in zip(curve.steps, curve.values, strict=True) if value]
    many = max(counts.get("quarantine", 0), len(set(steps)))
    if not many:
        return None
    batches = "One batch was" if many == 1 else f"{many:,} batches were"
    return Problem(
        "not_finite",
        f"{batches} set aside in quarantine/ because of NaN or infinity.",
        min(steps, default=0),
        max(steps, default=0),
    )


def workers_lost(counts: Mapping[str, int], events: Sequence[Row]) -> Problem | None:
    """Workers died or did not answer, and others took their place."""
    died, stuck = counts.get("worker_died", 0), counts.get("worker_stuck", 0)
    if not died + stuck:
        return None
    told = [event for event in events if event.get("event") in ("worker_died", "worker_stuck")]
    steps = [int(event.get("timesteps_total", 0)) for event in told]
    phases = ", ".join(sorted({str(event.get("phase")) for event in told if event.get("phase")}))
    why = f" The last: {told[-1]['why']}" if told and told[-1].get("why") else ""
    return Problem(
        "workers_lost",
        f"{died} died and {stuck} were stuck" + (f" while {phases}" if phases else "") + f"; nothing was lost.{why}",
        min(steps, default=0),
        max(steps, default=0),
    )


# --- helpers ---


def _learners(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names of the policies that learn, each with its algorithm's settings."""
    for name, policy in (config.get("policies") or {"main": {"kind": "learning"}}).items():
        if policy.get("kind") == "learning":
            yield name, policy.get("algo") or config.get("algo") or {}


def _finite(curve: Curve) -> Curve:
    kept = [(step, value) for step, value in zip(curve.steps, curve.values, strict=True) if math.isfinite(value)]
    return Curve([step for step, _ in kept], [value for _, value in kept])


def _values(curve: Curve) -> F64:
    return np.asarray(curve.values, np.float64)


def _later(curve: Curve) -> F64:
    """The later half of a curve; empty if it is too short to say anything."""
    values = _values(curve)
    return values[len(values) // 2 :] if len(values) >= FEWEST else values[:0]


def _problem(name: str, found: str, curve: Curve, since: int | None = None) -> Problem:
    """A problem that a curve shows from an index on, or in its later half."""
    first = len(curve.steps) // 2 if since is None else since
    return Problem(name, found, int(curve.steps[first]), int(curve.steps[-1]))


def _last(curve: Curve | None) -> float:
    return curve.values[-1] if curve is not None else -math.inf
