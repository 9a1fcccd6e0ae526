"""Curves of short files hold every report; those of long ones a bounded, even sample that follows the file."""

import json
import math
from itertools import pairwise

import pytest
from made_runs import make_run

from slipstream.data.run_folder import EVENTS_FILE, METRICS_FILE
from slipstream.view import history as module
from slipstream.view.history import (
    POINTS,
    Curve,
    History,
    read_evaluations,
    read_events,
    read_reports,
    smoothed,
    smoothed_at,
    window,
)


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


def test_only_reports_with_the_wanted_keys_are_kept_and_only_those_keys(tmp_path):
    rows = [{"timesteps_total": k, "env/x": k, **({"eval/a": k} if k % 10 == 0 else {})} for k in range(1, 101)]
    run = make_run(tmp_path / "run", rows=rows)
    assert read_reports(run, "eval/") == [{"timesteps_total": k, "eval/a": k} for k in range(10, 101, 10)]


def test_lines_that_are_no_reports_are_passed_over(tmp_path):
    run = make_run(tmp_path / "run", [1.0, 2.0])
    with (run / METRICS_FILE).open("a") as file:
        file.write('{"eval/return_mean": 3}\n["eval/"]\n{"timesteps_total":300,"eval/return_mean":null}\n')
        file.write('{"timesteps_total":300,"eval/return_mean":"x"}\n{"timesteps_total":300,"eval/return_mean":4')
    assert [row["eval/return_mean"] for row in read_reports(run, "eval/")] == [1.0, 2.0]
    assert read_reports(tmp_path / "none", "eval/") == []


def test_of_a_step_that_was_lived_again_the_later_report_counts(tmp_path):
    rows = [{"timesteps_total": s, "eval/a": v} for s, v in ((1, 10), (2, 20), (3, 30), (2, 21), (3, 31))]
    found = read_reports(make_run(tmp_path / "run", rows=rows), "eval/")
    assert [(row["timesteps_total"], row["eval/a"]) for row in found] == [(1, 10), (2, 21), (3, 31)]


def test_of_very_many_reports_an_even_part_is_kept_and_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_REPORTS", 50)
    run = make_run(tmp_path / "run", [float(k) for k in range(1, 1000)], every=1)
    steps = [row["timesteps_total"] for row in read_reports(run, "eval/")]
    assert len(steps) <= 101
    assert steps[0] == 1
    assert steps[-1] == 999
    gaps = {b - a for a, b in pairwise(steps[:-1])}
    assert len(gaps) == 1


def test_the_evaluation_that_ends_a_run_is_in_its_event(tmp_path):
    end = {"event": "finished", "timesteps_total": 250, "reason": "done", "eval/return_mean": 3.0}
    assert [r["eval/return_mean"] for r in read_evaluations(make_run(tmp_path / "a", [1.0, 2.0], events=[end]))] == [
        1,
        2,
        3,
    ]
    again = end | {"timesteps_total": 200}  # told twice: in the report, and at the end
    assert [r["eval/return_mean"] for r in read_evaluations(make_run(tmp_path / "b", [1.0, 2.0], events=[again]))] == [
        1,
        2,
    ]


def test_events_are_counted_by_kind_and_the_newest_are_kept_but_not_ends_of_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_EVENTS", 5)
    run = make_run(tmp_path / "run")
    kinds = ["episode_end"] * 50 + ["worker_died"] * 23 + ["phase"]
    lines = [json.dumps({"event": e, "timesteps_total": k}, separators=(",", ":")) for k, e in enumerate(kinds)]
    (run / EVENTS_FILE).write_text("\n".join(lines) + "\n")
    events = read_events(run)
    assert events.counts == {"worker_died": 23, "phase": 1}
    assert [e["timesteps_total"] for e in events.of("phase", "worker_died")] == [68, 69, 70, 71, 72, 73]
