"""The HTML page writer: one page is one file that loads nothing else. Every text is escaped here."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.draw import COLORS
from slipstream.draw.axes import short
from slipstream.draw.charts import WIDTH, Chart, color_of, svg

if TYPE_CHECKING:
    from slipstream.stats.intervals import Interval

STATIC = Path(__file__).with_name("static")  # the viewer's server sends the player from here too


def page(title: str, body: Iterable[str], kicker: str = "", scripts: Sequence[str] = ()) -> str:
    """A whole page.

    Args:
        title: Of the window, and the heading.
        body: HTML below the heading.
        kicker: A short line above the heading.
        scripts: JavaScript, run in this order after the body.
    """
    colors = ":root{" + "".join(f"--c{k}:{color};" for k, color in enumerate(COLORS)) + "}"
    classes = "".join(f".c{k}{{color:var(--c{k})}}" for k in range(len(COLORS)))
    style = colors + classes + "".join((STATIC / name).read_text() for name in ("page.css", "player.css"))
    above = f'<p class="quiet">{text(kicker)}</p>' if kicker else ""
    # The policy tells the browser to load nothing, whatever texts the page holds.
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; img-src data:\">"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{text(title)}</title><style>{style}</style></head><body><main>"
            f"<header>{above}<h1>{text(title)}</h1></header>",
            *body,
            "</main>",
            *(f"<script>{_script(script)}</script>" for script in scripts),
            "</body></html>\n",
        ]
    )


# --- parts of a page ---


def text(value: object) -> str:
    """A value as text that cannot become markup."""
    return html.escape(str(value), quote=True)


def section(title: str, body: str) -> str:
    """A part with a heading."""
    return f"<section><h2>{text(title)}</h2>{body}</section>"


def note(words: str) -> str:
    """Small print."""
    return f'<p class="quiet small">{text(words)}</p>'


def folded(title: str, body: str) -> str:
    """A part that is closed until the reader opens it."""
    return f"<details><summary>{text(title)}</summary>{body}</details>"


def items(lines: Iterable[object]) -> str:
    """A list with a dot before each line."""
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>"


def table(head: Sequence[object], rows: Iterable[Sequence[object]], labels: int = 1) -> str:
    """A table; its first columns, as many as `labels`, are names and not numbers."""
    columns = "".join(f'<th scope="col"{_left(k, labels)}>{text(cell)}</th>' for k, cell in enumerate(head))
    lines = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>'
        + "".join(f"<td{_left(k, labels)}>{text(cell)}</td>" for k, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table></div>'


def _left(column: int, labels: int) -> str:
    return ' class="label"' if 0 < column < labels else ""


def facts(values: Mapping[str, object]) -> str:
    """Names and values, one below the other."""
    return '<dl class="facts">' + "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in values.items()) + "</dl>"


def tiles(values: Mapping[str, str]) -> str:
    """Names and values, side by side."""
    shown = (f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="tiles">{"".join(shown)}</dl>'


def figure(chart: Chart, width: int = WIDTH) -> str:
    """A chart with its title, its legend and, of one or two lines, the last values."""
    named = {line.name: color_of(chart, k) for k, line in enumerate(chart.lines) if line.name}
    keys = "".join(f'<span class="key {color}">{text(name)}</span>' for name, color in named.items())
    legend = f'<div class="keys">{keys}</div>' if len(named) > 1 or any(len(line.low) for line in chart.lines) else ""
    curves = [(color_of(chart, k), line) for k, line in enumerate(chart.lines) if line.mark == "line"]
    last = [f'<span class="{color}">{short(line.values[-1])}</span>' for color, line in curves if len(line.values)]
    now = f"<span>{' '.join(last)}</span>" if 0 < len(chart.lines) <= 2 and last else ""
    own = f' style="max-width:{width + 22}px"' if width > WIDTH else ""  # letters keep their size
    return f"<figure{own}><figcaption><b>{text(chart.title)}</b>{now}</figcaption>{svg(chart, width)}{legend}</figure>"


def figures(charts: Iterable[Chart]) -> str:
    """Charts side by side, as many in a row as fit."""
    return f'<div class="charts">{"".join(figure(chart) for chart in charts)}</div>'


# --- replays ---


def replay(kind: str, config: Any, episodes: Sequence[Any], index: int = 0) -> str:
    """A player for recorded episodes of a world; the page's scripts must be `replay_scripts`.

    Args:
        kind: `world.kind`; chooses the scene.
        config: The scenario's `world` block, as JSON has it.
        episodes: What static/player.js calls an episode, each as JSON has it.
        index: Tells several players of one page apart.
    """
    data = json.dumps({"kind": kind, "config": config, "episodes": episodes}, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":  # no text in it may end the script element or begin a comment
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    return (
        f'<div class="replay" data-from="replay-{index}"><noscript>Replays need JavaScript.</noscript></div>'
        f'<script type="application/json" id="replay-{index}">{data}</script>'
    )


def replay_scripts(scenes: Iterable[Path]) -> list[str]:
    """What players need: the player, each world's scene.js, and what starts them."""
    paths = [STATIC / "player.js", *sorted(set(scenes)), STATIC / "replay.js"]
    return [path.read_text() for path in paths]


def _script(code: str) -> str:
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


# --- numbers ---


def interval(value: Interval | None) -> str:
    """An estimate with its interval; a dash where it is unknown."""
    if value is None or value.estimate != value.estimate:
        return "–"
    if value.low != value.low:
        return f"{value.estimate:.4g}"
    digits = 2 if abs(value.estimate) < 100 else 1
    return f"{value.estimate:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def number(value: object) -> str:
    """Any value in a cell of a table; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
