"""The canvas for picture files: it draws at twice the size and shrinks; a view says where points of a world are.

Worlds have x to the right and y up in units of their own; pictures have pixels to the right and down.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageColor, ImageDraw, ImageFont

from slipstream.types import F64, U8

Size = tuple[int, int]  # width and height in pixels
Paint = tuple[int, int, int, int]  # red, green, blue, opacity
Anchor = Literal["lm", "mm", "rm"]  # left end, middle or right end, half way up

SIZE: Size = (640, 480)
PLAIN = str.maketrans({"–": "-", "−": "-", "×": "x", "≥": ">=", "≤": "<=", "→": "->"})
FINE = 2  # canvas pixels per picture pixel, each way


def paint(color: str, opacity: float = 1.0) -> Paint:
    """A colour by name or #RRGGBB, from invisible (0) to opaque (1)."""
    red, green, blue = ImageColor.getrgb(color)[:3]
    return red, green, blue, round(255 * opacity)


class View(NamedTuple):
    """Where points of the world are in the picture."""

    center: tuple[float, float]  # of what is shown, in units of the world
    middle: tuple[float, float]  # the pixel where that is
    scale: float  # pixels per unit

    @classmethod
    def fit(cls, low: ArrayLike, high: ArrayLike, box: tuple[float, float, float, float]) -> View:
        """Show the rectangle from low to high as large as it goes into box: left, top, right, bottom pixels."""
        left, top, right, bottom = box
        (x0, y0), (x1, y1) = np.asarray(low, float).tolist(), np.asarray(high, float).tolist()
        scale = min((right - left) / max(x1 - x0, 1e-9), (bottom - top) / max(y1 - y0, 1e-9))
        return cls((0.5 * (x0 + x1), 0.5 * (y0 + y1)), (0.5 * (left + right), 0.5 * (top + bottom)), scale)

    def pixels(self, points: ArrayLike) -> F64:
        """Points [..., 2] of the world as pixels [..., 2] of the picture."""
        offset = (np.asarray(points, np.float64) - self.center) * (self.scale, -self.scale)
        seen: F64 = offset + self.middle
        return seen


class Canvas:
    """A picture to draw on; shapes take points of the world, texts take pixels."""

    def __init__(self, size: Size, view: View, ground: str | Image.Image) -> None:
        fine = (FINE * size[0], FINE * size[1])
        self.size, self.view = size, view
        self._image = Image.new("RGB", fine, ground) if isinstance(ground, str) else ground.copy()
        self._draw = ImageDraw.Draw(self._image, "RGBA")  # opacity blends

    def line(self, points: ArrayLike, color: Paint, width: float = 1.0) -> None:
        """A line through points [n, 2]; nothing for fewer than two."""
        if len(np.asarray(points)) < 2:
            return
        self._draw.line(self._fine(points), color, max(1, round(FINE * width)), joint="curve")

    def dashes(self, start: ArrayLike, end: ArrayLike, color: Paint, width: float = 1.0, dash_px: float = 5.0) -> None:
        """A line of dashes, as long as the gaps between them; nothing if an end is NaN."""
        a, b = np.asarray(start, np.float64), np.asarray(end, np.float64)
        if not np.isfinite([a, b]).all():
            return
        count = int(math.dist(a, b) * self.view.scale / (2 * dash_px)) + 1
        for i in range(count):
            self.line([a + (b - a) * (i / count), a + (b - a) * ((i + 0.5) / count)], color, width)

    def trail(self, points: ArrayLike, color: Paint, width: float = 1.5) -> None:
        """A line through points [n, 2] that fades toward the first."""
        where = np.asarray(points, np.float64)
        for i in range(1, len(where)):
            *rgb, opacity = color
            faded: Paint = (rgb[0], rgb[1], rgb[2], round(opacity * i / len(where)))
            self.line(where[i - 1 : i + 1], faded, width)

    def polygon(self, points: ArrayLike, fill: Paint | None, edge: Paint | None = None, width: float = 1.0) -> None:
        """A closed shape through points [n, 2]."""
        corners = self._fine(points)
        self._draw.polygon(corners, fill)
        if edge is not None:
            self._draw.line([*corners, *corners[:4]], edge, max(1, round(FINE * width)), joint="curve")

    def circle(
        self, center: ArrayLike, radius: float, fill: Paint | None, edge: Paint | None = None, width: float = 1.0
    ) -> None:
        """A circle; the radius is in units of the world."""
        x, y = self._fine(center)
        r = FINE * self.view.scale * radius
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill, edge, max(1, round(FINE * width)))

    def box(self, corners: tuple[float, float, float, float], fill: Paint) -> None:
        """A filled rectangle: left, top, right, bottom pixels."""
        self._draw.rectangle([FINE * c for c in corners], fill)

    def text(self, at: Sequence[float], words: str, color: Paint, points: float = 12.0, anchor: Anchor = "lm") -> None:
        """Words at a pixel."""
        self._draw.text((FINE * at[0], FINE * at[1]), _printable(words), color, _font(FINE * points), anchor)

    def scale_bar(self, at: Sequence[float], unit: str, color: Paint) -> None:
        """A bar of a round length whose left end is at this pixel."""
        length = round_length(0.18 * self.size[0] / self.view.scale)
        x, y, width = at[0], at[1], length * self.view.scale
        self.box((x, y, x + width, y + 1.5), color)
        for end in (x, x + width):
            self.box((end - 0.75, y - 4, end + 0.75, y + 1.5), color)
        self.text((x + width + 7, y + 1), f"{length:g} {unit}", color, 11.0, "lm")

    def overlay(self, other: Canvas, at: tuple[int, int]) -> None:
        """Lay another canvas over this one, its upper left corner at this pixel."""
        self._image.paste(other._image, (FINE * at[0], FINE * at[1]))

    def pixels(self) -> U8:
        """The picture, uint8 [height, width, 3]."""
        return np.array(self._image.reduce(FINE))

    def _fine(self, points: ArrayLike) -> list[float]:
        flat: list[float] = (FINE * self.view.pixels(points)).ravel().tolist()
        return flat


def round_length(most: float) -> float:
    """The largest of 1, 2, 5, 10, 20, 50 … (or 0.5, 0.2 …) that is not more than this."""
    power = 10.0 ** math.floor(math.log10(most))
    return max(step * power for step in (1.0, 2.0, 5.0) if step * power <= most * (1 + 1e-9))


def _printable(words: str) -> str:
    """The text in characters that Pillow's own font has."""
    plain = (c for c in unicodedata.normalize("NFKD", words.translate(PLAIN)) if not unicodedata.combining(c))
    return "".join(c if c < "\x7f" or c in "°±·" else "?" for c in plain)


@lru_cache(maxsize=16)
def _font(points: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(points)  # comes with Pillow, the same everywhere
