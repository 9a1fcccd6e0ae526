"""The app of `slipstream watch`: shows a run, live or finished. It only reads the run folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import psutil
from rich.console import RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Static

from slipstream.data.run_folder import LOCK_FILE
from slipstream.errors import RunFolderError
from slipstream.runtime.place import Running
from slipstream.view.run import RunReader
from slipstream.view.tui.plots import QUIET
from slipstream.view.tui.views import VIEWS, headline, metric_names, metrics

TITLES = (*VIEWS, "metrics")
# The next refresh is due once the run has used 1 / BUDGET times the CPU seconds of the last one, or after MOST_S. For a
# run that is not running, elapsed time counts.
BUDGET, LEAST_S, MOST_S = 0.003, 2.0, 30.0
CHROME = 5  # rows outside the view: two lines on top, the tabs, a rule, the keys

Left = Literal["left", "stopped"]

KEYS = """\
1 … 7          overview, learning, goals, federation, machinery, log, metrics
Tab, Shift+Tab the next view, the one before (also → and ←)
↑ ↓ PgUp PgDn  scroll; under metrics: choose one
Space          freeze the view, and let it go on
r              refresh now
?              this help
q              leave"""


class Clocks(NamedTuple):
    """Times at a refresh."""

    clock_s: float
    own_s: float  # CPU seconds of this process
    run_s: float | None  # of the run's process


def is_due(before: Clocks | None, now: Clocks) -> bool:
    """Whether the next refresh is due."""
    if before is None or now.clock_s - before.clock_s >= MOST_S:
        return True
    earned = now.clock_s - before.clock_s
    if before.run_s is not None and now.run_s is not None:
        earned = now.run_s - before.run_s
    return now.own_s - before.own_s <= BUDGET * earned


def cpu_s(run: Path) -> float | None:
    """CPU seconds of the process that writes a run; None if there is none."""
    try:
        times = psutil.Process(int((run / LOCK_FILE).read_text())).cpu_times()
    except (OSError, ValueError, psutil.Error):
        return None
    return float(times.user + times.system)


class Help(ModalScreen[None]):
    """A box with the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter,space", "dismiss", "back")]

    def __init__(self, keys: str) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """One box."""
        yield Static(Text(self._keys + "\n\nEsc goes back"), id="box")


class LeaveScreen(ModalScreen[str]):
    """Asks whether training goes on without the view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "dismiss('left')"),
        Binding("s", "dismiss('stopped')"),
        Binding("escape,q", "dismiss('')"),
    ]

    def compose(self) -> ComposeResult:
        """One box."""
        text = "Training is running.\n\n"
        text += "g    leave, and let it go on in the background\n"
        text += "s    stop it; a checkpoint is saved first\n"
        text += "Esc  stay"
        yield Static(Text(text), id="box")


class WatchApp(App[Left]):
    """Shows a run. `training` is its process if this view started it and may stop it."""

    TITLE = "slipstream watch"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #head { height: 2; }
    #tabs { height: 2; border-bottom: solid $surface-lighten-2; }
    #scroll { height: 1fr; scrollbar-size-vertical: 1; }
    #view { height: auto; }
    #keys { height: 1; }
    Help, LeaveScreen { align: center middle; }
    #box { width: auto; max-width: 90%; height: auto; padding: 1 3; border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *[Binding(str(i + 1), f"show({i})", title) for i, title in enumerate(TITLES)],
        Binding("tab,right", "turn(1)", "next", priority=True),
        Binding("shift+tab,left", "turn(-1)", "before", priority=True),
        Binding("down", "choose(1)", "down", priority=True),
        Binding("up", "choose(-1)", "up", priority=True),
        Binding("space", "hold", "hold still"),
        Binding("r", "look", "refresh now"),
        Binding("question_mark,h", "help", "help"),
        Binding("q,ctrl+c", "leave", "leave", priority=True),
    ]

    def __init__(self, path: Path, training: Running | None = None) -> None:
        super().__init__()
        self.path, self.training = path, training
        self.reader: RunReader | None = None
        self.at = 0  # which of TITLES
        self.chosen = 0  # of the metrics
        self.held = False
        self._stopping = False
        self._looked: Clocks | None = None
        self._head, self._tabs, self._body = Static(id="head"), Static(id="tabs"), Static(id="view")
        self._scroll = VerticalScroll(id="scroll")

    def compose(self) -> ComposeResult:
        """Two lines about the run, the tabs, the view, the keys."""
        yield self._head
        yield self._tabs
        with self._scroll:
            yield self._body
        yield Static(Text(" 1-7 Tab views   ↑↓ scroll   Space hold   r refresh   ? help   q leave", QUIET), id="keys")

    def on_mount(self) -> None:
        """The first refresh."""
        self._look_again()

    def on_resize(self, event: Resize) -> None:
        """Draw again for the new width."""
        del event
        self.draw()

    # --- reading and drawing ---

    def _look_again(self) -> None:
        """Refresh if it is due; called at intervals."""
        self.set_timer(LEAST_S, self._look_again)
        now = Clocks(time.monotonic(), time.process_time(), cpu_s(self.path) if self.reader else None)
        if is_due(self._looked, now):
            self._looked = now
            self.look()

    def look(self) -> None:
        """Read what is new, and draw it."""
        ended = self.training is not None and self.training.is_over()
        first = self.reader is None
        if self.reader is None:
            try:
                self.reader = RunReader(self.path)
            except RunFolderError:
                if self.training is None:
                    raise
                if ended:  # it failed before the run began; its output is printed after the view closes
                    self.exit("left")
                self.draw()
                return
        changed = not self.held and self.reader.refresh()
        if changed or first or ended:
            self.draw()
        if ended and self._stopping:
            self.exit("stopped")

    def draw(self) -> None:
        """Draw the chosen view."""
        width = max(40, self.size.width)
        tabs = Text(no_wrap=True)
        for i, title in enumerate(TITLES):
            tabs.append(f" {i + 1} {title} ", "reverse bold" if i == self.at else QUIET)
        if self.held:
            tabs.append("  held", "yellow")
        self._tabs.update(tabs)
        if self.reader is None:
            self._head.update(Text(f"{self.path}\nstarting …", QUIET))
            return
        self._head.update(headline(self.reader, width, "stopping after this update" if self._stopping else ""))
        self._body.update(self._view(self.reader, width - 2, max(8, self.size.height - CHROME)))

    def _view(self, reader: RunReader, width: int, height: int) -> RenderableType:
        title = TITLES[self.at]
        if title in VIEWS:
            return VIEWS[title](reader, width, height)
        self.chosen = max(0, min(self.chosen, len(metric_names(reader)) - 1))
        return metrics(reader, width, height, self.chosen)

    # --- keys ---

    def action_show(self, at: int) -> None:
        """Show a view."""
        self.at = at
        self._scroll.scroll_home(animate=False)
        self.draw()

    def action_turn(self, by: int) -> None:
        """The next view, or the one before."""
        self.action_show((self.at + by) % len(TITLES))

    def action_choose(self, by: int) -> None:
        """Scroll by a line; under metrics, choose another one."""
        if TITLES[self.at] == "metrics":
            self.chosen += by
            self.draw()
        else:
            self._scroll.scroll_relative(y=by, animate=False)

    def action_hold(self) -> None:
        """Freeze the view, or let it go on."""
        self.held = not self.held
        self.look()
        self.draw()

    def action_look(self) -> None:
        """Refresh now."""
        self.look()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help(KEYS))

    def action_leave(self) -> None:
        """Leave; ask first if training would go on alone."""
        if isinstance(self.screen, ModalScreen):
            self.screen.dismiss()
        elif self.training is None or self.training.is_over():
            self.exit("left")
        else:
            self.push_screen(LeaveScreen(), self._chosen)

    def _chosen(self, answer: str | None) -> None:
        if answer == "left":
            self.exit("left")
        elif answer == "stopped" and self.training is not None and not self._stopping:
            self._stopping = True
            self.training.stop()  # the loop saves a checkpoint after the update it is in
            self.look()
            self.draw()
