"""The kinds of problems that a report warns of, each with what to try; and how a judgement confirms or denies them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from slipstream.stats.intervals import Interval
from slipstream.view.history import Curve
from slipstream.view.run import Judged

SOLVED = 0.9  # share of clean or successful episodes from which on a policy need not improve
EXPLORE_MORE = (
    "Explore more (algo.entropy_coef, algo.init_log_std), make penalties smaller than the reward of success, or begin "
    "with an easier scenario or a curriculum."
)


class ProblemKind(NamedTuple):
    """What problems of one name have in common."""

    title: str
    tries: str


KINDS = {
    "negative_plateau": ProblemKind(
        "plateau at a negative return",
        "Compare with the scripts' rows (slipstream eval SCENARIO): a policy that does nothing may earn the same. "
        + EXPLORE_MORE,
    ),
    "oscillation": ProblemKind(
        "the return swings up and down",
        "Updates are too large, or based on too few episodes: try a smaller algo.learning_rate, fewer algo.epochs, "
        "more collect.num_worlds, algo.ema_decay for PPO. A larger evaluate.evaluation_duration shows whether only "
        "the evaluation swings. The best checkpoint is kept in any case.",
    ),
    "streak_at_zero": ProblemKind(
        "no streak of clean episodes",
        "Look at what spoils episodes (the eval/ figures, the replays): conflicts call for larger penalties, "
        "agents that never arrive for more reward on arrival or a longer world.max_episode_steps. If even the scripts "
        "are never clean, no policy may be.",
    ),
    "entropy_collapsed": ProblemKind(
        "the entropy collapsed",
        "It stopped exploring before it had learned: try a larger algo.entropy_coef (ten times), a smaller "
        "algo.learning_rate, or fewer algo.epochs.",
    ),
    "high_kl": ProblemKind(
        "KL far above its target",
        "Updates are too large for their data: try a smaller algo.learning_rate, fewer algo.epochs, a larger "
        "algo.minibatch_size, or algo.kl_stop.",
    ),
    "blind_critic": ProblemKind(
        "the critic explains nothing",
        "Try a longer collect.rollout_length, algo.normalize_value, a larger algo.value_coef or network; check that "
        "the observation contains what the return depends on. If all episodes earn the same, nothing is left "
        "to explain.",
    ),
    "not_finite": ProblemKind(
        "NaN or infinity in a batch",
        "Try a tenth of the learning rate. Look into quarantine/ for the reward or observation that caused it, and "
        "check your own environment with slipstream check-world.",
    ),
    "rate_at_zero": ProblemKind(
        "the learning rate reached 0 early",
        "Let its schedule end with the budget (algo.learning_rate), or stop the run where the schedule ends.",
    ),
    "evaluation_below": ProblemKind(
        "evaluation far below training",
        "Without exploration the policy does worse. Either it relies on noise (try a smaller "
        "algo.entropy_coef or algo.init_log_std), or the weights swing (algo.ema_decay for PPO), or evaluation has "
        "situations that training never has.",
    ),
    "replay_starved": ProblemKind(
        "the replay is starved",
        "Learning begins after algo.learning_starts steps: lower it if the budget is small. A learner that waits "
        "for a replay service needs more collectors (collect.workers, or runs that share the service), a smaller "
        "algo.training_intensity, or more algo.replay.sharing.limit.tolerance.",
    ),
    "workers_lost": ProblemKind(
        "workers died or were stuck",
        "A worker that the system kills needs more memory (fewer collect.workers or collect.num_worlds); one that is "
        "stuck in a slow world needs a larger collect.deadline_s; one that dies in your own environment has its "
        "traceback in training_log.txt.",
    ),
    "crashed": ProblemKind(
        "the run crashed",
        "training_log.txt has the end of the traceback. Fix what it names: your own environment (slipstream "
        "check-world), a setting, memory or disk. Then slipstream resume RUN continues from the last checkpoint.",
    ),
    "end_failed": ProblemKind(
        "something at the end could not be written",
        "The last checkpoint is whole, and training_log.txt has the end of the traceback. Fix what it names; then "
        "slipstream resume RUN writes the end again, and slipstream eval RUN judges the policy.",
    ),
}


@dataclass(frozen=True)
class Problem:
    """Something in a run that looks wrong."""

    name: str  # a key of KINDS
    found: str
    first: int  # steps between which it was seen
    last: int
    tries: str = ""  # what to try in this case; "": as its kind says


# --- checking problems with a judgement ---


def check_with_judgement(
    problems: Sequence[Problem], curves: Mapping[str, Curve], judged: Sequence[Judged]
) -> list[Problem]:
    """Drop the problems that a run's judgement denies, and add its figures to the others.

    Args:
        problems: Found in the curves.
        curves: The run's metrics.
        judged: The run's policy over fresh episodes, and then the scripts; () where it was not judged.
    """
    checked = [_checked(problem, curves, judged) if judged else problem for problem in problems]
    return [problem for problem in checked if problem is not None]


def _checked(problem: Problem, curves: Mapping[str, Curve], judged: Sequence[Judged]) -> Problem | None:
    if problem.name == "negative_plateau":
        return beside_scripts(problem, judged)
    if problem.name == "streak_at_zero":
        return clean_beside_scripts(problem, judged)
    trained = curves.get("env/return_mean")
    denied = (problem.name == "entropy_collapsed" and _is_solved(judged)) or (
        problem.name == "evaluation_below" and trained is not None and _earns(judged, trained, problem.first)
    )
    return None if denied else problem


def beside_scripts(plateau: Problem, judged: Sequence[Judged]) -> Problem | None:
    """A plateau with what scripts earn; None if the policy earns more than 0, or more than every script."""
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


def clean_beside_scripts(streak: Problem, judged: Sequence[Judged]) -> Problem | None:
    """No streak, with how often scripts are clean; None if the policy's fresh episodes were clean all the same."""
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
    """Whether fresh episodes earned what training did lately: then the evaluations before were unlucky."""
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
