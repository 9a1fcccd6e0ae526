"""Curves, bars and numbers in characters say what they were given."""

import math

import pytest

from slipstream.view.tui.plots import AXIS, PlotLine, bar, curve, number, printable, shares, sparkline, steps_short


def spark(values, width, steps=None, over=None):
    line = PlotLine("a", range(len(values)) if steps is None else steps, values)
    first, last = over or (0, max(1, len(values) - 1))
    return sparkline(line, first, last, width).plain


def test_a_sparkline_rises_with_its_values_and_has_no_more_characters_than_there_is_room():
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert spark(list(range(1000)), 8).startswith("▁▂▃▄▅▆▇")
    assert len(spark(list(range(1000)), 8)) == 8
    assert spark([3.0, 3.0], 8) == "▄" * 8
    assert spark([], 8) == spark([math.nan], 8) == "no data"


def test_sparklines_of_metrics_that_are_told_often_and_seldom_stand_over_the_same_steps():
    often = spark(list(range(101)), 11, steps=range(0, 101), over=(0, 100))
    seldom = spark([0, 100], 11, steps=[50, 100], over=(0, 100))
    assert len(often) == len(seldom) == 11
    assert seldom == "     ▁▁▁▁▁█"  # nothing before its first report; kept until the next
    assert spark([0, 1], 11, steps=[0, 50], over=(0, 100)) == "▁▁▁▁▁█"  # it was told no more


def dots(plot):
    """(column, row from the bottom) of every dot of a curve, in dots."""
    lines = plot.plain.split("\n")[1:-1]
    found = set()
    places = {0x01: (0, 3), 0x02: (0, 2), 0x04: (0, 1), 0x40: (0, 0), 0x08: (1, 3), 0x10: (1, 2), 0x20: (1, 1)}
    places[0x80] = (1, 0)
    for r, line in enumerate(lines):
        for c, letter in enumerate(line[AXIS:]):
            for bit, (x, y) in places.items():
                if 0x2800 < ord(letter) < 0x2900 and (ord(letter) - 0x2800) & bit:
                    found.add((2 * c + x, 4 * (len(lines) - 1 - r) + y))
    return found


def test_a_straight_line_is_drawn_from_the_lower_left_to_the_upper_right():
    steps = list(range(0, 1001))
    found = dots(curve([PlotLine("x", steps, [2.0 * step for step in steps])], AXIS + 20, 7))
    assert (0, 0) in found
    assert (39, 19) in found  # 20 columns of two dots, five rows of four
    for x, y in found:
        assert abs(y - 19 * x / 39) <= 1.0


def test_a_gap_in_a_curve_is_bridged():
    found = dots(curve([PlotLine("x", [0, 1000], [0.0, 1.0])], AXIS + 20, 7))
    assert {x for x, _ in found} == set(range(40))


def test_a_curve_names_its_lines_its_range_and_its_steps():
    text = curve([PlotLine("mean", [10, 2_000_000], [-1.5, 2.25])], 60, 8).plain
    for word in ("mean 2.25", "-1.5", "2.25", "2M steps"):
        assert word in text
    assert "no data yet" in curve([], 60, 8).plain
    assert "nothing finite" in curve([PlotLine("x", [1], [math.inf])], 60, 8).plain


def test_parts_of_a_whole_fill_the_bar_in_proportion():
    first, names = shares({"act": 0.25, "update": 0.75}, 40).plain.split("\n")
    assert first == "█" * 40
    bar_of = shares({"act": 0.25, "update": 0.75}, 40)
    widths = {str(span.style): span.end - span.start for span in bar_of.spans[:2]}
    assert widths == {"cyan": 30, "yellow": 10}
    assert names.split("■ ")[1:] == ["update 75%   ", "act 25%   "]


@pytest.mark.parametrize(("share", "full"), [(0.0, 0), (0.5, 5), (1.0, 10), (7.0, 10), (math.nan, 0)])
def test_a_bar_is_full_as_far_as_something_is_done(share, full):
    assert bar(share, 10).plain == "█" * full + "·" * (10 - full)


def test_numbers_have_four_figures_and_what_is_none_is_a_dash():
    assert [number(v) for v in (1234567, 0.123456, 12345.6, -3.0, math.nan, None, "x")] == [
        "1,234,567", "0.1235", "12,346", "-3", "–", "–", "–"
    ]  # fmt: skip
    assert [steps_short(v) for v in (12, 4096, 2_500_000, 3e9)] == ["12", "4.1k", "2.5M", "3G"]


def test_what_a_terminal_would_act_on_is_taken_out():
    assert printable("a\x1b[2Jb\rc\u202ed") == "a [2Jb c d"
