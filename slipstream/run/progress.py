"""What a person sees while a run works: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from slipstream.data.run_folder import clock
from slipstream.runtime.signals import Interrupts, silence

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

LINE_EVERY_S = 5.0  # between lines where there is no terminal
LEAST, MOST = 8, 30  # characters of the bar itself
ECHO = 3  # columns left free, so that the ^C a terminal echoes does not begin another line
RECENT_S = 30.0  # the rate shown by a bar is that of the last so many seconds
GAP = "  "
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


class Bar:
    """A progress bar on a terminal, with rate and time left, in one line that fits it."""

    def __init__(self, unit: str = "steps", console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console()
        self._live = Live(get_renderable=lambda: self, console=self._console, refresh_per_second=5)
        self._unit, self._text = unit, ""
        self._done = self._total = 0
        self._began = self._ended = 0.0
        self._seen: deque[tuple[float, int]] = deque()  # when, and how far it was

    def start(self, title: str, done: int, total: int) -> None:
        """Say what begins, and show the bar below it."""
        self._done, self._total = done, total
        self._began = time.monotonic()
        self._seen.append((self._began, done))
        self.note(title)
        self._live.start()

    def advance(self, done: int, text: str) -> None:
        """Move the bar."""
        now = time.monotonic()
        self._done, self._text = done, text
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > RECENT_S:
            self._seen.popleft()

    def note(self, text: str) -> None:
        """Print above the bar, as it is: the terminal breaks lines, so that paths can be copied."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Leave the bar standing, with the time it took."""
        self._ended = time.monotonic()
        self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The line, for the width there is now."""
        from rich.text import Text

        (then, before), (now, done) = self._seen[0], self._seen[-1]
        rate = (done - before) / (now - then) if now > then else 0.0
        if self._ended:
            when = f"took {clock(self._ended - self._began)}"
        else:
            waited = time.monotonic() - now  # an update may take minutes
            when = f"{clock(max(0.0, (self._total - done) / rate - waited))} left" if rate > 0 else ""
        figures = [figure for figure in self._text.split(GAP) if figure]
        share = min(1.0, done / self._total) if self._total else 1.0
        counted = f"{done:,}/{self._total:,} {self._unit}", f"{done:,}"
        size, shown = fit(share, counted, f"{rate:,.0f}/s" if rate > 0 else "", when, figures, options.max_width - ECHO)
        full = int(size * share)
        full_mark, rest_mark = ("#", "-") if options.ascii_only else ("━", "·")
        text = Text(no_wrap=True, overflow="crop", end="")
        text.append(full_mark * full, "cyan").append(rest_mark * (size - full), "grey50")
        yield text.append(GAP.join(["", *shown]) if size else GAP.join(shown))


def fit(
    share: float, counted: Sequence[str], rate: str, when: str, figures: Sequence[str], width: int
) -> tuple[int, list[str]]:
    """How long the bar is and what stands beside it: what does not fit is left out whole.

    `counted` are ways to say how far it is, the fullest first. Percent, time, rate and count come before all figures.
    """
    percent = f"{int(100 * share):3d}%"
    left = width - len(percent)
    size = LEAST if left >= LEAST + len(GAP) else 0
    left -= size + len(GAP) if size else 0
    taken = dict.fromkeys(("count", "rate", "when"), "")
    for place, ways in (("when", [when]), ("rate", [rate]), ("count", counted)):
        found = next((way for way in ways if way and len(GAP) + len(way) <= left), "")
        taken[place] = found
        left -= len(GAP) + len(found) if found else 0
    if size:
        longer = min(left, max(0, min(MOST, width // 6) - size))
        size, left = size + longer, left - longer
    shown = [percent, *(part for part in taken.values() if part)]
    for figure in figures:
        if len(GAP) + len(figure) > left:
            break
        shown.append(figure)
        left -= len(GAP) + len(figure)
    return size, shown


class Screen:
    """A display that cannot end a run, or none: shows nothing where there is none, or once it cannot be written.

    A pipe or a terminal that is gone (`| head`, a dropped connection) asks the run to save and end, as a signal does.
    """

    def __init__(self, display: Display | None, interrupts: Interrupts) -> None:
        self._display, self._interrupts = display, interrupts

    def start(self, title: str, done: int, total: int) -> None:
        """Show an empty (or resumed) bar."""
        self._try(lambda display: display.start(title, done, total))

    def advance(self, done: int, text: str) -> None:
        """Show progress."""
        self._try(lambda display: display.advance(done, text))

    def note(self, text: str) -> None:
        """Say something."""
        self._try(lambda display: display.note(text))

    def stop(self) -> None:
        """Leave the screen tidy."""
        self._try(lambda display: display.stop())

    def _try(self, show: Callable[[Display], None]) -> None:
        if self._display is None:
            return
        try:
            show(self._display)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            self._display = None
            self._interrupts.signal = self._interrupts.signal or NO_READER
            with suppress(OSError, ValueError):
                silence(sys.stdout.fileno())


def best_display(unit: str = "steps") -> Display:
    """A bar on a terminal, lines elsewhere; `unit` is what they count."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
        return Lines(unit)
    return Bar(unit)
