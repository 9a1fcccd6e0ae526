"""Stop a run any way you like: what was resumed is, bit for bit, the run that was never stopped."""

from pathlib import Path

import msgspec
import pytest
from interrupted import begin, cases, threaded
from learning import digest, python

from slipstream.config.load import override
from slipstream.train import checkpoint
from slipstream.train.experiment import resume, train
from slipstream.train.metrics import metrics_hash, read_rows
from slipstream.train.progress import Quiet

CASES = cases()


def fingerprint(run: Path) -> dict[str, object]:
    """Everything that must not depend on how a run came to its end."""
    saved = checkpoint.load_latest(run / "checkpoints").checkpoint
    counters = {key: value for key, value in saved.meta["counters"].items() if key != "seconds"}
    return {
        "weights, optimiser, normalisers, worlds": digest(saved.arrays),
        "counters": counters,
        "stop": saved.meta["stop"],
        "metrics.jsonl": metrics_hash(run / "metrics.jsonl"),
        "training_progress.csv": metrics_hash(run / "training_progress.csv"),
    }


@pytest.fixture(scope="module")
def stopped_and_resumed(tmp_path_factory) -> Path:
    """All cases, each interrupted after 3 updates, resumed in a new process, interrupted again and resumed."""
    folder = tmp_path_factory.mktemp("resumed")
    script = str(Path(__file__).with_name("interrupted.py"))
    for verb in ("train", "resume"):
        done = python(script, verb, str(folder), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", CASES)
def test_interrupted_and_resumed_twice_is_never_interrupted(name, stopped_and_resumed, tmp_path):
    whole = train(CASES[name], out=tmp_path / "whole", models=tmp_path / "models")
    assert whole.counters.updates == 8
    resumed = stopped_and_resumed / name
    assert fingerprint(resumed) == fingerprint(whole.run)
    steps = [row["timesteps_total"] for row in read_rows(resumed / "metrics.jsonl")]
    assert steps == [20 * update for update in range(1, 9)]


@pytest.mark.parametrize("name", ["head_on", "probe_coordination", "probe_alternating"])
def test_threads_change_nothing_in_a_run_or_its_resumption(name, tmp_path):
    one = override(CASES[name], {"algo.gradient_shards": 3})
    whole = train(one, out=tmp_path / "one", models=tmp_path / "models")
    begin(tmp_path, "two", threaded(CASES[name]), 4)
    resume(tmp_path / "two", models=tmp_path / "models")
    assert fingerprint(tmp_path / "two") == fingerprint(whole.run)


class Crash(Quiet):
    """Fails in the middle of a run."""

    def advance(self, done: int, text: str) -> None:
        if done >= 100:
            raise RuntimeError("the machine went down")


@pytest.mark.parametrize(("every", "newest"), [(40, "checkpoint_80"), (10**9, "best_reward_40")])
def test_a_run_that_died_between_checkpoints_lives_those_steps_again_the_same_way(every, newest, tmp_path):
    scenario = override(CASES["probe_alternating"], {"checkpoint.checkpoint_every": every, "seed": 4})
    whole = train(scenario, out=tmp_path / "whole", models=tmp_path / "models")
    with pytest.raises(RuntimeError):
        train(scenario, out=tmp_path / "died", models=tmp_path / "models", display=Crash())
    rows = list(read_rows(tmp_path / "died" / "metrics.jsonl"))
    assert rows[-1]["timesteps_total"] == 100  # further than its last checkpoint
    assert checkpoint.list_checkpoints(tmp_path / "died" / "checkpoints")[0].name == newest
    resume(tmp_path / "died", models=tmp_path / "models")
    assert fingerprint(tmp_path / "died") == fingerprint(whole.run)


def test_the_test_would_see_a_single_different_bit(tmp_path):
    one = train(CASES["probe_constant"], out=tmp_path / "one", models=tmp_path / "models")
    other = train(override(CASES["probe_constant"], {"seed": 43}), out=tmp_path / "other", models=tmp_path / "models")
    mine, theirs = fingerprint(one.run), fingerprint(other.run)
    assert mine["weights, optimiser, normalisers, worlds"] != theirs["weights, optimiser, normalisers, worlds"]
    assert mine["metrics.jsonl"] != theirs["metrics.jsonl"]
    saved = checkpoint.load_latest(one.run / "checkpoints").checkpoint
    kinds = {name.split(".")[0] for name in saved.arrays}
    assert kinds == {"policy", "collector"}
    assert {"policy.main.optim.actor.head.weight.exp_avg", "collector.worlds"} <= set(saved.arrays)
    assert any("norm.mean" in name for name in saved.arrays)
    assert msgspec.json.encode(saved.meta)


def test_more_steps_can_be_asked_for_and_the_record_follows(tmp_path):
    first = train(CASES["probe_constant"], out=tmp_path / "run", models=tmp_path / "models")
    assert first.counters.steps == 160
    more = resume(first.run, timesteps=240, models=tmp_path / "models")
    assert more.counters.steps == 240
    record = msgspec.json.decode((first.run / "config.json").read_bytes())
    assert record["timesteps"] == 240
    assert "timesteps: 240" in (first.run / "scenario.yaml").read_text()
