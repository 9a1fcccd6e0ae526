"""The process that exports a run: it reads the run's metrics and writes them to TensorBoard or W&B until the run ends.

`slipstream/view/exporters.py` starts it as `python -m slipstream.view.export_process RUN TARGET`. It records how far it
got beside its output, never in the run folder, and the next exporter of the same run continues from there.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from slipstream.config.records import from_json
from slipstream.data.disk import replace_file
from slipstream.data.run_folder import METRICS_FILE
from slipstream.errors import SlipstreamError
from slipstream.runtime.platform import lock
from slipstream.runtime.process import report
from slipstream.view.exporters import Target, Tensorboard, Wandb, wandb_mode
from slipstream.view.run import About, about, state_of
from slipstream.view.tail import STEPS, Tail, reports

LOOK_S = 0.5
WANDB_INIT_S = 60.0  # for the first answer of W&B's server
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
        """The run went back to this step, so later rows come again. Lowers `last_step` if they can be replaced."""

    def write(self, step: int, row: Numbers) -> None:
        """Add a row; steps only grow between cuts."""

    def flush(self) -> bool:
        """Write to disk; returns whether everything so far is safely there."""

    def close(self) -> None:
        """Finish."""


def main(argv: Sequence[str]) -> int:
    """Export one run; an error is reported to the parent in one sentence."""
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
    """Write a run's metrics to a target until the run has ended."""
    own_folder = isinstance(target, Tensorboard)
    record = target.files / (f"{run.name}/exported.json" if own_folder else f"{run.name}.exported.json")
    record.parent.mkdir(parents=True, exist_ok=True)
    with _lock_when_free(record.with_suffix(".lock"), is_stopped) as is_ours:
        if not is_ours:
            return
        seen = about(run)
        before = _read(record)
        sink: Sink
        if isinstance(target, Tensorboard):
            sink = EventFiles(target, seen, before.last_step)
        else:
            sink = WandbRun(target, seen, before.last_step)
        try:
            starts = [int(session.get("timesteps_at_start", 0)) for session in seen.sessions[before.sessions :]]
            if (kept := min([sink.last_step, *starts])) < sink.last_step:
                sink.cut(kept)
            _follow(run, sink, is_stopped, lambda: _write(record, sink, seen))
        finally:
            sink.close()
        _write(record, sink, seen)


def _follow(run: Path, sink: Sink, is_stopped: Callable[[], bool], keep: Callable[[], None]) -> None:
    tail = Tail(run / METRICS_FILE)
    while True:
        ended = is_stopped() or has_ended(run)  # checked first: what was written before is then read below
        lines = tail.read()
        if tail.restarted:
            sink.cut(0)
        for row in reports(lines):
            if row[STEPS] > sink.last_step:
                sink.write(row[STEPS], {key: value for key, value in row.items() if _is_finite(value)})
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


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@contextmanager
def _lock_when_free(path: Path, is_stopped: Callable[[], bool]) -> Iterator[bool]:
    """Wait for an earlier exporter of the same run to end; False if we are stopped first.

    The lock is polled, because a blocking wait would not notice a signal.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        while not (is_ours := lock(fd)) and not is_stopped():
            time.sleep(LOOK_S)
        yield is_ours
    finally:
        os.close(fd)


def _read(path: Path) -> Exported:
    try:
        return from_json(path.read_bytes(), Exported)
    except (OSError, msgspec.DecodeError):
        return Exported()


def _write(path: Path, sink: Sink, seen: About) -> None:
    record = Exported(last_step=sink.last_step, sessions=len(seen.sessions))
    replace_file(path, msgspec.json.encode(record), durable=False)


# --- sinks; each imports its library only when made ---


class EventFiles:
    """A new TensorBoard event file in the run's folder; TensorBoard reads all files there as one run."""

    def __init__(self, target: Tensorboard, run: About, last_step: int) -> None:
        try:
            from tensorboard import version  # noqa: F401  # a folder named tensorboard imports too, but has none
        except ImportError:
            raise SlipstreamError("tensorboard is not installed; pip install 'slipstream[tb]'") from None
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # without torch, whose import is slow

        self.last_step = last_step
        self._writer: Any = EventFileWriter(str(target.files / run.path.name))
        # So that TensorBoard's "relative" axis is training time, also of a run that is exported long afterwards.
        self._began = datetime.fromisoformat(run.sessions[0]["started_at"]).timestamp() if run.sessions else 0.0

    def cut(self, step: int) -> None:
        """Make TensorBoard drop later steps of earlier files (torch calls this purge_step)."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        self.last_step = step

    def write(self, step: int, row: Numbers) -> None:
        """One event with a scalar for every number."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=key, simple_value=value) for key, value in row.items()]
        seconds = self._began + row.get("time_total_s", 0.0)
        self._writer.add_event(Event(wall_time=seconds, step=step, summary=Summary(value=values)))
        self.last_step = step

    def flush(self) -> bool:
        """Flush the file."""
        self._writer.flush()
        return True

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbRun:
    """A run at W&B, over the network or in files for `wandb sync`; its id follows from the run, so it can continue."""

    def __init__(self, target: Wandb, run: About, last_step: int) -> None:
        try:
            import wandb
            from wandb import Settings  # a folder of W&B's own files is named wandb as well
        except ImportError:
            raise SlipstreamError("wandb is not installed; pip install 'slipstream[wandb]'") from None
        mode, _ = wandb_mode(os.environ)
        began = run.sessions[0].get("started_at") if run.sessions else None
        identity = msgspec.json.encode([run.path.name, run.metadata.get("seed"), began])
        try:
            self._run: Any = wandb.init(
                project=target.project,
                id=hashlib.sha256(identity).hexdigest()[:12],
                name=f"{target.prefix}{run.path.name}",
                group=target.group,
                tags=list(target.tags),
                config=dict(run.config),
                dir=target.folder,
                mode=mode,
                resume="allow" if mode == "online" else None,  # offline files of one id become one run when uploaded
                settings=Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    save_code=False,
                    x_disable_stats=True,
                    init_timeout=WANDB_INIT_S,
                ),
            )
        except Exception as error:  # its own errors, those of the network and of its helper process alike
            raise SlipstreamError(f"{type(error).__name__}: {' '.join(str(error).split())}") from None
        # Ask the server where possible: an exporter that was killed may not have sent all it recorded.
        self.last_step = int(self._run.step) if mode == "online" else last_step

    def cut(self, step: int) -> None:
        """Keep what W&B has, which only grows: resuming is exact, so repeated rows are equal."""

    def write(self, step: int, row: Numbers) -> None:
        """One row of its history."""
        self._run.log(row, step=step)
        self.last_step = step

    def flush(self) -> bool:
        """Unknown before the end: W&B's helper process does not report it."""
        return False

    def close(self) -> None:
        """Wait until everything is written or uploaded."""
        self._run.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
