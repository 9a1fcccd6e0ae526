"""What the debugger shows beside its worlds: lines about the loop, figures over worlds, rewards, observations."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from slipstream.debug.control import EpisodeEnded, LoopControl, LoopSnapshot
from slipstream.spec import ObsBlock, WorldSpec
from slipstream.view.tui.plots import QUIET, bar, number, printable
from slipstream.worlds.world import tools_of

Piece = tuple[str, str] | Text  # words and their style
NAMES = 24  # columns of the names of figures

KEY_LINE = (
    "? help", "q leave", "Space hold", "n f step", "+-m pace", "Tab world", "0 g view", "[] worlds", "a agents",
    "r p panels", "1-9 that world",
)  # fmt: skip


def as_fits(pieces: Sequence[Piece], width: int) -> Text:
    """Join pieces of a line, two blanks apart; a piece that does not fit is left out whole."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for piece in pieces:
        added = piece if isinstance(piece, Text) else Text(*piece)
        if text.cell_len + (2 if text.cell_len else 0) + added.cell_len > width:
            continue
        text.append("  " if text.cell_len else "").append_text(added)
    return text


def keys(width: int) -> Text:
    """The keys, help and leave first."""
    return as_fits([(f" {KEY_LINE[0]}", QUIET), *((key, QUIET) for key in KEY_LINE[1:])], width)


def state(control: LoopControl, ending: bool, over: bool) -> tuple[str, str]:
    """What the loop does."""
    if over:
        return " over ", "bold reverse cyan"
    if ending:
        return " ending ", "bold reverse yellow"
    doing = control.doing
    if doing == "stepping":
        left = control.to_go
        return f" stepping, {left:,} to go " if left else " stepping ", "bold reverse green"
    if doing == "learning":
        return " learning … ", "bold reverse magenta"
    return f" {doing} ", "bold reverse yellow" if doing == "held" else "bold reverse green"


def loop_line(control: LoopControl, snapshot: LoopSnapshot, shown: tuple[str, str], width: int) -> Text:
    """Where the loop is."""
    pace = "as fast as it can" if control.pace is None else f"{control.pace:g} steps/s"
    pieces: list[Piece] = [shown, (f"step {snapshot.step:,}", "bold"), (pace, "")]
    pieces.append((f"rollout {snapshot.row}/{control.rollout_length}", QUIET))
    pieces.append((f"{number(control.done)} steps learned", ""))
    pieces += [(printable(figure), QUIET) for figure in control.told.split("  ") if figure.strip()]
    pieces.append(bar(snapshot.row / control.rollout_length, 12))
    return as_fits(pieces, width)


def speed_line(spec: WorldSpec | None, snapshot: LoopSnapshot, worlds: Sequence[Piece], width: int) -> Text:
    """How fast worlds are stepped, and the gain of many."""
    speed, count = snapshot.speed, len(snapshot.episodes)
    if not speed.steps_per_s:
        return as_fits([*worlds, ("measuring speed", QUIET)], width)
    pieces: list[Piece] = [*worlds, (f"{number(round(speed.steps_per_s))} steps/s", "")]
    if speed.gain is None:
        pieces.append(("one world is being timed", QUIET))
    else:
        pieces.append((f"{speed.gain:.1f} × one world, efficiency {speed.gain / count:.0%}", ""))
    if spec is not None and spec.has_durations:
        pieces.append((f"{number(round(speed.ticks_per_s))} frames/s", ""))
    pieces.append((f"{speed.learning:.0%} of the time learns", QUIET))
    pieces.append((f"{number(round(speed.steps_per_s / count))} steps/s each", QUIET))
    return as_fits(pieces, width)


def aggregate(kind: str, control: LoopControl, spec: WorldSpec, snapshot: LoopSnapshot, width: int) -> list[Text]:
    """Figures over the worlds and the latest episodes, a line each (phases may need more)."""
    ended = snapshot.ended
    rows = [
        ("episodes ended", f"{snapshot.over:,}; below, of the latest {len(ended)}" if ended else "none yet"),
        ("return, mean, median", _pair(_mean_and_median([episode.total for episode in ended]))),
        ("length, mean, median", _pair(_mean_and_median([float(episode.length) for episode in ended]))),
    ]
    for name in tools_of(kind).headline_of(spec)[:3]:
        column = spec.stats.index(name)
        rows.append((name, _pair(_mean_and_median([episode.stats[column] for episode in ended]))))
    if len(spec.phases) > 1:
        rows.append(("phases, worlds in each", phase_counts(spec.phases, snapshot.phases)))
        rows.append(("phases, success", phase_success(spec, ended)))
    rows.append(("last update", control.told.strip() or "none yet"))
    rows.append(("last note", control.notes[-1] if control.notes else ""))
    lines: list[Text] = []
    for name, value in rows:
        room = max(20, width - NAMES - 2)
        parts = textwrap.wrap(value, room) if name.startswith("phases") else [value[:room]]
        for i, part in enumerate(parts or [""]):
            label = name.replace("_", " ") if i == 0 else ""
            lines.append(Text(f"{label:<{NAMES}}  ", QUIET, no_wrap=True).append(printable(part), "default"))
    return lines


def phase_counts(names: Sequence[str], phases: Sequence[int]) -> str:
    """How many worlds play each phase."""
    counts = Counter(phases)
    return " · ".join(f"{_whole(name)}\u00a0{counts[i]}" for i, name in enumerate(names))


def phase_success(spec: WorldSpec, ended: Sequence[EpisodeEnded]) -> str:
    """By phase, the share of the latest episodes that succeeded, and of how many."""
    if "success" not in spec.stats:
        return "–"
    column, told = spec.stats.index("success"), []
    for i, name in enumerate(spec.phases):
        known = [episode.stats[column] for episode in ended if episode.phase == i]
        share = f"{sum(known) / len(known):.0%}\u00a0of\u00a0{len(known)}" if known else "–"
        told.append(f"{_whole(name)}\u00a0{share}")
    return " · ".join(told)


def _whole(name: str) -> str:
    """A name with blanks that do not break."""
    return name.replace(" ", "\u00a0")


def _mean_and_median(values: Sequence[float]) -> tuple[float, float] | None:
    """Of the finite values."""
    known = [value for value in values if np.isfinite(value)]
    return (fmean(known), float(np.median(known))) if known else None


def _pair(found: tuple[float, float] | None) -> str:
    return "–" if found is None else f"{number(round(found[0], 4))}, {number(round(found[1], 4))}"


def rewards(spec: WorldSpec, snapshot: LoopSnapshot, agents: Sequence[int]) -> RenderableType:
    """By agent: the reward of the last step and the return so far, whole and by parts."""
    focus = snapshot.focus
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("reward", no_wrap=True, width=18)
    for agent in agents:
        table.add_column(printable(spec.agents[agent])[:8], justify="right", width=8)
        table.add_column("episode", justify="right", width=9)
    whole = [_plain(value) for a in agents for value in (focus.rewards[a], focus.returns[a])]
    table.add_row("all", *whole, style="bold")
    if focus.parts is not None and focus.part_sums is not None:
        for p, name in enumerate(spec.reward_parts):
            cells = [_plain(float(found[a, p])) for a in agents for found in (focus.parts, focus.part_sums)]
            silent = not focus.part_sums[:, p].any() and not focus.parts[:, p].any()
            table.add_row(name, *cells, style=QUIET if silent else "")
    else:
        table.add_row("no parts", style=QUIET)
    return table


def observation(spec: WorldSpec, snapshot: LoopSnapshot, agents: Sequence[int], across: int = 1) -> RenderableType:
    """Observations and actions, in so many columns side by side."""
    rows = _seen(spec, snapshot, agents)
    down = -(-len(rows) // across)
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_row(*(_seen_table(spec, snapshot, agents, rows[i : i + down]) for i in range(0, len(rows), down)))
    return grid


def rows_of(spec: WorldSpec, snapshot: LoopSnapshot) -> int:
    """Lines that the observation takes in one column, with its heading."""
    return len(_seen(spec, snapshot, [0])) + 1


def _seen(spec: WorldSpec, snapshot: LoopSnapshot, agents: Sequence[int]) -> list[tuple[str, list[float], str]]:
    """Features by their names, values by agent, style; of planes, how much of each is not zero. Then the actions."""
    rows = []
    seen = {block.name for agent in agents for block in spec.seen_by([agent]).obs}
    for block in spec.obs:
        if block.name in seen:
            shown = _features(block, snapshot.focus.obs[block.name][list(agents)])
            rows += [(name, values, "") for name, values in shown]
    actions = snapshot.focus.actions
    names = spec.action.names if not spec.action.discrete and actions.ndim == 2 else ("choice",)
    if spec.unlike and actions.ndim == 2:
        names = tuple(f"action_{k}" for k in range(actions.shape[1]))
    for k, name in enumerate(names or ("action",)):
        values = [float(actions[a, k]) if actions.ndim == 2 else float(actions[a]) for a in agents]
        rows.append((f"→ {name}", values, "cyan"))
    return rows


def _seen_table(
    spec: WorldSpec, snapshot: LoopSnapshot, agents: Sequence[int], rows: Sequence[tuple[str, list[float], str]]
) -> Table:
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 1, 0, 0))
    table.add_column("observation", no_wrap=True, width=26)
    for a in agents:
        waits = "" if snapshot.focus.acting[a] else " waits"
        table.add_column(printable(spec.agents[a] + waits)[:9], justify="right", width=9)
    for name, values, style in rows:
        table.add_row(printable(name), *(_plain(value) for value in values), style=style)
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
