"""Helpers for tests of terminal views: drive an app by its keys, and read what stands on its screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot

Steps = Callable[[Pilot[Any]], Awaitable[None]]


def drive(app: App[Any], steps: Steps, size: tuple[int, int] = (100, 30)) -> None:
    """Run the app without a terminal and do the steps with it."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(pilot)

    asyncio.run(run())


def text_of(app: App[Any]) -> str:
    """What stands on the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def until(pilot: Pilot[Any], happens: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something, and fail when it does not come."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, text_of(pilot.app)
        await pilot.pause(0.02)
