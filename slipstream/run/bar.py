"""The progress bar of a run: one line that fits its terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from slipstream.run.progress import clock

LEAST, MOST = 8, 30  # characters of the bar itself
ECHO = 3  # columns left free, so that the ^C a terminal echoes does not begin another line
RECENT_S = 30.0  # the rate is that of the last so many seconds
GAP = "  "


class Bar:
    """A progress bar on a terminal; satisfies train.progress.Display."""

    def __init__(self, unit: str = "steps", console: Console | None = None) -> None:
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
