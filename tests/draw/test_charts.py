"""Charts put values where they belong, and no text of theirs becomes markup."""

import io
import re

import numpy as np
import pytest

from slipstream.draw import COLORS
from slipstream.draw.axes import SHARE, Axis, short, steps_axis
from slipstream.draw.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    ChartLine,
    Tile,
    png,
    svg,
)


def points(drawn, tag="polyline"):
    found = re.search(rf'<{tag} class="c0" points="([^"]*)"', drawn)[1]
    return np.array([[float(x) for x in pair.split(",")] for pair in found.split()])


def test_a_line_goes_through_its_values():
    drawn = points(svg(Chart("x", (ChartLine("a", [0, 50, 100], [-1.0, 0.0, 1.0]),))))
    inner = (HEIGHT - TOP - BOTTOM) / 1.1  # the axis has a twentieth more on both ends
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    assert drawn[:, 0] == pytest.approx([LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT], abs=0.06)
    assert drawn[:, 1] == pytest.approx([middle + inner / 2, middle, middle - inner / 2], abs=0.06)


def test_a_band_goes_round_its_line_and_one_without_ends_is_not_drawn():
    drawn = svg(Chart("x", (ChartLine("a", [0, 1], [1.0, 2.0], [0.0, 1.0], [2.0, 3.0]),)))
    line, around = points(drawn), points(drawn, "polygon")
    assert len(around) == 4
    assert (around[:2, 1] < line[:, 1]).all()  # up is small
    assert (around[2:, 1] > line[::-1, 1]).all()
    nan = float("nan")
    assert "<polygon" not in svg(Chart("x", (ChartLine("a", [0, 1], [1.0, 2.0], [nan, nan], [nan, nan]),)))


def test_charts_with_the_same_end_have_the_same_steps_and_a_share_goes_from_zero_to_one():
    early = points(svg(Chart("x", (ChartLine("a", [0, 50], [1.0, 2.0]),), steps_axis(100))))
    assert early[:, 0] == pytest.approx([LEFT, (LEFT + WIDTH - RIGHT) / 2], abs=0.06)
    inner = (HEIGHT - TOP - BOTTOM) / 1.1
    for value in (0.0, 0.5, 1.0):  # never alone in the middle of an axis from -1 to 1
        drawn = points(svg(Chart("x", (ChartLine("a", [0, 1], [value, value]),), y=SHARE)))
        assert drawn[:, 1] == pytest.approx([TOP + (HEIGHT - TOP - BOTTOM) / 2 + inner * (0.5 - value)] * 2, abs=0.06)


def test_what_stays_at_zero_is_drawn_at_the_bottom():
    drawn = points(svg(Chart("x", (ChartLine("a", [0, 1], [0.0, 0.0]),))))
    assert (drawn[:, 1] > HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) / 10).all()


def test_a_line_is_dashed_from_where_it_is_no_longer_of_all():
    drawn = svg(Chart("x", (ChartLine("a", [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0], dashed_from=1),)))
    whole, rest = points(drawn), points(drawn.replace('<polyline class="c0"', "<gone").replace("c0 dashed", "c0"))
    assert (len(whole), len(rest)) == (2, 3)
    assert whole[-1] == pytest.approx(rest[0])  # no gap
    assert "dashed" not in svg(Chart("x", (ChartLine("a", [0, 1], [1.0, 2.0], dashed_from=1),)))


@pytest.mark.parametrize("values", [[], [float("nan")], [5.0], [0.0, 0.0], [1e-300, 2e-300], [-1e300, 1e300]])
def test_any_values_can_be_drawn(values):
    drawn = svg(Chart("x", (ChartLine("a", list(range(len(values))), values),)))
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_a_long_line_is_thinned_and_keeps_its_last_value():
    values = [float(k) for k in range(100_001)]
    drawn = points(svg(Chart("x", (ChartLine("a", values, values),))))
    assert len(drawn) <= 402
    assert drawn[-1, 0] == WIDTH - RIGHT


def test_names_are_escaped():
    drawn = svg(Chart('"><script>', (ChartLine("<b>", [0, 1], [0.0, 1.0]),)))
    assert "<script>" not in drawn
    assert "<b>" not in drawn
    assert drawn.count('"') % 2 == 0


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (1500, "1500"), (4e4, "40k"), (2.5e6, "2.5M"), (3e-5, "3e-05")]
)  # fmt: skip
def test_numbers_on_axes_are_short(value, text):
    assert short(value) == text


def test_a_picture_holds_all_charts():
    from PIL import Image

    line = ChartLine("a", [0, 1], [0.0, 1.0], [0.0, 0.5], [0.5, 2.0])
    one = Image.open(io.BytesIO(png([Chart("one", (line,))]))).size
    four = Image.open(io.BytesIO(png([Chart(str(k), (line,)) for k in range(4)]))).size
    assert four == (3 * one[0], 2 * one[1])


def test_a_logarithmic_axis_has_its_tens_equally_far_apart():
    drawn = points(svg(Chart("x", (ChartLine("a", [1, 10, 100], [0.0, 1.0, 2.0]),), Axis(log=True))))
    assert drawn[1, 0] - drawn[0, 0] == pytest.approx(drawn[2, 0] - drawn[1, 0], abs=0.2)


def test_names_down_an_axis_begin_at_the_top_and_intervals_lie_sideways():
    line = ChartLine("a", [1.0, 2.0], [0, 1], [0.5, 1.5], [1.5, 2.5], mark="dot", sideways=True)
    drawn = svg(Chart("x", (line,), Axis(), Axis(names=("up", "down"))))
    heights = [float(y) for y in re.findall(r'<circle class="c0" cx="[^"]*" cy="([^"]*)"', drawn)]
    assert heights[0] < heights[1]
    bar = points(drawn, "polygon")
    assert np.ptp(bar[:, 0]) > 20 > np.ptp(bar[:, 1])


def test_a_cell_of_a_matrix_is_darker_the_more_it_holds():
    tiles = (Tile(0, 0, 0.1, "0.10"), Tile(1, 0, 0.9, "0.90"))
    drawn = svg(Chart("x", x=Axis(names=("a", "b")), y=Axis(names=("p",)), tiles=tiles))
    pale, dark = (float(shade) for shade in re.findall(r'fill-opacity="([^"]*)"', drawn))
    assert pale < dark
    assert ">0.90</text>" in drawn


def test_a_picture_has_the_colours_of_its_lines_and_prints_letters_its_font_lacks():
    from PIL import Image

    lines = tuple(ChartLine(name, [0, 1], [k, k]) for k, name in enumerate(("a ≥ é – ×", "b")))
    image = Image.open(io.BytesIO(png([Chart("x", lines)], "title", ["note"]))).convert("RGB")
    shown = {color for _, color in image.getcolors(1 << 20)}
    assert {tuple(bytes.fromhex(color[1:])) for color in COLORS[:2]} <= shown
