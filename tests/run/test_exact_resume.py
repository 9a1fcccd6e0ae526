"""Stop a run any way you like: what was resumed is, bit for bit, the run that was never stopped."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from interrupted import begin, cases, threaded, wide_cases
from learning import digest, python
from safetensors.numpy import load_file

from slipstream.algos.registry import ALGORITHMS
from slipstream.config.load import override
from slipstream.data import checkpoint
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.progress import Display
from slipstream.run.session import resume, train

CASES = cases()
WIDE = wide_cases()


def replay_rows(run: Path, saved: checkpoint.Checkpoint) -> dict[str, str]:
    """A digest of what each replay holds, oldest row first, however its segments are cut."""
    found = {}
    for policy, segments in saved.meta["segments"].items():
        if not segments:
            continue
        parts = [load_file(run / "replay" / policy / segment["name"]) for segment in segments]
        cursor = {key: int(saved.arrays[f"feed.{policy}.replay.{key}"][0]) for key in ("total_added", "capacity")}
        held = min(cursor["total_added"], cursor["capacity"])
        rows = {name: np.concatenate([part[name] for part in parts])[-held:] for name in parts[0]}
        assert all(len(array) == held for array in rows.values())
        found[policy] = digest(rows)
    return found


def fingerprint(run: Path) -> dict[str, object]:
    """Everything that must not depend on how a run came to its end."""
    saved = checkpoint.load_latest(run / "checkpoints").checkpoint
    counters = {key: value for key, value in saved.meta["counters"].items() if key != "seconds"}
    return {
        "weights, optimiser, normalisers, feeds, worlds": digest(saved.arrays),
        "replay": replay_rows(run, saved),
        "counters": counters,
        "stop": saved.meta["stop"],
        "curriculum": saved.meta.get("curriculum"),
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


@pytest.mark.parametrize("kind", WIDE)
def test_two_threads_interrupted_and_resumed_are_one_thread_never_interrupted(kind, stopped_and_resumed, tmp_path):
    whole = train(WIDE[kind], out=tmp_path / "whole", models=tmp_path / "models")
    assert fingerprint(stopped_and_resumed / f"{kind}_on_2") == fingerprint(whole.run)
    assert "learner_threads: 2" in (stopped_and_resumed / f"{kind}_on_2" / "scenario.yaml").read_text()


@pytest.mark.parametrize("name", ["head_on", "probe_coordination", "probe_alternating"])
def test_threads_change_nothing_in_a_run_or_its_resumption(name, tmp_path):
    whole = train(CASES[name], out=tmp_path / "one", models=tmp_path / "models")
    begin(tmp_path, "two", threaded(CASES[name]), 4)
    resume(tmp_path / "two", models=tmp_path / "models")
    assert fingerprint(tmp_path / "two") == fingerprint(whole.run)


class Crash(Display):
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
    arrays = "weights, optimiser, normalisers, feeds, worlds"
    assert mine[arrays] != theirs[arrays]
    assert mine["metrics.jsonl"] != theirs["metrics.jsonl"]


# What the checkpoint of each algorithm must hold beside its actor; a hash of what is not there proves nothing.
NEEDED = {
    "ppo": {"critic.head.weight", "critic.mean", "kl_coef", "optim.critic.head.weight.exp_avg_sq"},
    "impala": {"critic.head.weight", "optim.critic.head.weight.exp_avg_sq"},
    "appo": {"target_actor.head.weight", "target_critic.head.weight", "optim.critic.head.weight.exp_avg_sq"},
    "reinforce": {"baseline"},
    "sac": {"targets.members.1.0.weight", "temperature.log", "temperature_optim.temperature.log.exp_avg", "steps"},
    "cql": {"targets.members.1.0.weight", "temperature.log", "critic_optim.critics.members.0.0.bias.exp_avg", "steps"},
    "td3": {"actor_target.head.weight", "critic_target.members.0.0.weight", "critic_optim.step", "steps"},
    "dqn": {"target.head.weight", "steps"},
}


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_checkpoint_holds_all_that_its_algorithm_remembers(kind, stopped_and_resumed):
    saved = checkpoint.load_latest(stopped_and_resumed / kind / "checkpoints").checkpoint
    policy = {name.removeprefix("policy.main.") for name in saved.arrays if name.startswith("policy.main.")}
    assert policy >= NEEDED[kind] | {"actor.head.weight", "actor.norm.mean", "optim.actor.head.weight.exp_avg"}
    assert "source.worlds" in saved.arrays
    if ALGORITHMS[kind].traits.data == "replay":
        assert int(saved.arrays["feed.main.replay.total_added"][0]) == 160
        assert int(saved.arrays["feed.main.draws"]) == 46  # 0.33 * (160 - 20), rounded down
        assert saved.meta["segments"]["main"]
    assert msgspec.json.encode(saved.meta)


def test_averaged_weights_are_saved_beside_the_newest(stopped_and_resumed):
    arrays = checkpoint.load(stopped_and_resumed / "drmario_averaged" / "checkpoints" / "checkpoint_60").arrays
    averaged, newest = (arrays[f"policy.main.{which}.placer.torso.first.weight"] for which in ("average", "actor"))
    assert averaged.shape == newest.shape
    assert (averaged != newest).any()


@pytest.mark.parametrize("name", ["dqn_durations", "dqn_alternating", "sac_shared"])
def test_priorities_and_unfinished_spans_are_saved(name, stopped_and_resumed):
    saved = checkpoint.load(stopped_and_resumed / name / "checkpoints" / "checkpoint_60")  # in mid-episode
    priority = saved.arrays["feed.main.replay.priority"]
    assert len(priority) == min(47, int(saved.arrays["feed.main.replay.total_added"][0]))
    assert len(np.unique(priority)) > 5
    assert saved.arrays["feed.main.chain.slab.decided"].any()
    if name == "dqn_alternating":
        assert saved.arrays["source.main.open"].any()  # a decision that lasts beyond the slab


@pytest.mark.parametrize(
    ("kind", "lag"), [("appo", 1), ("appo", 2), ("impala", 1), ("impala", 2), ("sac", 2), ("td3", 2), ("cql", 2)]
)
def test_slabs_in_flight_are_saved_and_their_lag_is_logged(kind, lag, stopped_and_resumed):
    run = stopped_and_resumed / f"{kind}_lag_{lag}"
    saved = checkpoint.load_latest(run / "checkpoints").checkpoint
    in_flight = {name.split(".")[2] for name in saved.arrays if name.startswith("source.slab.")}
    assert in_flight == {str(i) for i in range(lag + 1)}
    lags = [row["train/lag"] for row in read_rows(run / "metrics.jsonl")]
    assert lags == [min(update, lag) for update in range(8)]


def test_more_steps_can_be_asked_for_and_the_record_follows(tmp_path):
    first = train(CASES["probe_constant"], out=tmp_path / "run", models=tmp_path / "models")
    assert first.counters.steps == 160
    more = resume(first.run, timesteps=240, models=tmp_path / "models")
    assert more.counters.steps == 240
    record = msgspec.json.decode((first.run / "config.json").read_bytes())
    assert record["timesteps"] == 240
    assert "timesteps: 240" in (first.run / "scenario.yaml").read_text()
