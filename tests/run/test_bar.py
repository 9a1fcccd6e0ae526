"""The progress bar says how far, how fast and how long on any width, and cuts no number."""

import io
import re

import pytest
from rich.console import Console

from slipstream.run import progress as module
from slipstream.run.progress import ECHO, Bar

TITLE = "training head_on with ppo in runs/head_on_ppo_20261115-120000"
FIGURES = ["return -47.25", "eval -73.37", "clean streak 3/20"]


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def bar_at(console, clock, done=12_288, total=32_768):
    """A bar after four seconds."""
    bar = Bar(console=console)
    bar._live.start = lambda: None  # no thread: lines are asked for below
    bar.start(TITLE, 0, total)
    clock[0] += 4.0
    bar.advance(done, "  ".join(FIGURES))
    return bar


def line_of(bar, width):
    """What the bar shows on a terminal of that width."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False, color_system=None).print(bar)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize(("done", "total"), [(12_288, 32_768), (375_000_000, 1_000_000_000)])
def test_a_bar_has_percent_rate_and_time_left_on_every_width(clock, width, done, total):
    line = line_of(bar_at(Console(file=io.StringIO(), width=width), clock, done, total), width)
    assert "\n" not in line.rstrip("\n")
    assert len(line.rstrip("\n")) <= width - ECHO
    assert line.count("━") + line.count("·") >= 8
    assert f"{100 * done // total}%" in line
    assert f"{done // 4:,}/s" in line
    assert re.search(r"\d:\d\d left", line)
    assert f"{done:,}" in line
    shown = [figure for figure in FIGURES if figure in line]
    assert shown == FIGURES[: len(shown)]
    rest = line
    for figure in shown:
        rest = rest.replace(figure, "")
    assert not re.search("return|eval|clean", rest)  # none is there in part


def test_all_figures_are_shown_where_there_is_room(clock):
    bar = bar_at(Console(file=io.StringIO(), width=120), clock)
    assert all(figure in line_of(bar, 120) for figure in FIGURES)
    assert FIGURES[0] in line_of(bar, 80)
    for width in range(1, 60):
        assert len(line_of(bar, width).rstrip("\n")) <= width


def test_the_title_is_a_line_of_its_own_and_what_is_noted_stays_as_it_is(clock):
    out = io.StringIO()
    console = Console(file=out, width=40)
    bar = bar_at(console, clock)
    bar.note("saved in runs/a[bold]b, then 12 steps that are one line whatever the width")
    assert out.getvalue().splitlines() == [
        TITLE,
        "saved in runs/a[bold]b, then 12 steps that are one line whatever the width",
    ]


def test_time_left_follows_the_rate_of_late_and_the_end_says_what_it_took(clock):
    console = Console(file=io.StringIO(), width=120)
    bar = Bar(console=console)
    bar._live.start = lambda: None
    bar.start(TITLE, 0, 10_000)
    clock[0] += 1.0
    bar.advance(5_000, "")  # a warm-up without learning
    for step in range(5_000, 6_001, 10):
        bar.advance(step, "")
        clock[0] += 1.0
    line = line_of(bar, 120)
    assert "10/s" in line
    assert "6:39 left" in line  # 4,000 steps, a second after the last word of them
    bar.stop()
    assert re.search(r"60%.*took 1:42", line_of(bar, 120))


def test_without_an_estimate_none_is_shown(clock):
    bar = Bar(console=Console(file=io.StringIO(), width=80))
    bar._live.start = lambda: None
    bar.start(TITLE, 0, 10_000)
    line = line_of(bar, 80)
    assert "0%" in line
    assert "left" not in line
    assert "/s" not in line.replace("/10,000 steps", "")
