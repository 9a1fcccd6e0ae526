"""Processes that this one starts: how they begin, how they end with it, and how it learns why they ended.

A `Child` holds one end of a pipe. The other end is closed when this process ends, whatever ends it, and the child acts
on that: see `OnParentEnd`. Through a second pipe a child says when it can be used (`announce`) and why it ends
(`report`), so nobody has to read its log.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, main_thread
from typing import IO, TypeVar

import msgspec

from slipstream.runtime import signals
from slipstream.runtime.frames import HEAD, MessageProtocol, MessageSet
from slipstream.runtime.place import CLOSE_S, Ended, Job, OnParentEnd, RunningProcess, end_all

START_S = 120.0  # in which a process has imported torch, on a machine that is busy
MAX_REPORT = 4000  # characters of a reason and of a traceback: both fit into a pipe that nobody reads


class ReadyReport(msgspec.Struct, frozen=True, tag="ready"):
    """A process can be used."""

    text: str


class EndReport(msgspec.Struct, frozen=True, tag="ended"):
    """Why a process ends."""

    reason: str
    trace: str


REPORTS: MessageSet[ReadyReport | EndReport] = MessageSet(
    MessageProtocol.REPORTS, 1 << 16, msgspec.msgpack.Decoder(ReadyReport | EndReport)
)
T = TypeVar("T", ReadyReport, EndReport)


class ReportPipe:
    """This side of the pipe through which a process says that it is ready, and why it ends."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._data = pipe, b""

    def is_over(self, timeout_s: float | None) -> bool:
        """Whether the other side was closed, at the latest after this time; what comes meanwhile is kept."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._pipe >= 0:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._pipe], [], [], left)[0]:
                return False
            data = os.read(self._pipe, 65_536)
            self._data += data
            if not data:
                self.close()
        return True

    def ready(self, timeout_s: float) -> str:
        """What was announced within this time."""
        deadline = time.monotonic() + timeout_s
        while not (found := self._reports_of(ReadyReport)) and time.monotonic() < deadline:
            if self.is_over(min(0.05, timeout_s)):
                break
        found = found or self._reports_of(ReadyReport)
        return found[0].text if found else ""

    def ended(self, code: int | None) -> Ended:
        """How a process with this exit code ended, in its own words."""
        self.is_over(0.0)
        found = self._reports_of(EndReport)
        return Ended(code, found[0].reason, found[0].trace) if found else Ended(code)

    def close(self) -> None:
        """Read no more."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _reports_of(self, kind: type[T]) -> list[T]:
        """What came whole, of this kind."""
        found, at = [], 0
        while len(self._data) - at >= HEAD.size:
            end = at + HEAD.size + REPORTS.parse_head(self._data[at:]).body
            if end > len(self._data):
                break
            message = REPORTS.parse(self._data[at + HEAD.size : end])
            if isinstance(message, kind):
                found.append(message)
            at = end
        return found


class Child:
    """A Python module that runs as a process of its own; satisfies `Running`."""

    def __init__(self, job: Job, descriptors: Sequence[int] = ()) -> None:
        """`descriptors` are open in the child under the same numbers, for its words to name."""
        self._lives_on = job.on_parent_end == "live_on"
        self._takes_signals = job.on_parent_end in ("terminate", "live_on")
        self._kept: IO[bytes] | None = tempfile.TemporaryFile() if job.output == "kept" else None  # noqa: SIM115
        parent, self._held = os.pipe()
        reading, report = os.pipe()
        self._reports = ReportPipe(reading)
        given = [str(report), job.on_parent_end, job.module, *job.words]
        command = [sys.executable, "-m", "slipstream.runtime.child", "-" if self._lives_on else str(parent), *given]
        log = open(job.output, "ab") if isinstance(job.output, Path) else None  # noqa: SIM115
        try:
            with tempfile.TemporaryFile() as payload:
                payload.write(job.payload)
                payload.seek(0)
                self._process = subprocess.Popen(
                    command,
                    stdin=payload,
                    stdout=log or self._kept,
                    stderr=log or self._kept,
                    pass_fds=[report, *([] if self._lives_on else [parent]), *descriptors],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path()), **job.variables},
                    # Ctrl+C is for this process. A group is enough for that: Linux shares processor time by session.
                    process_group=None if self._lives_on else 0,
                    start_new_session=self._lives_on,
                )
        except BaseException:
            self._hang_up()
            self._reports.close()
            raise
        finally:
            os.close(parent)
            os.close(report)
            if log is not None:
                log.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ended(self) -> Ended:
        """How it ended; while it runs, nothing is known."""
        code = self._process.poll()
        return Ended() if code is None else self._reports.ended(code)

    def ready(self, timeout_s: float) -> str:
        """What it announced."""
        return self._reports.ready(timeout_s)

    def output(self) -> str:
        """The end of its output, where that is kept."""
        if self._kept is None:
            return ""
        self._kept.seek(max(0, self._kept.seek(0, os.SEEK_END) - (1 << 20)))
        return self._kept.read().decode(errors="replace")

    def stop(self) -> None:
        """Ask it to end: by SIGINT, or by the end of its pipe where it ignores signals."""
        if self._takes_signals:
            self._process.send_signal(signal.SIGINT)
        else:
            self._hang_up()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def end(self, grace_s: float = CLOSE_S) -> None:
        """Ask it to end, kill it where it does not, and let go of it."""
        end_all([self], grace_s)
        self.close()

    def leave(self) -> None:
        """Let it go on without us."""
        self._process.returncode = 0  # nobody waits for it any more
        self.close()

    def close(self) -> None:
        """Let go of it; where it ends with its parent, it ends."""
        self._hang_up()
        self.ended()  # what it has said stays known
        self._reports.close()
        if self._kept is not None:
            self._kept.close()

    def _hang_up(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


class Here:
    """This machine; satisfies `Place`."""

    def start(self, job: Job, near: RunningProcess | None = None) -> Child:
        """Start a process."""
        return Child(job)


class RunningThread:
    """A thread of this process; satisfies `Running`, as far as a thread can be ended."""

    def __init__(self, run: Callable[[Event], None], name: str) -> None:
        """`run` returns soon after the event is set."""
        self._stop = Event()
        self._thread = Thread(target=run, args=(self._stop,), name=name, daemon=True)
        self._thread.start()

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def ended(self) -> Ended:
        """Threads end when they are told to."""
        return Ended()

    def stop(self) -> None:
        """Ask it to return."""
        self._stop.set()

    def kill(self) -> None:
        """Ask it to return: a thread cannot be ended from outside."""
        self._stop.set()

    def close(self) -> None:
        """Ask it to return."""
        self._stop.set()


def _import_path() -> list[str]:
    """Where a child looks for modules: where this process does, so that it finds the same ones."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*dict.fromkeys(path for path in (*given, *sys.path) if path)]


# --- in the process that was started ---

_parent: int | None = None  # descriptors of both pipes
_report: int | None = None


def parent_pipe() -> int:
    """A descriptor that can be read, and gives nothing, from when the parent is gone or asks to end."""
    if _parent is None:
        raise RuntimeError("this process was not started by runtime.process")
    return _parent


def report(reason: str, trace: str = "") -> None:
    """Tell the parent why this process ends; only the first reason counts."""
    global _report
    if _report is not None:
        _say(EndReport(reason[:MAX_REPORT], trace[-MAX_REPORT:]))
        os.close(_report)
        _report = None


def announce(text: str) -> None:
    """Tell the parent that this process can be used now, and how."""
    _say(ReadyReport(text))


def _say(message: ReadyReport | EndReport) -> None:
    if _report is not None:
        with suppress(OSError):  # it is gone, or does not read
            os.write(_report, REPORTS.frame(message))


def report_exception(error: BaseException) -> None:
    """Tell the parent which exception ends this process."""
    report(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


def become_child(parent: int | None, report_to: int, on_parent_end: OnParentEnd) -> None:
    """Be a child from here on: act on the end of the parent, and be able to report."""
    global _parent, _report
    _parent, _report = parent, report_to
    for descriptor in (report_to, parent):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    if on_parent_end in ("exit", "notice"):
        signals.ignore()
    if parent is not None and on_parent_end in ("exit", "terminate"):
        Thread(target=_end_with_parent, args=(parent, on_parent_end), daemon=True).start()


def _end_with_parent(parent: int, on_parent_end: OnParentEnd) -> None:
    os.read(parent, 1)
    if on_parent_end == "exit":
        os._exit(1)
    signal.pthread_kill(main_thread().ident or 0, signal.SIGTERM)
