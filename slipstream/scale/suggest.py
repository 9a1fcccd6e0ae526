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

from slipstream.config.sweep import Choice, Integer, LogUniform, Parameter, Pbt, Tpe
from slipstream.errors import SlipstreamError

Values = dict[str, Any]  # of the parameters, by dotted path
Parameters = Mapping[str, Parameter]
Score = float | None  # None: the trial failed

STRETCH = (0.8, 1.25)  # what a number is multiplied by where it is changed a little


def points(parameter: Parameter) -> list[Any]:
    """The values a parameter can have, in order; none where they cannot be counted."""
    if isinstance(parameter, Choice):
        return [_plain(value) for value in parameter.values]
    if parameter.steps is not None:
        return [_between(parameter, index / (parameter.steps - 1)) for index in range(parameter.steps)]
    return list(range(parameter.low, parameter.high + 1)) if isinstance(parameter, Integer) else []


def value_at(parameter: Parameter, share: float) -> Any:
    """The value a share of the way through a parameter's range, 0 <= share < 1."""
    counted = points(parameter)
    return counted[int(share * len(counted))] if counted else _between(parameter, share)


def _between(parameter: Parameter, share: float) -> Any:
    assert not isinstance(parameter, Choice)
    low, high = parameter.low, parameter.high
    if isinstance(parameter, Integer):
        return round(low + share * (high - low))
    value = low * (high / low) ** share if isinstance(parameter, LogUniform) else low + share * (high - low)
    return _readable(parameter, value)


def _readable(parameter: Parameter, value: float) -> float:
    """A number with no more digits than a person would type again, within the parameter's range."""
    assert not isinstance(parameter, Choice)
    return min(parameter.high, max(parameter.low, float(f"{value:.6g}")))


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def probes(parameter: Parameter) -> list[Any]:
    """Values that show whether a key can take what a parameter has: all choices, or the ends and one between."""
    if isinstance(parameter, Choice):
        return points(parameter)
    return [_between(parameter, 0.0), _between(parameter, 1.0), value_at(parameter, 0.37)]


# --- grid and random ---


def grid(parameters: Parameters) -> list[Values]:
    """Every combination; the last parameter changes fastest."""
    return [dict(zip(parameters, found, strict=True)) for found in itertools.product(*map(points, parameters.values()))]


def drawn(parameters: Parameters, seed: int, number: int) -> Values:
    """The values of a trial that looks at nobody else."""
    shares = np.random.default_rng([seed, number]).random(len(parameters))
    return {path: value_at(own, share) for (path, own), share in zip(parameters.items(), shares.tolist(), strict=True)}


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


def _is_counted(parameter: Parameter) -> bool:
    return isinstance(parameter, Choice) or parameter.steps is not None


def _place(parameter: Parameter, value: Any) -> Any:
    return points(parameter).index(value) if _is_counted(parameter) else value


def _value(parameter: Parameter, place: Any) -> Any:
    if _is_counted(parameter):
        return points(parameter)[place]
    return place if isinstance(parameter, Integer) else _readable(parameter, place)


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
        counted = points(parameter)
        if anew:
            changed[path] = value_at(parameter, share)
        elif counted:
            index = counted.index(values[path]) + (1 if up else -1)
            changed[path] = counted[min(len(counted) - 1, max(0, index))]
        else:
            changed[path] = _readable(parameter, values[path] * STRETCH[up])
    return changed
