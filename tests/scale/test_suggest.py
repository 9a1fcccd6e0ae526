"""Values of trials: inside their bounds, the same for the same results, and better where results say how."""

import math

import numpy as np
import pytest

from slipstream.config.sweep import Choice, Integer, LogUniform, Pbt, Tpe, Uniform
from slipstream.scale.suggest import drawn, exploited, grid, promoted, ranked, suggested

PARAMETERS = {
    "rate": LogUniform(low=1e-5, high=1e-1),
    "share": Uniform(low=0.2, high=0.8),
    "layers": Choice(values=((8,), (16, 16))),
    "count": Integer(low=3, high=9),
    "stepped": LogUniform(low=1e-4, high=1e-2, steps=3),
}


def test_points_are_evenly_apart_and_hold_both_ends():
    assert Uniform(low=0, high=1, steps=5).points() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert LogUniform(low=1e-4, high=1e-2, steps=3).points() == [1e-4, 1e-3, 1e-2]
    assert Integer(low=3, high=9, steps=3).points() == [3, 6, 9]
    assert Integer(low=3, high=5).points() == [3, 4, 5]
    assert Uniform(low=0, high=1).points() == []


def test_a_grid_has_every_combination_once():
    found = grid({"a": Choice(values=(1, 2)), "b": Integer(low=0, high=2)})
    assert found == [{"a": a, "b": b} for a in (1, 2) for b in (0, 1, 2)]


def test_drawn_values_are_spread_as_their_kind_says():
    many = [drawn(PARAMETERS, seed=7, number=number) for number in range(4000)]
    rates = np.log10([one["rate"] for one in many])
    assert rates.min() >= -5
    assert rates.max() <= -1
    # Uniform on [-5, -1]: mean -3, deviation 4 / sqrt(12); five standard errors.
    assert abs(rates.mean() + 3) < 5 * 4 / math.sqrt(12 * 4000)
    counts = np.bincount([one["count"] for one in many], minlength=10)[3:]
    assert (np.abs(counts - 4000 / 7) < 5 * math.sqrt(4000 / 7)).all()
    assert {one["stepped"] for one in many} == {1e-4, 1e-3, 1e-2}
    assert {tuple(one["layers"]) for one in many} == {(8,), (16, 16)}


def test_a_trial_has_the_same_values_whoever_asks_and_no_two_the_same():
    first = [drawn(PARAMETERS, 7, number) for number in range(20)]
    assert [drawn(PARAMETERS, 7, number) for number in reversed(range(20))] == first[::-1]
    assert len({one["share"] for one in first}) == 20
    assert drawn(PARAMETERS, 8, 0) != first[0]


def test_the_last_share_is_still_inside():
    just_below_one = float(np.nextafter(1.0, 0.0))
    assert PARAMETERS["count"].value_at(just_below_one) == 9
    assert PARAMETERS["layers"].value_at(just_below_one) == [16, 16]
    assert PARAMETERS["rate"].value_at(just_below_one) == 1e-1


def scored(values):
    """Best at a rate of 1e-3, with layers 16, 16."""
    return -abs(math.log10(values["rate"]) + 3) - (values["layers"] == [8])


def tpe(trials, mode="max", seed=1):
    method = Tpe(trials=trials, startup=8, batch=4)
    told = []
    while len(told) < trials:
        batch = suggested(PARAMETERS, method, seed, mode, told)
        told += [(values, scored(values) if mode == "max" else -scored(values)) for values in batch]
    return told


@pytest.mark.parametrize("mode", ["max", "min"])
def test_tpe_looks_where_results_are_good(mode):
    found = [abs(score) for _, score in tpe(48, mode)]
    assert np.mean(found[-16:]) < 0.6 * np.mean(found[:8])


def test_tpe_suggests_the_same_for_the_same_results_and_another_for_others():
    told = tpe(12)
    method = Tpe(trials=40, startup=8, batch=4)
    batch = suggested(PARAMETERS, method, 1, "max", told)
    assert batch == suggested(PARAMETERS, method, 1, "max", list(told))
    assert batch != suggested(PARAMETERS, method, 2, "max", told)
    assert batch != suggested(PARAMETERS, method, 1, "max", [(values, -score) for values, score in told])
    assert len(suggested(PARAMETERS, Tpe(trials=14, batch=4), 1, "max", told)) == 2
    assert all(is_inside(path, value) for values in batch for path, value in values.items())


def is_inside(path, value):
    parameter = PARAMETERS[path]
    counted = parameter.points()
    return value in counted if counted else parameter.low <= value <= parameter.high


def test_a_failed_trial_is_no_result_for_tpe():
    told = tpe(12)
    method = Tpe(trials=40, startup=8, batch=2)
    with_failure = [*told, ({**told[0][0], "rate": 0.05}, None)]
    assert len(suggested(PARAMETERS, method, 1, "max", with_failure)) == 2


def test_the_best_one_in_eta_goes_on_and_equals_by_their_number():
    scores = {0: 1.0, 1: None, 2: 3.0, 3: 3.0, 4: 2.0, 5: math.nan}
    assert ranked(scores, "max") == [2, 3, 4, 0]
    assert ranked(scores, "min") == [0, 4, 2, 3]
    assert promoted(scores, 3, "max") == [2, 3]
    assert promoted(scores, 2, "min") == [0, 2, 4]
    assert promoted({0: None, 1: 5.0}, 4, "max") == [1]
    assert promoted({0: None}, 4, "max") == []


def test_the_worst_of_a_population_go_on_from_the_best_with_values_near_theirs():
    parameters = {"rate": LogUniform(low=1e-5, high=1e-1), "layers": Choice(values=((8,), (16,), (32,)))}
    method = Pbt(population=8, interval=10, quantile=0.25, resample=0)
    told = {n: ({"rate": 1e-3 * (n + 1), "layers": [16]}, float(n)) for n in range(8)}
    told[3] = (told[3][0], None)
    changes = exploited(parameters, method, 0, 1, "max", told)
    assert set(changes) == {0, 1, 3}
    for parent, values in changes.values():
        assert parent in (6, 7)
        assert round(values["rate"] / told[parent][0]["rate"], 4) in (0.8, 1.25)
        assert values["layers"] in ([8], [32])
    assert changes == exploited(parameters, method, 0, 1, "max", told)
    assert changes != exploited(parameters, method, 0, 2, "max", told)
    assert exploited(parameters, method, 0, 1, "max", dict.fromkeys(range(4), ({}, None))) == {}
