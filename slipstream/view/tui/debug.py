"""`--ui debug`: the training loop under a person's hand, its worlds in characters, rewards and observations by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Static

from slipstream.view.tui.plots import QUIET, bar, number, printable
from slipstream.view.tui.stage import FASTER, Loop, Scene, Stage, Work, mean_and_median
from slipstream.view.tui.watch import Help
from slipstream.worlds.registry import characters, headline, tile
from slipstream.worlds.spec import ObsBlock, WorldSpec

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
?                this help
q                leave; the run is saved first"""

View = Literal["focus", "grid", "summary"]


class DebugApp(App[None]):
    """One loop at a time; another number of worlds begins another one."""

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
        Binding("question_mark,h", "help", "help"),
        Binding("q,ctrl+c", "leave", "leave", priority=True),
    ]

    def __init__(
        self, work: Work, num_worlds: int, kind: str, alone: Callable[[], float], fits: Callable[[int], str | None]
    ) -> None:
        """`alone` measures steps per second of one world; `fits` says why a number of worlds will not do."""
        super().__init__()
        self._work, self._kind, self._alone_of, self._fits = work, kind, alone, fits
        self.alone = 0.0
        self.wanted = num_worlds
        self.view: View = "grid" if num_worlds > 1 else "focus"
        self.focused_world = 0
        self.panels = {"rewards", "observation"}
        self.loop: Loop | None = None
        self.refused = ""
        self.leaving = False
        self._restart: Timer | None = None
        self._drawn: tuple[Scene, object] | None = None  # what the last picture was of
        self._spent = 0.0
        self._head, self._body = Static(id="head"), Static(id="view")

    def compose(self) -> ComposeResult:
        """Three lines about the loop, the view, the keys."""
        yield self._head
        with VerticalScroll(id="scroll"):
            yield self._body
        keys = " Space hold  n step  f +60  +- m pace  Tab 1-9 world  0 g view  [] worlds  r p  ?  q"
        yield Static(Text(keys, QUIET, no_wrap=True), id="keys")

    def on_mount(self) -> None:
        """Begin the loop, held before its first step."""
        self._head.update(Text("starting …", QUIET))
        self.loop = Loop(self._measured_work, self.wanted)
        self._spent = time.thread_time()
        self._draw_again()

    def _draw_again(self) -> None:
        """Draw, and again after a while that grows with what drawing costs."""
        before, self._spent = self._spent, time.thread_time()
        self.set_timer(max(REDRAW_S, (self._spent - before) / DRAWING), self._draw_again)
        self.draw()

    def _measured_work(self, stage: Stage, num_worlds: int) -> str:
        """On the loop's thread: the first time, how fast one world alone is, and then the work."""
        if not self.alone:
            self.alone = self._alone_of()
        return self._work(stage, num_worlds)

    # --- drawing ---

    def draw(self) -> None:
        """What the loop has shown last; and ask for the next look."""
        loop = self.loop
        if loop is None:
            return
        if loop.is_over and (loop.error is not None or self.leaving):
            self.exit()
            return
        stage, scene = loop.stage, loop.stage.scene
        if stage.spec is None or scene is None:
            return
        chosen = (self.view, self.focused_world, frozenset(self.panels), self.size, self.alone)
        self._head.update(self._hud(loop, scene))
        if self._drawn is None or self._drawn[0] is not scene or self._drawn[1] != chosen:
            self._body.update(self._view(stage, stage.spec, scene))
            self._drawn = scene, chosen
        shown, focus = self._shown(stage.spec, loop.num_worlds), min(self.focused_world, loop.num_worlds - 1)
        if (
            stage.step != scene.step
            or focus != scene.focus.world
            or not scene.frames.keys() >= set(shown if scene.frames else ())
        ):
            stage.ask(shown, focus)

    def _hud(self, loop: Loop, scene: Scene) -> Text:
        """Held or not, how far, how fast, and what many worlds bring."""
        stage, speed = loop.stage, scene.speed
        text = Text(no_wrap=True, overflow="ellipsis")
        if loop.is_over:
            text.append(" over ", "bold reverse cyan")
        elif self.leaving or self._restart is not None:
            text.append(" ending ", "bold reverse yellow")
        elif stage.paused:
            text.append(" held ", "bold reverse yellow")
        else:
            text.append(" runs ", "bold reverse green")
        pace = "as fast as it can" if stage.pace is None else f"{stage.pace:g} steps/s"
        text.append(f" step {scene.step:,}", "bold").append(f"  {pace}  ")
        text.append(f"rollout {scene.row}/{stage.rollout_length} ", QUIET)
        text.append_text(bar(scene.row / stage.rollout_length, 12)).append(f"  {number(stage.done)} steps learned  ")
        text.append(printable(stage.told.strip()), QUIET).append("\n")
        worlds = f"{loop.num_worlds} worlds" + (f" → {self.wanted}" if self.wanted != loop.num_worlds else "")
        text.append(f" {worlds}  ", "bold")
        if speed.steps_per_s:
            each = speed.steps_per_s / loop.num_worlds
            text.append(f"{number(round(speed.steps_per_s))} steps/s, {number(round(each))} each  ")
            if stage.spec is not None and stage.spec.has_durations:
                text.append(f"{number(round(speed.ticks_per_s))} frames/s  ")
            if self.alone:
                gain = speed.steps_per_s / self.alone
                text.append(f"{gain:.1f} × one world, efficiency {gain / loop.num_worlds:.0%}  ")
            text.append(f"{speed.learning:.0%} of the time learns", QUIET)
        else:
            text.append("speed is known after some steps", QUIET)
        if self.refused:
            text.append(f"  {printable(self.refused)}", "red")
        return text

    def _view(self, stage: Stage, spec: WorldSpec, scene: Scene) -> RenderableType:
        if self.view == "grid":
            return self._grid(spec, scene)
        if self.view == "summary":
            return Group(self._aggregate(stage, spec, scene), Text(), self._grid(spec, scene))
        return self._one(spec, scene)

    def _shown(self, spec: WorldSpec, num_worlds: int) -> range:
        """The worlds that the grid has room for: the page with the one in focus."""
        across, down, _, _ = self._layout(spec)
        page = across * down
        first = self.focused_world // page * page
        return range(first, min(first + page, num_worlds))

    def _layout(self, spec: WorldSpec) -> tuple[int, int, int, int]:
        """Tiles across and down, and their size."""
        wide, tall = tile(self._kind, spec)
        room = self.size.height - 5 - (AGGREGATE + 1 if self.view == "summary" else 0)
        return max(1, (self.size.width - 2) // (wide + 2)), max(1, room // (tall + 2)), wide, tall

    def _grid(self, spec: WorldSpec, scene: Scene) -> RenderableType:
        across, _, wide, tall = self._layout(spec)
        shown = [world for world in self._shown(spec, len(scene.episodes)) if world in scene.frames or not scene.frames]
        grid = Table.grid(padding=(0, 2, 1, 0))
        for _ in range(across):
            grid.add_column(width=wide)
        for start in range(0, len(shown), across):
            cells: list[Text] = []
            for world in shown[start : start + across]:
                name = f"{world + 1}  ep {scene.episodes[world]}  {number(round(scene.returns[world], 2))}"
                text = Text(no_wrap=True)
                text.append(f"{name[:wide]:<{wide}}\n", "reverse" if world == self.focused_world else QUIET)
                drawn = characters(self._kind, spec, scene.frames.get(world), scene.backdrops.get(world), wide, tall)
                cells.append(text.append_text(Text("\n").join(drawn)))
            grid.add_row(*cells)
        return grid

    def _aggregate(self, stage: Stage, spec: WorldSpec, scene: Scene) -> RenderableType:
        """Figures over the worlds and the latest episodes."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=24, no_wrap=True)
        table.add_column(no_wrap=True)
        ended = scene.ended
        returns = mean_and_median([episode.total for episode in ended])
        lengths = mean_and_median([float(episode.length) for episode in ended])
        rows = [
            ("episodes ended", f"{scene.over:,}; below, of the latest {len(ended)}" if ended else "none yet"),
            ("return, mean, median", _pair(returns)),
            ("length, mean, median", _pair(lengths)),
        ]
        for name in headline(self._kind, spec)[:3]:
            column = spec.stats.index(name)
            rows.append((name, _pair(mean_and_median([episode.stats[column] for episode in ended]))))
        rows.append(("last update", stage.told.strip() or "none yet"))
        rows.append(("last note", stage.notes[-1] if stage.notes else ""))
        for name, value in rows[:AGGREGATE]:
            table.add_row(Text(name.replace("_", " "), QUIET), Text(printable(value)))
        return table

    def _one(self, spec: WorldSpec, scene: Scene) -> RenderableType:
        """The world in focus, large, and the panels that are on."""
        world = scene.focus.world
        panel = max(20 + 19 * min(2, spec.num_agents), 28 + 10 * min(3, spec.num_agents))
        beside = bool(self.panels) and self.size.width >= panel + LEAST_PICTURE
        wide = self.size.width - 2 - (panel + 3 if beside else 0)
        tall = min(34, self.size.height - 6 if beside or not self.panels else self.size.height // 2)
        drawn = characters(self._kind, spec, scene.frames.get(world), scene.backdrops.get(world), wide, tall)
        title = f"world {world + 1}  episode {scene.episodes[world]}  step {scene.lengths[world]}  "
        title += f"return {number(round(scene.returns[world], 3))}"
        picture = Group(Text(title, "bold"), *drawn)
        panels: list[RenderableType] = []
        if "rewards" in self.panels:
            panels.append(_rewards(spec, scene))
        if "observation" in self.panels:
            panels.append(_observation(spec, scene))
        if not panels:
            return picture
        if not beside:
            return Group(picture, *panels)
        grid = Table.grid(padding=(0, 3, 0, 0))
        grid.add_column(width=max(len(title), *(line.cell_len for line in drawn)))
        grid.add_column(width=panel)
        grid.add_row(picture, Group(*panels))
        return grid

    # --- keys ---

    @property
    def _stage(self) -> Stage | None:
        return None if self.loop is None else self.loop.stage

    def action_pause(self) -> None:
        """Hold the loop, or let it go."""
        if self._stage is not None:
            self._stage.hold(not self._stage.paused)

    def action_step(self, steps: int) -> None:
        """So many steps, then hold."""
        if self._stage is not None:
            self._stage.let(steps)

    def action_faster(self, by: float) -> None:
        """Twice or half the pace; what was as fast as it could comes back to the fastest pace there is."""
        if self._stage is not None:
            now = self._stage.pace
            self._stage.set_pace((2048.0 if now is None else now) * by)

    def action_most(self) -> None:
        """As fast as it can."""
        if self._stage is not None:
            self._stage.set_pace(None)

    def action_cycle(self, by: int) -> None:
        """The next world, or the one before."""
        if self.loop is not None:
            self.focused_world = (self.focused_world + by) % self.loop.num_worlds

    def action_jump(self, world: int) -> None:
        """One world, large."""
        if self.loop is not None and world < self.loop.num_worlds:
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
        assert self.loop is not None
        if self.wanted == self.loop.num_worlds:
            self._restart = None
            return
        self.loop.stage.leave()
        if not self.loop.is_over:
            self._restart = self.set_timer(REDRAW_S, self._begin_anew)
            return
        self._restart = None
        if not self.leaving and self.loop.error is None:
            before = self.loop.stage
            self.focused_world = min(self.focused_world, self.wanted - 1)
            self.loop = Loop(self._measured_work, self.wanted)
            self.loop.stage.set_pace(before.pace)
            self.loop.stage.hold(before.paused)

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(Help(KEYS))

    def action_leave(self) -> None:
        """Leave once the run is saved."""
        if isinstance(self.screen, ModalScreen):
            self.screen.dismiss()
            return
        self.leaving = True
        if self.loop is not None:
            self.loop.stage.leave()


AGGREGATE = 8  # lines of the aggregate


def _pair(found: tuple[float, float] | None) -> str:
    return "–" if found is None else f"{number(round(found[0], 4))}, {number(round(found[1], 4))}"


def _rewards(spec: WorldSpec, scene: Scene) -> RenderableType:
    """By agent: what the last step paid and what the episode has, whole and by parts."""
    focus = scene.focus
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("reward", no_wrap=True, width=18)
    for agent in spec.agents[:2]:
        table.add_column(printable(agent)[:8], justify="right", width=8)
        table.add_column("episode", justify="right", width=9)
    whole: list[str] = []
    for a in range(min(2, spec.num_agents)):
        whole += [_plain(focus.rewards[a]), _plain(focus.returns[a])]
    table.add_row("all", *whole, style="bold")
    if focus.parts is not None and focus.part_sums is not None:
        for p, name in enumerate(spec.reward_parts):
            cells: list[str] = []
            for a in range(min(2, spec.num_agents)):
                cells += [_plain(float(focus.parts[a, p])), _plain(float(focus.part_sums[a, p]))]
            silent = not focus.part_sums[:, p].any() and not focus.parts[:, p].any()
            table.add_row(name, *cells, style=QUIET if silent else "")
    else:
        table.add_row("no parts are told", style=QUIET)
    return table


def _observation(spec: WorldSpec, scene: Scene) -> RenderableType:
    """What the first agents see, by the names of its features; of planes, how much of each is not zero."""
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 1, 0, 0))
    table.add_column("observation", no_wrap=True, width=26)
    shown = min(3, spec.num_agents)
    for a in range(shown):
        state = "" if scene.focus.acting[a] else " waits"
        table.add_column(printable(spec.agents[a] + state)[:9], justify="right", width=9)
    for block in spec.obs:
        seen = scene.focus.obs[block.name]
        for name, values in _features(block, seen[:shown]):
            table.add_row(printable(name), *(_plain(value) for value in values))
    actions = scene.focus.actions
    names = spec.action.names if not spec.action.discrete and actions.ndim == 2 else ("choice",)
    for k, name in enumerate(names or ("action",)):
        values = [float(actions[a, k]) if actions.ndim == 2 else float(actions[a]) for a in range(shown)]
        table.add_row(f"→ {printable(name)}", *(_plain(value) for value in values), style="cyan")
    return table


def _features(block: ObsBlock, seen: NDArray[Any]) -> list[tuple[str, list[float]]]:
    """Names and, by agent, values of a block's elements; of planes the share that is not zero."""
    agents = seen.reshape(len(seen), -1)
    if len(block.shape) == 3:
        planes = seen.reshape(len(seen), block.shape[0], -1)
        names = block.features if block.named_planes else [f"{block.name}_{i}" for i in range(block.shape[0])]
        counts = np.count_nonzero(planes, axis=2)
        return [(f"{name}, cells set", counts[:, i].astype(float).tolist()) for i, name in enumerate(names)]
    names = block.features or [f"{block.name}_{i}" for i in range(agents.shape[1])]
    return [(name, agents[:, i].astype(float).tolist()) for i, name in enumerate(names)]


def _plain(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return "0" if value == 0 else f"{value:.3g}"
