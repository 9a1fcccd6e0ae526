"""A replay on disk: only what is new is written, a kill leaves the old state or the new, and damage is always seen."""

import errno
import os
import random
import re
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from test_replay import filled, numbered

from slipstream.data.arrays_file import content_hash
from slipstream.data.transitions import Fields
from slipstream.errors import CheckpointError
from slipstream.replay import segments as replay_files
from slipstream.replay.buffer import Prioritised, Replay
from slipstream.replay.segments import SegmentRecord, load_replay, prune_segments, save_replay

PER = Prioritised()


class Saved(NamedTuple):
    """What a checkpoint would hold."""

    records: list[SegmentRecord]
    state: Fields


def save(folder: Path, replay: Replay, known: list[SegmentRecord]) -> Saved:
    records = save_replay(folder, replay, known)
    state = {name: array.copy() for name, array in replay.state_arrays().items()}
    plain = msgspec.json.decode(msgspec.json.encode(records))  # as a checkpoint's meta would bring them back
    return Saved(msgspec.convert(plain, list[SegmentRecord]), state)


def load(folder: Path, saved: Saved, capacity: int, prioritised: Prioritised | None = PER) -> Replay:
    replay = Replay(numbered(0, 0), capacity, 3, prioritised)
    replay.load_state(saved.state)
    load_replay(folder, saved.records, replay)
    return replay


def bits(replay: Replay) -> str:
    """Rows, cursor and priorities."""
    rows = replay.read(replay.total_added - len(replay), replay.total_added)
    return content_hash({**rows, **{f"state.{name}": array for name, array in replay.state_arrays().items()}})


def grow(replay: Replay, rows: int) -> None:
    replay.add(numbered(replay.total_added, rows))
    if replay.prioritised:
        drawn = replay.sample(9, replay.total_added)
        replay.update_priorities(drawn.index, drawn.rows.reward * 0.37)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def rows_of(records: list[SegmentRecord]) -> list[tuple[int, int]]:
    return [(record.rows.start, record.rows.stop) for record in records]


@pytest.mark.parametrize("prioritised", [None, PER])
@pytest.mark.parametrize(("capacity", "block"), [(100, 7), (20, 33), (1, 1), (64, 16)])
def test_every_save_can_be_loaded_bit_for_bit_and_goes_on_alike(tmp_path, capacity, block, prioritised):
    replay = filled(capacity, 0, prioritised)
    saved = Saved([], {})
    for _ in range(40):
        grow(replay, block)
        saved = save(tmp_path / "replay" / "main", replay, saved.records)
        again = load(tmp_path / "replay" / "main", saved, capacity, prioritised)
        assert bits(again) == bits(replay)
        needed = {record.name for record in saved.records}
        prune_segments(tmp_path / "replay" / "main", needed)
        assert names(tmp_path / "replay" / "main") == needed
    for each in (replay, again):
        grow(each, 5)
    assert bits(again) == bits(replay)
    assert replay.sample(30, 1).index.tobytes() == again.sample(30, 1).index.tobytes()


def test_an_empty_replay_needs_no_segment(tmp_path):
    saved = save(tmp_path / "none", filled(10, 0), [])
    assert saved.records == []
    assert not (tmp_path / "none").exists()
    assert len(load(tmp_path / "none", saved, 10, None)) == 0


def test_a_save_writes_only_what_was_added_since_the_last(tmp_path):
    replay, records = filled(1000, 300), []
    records = save_replay(tmp_path, replay, records)
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    replay.add(numbered(300, 50))
    records = save_replay(tmp_path, replay, records)
    assert rows_of(records) == [(0, 300), (300, 350)]
    assert names(tmp_path) - stamps.keys() == {"300_350.safetensors"}
    assert all((tmp_path / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    assert save_replay(tmp_path, replay, records) == records
    assert len(names(tmp_path)) == 2


def test_segments_stay_few_and_every_row_is_written_a_few_times(tmp_path):
    """A ring of 2000 saved every 8 rows: about 15 (1 + log16 250) = 45 files, at most 1 + log16 250 = 3 writes."""
    replay, records = filled(2000, 0), []
    written = 0
    for save_number in range(600):
        replay.add(numbered(save_number * 8, 8))
        before = {record.name for record in records}
        records = save_replay(tmp_path, replay, records)
        new = [record for record in records if record.name not in before]
        assert new[0].rows.start >= replay.total_added - len(replay), "only rows that are still held are written"
        written += sum(len(record.rows) for record in new)
        assert len(records) <= 45
        if save_number % 50 == 0:
            prune_segments(tmp_path, {record.name for record in records})
    assert 1.5 < written / replay.total_added < 3


def test_segments_are_bounded_in_size_and_full_ones_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(replay_files, "MAX_BYTES", 46 * 100)
    monkeypatch.setattr(replay_files, "MERGED", 3)
    replay = filled(1000, 250)
    records = save_replay(tmp_path, replay, [])
    assert rows_of(records) == [(0, 100), (100, 200), (200, 250)]
    full = records[:2]
    for total in range(250, 800, 20):
        replay.add(numbered(total, 20))
        records = save_replay(tmp_path, replay, records)
        assert records[:2] == full
        assert max(len(record.rows) for record in records) <= 100
        assert len(records) < 16
    again = load(tmp_path, Saved(records, replay.state_arrays()), 1000, None)
    assert bits(again) == bits(replay)


def test_a_known_segment_that_has_disappeared_is_written_again(tmp_path):
    replay, saved = filled(100, 40), Saved([], {})
    for _ in range(3):
        saved = save(tmp_path, replay, saved.records)
        grow(replay, 10)
    (tmp_path / saved.records[1].name).unlink()
    saved = save(tmp_path, replay, saved.records)
    assert rows_of(saved.records) == [(0, 40), (40, 70)]
    assert bits(load(tmp_path, saved, 100, None)) == bits(replay)


def test_pruning_keeps_what_is_needed_and_what_is_not_ours(tmp_path):
    replay = filled(100, 10)
    records = save_replay(tmp_path, replay, [])
    grow(replay, 10)
    records = save_replay(tmp_path, replay, records)
    for stray in ("notes.txt", ".tmp-7_9.safetensors", "7_9.safetensors", "x_9.safetensors"):
        (tmp_path / stray).write_text("")
    gone = prune_segments(tmp_path, {records[1].name})
    assert {path.name for path in gone} == {"0_10.safetensors", ".tmp-7_9.safetensors", "7_9.safetensors"}
    assert names(tmp_path) == {"10_20.safetensors", "notes.txt", "x_9.safetensors"}
    assert prune_segments(tmp_path / "nowhere", set()) == []


# --- kills ---

SYSCALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink")


def save_and_die(folder: Path, replay: Replay, known: list[SegmentRecord], k: int, half: bool) -> int:
    """Save in a child that dies instead of its k-th file system call; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        calls = 0

        def stop(call):
            def wrapped(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls == k:
                    if half and call.__name__ == "write":  # a power cut in the middle of a write
                        call(args[0], bytes(args[1])[: len(args[1]) // 2])
                    os._exit(9)
                return call(*args, **kwargs)

            return wrapped

        try:
            with pytest.MonkeyPatch.context() as patch:
                for name in SYSCALLS:
                    patch.setattr(os, name, stop(getattr(os, name)))
                save_replay(folder, replay, known)
            os._exit(0)
        finally:
            os._exit(1)  # the child must never go on as a second pytest
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("half", [False, True], ids=["before a call", "within a write"])
@pytest.mark.parametrize("saves", [0, 1, 2], ids=["first save", "second save", "merging save"])
def test_death_at_any_file_system_call_leaves_the_old_state_and_the_new_can_still_be_saved(
    tmp_path, monkeypatch, saves, half
):
    monkeypatch.setattr(replay_files, "MERGED", 3)
    monkeypatch.setattr(replay_files, "MAX_BYTES", 46 * 70)
    for k in range(1, 200):
        folder = tmp_path / str(k) / "main"
        replay, old = filled(100, 0, PER), Saved([], {})
        for _ in range(saves):
            grow(replay, 30)
            old = save(folder, replay, old.records)
        before = bits(replay)
        grow(replay, 45)
        code = save_and_die(folder, replay, old.records, k, half)
        if saves:
            assert bits(load(folder, old, 100)) == before
        new = save(folder, replay, old.records)
        assert bits(load(folder, new, 100)) == bits(replay)
        assert len(new.records) == (2 if saves else 1)
        prune_segments(folder, {record.name for record in new.records})
        assert names(folder) == {record.name for record in new.records}
        if code == 0:
            break
        assert code == 9
    assert code == 0
    assert k > 8


def test_an_error_from_the_disk_leaves_no_stray_file_and_the_old_state(tmp_path, monkeypatch):
    replay = filled(100, 30, PER)
    old = save(tmp_path, replay, [])
    before, there = bits(replay), names(tmp_path)
    grow(replay, 30)

    def full(*_args):
        raise OSError(28, "No space left on device")

    for call in ("write", "fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(OSError, match=r"\[Errno 28\]"):
                save_replay(tmp_path, replay, old.records)
        assert names(tmp_path) == there
    assert bits(load(tmp_path, old, 100)) == before


def test_content_is_on_the_disk_before_its_name_and_the_name_before_save_returns(tmp_path, monkeypatch):
    trace = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: (trace.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), fsync(fd))
    )
    monkeypatch.setattr(os, "rename", lambda a, b: (trace.append("rename"), rename(a, b)))
    save_replay(tmp_path / "run" / "main", filled(10, 5), [])
    assert trace == [tmp_path.name, "run", ".tmp-0_5.safetensors", "rename", "main"]


# --- damage ---


def test_flipped_bits_and_truncations_are_seen_and_leave_the_replay_empty(tmp_path):
    replay = filled(100, 60, PER)
    saved = save(tmp_path, replay, [])
    grow(replay, 60)
    saved = save(tmp_path, replay, saved.records)
    rng = random.Random(5)
    for _ in range(60):
        path = tmp_path / rng.choice(saved.records).name
        content = path.read_bytes()
        at = rng.randrange(len(content))
        if rng.random() < 0.7:
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        else:
            path.write_bytes(content[:at])
        again = Replay(numbered(0, 0), 100, 3, PER)
        again.load_state(saved.state)
        with pytest.raises(CheckpointError, match=path.name):
            load_replay(tmp_path, saved.records, again)
        assert len(again) == 0
        path.write_bytes(content)
    assert bits(load(tmp_path, saved, 100)) == bits(replay)


@pytest.mark.parametrize(
    "name",
    ["../0_60.safetensors", "/etc/passwd", "0_60", "60_0.safetensors", "5_5.safetensors", "-1_60.safetensors", "",
     "0_60.safetensors\n", "٠_60.safetensors", "0_9999999999999999999.safetensors"],
)  # fmt: skip
def test_names_that_are_not_of_segments_are_refused(tmp_path, name):
    replay = filled(100, 60)
    saved = save(tmp_path, replay, [])
    hostile = msgspec.structs.replace(saved.records[0], name=name)
    with pytest.raises(CheckpointError, match=re.escape(f"{name!r:.80}")):
        load(tmp_path, Saved([hostile], saved.state), 100, None)


def test_a_link_in_place_of_a_segment_is_refused(tmp_path):
    replay = filled(100, 60)
    saved = save(tmp_path, replay, [])
    path = tmp_path / saved.records[0].name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=re.escape(f"{path}: ") + f".*{os.strerror(errno.ELOOP)}"):
        load(tmp_path, saved, 100, None)


def test_segments_that_are_not_the_rows_of_the_replay_are_refused(tmp_path):
    replay, records = filled(100, 60), []
    for _ in range(3):
        records = save_replay(tmp_path, replay, records)
        grow(replay, 20)
    state = {**replay.state_arrays(), "total_added": np.array([100])}
    first, second, third = records
    assert rows_of(records) == [(0, 60), (60, 80), (80, 100)]
    for wrong, said in (
        ([], "rows 0 to 0 .* 0 to 100"),
        ([first], "rows 0 to 60 .* 0 to 100"),
        ([second, third], "rows 60 to 100 .* 0 to 100"),
        ([first, second], "rows 0 to 80 .* 0 to 100"),
        ([first, third], "row 60$"),
        ([second, first, third], "row 0$"),
    ):
        with pytest.raises(CheckpointError, match=said):
            load(tmp_path, Saved(wrong, state), 100, None)
    assert len(load(tmp_path, Saved(records, state), 100, None)) == 100


def test_a_segment_of_another_world_is_refused(tmp_path):
    other = Replay(numbered(0, 0, masked=False), 100, 0)
    other.add(numbered(0, 30, masked=False))
    records = save_replay(tmp_path, other, [])
    with pytest.raises(CheckpointError, match=r"0_30\.safetensors: mask"):
        load(tmp_path, Saved(records, other.state_arrays()), 100, None)
