"""Tracks as grids of free and occupied cells: read from ROS map files, from arrays, or made here."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from PIL import Image, UnidentifiedImageError

from slipstream import _core
from slipstream.errors import ScenarioError, suggest
from slipstream.types import F64, U8
from slipstream.worlds.racing.cars import Mode, car

FREE_ABOVE = 128  # compat: what f1tenth_gym takes for free, whatever the file's thresholds are
OCCUPIED_THRESH, FREE_THRESH = 0.65, 0.196  # where a file does not say, as ROS has it


class TrackProgress(NamedTuple):
    """Where points are along a track's centreline; arrays of the points' leading shape."""

    s_m: F64  # from the first point of the centreline
    lateral_m: F64  # beside it, left positive
    heading_rad: F64  # of the centreline there


@dataclass(frozen=True)
class Map:
    """A track. Row 0 of the grid is the lowest; what is not in the grid is wall."""

    name: str
    occupied: U8  # [rows, columns], 1 where there is wall
    resolution: float  # metres per cell
    origin: tuple[float, float, float]  # x, y of the lower left corner, and how the grid is turned about it
    centerline: F64 | None = None  # [N, 2]
    closed: bool = False  # the centreline goes on from its last point to its first
    _grid: _core.RacingMap = field(init=False, repr=False, compare=False)
    _line: _core.RacingCenterline | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            grid = _core.RacingMap(self.occupied, self.resolution, *self.origin)
            line = None if self.centerline is None else _core.RacingCenterline(self.centerline, self.closed)
        except ValueError as error:
            raise ScenarioError(f"map {self.name}: {error}") from None
        object.__setattr__(self, "_grid", grid)
        object.__setattr__(self, "_line", line)

    @classmethod
    def load(cls, path: str | Path, mode: Mode = "clean") -> Map:
        """Read a ROS map: a yaml file, the image it names, and `<name>_centerline.csv` beside it where there is one.

        Beside `<name>_map.yaml`, as tracks of f1tenth are named, it may be `<name>_centerline.csv` too.

        Args:
            path: The yaml file.
            mode: clean honours the file's thresholds and takes what is unknown for wall; compat, as f1tenth_gym does,
                takes everything brighter than 128 for free.
        """
        path = Path(path)
        about = _read_yaml(path)
        names = (path.stem, path.stem.removesuffix("_map"))
        beside = [path.with_name(f"{name}_centerline.csv") for name in names]
        points, closed = _read_centerline(beside[0] if beside[0].exists() else beside[1])
        return cls(
            name=path.stem,
            occupied=_read_image(path, about, mode),
            resolution=_number(about, "resolution", path),
            origin=_origin(about["origin"], f"{path}: origin"),
            centerline=points,
            closed=closed,
        )

    @classmethod
    def from_grid(
        cls,
        occupied: ArrayLike,
        resolution: float,
        origin: Sequence[float] = (0.0, 0.0, 0.0),
        centerline: ArrayLike | None = None,
        closed: bool | None = None,
        name: str = "grid",
    ) -> Map:
        """A map from an array.

        Args:
            occupied: [rows, columns], true or not 0 where there is wall; row 0 is the lowest.
            resolution: Metres per cell.
            origin: x, y of the lower left corner, and perhaps its yaw.
            centerline: [N, 2] points.
            closed: Whether the centreline is a circuit; None: if its ends are as near as its points are.
            name: What to call it in messages.
        """
        cells = np.ascontiguousarray(np.asarray(occupied) != 0, dtype=np.uint8)
        if cells.ndim != 2:
            raise ScenarioError(f"map {name}: a grid has rows and columns, this has the shape {cells.shape}")
        points = None if centerline is None else _points(centerline, f"map {name}: centreline")
        is_circuit = points is not None and _is_circuit(points) if closed is None else closed
        return cls(name, cells, float(resolution), _origin(origin, f"map {name}: origin"), points, is_circuit)

    @property
    def length_m(self) -> float:
        """Length of the centreline."""
        return self.native_line.length

    @property
    def native(self) -> _core.RacingMap:
        """The grid as the core has it."""
        return self._grid

    @property
    def native_line(self) -> _core.RacingCenterline:
        """The centreline as the core has it; an error where there is none."""
        if self._line is None:
            raise ScenarioError(
                f"map {self.name} has no centreline, so there is no progress along it; put {self.name}_centerline.csv "
                "(x, y per line) beside its yaml file"
            )
        return self._line

    def distance(self) -> F64:
        """Metres between the centre of each cell and that of the nearest occupied one, [rows, columns]."""
        return self._grid.distance()

    def scan(
        self,
        pose: ArrayLike,
        beams: int = 108,
        fov: float = 4.7,
        max_range: float = 30.0,
        opponents: ArrayLike = (),
        mode: Mode = "clean",
        vehicle: str = "f1tenth",
    ) -> NDArray[np.float32]:
        """What a laser scanner sees.

        Args:
            pose: [3] x_m, y_m, yaw_rad of the scanner.
            beams: How many, spread evenly over the field of view, the rightmost first.
            fov: Field of view in radians.
            max_range: Metres; what is farther is seen there.
            opponents: [n, 3] poses of other cars.
            mode: clean is exact; compat marches as f1tenth_gym does, in its 2000 directions.
            vehicle: What the other cars are.

        Returns:
            float32 [beams], metres. There is no noise.
        """
        other = car(vehicle)
        cars = np.ascontiguousarray(opponents, dtype=np.float64).reshape(-1, 3)
        where = np.ascontiguousarray(pose, dtype=np.float64)
        return self._grid.scan(_lidar(beams, fov, max_range), where, mode, cars, other.length_m, other.width_m)

    def touches(self, poses: ArrayLike, length: float, width: float) -> NDArray[np.bool_]:
        """Whether rectangles at poses [..., 3] touch a wall or leave the grid."""
        where = np.ascontiguousarray(poses, dtype=np.float64)
        return self._grid.touches(where.reshape(-1, 3), length, width).astype(bool).reshape(where.shape[:-1])

    def progress(self, points: ArrayLike) -> TrackProgress:
        """Where points [..., 2] are along the centreline."""
        where = np.ascontiguousarray(points, dtype=np.float64)
        s, lateral, heading = self.native_line.project(where.reshape(-1, 2)).T
        shape = where.shape[:-1]
        return TrackProgress(s.reshape(shape), lateral.reshape(shape), heading.reshape(shape))

    def at(self, s_m: ArrayLike) -> F64:
        """The points [..., 2] of the centreline this far along; around a circuit, within an open line."""
        s = np.asarray(s_m, dtype=np.float64)
        return self.native_line.at(np.ascontiguousarray(s.reshape(-1))).reshape(*s.shape, 2)


@lru_cache(maxsize=64)
def _lidar(beams: int, fov: float, max_range: float) -> _core.RacingLidar:
    return _core.RacingLidar(beams, fov, max_range)


# --- files ---


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        about = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ScenarioError(f"map {path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ScenarioError(f"map {path}: not a yaml file: {error}") from None
    if not isinstance(about, dict):
        raise ScenarioError(f"map {path}: expected keys like image, resolution and origin, found {about!r:.60}")
    for key in ("image", "resolution", "origin"):
        if key not in about:
            near = suggest(key, [str(word) for word in about]).replace("did you mean", "is that")
            raise ScenarioError(f"map {path}: has no '{key}', which says {_MEANING[key]}{near}")
    return about


_MEANING = {
    "image": "which picture the cells come from",
    "resolution": "how many metres a cell is wide",
    "origin": "where the lower left corner is: [x, y, yaw]",
}


def _number(about: Mapping[str, Any], key: str, path: Path) -> float:
    value = about[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ScenarioError(f"map {path}: {key} must be a number, found {value!r}")
    return float(value)


def _origin(values: Any, where: str) -> tuple[float, float, float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (2, 3) or not all(map(math.isfinite, numbers)):
        raise ScenarioError(f"{where} must be [x, y] or [x, y, yaw] in metres and radians, found {values!r}")
    return numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 0.0


def _read_image(path: Path, about: Mapping[str, Any], mode: Mode) -> U8:
    image = path.parent / str(about["image"])
    try:
        with Image.open(image) as picture:
            shades = np.asarray(picture.convert("L"))
    except FileNotFoundError:
        raise ScenarioError(f"map {path}: its image {image} does not exist; image is relative to the yaml") from None
    except (OSError, UnidentifiedImageError) as error:
        raise ScenarioError(f"map {path}: its image {image} cannot be read: {error}") from None
    bright = np.ascontiguousarray(shades[::-1])  # pictures begin at the top
    if mode == "compat":
        return np.ascontiguousarray(bright <= FREE_ABOVE, dtype=np.uint8)
    dark = bright / 255.0 if about.get("negate", 0) else (255.0 - bright) / 255.0  # how sure a wall is
    wall = _number({"occupied_thresh": OCCUPIED_THRESH, **about}, "occupied_thresh", path)
    free = _number({"free_thresh": FREE_THRESH, **about}, "free_thresh", path)
    if not 0.0 <= free <= wall <= 1.0:
        raise ScenarioError(
            f"map {path}: free_thresh {free} and occupied_thresh {wall} must be in order between 0 and 1"
        )
    return np.ascontiguousarray(dark >= free, dtype=np.uint8)


def _read_centerline(path: Path) -> tuple[F64 | None, bool]:
    """Points of a csv file and whether they are a circuit; None where there is no file."""
    if not path.exists():
        return None, False
    rows: list[list[float]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = [word.strip() for word in next(csv.reader([line.replace(";", ",")]), [])]
        if not any(words) or words[0].startswith("#"):
            continue
        try:
            rows.append([float(word) for word in words[:2]])
        except ValueError:
            if rows:
                raise ScenarioError(f"{path}:{number}: expected x, y in metres, found {line!r:.60}") from None
    points = _points(rows, str(path))
    return points, _is_circuit(points)


def _points(values: ArrayLike, where: str) -> F64:
    try:
        points = np.ascontiguousarray(values, dtype=np.float64)
    except ValueError:
        points = np.empty(0)
    if points.ndim != 2 or points.shape[1:] != (2,):
        raise ScenarioError(f"{where}: expected points [N, 2], found the shape {points.shape}")
    if not (finite := np.isfinite(points).all(1)).all():
        raise ScenarioError(f"{where}: expected finite points [N, 2], found {points[~finite][0].tolist()}")
    return points


def _is_circuit(points: F64) -> bool:
    """Whether the ends are about as near to each other as neighbours are, after a way that is much longer."""
    steps = np.hypot(*np.diff(points, axis=0).T)
    gap = float(np.hypot(*(points[0] - points[-1])))
    return len(points) >= 3 and gap <= 3.0 * float(steps.max()) and gap <= 0.5 * float(steps.sum())


# --- tracks of our own ---


def corridor(length: float = 100.0, width: float = 2.6, *, resolution: float = 0.05) -> Map:
    """A straight road from (0, 0) along x, walled at both ends; metres."""
    return _track("corridor", _core.racing_corridor, length, width, resolution)


def oval(straight: float = 20.0, radius: float = 5.0, width: float = 2.2, *, resolution: float = 0.05) -> Map:
    """Two straights joined by half circles, driven counter-clockwise from the middle of the lower straight; metres."""
    return _track("oval", _core.racing_oval, straight, radius, width, resolution)


def circuit(
    seed: int,
    *,
    corners: int = 12,
    radius: float = 14.0,
    roughness: float = 0.8,
    width: float = 2.2,
    narrowest: float | None = None,
    tightest: float = 0.6,
    resolution: float = 0.05,
    mirrored: bool = False,
) -> Map:
    """A random circuit, driven counter-clockwise where it is not mirrored; the same seed gives the same one.

    Args:
        seed: Which one.
        corners: Points the road is drawn through.
        radius: Metres from the middle, about.
        roughness: 0 is a circle; with 1 corners are anywhere between the middle and the radius.
        width: Of the road, in metres.
        narrowest: Where given, the width is drawn between this and `width`.
        tightest: Least radius of a bend's inner wall, in metres; below 0 that wall is a corner.
        resolution: Metres per cell.
        mirrored: Half of all seeds are.
    """
    config = _core.CircuitConfig()
    config.corners, config.roughness, config.mirrored = corners, roughness, mirrored
    config.radius_m, config.width_m, config.narrowest_m = radius, width, narrowest
    config.tightest_m, config.resolution_m = tightest, resolution
    return _track(f"circuit {seed}", _core.racing_circuit, seed, config)


def _track(name: str, make: Callable[..., Any], *sizes: Any) -> Map:
    try:
        occupied, resolution, origin, points, closed = make(*sizes)
    except ValueError as error:
        raise ScenarioError(f"{name}: {error}") from None
    return Map(name, occupied, resolution, origin, points, closed)
