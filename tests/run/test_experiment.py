"""The loop: what it evaluates, what it keeps, what it writes, and what it leaves to resume from."""

import csv
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from interrupted import KILLED
from learning import TINY, digest, python, recast, scenario_of, tiny

import slipstream
from slipstream.config.load import dump, from_plain, load, override, to_plain
from slipstream.config.stopping import StopKind, budget
from slipstream.data import checkpoint
from slipstream.data.run_folder import clock, read_tracks
from slipstream.errors import CheckpointError, RunFolderError, ScenarioError, WorldContractError
from slipstream.run.loop import Result
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.parts.report import episode_summary
from slipstream.run.progress import Display, Lines
from slipstream.run.session import resume, train
from slipstream.run.setup import make_evaluation_worlds, make_training_worlds
from slipstream.worlds.drmario import best_times
from slipstream.worlds.tools import RecordKeeping
from slipstream.worlds.world import tools_of, worlds


def run(name, tmp_path, folder="run", display=None, **changes) -> Result:
    scenario = scenario_of(name, {**TINY, **{key.replace("__", "."): value for key, value in changes.items()}})
    return train(scenario, out=tmp_path / folder, models=tmp_path / "models", display=display)


def rows_of(result: Result) -> list[dict]:
    return list(read_rows(result.run / "metrics.jsonl"))


def names_in(result: Result) -> set[str]:
    return {path.name for path in (result.run / "checkpoints").iterdir()}


# --- evaluation ---


def test_evaluations_come_every_interval_and_once_after_the_last_update(tmp_path):
    result = run("probe_leaver", tmp_path, evaluate__evaluation_interval=3, algo__minibatch_size=8)
    evaluated = [row["updates_total"] for row in rows_of(result) if "eval/return_mean" in row]
    assert evaluated == [3, 6, 8]
    assert {row["eval/episodes"] for row in rows_of(result) if "eval/episodes" in row} == {3.0}
    assert result.evaluation["eval/episodes"] == 3
    (finished,) = (e for e in read_rows(result.run / "events.jsonl") if e["event"] == "finished")
    assert finished["eval/return_mean"] == result.evaluation["eval/return_mean"]


def test_the_last_evaluation_is_in_metrics_csv_events_and_log_and_may_be_the_best(tmp_path):
    faster = {"algo__learning_rate": 0.05, "timesteps": 24 * 32, "evaluate__evaluation_interval": 23}
    result = run("probe_target", tmp_path, **faster)
    last = rows_of(result)[-1]
    assert (last["updates_total"], last["timesteps_total"]) == (24, 24 * 32)
    assert last["eval/return_mean"] == result.evaluation["eval/return_mean"] == result.counters.best_return
    with (result.run / "training_progress.csv").open() as file:
        assert float(list(csv.DictReader(file))[-1]["evaluation_reward_mean"]) == last["eval/return_mean"]
    told = [e["timesteps_total"] for e in read_rows(result.run / "events.jsonl") if e["event"] == "evaluation"]
    assert told == [23 * 32, 24 * 32]
    assert f"best_reward_{24 * 32}" in names_in(result)
    assert checkpoint.load(result.checkpoint).meta["counters"]["best_return"] == result.counters.best_return
    log = (result.run / "training_log.txt").read_text()
    assert [line for line in log.splitlines() if f"{24 * 32} steps" in line and "evaluation" in line]
    assert f"checkpoint_{24 * 32}" in log


def test_a_finished_run_that_is_opened_again_has_no_second_row_of_its_last_evaluation(tmp_path):
    first = run("probe_leaver", tmp_path, evaluate__evaluation_interval=3, algo__minibatch_size=8)
    before = metrics_hash(first.run / "metrics.jsonl")
    again = resume(first.run, models=tmp_path / "models")
    assert again.evaluation == first.evaluation
    assert metrics_hash(first.run / "metrics.jsonl") == before


def test_a_run_that_ends_below_its_best_says_where_the_best_is(tmp_path):
    shown = Noted()
    result = run("probe_target", tmp_path, display=shown, algo__learning_rate=0.05, timesteps=24 * 32)
    better = [text for text in shown.notes if "best_reward_" in text]
    assert bool(better) == (result.evaluation["eval/return_mean"] < result.counters.best_return)
    assert better, "this seed ends below its best"


class Noted(Display):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_no_two_evaluations_share_an_episode(tmp_path, monkeypatch):
    from slipstream.run.parts import evaluation

    played = []
    real = evaluation.play

    def spy(env, teams, episodes, seed, first=0, record=0):
        played.extend(range(first, first + episodes))
        return real(env, teams, episodes, seed, first, record)

    monkeypatch.setattr(evaluation, "play", spy)
    run("probe_constant", tmp_path)
    assert len(played) == len(set(played)) == 4 * 3
    assert max(played) < 2**31  # where judging begins


def test_evaluation_worlds_draw_apart_from_training_worlds_of_the_same_seed():
    scenario = scenario_of("probe_target", {"seed": 9, "evaluate.seed": 9, "collect.num_worlds": 64})
    training, evaluation = make_training_worlds(scenario), make_evaluation_worlds(scenario, 64)
    training.reset()
    evaluation.reset()
    shown = [{tuple(row) for row in env.obs["obs"][:, 0].tolist()} for env in (training, evaluation)]
    assert len(shown[0]) == len(shown[1]) == 64
    assert len(shown[0] & shown[1]) <= 1  # of 2049² possible pairs


def test_without_an_interval_nothing_is_evaluated(tmp_path):
    result = run("probe_constant", tmp_path, evaluate__evaluation_interval=None)
    assert not [row for row in rows_of(result) if "eval/return_mean" in row]
    assert result.evaluation == {}
    assert not [name for name in names_in(result) if name.startswith("best")]


def test_evaluating_does_not_disturb_training(tmp_path):
    often = run("probe_alternating", tmp_path, "a", evaluate__evaluation_interval=1)
    never = run("probe_alternating", tmp_path, "b", evaluate__evaluation_interval=None)
    assert digest(checkpoint.load(often.checkpoint).arrays) == digest(checkpoint.load(never.checkpoint).arrays)


# --- checkpoints ---


def test_the_best_checkpoint_is_that_of_the_highest_evaluation(tmp_path):
    result = run("probe_target", tmp_path, algo__learning_rate=0.05, timesteps=24 * 32, checkpoint__keep=1)
    means = {r["timesteps_total"]: r["eval/return_mean"] for r in rows_of(result) if "eval/return_mean" in r}
    best = max(means, key=lambda steps: means[steps])
    assert names_in(result) == {f"best_reward_{best}", f"checkpoint_{24 * 32}"}
    saved = checkpoint.load(result.run / "checkpoints" / f"best_reward_{best}")
    assert saved.meta["counters"]["best_return"] == means[best] == result.counters.best_return


def test_several_best_checkpoints_stay_when_asked(tmp_path):
    changes = {"algo__learning_rate": 0.05, "timesteps": 24 * 32, "checkpoint__keep_best": 3}
    result = run("probe_target", tmp_path, **changes)
    written = [e["path"] for e in read_rows(result.run / "events.jsonl") if e["event"] == "checkpoint"]
    best = [name for name in written if name.startswith("best_")]
    assert len(best) > 3
    assert {name for name in names_in(result) if name.startswith("best_")} == set(best[-3:])


def test_an_equal_evaluation_is_not_a_better_one(tmp_path):
    result = run("probe_constant", tmp_path)  # every evaluation returns 8
    assert [name for name in names_in(result) if name.startswith("best")] == ["best_reward_64"]


def test_periodic_checkpoints_come_when_asked_and_only_the_newest_stay(tmp_path):
    result = run("probe_constant", tmp_path, checkpoint__checkpoint_every=64, checkpoint__keep=2)
    written = [e["path"] for e in read_rows(result.run / "events.jsonl") if e["event"] == "checkpoint"]
    assert written == ["checkpoint_0", "best_reward_64", *(f"checkpoint_{steps}" for steps in (64, 128, 192, 256))]
    assert names_in(result) == {"best_reward_64", "checkpoint_192", "checkpoint_256"}
    assert result.checkpoint.name == "checkpoint_256"


# --- the run folder ---


def test_a_run_folder_is_what_the_design_says(tmp_path):
    result = run("head_on", tmp_path)
    assert {path.name for path in result.run.iterdir()} == {
        "scenario.yaml",
        "config.json",
        "metadata.json",
        "metrics.jsonl",
        "training_progress.csv",
        "events.jsonl",
        "training_log.txt",
        "checkpoints",
        "frames",
        ".lock",
    }
    assert result.model is not None
    assert result.model.parent == tmp_path / "models"
    assert result.model.name.startswith("PPO_head_on_")
    with (result.run / "training_progress.csv").open() as file:
        table = list(csv.DictReader(file))
    columns = ["timesteps_total", "episode_reward_mean", "episode_reward_min", "episode_reward_max"]
    columns += ["episode_len_mean", "zero_conflict_streak", "num_env_steps_sampled", "num_agent_steps_sampled"]
    assert list(table[0])[: len(columns)] == columns
    assert [int(row["timesteps_total"]) for row in table] == [32 * i for i in range(1, 9)]
    record = json.loads((result.run / "metadata.json").read_text())
    assert record["sessions"][-1]["outcome"] == result.reason
    assert len(read_tracks(result.run)) == 4  # the first episode of every evaluation


def test_the_saved_scenario_is_resolved_and_repeats_the_run(tmp_path):
    auto = {"learner_threads": "auto", "collect.world_threads": "auto", "device": "auto"}
    scenario = override(load("probe_coordination"), {**TINY, **auto})
    first = train(scenario, out=tmp_path / "first", models=tmp_path / "models")
    text = (first.run / "scenario.yaml").read_text()
    assert "auto" not in text
    saved = load(first.run / "scenario.yaml")
    assert to_plain(saved) == json.loads((first.run / "config.json").read_text())
    again = train(saved, out=tmp_path / "again", models=tmp_path / "models")
    assert digest(checkpoint.load(again.checkpoint).arrays) == digest(checkpoint.load(first.checkpoint).arrays)
    assert metrics_hash(again.run / "metrics.jsonl") == metrics_hash(first.run / "metrics.jsonl")


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_stays(tmp_path):
    first = run("probe_constant", tmp_path)
    before = {path: path.read_bytes() for path in first.run.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError, match=re.escape(f"slipstream resume {first.run}")):
        run("probe_constant", tmp_path)
    assert {path: path.read_bytes() for path in first.run.rglob("*") if path.is_file()} == before


def test_exports_of_the_same_second_do_not_collide(tmp_path):
    models = {run("probe_constant", tmp_path, f"run{i}", timesteps=32).model for i in range(3)}
    assert len(models) == 3
    assert all(path is not None and path.is_dir() for path in models)


@pytest.mark.parametrize("name", ["probe_target", "probe_duration"])
def test_what_the_first_training_worlds_did_is_written_as_csv_when_asked(name, tmp_path):
    result = run(name, tmp_path, log__training_worlds=2, timesteps=64)
    files = sorted(path.name for path in (result.run / "trajectories").iterdir())
    assert files == ["train_main_000001.csv", "train_main_000002.csv"]
    with (result.run / "trajectories" / files[0]).open() as file:
        rows = list(csv.DictReader(file))
    assert {row["world"] for row in rows} == {"0", "1"}
    paid = [float(row["reward"]) for row in rows if row["paid"] == "1"]
    episodes = [e for e in rows_of(result)[:1] if "env/return_mean" in e]
    assert paid
    assert np.isfinite(paid).all()
    assert episodes
    assert any(key.startswith("obs_") for key in rows[0])
    assert any(key.startswith("action") for key in rows[0])


def test_trajectories_are_written_as_csv_when_asked(tmp_path):
    result = run("probe_corridor", tmp_path, log__log_trajectories=True, timesteps=64)
    files = sorted(path.name for path in (result.run / "trajectories").iterdir())
    assert files == [f"traj_ep_000002_{k:04d}.csv" for k in range(3)]
    with (result.run / "trajectories" / files[0]).open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step_idx"]) for row in rows] == list(range(len(rows)))
    assert {row["agent_id"] for row in rows} == {"walker"}


def test_the_recorded_episodes_are_a_ring(tmp_path):
    result = run("probe_corridor", tmp_path, log__frames_keep=2)
    assert [track.timesteps_total for track in read_tracks(result.run)] == [192, 256]


# --- several policies ---


def test_two_learners_and_a_script_train_together_and_report_apart(tmp_path):
    three = {"a": {"kind": "learning"}, "b": {"kind": "learning"}, "c": {"kind": "scripted", "script": "best"}}
    teams = {"stays_0": "a", "stays_1": "c", "leaves": "b"}
    scenario = recast(scenario_of("probe_leaver", {**TINY, "algo.minibatch_size": 8}), three, teams)
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    row = rows_of(result)[-1]
    assert {"train/a/policy_loss", "train/b/policy_loss"} <= set(row)
    assert not [key for key in row if key.startswith("train/c")]
    state = checkpoint.load(result.checkpoint)
    assert {name.split(".")[1] for name in state.arrays if name.startswith("policy.")} == {"a", "b"}
    weights = [state.arrays[f"policy.{p}.actor.head.weight"] for p in "ab"]
    assert not np.array_equal(*weights)


def test_a_learner_may_have_an_algorithm_of_its_own(tmp_path):
    scenario = scenario_of("probe_leaver", {**TINY, "algo.minibatch_size": 8})
    own = {**to_plain(scenario)["algo"], "hidden": [5], "gamma": 0.5}
    two = {"a": {"kind": "learning"}, "b": {"kind": "learning", "algo": own}}
    result = train(
        recast(scenario, two, {"stays": "a", "leaves": "b"}), out=tmp_path / "run", models=tmp_path / "models"
    )
    arrays = checkpoint.load(result.checkpoint).arrays
    assert arrays["policy.a.actor.head.weight"].shape == (2, 16)
    assert arrays["policy.b.actor.head.weight"].shape == (2, 5)


def test_learners_with_different_discounts_are_refused_where_decisions_last(tmp_path):
    scenario = scenario_of("probe_alternating", TINY)
    own = {**to_plain(scenario)["algo"], "gamma": 0.5}
    two = {"a": {"kind": "learning"}, "b": {"kind": "learning", "algo": own}}
    with pytest.raises(ScenarioError, match=r"policies: .* probe/alternating .*0\.9, 0\.5"):
        train(recast(scenario, two, {"every_2": "a", "every_3": "b"}), out=tmp_path / "run")


def test_a_budget_that_is_no_whole_number_of_rollouts_says_how_it_is_spent(tmp_path):
    result = run("probe_constant", tmp_path, timesteps=40)  # rollouts of 32
    assert result.counters.steps == 64
    assert result.ended.kind is StopKind.BUDGET
    assert re.search(" 40 .* 32", result.reason)
    assert budget(override(load("probe_constant"), TINY)) == "budget of 256 steps"


# --- resuming ---


def test_a_damaged_newest_checkpoint_is_passed_over_and_said(tmp_path):
    class Notes(Display):
        def __init__(self):
            self.said = []

        def note(self, text):
            self.said.append(text)

    result = run("probe_delayed", tmp_path, checkpoint__checkpoint_every=64)
    whole = digest(checkpoint.load(result.checkpoint).arrays)
    with (result.checkpoint / "arrays.safetensors").open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff\xff")
    notes = Notes()
    again = resume(result.run, models=tmp_path / "models", display=notes)
    assert "checkpoint_256" in notes.said[0]
    assert digest(checkpoint.load(again.checkpoint).arrays) == whole
    assert [name for name in names_in(again) if name.startswith("damaged_checkpoint_256")]
    assert [row["timesteps_total"] for row in rows_of(again)] == [32 * i for i in range(1, 9)]


def test_resuming_a_finished_run_changes_nothing_and_says_so(tmp_path):
    result = run("probe_constant", tmp_path)
    before = digest(checkpoint.load(result.checkpoint).arrays)
    again = resume(result.run, models=tmp_path / "models")
    assert again.ended.kind is StopKind.BUDGET
    assert again.counters == result.counters
    assert digest(checkpoint.load(again.checkpoint).arrays) == before
    assert len(rows_of(again)) == 8
    sessions = json.loads((result.run / "metadata.json").read_text())["sessions"]
    assert [s["timesteps_at_start"] for s in sessions] == [0, 256]


def test_a_run_that_its_rule_ended_stays_ended_unless_more_steps_are_asked_for(tmp_path):
    first = run("probe_constant", tmp_path, stop__target_return=8.0)
    assert first.counters.steps == 64
    again = resume(first.run, models=tmp_path / "models")
    assert again.counters.steps == 64
    assert again.ended.kind is StopKind.RULE
    assert " 8.00" in again.reason
    with pytest.raises(ScenarioError, match=r"--timesteps 64: .* 64 "):
        resume(first.run, timesteps=64, models=tmp_path / "models")
    more = resume(first.run, timesteps=192, models=tmp_path / "models")
    assert more.counters.steps == 192
    assert [row["timesteps_total"] for row in rows_of(more)] == [32 * i for i in range(1, 7)]


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"algo.hidden": [24]}, CheckpointError, r"actor\.torso\.0\.weight: .*\(16, 3\).*\(24, 3\)"),
        ({"collect.num_worlds": 8}, WorldContractError, r"probe/delayed: .* \d+ bytes"),
    ],
)
def test_a_scenario_that_no_longer_fits_its_checkpoint_is_refused(change, kind, said, tmp_path):
    result = run("probe_delayed", tmp_path)
    changed = override(load(result.run / "scenario.yaml"), change)
    (result.run / "scenario.yaml").write_text(dump(changed))
    with pytest.raises(kind, match=said):
        resume(result.run, timesteps=512, models=tmp_path / "models")


@pytest.mark.parametrize(
    ("spoil", "said"), [("counters", "`object`.*`str`"), ("stop", "`object`.*`str`"), ("kind", "'nonsense'.*'run'")]
)
def test_a_checkpoint_that_is_no_state_of_a_run_is_refused(spoil, said, tmp_path):
    result = run("probe_constant", tmp_path)
    saved = checkpoint.load(result.checkpoint)
    saved.meta[spoil] = "nonsense"
    checkpoint.save(result.checkpoint, saved)
    with pytest.raises(CheckpointError, match=re.escape(f"{result.run}: ") + f".*{said}"):
        resume(result.run, models=tmp_path / "models")


# --- replays in checkpoints ---

REPLAY = {**tiny("dqn"), "checkpoint.checkpoint_every": 32, "checkpoint.keep": 2, "algo.replay.capacity": 1000}


class Watch(Display):
    """Looks at the segments of a run before each checkpoint; of a file its bytes, node and time."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "replay" / "main"
        self.seen: list[dict[str, tuple[int, int, int]]] = []
        self.at_start: list[str] | None = None

    def look(self) -> dict[str, tuple[int, int, int]]:
        files = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        stats = {path.name: path.stat() for path in files}
        return {name: (stat.st_size, stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}

    def start(self, title: str, done: int, total: int) -> None:
        self.at_start = sorted(self.look())

    def advance(self, done: int, text: str) -> None:
        self.seen.append(self.look())


def listed(run: Path) -> set[str]:
    """Segments that the checkpoints of a run list."""
    paths = checkpoint.list_checkpoints(run / "checkpoints")
    return {segment["name"] for path in paths for segment in checkpoint.load(path).meta["segments"]["main"]}


def test_a_checkpoint_writes_only_what_is_new_in_the_replay(tmp_path):
    watch = Watch(tmp_path / "run")
    result = train(scenario_of("probe_constant", REPLAY), out=watch.folder.parents[1], display=watch)
    looks = [*watch.seen, watch.look()]
    assert [list(look) for look in looks[:4]] == [[], ["0_32.safetensors"], *[sorted(look) for look in looks[2:4]]]
    for earlier, later in pairwise(looks):
        assert earlier.items() <= later.items()  # nothing that is there is written again
        assert len(later) == len(earlier) + 1
    sizes = [size for size, *_ in looks[-1].values()]
    row = 4 + 4 + 4 + 4 + 4  # obs, action, reward, discount, next_obs
    assert max(sizes) < 32 * row + 700  # a header
    assert sum(sizes) < 256 * row + 8 * 700
    assert set(looks[-1]) == listed(result.run) == {f"{i}_{i + 32}.safetensors" for i in range(0, 256, 32)}


def test_segments_disappear_with_the_last_checkpoint_that_lists_them(tmp_path):
    changes = {**REPLAY, "algo.replay.capacity": 50, "evaluate.evaluation_interval": None}
    watch = Watch(tmp_path / "run")
    result = train(scenario_of("probe_constant", changes), out=watch.folder.parents[1], display=watch)
    assert names_in(result) == {"checkpoint_224", "checkpoint_256"}
    # Rows 174 to 224 and 206 to 256, in segments of 32.
    assert set(watch.look()) == listed(result.run) == {f"{i}_{i + 32}.safetensors" for i in (160, 192, 224)}
    assert [len(look) for look in watch.seen] == [0, 1, 2, 3, 3, 3, 3, 3]


def test_nothing_stray_is_left_once_a_run_is_resumed(tmp_path):
    first = train(scenario_of("probe_constant", REPLAY), out=tmp_path / "run", models=tmp_path / "models")
    folder = first.run / "replay" / "main"
    before = sorted(path.name for path in folder.iterdir())
    (folder / "256_288.safetensors").write_bytes(b"of a checkpoint that was never finished")
    (folder / ".tmp-288_320.safetensors").write_bytes(b"half")
    watch = Watch(first.run)
    resume(first.run, timesteps=320, models=tmp_path / "models", display=watch)
    assert watch.at_start == before
    assert set(watch.look()) == listed(first.run)


def test_each_learner_has_a_replay_of_its_own(tmp_path):
    two = {"a": {"kind": "learning"}, "b": {"kind": "learning"}}
    scenario = recast(scenario_of("probe_leaver", REPLAY), two, {"stays": "a", "leaves": "b"})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    saved = checkpoint.load(result.checkpoint)
    added = {name: int(saved.arrays[f"feed.{name}.replay.total_added"][0]) for name in two}
    assert added["a"] == 2 * 256
    assert 0 < added["b"] < 256
    last = {name: saved.meta["segments"][name][-1]["name"] for name in two}
    assert all(last[name].endswith(f"_{added[name]}.safetensors") for name in two)
    assert sorted(path.name for path in (result.run / "replay").iterdir()) == ["a", "b"]


def test_a_kill_before_any_file_system_call_of_a_save_changes_nothing_in_the_end(tmp_path):
    done = python(str(Path(__file__).with_name("interrupted.py")), "kill", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = train(scenario_of("probe_constant", KILLED), out=tmp_path / "whole", models=tmp_path / "models")
    expected = digest(checkpoint.load(whole.checkpoint).arrays), metrics_hash(whole.run / "metrics.jsonl")
    runs = sorted(tmp_path.glob("killed_*"))
    assert len(runs) > 15
    for path in runs:
        latest = checkpoint.load_latest(path / "checkpoints")
        assert latest.skipped == []
        assert (digest(latest.checkpoint.arrays), metrics_hash(path / "metrics.jsonl")) == expected, path.name
        assert {segment.name for segment in (path / "replay" / "main").iterdir()} == listed(path)
        assert not list(path.rglob(".tmp-*"))


# --- the Python face, and what people see ---


def test_the_python_call_returns_the_final_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = slipstream.train(
        "probe_constant",
        algo="PPO",
        timesteps=64,
        collect__num_worlds=4,
        collect={"rollout_length": 8},
        algo__minibatch_size=16,
    )
    assert path.parent.parent.parent.resolve() == tmp_path / "runs"
    assert checkpoint.load(path).meta["counters"]["steps"] == 64
    assert slipstream.load_policy(path).act(np.zeros(1)) in (0, 1)
    assert "stopped after 64 steps" in capsys.readouterr().out


def test_lines_say_rate_and_time_left(capsys):
    lines = Lines()
    lines.start("training x", 0, 1000)
    lines.advance(10, "return 1.00")  # too soon for another line
    lines.advance(1000, "return 2.00")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "training x"
    assert len(shown) == 2
    assert "1,000 steps 100%" in shown[1]
    assert "left  return 2.00" in shown[1]


def test_clock_reads_as_people_say_it():
    assert [clock(s) for s in (0, 65.9, 3723)] == ["0:00", "1:05", "1:02:03"]


def test_no_finished_episode_gives_no_row():
    assert episode_summary([], ["x"], [0]) == {}


def test_saved_scenarios_load_from_their_checkpoint(tmp_path):
    result = run("probe_bandit", tmp_path)
    saved = checkpoint.load(result.checkpoint)
    assert from_plain(saved.meta["scenario"]) == load(result.run / "scenario.yaml")


def test_every_game_leaves_a_line_when_asked_to_and_frames_are_counted(tmp_path):
    asked = {**TINY, "timesteps": 4 * 16 * 6, "collect.num_worlds": 4, "collect.rollout_length": 16}
    scenario = scenario_of("drmario_level_0", {**asked, "algo.minibatch_size": 64, "world.max_pills": 9})
    done = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    events = [json.loads(line) for line in (done.run / "events.jsonl").read_text().splitlines()]
    ends = [event for event in events if event["event"] == "episode_end"]
    rows = list(read_rows(done.run / "metrics.jsonl"))
    assert len(ends) == rows[-1]["episodes_total"] > 10
    for world in range(4):
        assert [e["episode"] for e in ends if e["world"] == world] == list(
            range(sum(e["world"] == world for e in ends))
        )
    assert {end["terminal_reason"] for end in ends} <= {"success", "top_out", "timeout"}
    assert all(end["frames"] > 30 * end["decisions"] > 0 for end in ends)
    played = sum(end["frames"] for end in ends)
    assert played <= rows[-1]["global_step_frames_total"] <= played + 4 * 9 * 400
    assert all(row["perf/sps_frames_total"] > row["perf/dps_decisions_total"] > 0 for row in rows)
    quiet = train(scenario_of("head_on", TINY), out=tmp_path / "quiet", models=tmp_path / "models")
    assert "episode_end" not in (quiet.run / "events.jsonl").read_text()
    assert "global_step_frames_total" not in next(iter(read_rows(quiet.run / "metrics.jsonl")))


def test_a_discount_per_second_is_worked_out_for_the_worlds_own_ticks():
    games = scenario_of("drmario_level_0", {"algo.gamma_per_second": 0.5})
    assert games.algo.gamma_per_second is None
    assert games.algo.gamma**60.0988 == pytest.approx(0.5)
    flights = scenario_of("head_on", {"algo.gamma_per_second": 0.99})
    worlds = make_training_worlds(flights)
    assert flights.algo.gamma == pytest.approx(0.99**worlds.spec.tick_seconds)
    with pytest.raises(ScenarioError, match=r"algo\.gamma_per_second: CartPole-v1 "):
        scenario_of("cartpole", {"algo.gamma_per_second": 0.9})
    assert scenario_of("head_on").algo.gamma == load("head_on").algo.gamma


def test_records_are_kept_of_every_episode_and_failing_to_is_told_once(tmp_path, monkeypatch):
    asked = {**TINY, "timesteps": 4 * 16 * 4, "collect.num_worlds": 4, "collect.rollout_length": 16}
    scenario = scenario_of("drmario_level_0", {**asked, "algo.minibatch_size": 64, "world.max_pills": 5})
    kept = []

    def keep(config, folder, stats, episodes, run):
        assert (config, folder.name, run) == (scenario.world, "run", "run")
        kept.extend(dict(zip(stats, row, strict=True)) for row in episodes)
        raise ScenarioError("the database is somebody else's")

    tools = tools_of("drmario")._replace(records=RecordKeeping(keep, lambda folder: None))
    monkeypatch.setitem(worlds(), "drmario", worlds()["drmario"]._replace(tools=lambda: tools))
    done = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert len(kept) == done.counters.episodes > 10
    assert all(1 <= row["seed"] <= 28671 for row in kept)
    assert (done.run / "training_log.txt").read_text().count("records are not kept from here on") == 1


def test_a_clear_is_kept_in_the_runs_folder_once(tmp_path):
    world = scenario_of("drmario_level_0").world
    stats = ("success", "clear_frames", "pills", "level", "seed")
    rows = [(1.0, 700.0, 12.0, 0.0, 5.0), (0.0, float("nan"), 30.0, 0.0, 6.0)]
    for _ in range(2):  # a resumed run tells again what it had told
        tools_of("drmario").records.keep(world, tmp_path, stats, rows, "run")
    (clear,) = best_times.clears(tmp_path / best_times.FILE)
    assert (clear.level, clear.seed, clear.frames, clear.pills, clear.run) == (0, 5, 700, 12, "run")
    assert tools_of("airspace").records is None
