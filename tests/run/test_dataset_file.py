"""Dataset files: trusted only whole, merged by count, described in figures."""

import os
import pickle
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from learning import python, scenario_of

from slipstream.data import checkpoint, dataset_file
from slipstream.data.arrays_file import content_hash
from slipstream.data.dataset_file import (
    Dataset,
    DatasetPart,
    DatasetRecord,
    Returns,
    from_arrays,
    load_dataset,
    merge,
    read_dataset,
    read_record,
    save_dataset,
)
from slipstream.data.dataset_summary import describe
from slipstream.data.transitions import TERMINATED, TRUNCATED, from_fields, to_fields
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.replay import buffer as replay
from slipstream.run.record import record
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec


def bits(dataset: Dataset) -> str:
    return content_hash({**to_fields(dataset.rows), "end": dataset.end})


# --- memory ---


def test_recording_reading_and_merging_refuse_memory_that_is_not_there(tmp_path, monkeypatch):
    dataset = record("probe_leaver", 100)
    save_dataset(tmp_path / "small", dataset)
    monkeypatch.setattr(replay, "available_memory", lambda: dataset.record.nbytes - 1)
    for attempt in (
        lambda: record("probe_leaver", 100),
        lambda: read_dataset(tmp_path / "small"),
        lambda: merge([tmp_path / "small"]),
    ):
        with pytest.raises(ScenarioError, match=r" 100 transitions .* 0\.00 GB .* 0\.00 GB "):
            attempt()


# --- files ---


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("datasets") / "good"
    save_dataset(path, record("probe_bandit", 200, seed=1))
    return path


def test_a_saved_dataset_reads_back_equal(good):
    dataset = read_dataset(good)
    again = record("probe_bandit", 200, seed=1)
    assert dataset.record == again.record == read_record(good)
    assert bits(dataset) == bits(again)


def test_a_dataset_replaces_nothing(good, tmp_path):
    before = (good / "meta.json").read_bytes()
    with pytest.raises(ScenarioError, match=re.escape(f"{good}: ")):
        save_dataset(good, read_dataset(good))
    assert (good / "meta.json").read_bytes() == before
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "..", tmp_path / "a b"):
        with pytest.raises(ScenarioError):
            save_dataset(place, read_dataset(good))
    assert (tmp_path / "file").read_text() == "mine"


def test_too_large_for_the_disk_is_found_out_before(tmp_path):
    dataset_file.check_target(tmp_path / "fits", 1000)
    with pytest.raises(ScenarioError, match=r"/huge: 4,611,686,018\.43 GB .* GB "):
        dataset_file.check_target(tmp_path / "huge", 2**62)


@pytest.mark.parametrize("name", ["arrays.safetensors", "meta.json"])
def test_a_flip_of_any_bit_is_refused(name, good, tmp_path):
    rng = np.random.default_rng(0)
    whole = (good / name).read_bytes()
    path = tmp_path / "copy"
    path.mkdir()
    for file in good.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    for place in rng.integers(0, len(whole), 60).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        (path / name).write_bytes(damaged)
        with pytest.raises(CheckpointError):
            read_dataset(path)
    for cut in (0, 10, len(whole) - 1):
        (path / name).write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            read_dataset(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=re.escape(name)):
        read_dataset(path)


def test_damage_is_told_in_the_words_of_datasets(good, tmp_path):
    path = tmp_path / "copy"
    path.mkdir()
    (path / "meta.json").write_bytes((good / "meta.json").read_bytes())
    (path / "arrays.safetensors").write_bytes((good / "arrays.safetensors").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"arrays\.safetensors: \d+ bytes .* \d+ ") as said:
        read_dataset(path)
    assert "dataset" in said.value.advice
    assert "checkpoint" not in said.value.advice


def one_each(array: np.ndarray, *values: float) -> np.ndarray:
    """The same with these values in its last places."""
    changed = array.copy()
    changed.reshape(-1)[-len(values) :] = values
    return changed


def forged(tmp_path: Path, good: Dataset, arrays: dict | None = None, **meta) -> Path:
    """A dataset whose checksums are all right: a stranger can compute those too."""
    path = tmp_path / f"forged{len(list(tmp_path.iterdir()))}"
    fields = {**to_fields(good.rows), "end": good.end} if arrays is None else arrays
    plain = {"kind": "dataset", "version": 1, "dataset": msgspec.to_builtins(good.record)}
    rows = {f"rows.{name}": array for name, array in fields.items()}
    checkpoint.save(path, checkpoint.Checkpoint(rows, plain | meta))
    return path


def test_a_record_that_is_not_of_its_rows_is_refused(good, tmp_path):
    dataset = read_dataset(good)
    fields = {**to_fields(dataset.rows), "end": dataset.end}
    told = msgspec.to_builtins(dataset.record)
    wrong_rows = {
        "reward is .*float64.*float32": {**fields, "reward": fields["reward"].astype(np.float64)},
        "next_mask is .*uint8": {name: array for name, array in fields.items() if name != "next_mask"},
        r"extra is .*uint8.*\(200,\)": {**fields, "extra": fields["end"]},
        r"action is .*\(199,\).*\(200,\)": {**fields, "action": fields["action"][:-1]},
        ": choices from 0 to 4, .* 4$": {**fields, "action": fields["action"] + (fields["action"] == 3)},
        ": choices from -1 to 2, .* 4$": {**fields, "action": fields["action"] - 1},
        "NaN .* reward$": {**fields, "reward": np.full_like(fields["reward"], np.nan)},
        r"NaN .* obs\.obs$": {**fields, "obs.obs": one_each(fields["obs.obs"], np.inf, -np.inf)},
        r"row \d+: end 1 and discount 1 ": {**fields, "discount": np.ones_like(fields["discount"])},
        r"row \d+: end 0 and discount -": {**fields, "discount": -fields["discount"]},
        r"row \d+: end 0 and discount 1\.\d": {**fields, "discount": 1.5 * fields["discount"]},
        r"row \d+: end 3 and discount 0 ": {**fields, "end": fields["end"] * 3},
    }
    for said, arrays in wrong_rows.items():
        with pytest.raises(CheckpointError, match=said):
            read_dataset(forged(tmp_path, dataset, arrays))
    wrong_meta = {
        " model$": {"kind": "model"},
        "version 2, .* 1;": {"version": 2},
        "`world`": {"dataset": {}},
        "`code`": {"dataset": told | {"code": "import os"}},
        r"`int`.*`str`.*`\$\.rows`": {"dataset": told | {"rows": "many"}},
        " 0 rows$": {"dataset": told | {"rows": 0, "parts": []}},
        r"action is .*\(200,\).*\(1000000,\)": {"dataset": told | {"rows": 10**6}},
        " 400 rows, .* 200$": {"dataset": told | {"parts": told["parts"] * 2}},
        " 1,000,000,000,000,000 transitions .* GB ": {"dataset": told | {"rows": 10**15}},
    }
    for said, meta in wrong_meta.items():
        with pytest.raises((CheckpointError, ScenarioError), match=said):
            read_dataset(forged(tmp_path, dataset, **meta))


def test_what_is_no_dataset_is_refused_clearly(tmp_path):
    (tmp_path / "d4rl.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "d4rl.hdf5", tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=re.escape(f"{path}: ") + r".*meta\.json"):
            read_dataset(path)


WATCHED = """
import sys
from pathlib import Path
from slipstream.errors import SlipstreamError
from slipstream.data.dataset_file import read_dataset
read_dataset(Path(sys.argv[1]))  # so that what Python itself imports on first use is out of the way
seen = []
def watch(event, args):
    if event.split(".")[0] in ("import", "exec", "compile", "pickle", "os", "subprocess", "socket", "marshal"):
        if event not in ("os.listdir", "os.scandir"):
            seen.append(event)
sys.addaudithook(watch)
for path in sys.argv[1:]:
    try:
        read_dataset(Path(path))
        print("read")
    except SlipstreamError:
        print("refused")
print(seen)
"""


def test_reading_runs_no_code(good, tmp_path):
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'canary'}",)

    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "meta.json").write_bytes((good / "meta.json").read_bytes())
    (pickled / "arrays.safetensors").write_bytes(pickle.dumps(Payload()))
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "meta.json").write_bytes(pickle.dumps(Payload()))
    done = python("-c", WATCHED, str(good), str(pickled), str(hostile), cwd=tmp_path)
    assert done.stdout.splitlines() == ["read", "refused", "refused", "[]"], done.stderr
    assert not (tmp_path / "canary").exists()


# --- learning from it ---


def test_a_learner_gets_the_rows_with_its_own_gamma(tmp_path):
    dataset = record("probe_corridor", 300, seed=1, gamma=0.9)
    save_dataset(tmp_path / "d", dataset)
    spec = dataset.record.world
    same = load_dataset(str(tmp_path / "d"), spec, True, 0.9).rows
    assert content_hash(to_fields(same)) == content_hash(to_fields(dataset.rows))
    other = load_dataset(str(tmp_path / "d"), spec, True, 0.5).rows
    np.testing.assert_array_equal(other.discount, np.where(dataset.end == TERMINATED, 0, np.float32(0.5)))
    np.testing.assert_array_equal(other.reward, dataset.rows.reward)
    assert other.discount.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "changes"), [("probe_duration", {}), ("probe_corridor", {"shaping.use_potential_shaping": True})]
)
def test_rewards_that_hold_a_gamma_need_that_gamma(name, changes, tmp_path):
    dataset = record(scenario_of(name, changes), 100, gamma=0.9)
    save_dataset(tmp_path / "d", dataset)
    load_dataset(str(tmp_path / "d"), dataset.record.world, True, 0.9)
    with pytest.raises(ScenarioError, match=r"algo\.gamma: .* gamma 0\.9, .* algo\.gamma to 0\.9, .*--gamma 0\.95"):
        load_dataset(str(tmp_path / "d"), dataset.record.world, True, 0.95)


def test_a_learner_in_another_world_is_refused(tmp_path, good):
    spec = record("probe_target", 10).record.world
    with pytest.raises(ScenarioError, match=r"probe/bandit \(4 inputs, 4 choices\).* probe/target .*\(3 inputs, 2 "):
        load_dataset(str(good), spec, False, 0.9)
    save_dataset(tmp_path / "axes", record("probe_target", 10))
    with pytest.raises(ScenarioError, match=r"2 action axes\).*\(3 inputs, 4 choices\)"):
        load_dataset(str(tmp_path / "axes"), spec, True, 0.9)


# --- merging ---


def made(numbers: range, parts: list[int] | None = None, **changes) -> Dataset:
    """Rows whose every number is the row's own."""
    count = len(numbers)
    spec = WorldSpec(
        name="test/line",
        agents=("a",),
        roles=("a",),
        obs=(ObsBlock("obs", "float32", (1,), -1e9, 1e9),),
        action=ActionSpec(discrete=True, size=1000),
    )
    values = np.asarray(numbers, np.float32)
    arrays = {"obs.obs": values[:, None], "next_obs.obs": values[:, None] + 1, "reward": values}
    arrays |= {"action": np.asarray(numbers, np.int32), "discount": np.full(count, 0.5, np.float32)}
    arrays["end"] = np.zeros(count, np.uint8)
    told = DatasetRecord(spec, True, 0.5, 0.0, count, tuple(part(n) for n in parts or [count]))
    return from_arrays(msgspec.structs.replace(told, **changes), arrays)


def part(rows: int, policy: str = "random") -> DatasetPart:
    returns = Returns(rows, float(rows), 0.0, 2.0 * rows)
    return DatasetPart(rows, rows, "here", policy, False, "main", ("a",), 1, 1, {"kind": "probe"}, returns)


def test_merging_puts_rows_one_behind_the_other():
    merged = merge([made(range(5)), made(range(100, 103)), made(range(50, 52))])
    assert merged.rows.reward.tolist() == [0, 1, 2, 3, 4, 100, 101, 102, 50, 51]
    assert [p.rows for p in merged.record.parts] == [5, 3, 2]
    assert merged.record.rows == 10
    some = merge([made(range(5)), made(range(100, 103))], [2, 3])
    assert some.rows.reward.tolist() == [0, 1, 100, 101, 102]
    assert [(p.rows, p.recorded, p.draw_seed) for p in some.record.parts] == [(2, 5, None), (3, 3, None)]


def test_every_array_is_merged_and_files_are_as_good_as_values(tmp_path):
    first, second = record("probe_bandit", 120, seed=1), record("probe_bandit", 80, seed=2, policy="best")
    save_dataset(tmp_path / "first", first)
    save_dataset(tmp_path / "second", second)
    merged = merge([tmp_path / "first", tmp_path / "second"], [100, 50])
    assert bits(merged) == bits(merge([first, second], [100, 50]))
    for name, array in {**to_fields(merged.rows), "end": merged.end}.items():
        one, two = ({**to_fields(d.rows), "end": d.end}[name] for d in (first, second))
        np.testing.assert_array_equal(array, np.concatenate([one[:100], two[:50]]))


def test_a_drawn_part_is_a_random_subset_in_recorded_order():
    source = made(range(100))
    drawn = merge([source, made(range(200, 300))], [30, 20], seed=7)
    numbers = drawn.rows.reward.tolist()
    assert numbers[:30] == sorted(set(numbers[:30]))
    assert numbers[30:] == sorted(set(numbers[30:]))
    assert set(numbers[:30]) <= set(range(100))
    assert set(numbers[30:]) <= set(range(200, 300))
    assert bits(drawn) == bits(merge([source, made(range(200, 300))], [30, 20], seed=7))
    assert bits(drawn) != bits(merge([source, made(range(200, 300))], [30, 20], seed=8))
    same = merge([source, source], [30, 30], seed=7).rows.reward.tolist()
    assert same[:30] != same[30:]  # each part has numbers of its own
    assert [(p.rows, p.draw_seed) for p in drawn.record.parts] == [(30, 7), (20, 7)]
    assert merge([source], [100], seed=7).record.parts[0].draw_seed is None  # all rows: nothing was drawn


def test_every_row_is_drawn_equally_often():
    counts = np.zeros(10)
    source = made(range(10))
    for seed in range(600):
        counts[merge([source], [3], seed=seed).rows.action] += 1
    assert (np.abs(counts - 180) < 5 * np.sqrt(180 * 0.7)).all()


def test_parts_of_parts_are_counted():
    nested = merge([made(range(10), parts=[4, 6]), made(range(20, 25))], [7, 2])
    assert nested.rows.reward.tolist() == [0, 1, 2, 3, 4, 5, 6, 20, 21]
    assert [(p.rows, p.recorded) for p in nested.record.parts] == [(4, 4), (3, 6), (2, 5)]
    front = merge([made(range(10), parts=[4, 6])], [4])
    assert [p.rows for p in front.record.parts] == [4]  # of the second part nothing is left
    drawn = merge([made(range(10), parts=[4, 6])], [5], seed=3)
    low = sum(number < 4 for number in drawn.rows.reward.tolist())
    assert [p.rows for p in drawn.record.parts] == [low, 5 - low]


def test_only_rows_of_one_kind_are_merged():
    first = made(range(5))
    world = first.record.world
    other = msgspec.structs.replace(world, name="test/other")
    for second, sentence in (
        (made(range(5), world=other), "test/line .*test/other "),
        (record("probe_bandit", 10), "test/line .*probe/bandit "),
        (made(range(5), gamma=0.9), r"gamma 0\.5 .* 0, .* 0\.9 .* 0;"),
        (made(range(5), shaping_coef=1.0), r"gamma 0\.5 .* 0, .* 0\.5 .* 1;"),
    ):
        with pytest.raises(ScenarioError, match=sentence):
            merge([first, second])
    with pytest.raises(ScenarioError, match="--seed -1: "):
        merge([first], [1], seed=-1)
    for counts, sentence in (
        ([1], "--rows: 1 .* 2 "),
        ([6, 1], "--rows 6: .* 5 rows"),
        ([0, 1], "--rows 0: .* 5 rows"),
    ):
        with pytest.raises(ScenarioError, match=sentence):
            merge([first, first], counts)


# --- describing ---


def test_a_summary_by_hand():
    dataset = made(range(4), parts=[1, 3])
    ends = replace(dataset, end=np.array([TERMINATED, 0, TRUNCATED, TRUNCATED], np.uint8))
    summary = describe(ends)
    assert (summary.world, summary.rows, summary.row_bytes, summary.bytes) == ("test/line", 4, 21, 84)
    assert (summary.terminated, summary.truncated) == (0.25, 0.5)
    assert msgspec.structs.astuple(summary.reward) == (1.5, 0.0, 3.0)
    assert msgspec.structs.astuple(summary.obs["obs[0]"]) == (1.5, 0.0, 3.0)
    assert summary.returns == Returns(4, (1 * 1 + 3 * 3) / 4, 0.0, 6.0)
    assert summary.choices is not None
    assert [summary.choices[str(i)] for i in (0, 3, 4)] == [0.25, 0.25, 0.0]
    assert summary.axes is None


def test_a_summary_of_axes_and_of_choices_from_a_table():
    dataset = record("probe_target", 200, policy="best")
    summary = describe(dataset)
    assert summary.axes is not None
    assert list(summary.axes) == ["x", "y"]
    for k, shares in enumerate(summary.axes.values()):
        expected = [np.mean((dataset.rows.action[:, k] * 5 + 5).astype(int).clip(0, 9) == b) for b in range(10)]
        assert shares == pytest.approx(expected)
    assert list(summary.obs) == ["x", "y", "left"]
    beyond = {**to_fields(dataset.rows), "action": dataset.rows.action + 10, "end": dataset.end}
    told = describe(replace(dataset, rows=from_fields({k: v for k, v in beyond.items() if k != "end"})))
    assert told.axes is not None
    assert [shares[-1] for shares in told.axes.values()] == [1.0, 1.0]  # axes without bounds count in the last bins
    table = describe(record(scenario_of("probe_target", {"algo": {"kind": "dqn"}}), 200))
    assert table.choices is not None
    assert list(table.choices) == ["(-0.5, -0.5)", "(-0.5, 0.5)", "(0.5, -0.5)", "(0.5, 0.5)"]
    assert sum(table.choices.values()) == pytest.approx(1.0)
