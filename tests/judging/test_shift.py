"""Shift tests: the same episodes everywhere, changes episode by episode, and survival as it is defined."""

import math

import numpy as np
import pytest
from learning import TINY, scenario_of

from slipstream.config.load import load, override
from slipstream.judging import shift as study_of
from slipstream.judging.judge import judge
from slipstream.judging.shift import UNSHIFTED, Study, each, grouped, paired_change, run, survival, unshifted
from slipstream.run.saved_cast import load_cast
from slipstream.run.session import train
from slipstream.stats.intervals import mean_interval, wilson
from slipstream.worlds.tools import Shift
from slipstream.worlds.world import tools_of


def quiet(done, total):
    """Nobody wants to know."""


def of(scenario, chosen, scripts=("mvp", "noop"), episodes=6, seeds=(5,)):
    return run(scenario, None, chosen, (), scripts, episodes, seeds, quiet)


@pytest.fixture(scope="module")
def head_on():
    return load("head_on")


def test_a_shift_that_changes_nothing_changes_no_episode(head_on):
    nothing = Shift("nothing", "speed", "micro", "all", 0.0, "kt", head_on.world)
    study = of(head_on, [nothing])
    for policy in ("mvp", "noop"):
        np.testing.assert_array_equal(study.values[policy, "nothing"], study.values[policy, UNSHIFTED])
    change = each(study, ["min_separation_nm"])[0].changes["min_separation_nm"]
    assert change == (0.0, 0.0, 0.0)


def test_rows_are_the_episodes_that_eval_plays(head_on):
    study = of(head_on, [], episodes=5, seeds=(5, 9))
    judged = {row.policy: row for row in judge(head_on, None, 5, [5, 9]).rows}
    assert study.episodes == 10
    for effect in unshifted(study, ["clean", "min_separation_nm", "return"]):
        assert dict(effect.figures) == {name: judged[effect.policy].figures[name] for name in effect.figures}
        assert all(math.isnan(change.estimate) for change in effect.changes.values())


def test_it_is_said_how_many_episodes_differ(head_on):
    assert of(head_on, []).distinct == 6
    still = {f"world.{name}": 0.0 for name in ("position_jitter_nm", "heading_jitter_deg", "speed_jitter_kt")}
    assert of(override(head_on, still), []).distinct == 1


def made_up(values):
    """A study of one policy, one figure and as many shifts as there are columns; the first column is unshifted."""
    table = np.asarray(values, np.float64)
    names = [f"s{k}" for k in range(1, table.shape[1])]
    made = [Shift(name, "speed", "micro", "A1", 1.0, "kt", None) for name in names]
    columns = dict(zip([UNSHIFTED, *names], table.T[:, :, None], strict=True))
    flags = ("x",) if set(np.unique(table)) <= {0.0, 1.0} else ()
    pairs = {("p", name): column for name, column in columns.items()}
    return Study("made", "probe", None, ("x",), flags, ("p",), tuple(made), (), len(table), len(table), pairs)


def test_changes_are_paired_and_an_episode_counts_once():
    rng = np.random.default_rng(0)
    start = rng.normal(10, 5, 40)  # episodes differ much more than shifts change them
    values = np.column_stack([start, start - 1 + rng.normal(0, 0.1, 40), start - 3 + rng.normal(0, 0.1, 40)])
    (together,) = grouped(made_up(values), ["x"])
    assert together.shifts == 2
    assert together.changes["x"] == mean_interval(values[:, 1:].mean(1) - values[:, 0])
    assert together.figures["x"] == mean_interval(values[:, 1:].mean(1))
    paired, apart = together.changes["x"], together.figures["x"]
    assert paired.high - paired.low < 0.1 * (apart.high - apart.low)


def test_a_share_over_several_shifts_is_as_uncertain_as_its_episodes():
    values = np.array([[1, 1, 0, 0]] * 10 + [[1, 1, 1, 1]] * 10, np.float64)
    (together,) = grouped(made_up(values), ["x"])
    assert together.figures["x"] == pytest.approx(wilson(20 * 2 / 3, 20))


def test_where_every_episode_changed_alike_nothing_is_certain():
    ones, zeros = np.ones(30), np.zeros(30)
    same, lost = paired_change(ones, ones, flag=True), paired_change(ones, zeros, flag=True)
    bound = wilson(0, 30).high
    assert same == (0.0, -bound, bound)
    assert lost == (-1.0, -1.0, -1.0 + bound)
    some = zeros.copy()
    some[:3] = -1.0
    assert paired_change(ones, ones + some, flag=True) == mean_interval(some)


def test_episodes_without_the_figure_on_either_side_are_left_out():
    before, after = np.array([1.0, math.nan, 3.0, 4.0]), np.array([2.0, 2.0, math.nan, 5.0])
    assert paired_change(before, after).estimate == 1.0
    assert math.isnan(paired_change(before[:0], after[:0]).estimate)


def test_survival_is_the_share_of_episodes_at_least_that_good():
    values = np.random.default_rng(1).uniform(0, 10, (25, 4))
    curves = survival(made_up(values), "x", points=21)
    assert [curve.name for curve in curves] == [UNSHIFTED, "micro"]
    for curve, columns in zip(curves, (values[:, :1], values[:, 1:]), strict=True):
        for x, share, low, high in zip(curve.x, curve.share, curve.low, curve.high, strict=True):
            slow = sum(value >= x for row in columns for value in row) / columns.size
            assert share == pytest.approx(slow)
            assert (low, high) == pytest.approx(wilson(25 * slow, 25)[1:])
        assert curve.share[0] == 1.0
        assert (np.diff(curve.share) <= 0).all()


def test_ways_to_end_are_figures_too(head_on):
    chosen = [
        s
        for s in tools_of(head_on.world.kind).shifts(head_on.world, False).shifts
        if s.name in ("A1 heading +30 deg", "A1 heading -30 deg")
    ]
    study = of(head_on, chosen)
    lost = study.column("noop", [UNSHIFTED, *[s.name for s in chosen]], "lost_separation")
    near = study.column("noop", [UNSHIFTED, *[s.name for s in chosen]], "min_separation_nm") < 5.0
    np.testing.assert_array_equal(lost > 0, near)
    assert 0 < near.sum() < near.size  # turned away by 30 degrees, nobody meets


def test_every_model_is_played_on_every_scenario_and_refused_where_it_cannot_act(tmp_path):
    changes = {**TINY, "timesteps": 32, "algo.minibatch_size": 8, "evaluate.evaluation_duration": 1}
    runs = {name: train(scenario_of(name, changes), out=tmp_path / name).run for name in ("head_on", "probe_bandit")}
    models = {name: load_cast(path) for name, path in runs.items()}
    scenarios = {name: load(name) for name in ("head_on", "parallel")}
    places = study_of.matrix(models, scenarios, ["noop"], 4, [5], quiet)
    at = {(place.policy, place.scenario): place for place in places}
    assert len(places) == 6
    assert at["head_on", "head_on"].home
    assert not at["head_on", "parallel"].home
    assert at["head_on", "parallel"].figures["clean"].estimate >= 0.0
    assert "cannot act in airspace" in at["probe_bandit", "parallel"].reason
    assert not at["probe_bandit", "parallel"].figures
    alone = {row.policy: row for row in judge(load("parallel"), None, 4, 5).rows}
    assert at["noop", "parallel"].figures["clean"] == alone["noop"].figures["clean"]


def test_outcomes_are_counted_with_wilsons_interval(head_on):
    judgement = judge(head_on, None, 12)
    rows = {row.policy: row.outcomes for row in judgement.rows}
    assert {name: ended.episodes for name, ended in rows["noop"].items()} == {
        "clean": 0, "lost separation": 12, "not reached": 0,
    }  # fmt: skip
    assert rows["mvp"]["clean"].share == wilson(12, 12)
