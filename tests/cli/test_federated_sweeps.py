"""Sweeps of federated scenarios: every run is a federation of its own, whose rounds close, however it is worked on."""

import json

import pytest
from test_sweep_verb import FILE, Here, written

from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.config.sweep import load_sweep
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.scale import pool, sweep
from slipstream.scale.pool import RunEnded
from slipstream.scale.results import table
from slipstream.scale.sweep import read_state

TOGETHER = "  federated: {enabled: true, clients: 2, interval: 4}\n"
TEXT = FILE.replace("parameters:", TOGETHER + "parameters:")
UNEVEN = """\
scenario: probe_corridor
overrides:
  timesteps: 256
  collect.num_worlds: 2
  collect.rollout_length: 4
  algo.minibatch_size: 8
  algo.epochs: 1
  evaluate.evaluation_interval: null
  log: {diagnostics: false, frames_every: null}
  federated: {enabled: true, clients: 2, interval: 2}
parameters:
  algo.learning_rate: {kind: log_uniform, low: 1e-4, high: 1e-1}
method: {kind: asha, trials: 2, eta: 2, rungs: 2}
metric: {name: env/return_mean, mode: min, over: 1.0}
seed_base: 1
"""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(sweep, "LOOK_S", 0.0)


def done(tmp_path, text=TEXT, name="here", where=None, **changes):
    read = load_sweep(written(tmp_path, text, **changes))
    task = sweep.begin(tmp_path / name, read.sweep, read.base)
    return task, sweep.run(task, where or Here(), 1, lambda now, names: None)


def records(run):
    return [list(read_rows(path)) for path in sorted(run.glob("rounds/*/rounds.jsonl"))]


def test_every_run_of_every_trial_is_a_federation_of_its_own_whose_rounds_close(tmp_path):
    changes = {"method": "{kind: random, trials: 2}", "repeat": 2, "seed_base": 5, "seed_step": 10}
    task, state = done(tmp_path, TEXT.replace("timesteps: 128", "timesteps: 64"), **changes)
    assert [result.rounds for result in state.results] == [2] * 4
    assert {row.rounds for row in table(task, state)} == {(2, 2)}
    seeds = []
    for trial in range(2):
        for repeat in range(2):
            run = task.run(trial, repeat)
            (rounds,) = records(run)
            assert [[seat["client"] for seat in one["seats"]] for one in rounds] == [["0", "1"]] * 2
            seeds.append([load(run / f"runs/client-{one}/scenario.yaml").seed for one in range(2)])
    assert seeds == [[5, 25], [15, 35]] * 2  # the first client's are those of a sweep that does not federate
    scores = [result.score for result in state.results if result.trial == 0]
    assert scores[0] != scores[1]


def test_federations_that_pause_and_are_killed_end_as_those_that_did_neither(tmp_path, monkeypatch):
    """Episodes differ in length, so that a client may wait for one that pauses before it comes to the round."""
    waited, judge = [], sweep._result
    monkeypatch.setattr(
        sweep, "_result", lambda work, state, one: waited.append(one.waiting) or judge(work, state, one)
    )
    task, state = done(tmp_path, UNEVEN)
    assert any(waited)
    assert [(one.trial, one.rung, one.problem) for one in state.results] == [(0, 0, None), (1, 0, None), (0, 1, None)]
    whole, straight = done(tmp_path, UNEVEN, "whole", method="{kind: random, trials: 1}")
    hashes = [
        [metrics_hash(one.run(0, 0) / f"runs/client-{client}/metrics.jsonl") for client in range(2)]
        for one in (task, whole)
    ]
    assert hashes[0] == hashes[1]
    assert state.results[-1].rounds == straight.results[0].rounds > 2

    class Killed(Here):
        def poll(self):
            if len(self.done) == 5:
                raise KeyboardInterrupt
            return super().poll()

    read = load_sweep(tmp_path / "my.yaml")
    killed = sweep.begin(tmp_path / "killed", read.sweep, read.base)
    with pytest.raises(KeyboardInterrupt):
        sweep.run(killed, Killed(), 1, lambda now, names: None)
    resumed = sweep.run(killed, Here(last_first=True), 1, lambda now, names: None)
    assert resumed.results == straight.results


def test_the_worse_federations_of_a_population_go_on_from_the_better_ones(tmp_path):
    task, state = done(tmp_path, method="{kind: pbt, population: 2, interval: 64, quantile: 0.5}")
    (changed,) = [trial for trial in state.trials if trial.changes]
    run = task.run(changed.number, 0)
    for client in range(2):
        scenario = load(run / f"runs/client-{client}/scenario.yaml")
        assert scenario.federated.root == str(run / "rounds")
        assert scenario.algo.learning_rate == changed.newest["algo.learning_rate"]
    assert [result.rounds for result in state.results] == [2, 2, 4, 4]


def test_a_client_that_fails_is_named_and_the_trial_has_failed(tmp_path):
    class Unlucky(Here):
        def poll(self):
            if self.orders and self.orders[0].client == "1":
                return [RunEnded(self.orders.pop(0), "the disk is gone")]
            return super().poll()

    task, state = done(tmp_path, where=Unlucky(), method="{kind: random, trials: 1}")
    (row,) = table(task, state)
    assert (row.state, row.problem, row.rounds) == ("failed", "client 1: the disk is gone", (0,))


def test_the_table_has_the_rounds_and_says_where_none_was_closed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pool, "ProcessPool", lambda *_: Here())
    parameters = "{federated.interval: {kind: choice, values: [4, 1000]}}"
    path = written(tmp_path, TEXT[: TEXT.index("parameters:")] + "method: {kind: grid}\n", parameters=parameters)
    root = tmp_path / "s"
    assert main(["sweep", str(path), "--root", str(root)]) == 0
    said = capsys.readouterr()
    assert f"slipstream federate {root / 'best.yaml'} --repeat 2 --seed-base 44 --seed-step 1" in said.out
    assert "4 rounds closed" in said.out
    assert all(fact in said.err for fact in ("trial 1,", "1000 episodes", "federated.interval"))
    trials = json.loads((root / "table.json").read_text())["trials"]
    assert {one["federated.interval"]: one["rounds_closed"] for one in trials} == {4: 4, 1000: 0}
    # where no trial has closed one, it has not done what it was asked for
    path = written(tmp_path, TEXT.replace("interval: 4}", "interval: 1000}"), method="{kind: random, trials: 1}")
    assert main(["sweep", str(path), "--root", str(tmp_path / "none")]) == 1
    assert read_state(tmp_path / "none").results[0].score is not None


@pytest.mark.parametrize(
    ("federated", "changes", "said"),
    [
        ("transport: tcp, address: ipc://a.sock", {}, "federated.park: "),
        ("secure: true", {}, "federated.park: "),
        ("quorum: 2", {"method": "{kind: pbt, interval: 64}"}, "parameters.federated.interval: pbt "),
    ],
)
def test_a_federation_that_cannot_be_swept_is_refused_before_anything_runs(federated, changes, said, tmp_path, capsys):
    text = TEXT.replace("clients: 2, interval: 4", f"clients: 3, {federated}")
    text = text.replace("parameters:\n", "parameters:\n  federated.interval: {kind: integer, low: 2, high: 4}\n")
    path = written(tmp_path, text, **changes)
    assert main(["sweep", str(path), "--root", str(tmp_path / "s")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
