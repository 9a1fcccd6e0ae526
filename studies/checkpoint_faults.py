"""Faults while checkpoints are written and after: a saving process is killed, a checkpoint's bytes are damaged."""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slipstream.data.arrays_file import content_hash
from slipstream.data.checkpoint import (
    NAME,
    Checkpoint,
    best_path,
    checkpoint_path,
    clean_stray,
    list_checkpoints,
    load,
    load_latest,
    prune,
    save,
)
from slipstream.data.run_folder import METRICS_FILE
from slipstream.errors import CheckpointError
from slipstream.run.metrics import MetricsWriter, cut_back, read_rows
from slipstream.types import Arrays

CHILD_START_TIMEOUT_S = 60.0


class Kill(NamedTuple):
    """What was found after one SIGKILL."""

    promised: int  # the last step whose save had returned
    loaded: int  # the step that load_latest gave
    mid_write: bool  # the kill fell into a save: something unfinished lay about
    faults: list[str]  # broken promises, none hoped for


class Damage(NamedTuple):
    """What was found after one flipped bit or one truncation."""

    what: str
    reason: str
    faults: list[str]


# --- a process that saves until it is killed ---


def state_at(step: int) -> Checkpoint:
    """The only content that a checkpoint of this step may have; 1 MB, so that a save takes a while."""
    numbers = np.random.Philox(key=step).random_raw(2**17)
    arrays: Arrays = {
        "policy.main.0.weight": np.full((64, 64), step, np.float32),
        "world.snapshot": numbers.view(np.uint8),
    }
    return Checkpoint(arrays, {"counters": {"timesteps_total": step}})


def save_for_ever(folder: Path) -> None:
    """Continue from the newest checkpoint, as a run does: report, sync, save, prune; some saves replace."""
    checkpoints = folder / "checkpoints"
    step = _step_of(load_latest(checkpoints).checkpoint)
    print("ready", flush=True)
    writer = MetricsWriter(folder)
    while True:
        step += 1
        writer.report({"timesteps_total": step, "env/return_mean": step / 3})
        writer.sync()
        save(checkpoint_path(checkpoints, step), state_at(step))
        print(step, flush=True)
        if step % 2:
            save(checkpoint_path(checkpoints, step), state_at(step))
        if step % 5 == 0:
            save(best_path(checkpoints, step), state_at(step))
        prune(checkpoints, keep=3)


def kill_once(folder: Path, delay_s: float) -> Kill:
    """Start a saving process, kill it after a delay, and look at what it left, as the next start would."""
    if not (folder / "checkpoints").exists():
        save(checkpoint_path(folder / "checkpoints", 0), state_at(0))
    before = _step_of(load_latest(folder / "checkpoints").checkpoint)
    promised = max(before, _run_and_kill(folder, delay_s))
    return _inspect(folder, promised)


def _step_of(checkpoint: Checkpoint) -> int:
    return int(checkpoint.meta["counters"]["timesteps_total"])


def _run_and_kill(folder: Path, delay_s: float) -> int:
    """Returns the last step that the child said was saved."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(child.stdout, selectors.EVENT_READ)
                if not selector.select(CHILD_START_TIMEOUT_S):
                    raise TimeoutError("the saving process did not start")
            time.sleep(delay_s)
        finally:
            child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().split()
    if lines[:1] != [b"ready"] or child.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the saving process ended by itself with code {child.returncode}")
    return int(lines[-1]) if len(lines) > 1 else -1


def _inspect(folder: Path, promised: int) -> Kill:
    checkpoints = folder / "checkpoints"
    faults: list[str] = []
    for path in list_checkpoints(checkpoints):
        try:
            _check_content(load(path))
        except CheckpointError as error:
            faults.append(f"unreadable: {error}")
    loaded = _step_of(load_latest(checkpoints).checkpoint)
    if not promised <= loaded <= promised + 1:
        faults.append(f"step {loaded} was loaded where {promised} had been saved")
    mid_write = bool(clean_stray(checkpoints))
    left = [path.name for path in checkpoints.iterdir() if not NAME.fullmatch(path.name)]
    if left:
        faults.append(f"stray files after the next start: {left}")
    cut_back(folder, loaded)
    steps = [row["timesteps_total"] for row in read_rows(folder / METRICS_FILE)]
    if steps != list(range(1, loaded + 1)):
        faults.append(f"metrics have {len(steps)} rows at step {loaded}")
    return Kill(promised, loaded, mid_write, faults)


def _check_content(checkpoint: Checkpoint) -> None:
    step = _step_of(checkpoint)
    if content_hash(checkpoint.arrays) != content_hash(state_at(step).arrays):
        raise CheckpointError(f"the content is not that of step {step}")


# --- bit flips and truncations ---


def make_pair(folder: Path) -> None:
    """Two checkpoints: the one to damage and the one before it."""
    for step in (100, 200):
        small = {name: array.reshape(-1)[:4096] for name, array in state_at(step).arrays.items()}
        save(checkpoint_path(folder, step), Checkpoint(small, state_at(step).meta))


def damage_once(folder: Path, rng: random.Random) -> Damage:
    """Flip a bit of the newest checkpoint or cut one of its files, load, and mend it again."""
    newest, previous = checkpoint_path(folder, 200), checkpoint_path(folder, 100)
    path = newest / rng.choice(["arrays.safetensors", "meta.json"])
    content = path.read_bytes()
    damaged, what = rng.choice([_flip, _truncate])(content, rng)
    path.write_bytes(damaged)
    faults: list[str] = []
    reason = ""
    try:
        load(newest)
        faults.append("not detected")
    except CheckpointError as error:
        reason = str(error).removeprefix(str(newest) + os.sep)
    latest = load_latest(folder)
    if latest.path != previous or [skip.path for skip in latest.skipped] != [newest]:
        faults.append(f"fell back to {latest.path.name}")
    path.write_bytes(content)
    return Damage(f"{path.name}: {what}", reason, faults)


def _flip(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    # Half of the flips go to the first kilobyte, where the header is.
    at = rng.randrange(rng.choice([len(content), min(len(content), 1024)]))
    bit = rng.randrange(8)
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :], f"bit {bit} of byte {at} flipped"


def _truncate(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    size = rng.randrange(len(content))
    return content[:size], f"cut to {size} of {len(content)} bytes"


if __name__ == "__main__":
    save_for_ever(Path(sys.argv[1]))
