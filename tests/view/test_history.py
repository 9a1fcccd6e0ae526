"""Curves of short files hold every report; those of long ones a bounded, even sample that follows the file."""

import json
import math
from itertools import pairwise

import pytest

from slipstream.view import history as module
from slipstream.view.history import POINTS, Curve, History, smoothed, smoothed_at, window


def write(path, steps, mode="w"):
    with path.open(mode) as file:
        for step in steps:
            row = {"timesteps_total": step, "env/return_mean": step * 0.5, "text": "no curve"}
            if step % 10 == 0:
                row["eval/return_mean"] = float(step)
            file.write(json.dumps(row) + "\n")


def test_a_short_file_gives_every_value(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 31))
    history = History(path)
    assert history.refresh()
    assert history.curves["env/return_mean"].steps == list(range(1, 31))
    assert history.curves["env/return_mean"].values == [step * 0.5 for step in range(1, 31)]
    assert history.curves["eval/return_mean"].steps == [10, 20, 30]
    assert set(history.curves) == {"env/return_mean", "eval/return_mean"}
    assert history.last["timesteps_total"] == 30
    assert not history.refresh()


@pytest.fixture
def long_file(tmp_path, monkeypatch):
    """A file that counts as long: 20,000 reports."""
    monkeypatch.setattr(module, "WHOLE_BYTES", 20_000)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 300)
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 20_001))
    return path


def test_a_long_file_gives_an_even_sample_with_both_ends_and_is_then_followed(long_file):
    history = History(long_file)
    steps = history.curves["env/return_mean"].steps
    assert steps[0] == 1
    assert steps[-1] == 20_000
    assert steps == sorted(set(steps))  # in order, and none twice
    assert 256 <= len(steps) <= 2 * POINTS
    assert max(b - a for a, b in pairwise(steps)) < 200
    assert history.curves["env/return_mean"].values == [step * 0.5 for step in steps]
    write(long_file, range(20_001, 20_006), "a")
    assert history.refresh()
    assert history.last["timesteps_total"] == 20_005


def test_all_of_a_long_file_is_never_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for step in range(20_000):
            file.write(json.dumps({"timesteps_total": step, "text": "x" * 1000}) + "\n")
    before = _read_bytes()
    history = History(path)
    assert _read_bytes() - before < 0.4 * path.stat().st_size
    assert history.last["timesteps_total"] == 19_999


def _read_bytes():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def test_a_run_that_went_back_to_a_checkpoint_is_drawn_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 101))
    history = History(path)
    history.refresh()
    write(path, range(1, 51))
    write(path, range(60, 200, 10), "a")
    assert history.refresh()
    assert history.curves["env/return_mean"].steps == [*range(1, 51), *range(60, 200, 10)]


def test_what_cannot_be_read_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"timesteps_total": 1, "a": 1}\nnonsense\n[1]\n{"a": 2}\n\xff\xfe\n{"timesteps_total": 2, "a": 3}\n{"times'
    )
    history = History(path)
    history.refresh()
    assert (history.curves["a"].steps, history.curves["a"].values) == ([1, 2], [1.0, 3.0])
    assert History(tmp_path / "none").curves == {}


def test_a_curve_never_has_more_than_twice_its_points_and_keeps_them_even():
    curve = Curve()
    for step in range(100_000):
        curve.add(step, float(step))
    assert POINTS <= len(curve.steps) < 2 * POINTS
    assert len({b - a for a, b in pairwise(curve.steps)}) == 1
    assert curve.values == [float(step) for step in curve.steps]


@pytest.mark.parametrize(("low", "high"), [(1, 10), (500, 700), (19_990, 30_000), (0, 0), (7, 7)])
def test_a_window_holds_just_the_reports_between_two_steps(long_file, low, high):
    curves = window(long_file, low, high)
    expected = [step for step in range(1, 20_001) if low <= step <= high]
    assert (curves["env/return_mean"].steps if curves else []) == expected


def test_smoothing_is_a_mean_that_forgets_and_does_not_begin_at_zero():
    curve = Curve([1, 2, 3, 4], [4.0, 8.0, float("nan"), 2.0])
    by_hand = [4.0, (0.5 * 4 + 8) / 1.5, (0.5 * 4 + 8) / 1.5, (0.25 * 4 + 0.5 * 8 + 2) / 1.75]
    assert smoothed(curve, 0.5) == pytest.approx(by_hand)


def test_a_point_is_smoothed_the_same_however_much_of_the_curve_is_seen():
    curve = Curve(list(range(0, 1000, 10)), [math.sin(k) for k in range(100)])
    whole = dict(zip(curve.steps, smoothed(curve, 0.9), strict=True))
    for steps in ([500, 510, 520], [990], [0, 990]):
        assert smoothed_at(curve, 0.9, steps) == pytest.approx([whole[step] for step in steps])
    assert smoothed_at(curve, 0.9, [505])[0] == pytest.approx((whole[500] + whole[510]) / 2)


def test_a_wide_window_of_a_long_file_is_a_sample(long_file):
    steps = window(long_file, 5_000, 15_000)["env/return_mean"].steps
    assert steps[0] == 5_000
    assert steps[-1] == 15_000
    assert 256 <= len(steps) <= 2 * POINTS
