"""The contract of what draws a world into picture files."""

from __future__ import annotations

from typing import Protocol

from slipstream.draw.canvas import SIZE, Size
from slipstream.spec import WorldSpec
from slipstream.worlds.vec_env import F64, U8, Backdrop


class Renderer(Protocol):
    """Draws one moment of one episode; a world's `make_renderer(config)` makes one."""

    def __call__(
        self, spec: WorldSpec, frames: F64, backdrop: Backdrop | None, size: Size = SIZE, at: int | None = None
    ) -> U8:
        """A picture uint8 [height, width, 3].

        Args:
            spec: The world's; names the fields of a frame.
            frames: [T, A, F], `VecEnv.frame(world)` after reset and after every step.
            backdrop: What stands still, `VecEnv.backdrop(world)` after reset.
            size: Width and height in pixels.
            at: Which frame; None: the newest. Later ones only help to choose a view that fits them all.
        """
