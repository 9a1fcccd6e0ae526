"""How runs end and go on: by an error, before a first checkpoint, from a checkpoint that is named, with half an end."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from learning import TINY, digest, scenario_of

import slipstream
from slipstream.cli.main import main
from slipstream.data import checkpoint
from slipstream.data.run_folder import read_metadata
from slipstream.errors import CheckpointError, WorldContractError
from slipstream.run import session
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.parts import ending
from slipstream.run.parts.evaluation import Evaluation
from slipstream.run.progress import NO_READER, Display
from slipstream.run.session import resume, train
from slipstream.view.catalogue import Catalogue
from slipstream.view.report_data import read_run_report
from slipstream.view.run import RunReader
from slipstream.view.tui import views
from slipstream.worlds.tools import Analysis, Drawings, plain
from slipstream.worlds.world import tools_of, worlds

PLAIN = {**TINY, "evaluate.evaluation_interval": None}


class Said(Display):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


class Breaks(Display):
    """Raises once a run has come to a step."""

    def __init__(self, at, error):
        self.at, self.error = at, error

    def advance(self, done, text):
        if done >= self.at:
            raise self.error


def run(tmp_path, name="run", display=None, **changes):
    settings = {**PLAIN, **{key.replace("__", "."): value for key, value in changes.items()}}
    scenario = scenario_of("probe_delayed", settings)
    return train(scenario, out=tmp_path / name, models=tmp_path / "models", display=display)


def bits(result):
    return metrics_hash(result.run / "metrics.jsonl"), digest(checkpoint.load(result.checkpoint).arrays)


# --- figures ---


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.float64(0.5), 0.5), (np.int32(3), 3), (np.array(2.0), 2.0), (torch.tensor(1.5), 1.5), (np.True_, 1), (7, 7)],
)
def test_a_metric_becomes_a_number_of_pythons_own(value, expected):
    (found,) = plain({"x": value}, "a world").values()
    assert found == expected
    assert type(found) in (int, float)


def test_a_metric_that_is_not_known_is_nan_and_one_that_is_not_finite_stays_so():
    assert np.isnan(plain({"x": None}, "a world")["x"])
    assert plain({"x": np.float32(-np.inf)}, "a world")["x"] == -np.inf


@pytest.mark.parametrize("value", ["many", np.zeros(3), [1.0], {"a": 1}, np.array("word"), torch.zeros(1)])
def test_a_metric_that_is_no_number_is_refused_by_its_name(value):
    with pytest.raises(WorldContractError, match=r"'crashes_mean' .*'mine'"):
        plain({"crashes_mean": value}, "world 'mine'")


def test_numbers_of_numpy_in_alerts_are_written_with_the_model(tmp_path, monkeypatch):
    from slipstream.worlds.airspace import tools

    told = Analysis("noop", lambda *args: {"alert_failed_share": np.float64(0.25)})
    monkeypatch.setattr(tools, "TOOLS", tools.TOOLS._replace(analysis=told))
    changes = {**TINY, "timesteps": 64, "world.detect_alerts": True}
    changes["world.max_episode_steps"] = 5
    result = train(scenario_of("head_on", changes), out=tmp_path / "run", models=tmp_path / "models")
    assert result.failures == ()
    assert result.model is not None
    assert json.loads((result.model / "metadata.json").read_text())["evaluation"]["eval/alert_failed_share"] == 0.25
    assert "alert_failed_share: 0.25" in (result.model / "README.txt").read_text()


# --- crashes ---


def test_a_crash_is_told_by_events_log_record_list_lines_and_report(tmp_path):
    with pytest.raises(KeyError):
        run(tmp_path, display=Breaks(96, KeyError("lost wing")))
    path = tmp_path / "run"
    (event,) = [row for row in read_rows(path / "events.jsonl") if row["event"] == "crashed"]
    assert (event["kind"], event["timesteps_total"]) == ("KeyError", 96)
    log = (path / "training_log.txt").read_text()
    assert "crashed: KeyError" in log
    assert "raise self.error" in log  # the end of the traceback
    session = read_metadata(path)["sessions"][-1]
    assert session["crashed"]["kind"] == "KeyError"
    assert session["outcome"].startswith("crashed")

    assert RunReader(path).state == "crashed"
    (listed,) = Catalogue([tmp_path]).summaries()
    assert listed.state == "crashed"
    said = []
    views.follow(path, 1.0, said.append)
    assert said[-1] == "crashed: KeyError: 'lost wing'"
    signs = [sign for sign in read_run_report(path).problems if sign.name == "crashed"]
    assert [sign.found for sign in signs] == ["KeyError: 'lost wing'"]

    whole = run(tmp_path, "whole")
    again = resume(path, models=tmp_path / "models")  # and nothing of it stays in the way
    assert bits(again) == bits(whole)
    assert RunReader(path).state == "finished"
    assert not [sign for sign in read_run_report(path).problems if sign.name == "crashed"]


def test_a_run_that_cannot_even_begin_is_shown_as_crashed(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no such device")

    monkeypatch.setattr(session, "make_feed", broken)
    with pytest.raises(RuntimeError):
        run(tmp_path)
    assert RunReader(tmp_path / "run").state == "crashed"


def test_a_run_that_was_killed_is_stopped_and_not_crashed(tmp_path):
    with pytest.raises(SystemExit):  # as far as its folder knows, a kill
        run(tmp_path, display=Breaks(64, SystemExit()))
    assert RunReader(tmp_path / "run").state == "stopped"


def test_a_run_whose_output_nobody_reads_any_more_saves_and_ends(tmp_path):
    result = run(tmp_path, display=Breaks(96, BrokenPipeError(32, "Broken pipe")))
    assert (result.interrupted, result.reason, result.counters.steps) == (True, NO_READER, 96)
    assert RunReader(result.run).state == "stopped"
    assert bits(resume(result.run, models=tmp_path / "models")) == bits(run(tmp_path, "whole"))


# --- half an end ---

WORDS = ["train", "probe_delayed", "--timesteps", "64", "--out", "run", "--learner-threads", "1"]
WORDS += ["--collect.num-worlds", "4", "--collect.rollout-length", "8", "--algo.minibatch-size", "16"]


def test_a_model_that_cannot_be_written_leaves_nothing_half_written_and_all_else(tmp_path, monkeypatch, capsys):
    def broken(*args):
        raise TypeError("no page")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ending, "_readme", broken)
    assert main(WORDS) == 1
    assert list((tmp_path / "models").iterdir()) == []
    assert json.loads((tmp_path / "run" / "judgement.json").read_text())["steps"] == 64
    assert "the model failed: TypeError: no page" in capsys.readouterr().out
    assert RunReader(tmp_path / "run").state == "finished"
    (sign,) = [sign for sign in read_run_report(tmp_path / "run").problems if sign.name == "end_failed"]
    assert "no page" in sign.found


def test_a_judgement_that_fails_does_not_take_the_model_with_it(tmp_path, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("no episodes")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slipstream.judging.judge.judge", broken)
    assert main(WORDS) == 1
    (model,) = (tmp_path / "models").iterdir()
    assert {path.name for path in model.iterdir()} >= {"metadata.json", "README.txt", "meta.json", "arrays.safetensors"}
    said = capsys.readouterr()
    assert "the judgement failed: ZeroDivisionError" in said.err
    assert f"slipstream eval {model.relative_to(tmp_path)}" in said.out


def test_a_picture_that_fails_does_not_take_the_judgement_with_it(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("no colours")

    monkeypatch.chdir(tmp_path)
    tools = tools_of("probe")._replace(drawings=Drawings(picture=broken))
    monkeypatch.setitem(worlds(), "probe", worlds()["probe"]._replace(tools=lambda: tools))
    assert main(WORDS) == 1
    assert (tmp_path / "run" / "judgement.json").exists()


def test_a_last_evaluation_that_fails_does_not_take_the_model_with_it(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("the world is over")

    monkeypatch.setattr(Evaluation, "_evaluate", broken)
    result = run(tmp_path, evaluate__evaluation_interval=100)
    assert result.failures == ("the last evaluation",)
    assert result.model is not None


def test_the_end_of_a_run_names_its_viewers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(WORDS) == 0
    assert "slipstream view run" in capsys.readouterr().out


# --- going on ---


def test_a_run_without_a_checkpoint_begins_again_and_becomes_the_same_run(tmp_path):
    result = run(tmp_path)
    before, said = bits(result), Said()
    shutil.rmtree(result.run / "checkpoints")
    assert bits(resume(result.run, models=tmp_path / "models", display=said)) == before
    assert any("begins again" in text for text in said.notes)


@pytest.mark.parametrize("overlap", ["none", "deterministic"])
def test_a_run_that_was_killed_in_its_first_update_goes_on_from_step_0(tmp_path, overlap):
    changes = {"collect__overlap": overlap, "algo__kind": "appo"}
    whole = run(tmp_path, "whole", **changes)
    with pytest.raises(SystemExit):
        run(tmp_path, "cut", Breaks(0, SystemExit()), **changes)
    assert [path.name for path in (tmp_path / "cut" / "checkpoints").iterdir()] == ["checkpoint_0"]
    assert bits(resume(tmp_path / "cut", models=tmp_path / "models")) == bits(whole)


def test_a_named_checkpoint_is_gone_on_from_and_what_came_later_is_put_aside_when_asked(tmp_path):
    whole = run(tmp_path, checkpoint__checkpoint_every=64)
    before = bits(whole)
    older = whole.run / "checkpoints" / "checkpoint_128"
    with pytest.raises(CheckpointError, match=r"checkpoint_128: .*checkpoint_256.*--force"):
        resume(older, models=tmp_path / "models")
    assert bits(whole) == before  # a refusal changes nothing
    said = Said()
    again = resume(older, force=True, models=tmp_path / "models", display=said)
    assert bits(again) == before
    assert read_metadata(whole.run)["sessions"][-1]["timesteps_at_start"] == 128
    (aside,) = whole.run.glob("until_checkpoint_256_*")
    assert {path.name for path in (aside / "checkpoints").iterdir()} == {"checkpoint_192", "checkpoint_256"}
    assert metrics_hash(aside / "metrics.jsonl") == before[0]
    assert any(str(aside) in text for text in said.notes)


def test_the_newest_checkpoint_needs_no_force_from_python_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(tmp_path, timesteps=128)
    newest = slipstream.resume(result.checkpoint, timesteps=256)
    assert newest == result.run / "checkpoints" / "checkpoint_256"


def test_of_a_model_its_run_goes_on_and_where_that_is_gone_the_sentence_says_so(tmp_path):
    result = run(tmp_path, timesteps=128)
    again = resume(result.model, timesteps=256, models=tmp_path / "models")
    assert (again.run, again.counters.steps) == (result.run, 256)
    shutil.move(result.run, tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=re.escape(f"{result.model}: ") + ".*" + re.escape(f"({result.run})")):
        resume(result.model)


def test_python_trains_some_steps_at_a_time_to_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = run(tmp_path, "whole")
    scenario = scenario_of("probe_delayed", PLAIN)
    saved = slipstream.train(scenario, out="run", pause_at=64)
    assert saved.name == "checkpoint_64"
    for steps in (128, 200, 400):  # the last is beyond its end
        saved = slipstream.resume(saved, pause_at=steps)
    assert saved.name == "checkpoint_256"
    assert digest(checkpoint.load(saved).arrays) == bits(whole)[1]
    assert metrics_hash(tmp_path / "run" / "metrics.jsonl") == bits(whole)[0]
