"""Checkpoints hold what was saved, under their names, and nothing else is left in the folder."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slipstream.data import checkpoint as ck
from slipstream.data.arrays_file import DTYPES, content_hash
from slipstream.errors import CheckpointError

DTYPE_NAMES = st.sampled_from(sorted(DTYPES.values(), key=str))
ARRAY = DTYPE_NAMES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
ARRAYS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), ARRAY, max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def state(step: int) -> ck.Checkpoint:
    arrays = {
        "policy.main.0.weight": np.full((3, 2), step, np.float32),
        "world.snapshot": np.arange(7, dtype=np.uint8),
    }
    return ck.Checkpoint(arrays, {"counters": {"timesteps_total": step}, "best": float("-inf")})


def step_of(checkpoint: ck.Checkpoint) -> int:
    return checkpoint.meta["counters"]["timesteps_total"]


@settings(max_examples=60, deadline=None)
@given(arrays=ARRAYS, meta=st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_loaded_is_what_was_saved(tmp_path_factory, arrays, meta):
    arrays.pop("__metadata__", None)
    path = tmp_path_factory.mktemp("round") / "checkpoint_1"
    ck.save(path, ck.Checkpoint(arrays, meta))
    loaded = ck.load(path)
    assert loaded.meta == meta
    assert loaded.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded.arrays[name].dtype == array.dtype
        assert loaded.arrays[name].shape == array.shape
        assert loaded.arrays[name].tobytes() == array.tobytes()
        assert loaded.arrays[name].flags.writeable
    assert content_hash(loaded.arrays) == content_hash(arrays)


def test_strided_and_big_endian_arrays_keep_their_values(tmp_path):
    strided = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    swapped = np.arange(3, dtype=">i4")
    ck.save(tmp_path / "checkpoint_1", ck.Checkpoint({"strided": strided, "swapped": swapped}, {}))
    loaded = ck.load(tmp_path / "checkpoint_1").arrays
    assert loaded["strided"].tolist() == [[0, 4, 8], [2, 6, 10]]
    assert loaded["swapped"].tolist() == [0, 1, 2]


def test_the_safetensors_library_reads_our_arrays(tmp_path):
    arrays = {
        "b": np.array([True, False]),
        "w": np.arange(6.0).reshape(2, 3),
        "e": np.empty((0, 2), np.int32),
    }
    ck.save(tmp_path / "checkpoint_1", ck.Checkpoint(arrays, {}))
    theirs = safetensors.numpy.load_file(tmp_path / "checkpoint_1" / "arrays.safetensors")
    assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in theirs.items()} == {
        name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
    }


def test_the_same_state_gives_the_same_bytes_in_any_order_of_names(tmp_path):
    arrays = state(1).arrays
    ck.save(tmp_path / "a", state(1))
    ck.save(tmp_path / "b", ck.Checkpoint(dict(reversed(arrays.items())), state(1).meta))
    for name in ("arrays.safetensors", "meta.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"w": np.zeros(4, np.float32)}, True),
        ({"w": np.zeros((2, 2), np.float32)}, False),
        ({"w": np.zeros(4, np.int32)}, False),
        ({"w": np.array([0, 0, 0, -0.0], np.float32)}, False),
        ({"v": np.zeros(4, np.float32)}, False),
    ],
)
def test_content_hash_tells_names_shapes_types_and_bits_apart(change, same):
    assert (content_hash({"w": np.zeros(4, np.float32)}) == content_hash(change)) is same


def test_saving_again_under_the_same_name_replaces_and_leaves_nothing_else(tmp_path):
    ck.save(tmp_path / "checkpoint_5", state(1))
    ck.save(tmp_path / "checkpoint_5", state(2))
    assert step_of(ck.load(tmp_path / "checkpoint_5")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_5"]


@pytest.mark.parametrize("name", ["..", ".hidden", "a b", "x" * 65, "é", "a\\b", "-rf"])
def test_names_outside_the_allow_list_are_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(CheckpointError, match=re.escape(f": {name!r} ")):
        ck.save(tmp_path / "checkpoints" / name, state(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arrays", "meta", "says"),
    [
        ({"policy.w": np.array([1.0, np.nan])}, {}, "'policy.w' .*NaN"),
        ({"optim.w": np.array([np.inf])}, {}, "'optim.w' .*NaN"),
        ({"x": np.array([1j])}, {}, "'x' .* complex128"),
        ({"x": np.array(["a"])}, {}, "'x' .* <U1,"),
        ({"x": np.array([object()])}, {}, "'x' .* object,"),
        ({}, {"a": {1: 2}}, "meta.a .* 1;"),
        ({}, {"a": [np.arange(3)]}, r"meta.a\[0\] .* ndarray,"),
        ({}, {"a": "x" * 2**22}, "meta is over 1048576 bytes"),
        ({str(i): np.zeros(1) for i in range(10_001)}, {}, ": 10001 arrays "),
    ],
)
def test_what_could_not_be_loaded_again_is_not_saved(tmp_path, arrays, meta, says):
    ck.save(tmp_path / "checkpoint_1", state(1))
    with pytest.raises(CheckpointError, match=says):
        ck.save(tmp_path / "checkpoint_1", ck.Checkpoint(arrays, meta))
    assert step_of(ck.load(tmp_path / "checkpoint_1")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_1"]


def test_nan_may_stand_in_arrays_that_are_no_policy(tmp_path):
    ck.save(tmp_path / "c", ck.Checkpoint({"rollout.rewards": np.array([np.nan])}, {}))
    assert np.isnan(ck.load(tmp_path / "c").arrays["rollout.rewards"][0])


def test_the_newest_is_by_number_and_not_by_spelling(tmp_path):
    for step in (9, 100, 20):
        ck.save(ck.checkpoint_path(tmp_path, step), state(step))
    ck.save(ck.best_path(tmp_path, 100), state(100))
    names = ["checkpoint_100", "best_reward_100", "checkpoint_20", "checkpoint_9"]
    assert [path.name for path in ck.list_checkpoints(tmp_path)] == names
    assert ck.load_latest(tmp_path).path.name == "checkpoint_100"


def test_latest_falls_back_past_damage_and_says_why(tmp_path):
    for step in (1, 2, 3):
        ck.save(ck.checkpoint_path(tmp_path, step), state(step))
    (tmp_path / "checkpoint_3" / "meta.json").unlink()
    (tmp_path / "checkpoint_2" / "arrays.safetensors").write_bytes(b"")
    latest = ck.load_latest(tmp_path)
    assert step_of(latest.checkpoint) == 1
    assert [skip.path.name for skip in latest.skipped] == ["checkpoint_3", "checkpoint_2"]
    assert "meta.json" in latest.skipped[0].reason
    assert " 0 bytes " in latest.skipped[1].reason


def test_damaged_checkpoints_set_aside_are_never_pruned_instead_of_good_ones(tmp_path):
    for step in (1, 2):
        ck.save(ck.checkpoint_path(tmp_path, step), state(step))
    (tmp_path / "checkpoint_2" / "meta.json").write_text("{}")
    ck.set_aside(ck.load_latest(tmp_path).skipped)
    ck.prune(tmp_path, keep=1)
    assert step_of(ck.load_latest(tmp_path).checkpoint) == 1
    assert ck.load_latest(tmp_path).skipped == []
    assert any(path.name.startswith("damaged_checkpoint_2") for path in tmp_path.iterdir())


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: None])
def test_no_checkpoint_at_all_is_said_in_a_sentence(tmp_path, make):
    make(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=re.escape(f"{tmp_path / 'checkpoints'}: ")):
        ck.load_latest(tmp_path / "checkpoints")


def test_prune_keeps_the_newest_and_the_current_best(tmp_path):
    for step in (1, 2, 3, 4, 10):
        ck.save(ck.checkpoint_path(tmp_path, step), state(step))
    for step in (2, 3):
        ck.save(ck.best_path(tmp_path, step), state(step))
    deleted = ck.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best_reward_3",
        "checkpoint_10",
        "checkpoint_4",
    ]
    assert sorted(path.name for path in deleted) == [
        "best_reward_2",
        "checkpoint_1",
        "checkpoint_2",
        "checkpoint_3",
    ]


def test_a_checkpoint_that_stepped_aside_is_found_and_put_back(tmp_path):
    ck.save(ck.checkpoint_path(tmp_path, 7), state(7))
    (tmp_path / "checkpoint_7").rename(tmp_path / ".old-checkpoint_7-0123abcd")
    (tmp_path / ".tmp-checkpoint_7-0123abcd").mkdir()
    assert step_of(ck.load_latest(tmp_path).checkpoint) == 7
    assert len(ck.clean_stray(tmp_path)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_7"]
    assert step_of(ck.load(tmp_path / "checkpoint_7")) == 7


def test_clean_stray_touches_nothing_that_is_not_ours(tmp_path):
    for name in ("notes", ".tmp", ".git", "checkpoint_x"):
        (tmp_path / name).mkdir()
    assert ck.clean_stray(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4


def test_a_checkpoint_of_version_1_loads_for_ever():
    """The bytes were written by release 0.1; a reader that stays must keep reading them."""
    loaded = ck.load(Path(__file__).parents[1] / "fixtures" / "checkpoints" / "version_1")
    assert loaded.arrays["policy.main.actor.0.weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert loaded.arrays["optim.main.step"] == 7
    assert loaded.arrays["world.snapshot"].tobytes() == b"snapshot"
    assert loaded.meta == {"counters": {"timesteps_total": 4096}, "best": None, "streak": 3}


def test_meta_is_plain_json_with_format_version_and_checksums(tmp_path):
    ck.save(tmp_path / "checkpoint_1", state(1))
    record = json.loads((tmp_path / "checkpoint_1" / "meta.json").read_text())
    assert record["format"] == "slipstream.checkpoint"
    assert record["version"] == 1
    assert record["meta"]["counters"] == {"timesteps_total": 1}
    assert record["arrays"]["bytes"] == (tmp_path / "checkpoint_1" / "arrays.safetensors").stat().st_size
