"""Which values trials get: pure functions of the sweep's seed, a trial's number and the results that are known.

Nothing here knows when a result came in. A grid and random draws do not look at results at all; TPE is told of whole
batches, by number; rungs and generations are closed before anybody goes on. So a sweep that was stopped, killed or run
on another number of processes chooses the same values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.config.sweep import Choice, Grid, Integer, LogUniform, Parameter, Pbt, Sweep, Tpe
from slipstream.errors import SlipstreamError

Values = dict[str, Any]  # of the parameters, by dotted path
Parameters = Mapping[str, Parameter]
Score = float | None  # None: the trial failed

STRETCH = (0.8, 1.25)  # what a number is multiplied by where it is changed a little


# --- grid and random ---


def grid(parameters: Parameters) -> list[Values]:
    """Every combination; the last parameter changes fastest."""
    return [
        dict(zip(parameters, found, strict=True))
        for found in itertools.product(*(own.points() for own in parameters.values()))
    ]


def first_values(sweep: Sweep) -> list[Values]:
    """Values of the trials that a sweep starts with, whatever the results; none with TPE, which looks at results."""
    method = sweep.method
    if isinstance(method, Tpe):
        return []
    if isinstance(method, Grid):
        return grid(sweep.parameters)
    many = method.population if isinstance(method, Pbt) else method.trials
    return [drawn(sweep.parameters, sweep.seed, number) for number in range(many)]


def drawn(parameters: Parameters, seed: int, number: int) -> Values:
    """The values of a trial that looks at nobody else."""
    shares = np.random.default_rng([seed, number]).random(len(parameters))
    return {path: own.value_at(share) for (path, own), share in zip(parameters.items(), shares.tolist(), strict=True)}


# --- TPE ---


def suggested(
    parameters: Parameters, method: Tpe, seed: int, mode: str, told: Sequence[tuple[Values, Score]]
) -> list[Values]:
    """The next batch of trials, by Optuna, which is told of all before it in the order of their numbers.

    A study is made anew for every batch, with a seed of its own, so that nothing is remembered but the results.
    """
    try:
        import optuna
    except ModuleNotFoundError:
        raise SlipstreamError(
            "method tpe needs Optuna, which is not installed: pip install 'slipstream[sweep]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    state = int(np.random.SeedSequence([seed, len(told)]).generate_state(1)[0])
    sampler = optuna.samplers.TPESampler(seed=state, n_startup_trials=method.startup)
    study = optuna.create_study(sampler=sampler, direction="maximize" if mode == "max" else "minimize")
    axes = {path: _axis(optuna.distributions, parameter) for path, parameter in parameters.items()}
    for values, score in told:
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.FAIL if score is None else optuna.trial.TrialState.COMPLETE,
                params={path: _place(parameter, values[path]) for path, parameter in parameters.items()},
                distributions=axes,
                value=score,
            )
        )
    asked = [study.ask(axes).params for _ in range(min(method.batch, method.trials - len(told)))]
    return [{path: _value(parameter, found[path]) for path, parameter in parameters.items()} for found in asked]


def _axis(distributions: Any, parameter: Parameter) -> Any:
    """What Optuna looks along: where values can be counted, their index."""
    if isinstance(parameter, Choice):
        return distributions.CategoricalDistribution(range(len(parameter.values)))
    if parameter.steps is not None:
        return distributions.IntDistribution(0, parameter.steps - 1)
    if isinstance(parameter, Integer):
        return distributions.IntDistribution(parameter.low, parameter.high)
    return distributions.FloatDistribution(parameter.low, parameter.high, log=isinstance(parameter, LogUniform))


def _place(parameter: Parameter, value: Any) -> Any:
    is_number = not isinstance(parameter, Choice) and parameter.steps is None
    return value if is_number else parameter.points().index(value)


def _value(parameter: Parameter, place: Any) -> Any:
    if isinstance(parameter, Choice) or parameter.steps is not None:
        return parameter.points()[place]
    return place if isinstance(parameter, Integer) else parameter.readable(place)


# --- rungs and generations ---


def ranked(scores: Mapping[int, Score], mode: str) -> list[int]:
    """Trials from the best to the worst; of equals the one that was first, and the failed ones not at all."""
    sign = -1.0 if mode == "max" else 1.0
    known = [(sign * score, trial) for trial, score in scores.items() if score is not None and math.isfinite(score)]
    return [trial for _, trial in sorted(known)]


def promoted(scores: Mapping[int, Score], eta: int, mode: str) -> list[int]:
    """Which trials of a rung go on: the best one in `eta` of all that were on it, and at least one."""
    return sorted(ranked(scores, mode)[: max(1, len(scores) // eta)])


def exploited(
    parameters: Parameters, method: Pbt, seed: int, generation: int, mode: str, told: Mapping[int, tuple[Values, Score]]
) -> dict[int, tuple[int, Values]]:
    """Which trials go on from whom in the next generation, and with which values; failed ones are among the worst."""
    order = ranked({trial: score for trial, (_, score) in told.items()}, mode)
    many = min(max(1, int(method.quantile * len(told))), len(order) // 2)
    failed = [trial for trial in told if trial not in order]
    if not order:
        return {}
    best, worst = order[: max(1, many)], sorted({*order[len(order) - many :], *failed})
    changes = {}
    for trial in worst:
        rng = np.random.default_rng([seed, generation, trial])
        parent = best[int(rng.integers(len(best)))]
        changes[trial] = (parent, _perturbed(parameters, method, told[parent][0], rng))
    return changes


def _perturbed(parameters: Parameters, method: Pbt, values: Values, rng: np.random.Generator) -> Values:
    """Values drawn anew with some chance, or else changed a little: numbers stretched, listed ones to a neighbour."""
    changed = {}
    for path, parameter in parameters.items():
        anew, share, up = rng.random() < method.resample, rng.random(), bool(rng.integers(2))
        counted = parameter.points()
        if anew:
            changed[path] = parameter.value_at(share)
        elif counted:
            index = counted.index(values[path]) + (1 if up else -1)
            changed[path] = counted[min(len(counted) - 1, max(0, index))]
        else:
            assert not isinstance(parameter, Choice)
            changed[path] = parameter.readable(values[path] * STRETCH[up])
    return changed
