"""Shifts of a game: pills that fall faster or slower, and levels that were not trained on."""

from __future__ import annotations

from slipstream.worlds.drmario import config as schema
from slipstream.worlds.shift import Reach, Shift, Shifts, SkippedShift

HIGHEST = 24


def shifts(config: schema.DrMarioConfig, full: bool) -> Shifts:
    """Other speeds, and levels above those of the last phase: all of them, or a few."""
    found, skipped = [], []
    own = schema.SPEEDS.index(config.speed)
    for at, speed in enumerate(schema.SPEEDS):
        if at != own:
            world = config.model_copy(update={"speed": speed})
            reach: Reach = "micro" if abs(at - own) == 1 else "macro"
            found.append(Shift(f"speed {speed}", "speed", reach, "all", float(at - own), "settings", world))
    levels = config.phases[-1].levels if config.phases else config.levels
    for up in range(1, 11) if full else (1, 2, 5, 10):
        name = f"levels +{up}"
        if max(levels) + up > HIGHEST:
            skipped.append(SkippedShift(name, f"level {max(levels) + up} is above {HIGHEST}, the highest there is"))
            continue
        higher = tuple(level + up for level in levels)
        if config.phases:
            last = config.phases[-1].model_copy(update={"levels": higher})
            world = config.model_copy(update={"phases": (*config.phases[:-1], last)})
        else:
            world = config.model_copy(update={"levels": higher})
        found.append(Shift(name, "levels", "micro" if up <= 2 else "macro", "all", float(up), "levels", world))
    return Shifts(tuple(found), tuple(skipped))
