"""A run in a program's hands: the bits of `slipstream train`, one update at a time, with code of the user's between."""

from __future__ import annotations

import math
import os
import signal
import sys

import numpy as np
import pytest
from learning import TINY

import slipstream
from slipstream.config.load import load
from slipstream.config.stopping import StopKind
from slipstream.errors import CheckpointError, RunFolderError, ScenarioError, SlipstreamError, TrainingError
from slipstream.run.metrics import metrics_hash
from slipstream.run.run_data import MetricsTable

SCENARIO = "probe_target"


def trainer(tmp_path, name="run", **options):
    """A tiny run of eight updates."""
    return slipstream.Trainer(SCENARIO, out=tmp_path / name, models=tmp_path / "models", **{**TINY, **options})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run by `slipstream.train`, and its hash."""
    folder = tmp_path_factory.mktemp("whole")
    slipstream.train(SCENARIO, out=folder / "run", models=folder / "models", **TINY)
    return metrics_hash(folder / "run" / "metrics.jsonl")


def hash_of(run):
    return metrics_hash(run / "metrics.jsonl")


# --- training ---


def test_steps_are_the_updates_of_a_run_whatever_is_looked_at_between(tmp_path, whole):
    held = trainer(tmp_path)
    seen = []
    while held.step():
        seen.append(held.updates)
        assert held.metrics[-1]["updates_total"] == held.updates
        assert set(held.evaluate(2)) >= {"eval/return_mean", "eval/episodes"}
        assert held.policy.act(np.zeros(3, np.float32)).shape == (2,)
    assert seen == list(range(1, 8))  # the eighth ends the run
    assert held.result is not None
    assert held.result.ended.kind is StopKind.BUDGET
    assert held.result.model is not None
    assert hash_of(held.folder) == whole
    assert not held.step()


def test_run_goes_on_to_the_end_or_for_so_many_updates(tmp_path, whole):
    held = trainer(tmp_path)
    assert held.run(updates=3) is None
    assert held.updates == 3
    result = held.run()
    assert result is held.result is not None
    assert hash_of(held.folder) == whole


def test_closing_saves_and_resume_goes_on_with_the_same_bits(tmp_path, whole):
    with trainer(tmp_path) as held:
        held.run(updates=3)
    assert held.result.ended.kind is StopKind.PAUSED
    with slipstream.Trainer.resume(held.folder, models=tmp_path / "models") as again:
        assert again.updates == 3
        again.run()
    assert hash_of(held.folder) == whole


def test_an_error_in_the_program_that_holds_it_costs_nothing(tmp_path, whole):
    held = trainer(tmp_path)

    def program():
        with held:
            held.run(updates=5)
            math.sqrt(1 / 0)

    with pytest.raises(ZeroDivisionError):
        program()
    assert "crashed" not in [event["event"] for event in slipstream.load_run(held.folder).events]
    slipstream.resume(held.folder)
    assert hash_of(held.folder) == whole


def test_a_trainer_that_never_trained_closes_without_a_trace_but_its_folder(tmp_path):
    with trainer(tmp_path) as held:
        assert held.steps == 0
        assert len(held.metrics) == 0
    assert held.result is None
    assert not held.step()


def test_a_signal_while_it_trains_ends_it_after_the_update(tmp_path):
    class Interrupting(slipstream.Callback):
        def on_update(self, run):
            if run.updates == 2:
                os.kill(os.getpid(), signal.SIGINT)

    held = trainer(tmp_path, callbacks=[Interrupting()])
    assert held.run().ended.kind is StopKind.SIGNAL
    assert held.updates == 2
    assert slipstream.load_run(held.folder).checkpoints[0].name == f"checkpoint_{held.steps}"


def test_what_has_ended_cannot_be_evaluated_here(tmp_path):
    held = trainer(tmp_path, timesteps=32)
    held.run()
    with pytest.raises(TrainingError, match=str(held.folder)):
        held.evaluate()
    assert held.save() == held.result.checkpoint


def test_a_loaded_scenario_can_be_held(tmp_path):
    scenario = load(SCENARIO, TINY)
    held = slipstream.Trainer(scenario, timesteps=64, out=tmp_path / "run", models=tmp_path / "models")
    assert held.scenario.timesteps == 64
    held.run()
    assert held.steps == 64


# --- callbacks ---


class Noting(slipstream.Callback):
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def on_update(self, run):
        self.told.append(("update", run.updates, run.metrics["train/entropy"]))
        run.report(updates_squared=run.updates**2)

    def on_episodes(self, run, episodes):
        self.told.append(("episodes", run.updates, len(episodes)))

    def on_evaluation(self, run):
        self.told.append(("evaluation", run.updates, run.evaluation["eval/return_mean"]))

    def on_checkpoint(self, run, path):
        self.told.append(("checkpoint", run.updates, path.name))


def test_callbacks_are_told_of_updates_episodes_evaluations_and_checkpoints(tmp_path, whole):
    noting = Noting()
    held = trainer(tmp_path, callbacks=[noting])
    held.run()
    by_kind = {
        kind: [(at, what) for k, at, what in noting.told if k == kind]
        for kind in ("update", "episodes", "evaluation", "checkpoint")
    }
    rows = held.metrics
    assert [at for at, _ in by_kind["update"]] == list(range(1, 9))
    assert [what for _, what in by_kind["update"]] == [row["train/entropy"] for row in rows]
    assert [at for at, _ in by_kind["evaluation"]] == [2, 4, 6, 8]
    assert [what for _, what in by_kind["evaluation"]] == [
        row["eval/return_mean"] for row in rows if "eval/return_mean" in row
    ]
    assert sum(what for _, what in by_kind["episodes"]) == rows[-1]["episodes_total"]
    assert by_kind["checkpoint"][0] == (0, "checkpoint_0")
    assert {name for _, name in by_kind["checkpoint"]} >= {
        path.name for path in slipstream.load_run(held.folder).checkpoints
    }
    assert rows["own/updates_squared"].tolist() == [n**2 for n in range(1, 9)]


def test_callbacks_that_only_look_change_no_bits(tmp_path, whole):
    class Looking(slipstream.Callback):
        def on_update(self, run):
            assert run.policy().act(np.zeros(3, np.float32)).shape == (2,)

    held = trainer(tmp_path, callbacks=[Looking()])
    held.run()
    assert hash_of(held.folder) == whole


def test_a_callback_ends_the_run_after_the_update(tmp_path):
    class Enough(slipstream.Callback):
        def on_evaluation(self, run):
            run.stop(f"seen enough at {run.steps}")

    held = trainer(tmp_path, callbacks=[Enough()])
    assert held.run().ended.kind is StopKind.RULE
    assert held.updates == 2
    assert "64" in held.result.reason


class Slower(slipstream.Callback):
    """Takes smaller steps from its third update on, and remembers how many it has seen."""

    seen = 0

    def on_update(self, run):
        self.seen += 1
        if self.seen == 3:
            run.set(learning_rate=1e-6)
        run.report(seen=self.seen)

    def state(self):
        return {"seen": self.seen}

    def load(self, state):
        self.seen = state["seen"]


def test_what_a_callback_changes_and_remembers_is_in_checkpoints(tmp_path):
    alone = trainer(tmp_path, "alone", callbacks=[Slower()])
    alone.run()
    assert set(alone.metrics["train/learning_rate"][3:]) == {1e-6}
    assert 1e-6 not in alone.metrics["train/learning_rate"][:3]
    with trainer(tmp_path, "cut", callbacks=[Slower()]) as held:
        held.run(updates=5)
    slipstream.resume(held.folder, callbacks=[Slower()])
    assert hash_of(held.folder) == hash_of(alone.folder)
    assert slipstream.load_run(held.folder).metrics["own/seen"].tolist() == list(range(1, 9))


def test_a_run_does_not_go_on_without_the_callbacks_whose_memory_it_keeps(tmp_path):
    with trainer(tmp_path, callbacks=[Slower()]) as held:
        held.run(updates=2)
    with pytest.raises(CheckpointError, match="callbacks"):
        slipstream.resume(held.folder)


@pytest.mark.parametrize(("setting", "hint"), [("learning_rat", "learning_rate"), ("hidden", "learning_rate")])
def test_only_settings_that_updates_read_anew_can_be_changed(tmp_path, setting, hint):
    class Wrong(slipstream.Callback):
        def on_update(self, run):
            run.set(**{setting: 1.0})

    held = trainer(tmp_path, callbacks=[Wrong()])
    with pytest.raises(ScenarioError, match=rf"algo\.{setting}.*{hint}"):
        held.step()


def test_an_error_in_a_callback_is_raised_and_the_runs_events_tell_it(tmp_path):
    class Broken(slipstream.Callback):
        def on_update(self, run):
            raise KeyError("no such figure")

    held = trainer(tmp_path, callbacks=[Broken()])
    with pytest.raises(KeyError):
        held.step()
    crash = slipstream.load_run(held.folder).events[-1]
    assert (crash["event"], crash["kind"]) == ("crashed", "KeyError")
    assert not held.step()


def test_a_scenario_names_callbacks_in_files_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "mine_here.py").write_text(
        "import slipstream\n\n\nclass Last(slipstream.Callback):\n    def __init__(self, updates):\n"
        "        self.updates = updates\n\n    def on_update(self, run):\n"
        "        if run.updates == self.updates:\n            run.stop('as the scenario says')\n"
    )
    asked = [{"target": "mine_here:Last", "kwargs": {"updates": 3}}]
    scenario = load(SCENARIO, {**TINY, "callbacks": asked})
    slipstream.train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert len(slipstream.load_run(tmp_path / "run").metrics) == 4  # the last row is of the final evaluation
    assert slipstream.load_run(tmp_path / "run").scenario.callbacks == scenario.callbacks


@pytest.mark.parametrize(
    ("target", "kwargs", "problem"),
    [
        ("no_such_module:Last", {}, "no_such_module"),
        ("math:squirt", {}, "sqrt"),
        ("math:sqrt", {"x": 1}, r"math:sqrt.*TypeError"),
        ("collections:Counter", {}, r"Counter.*slipstream\.Callback"),
    ],
)
def test_a_callback_that_cannot_be_one_is_refused_before_training(tmp_path, target, kwargs, problem):
    scenario = load(SCENARIO, {**TINY, "callbacks": [{"target": target, "kwargs": kwargs}]})
    with pytest.raises(ScenarioError, match=rf"callbacks\.0\.target.*{problem}"):
        slipstream.train(scenario, out=tmp_path / "run", models=tmp_path / "models")


# --- a run as data ---


def test_metrics_are_rows_and_columns():
    table = MetricsTable([{"a": 1, "b": 2.5}, {"a": 2}, {"a": 3, "c": None}])
    assert table.columns == ("a", "b", "c")
    assert table["a"].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(table["b"]).tolist() == [False, True, True]
    assert np.isnan(table["c"]).all()
    assert table[-1]["a"] == 3
    assert len(table[1:]) == 2


def test_a_table_becomes_a_data_frame_where_pandas_is_installed(monkeypatch):
    class Pandas:
        DataFrame = staticmethod(lambda rows: ("frame", len(rows)))

    table = MetricsTable([{"a": 1}])
    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert table.to_dataframe() == ("frame", 1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SlipstreamError, match="pandas"):
        table.to_dataframe()


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=str(tmp_path)):
        slipstream.load_run(tmp_path)


def test_evaluate_judges_what_was_learned_beside_the_scripts(tmp_path):
    held = trainer(tmp_path)
    held.run()
    found = slipstream.evaluate(held.folder, episodes=4)
    assert [row["policy"] for row in found["rows"]] == ["learned", "best"]
    figure = found["rows"][1]["figures"]["return"]
    assert figure["low"] <= figure["estimate"] <= figure["high"]
    shorter = slipstream.evaluate(held.folder, episodes=4, world__horizon=4)
    assert shorter["rows"][1]["figures"]["length"]["estimate"] == 4
