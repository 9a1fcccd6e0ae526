"""Picture files of races: moments of a race, what was driven, starts, and tracks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from slipstream.draw import COLORS
from slipstream.draw.canvas import FINE, SIZE, Canvas, Size, View, paint
from slipstream.spec import WorldSpec
from slipstream.types import F64, U8, Bools
from slipstream.worlds.racing.build import build, track_of
from slipstream.worlds.racing.cars import Car, car
from slipstream.worlds.racing.config import CorridorTrack, RacingConfig
from slipstream.worlds.racing.drivers import raceline
from slipstream.worlds.racing.maps import Map
from slipstream.worlds.tools import Renderer
from slipstream.worlds.vec_env import Backdrop, EnvOptions

GROUND, KERB, ROAD = "#1F242B", "#8A94A3", "#DCE0E6"
WORDS, QUIET = "#F2F4F7", "#98A2B0"
READABLE_PX = 6.0  # a car shorter than this cannot be made out
FOLLOW_PX = 32.0  # how long the first car is drawn when the camera follows it
TOGETHER_PX = 10.0  # how long it must at least be where the camera follows all of them
TRAIL_S = 3.0
LINGER_S = 1.0
MOST_BEAMS = 72  # drawn of a scan, however many it has
CORRIDOR = 8.0  # a road so many times as long as wide is shown in part
STARTS = 24  # episodes whose starts a sketch shows
STILL_PX = 1000  # width of a picture of a whole race
ROW_PX, ENTRY_PX = 20, 190  # of the list of cars above the picture


def make_renderer(config: RacingConfig) -> Renderer:
    """What draws races of this config; it keeps the road of one episode, so use one for each world."""
    return _Race(config)


class _Race:
    """Satisfies `Renderer`."""

    def __init__(self, config: RacingConfig) -> None:
        self._config = config
        self._sizes = [car(entry.vehicle) for entry in config.cars]
        self._scans = bool(config.observation.blocks(len(config.cars))["scan"])
        self._open = isinstance(config.track, CorridorTrack)
        self._needed = 1 if self._open else config.laps
        self._road: Road | None = None

    def __call__(
        self, spec: WorldSpec, frames: F64, backdrop: Backdrop | None, size: Size = SIZE, at: int | None = None
    ) -> U8:
        """See `Renderer`."""
        if backdrop is None:
            raise ValueError("a race is drawn on its track: give what VecEnv.backdrop(world) returns after reset")
        now = len(frames) - 1 if at is None else at
        if self._road is None or self._road.backdrop is not backdrop:
            self._road = Road(backdrop)
        poses = _fields(spec, frames, "x_m", "y_m", "yaw_rad")  # [T, A, 3]
        driving = _fields(spec, frames, "present")[..., 0] > 0  # [T, A]
        header = header_px(len(spec.agents), size)
        leader = _leader(driving[now])
        places = poses[now, :, :2]
        lately = driving[max(0, now - round(LINGER_S / spec.tick_seconds)) : now + 1].any(0)
        together = places[lately]  # where somebody has just crashed is still looked at
        view = camera(self._road, places[leader], self._sizes[leader].length_m, size, header, together)
        canvas = Canvas(size, view, self._road.picture(view, size))
        first = max(0, now - round(TRAIL_S / spec.tick_seconds))
        for i in range(len(spec.agents)):
            canvas.trail(poses[first : now + 1, i, :2], paint(_color(i), 0.8), 2.0)
        if self._scans:
            for i in np.flatnonzero(driving[now]).tolist():
                self._draw_scan(canvas, i, poses[now], driving[now])
        whole = driving[now] | (_fields(spec, frames[now], "laps")[:, 0] >= self._needed)
        for i, body in enumerate(self._sizes):
            _draw_car(canvas, poses[now, i], body, _color(i), bool(whole[i]))
        if not self._road.fits(view, size, header):
            _draw_overview(canvas, self._road, poses[now, :, :2])
        self._draw_header(canvas, spec, frames[now], now * spec.tick_seconds, driving[now])
        canvas.scale_bar((12, size[1] - 14), "m", paint(QUIET))
        return canvas.pixels()

    def _draw_scan(self, canvas: Canvas, i: int, poses: F64, driving: Bools) -> None:
        """What the scanner of car i sees, faintly."""
        assert self._road is not None
        lidar = self._config.lidar
        x, y, yaw = poses[i].tolist()
        pose = (x + lidar.mount_m * math.cos(yaw), y + lidar.mount_m * math.sin(yaw), yaw)
        beams = min(lidar.beams, MOST_BEAMS)
        ranges = np.full(beams, lidar.range_m)
        vehicles = np.array([entry.vehicle for entry in self._config.cars])
        others = driving & (np.arange(len(vehicles)) != i)
        for vehicle in set(vehicles.tolist()):  # a scan knows one kind of other car
            there = poses[others & (vehicles == vehicle)]
            seen = self._road.map.scan(pose, beams, lidar.fov_rad, lidar.range_m, there, self._config.physics, vehicle)
            ranges = np.minimum(ranges, seen)
        angles = yaw + np.linspace(-0.5, 0.5, beams) * lidar.fov_rad if beams > 1 else np.array([yaw])
        hits = np.asarray(pose[:2]) + ranges[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
        canvas.polygon([pose[:2], *hits], paint(_color(i), 0.10))
        for hit in hits:
            canvas.line([pose[:2], hit], paint(_color(i), 0.13), 0.5)

    def _draw_header(self, canvas: Canvas, spec: WorldSpec, frame: F64, time_s: float, driving: Bools) -> None:
        """Time, and each car's speed and lap."""
        width = canvas.size[0]
        canvas.box((0, 0, width, header_px(len(spec.agents), canvas.size)), paint(GROUND, 0.85))
        canvas.text((width - 12, 6 + ROW_PX / 2), f"{time_s:.2f} s", paint(WORDS), 13.0, "rm")
        for i, (speed, along, laps) in enumerate(_fields(spec, frame, "speed_mps", "s_m", "laps").tolist()):
            x, y = _entry(i, canvas.size)
            doing = f"{speed:.1f} m/s" if driving[i] else "out"
            words = "   ".join((spec.agents[i], *self._standing(doing, along, int(laps))))
            canvas.box((x, y - 4, x + 12, y + 4), paint(_color(i), 1.0 if driving[i] else 0.5))
            canvas.text((x + 19, y), words, paint(WORDS if driving[i] else QUIET), 12.0, "lm")

    def _standing(self, doing: str, along_m: float, laps: int) -> tuple[str, ...]:
        """What a car does and how far it has come."""
        if laps >= self._needed:
            return ("finished",)
        return doing, f"{along_m:.1f} m" if self._open else f"lap {laps + 1}/{self._needed}"


class Road:
    """A backdrop as a map for scans and as a picture in any view."""

    def __init__(self, backdrop: Backdrop) -> None:
        self.backdrop = backdrop
        self.map = Map.from_grid(backdrop.occupied, backdrop.resolution_m, backdrop.origin)
        free = Image.fromarray(np.where(backdrop.occupied == 0, np.uint8(255), np.uint8(0)))
        self._free = free.filter(ImageFilter.GaussianBlur(1.5))  # walls in steps of a cell look ragged
        self.low, self.high = free_extent(backdrop)
        self._drawn: tuple[View, Size, Image.Image] | None = None

    def picture(self, view: View, size: Size) -> Image.Image:
        """The same, kept for as long as the view stays."""
        if self._drawn is None or self._drawn[:2] != (view, size):
            self._drawn = view, size, self.draw(view, size)
        return self._drawn[2]

    def fits(self, view: View, size: Size, header: float) -> bool:
        """Whether all of the road is in the picture below the header."""
        return bool((view.scale * (self.high - self.low) <= np.subtract(size, (0, header))).all())

    def draw(self, view: View, size: Size) -> Image.Image:
        """The road in this view, in canvas pixels."""
        x0, y0, yaw = self.backdrop.origin
        step = 1.0 / (FINE * view.scale)  # metres per canvas pixel
        cell, cells = self.backdrop.resolution_m, self._free
        coarser = int(step / cell)
        if coarser > 1:  # cells smaller than pixels are averaged first
            cell, cells = coarser * cell, cells.reduce(coarser)
        (cx, cy), (mx, my) = view.center, view.middle
        left, top = cx - mx / view.scale - x0, cy + my / view.scale - y0  # of the picture's corner from the grid's
        cos, sin = math.cos(yaw) / cell, math.sin(yaw) / cell
        columns = (cos * step, -sin * step, cos * left + sin * top)  # of a pixel (right, down, 1)
        rows = (-sin * step, -cos * step, cos * top - sin * left)
        fine = (FINE * size[0], FINE * size[1])
        shades = cells.transform(fine, Image.Transform.AFFINE, (*columns, *rows), Image.Resampling.BILINEAR)
        return Image.merge("RGB", [shades.point(table) for table in _SHADES])


def camera(road: Road, leader: F64, length_m: float, size: Size, header: float, together: F64 | None = None) -> View:
    """The whole road where a car is then READABLE_PX long or more; otherwise the camera follows the leading one.

    Where all that drive (`together` [cars, 2]) are near enough to each other, it follows all of them.
    """
    margin = 12.0
    box = (margin, header + margin, size[0] - margin, size[1] - margin - 16)  # the scale bar is below
    whole = View.fit(road.low, road.high, box)
    if whole.scale * length_m >= READABLE_PX:
        return whole
    middle = (0.5 * size[0], 0.5 * (size[1] + header))
    if together is not None and len(together) > 1:
        low, high = together.min(0) - 1.5 * length_m, together.max(0) + 1.5 * length_m
        scale = min(View.fit(low, high, box).scale, FOLLOW_PX / length_m)
        if scale * length_m >= TOGETHER_PX:
            x, y = (0.5 * (low + high)).tolist()
            return View((x, y), middle, scale)
    x, y = leader.tolist()
    return View((x, y), middle, FOLLOW_PX / length_m)


def header_px(cars: int, size: Size) -> int:
    """Height of the list of cars."""
    return 12 + ROW_PX * -(-cars // _per_row(size))


def _per_row(size: Size) -> int:
    return max(1, (size[0] - 90) // ENTRY_PX)


def _entry(i: int, size: Size) -> tuple[float, float]:
    """Where car i's line of the list begins."""
    row, column = divmod(i, _per_row(size))
    return 12 + ENTRY_PX * column, 6 + ROW_PX * (row + 0.5)


def _leader(driving: Bools) -> int:
    """The first car that still drives, or the first."""
    return int(np.argmax(driving))


def _color(i: int) -> str:
    return COLORS[i % len(COLORS)]


def _fields(spec: WorldSpec, frames: F64, *names: str) -> F64:
    return frames[..., [spec.frame_fields.index(name) for name in names]]


def free_extent(backdrop: Backdrop) -> tuple[F64, F64]:
    """Lower left and upper right corner of all free cells."""
    free = backdrop.occupied == 0
    rows, columns = np.flatnonzero(free.any(1)), np.flatnonzero(free.any(0))
    x, y, yaw = backdrop.origin
    ends = [(c, r) for c in (columns.min(), columns.max() + 1) for r in (rows.min(), rows.max() + 1)]
    along, up = backdrop.resolution_m * np.array(ends, np.float64).T
    corners = np.stack([x + math.cos(yaw) * along - math.sin(yaw) * up, y + math.sin(yaw) * along + math.cos(yaw) * up])
    return corners.min(1), corners.max(1)


def rectangle(pose: F64, back: float, front: float, width: float) -> F64:
    """Corners [4, 2] of what reaches from back to front of a pose, metres along its yaw."""
    x, y, yaw = pose.tolist()
    along, aside = np.array([math.cos(yaw), math.sin(yaw)]), np.array([-math.sin(yaw), math.cos(yaw)])
    corners = [(back, -width / 2), (front, -width / 2), (front, width / 2), (back, width / 2)]
    return np.array([(x, y) + a * along + b * aside for a, b in corners])


def _draw_car(canvas: Canvas, pose: F64, body: Car, color: str, whole: bool) -> None:
    """A rectangle of the car's size with a bright nose; of one that is out, the outline."""
    half = body.length_m / 2
    outline = rectangle(pose, -half, half, body.width_m)
    if not whole:
        canvas.polygon(outline, paint(color, 0.35), paint(color), 1.0)
        canvas.line(outline[[0, 2]], paint(color), 1.0)
        canvas.line(outline[[1, 3]], paint(color), 1.0)
        return
    canvas.polygon(outline, paint(color), paint("#101418"), 1.0)
    nose = rectangle(pose, 0.45 * half, 0.8 * half, 0.7 * body.width_m)
    canvas.polygon([nose[0], (nose[1] + nose[2]) / 2, nose[3]], paint("#FFFFFF"))


def _draw_overview(canvas: Canvas, road: Road, places: F64) -> None:
    """All of the road, small, with a dot for each car: where the camera that follows is."""
    width, height = canvas.size
    wide = 0.4 * width
    tall = min(0.25 * height, max(14.0, wide * float(np.divide(*(road.high - road.low)[::-1])) + 8))
    size = (round(wide), round(tall))
    view = View.fit(road.low, road.high, (4, 4, size[0] - 4, size[1] - 4))
    small = Canvas(size, view, road.draw(view, size))
    for i in range(len(places) - 1, -1, -1):
        small.circle(places[i], 3.0 / view.scale, paint(_color(i)), paint("#FFFFFF"), 0.5)
    canvas.overlay(small, (width - size[0] - 8, height - size[1] - 8))


def _shades() -> list[list[int]]:
    """How red, green and blue follow from how free a pixel is."""
    stops = (0, 88, 112, 144, 168, 255)
    colors = [paint(color)[:3] for color in (GROUND, GROUND, KERB, KERB, ROAD, ROAD)]
    return [
        np.interp(np.arange(256), stops, channel).round().astype(int).tolist() for channel in zip(*colors, strict=True)
    ]


_SHADES = _shades()


# --- a race, a scene and tracks as one picture ---


def picture(spec: WorldSpec, frames: F64, backdrop: Backdrop | None, path: Path, title: str) -> None:
    """Draw a recorded race into a file: every car's way to a triangle, with a dot every second."""
    if backdrop is None:
        raise ValueError("a race is drawn on its track: give what VecEnv.backdrop(world) returns after reset")
    poses, present = _fields(spec, frames, "x_m", "y_m", "yaw_rad"), _fields(spec, frames, "present")[..., 0] > 0
    speeds = _fields(spec, frames, "speed_mps")[..., 0]
    ends = [len(frames) - 1 if there.all() else int(np.argmin(there)) for there in present.T]  # where each left
    tick = spec.tick_seconds
    legend = [
        f"{name}: {end * tick:.1f} s, {speeds[: end + 1, i].mean():.1f} m/s on average"
        for i, (name, end) in enumerate(zip(spec.agents, ends, strict=True))
    ]
    canvas = _still(Road(backdrop), poses[..., :2].reshape(-1, 2), f"{title}, {(len(frames) - 1) * tick:.1f} s", legend)
    second = max(1, round(1.0 / tick))
    for i, end in enumerate(ends):
        canvas.line(poses[: end + 1, i, :2], paint(_color(i)), 2.0)
        for dot in poses[:end:second, i, :2]:
            canvas.circle(dot, 2.5 / canvas.view.scale, paint("#FFFFFF"), paint(_color(i)), 1.0)
        canvas.circle(poses[0, i, :2], 5.0 / canvas.view.scale, paint(_color(i)), paint("#FFFFFF"), 1.0)
        _draw_triangle(canvas, poses[end, i], paint(_color(i)))
    Image.fromarray(canvas.pixels()).save(path)


def sketch(config: RacingConfig, path: Path, title: str) -> str:
    """Draw a scene into a file: where cars start. Returns what it shows, in words."""
    worlds = build(config, STARTS, EnvOptions(seed=0))
    worlds.reset()
    frames, backdrop, spec = np.stack([worlds.frame(i) for i in range(STARTS)]), worlds.backdrop(0), worlds.spec
    worlds.close()
    assert backdrop is not None, "every race has a track"
    fixed = track_of(config)  # None: another in every episode, and starts belong to their own
    poses = _fields(spec, frames if fixed is not None else frames[:1], "x_m", "y_m", "yaw_rad")
    episodes = "starts of one episode, on its own track" if fixed is None else f"starts of {len(poses)} episodes"
    text = f"{config.task}, {len(spec.agents)} {'car' if len(spec.agents) == 1 else 'cars'}; {episodes}"
    canvas = _still(Road(backdrop), poses[..., :2].reshape(-1, 2), f"{title}: {text}", spec.agents)
    if fixed is not None:
        _draw_centerline(canvas, fixed)
    for k in range(len(poses) - 1, -1, -1):  # the first episode's on top
        for i in range(len(spec.agents)):
            _draw_triangle(canvas, poses[k, i], paint(_color(i), 1.0 if k == 0 else 0.35))
    Image.fromarray(canvas.pixels()).save(path)
    return text


def draw_tracks(tracks: Sequence[Map], to: Path, *, columns: int = 4, racelines: bool = False) -> Path:
    """Draw several tracks side by side, with their racelines if asked: red where it is slow, green where it is fast."""
    each, rows = (300, 300), -(-len(tracks) // columns)
    nowhere = View((0.0, 0.0), (0.0, 0.0), 1.0)
    sheet = Canvas((each[0] * columns, each[1] * rows), nowhere, GROUND)
    for i, track in enumerate(tracks):
        road = Road(Backdrop(track.occupied, track.resolution, track.origin))
        view = View.fit(road.low, road.high, (8, 30, each[0] - 8, each[1] - 8))
        canvas = Canvas(each, view, road.draw(view, each))
        _draw_centerline(canvas, track)
        if racelines and track.closed:
            line = raceline(track)
            fast = (line.speed - line.speed.min()) / max(float(np.ptp(line.speed)), 1e-9)
            for point, share in zip(line.points, fast.tolist(), strict=True):
                canvas.circle(point, 1.2 / view.scale, (round(213 * (1 - share)), round(60 + 98 * share), 60, 255))
        length = f", {track.length_m:.0f} m" if track.centerline is not None else ""
        canvas.text((10, 15), f"{track.name}{length}", paint(WORDS), 12.0)
        sheet.overlay(canvas, (each[0] * (i % columns), each[1] * (i // columns)))
    Image.fromarray(sheet.pixels()).save(to)
    return to


def shown_extent(low: F64, high: F64, points: F64) -> tuple[F64, F64]:
    """The corners of what is shown of a road: of a long narrow one, the part with these points [n, 2] and some room."""
    spans = high - low
    long = int(np.argmax(spans))
    if spans[long] < CORRIDOR * spans.min():
        return low, high
    first, last = float(points[:, long].min()), float(points[:, long].max())
    room = max(1.5 * float(spans.min()), 0.15 * (last - first))
    low, high = low.copy(), high.copy()
    low[long], high[long] = max(first - room, low[long]), min(last + room, high[long])
    return low, high


def _still(road: Road, points: F64, title: str, legend: Sequence[str]) -> Canvas:
    """The road where these points are, below a title and above a list of the cars."""
    low, high = shown_extent(road.low, road.high, points)
    span = high - low
    head, foot, tall = 44, 14 + ROW_PX * len(legend), int(np.clip(960 * span[1] / span[0], 160, 760))
    size = STILL_PX, head + tall + foot
    view = View.fit(low, high, (20, head, STILL_PX - 20, head + tall))
    canvas = Canvas(size, view, road.draw(view, size))
    for box in ((0, 0, STILL_PX, head - 6), (0, head + tall + 4, *size)):
        canvas.box((float(box[0]), float(box[1]), float(box[2]), float(box[3])), paint(GROUND))
    canvas.text((20, 20), title, paint(WORDS), 17.0)
    for i, words in enumerate(legend):
        y = head + tall + 10 + ROW_PX * (i + 0.5)
        canvas.box((20, y - 4, 34, y + 4), paint(_color(i)))
        canvas.text((42, y), words, paint(WORDS), 12.0)
    return canvas


def _draw_centerline(canvas: Canvas, track: Map) -> None:
    if track.centerline is not None:
        around = np.concatenate([track.centerline, track.centerline[:1]]) if track.closed else track.centerline
        canvas.line(around, paint(KERB, 0.7), 1.0)


def _draw_triangle(canvas: Canvas, pose: F64, color: tuple[int, int, int, int]) -> None:
    """A triangle that points where a car drives."""
    angles = float(pose[2]) + np.array([0.0, 2.5, -2.5])
    corners = pose[:2] + 8.0 / canvas.view.scale * np.stack([np.cos(angles), np.sin(angles)], 1)
    canvas.polygon(corners, color, (255, 255, 255, color[3]), 1.0)
