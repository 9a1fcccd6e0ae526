"""What a person sees while a run works: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from slipstream.runtime.signals import Interrupts, silence

LINE_EVERY_S = 5.0  # between lines where there is no terminal
NO_READER = "nobody reads its output any more"


class Display(Protocol):
    """Where a run shows how far it is."""

    def start(self, title: str, done: int, total: int) -> None:
        """Show an empty (or resumed) bar."""

    def advance(self, done: int, text: str) -> None:
        """Show progress; `text` is a few figures."""

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""

    def stop(self) -> None:
        """Leave the screen tidy."""


class Quiet:
    """Shows nothing."""

    def start(self, title: str, done: int, total: int) -> None:
        """Nothing."""

    def advance(self, done: int, text: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class Lines:
    """Plain lines, at most one every few seconds: for logs and pipes."""

    def __init__(self, unit: str = "steps") -> None:
        self._unit = unit
        self._total = self._first = 0
        self._began = self._said = 0.0

    def start(self, title: str, done: int, total: int) -> None:
        """Say what begins."""
        self._total, self._first = total, done
        self._began = self._said = time.monotonic()
        print(title, flush=True)

    def advance(self, done: int, text: str) -> None:
        """Say how far it is, not too often."""
        now = time.monotonic()
        if now - self._said < LINE_EVERY_S and done < self._total:
            return
        self._said = now
        rate = (done - self._first) / max(now - self._began, 1e-9)
        left = max(0.0, self._total - done) / max(rate, 1e-9)
        share = min(1.0, done / self._total)
        print(f"{done:>10,} {self._unit} {share:4.0%}  {rate:>9,.0f}/s  at most {clock(left)} left  {text}", flush=True)

    def note(self, text: str) -> None:
        """Say it."""
        print(text, flush=True)

    def stop(self) -> None:
        """Nothing to tidy."""


class Unfailing:
    """Another display, as long as it can be written: who shows a run must not end it unsaved.

    A pipe or a terminal that is gone (`| head`, a dropped connection) asks the run to save and end, as a signal does.
    """

    def __init__(self, shown: Display, interrupts: Interrupts) -> None:
        self._shown, self._interrupts = shown, interrupts

    def start(self, title: str, done: int, total: int) -> None:
        """Show an empty (or resumed) bar."""
        with self._surviving():
            self._shown.start(title, done, total)

    def advance(self, done: int, text: str) -> None:
        """Show progress."""
        with self._surviving():
            self._shown.advance(done, text)

    def note(self, text: str) -> None:
        """Say something."""
        with self._surviving():
            self._shown.note(text)

    def stop(self) -> None:
        """Leave the screen tidy."""
        with self._surviving():
            self._shown.stop()

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            self._shown = Quiet()
            self._interrupts.signal = self._interrupts.signal or NO_READER
            with suppress(OSError, ValueError):
                silence(sys.stdout.fileno())


def best_display(unit: str = "steps") -> Display:
    """A bar on a terminal, lines elsewhere; `unit` is what they count."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
        return Lines(unit)
    from slipstream.run.bar import Bar

    return Bar(unit)


def clock(seconds: float) -> str:
    """Seconds as people say them: 1:02:03, 4:05."""
    whole = int(min(seconds, 359_999))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
