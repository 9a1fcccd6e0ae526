"""NaN and infinity, wherever they come from: set aside, named, without effect; only many in a row end a run."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from interrupted import StopAfter
from learning import build, recast, scenario_of, tiny
from safetensors.numpy import load_file

from slipstream.algos.adam import FlatAdam
from slipstream.algos.registry import ALGORITHMS
from slipstream.cli.main import main
from slipstream.collect.slab import rollout_arrays
from slipstream.config.load import dump, from_plain, to_plain
from slipstream.config.scenario import Scenario
from slipstream.data import checkpoint
from slipstream.errors import TrainingError
from slipstream.run import session
from slipstream.run.loop import Result
from slipstream.run.metrics import read_rows
from slipstream.run.parts.quarantine import MOST_FILES, not_finite
from slipstream.run.progress import Display
from slipstream.run.session import resume, train

SICK = "SlipstreamSick-v0"
SLAB = 8  # ticks of each of two worlds
UPDATES = 5


class Sick(gymnasium.Env):
    """Counts its steps, shows and pays the count, and emits something not finite after some of them."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, what: str = "reward", value: str = "nan", at: tuple[int, ...] = (), choices: int = 0) -> None:
        self.what, self.value, self.at = what, float(value), set(at)
        self.action_space = spaces.Discrete(choices) if choices else spaces.Box(-1, 1, (2,), np.float32)
        self.tick = 0

    def observe(self) -> np.ndarray:
        is_bad = self.what == "obs" and self.tick in self.at
        return np.array([self.value if is_bad else self.tick, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.array([self.tick, 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert np.isfinite(action).all(), "an action that is not finite reached the world"
        self.tick += 1
        is_bad = self.what == "reward" and self.tick in self.at
        return self.observe(), self.value if is_bad else float(self.tick), False, False, {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register(SICK, entry_point=Sick)
    yield
    gymnasium.registry.pop(SICK)


def sick(kind: str, changes: dict[str, Any] | None = None, episode: int = 5, **world: Any) -> Scenario:
    """A run of an algorithm in two sick worlds, saved after every update."""
    own = {"minibatch_size": 16} if kind in ("ppo", "appo", "impala") else {}
    scenario = scenario_of("probe_constant", tiny(kind, normalize_observation=True, **own))
    kwargs = {**world, "at": list(world.get("at", ())), "choices": 0 if ALGORITHMS[kind].traits.continuous else 3}
    plain = to_plain(scenario)
    plain["world"] = {"kind": "gymnasium", "id": SICK, "max_episode_steps": episode, "kwargs": kwargs}
    plain["timesteps"] = 2 * SLAB * UPDATES
    plain["collect"] |= {"num_worlds": 2, "rollout_length": SLAB}
    plain["evaluate"]["evaluation_interval"] = None
    plain["checkpoint"] |= {"checkpoint_every": 1, "keep": 100}
    if "learning_starts" in plain["algo"]:
        plain["algo"] |= {"learning_starts": 1, "training_intensity": 0.5}
    for key, value in (changes or {}).items():
        section, _, name = key.partition(".")
        plain[section][name] = value
    return from_plain(plain)


def run(scenario: Scenario, tmp_path: Path, display: Display | None = None) -> Result:
    return train(scenario, out=tmp_path / "run", models=tmp_path / "models", display=display)


def learned(result: Path, update: int) -> dict[str, bytes]:
    """All that learners remember after an update, as bytes; every number of it finite."""
    saved = checkpoint.load(result / "checkpoints" / f"checkpoint_{2 * SLAB * update}")
    arrays = {name: array for name, array in saved.arrays.items() if name.startswith("policy.")}
    assert not not_finite(arrays)
    return {name: array.tobytes() for name, array in arrays.items()}


def quarantined(result: Path) -> dict[int, dict[str, Any]]:
    events = [e for e in read_rows(result / "events.jsonl") if e["event"] == "quarantine"]
    return {event["update"]: event for event in events}


# --- in what the world says ---


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize(
    ("what", "value", "tick", "arrays"),
    [
        ("reward", "nan", 19, ["reward"]),
        ("reward", "inf", 24, ["reward"]),
        ("obs", "inf", 18, ["obs.obs"]),
        ("obs", "nan", 20, ["ends.obs.obs"]),  # the last of an episode of five
    ],
)
def test_a_bad_number_of_the_world_never_reaches_a_learner(kind, what, value, tick, arrays, tmp_path):
    result = run(sick(kind, what=what, value=value, at=(tick,)), tmp_path)
    assert result.model is not None
    assert result.counters.updates == UPDATES
    (event,) = quarantined(result.run).values()
    assert event["update"] == 2  # updates count from 0, ticks 17 to 24
    assert set(event["arrays"]) >= set(arrays)
    assert learned(result.run, 3) == learned(result.run, 2)
    changes = [learned(result.run, u) != learned(result.run, u + 1) for u in (1, 3, 4)]
    assert changes == [True, True, True]

    assert event["file"] == "quarantine/main_00000002.safetensors"
    saved = load_file(result.run / event["file"])
    array = saved[arrays[0]]
    assert (np.isnan(array) if value == "nan" else np.isinf(array)).sum() == 2  # one in each world
    assert saved["obs.obs"][1, :, 0, 0].tolist() == [16.0, 16.0]  # the whole slab is there to look at
    text = (result.run / "training_log.txt").read_text()
    assert f"update 2: a batch for 'main' was set aside, NaN or infinity in {arrays[0]}" in text
    assert "see quarantine/main_00000002.safetensors" in text
    flags = [row.get("train/quarantined", 0.0) for row in read_rows(result.run / "metrics.jsonl")]
    assert flags == [0, 0, 1, 0, 0]


def test_an_observation_between_two_slabs_is_bad_in_both(tmp_path):
    result = run(sick("ppo", what="obs", at=(16,), episode=1000), tmp_path)
    assert {u: e["arrays"] for u, e in quarantined(result.run).items()} == {
        1: ["last_obs.obs"],
        2: ["obs.obs", "action", "logp"],
    }
    assert learned(result.run, 1) == learned(result.run, 3)


@pytest.mark.parametrize("kind", ["dqn", "sac"])
def test_spans_never_reach_over_a_slab_that_was_set_aside(kind, tmp_path):
    changes = {"algo.replay": {"capacity": 1000, "n_step": 3}, "algo.gamma": 0.5}
    result = run(sick(kind, changes, at=(18,), episode=1000), tmp_path)
    assert list(quarantined(result.run)) == [2]
    rows = replayed(result)
    assert not not_finite(rows)
    # Slabs begin at 0, 8, 16 (left out), 24, 32 and end at 40; the last two
    # decisions before a break cannot be finished.
    expected = [t for t in (*range(14), *range(24, 38)) for _world in range(2)]
    assert sorted(rows["obs.obs"][:, 0].tolist()) == expected
    assert_spans(rows)


def test_spans_never_reach_from_before_a_resume_into_the_new_episodes_after_it(tmp_path):
    """These worlds cannot be saved in mid-episode; new ones count from 0 again."""
    changes = {"algo.replay": {"capacity": 1000, "n_step": 3}, "algo.gamma": 0.5}
    half = run(sick("dqn", changes, episode=1000), tmp_path, StopAfter(2))
    assert half.interrupted
    result = resume(half.run, models=tmp_path / "models")
    rows = replayed(result)
    assert sorted(rows["obs.obs"][:, 0].tolist()) == sorted([*range(14), *range(22)] * 2)
    assert_spans(rows)


def replayed(result: Result) -> dict[str, np.ndarray]:
    """All rows of a replay that has not wrapped."""
    segments = checkpoint.load(result.checkpoint).meta["segments"]["main"]
    parts = [load_file(result.run / "replay" / "main" / segment["name"]) for segment in segments]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def assert_spans(rows: dict[str, np.ndarray]) -> None:
    """Decision t sees t and is paid t + 1; three in a row with a discount of one half."""
    t = rows["obs.obs"][:, 0]
    np.testing.assert_allclose(rows["reward"], (t + 1) + 0.5 * (t + 2) + 0.25 * (t + 3))
    np.testing.assert_array_equal(rows["next_obs.obs"][:, 0], t + 3)
    np.testing.assert_array_equal(rows["discount"], np.full(len(t), 0.125, np.float32))


def test_a_bad_decision_that_stays_open_is_bad_once():
    """Row 0 of a slab must not go on showing what was carried over into the slab before."""
    parts = build(scenario_of("probe_alternating", {**tiny("dqn"), "collect.rollout_length": 7}))
    recorder = parts.collector.recorders["main"]
    parts.collector.collect(0)
    recorder.state_arrays()  # open decisions now stand in row 0
    still_open = recorder.rollout.decided[0] != 0
    assert still_open.any()
    recorder.rollout.obs["obs"][0][still_open] = np.nan
    bad = [bool(not_finite(rollout_arrays(parts.collector.collect(1)[0]["main"]))) for _ in range(3)]
    assert bad == [True, False, False]


def test_only_the_learner_whose_batch_is_bad_loses_it(tmp_path, monkeypatch):
    """Two learners in one native world, one of which is paid NaN."""
    from slipstream.collect.serial import RolloutRecorder

    real = RolloutRecorder.finish

    def finish(self: RolloutRecorder) -> Any:
        rollout = real(self)
        if self.seat.team.policy == "b" and (rollout.version[-1] == 1).all():
            rollout.reward[3, 1, 0] = np.nan
        return rollout

    monkeypatch.setattr(RolloutRecorder, "finish", finish)
    two = {"a": {"kind": "learning"}, "b": {"kind": "learning"}}
    base = scenario_of("probe_leaver", {**tiny("ppo"), "checkpoint.checkpoint_every": 32, "checkpoint.keep": 9})
    result = run(recast(base, two, {"stays": "a", "leaves": "b"}), tmp_path)
    (event,) = quarantined(result.run).values()
    assert (event["policy"], event["file"]) == ("b", "quarantine/b_00000001.safetensors")
    arrays = [checkpoint.load(result.run / "checkpoints" / f"checkpoint_{s}").arrays for s in (32, 64)]
    same = {policy: [] for policy in two}
    for name in (name for name in arrays[0] if name.startswith("policy.")):
        same[name.split(".")[1]].append(np.array_equal(arrays[0][name], arrays[1][name]))
    assert (all(same["a"]), all(same["b"])) == (False, True)


# --- in gradients and weights ---


class Meddler(Display):
    """Does something to the learner after two updates."""

    def __init__(self, patch: pytest.MonkeyPatch, meddle: Callable[[Any], None]) -> None:
        self.learner: Any = None
        self.meddle = meddle
        real = session.make_cast

        def spy(*args: Any) -> Any:
            cast = real(*args)
            (self.learner,) = cast.learners.values()
            return cast

        patch.setattr(session, "make_cast", spy)

    def advance(self, done: int, text: str) -> None:
        if done == 2 * 2 * SLAB:
            self.meddle(self.learner)


def assert_undone(result: Result, arrays: str) -> dict[str, np.ndarray]:
    """Update 2 left no trace but a file, and the updates after it went on."""
    assert result.model is not None
    ((update, event),) = quarantined(result.run).items()
    assert update == 2
    assert event["arrays"][0] == arrays
    assert learned(result.run, 2) == learned(result.run, 3)
    assert learned(result.run, 3) != learned(result.run, 4)
    return load_file(result.run / event["file"])


@pytest.mark.parametrize(
    ("kind", "number", "which"),
    [*((kind, np.nan, 0) for kind in ALGORITHMS), ("ppo", np.inf, 1), ("sac", np.inf, 1), ("td3", np.inf, 2)],
)
def test_a_bad_gradient_is_skipped_and_its_update_undone(kind, number, which, tmp_path, monkeypatch):
    real, left = FlatAdam.add_gradient, []

    def add_gradient(self: FlatAdam, grads: Any, *rest: Any, **more: Any) -> None:
        if left and left.pop() == "spoil":  # of SAC's 1 is the actor's, of TD3's 2
            grads = tuple(number * grad for grad in grads)
        real(self, grads, *rest, **more)

    monkeypatch.setattr(FlatAdam, "add_gradient", add_gradient)
    meddler = Meddler(monkeypatch, lambda _: left.extend(["spoil", *["spare"] * which]))
    result = run(sick(kind), tmp_path, display=meddler)
    saved = assert_undone(result, "the gradient")
    assert {"reward", "action"} <= set(saved)
    assert not not_finite(saved)  # the numbers that led there


def poke(learner: Any) -> None:
    with torch.no_grad():
        learner.actor.head.weight.view(-1)[0] = torch.nan


def poke_next(learner: Any) -> None:
    """The next update leaves a weight that is not finite."""
    real = learner.update

    def update(*args: Any) -> Any:
        said = real(*args)
        poke(learner)
        learner.update = real
        return said

    learner.update = update


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_weights_that_an_update_leaves_not_finite_are_those_before_it_again(kind, tmp_path, monkeypatch):
    result = run(sick(kind), tmp_path, display=Meddler(monkeypatch, poke_next))
    first = "the gradient" if ALGORITHMS[kind].traits.data == "replay" else "actor.head.weight"
    assert_undone(result, first)  # a second gradient step on a replay already fails


def test_errors_that_are_not_finite_never_become_priorities(tmp_path, monkeypatch):
    changes = {"algo.replay": {"capacity": 1000, "prioritised": {}}, "checkpoint.checkpoint_every": 10**6}
    result = run(sick("dqn", changes), tmp_path, display=Meddler(monkeypatch, poke_next))
    assert list(quarantined(result.run)) == [2]  # after its second gradient step
    arrays = checkpoint.load(result.checkpoint).arrays
    priority = arrays["feed.main.replay.priority"]
    assert len(np.unique(priority)) > 20
    assert np.isfinite([*priority, *arrays["feed.main.replay.largest_priority"]]).all()


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_weights_that_break_between_updates_are_mended_by_the_next(kind, tmp_path, monkeypatch):
    every_third = {"checkpoint.checkpoint_every": 3 * 2 * SLAB}  # a broken policy is never saved
    result = run(sick(kind, every_third), tmp_path, display=Meddler(monkeypatch, poke))
    assert result.model is not None
    assert list(quarantined(result.run)) == [2]
    assert learned(result.run, 3) != learned(result.run, UPDATES)


# --- giving up ---

EVERY = tuple(range(1, 2000))


@pytest.mark.parametrize("kind", ["ppo", "sac", "impala"])
def test_too_many_in_a_row_end_the_run_with_exit_code_2_and_a_checkpoint_that_resumes(kind, tmp_path, capsys):
    """Both worlds break at their tick 9, so that updates 1, 2 and 3 are bad."""
    scenario = sick(kind, {"stop.bad_batches": 3, "checkpoint.checkpoint_every": 10**6}, at=EVERY[8:])
    (tmp_path / "sick.yaml").write_text(dump(scenario))
    words = ["--out", str(tmp_path / "run"), "--models", str(tmp_path / "models")]
    assert main(["train", str(tmp_path / "sick.yaml"), *words]) == 2
    shown = capsys.readouterr()
    (sentence,) = [line for line in shown.err.splitlines() if line.startswith("slipstream: ")]
    assert re.search(r"'main': 3 batches .* reward\)", sentence)
    assert str(tmp_path / "run" / "quarantine") in sentence
    assert f"continue with: slipstream resume {tmp_path / 'run'}" in shown.out
    assert not (tmp_path / "models").exists()

    latest = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert latest.path.name == f"checkpoint_{4 * 2 * SLAB}"  # the updates that were set aside count as done
    assert not not_finite({k: v for k, v in latest.checkpoint.arrays.items() if k.startswith("policy.")})
    assert sorted(quarantined(tmp_path / "run")) == [1, 2, 3]
    # New worlds, which break at their tick 9 again: one good update is left of the budget.
    result = resume(tmp_path / "run", models=tmp_path / "models")
    assert (result.counters.updates, result.model is not None) == (UPDATES, True)
    assert learned(result.run, 4) != learned(result.run, 5)


@pytest.mark.parametrize("starts", [1, 10**6], ids=["learning", "warming up"])
@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_one_good_batch_starts_the_count_again(kind, starts, tmp_path):
    changes = {"stop.bad_batches": 2} | ({"algo.learning_starts": starts} if kind == "dqn" else {})
    result = run(sick(kind, changes, at=(1, 17, 33), episode=1000), tmp_path)  # updates 0, 2 and 4
    assert sorted(quarantined(result.run)) == [0, 2, 4]
    assert result.model is not None


def test_two_in_a_row_are_two_in_a_row(tmp_path):
    with pytest.raises(TrainingError, match=r"'main': 2 batches .*reward"):
        run(sick("ppo", {"stop.bad_batches": 2}, at=(1, 17, 25)), tmp_path)
    assert sorted(quarantined(tmp_path / "run")) == [0, 2, 3]


def test_bad_gradients_in_a_row_end_the_run_too(tmp_path, monkeypatch):
    monkeypatch.setattr(FlatAdam, "step", lambda self, learning_rate, max_norm: (float("nan"), {}))
    with pytest.raises(TrainingError, match=r"'main': 3 batches .* gradient\)"):
        run(sick("sac", {"stop.bad_batches": 3}), tmp_path)
    assert sorted(quarantined(tmp_path / "run")) == [0, 1, 2]


def test_twenty_files_are_enough(tmp_path):
    changes = {"stop.bad_batches": 1000, "checkpoint.checkpoint_every": 10**6}
    scenario = sick("ppo", changes, at=EVERY)
    plain = to_plain(scenario) | {"timesteps": 24 * 2 * SLAB}
    result = run(from_plain(plain), tmp_path)
    assert len(list((result.run / "quarantine").iterdir())) == MOST_FILES == 20
    events = quarantined(result.run)
    assert len(events) == 24
    assert [u for u, event in events.items() if event["file"] is None] == [20, 21, 22, 23]
    assert (result.run / "training_log.txt").read_text().count("was set aside") == 24


@pytest.mark.parametrize("call", ["write", "mkdir"])
def test_a_full_disk_does_not_stop_it(call, tmp_path, monkeypatch):
    real = getattr(os, call)

    def full(target: Any, *args: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if "quarantine" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(target, *args)

    monkeypatch.setattr(os, call, full)
    result = run(sick("ppo", at=(19,)), tmp_path)
    assert result.model is not None
    (event,) = quarantined(result.run).values()
    assert (event["update"], event["file"]) == (2, None)
    assert not list(result.run.glob("quarantine/*"))


# --- around it ---


def test_an_evaluation_that_is_not_finite_is_not_the_best(tmp_path):
    """Worlds of evaluations go on counting; one episode of five steps in each, so the first evaluation is paid NaN."""
    scenario = sick("ppo", {"evaluate.evaluation_interval": 1, "evaluate.evaluation_duration": 2}, at=(3,))
    result = run(scenario, tmp_path)
    means = [row["eval/return_mean"] for row in read_rows(result.run / "metrics.jsonl")]
    assert means == [None, 2 * 40 / 2, 2 * 65 / 2, 2 * 90 / 2, 2 * 115 / 2]
    assert result.counters.best_return == 115.0
    best = [path.name for path in (result.run / "checkpoints").iterdir() if path.name.startswith("best")]
    assert best == [f"best_reward_{2 * SLAB * 5}"]


def test_a_policy_that_is_shown_nan_still_acts(tmp_path):
    """Sick asserts that what reaches it is finite, in training and in evaluation."""
    for kind in ("ppo", "sac", "td3", "dqn"):
        changes = {"evaluate.evaluation_interval": 2, "evaluate.evaluation_duration": 2, "stop.bad_batches": 100}
        result = train(
            sick(kind, changes, what="obs", at=EVERY[20:30]), out=tmp_path / kind, models=tmp_path / "models"
        )
        assert result.model is not None
