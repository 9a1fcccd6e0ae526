"""`slipstream sweep`: every method, mistakes in files, trials that fail, and the same table after a kill."""

import csv
import itertools
import json
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from slipstream.cli.main import main
from slipstream.config.load import load, override
from slipstream.config.sweep import MetricConfig, dump_sweep, load_sweep
from slipstream.data.run_folder import newest_checkpoint, read_metadata
from slipstream.errors import SlipstreamError
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.scale import pool, sweep
from slipstream.scale.clients import score_of
from slipstream.scale.pool import ProcessPool, RunEnded, RunOrder
from slipstream.scale.results import draw, table
from slipstream.scale.sweep import read_state
from slipstream.scale.trial import work

FILE = """\
scenario: probe_target
overrides:
  timesteps: 128
  collect.num_worlds: 4
  collect.rollout_length: 8
  algo.minibatch_size: 16
  algo.epochs: 1
  evaluate.evaluation_interval: 1
  evaluate.evaluation_duration: 3
  log: {diagnostics: false, frames_every: null}
  checkpoint: {checkpoint_every: 64, best_min_improvement: 100}
parameters:
  algo.learning_rate: {kind: log_uniform, low: 1e-4, high: 1e-1, steps: 4}
  algo.hidden: {kind: choice, values: [[8], [16, 16]]}
method: {kind: grid}
"""


class Here:
    """A pool that works on one run after the other in this process, so that a reference costs no process."""

    def __init__(self, last_first=False):
        self.orders, self.done, self.last_first = [], [], last_first

    def submit(self, order, first=False):
        self.orders.insert(0 if first else len(self.orders), order)

    def poll(self):
        if not self.orders:
            return []
        order = self.orders.pop(-1 if self.last_first else 0)
        self.done.append((order.name, order.pause_at))
        try:
            work(order)
        except SlipstreamError as error:
            return [RunEnded(order, str(error))]
        return [RunEnded(order, None)]

    def running(self):
        return frozenset()

    def close(self):
        self.orders.clear()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(sweep, "LOOK_S", 0.01)


def written(tmp_path, text=FILE, **changes):
    """A sweep's file, with some of its lines changed."""
    for key, value in changes.items():
        lines = [f"{key}: {value}" if line.startswith(f"{key}:") else line for line in text.splitlines()]
        text = "\n".join(lines if any(line.startswith(f"{key}:") for line in lines) else [*lines, f"{key}: {value}"])
    path = tmp_path / "my.yaml"
    path.write_text(text + "\n")
    return path


def done_here(tmp_path, name="here", pool=None, **changes):
    """A sweep worked through in this process: its folder, what is known and its table."""
    read = load_sweep(written(tmp_path, **changes))
    task = sweep.begin(tmp_path / name, read.sweep, read.base)
    state = sweep.run(task, pool or Here(), 1, lambda now, names: None)
    return task, state, table(task, state)


# --- the must: killed and resumed, the same table ---


def test_a_sweep_of_eight_trials_killed_and_resumed_gives_the_same_table(tmp_path, monkeypatch, capsys, request):
    reference, state, rows = done_here(tmp_path)
    assert len(rows) == 8
    root = tmp_path / "killed"
    words = ["sweep", str(tmp_path / "my.yaml"), "--max-parallel", "2", "--root", str(root)]
    process = subprocess.Popen([sys.executable, "-m", "slipstream.cli.main", *words], stdout=subprocess.DEVNULL)
    request.addfinalizer(process.kill)
    while len(read_state(root).results) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    others = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(others, timeout=30)
    assert not alive
    assert 3 <= len(read_state(root).results) < 8
    assert not (root / "table.csv").exists()

    monkeypatch.setattr(pool, "ProcessPool", lambda *_: Here())  # where it goes on does not matter either
    assert main(["sweep", str(root)]) == 0
    assert "8 of 8 trials are over" in capsys.readouterr().out
    assert read_state(root) == state
    found = sweep.reopen(root)
    assert str(table(found, read_state(root))) == str(rows)  # as text: what is unknown is not equal to itself
    for trial in range(8):
        both = [metrics_hash(task.run(trial, 0) / "metrics.jsonl") for task in (reference, found)]
        assert both[0] == both[1]

    with open(root / "table.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["trial"]) for line in lines] == [row.trial for row in rows]
    assert [float(line["score"]) for line in lines] == [row.score.estimate for row in rows]
    named = json.loads((root / "table.json").read_text())["trials"]
    assert [one["algo.hidden"] for one in named] == [row.values["algo.hidden"] for row in rows]
    assert (root / "sweep.png").read_bytes()[:4] == b"\x89PNG"

    best = root / "best.yaml"
    assert load(best).algo.learning_rate == rows[0].values["algo.learning_rate"]
    assert f"Trial {rows[0].trial}, the best of 8" in load(best).description
    assert main(["train", str(best), "--out", str(tmp_path / "best"), "--models", str(tmp_path / "m")]) == 0
    own = reference.run(rows[0].trial, 0)
    assert metrics_hash(tmp_path / "best" / "metrics.jsonl") == metrics_hash(own / "metrics.jsonl")


def test_a_sweep_that_is_stopped_saves_every_run_and_one_that_cannot_begin_has_said_why(tmp_path, monkeypatch, capsys):
    """When it is told to stop, one trial of three has failed, one was killed and goes on, and one just works."""
    read = load_sweep(written(tmp_path, method="{kind: random, trials: 3}"), {"max_parallel": 2})
    base = override(read.base, {"timesteps": 1_000_000, "checkpoint.checkpoint_every": 256})
    task = sweep.begin(tmp_path / "s", read.sweep, base)
    (tmp_path / "s/trials/0000").mkdir()
    (tmp_path / "s/trials/0000/scenario.yaml").write_text("world: {kind: probe, task: target, horizom: 1}\n")
    killed: list[int] = []  # at which step
    real = ProcessPool.poll

    def poll(self):
        rows = [list(read_rows(path)) if (path := task.run(n, 0) / "metrics.jsonl").exists() else [] for n in (1, 2)]
        steps = [own[-1]["timesteps_total"] if own else 0 for own in rows]
        if not killed and steps[0] > 512:
            (victim,) = (child.process.pid for child in self._processes if "0001" in child.order.name)
            psutil.Process(victim).kill()
            killed.append(steps[0])
        elif killed and steps[0] > killed[0] + 512 and steps[1] > 0:
            signal.raise_signal(signal.SIGTERM)
        return real(self)

    monkeypatch.setattr(ProcessPool, "poll", poll)
    before = set(psutil.Process().children(recursive=True))
    assert main(["sweep", str(task.root)]) == 128 + signal.SIGTERM
    said = capsys.readouterr().out
    assert f"slipstream sweep {task.root}" in said
    assert "trial 0, seed 42, 0 steps: failed: " in said
    (failed,) = read_state(task.root).results
    assert "'horizon'" in failed.problem
    for trial in (1, 2):
        last = read_metadata(task.run(trial, 0))["sessions"][-1]
        assert last["outcome"] == "Ctrl+C"
        assert newest_checkpoint(task.run(trial, 0)) == f"checkpoint_{last['timesteps_at_end']}"
    assert len(read_metadata(task.run(1, 0))["sessions"]) == 2
    assert set(psutil.Process().children(recursive=True)) <= before  # of other tests


# --- the methods ---


def test_it_does_not_matter_in_which_order_runs_end(tmp_path):
    changes = {"method": "{kind: tpe, trials: 6, startup: 2, batch: 2}"}
    _, first, rows = done_here(tmp_path, "first", **changes)
    _, second, _ = done_here(tmp_path, "second", Here(last_first=True), **changes)
    assert sorted(first.results, key=str) == sorted(second.results, key=str)
    assert first.trials == second.trials
    assert [row.score.estimate for row in rows] == sorted((row.score.estimate for row in rows), reverse=True)


def test_seeds_are_given_as_for_federations_and_are_the_same_in_all_trials(tmp_path):
    here = Here()
    changes = {"method": "{kind: random, trials: 2}", "repeat": 2, "seed_base": 5, "seed_step": 10}
    _, state, rows = done_here(tmp_path, pool=here, **changes)
    for row in rows:
        both = [result.score for result in state.results if result.trial == row.trial]
        assert row.runs == 2
        assert row.score == pytest.approx((sum(both) / 2, min(both), max(both)))
    assert [name for name, _ in here.done] == ["0000_seed_5", "0000_seed_15", "0001_seed_5", "0001_seed_15"]
    assert load(tmp_path / "here/trials/0001/seed_15/scenario.yaml").seed == 15


def test_workers_of_all_trials_are_set_by_flag_by_variable_and_in_the_file(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(sweep, "begin", lambda root, what, base: begun.append(base.collect))
    monkeypatch.setattr("slipstream.cli.sweep._run", lambda work, cluster: 0)
    path = written(tmp_path, FILE.replace("timesteps: 128", "timesteps: 128\n  collect: {prefetch: 3, seed_stride: 5}"))
    monkeypatch.setenv("COLLECT_WORKERS", "2")
    monkeypatch.setenv("COLLECT_SEED_STRIDE", "7")
    assert main(["sweep", str(path), "--collect-seed-stride", "9"]) == 0
    (collect,) = begun
    assert (collect.workers, collect.prefetch, collect.seed_stride) == (2, 3, 9)


def test_of_many_the_better_ones_go_on_and_are_runs_that_never_paused(tmp_path):
    here = Here()
    task, state, rows = done_here(tmp_path, pool=here, method="{kind: asha, trials: 6, eta: 2, rungs: 3}")
    assert task.rungs == (32, 64, 128)
    by_rung = [{result.trial: result.score for result in state.results if result.rung == rung} for rung in range(3)]
    assert [len(scores) for scores in by_rung] == [6, 3, 1]
    for lower, upper in itertools.pairwise(by_rung):
        assert min(lower[trial] for trial in upper) >= max(lower[trial] for trial in lower if trial not in upper)
    assert [row.state for row in rows] == ["finished", *["stopped"] * 5]
    assert [row.steps for row in rows] == [128, 64, 64, 32, 32, 32]
    assert here.done[6][1] == 64
    assert here.done[-1][1] is None
    best = task.root / f"trials/{rows[0].trial:04d}"
    whole = RunOrder("whole", str(best / "scenario.yaml"), str(tmp_path / "whole"), str(tmp_path / "m"), 42, 1)
    work(whole)
    assert metrics_hash(tmp_path / "whole/metrics.jsonl") == metrics_hash(best / "seed_42/metrics.jsonl")


def test_the_worse_of_a_population_go_on_from_the_better_ones_checkpoints(tmp_path):
    method = "{kind: pbt, population: 4, interval: 64, quantile: 0.25}"
    task, state, rows = done_here(tmp_path, method=method)
    changed = [trial for trial in state.trials if trial.changes]
    assert changed
    assert {change.rung for trial in changed for change in trial.changes} == {1}
    for trial in changed:
        change = trial.changes[-1]
        run = task.run(trial.number, 0)
        assert load(run / "scenario.yaml").algo.learning_rate == change.values["algo.learning_rate"]
        shared = task.rungs[change.rung - 1]
        own, parents = (
            [
                row["env/return_mean"]
                for row in read_rows(task.run(number, 0) / "metrics.jsonl")
                if row["timesteps_total"] <= shared
            ]
            for number in (trial.number, change.parent)
        )
        parent_changed = any(later.rung > change.rung for later in state.trials[change.parent].changes)
        assert own == parents or parent_changed
    assert {row.steps for row in rows} == {128}
    _, again, _ = done_here(tmp_path, "again", Here(last_first=True), method=method)
    assert again.trials == state.trials


# --- what goes wrong ---


def test_a_trial_that_fails_is_told_with_its_reason_and_the_others_go_on(tmp_path):
    parameters = (
        "{algo.minibatch_size: {kind: choice, values: [16, 32]}, collect.num_worlds: {kind: choice, values: [4, 3]}}"
    )
    text = (
        FILE[: FILE.index("parameters:")]
        .replace("  collect.num_worlds: 4\n", "")
        .replace("  algo.minibatch_size: 16\n", "  algo.max_grad_norm: 1\n")
    )
    path = written(tmp_path, text + "method: {kind: grid}\nparameters: {}\n", parameters=parameters)
    read = load_sweep(path)
    task = sweep.begin(tmp_path / "s", read.sweep, read.base)

    class Unlucky(Here):
        def poll(self):
            if self.orders and "0001" in self.orders[0].name:
                return [RunEnded(self.orders.pop(0), "the disk is gone")]
            return super().poll()

    rows = table(task, sweep.run(task, Unlucky(), 1, lambda now, names: None))
    found = {(row.values["algo.minibatch_size"], row.values["collect.num_worlds"]): row for row in rows}
    assert found[16, 4].state == "finished"
    assert found[16, 3].problem == "the disk is gone"
    assert "algo.minibatch_size: 32 " in found[32, 3].problem
    assert " 24 agent steps" in found[32, 3].problem
    assert [row.state for row in rows] == ["finished", "finished", "failed", "failed"]
    draw(tmp_path / "with_failures.png", task.sweep, rows)


def test_values_that_do_not_go_together_fail_without_a_run(tmp_path):
    workers = "{collect.workers: {kind: choice, values: [0, 4]}, collect.num_worlds: {kind: choice, values: [4, 2]}}"
    read = load_sweep(written(tmp_path, f"scenario: probe_target\nmethod: {{kind: grid}}\nparameters: {workers}"))
    task = sweep.begin(tmp_path / "s", read.sweep, read.base)
    state, tasks = sweep.plan(task, sweep.State())
    assert [one.trial for one in tasks] == [0, 1, 2]
    assert all(fact in state.trials[3].problem for fact in ("4 workers", "2 worlds"))
    assert [(row.trial, row.state) for row in table(task, state)][-1] == (3, "failed")


def test_a_metric_nobody_reports_fails_with_a_suggestion(tmp_path):
    changes = {"method": "{kind: random, trials: 1}", "metric": "{name: env/return_men}"}
    (row,) = done_here(tmp_path, **changes)[2]
    assert all(fact in row.problem for fact in ("env/return_men;", "'env/return_mean'"))


RATE = "algo.learning_rate: {kind: log_uniform, low: 1e-4, high: 1e-1"


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        ("algo.learning_rate:", "algo.learning_rat:",
         ["my.yaml:13: parameters.algo.learning_rat: ", "'learning_rate'"]),
        ("low: 1e-4", "low: 1", ["my.yaml:13: parameters.algo.learning_rate: low 1 ", "high 0.1"]),
        ("low: 1e-4", "low: 0", ["my.yaml:13: parameters.algo.learning_rate.low: "]),
        ("high: 1e-1, steps: 4", "hihg: 1e-1",
         ["my.yaml:13: parameters.algo.learning_rate.hihg: ", "'high'"]),
        ("kind: log_uniform", "kind: log_unifrom",
         ["my.yaml:13: parameters.algo.learning_rate: ", "'log_unifrom'", "'log_uniform'"]),
        (", steps: 4", "", ["my.yaml:13: parameters.algo.learning_rate: ", "steps: 5"]),
        ("values: [[8], [16, 16]]", "values: [[8], many]",
         ["my.yaml:14: parameters.algo.hidden: ", "'many'"]),
        (RATE, "algo.gamma: {kind: uniform, low: 0.5, high: 1.5",
         ["my.yaml:13: parameters.algo.gamma: ", "1.5"]),
        (RATE, "evaluate.seed: {kind: uniform, low: 1, high: 8",
         ["my.yaml:13: parameters.evaluate.seed: ", "3.33333"]),
        ("algo.learning_rate:", "seed:", ["my.yaml:13: parameters.seed: ", "seed_base and seed_step"]),
        ("algo.learning_rate:", "timesteps:", ["my.yaml:13: parameters.timesteps: ", "overrides"]),
        ("kind: grid", "kind: gird",
         ["my.yaml:15: method: ", "'gird'", "grid, random, tpe, asha, pbt", "'grid'"]),
        ("kind: grid", "kind: asha, rungs: 4, eta: 5",
         ["my.yaml:16: metric.name: eval/return_mean ", " 32 steps", "evaluate.evaluation_interval 1"]),
        ("scenario: probe_target", "scenario: probe_targt",
         ["my.yaml:1: scenario probe_targt: ", "'probe_target'"]),
        ("scenario: probe_target", "scenaro: probe_target", ["my.yaml:1: scenaro: ", "'scenario'"]),
        ("  timesteps: 128", "  timestep: 128", ["timestep: ", "'timesteps'"]),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_file_line_and_suggestion(old, new, facts, tmp_path, capsys):
    assert FILE.count(old) == 1
    text = FILE.replace(old, new) + ("metric: {name: eval/return_mean}\n" if "asha" in new else "")
    (tmp_path / "my.yaml").write_text(text)
    assert main(["sweep", str(tmp_path / "my.yaml"), "--root", str(tmp_path / "s")]) == 2
    said = capsys.readouterr().err
    assert not [fact for fact in facts if fact not in said]
    assert not (tmp_path / "s").exists()


def test_folders_in_use_and_options_that_come_too_late_are_refused(tmp_path, capsys):
    path = written(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("mine")
    assert main(["sweep", str(path), "--root", str(tmp_path / "used")]) == 2
    assert f"{tmp_path / 'used'}: " in capsys.readouterr().err
    read = load_sweep(path)
    sweep.begin(tmp_path / "s", read.sweep, read.base)
    assert main(["sweep", str(tmp_path / "s"), "--repeat", "3"]) == 2
    assert "--repeat: " in capsys.readouterr().err
    with sweep._alone(tmp_path / "s"):
        assert main(["sweep", str(tmp_path / "s")]) == 2
    assert f"{tmp_path / 's'}: " in capsys.readouterr().err
    assert main(["sweep", "convoy_lock_td3_sweap"]) == 2
    assert "'convoy_lock_td3_sweep'" in capsys.readouterr().err


# --- small things ---


def test_the_sweep_users_know_by_name_is_there(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--repeat", "3", "--max-parallel", "3", "--auto-seed", "--seed-base", "12345", "--seed-step", "7"]
    assert main(["sweep", "convoy_lock_td3_sweep", *words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "asha, 18 trials of 3 federations of 2 clients, at most 200,000 steps each, of convoy_lock_td3_sweep" in said
    assert not list(tmp_path.iterdir())


def test_a_sweep_is_written_and_read_back_equal(tmp_path):
    read = load_sweep(written(tmp_path, method="{kind: pbt, interval: 64}"))
    task = sweep.begin(tmp_path / "s", read.sweep, read.base)
    assert sweep.reopen(task.root) == task
    (tmp_path / "again.yaml").write_text(dump_sweep(read.sweep))
    assert load_sweep(tmp_path / "again.yaml", {"name": "my"}).sweep == read.sweep


def test_a_score_is_the_mean_over_the_last_share_of_the_steps():
    rows = [{"timesteps_total": 10 * k, "a": float(k)} for k in range(1, 11)] + [{"timesteps_total": 110}]
    assert score_of(rows, MetricConfig(name="a", over=0.0)) == 10
    assert score_of(rows, MetricConfig(name="a", over=0.5)) == pytest.approx((6 + 7 + 8 + 9 + 10) / 5)
    assert score_of(rows, MetricConfig(name="a", over=1.0)) == 5.5
    assert score_of(rows, MetricConfig(name="a", over=0.01)) == 10
    assert score_of([{"timesteps_total": 1, "a": None}], MetricConfig(name="a")) is None
    assert score_of([], MetricConfig(name="a")) is None


def test_a_run_that_somebody_else_stopped_goes_on(tmp_path):
    class Stopped(Here):
        def poll(self):
            if self.orders and not self.done:
                order = self.orders.pop(0)
                work(msgspec.structs.replace(order, pause_at=64))
                self.done.append((order.name, 64))
                return [RunEnded(order, None)]
            return super().poll()

    here = Stopped()
    _, _, rows = done_here(tmp_path, pool=here, method="{kind: random, trials: 1}")
    assert len(here.done) == 2
    assert rows[0].steps == 128
