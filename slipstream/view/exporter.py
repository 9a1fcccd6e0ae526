"""The process that follows a run and writes its metrics elsewhere, until the run has ended and all of it is written.

`python -m slipstream.view.exporter RUN TARGET`, which slipstream/view/exporters.py starts. What was exported is
remembered beside what was written, never in the run folder, so a later exporter of the same run goes on from there.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from slipstream.config.records import from_json
from slipstream.data.disk import replace_file
from slipstream.errors import SlipstreamError
from slipstream.run.folder import METRICS_FILE
from slipstream.runtime.platform import lock
from slipstream.runtime.process import report
from slipstream.view.exporters import Target, Tensorboard
from slipstream.view.run import About, about, state_of
from slipstream.view.tail import Tail

LOOK_S = 0.5
STEPS = "timesteps_total"
Numbers = dict[str, int | float]


class Exported(msgspec.Struct, frozen=True):
    """How much of a run has been written."""

    version: int = 1
    last_step: int = 0
    sessions: int = 0  # that the run had by then


class Sink(Protocol):
    """Where rows go."""

    last_step: int  # rows up to here are written

    def cut(self, step: int) -> None:
        """The run has gone back to this step: later rows come again. Lowers `last_step` where they can be replaced."""

    def write(self, step: int, row: Numbers) -> None:
        """Add a row; steps only grow between cuts."""

    def flush(self) -> bool:
        """Put on the disk what was written; whether that can be relied on from now on."""

    def close(self) -> None:
        """Finish."""


def main(argv: Sequence[str]) -> int:
    """Export one run; mistakes are one sentence, for whoever started this to pass on."""
    run, target = Path(argv[0]), from_json(argv[1], Target)
    os.nice(10)  # the run comes first
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stop.append(number))
    try:
        export(run, target, lambda: bool(stop))
    except (SlipstreamError, OSError) as error:
        print(error, file=sys.stderr)
        report(str(error))
        return 2
    return 0


def export(run: Path, target: Target, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Write all of a run's metrics to a target, those that come too, until the run has ended."""
    memory = target.files / (
        f"{run.name}/exported.json" if isinstance(target, Tensorboard) else f"{run.name}.exported.json"
    )
    memory.parent.mkdir(parents=True, exist_ok=True)
    with _alone(memory.with_suffix(".lock"), is_stopped) as is_ours:
        if not is_ours:
            return
        seen = about(run)
        before = _read(memory)
        sink = _open(target, seen, before.last_step)
        try:
            starts = [int(session.get("timesteps_at_start", 0)) for session in seen.sessions[before.sessions :]]
            if (kept := min([sink.last_step, *starts])) < sink.last_step:
                sink.cut(kept)
            _follow(run, sink, is_stopped, lambda: _write(memory, sink, seen))
        finally:
            sink.close()
        _write(memory, sink, seen)


def _open(target: Target, run: About, last_step: int) -> Sink:
    """Each knows a library that takes long to import."""
    if isinstance(target, Tensorboard):
        from slipstream.view import to_tensorboard

        return to_tensorboard.open_sink(target, run, last_step)
    from slipstream.view import to_wandb

    return to_wandb.open_sink(target, run, last_step)


def _follow(run: Path, sink: Sink, is_stopped: Callable[[], bool], keep: Callable[[], None]) -> None:
    tail = Tail(run / METRICS_FILE)
    while True:
        ended = is_stopped() or has_ended(run)  # looked at first: what was written before is then read below
        lines = tail.read()
        if tail.restarted:
            sink.cut(0)
        for step, row in _rows(lines):
            if step > sink.last_step:
                sink.write(step, row)
        if lines:
            if sink.flush():
                keep()
        elif ended:
            return
        else:
            time.sleep(LOOK_S)


def has_ended(run: Path) -> bool:
    """Whether nobody will add to the run's metrics: its session has said so, or its process is gone."""
    sessions = about(run).sessions
    return (bool(sessions) and "outcome" in sessions[-1]) or state_of(run, sessions) != "running"


def _rows(lines: Sequence[bytes]) -> Iterator[tuple[int, Numbers]]:
    """Steps and finite numbers of every report among the lines."""
    for line in lines:
        try:
            row: Any = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(step := row.get(STEPS), int):
            numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
            yield step, {key: value for key, value in numbers.items() if math.isfinite(value)}


@contextmanager
def _alone(path: Path, is_stopped: Callable[[], bool]) -> Iterator[bool]:
    """Wait for an earlier exporter of the same run that is still at it; False where we are stopped meanwhile."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        yield _locked(fd, is_stopped)
    finally:
        os.close(fd)


def _locked(fd: int, is_stopped: Callable[[], bool]) -> bool:
    """Whether the lock is ours: asked for again and again, since a wait for it would not hear a signal."""
    while not lock(fd):
        if is_stopped():
            return False
        time.sleep(LOOK_S)
    return True


def _read(path: Path) -> Exported:
    try:
        return from_json(path.read_bytes(), Exported)
    except (OSError, msgspec.DecodeError):
        return Exported()


def _write(path: Path, sink: Sink, seen: About) -> None:
    record = Exported(last_step=sink.last_step, sessions=len(seen.sessions))
    replace_file(path, msgspec.json.encode(record), durable=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
