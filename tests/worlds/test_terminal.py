"""Worlds in characters stand where the frame says they do."""

import math

import numpy as np
import pytest

from slipstream.config.load import load
from slipstream.worlds.drmario.drawing import COLUMNS, PALE, ROWS, SHAPES, TERMINAL_COLOURS, halves
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.terminal import Sheet, arrow
from slipstream.worlds.world import tools_of

SIZES = [(60, 24), (26, 10), (12, 5)]


def characters(kind, *moment):
    return tools_of(kind).drawings.characters(*moment)


def stepped(name, script, steps):
    """A world some steps into an episode: its kind, spec, frame and backdrop."""
    config = load(name).world
    env = make_worlds(config, 1)
    env.reset()
    for _ in range(steps):
        env.act_scripted(script, range(env.spec.num_agents))
        env.step()
    return config.kind, env.spec, env.frame(0).copy(), env.backdrop(0)


def test_arrows_point_where_things_go():
    assert [arrow(math.radians(angle)) for angle in (0, 45, 90, 180, 270, -45, 350, 400)] == list("→↗↑←↓↘→↗")


def test_a_sheet_shows_corners_at_its_corners_and_keeps_shapes():
    sheet = Sheet(41, 11, (0, 0), (40, 20))  # a character is twice as high as wide
    assert sheet.place(0, 20) == (0, 0)
    assert sheet.place(40, 0) == (40, 10)
    assert sheet.place(20, 10) == (20, 5)
    sheet.put(99, 99, "x", "")  # outside: nothing
    sheet.put(3, 2, "x", "red")
    lines = list(sheet.lines())
    assert [line.plain.strip() for line in lines] == ["", "", "x"] + [""] * 8
    assert lines[2].plain[3] == "x"
    np.testing.assert_allclose(sheet.points()[2, 3], (3, 16))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("head_on", "mvp"),
        ("random_sector", "direct"),
        ("horizontal_cr", "direct"),
        ("time_trial_oval", "follow_gap"),
        ("gaplock_ppo", "follow_gap"),
        ("drmario_level_0", "greedy"),
        ("probe_target", "best"),
    ],
)
def test_no_world_is_larger_than_the_room_it_is_given(name, script, width, height):
    kind, *seen = stepped(name, script, 3)
    lines = characters(kind, *seen, width, height)
    assert 0 < len(lines) <= max(height, ROWS // 2 + 1 if kind == "drmario" else 0)
    assert max((line.cell_len for line in lines[:-1]), default=0) <= width  # the last one is words
    assert min(tools_of(kind).drawings.tile(seen[0])) > 4


def test_aircraft_are_arrows_at_their_places_and_turn_red_when_too_close():
    kind, spec, frame, backdrop = stepped("head_on", "noop", 10)
    lines = characters(kind, spec, frame, backdrop, 61, 31)
    column = {"↑": None, "↓": None, "✦": []}
    for y, line in enumerate(lines[:-1]):
        for letter in ("↑", "↓"):
            if letter in line.plain:
                column[letter] = (line.plain.index(letter), y)
        if "✦" in line.plain:
            column["✦"].append(y)
    north, south = column["✦"]  # 36 NM apart; the aircraft between them, the northbound below the southbound
    assert north < column["↓"][1] < column["↑"][1] < south
    lat = frame[:, spec.frame_fields.index("lat_deg")]
    share = (lat[1] - 51.7) / 0.6
    assert column["↓"][1] == pytest.approx(south + (north - south) * share, abs=1)
    assert "closest" in lines[-1].plain
    apart = 60 * (lat[1] - lat[0])
    assert float(lines[-1].plain.split()[1]) == pytest.approx(apart, rel=0.02)
    near = frame.copy()
    near[1, spec.frame_fields.index("lat_deg")] = near[0, spec.frame_fields.index("lat_deg")] + 3 / 60
    styles = [str(span.style) for line in characters(kind, spec, near, None, 61, 31)[:-1] for span in line.spans]
    assert styles.count("bold white on red") >= 1
    assert not [s for line in lines[:-1] for s in line.spans if "on red" in str(s.style)]


def test_the_road_is_where_the_grid_is_free_and_the_car_on_it():
    kind, spec, frame, backdrop = stepped("time_trial_oval", "follow_gap", 20)
    lines = characters(kind, spec, frame, backdrop, 80, 30)
    paved = np.zeros((29, 80), bool)
    for y, line in enumerate(lines[:-1]):
        for span in line.spans:
            if " on " in str(span.style):
                paved[y, span.start : span.end] = True
    rows, columns = np.flatnonzero(paved.any(1)), np.flatnonzero(paved.any(0))
    free = backdrop.occupied == 0
    aspect = np.ptp(np.flatnonzero(free.any(0))) / np.ptp(np.flatnonzero(free.any(1)))
    assert np.ptp(columns) / (2 * np.ptp(rows)) == pytest.approx(aspect, rel=0.1)
    assert not paved[rows.mean().astype(int), 40]  # an oval has an inside
    inner = free[np.flatnonzero(free.any(1)).min() :, :][:, np.flatnonzero(free.any(0)).min() :]
    assert paved.sum() / (np.ptp(rows) + 1) / (np.ptp(columns) + 1) == pytest.approx(inner.mean(), rel=0.35)
    (car,) = [(y, line.plain.index(a)) for y, line in enumerate(lines[:-1]) for a in "→↗↑↖←↙↓↘" if a in line.plain]
    assert paved[car]


def test_bottles_show_every_cell_of_the_board_and_the_falling_pill():
    kind, spec, frame, _ = stepped("drmario_level_0", "greedy", 6)
    value = dict(zip(spec.frame_fields, frame[0].astype(int).tolist(), strict=True))
    cells = {(i // COLUMNS, i % COLUMNS): value[f"cell_{i}"] for i in range(ROWS * COLUMNS)}
    for half, colour, up, column in halves(value["pill_id"], value["pill_row"], value["pill_col"], value["pill_rot"]):
        if up < ROWS:
            cells[ROWS - 1 - up, column] = half | colour
    lines = [line.plain for line in characters(kind, spec, frame, None, 40, 24)]
    assert lines[0].startswith("next ")
    for (row, column), cell in cells.items():
        shown = lines[1 + row][1 + 2 * column : 3 + 2 * column]
        assert shown == ("  " if cell >= 0xF0 else 2 * SHAPES[cell & 0xF0])
    assert lines[-1].startswith(f"{value['viruses']} left")
    small = characters(kind, spec, frame, None, 12, 9)
    halves_set = sum(cell < 0xF0 for cell in cells.values())
    drawn = "".join(line.plain for line in small[:-1])
    spans = [span for line in small[:-1] for span in line.spans if " on " in str(span.style)]
    both = sum(span.end - span.start for span in spans)
    assert drawn.count("▀") + drawn.count("▄") + both == halves_set


def test_bottles_are_larger_where_there_is_room_and_viruses_have_another_colour_than_pills_in_small_ones():
    kind, spec, frame, _ = stepped("drmario_level_0", "greedy", 6)
    small, large = (characters(kind, spec, frame, None, *size) for size in ((40, 24), (80, 2 * ROWS + 3)))
    assert len(large) == len(small) + ROWS
    assert max(line.cell_len for line in large) == 4 * COLUMNS + 2
    assert [line.plain for line in large[1:-2:2]] == [line.plain for line in large[2:-2:2]]  # each row of cells twice
    value = dict(zip(spec.frame_fields, frame[0].astype(int).tolist(), strict=True))
    cells = {value[f"cell_{i}"] for i in range(ROWS * COLUMNS)}
    viruses, pills = (
        {cell & 3 for cell in cells if cell < 0xF0 and (cell & 0xF0 == 0xD0) == own} for own in (True, False)
    )
    shades = {word for line in characters(kind, spec, frame, None, 12, 9) for span in line.spans
              for word in str(span.style).split()}  # fmt: skip
    assert viruses
    assert pills
    assert {TERMINAL_COLOURS[colour] for colour in viruses} <= shades
    assert {PALE[colour] for colour in pills} <= shades


def test_a_straight_road_has_no_laps():
    oval, straight = (
        characters(*stepped(name, "follow_gap", 3), 60, 24)[-1].plain for name in ("time_trial_oval", "gaplock_ppo")
    )
    assert "lap 1" in oval
    assert "lap" not in straight


def test_worlds_without_a_picture_or_records_have_stand_ins(tmp_path):
    config = load("probe_target").world
    env = make_worlds(config, 1)
    env.reset()
    assert [line.plain for line in characters("probe", env.spec, env.frame(0), None, 20, 5)] == ["tick 0"]
    assert tools_of("probe").records is None
    assert tools_of("drmario").records.show(tmp_path) is None
    (tmp_path / "best_times.sqlite3").write_text("not a database at all")
    assert tools_of("drmario").records.show(tmp_path) is None
