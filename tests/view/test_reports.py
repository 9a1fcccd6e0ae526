"""What is wanted is found in files of any length, and what is none of ours is passed over."""

import json
from itertools import pairwise

from made_runs import make_run

from slipstream.run.folder import EVENTS_FILE, METRICS_FILE
from slipstream.view import reports
from slipstream.view.reports import read_evaluations, read_events, read_reports


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
    monkeypatch.setattr(reports, "MOST_REPORTS", 50)
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
    monkeypatch.setattr(reports, "MOST_EVENTS", 5)
    run = make_run(tmp_path / "run")
    kinds = ["episode_end"] * 50 + ["worker_died"] * 23 + ["phase"]
    lines = [json.dumps({"event": e, "timesteps_total": k}, separators=(",", ":")) for k, e in enumerate(kinds)]
    (run / EVENTS_FILE).write_text("\n".join(lines) + "\n")
    events = read_events(run)
    assert events.counts == {"worker_died": 23, "phase": 1}
    assert [e["timesteps_total"] for e in events.of("phase", "worker_died")] == [68, 69, 70, 71, 72, 73]
