"""Picture files of air traffic: moments of an episode, its tracks, and a scene before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slipstream.draw import COLORS
from slipstream.draw.canvas import SIZE, Canvas, Size, View, paint
from slipstream.spec import WorldSpec
from slipstream.types import F64, U8
from slipstream.worlds.airspace.build import build
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.airspace.geometry import closest_approach
from slipstream.worlds.airspace.geometry import separation_nm as distance_nm
from slipstream.worlds.tools import Renderer
from slipstream.worlds.vec_env import Backdrop, EnvOptions

GROUND, GRID, WORDS, QUIET = "#F8F9FB", "#E3E7EC", "#2B3138", "#7A8490"
SAFE, LOST = "#2E7D32", "#C62828"
BAND_PX = 30  # above and below the traffic, for words
ROOM = 0.15  # of the scene's width on every side, for aircraft that give way

# An aircraft seen from above, nose up, one unit from the middle to the nose.
SHAPE = np.array([
    (0, 1), (0.16, 0.72), (0.16, 0.3), (1, -0.22), (1, -0.42), (0.16, -0.18), (0.12, -0.68), (0.4, -0.88), (0.4, -1.02),
])  # fmt: skip
SHAPE = np.concatenate([SHAPE, [(0, -0.9)], SHAPE[:0:-1] * (-1, 1)])
SHAPE_PX = 11.0

# Columns of a frame, in the order of the airspace world's frame_fields.
LAT, LON, HEADING, WAYPOINT_LAT, WAYPOINT_LON, PRESENT = 0, 1, 2, 5, 6, 7
STILL: Size = (960, 860)  # a picture of a whole episode, or of a scene
MOST_LISTED = 12  # conflicts told in words
MANY = 8  # with more aircraft than this, each is drawn smaller
MPS_TO_NM_PER_S = 1.0 / 1852.0


class Plane:
    """Latitude and longitude as NM east and north of the middle of the picture."""

    def __init__(self, *places: F64) -> None:
        self.lat0, self.lon0 = np.nanmean(np.concatenate(places), axis=0).tolist()  # each [n, 2]; NaN: no place

    def xy(self, lat_deg: Any, lon_deg: Any) -> tuple[F64, F64]:
        """NM east, NM north."""
        east = (np.asarray(lon_deg) - self.lon0) * 60.0 * np.cos(np.radians(self.lat0))
        return east, (np.asarray(lat_deg) - self.lat0) * 60.0

    def points(self, places: F64) -> F64:
        """The same of lat_deg, lon_deg [..., 2]."""
        return np.stack(self.xy(places[..., 0], places[..., 1]), -1)


# --- a moment ---


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
        places: [T, n, 2] NM east and north; NaN of an aircraft that the episode goes without.
        goals: [n, 2] waypoints; NaN where there is none.
        present: [T, n]; who has left does not count.
        separation_nm: Rings of half this radius are kept whole.
        size: Of the picture.
    """
    ends = np.concatenate([places[0], goals])
    ends = ends[np.isfinite(ends[:, 0])]
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


def _draw_waypoint(canvas: Canvas, place: F64, color: str, scale: float = 1.0) -> None:
    if not np.isfinite(place).all():
        return
    turns = np.linspace(0.0, 2 * np.pi, 10, endpoint=False)
    reach = scale * np.where(np.arange(10) % 2 == 0, 8.0, 3.4) / canvas.view.scale
    star = place + reach[:, None] * np.stack([np.sin(turns), np.cos(turns)], 1)
    canvas.polygon(star, paint(color), paint("#FFFFFF"), 0.5)


def _draw_aircraft(canvas: Canvas, place: F64, heading_deg: float, color: str, name: str, scale: float = 1.0) -> None:
    """Its shape turned to its heading, and its call sign beside it."""
    angle = np.radians(heading_deg)
    along = np.array([np.sin(angle), np.cos(angle)])
    right = np.array([along[1], -along[0]])
    shape = place + scale * SHAPE_PX / canvas.view.scale * (SHAPE[:, :1] * right + SHAPE[:, 1:] * along)
    canvas.polygon(shape, paint(color), paint("#FFFFFF"), 0.5)
    x, y = canvas.view.pixels(place).tolist()
    canvas.text((x + 12, y - 18), name, paint(color), 12.0 * scale, "lm")


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


# --- an episode ---


class Closest(NamedTuple):
    """The closest pair of an episode."""

    frame: int
    pair: tuple[int, int]
    distance_nm: float


def closest_pair(frames: F64) -> Closest | None:
    """The pair and frame of least separation while both were flying, or None for an aircraft alone."""
    best: Closest | None = None
    for i, j in combinations(range(frames.shape[1]), 2):
        distance = distance_nm(frames[:, i, :4], frames[:, j, :4])
        distance[(frames[:, i, PRESENT] == 0) | (frames[:, j, PRESENT] == 0)] = np.inf
        at = int(distance.argmin())
        if np.isfinite(distance[at]) and (best is None or distance[at] < best.distance_nm):
            best = Closest(at, (i, j), float(distance[at]))
    return best


def picture(spec: WorldSpec, frames: F64, backdrop: Backdrop | None, path: Path, title: str) -> None:
    """Draw a recorded episode into a file."""
    draw_tracks(frames, path, title, names=spec.agents, decision_s=spec.tick_seconds)


def draw_tracks(
    frames: F64,
    path: str | Path,
    title: str,
    separation_nm: float = 5.0,
    names: Sequence[str] | None = None,
    decision_s: float = 10.0,
) -> None:
    """Write a PNG of one episode.

    Args:
        frames: [steps, aircraft, fields], `VecEnv.frame(world)` after reset and after every step.
        path: Where to write.
        title: Printed above.
        separation_nm: The minimum; rings of half this radius around the closest pair touch at exactly this distance.
        names: One per aircraft, for labels.
        decision_s: Seconds between frames.
    """
    flew = frames[0, :, PRESENT] > 0
    everybody = names or [f"A{i + 1}" for i in range(frames.shape[1])]
    frames, labels = frames[:, flew], [name for name, there in zip(everybody, flew, strict=True) if there]
    plane = Plane(frames[0][:, [LAT, LON]], frames[0][:, [WAYPOINT_LAT, WAYPOINT_LON]])
    places, goals = plane.points(frames[..., :2]), plane.points(frames[0][:, [WAYPOINT_LAT, WAYPOINT_LON]])
    ends = _last_frames(frames)
    tracks = [places[: end + 1, i] for i, end in enumerate(ends)]
    closest = closest_pair(frames)
    told = "one aircraft, nobody to keep away from"
    if closest is not None:
        told = (
            f"closest: {closest.distance_nm:.2f} NM after {closest.frame * decision_s:.0f} s; "
            f"rings touch at {separation_nm:g} NM; dots every minute"
        )
    canvas = _still(np.concatenate([*tracks, goals]), title, told)
    scale, minute = _mark_scale(len(labels)), max(1, round(60.0 / decision_s))
    for i, track in enumerate(tracks):
        color = COLORS[i % len(COLORS)]
        canvas.dashes(track[0], goals[i], paint(color, 0.5))
        canvas.line(track, paint(color), 2.0)
        for dot in track[::minute]:
            canvas.circle(dot, 2.5 / canvas.view.scale, paint("#FFFFFF"), paint(color), 1.0)
    for i, track in enumerate(tracks):
        color = COLORS[i % len(COLORS)]
        _draw_waypoint(canvas, goals[i], color, scale)
        _draw_aircraft(canvas, track[0], frames[0, i, HEADING], color, labels[i], scale)
    if closest is not None:
        color = LOST if closest.distance_nm < separation_nm else SAFE
        pair = places[closest.frame, list(closest.pair)]
        for place in pair:
            canvas.circle(place, separation_nm / 2, paint(color, 0.12), paint(color), 1.5)
        canvas.line(pair, paint(color), 1.5)
    Image.fromarray(canvas.pixels()).save(path)


def _last_frames(frames: F64) -> list[int]:
    """Of each aircraft the frame in which it arrived, or the last one."""
    flying = [np.flatnonzero(frames[:, i, PRESENT] > 0) for i in range(frames.shape[1])]
    return [min(int(there[-1]) + 1, len(frames) - 1) for there in flying]


def _still(places: F64, title: str, told: str) -> Canvas:
    """A sheet with a title, on which all these places [n, 2] fit."""
    (width, height), low, high = STILL, np.nanmin(places, axis=0), np.nanmax(places, axis=0)
    room = 0.06 * max(2.0, float((high - low).max()))
    canvas = Canvas(STILL, View.fit(low - room, high + room, (12, 70, width - 12, height - 34)), GROUND)
    _draw_grid(canvas)
    canvas.text((16, 24), title, paint(WORDS), 20.0)
    canvas.text((16, 52), told, paint(WORDS), 12.5)
    canvas.scale_bar((16, height - 14), "NM", paint(QUIET))
    canvas.text((width - 14, height - 14), "star: waypoint", paint(QUIET), 11.0, "rm")
    return canvas


def _mark_scale(count: int) -> float:
    return 1.0 if count <= MANY else 0.7


# --- a scene before it begins ---


class Conflict(NamedTuple):
    """A pair that would lose separation if both flew straight on."""

    pair: tuple[int, int]
    seconds: float
    distance_nm: float


def sketch(config: AirspaceConfig, path: Path, title: str) -> str:
    """Draw a scene into a file; returns what it shows, in words."""
    still = {"position_jitter_nm": 0.0, "heading_jitter_deg": 0.0, "speed_jitter_kt": 0.0}
    worlds = build(config.model_copy(update=still), 1, EnvOptions(seed=0))
    worlds.reset()
    flew = worlds.frame(0)[:, PRESENT] > 0
    frame, names = worlds.frame(0)[flew], tuple(np.array(worlds.spec.agents)[flew].tolist())
    tas = frame[:, worlds.spec.frame_fields.index("tas_mps")]
    worlds.close()
    states = np.column_stack([frame[:, [LAT, LON, HEADING]], tas])
    conflicts = find_conflicts(states, config.separation_nm, _flying_s(config, states, frame))
    plane = Plane(frame[:, [LAT, LON]], frame[:, [WAYPOINT_LAT, WAYPOINT_LON]])
    places, goals = plane.points(frame[:, :2]), plane.points(frame[:, [WAYPOINT_LAT, WAYPOINT_LON]])
    text, scale = _words(names, conflicts, config), _mark_scale(len(names))
    canvas = _still(np.concatenate([places, goals]), title, text)
    for conflict in conflicts:
        pair = list(conflict.pair)
        heading, nm = np.radians(states[pair, HEADING]), conflict.seconds * states[pair, 3] * MPS_TO_NM_PER_S
        middle = (places[pair] + nm[:, None] * np.stack([np.sin(heading), np.cos(heading)], 1)).mean(0)
        canvas.circle(middle, config.separation_nm / 2, paint(LOST, 0.1), paint(LOST, 0.3))
        for side in (-1, 1):
            reach = np.array([5.0, 5.0 * side]) / canvas.view.scale
            canvas.line([middle - reach, middle + reach], paint(LOST), 2.0)
    for i, name in enumerate(names):
        color = COLORS[i % len(COLORS)]
        canvas.dashes(places[i], goals[i], paint(color), 1.4 * scale)
        _draw_waypoint(canvas, goals[i], color, scale)
        _draw_aircraft(canvas, places[i], frame[i, HEADING], color, name, scale)
    _list_conflicts(canvas, names, conflicts)
    Image.fromarray(canvas.pixels()).save(path)
    return text


def _list_conflicts(canvas: Canvas, names: tuple[str, ...], conflicts: Sequence[Conflict]) -> None:
    if not conflicts:
        return
    listed = [f"{names[i]}, {names[j]}: {nm:.2f} NM, {s:.0f} s" for (i, j), s, nm in conflicts[:MOST_LISTED]]
    more = len(conflicts) - MOST_LISTED
    lines = ["closest, straight on:", *listed, *([f"and {more} more"] if more > 0 else [])]
    right = canvas.size[0] - 16
    canvas.box((right - 8 - 6.4 * max(map(len, lines)), 74, right, 84 + 16 * len(lines)), paint("#FFFFFF", 0.85))
    for k, line in enumerate(lines):
        canvas.text((right - 8, 88 + 16 * k), line, paint(LOST if k == 0 else WORDS), 11.0, "rm")


def find_conflicts(states: F64, minimum_nm: float, flying_s: F64) -> list[Conflict]:
    """Pairs that come closer than the minimum while both fly, the soonest first."""
    found = []
    for i, j in combinations(range(len(states)), 2):
        near = closest_approach(states[i], states[j], float(min(flying_s[i], flying_s[j])))
        if float(near.dcpa_nm) < minimum_nm:
            found.append(Conflict((i, j), float(near.tcpa_s), float(near.dcpa_nm)))
    return sorted(found, key=lambda conflict: (conflict.seconds, conflict.pair))


def _flying_s(config: AirspaceConfig, states: F64, frame: F64) -> F64:
    """How long each aircraft is there at most: to its waypoint, where arrivals leave."""
    end = np.full(len(states), config.max_episode_steps * config.decision_s)
    if config.preset == "legacy":  # arrivals fly on
        return end
    waypoints = np.column_stack([frame[:, [WAYPOINT_LAT, WAYPOINT_LON]], np.zeros((len(frame), 2))])
    there = distance_nm(states, waypoints) / (states[:, 3] * MPS_TO_NM_PER_S)
    flying: F64 = np.minimum(end, there)
    return flying


def _words(names: tuple[str, ...], conflicts: list[Conflict], config: AirspaceConfig) -> str:
    drawn = "one of the random scenes; " if config.random_sector is not None else ""
    pairs = len(names) * (len(names) - 1) // 2
    would = f"{len(conflicts)} of {pairs} pairs lose {config.separation_nm:g} NM if all fly straight on"
    return f"{drawn}{would}; cross: where a pair is closest"
