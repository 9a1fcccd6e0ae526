"""The app of `--ui debug`: holds and steps the loop, and shows worlds, rewards and observations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Static

from slipstream.debug import panels
from slipstream.debug.control import FASTER, LoopControl, LoopSnapshot, LoopThread, MakeOneWorld, Work
from slipstream.spec import WorldSpec
from slipstream.view.tui.plots import QUIET, number, printable
from slipstream.view.tui.watch import Help
from slipstream.worlds.world import tools_of

# The loop shares the interpreter with the view: a picture is drawn this often, and for this part of the time at most.
REDRAW_S, DRAWING = 0.12, 0.25
DEBOUNCE_S = 0.8  # after the last [ or ] before the loop begins again
MOST_WORLDS = 4096
LEAST_PICTURE = 32  # columns that the world in focus keeps beside the panels; with less room they are below it

KEYS = """\
Space            hold the loop, let it go
n                one step of all worlds
f                60 steps, then hold
+  -             twice, half as many steps per second
m                as fast as it can
Tab, Shift+Tab   the next world, the one before
1 … 9            that world
0                summary: all worlds and the aggregate
g                grid of worlds, or one world
[  ]             half, twice as many worlds (begins anew)
r  p             rewards, observation beside the world
a                the next agents in them
?                this help
q                leave; the run is saved first"""

View = Literal["focus", "grid", "summary"]


class DebugApp(App[None]):
    """Shows one loop at a time; a new number of worlds starts a new loop."""

    TITLE = "slipstream train --ui debug"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #head { height: 3; border-bottom: solid $surface-lighten-2; }
    #scroll { height: 1fr; scrollbar-size-vertical: 1; }
    #view { height: auto; }
    #keys { height: 1; }
    Help { align: center middle; }
    #box { width: auto; max-width: 95%; height: auto; padding: 1 3; border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "hold"),
        Binding("n", "step(1)", "step"),
        Binding("f", f"step({FASTER})", "fast"),
        Binding("plus,equals_sign", "faster(2.0)", "faster"),
        Binding("minus", "faster(0.5)", "slower"),
        Binding("m", "most", "as fast as it can"),
        Binding("tab", "cycle(1)", "next world", priority=True),
        Binding("shift+tab", "cycle(-1)", "world before", priority=True),
        *[Binding(str(i), f"jump({i - 1})", f"world {i}") for i in range(1, 10)],
        Binding("0", "summary", "summary"),
        Binding("g", "grid", "grid"),
        Binding("left_square_bracket", "worlds(0.5)", "fewer worlds"),
        Binding("right_square_bracket", "worlds(2.0)", "more worlds"),
        Binding("r", "panel('rewards')", "rewards"),
        Binding("p", "panel('observation')", "observation"),
        Binding("a", "agents", "next agents"),
        Binding("question_mark,h", "help", "help"),
        Binding("q,ctrl+c", "leave", "leave", priority=True),
    ]

    def __init__(
        self, work: Work, num_worlds: int, kind: str, one_world: MakeOneWorld, fits: Callable[[int], str | None]
    ) -> None:
        """`one_world` builds the world that many are compared with; `fits` says why a number of worlds is refused."""
        super().__init__()
        self._work, self._kind, self._one_world, self._fits = work, kind, one_world, fits
        self.wanted = num_worlds
        self.view: View = "grid" if num_worlds > 1 else "focus"
        self.focused_world = 0
        self.first_agent = 0  # of those in the panels
        self.panels = {"rewards", "observation"}
        self.loop = LoopThread(work, num_worlds, one_world)
        self.refused = ""
        self.leaving = False
        self._restart: Timer | None = None
        self._drawn: tuple[LoopSnapshot, object] | None = None  # what the last picture was of
        self._spent = 0.0
        self._above = 9  # lines above the grid of the summary
        self._head, self._body, self._keys = Static(id="head"), Static(id="view"), Static(id="keys")

    def compose(self) -> ComposeResult:
        """Three lines about the loop, the view, the keys."""
        yield self._head
        with VerticalScroll(id="scroll"):
            yield self._body
        yield self._keys

    def on_mount(self) -> None:
        """Begin the loop, held before its first step."""
        self._head.update(Text("starting …", QUIET))
        self.loop.start()
        self._spent = time.thread_time()
        self._draw_again()

    def _draw_again(self) -> None:
        """Draw, and again after a time that grows with the cost of drawing."""
        before, self._spent = self._spent, time.thread_time()
        self.set_timer(max(REDRAW_S, (self._spent - before) / DRAWING), self._draw_again)
        self.draw()

    # --- drawing ---

    def draw(self) -> None:
        """Draw the last snapshot and ask for the next."""
        loop = self.loop
        if loop.is_over and (loop.error is not None or self.leaving):
            self.exit()
            return
        control, snapshot = loop.control, loop.control.snapshot
        if control.spec is None or snapshot is None:
            return
        chosen = (self.view, self.focused_world, frozenset(self.panels), self.first_agent, self.size)
        self._head.update(self._hud(loop, snapshot))
        self._keys.update(panels.keys(self.size.width))
        if self._drawn is None or self._drawn[0] is not snapshot or self._drawn[1] != chosen:
            self._body.update(self._view(control, control.spec, snapshot))
            self._drawn = snapshot, chosen
        shown, focus = self._shown(control.spec, loop.num_worlds), min(self.focused_world, loop.num_worlds - 1)
        if (
            control.step != snapshot.step
            or focus != snapshot.focus.world
            or not snapshot.frames.keys() >= set(shown if snapshot.frames else ())
        ):
            control.ask(shown, focus)

    def _hud(self, loop: LoopThread, snapshot: LoopSnapshot) -> Text:
        """What the loop does, how far and how fast it is, and the gain of many worlds."""
        control, width = loop.control, self.size.width
        state = panels.state(control, self.leaving or self._restart is not None, loop.is_over)
        first = panels.loop_line(control, snapshot, state, width)
        count = f"{loop.num_worlds} world" + ("s" if loop.num_worlds > 1 else "")
        wanted = f" → {self.wanted}" if self.wanted != loop.num_worlds else ""
        worlds: list[panels.Piece] = [(f" {count}{wanted}", "bold")]
        if self.refused:
            worlds.append((printable(self.refused)[: max(0, width - 16)], "red"))
        if self.focused_world != snapshot.focus.world and not loop.is_over:  # which the loop shows between two steps
            worlds.append((f"world {self.focused_world + 1} after this step", "yellow"))
        if self.view != "focus" and control.spec is not None:
            shown = self._shown(control.spec, loop.num_worlds)
            if len(shown) < loop.num_worlds:
                worlds.append((f"{shown.start + 1}-{shown.stop} shown", QUIET))
        return first.append("\n").append_text(panels.speed_line(control.spec, snapshot, worlds, width))

    def _view(self, control: LoopControl, spec: WorldSpec, snapshot: LoopSnapshot) -> RenderableType:
        if self.view == "grid":
            return self._grid(spec, snapshot)
        if self.view == "summary":
            above = panels.aggregate(self._kind, control, spec, snapshot, self.size.width - 2)
            self._above = len(above) + 1
            return Group(*above, Text(), self._grid(spec, snapshot))
        return self._one(spec, snapshot)

    def _shown(self, spec: WorldSpec, num_worlds: int) -> range:
        """The worlds that the grid has room for: the page with the one in focus."""
        across, down, _, _ = self._layout(spec)
        page = across * down
        first = self.focused_world // page * page
        return range(first, min(first + page, num_worlds))

    def _layout(self, spec: WorldSpec) -> tuple[int, int, int, int]:
        """Tiles across and down, and their size."""
        tile = tools_of(self._kind).drawings.tile
        wide, tall = tile(spec) if spec.frame_fields else (26, 0)  # without a picture, a line each
        room = self.size.height - 4 - (self._above if self.view == "summary" else 0)
        return max(1, (self.size.width - 2) // (wide + 2)), max(1, room // (tall + 2)), wide, tall

    def _grid(self, spec: WorldSpec, snapshot: LoopSnapshot) -> RenderableType:
        across, _, wide, tall = self._layout(spec)
        shown = [
            world
            for world in self._shown(spec, len(snapshot.episodes))
            if world in snapshot.frames or not snapshot.frames
        ]
        grid = Table.grid(padding=(0, 2, 1, 0))
        for _ in range(across):
            grid.add_column(width=wide)
        for start in range(0, len(shown), across):
            cells: list[Text] = []
            for world in shown[start : start + across]:
                told = number(round(snapshot.returns[world], 2))
                names = (f"{world + 1}  ep {snapshot.episodes[world]}  {told}", f"{world + 1}  {told}", f"{world + 1}")
                name = next(name for name in names if len(name) <= wide)
                text = Text(no_wrap=True)
                text.append(f"{name:<{wide}}\n", "reverse" if world == self.focused_world else QUIET)
                if spec.frame_fields:
                    text.append_text(Text("\n").join(self._picture(spec, snapshot, world, wide, tall)))
                cells.append(text)
            grid.add_row(*cells)
        return grid

    def _picture(self, spec: WorldSpec, snapshot: LoopSnapshot, world: int, wide: int, tall: int) -> list[Text]:
        frame = snapshot.frames.get(world)
        if frame is None:
            return [Text("no picture of this world", QUIET)]
        characters = tools_of(self._kind).drawings.characters
        return characters(spec, frame, snapshot.backdrops.get(world), wide, tall)

    def _one(self, spec: WorldSpec, snapshot: LoopSnapshot) -> RenderableType:
        """The world in focus, large, and the panels that are on."""
        world = snapshot.focus.world
        panel = max(20 + 19 * min(2, spec.num_agents), 28 + 10 * min(3, spec.num_agents))
        beside = bool(self.panels) and self.size.width >= panel + LEAST_PICTURE
        wide = self.size.width - 2 - (panel + 3 if beside else 0)
        tall = min(48, self.size.height - 6 if beside or not self.panels else self.size.height // 2)
        drawn = self._picture(spec, snapshot, world, wide, tall)
        title = f"world {world + 1}  episode {snapshot.episodes[world]}  step {snapshot.lengths[world]}  "
        title += f"return {number(round(snapshot.returns[world], 3))}"
        picture = Group(Text(title, "bold"), *drawn)
        pictured = max(len(title), *(line.cell_len for line in drawn))
        shown: list[RenderableType] = []
        across = 1
        if beside:  # what a small picture leaves free is the observation's, if it is long
            room = max(8, self.size.height - 6 - (len(spec.reward_parts) + 3 if "rewards" in self.panels else 0))
            needed = -(-panels.rows_of(spec, snapshot) // room)
            across = max(1, min(needed, (self.size.width - 2 - pictured) // (panel + 3)))
        if "rewards" in self.panels:
            shown.append(panels.rewards(spec, snapshot, self._agents(spec, 2)))
        if "observation" in self.panels:
            shown.append(panels.observation(spec, snapshot, self._agents(spec, 3), across))
        if not shown:
            return picture
        if not beside:
            return Group(picture, *shown)
        grid = Table.grid(padding=(0, 3, 0, 0))
        grid.add_column(width=pictured)
        grid.add_column(width=across * (panel + 3) - 3)
        grid.add_row(picture, Group(*shown))
        return grid

    def _agents(self, spec: WorldSpec, most: int) -> Sequence[int]:
        """Those that a panel has room for, from the first that was chosen on."""
        count = spec.num_agents
        return [(self.first_agent + i) % count for i in range(min(most, count))]

    # --- keys ---

    def action_pause(self) -> None:
        """Hold the loop, or let it go."""
        self.loop.control.hold(not self.loop.control.paused)

    def action_step(self, steps: int) -> None:
        """So many steps, then hold."""
        self.loop.control.let(steps)

    def action_faster(self, by: float) -> None:
        """Twice or half the pace; what was as fast as it could comes back to the fastest pace there is."""
        now = self.loop.control.pace
        self.loop.control.set_pace((2048.0 if now is None else now) * by)

    def action_most(self) -> None:
        """As fast as it can."""
        self.loop.control.set_pace(None)

    def action_cycle(self, by: int) -> None:
        """The next world, or the one before."""
        self.focused_world = (self.focused_world + by) % self.loop.num_worlds

    def action_jump(self, world: int) -> None:
        """One world, large."""
        if world < self.loop.num_worlds:
            self.focused_world, self.view = world, "focus"

    def action_summary(self) -> None:
        """All worlds and the aggregate."""
        self.view = "summary"

    def action_grid(self) -> None:
        """The grid, or one world."""
        self.view = "focus" if self.view == "grid" else "grid"

    def action_panel(self, name: str) -> None:
        """A panel beside the world in focus, on or off."""
        self.panels ^= {name}

    def action_agents(self) -> None:
        """The next agents in the panels."""
        if self.loop.control.spec is not None:
            self.first_agent = (self.first_agent + 1) % self.loop.control.spec.num_agents

    def action_worlds(self, by: float) -> None:
        """Half or twice as many worlds, once no more keys come."""
        wanted = max(1, min(MOST_WORLDS, int(self.wanted * by)))
        self.refused = self._fits(wanted) or ""
        if self.refused or self.leaving:
            return
        self.wanted = wanted
        if self._restart is not None:
            self._restart.stop()
        self._restart = self.set_timer(DEBOUNCE_S, self._begin_anew)

    def _begin_anew(self) -> None:
        """End the loop and, when it is over, begin one with as many worlds as are wanted."""
        if self.wanted == self.loop.num_worlds:
            self._restart = None
            return
        self.loop.control.leave()
        if not self.loop.is_over:
            self._restart = self.set_timer(REDRAW_S, self._begin_anew)
            return
        self._restart = None
        if not self.leaving and self.loop.error is None:
            before = self.loop.control
            self.focused_world = min(self.focused_world, self.wanted - 1)
            self.loop = LoopThread(self._work, self.wanted, self._one_world)
            self.loop.control.set_pace(before.pace)
            self.loop.control.hold(before.paused)
            self.loop.start()

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(Help(KEYS))

    def action_leave(self) -> None:
        """Leave once the run is saved."""
        if isinstance(self.screen, ModalScreen):
            self.screen.dismiss()
            return
        self.leaving = True
        self.loop.control.leave()
