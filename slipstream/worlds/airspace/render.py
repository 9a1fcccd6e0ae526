"""Moving pictures of air traffic: aircraft, trails, waypoints, and rings that touch where separation is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.draw import COLORS
from slipstream.draw.canvas import SIZE, Canvas, Size, View, paint
from slipstream.spec import WorldSpec
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.airspace.draw import LOST, Plane
from slipstream.worlds.airspace.geometry import separation_nm as distance_nm
from slipstream.worlds.renderer import Renderer
from slipstream.worlds.vec_env import F64, U8, Backdrop

GROUND, GRID, WORDS, QUIET = "#F8F9FB", "#E3E7EC", "#2B3138", "#7A8490"
BAND_PX = 30  # above and below the traffic, for words
ROOM = 0.15  # of the scene's width on every side, for aircraft that give way

# An aircraft seen from above, nose up, one unit from the middle to the nose.
SHAPE = np.array(
    [
        (0, 1),
        (0.16, 0.72),
        (0.16, 0.3),
        (1, -0.22),
        (1, -0.42),
        (0.16, -0.18),
        (0.12, -0.68),
        (0.4, -0.88),
        (0.4, -1.02),
    ]
)
SHAPE = np.concatenate([SHAPE, [(0, -0.9)], SHAPE[:0:-1] * (-1, 1)])
SHAPE_PX = 11.0


class Traffic(NamedTuple):
    """What there is to draw of an episode, n aircraft."""

    names: tuple[str, ...]
    states: F64  # [T, n, 4] lat_deg, lon_deg, heading_deg, tas_mps
    waypoints: F64  # [n, 2] lat_deg, lon_deg; NaN of those that have none
    present: NDArray[np.bool_]  # [T, n]
    pairs: Sequence[tuple[int, int]]  # who is to keep away from whom


def make_renderer(config: AirspaceConfig) -> Renderer:
    """What draws traffic of this config."""
    return traffic_renderer(config.separation_nm, read_traffic)


def read_traffic(spec: WorldSpec, frames: F64) -> Traffic:
    """The airspace world's frames, by the names of their fields."""

    def columns(*names: str) -> F64:
        return frames[..., [spec.frame_fields.index(name) for name in names]]

    return Traffic(
        names=spec.agents,
        states=columns("lat_deg", "lon_deg", "heading_deg", "tas_mps"),
        waypoints=columns("waypoint_lat_deg", "waypoint_lon_deg")[0],
        present=columns("present")[..., 0] > 0,
        pairs=list(combinations(range(spec.num_agents), 2)),
    )


def traffic_renderer(separation_nm: float, read: Callable[[WorldSpec, F64], Traffic]) -> Renderer:
    """What draws any world whose frames can be read as traffic."""

    def render(spec: WorldSpec, frames: F64, backdrop: Backdrop | None, size: Size = SIZE, at: int | None = None) -> U8:
        now = len(frames) - 1 if at is None else at
        return draw_traffic(read(spec, frames), now, now * spec.tick_seconds, separation_nm, size)

    return render


def draw_traffic(traffic: Traffic, now: int, time_s: float, separation_nm: float, size: Size) -> U8:
    """The traffic at one frame."""
    plane = Plane(traffic.states[0, :, :2], traffic.waypoints)
    places = plane.points(traffic.states[..., :2])  # [T, n, 2] NM east and north
    goals = plane.points(traffic.waypoints)
    canvas = Canvas(size, scene_view(places, goals, traffic.present, separation_nm, size), GROUND)
    _draw_grid(canvas)
    apart = separations(traffic, now)
    lost = {i for pair, distance in apart.items() if distance < separation_nm for i in pair}
    flying = np.flatnonzero(traffic.present[now]).tolist()
    colors = aircraft_colors(traffic)
    for i in range(len(traffic.names)):
        been = places[: now + 1, i][traffic.present[: now + 1, i]]
        canvas.dashes(places[0, i], goals[i], paint(colors[i], 0.35))
        canvas.line(been, paint(colors[i], 0.6), 1.5)
        _draw_waypoint(canvas, goals[i], colors[i])
    for i in flying:
        color = LOST if i in lost else colors[i]
        fill = paint(color, 0.16 if i in lost else 0.07)
        canvas.circle(places[now, i], separation_nm / 2, fill, paint(color, 1.0 if i in lost else 0.55), 1.5)
    for i in flying:
        _draw_aircraft(canvas, places[now, i], traffic.states[now, i, 2], colors[i], traffic.names[i])
    _draw_words(canvas, time_s, min(apart.values(), default=None), separation_nm)
    return canvas.pixels()


def separations(traffic: Traffic, now: int) -> dict[tuple[int, int], float]:
    """How far apart the pairs that count are, in NM, while both fly."""
    pairs = [(i, j) for i, j in traffic.pairs if traffic.present[now, [i, j]].all()]
    if not pairs:
        return {}
    first, second = np.array(pairs).T
    distances = distance_nm(traffic.states[now, first], traffic.states[now, second])
    return dict(zip(pairs, distances.tolist(), strict=True))


def scene_view(places: F64, goals: F64, present: NDArray[np.bool_], separation_nm: float, size: Size) -> View:
    """All starts and waypoints with room around; it grows only when, and as far as, someone flies out of it.

    Args:
        places: [T, n, 2] NM east and north.
        goals: [n, 2] waypoints; NaN where there is none.
        present: [T, n]; who has left does not count.
        separation_nm: Rings of half this radius are kept whole.
        size: Of the picture.
    """
    ends = np.concatenate([places[0], goals[np.isfinite(goals[:, 0])]])
    room = ROOM * max(float(np.ptp(ends, axis=0).max()), 4 * separation_nm)
    been = places[present]
    ring = 0.5 * separation_nm
    low = np.minimum(ends.min(0) - room, been.min(0, initial=np.inf) - ring)
    high = np.maximum(ends.max(0) + room, been.max(0, initial=-np.inf) + ring)
    return View.fit(low, high, (4, BAND_PX, size[0] - 4, size[1] - BAND_PX))


def aircraft_colors(traffic: Traffic) -> list[str]:
    """One each; grey for those that go nowhere in particular."""
    goes = np.isfinite(traffic.waypoints[:, 0])
    return [COLORS[i % len(COLORS)] if goes[i] else QUIET for i in range(len(traffic.names))]


def _draw_grid(canvas: Canvas) -> None:
    """Faint lines a round number of NM apart."""
    (cx, cy), (width, height) = canvas.view.center, canvas.size
    step = 10.0 if canvas.view.scale > 4 else 50.0
    reach = max(width, height) / canvas.view.scale
    lines = np.arange(-np.ceil(reach / step), np.ceil(reach / step) + 1) * step
    for k in lines.tolist():
        x, y = step * round(cx / step) + k, step * round(cy / step) + k
        canvas.line([(x, cy - reach), (x, cy + reach)], paint(GRID), 0.5)
        canvas.line([(cx - reach, y), (cx + reach, y)], paint(GRID), 0.5)


def _draw_waypoint(canvas: Canvas, place: F64, color: str) -> None:
    if not np.isfinite(place).all():
        return
    turns = np.linspace(0.0, 2 * np.pi, 10, endpoint=False)
    reach = np.where(np.arange(10) % 2 == 0, 8.0, 3.4) / canvas.view.scale
    star = place + reach[:, None] * np.stack([np.sin(turns), np.cos(turns)], 1)
    canvas.polygon(star, paint(color), paint("#FFFFFF"), 0.5)


def _draw_aircraft(canvas: Canvas, place: F64, heading_deg: float, color: str, name: str) -> None:
    """Its shape turned to its heading, and its call sign beside it."""
    angle = np.radians(heading_deg)
    along = np.array([np.sin(angle), np.cos(angle)])
    right = np.array([along[1], -along[0]])
    shape = place + SHAPE_PX / canvas.view.scale * (SHAPE[:, :1] * right + SHAPE[:, 1:] * along)
    canvas.polygon(shape, paint(color), paint("#FFFFFF"), 0.5)
    x, y = canvas.view.pixels(place).tolist()
    canvas.text((x + 12, y - 18), name, paint(color), 12.0, "lm")


def _draw_words(canvas: Canvas, time_s: float, closest_nm: float | None, separation_nm: float) -> None:
    width, height = canvas.size
    minutes, seconds = divmod(round(time_s), 60)
    canvas.text((12, 16), f"{minutes}:{seconds:02d}", paint(WORDS), 14.0, "lm")
    if closest_nm is not None:
        is_lost = closest_nm < separation_nm
        words = f"closest {closest_nm:.1f} NM" + ("  separation lost" if is_lost else "")
        canvas.text((width - 12, 16), words, paint(LOST if is_lost else WORDS), 13.0, "rm")
    canvas.scale_bar((12, height - 13), "NM", paint(QUIET))
    canvas.text((width - 12, height - 12), f"rings touch at {separation_nm:g} NM", paint(QUIET), 11.0, "rm")
