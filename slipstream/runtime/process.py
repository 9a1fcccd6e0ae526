"""Processes that this one starts: how they begin, how they end with it, and how it learns why they ended.

A `Child` holds one end of a pipe. The other end is closed when this process ends, whatever ends it, and the child acts
on that: see `OnParentEnd`. Through a second pipe a child can say why it ends (`report`), so nobody has to read its log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, main_thread
from typing import IO, Literal, NamedTuple, Protocol

from slipstream.runtime import signals

CLOSE_S = 5.0  # in which a process that was asked to end has ended
START_S = 120.0  # in which a process has imported torch, on a machine that is busy
MAX_REPORT = 4000  # characters of a reason and of a traceback: both fit into a pipe that nobody reads

OnParentEnd = Literal[
    "exit",  # ends at once; ignores signals that ask to end, because they are for the parent
    "notice",  # the same, but its code watches `parent_pipe` itself
    "terminate",  # gets SIGTERM, on which a run saves and ends
    "live_on",  # has a session of its own and goes on
]
Output = Literal["shared", "kept"] | Path  # the parent's; a file without a name, for `said`; added to a log


class Ended(NamedTuple):
    """How something that ran has ended."""

    code: int | None = None  # exit code, or minus the number of a signal; None: not known
    reason: str = ""  # in its own words
    trace: str = ""  # its traceback, where an exception ended it

    def __str__(self) -> str:
        if self.code is None:
            return self.reason or "ended"
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"ended with code {self.code}"


class Running(Protocol):
    """Something that runs outside this thread: a process, a thread or a Ray actor."""

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended, at the latest after this time; None: wait until it has."""

    def ended(self) -> Ended:
        """How it ended, once it is over."""

    def stop(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it at once, as far as that can be done."""

    def close(self) -> None:
        """Let go of what is held here for it."""


def end_all(running: Iterable[Running], grace_s: float = CLOSE_S) -> None:
    """Ask all to end, wait for all together, and kill those that are late."""
    found = [one for one in running if not one.is_over()]
    for one in found:
        one.stop()
    deadline = time.monotonic() + grace_s
    for one in found:
        if not one.is_over(max(0.0, deadline - time.monotonic())):
            one.kill()


class Child:
    """A Python module that runs as a process of its own; satisfies `Running`."""

    def __init__(
        self,
        module: str,
        words: Sequence[str] = (),
        *,
        on_parent_end: OnParentEnd = "exit",
        output: Output = "shared",
        stdin: bytes = b"",
        variables: Mapping[str, str] = {},
        descriptors: Sequence[int] = (),
    ) -> None:
        """`descriptors` are open in the child under the same numbers, for its words to name."""
        self.module = module
        self._lives_on = on_parent_end == "live_on"
        self._takes_signals = on_parent_end in ("terminate", "live_on")
        self._kept: IO[bytes] | None = tempfile.TemporaryFile() if output == "kept" else None  # noqa: SIM115
        parent, self._held = os.pipe()
        self._report, report = os.pipe()
        self._ended: Ended | None = None
        given = [str(report), on_parent_end, module, *words]
        command = [sys.executable, "-m", "slipstream.runtime.child", "-" if self._lives_on else str(parent), *given]
        log = open(output, "ab") if isinstance(output, Path) else None  # noqa: SIM115
        try:
            with tempfile.TemporaryFile() as payload:
                payload.write(stdin)
                payload.seek(0)
                self._process = subprocess.Popen(
                    command,
                    stdin=payload,
                    stdout=log or self._kept,
                    stderr=log or self._kept,
                    pass_fds=[report, *([] if self._lives_on else [parent]), *descriptors],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path()), **variables},
                    # Ctrl+C is for this process. A group is enough for that: Linux shares processor time by session.
                    process_group=None if self._lives_on else 0,
                    start_new_session=self._lives_on,
                )
        except BaseException:
            self._hang_up()
            os.close(self._report)
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
        if self._ended is None:
            code = self._process.poll()
            if code is None:
                return Ended()
            self._ended = Ended(code, *_read_report(self._report))
            os.close(self._report)
        return self._ended

    def said(self) -> str:
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
        if self._ended is None and self._process.poll() is not None:
            self.ended()
        elif self._ended is None:
            os.close(self._report)
            self._ended = Ended()
        if self._kept is not None:
            self._kept.close()

    def _hang_up(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


class Launch(Protocol):
    """Starts a Python module as a process, here or elsewhere."""

    def __call__(self, module: str, words: Sequence[str], log: Path, variables: Mapping[str, str]) -> Running:
        """It saves and ends when this process does; its output is added to the log."""


def launch_here(module: str, words: Sequence[str], log: Path, variables: Mapping[str, str]) -> Child:
    """Start a process of this machine; satisfies `Launch`."""
    return Child(module, words, on_parent_end="terminate", output=log, variables=variables)


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


def _read_report(pipe: int) -> tuple[str, str]:
    """What a process that has ended has said of it."""
    os.set_blocking(pipe, False)  # a process that it started may have the other end
    data = b""
    with suppress(BlockingIOError):
        while part := os.read(pipe, 65_536):
            data += part
    return parse_report(data)


def parse_report(data: bytes) -> tuple[str, str]:
    """Reason and traceback; both empty where nothing whole came."""
    try:
        reason, trace = json.loads(data)
    except ValueError:
        return "", ""
    return str(reason), str(trace)


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
        with suppress(OSError):  # it is gone, or does not read
            os.write(_report, json.dumps([reason[:MAX_REPORT], trace[-MAX_REPORT:]]).encode())
            os.close(_report)
        _report = None


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
