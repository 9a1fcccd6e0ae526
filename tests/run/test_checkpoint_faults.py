"""Whatever happens while a checkpoint is saved, the old state or the new is there; damage is always seen."""

import errno
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoint_faults import damage_once, kill_once, make_pair

from slipstream.data import checkpoint as ck
from slipstream.errors import CheckpointError

SYSCALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir")


def state(value: int) -> ck.Checkpoint:
    return ck.Checkpoint({"policy.w": np.full(1000, value, np.float32)}, {"value": value})


def value_of(checkpoint: ck.Checkpoint) -> int:
    assert (checkpoint.arrays["policy.w"] == checkpoint.meta["value"]).all()
    return checkpoint.meta["value"]


class Stop:
    """Calls `act` instead of the k-th file system call."""

    def __init__(self, monkeypatch, k: int, act) -> None:
        self.calls = 0
        for name in SYSCALLS:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name), k, act))

    def wrap(self, call, k, act):
        def wrapped(*args, **kwargs):
            self.calls += 1
            return act(call, *args, **kwargs) if self.calls == k else call(*args, **kwargs)

        return wrapped


def die(*_args, **_kwargs):
    os._exit(9)


def write_half_and_die(call, *args, **kwargs):
    """A power cut in the middle of a write."""
    if call.__name__ == "write":
        call(args[0], bytes(args[1])[: len(args[1]) // 2])
    os._exit(9)


def save_and_stop(target: Path, k: int, act) -> int:
    """Save value 2 in a child that `act` stops at its k-th call; returns the child's exit code."""
    pid = os.fork()
    if pid == 0:
        with pytest.MonkeyPatch.context() as patch:
            Stop(patch, k, act)
            try:
                ck.save(target, state(2))
                os._exit(0)
            finally:
                os._exit(1)  # the child must never go on as a second pytest
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("act", [die, write_half_and_die])
@pytest.mark.parametrize("replaced", ["checkpoint_1", "checkpoint_2"], ids=["new name", "same name"])
def test_death_before_any_file_system_call_leaves_the_old_state_or_the_new(tmp_path, replaced, act):
    seen = []
    for k in range(1, 100):
        folder = tmp_path / str(k)
        ck.save(folder / replaced, state(1))
        code = save_and_stop(folder / "checkpoint_2", k, act)
        before = value_of(ck.load_latest(folder).checkpoint)
        ck.clean_stray(folder)
        latest = ck.load_latest(folder)
        assert value_of(latest.checkpoint) == before
        assert latest.skipped == []
        assert all(ck.NAME.fullmatch(path.name) for path in folder.iterdir())
        seen.append(before)
        if code == 0:
            break
    assert code == 0
    assert len(seen) > 10
    assert seen == sorted(seen), "once the new state is there it stays"
    assert {1, 2} == set(seen)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("replaced", ["checkpoint_1", "checkpoint_2"], ids=["new name", "same name"])
def test_an_error_from_any_file_system_call_leaves_a_whole_checkpoint_and_no_stray_file(tmp_path, replaced, number):
    def fail(_call, *_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    for k in range(1, 100):
        folder = tmp_path / str(k)
        ck.save(folder / replaced, state(1))
        with pytest.MonkeyPatch.context() as patch:
            stop = Stop(patch, k, fail)
            try:
                ck.save(folder / "checkpoint_2", state(2))
                failed = False
            except OSError:
                failed = True
        assert value_of(ck.load_latest(folder).checkpoint) in ((1, 2) if failed else (2,))
        ck.clean_stray(folder)
        assert all(ck.NAME.fullmatch(path.name) for path in folder.iterdir())
        if stop.calls < k:
            break
    assert stop.calls < k
    assert k > 10


def test_content_is_on_the_disk_before_its_name_and_the_name_before_save_returns(tmp_path, monkeypatch):
    """What a power cut may not reorder: fsync of both files and their folder, rename, fsync of the parent."""
    trace = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (trace.append(Path(os.readlink(f"/proc/self/fd/{fd}"))), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda a, b: (trace.append("rename"), rename(a, b)))
    ck.save(tmp_path / "checkpoint_2", state(2))
    assert [item if isinstance(item, str) else item.name.split("-")[0] for item in trace] == [
        "arrays.safetensors",
        "meta.json",
        ".tmp",
        "rename",
        tmp_path.name,
    ]


def test_ten_kills_leave_every_checkpoint_whole_and_no_stray_file(tmp_path):
    rng = random.Random(20)
    kills = [kill_once(tmp_path / "run", rng.uniform(0.0, 0.2)) for _ in range(10)]
    assert [kill.faults for kill in kills] == [[]] * 10
    assert kills[-1].loaded > 0


def test_flipped_bits_and_truncations_are_detected_and_the_previous_checkpoint_is_used(tmp_path):
    make_pair(tmp_path)
    rng = random.Random(7)
    damages = [damage_once(tmp_path, rng) for _ in range(100)]
    assert [damage for damage in damages if damage.faults] == []
    assert ck.load_latest(tmp_path).path.name == "checkpoint_200", "the damage was mended after each trial"


def test_every_bit_of_meta_counts(tmp_path):
    ck.save(tmp_path / "checkpoint_1", state(1))
    path = tmp_path / "checkpoint_1" / "meta.json"
    content = path.read_bytes()
    for at in range(len(content)):
        for bit in range(8):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            with pytest.raises(CheckpointError):
                ck.load(tmp_path / "checkpoint_1")
    path.write_bytes(content)
    ck.load(tmp_path / "checkpoint_1")


def test_bytes_added_to_either_file_are_detected(tmp_path):
    for name in ("meta.json", "arrays.safetensors"):
        ck.save(tmp_path / "checkpoint_1", state(1))
        with (tmp_path / "checkpoint_1" / name).open("ab") as file:
            file.write(b" ")
        with pytest.raises(CheckpointError):
            ck.load(tmp_path / "checkpoint_1")


def test_files_of_two_checkpoints_do_not_mix(tmp_path):
    ck.save(tmp_path / "checkpoint_1", state(1))
    ck.save(tmp_path / "checkpoint_2", state(2))
    shutil.copy(tmp_path / "checkpoint_1" / "arrays.safetensors", tmp_path / "checkpoint_2")
    with pytest.raises(CheckpointError, match=r"checkpoint_2/arrays\.safetensors: the checksum "):
        ck.load(tmp_path / "checkpoint_2")
