"""Episodes as pictures: what the adapters' `render_mode="rgb_array"` shows, and animated GIFs."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import logger
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray
from PIL import Image

from slipstream.draw import COLORS
from slipstream.draw.canvas import SIZE, Size, paint
from slipstream.errors import WorldContractError, suggest
from slipstream.spec import WorldSpec
from slipstream.types import F64, U8
from slipstream.worlds.tools import Renderer
from slipstream.worlds.vec_env import Backdrop, VecEnv
from slipstream.worlds.world import tools_of

if TYPE_CHECKING:
    from slipstream.config.world import WorldConfig

RGB_ARRAY = "rgb_array"
SHORTEST_S, LONGEST_S = 0.02, 0.1  # viewers show no more than 50 pictures a second, and fewer than 10 are no film
MOST_PICTURES = 300
LONGEST_FILM_S = 30.0  # of a world whose decisions last
DECISIONS_PER_S = 3  # of such a world that adapters' pictures are shown at
HOLD_S = 1.5  # a GIF stays on its last picture before it begins again
COMMON, RARE = 64, 64  # colours of a palette
PALETTE_PICTURES = 8  # that the palette is chosen from


def seconds_per_picture(apart_s: float) -> float:
    """How long to show each of pictures taken so many seconds apart: true time where eyes and viewers can follow."""
    return min(max(apart_s, SHORTEST_S), LONGEST_S)


# --- what adapters show ---


class Film:
    """The frames so far of the episode in every world of a batch."""

    def __init__(self, config: WorldConfig, env: VecEnv) -> None:
        self._env = env
        make = tools_of(config.kind).drawings.renderer
        assert make is not None  # `make_film` refuses other worlds
        self._renderers = [make(config) for _ in range(env.num_worlds)]
        self._frames: list[list[F64]] = [[] for _ in range(env.num_worlds)]
        self._backdrops: list[Backdrop | None] = [None] * env.num_worlds

    def start(self, rows: NDArray[np.bool_]) -> None:
        """These worlds were reset."""
        for i in np.flatnonzero(rows).tolist():
            self._frames[i] = [self._env.frame(i)]
            self._backdrops[i] = self._env.backdrop(i)

    def add(self, rows: NDArray[np.bool_]) -> None:
        """These worlds were stepped."""
        for i in np.flatnonzero(rows).tolist():
            self._frames[i].append(self._env.frame(i))

    def picture(self, world: int) -> U8:
        """The newest frame, uint8 [height, width, 3]."""
        if not self._frames[world]:
            raise ResetNeeded("reset() comes before render(): there is nothing to show yet")
        return self._renderers[world](self._env.spec, np.stack(self._frames[world]), self._backdrops[world])


def render_metadata(config: WorldConfig, spec: WorldSpec) -> dict[str, Any]:
    """What Gymnasium and PettingZoo want to know: the modes there are, and how many pictures a second."""
    if tools_of(config.kind).drawings.renderer is None:
        return {"render_modes": []}
    lasts = spec.has_durations and "frames" in spec.frame_fields  # a picture is a decision, and no tick
    per_second = DECISIONS_PER_S if lasts else round(1.0 / seconds_per_picture(spec.tick_seconds))
    return {"render_modes": [RGB_ARRAY], "render_fps": per_second}


def make_film(config: WorldConfig, env: VecEnv, render_mode: str | None) -> Film | None:
    """What records for this render mode; None where nothing is to be shown."""
    if render_mode is None:
        return None
    modes: list[str] = render_metadata(config, env.spec)["render_modes"]
    if render_mode not in modes:
        known = f"it has {', '.join(modes)}" if modes else "it has no picture"
        raise WorldContractError(
            f"render_mode: {env.spec.name} has no mode '{render_mode}' ({known})" + suggest(render_mode, modes)
        )
    return Film(config, env)


def warn_of_no_mode() -> None:
    """Say, as Gymnasium's own environments do, why nothing is shown."""
    logger.warn(f'render() shows nothing without a mode; make the environment with render_mode="{RGB_ARRAY}"')


# --- GIFs ---


def gif(render: Renderer, spec: WorldSpec, frames: F64, backdrop: Backdrop | None, size: Size = SIZE) -> bytes:
    """A recorded episode [T, A, F] as an animated GIF of at most MOST_PICTURES pictures."""
    at_s = moments(spec, frames)
    if at_s is None:
        shown, seconds = timing(len(frames), spec.tick_seconds)
        each = [seconds] * (len(shown) - 1)
    else:
        shown, each = pacing(at_s)

    def picture(at: int) -> Image.Image:
        return Image.fromarray(render(spec, frames, backdrop, size, at))

    some = np.linspace(0, len(shown) - 1, PALETTE_PICTURES).round().astype(int)
    palette = _palette([picture(shown[i]) for i in np.unique(some)])

    def pictures() -> Iterator[Image.Image]:
        for at in shown:
            yield picture(at).quantize(palette=palette, dither=Image.Dither.NONE)

    film = pictures()
    durations = [round(1000 * seconds) for seconds in (*each, HOLD_S)]
    out = io.BytesIO()
    next(film).save(
        out, "GIF", save_all=True, append_images=film, duration=durations, loop=0, optimize=False, disposal=1
    )
    return out.getvalue()


def timing(count: int, tick_s: float) -> tuple[list[int], float]:
    """Which of so many frames are shown, the first and last among them, and for how many seconds each."""
    stride = max(1, math.ceil((count - 1) / (MOST_PICTURES - 1)), math.ceil(SHORTEST_S / max(tick_s, 1e-3)))
    shown = sorted({*range(0, count, stride), count - 1})
    return shown, seconds_per_picture(stride * tick_s)


def moments(spec: WorldSpec, frames: F64) -> F64 | None:
    """Seconds at which each frame was recorded [T], where one is a decision that lasts; None: they are a tick apart."""
    if not spec.has_durations or "frames" not in spec.frame_fields:
        return None
    passed = frames[..., spec.frame_fields.index("frames")].max(1)
    return np.maximum.accumulate(passed) * spec.tick_seconds


def pacing(at_s: F64) -> tuple[list[int], list[float]]:
    """Which of the frames recorded at these seconds are shown, and for how long each but the last.

    As long as they lasted; a longer film than LONGEST_FILM_S is sped up to that.
    """
    count, faster = len(at_s), max(1.0, float(at_s[-1] - at_s[0]) / LONGEST_FILM_S)
    apart = float(at_s[-1] - at_s[0]) / faster / max(1, count - 1)
    stride = max(1, math.ceil((count - 1) / (MOST_PICTURES - 1)), math.ceil(SHORTEST_S / max(apart, 1e-3)))
    shown = sorted({*range(0, count, stride), count - 1})
    return shown, np.maximum(np.diff(at_s[shown]) / faster, SHORTEST_S).tolist()


def _palette(pictures: list[Image.Image]) -> Image.Image:
    """One palette for all, so that colours do not flicker: agents' and the commonest as they are, others nearly."""
    width, height = pictures[0].size
    sheet = Image.new("RGB", (width, height * len(pictures)))
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (0, i * height))
    counts = sorted(sheet.getcolors(width * height * len(pictures)) or [], reverse=True)
    common = [paint(color)[:3] for color in COLORS] + [color for _, color in counts[:COMMON]]
    rare = sheet.quantize(RARE, Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.array(common, np.uint8).tobytes() + bytes(rare))
    return palette
