"""What signals do: Ctrl+C, SIGTERM and SIGHUP (a closed terminal) all ask to save what there is and to end.

A program under `catching` gets the first as an exception, as Ctrl+C always was one; a run under `Interrupts` gets it as
a flag and ends after its update. A signal that was ignored when we began, as `nohup` has it, stays ignored.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

STOPS = {signal.SIGINT: "Ctrl+C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
SAME_S = 0.25  # what comes within this time is one request: `timeout` and closing terminals send two signals

Handler = Callable[[int, FrameType | None], Any]


class SignalStop(KeyboardInterrupt):
    """A signal asks the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(STOPS.get(signal.Signals(number), str(number)))
        self.number = number


class _SignalState:
    """Which signal came first, and whether one more means at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._at = 0.0
        self._terminals = [stream for stream in (1, 2) if _is_terminal(stream)]

    def note(self, number: int) -> bool:
        """Take a signal; True for the first. The next that a person or a scheduler sends ends the program."""
        if number == signal.SIGHUP:
            self._let_go()
        if self.number is None:
            self.number, self._at = number, time.monotonic()
            return True
        if number != signal.SIGHUP and time.monotonic() - self._at > SAME_S:
            os._exit(128 + number)
        return False

    def _let_go(self) -> None:
        """What is said to a terminal that is gone goes nowhere, instead of failing."""
        for stream in self._terminals:
            if not _is_terminal(stream):
                silence(stream)


def silence(stream: int) -> None:
    """Let a descriptor lead to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def _is_terminal(stream: int) -> bool:
    try:
        return os.isatty(stream)
    except OSError:
        return False


def listen(handler: Handler) -> dict[int, Any]:
    """Have this called for every signal that asks to end; returns who was called before, to be given back.

    Only the main thread of a program can; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


def ignore() -> None:
    """Be deaf: for processes that live no longer than the one that holds their pipe."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def restore_signals() -> None:
    """Undo what a deaf parent left us with, but for SIGHUP: `nohup` may have been said."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# --- as an exception ---

_holds, _waiting = 0, None  # blocks that must not be interrupted, and the signal that waits for their end
_raised: int | None = None  # a signal that came as an exception, which a destructor may have swallowed


@contextmanager
def catching(*, to_the_end: bool = False) -> Iterator[None]:
    """While active, the first signal raises `SignalStop` and the second ends the program at once.

    `to_the_end`: nothing of the program comes afterwards, so that no signal can change its exit code any more.
    """
    global _raised
    asked, _raised = _SignalState(), None

    def stop(number: int, frame: FrameType | None) -> None:
        global _waiting, _raised
        if asked.note(number):
            if _holds:
                _waiting = number
                return
            _raised = number
            raise SignalStop(number)

    before = listen(stop)
    try:
        yield
    finally:
        _raised = None
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if to_the_end else handler)


@contextmanager
def held() -> Iterator[None]:
    """A signal that comes in this block is raised at its end: nothing is left half begun."""
    global _holds, _waiting, _raised
    _holds += 1
    try:
        yield
    finally:
        _holds -= 1
        if not _holds and _waiting is not None:
            _raised, _waiting = _waiting, None
            raise SignalStop(_raised)


# --- as a flag ---


class Interrupts:
    """While active, the first signal only raises a flag; a second Ctrl+C or SIGTERM ends the program at once."""

    def __init__(self) -> None:
        self.signal: str | None = None  # as people call it; others may set it too
        self.number: int | None = None  # of a signal that came
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._asked = _SignalState()
        self._old = listen(self._on_signal)
        if self._old and _raised is not None:
            self._asked.note(_raised)
            self._take(_raised)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked.note(number):
            self._take(number)

    def _take(self, number: int) -> None:
        self.number, self.signal = number, STOPS[signal.Signals(number)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
