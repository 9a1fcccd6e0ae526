"""What a person sees while a run works: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Protocol, Self

LINE_EVERY_S = 5.0  # between lines where there is no terminal


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


def best_display(unit: str = "steps") -> Display:
    """A bar on a terminal, lines elsewhere; `unit` is what they count."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
        return Lines(unit)
    from slipstream.train.bar import Bar

    return Bar(unit)


def clock(seconds: float) -> str:
    """Seconds as people say them: 1:02:03, 4:05."""
    whole = int(min(seconds, 359_999))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


class Interrupts:
    """While active, the first Ctrl+C or SIGTERM only raises a flag; the second ends the program at once."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def __enter__(self) -> Self:
        import signal
        import threading

        self._old: dict[int, object] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: object) -> None:
        import os
        import signal

        if self.signal is not None:
            os._exit(128 + number)
        self.signal = "Ctrl+C" if number == signal.SIGINT else "SIGTERM"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import signal

        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
