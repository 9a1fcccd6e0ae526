"""Air traffic in characters: a radar."""

from __future__ import annotations

import math

import numpy as np
from rich.text import Text

from slipstream.spec import WorldSpec
from slipstream.types import F64
from slipstream.worlds.airspace.drawing import Plane, Traffic, read_traffic, separations
from slipstream.worlds.terminal import QUIET, STYLES, Sheet, arrow
from slipstream.worlds.vec_env import Backdrop

CLOSE_NM = 5.0  # what en-route traffic keeps; a config may ask for another distance


def characters(spec: WorldSpec, frame: F64, backdrop: Backdrop | None, width: int, height: int) -> list[Text]:
    """The aircraft as arrows where they fly, their waypoints as stars, and how close the closest are."""
    del backdrop
    return radar(read_traffic(spec, frame[None]), width, height)


def radar(traffic: Traffic, width: int, height: int) -> list[Text]:
    """One moment of any traffic."""
    plane = Plane(traffic.states[0, :, :2], traffic.waypoints)
    places, goals = plane.points(traffic.states[0, :, :2]), plane.points(traffic.waypoints)
    flying = traffic.present[0]
    known = np.concatenate([goals[np.isfinite(goals[:, 0])], places[flying]])
    if not len(known):
        known = places
    room = 0.05 * max(1.0, float(np.ptp(known, axis=0).max()))
    sheet = Sheet(width, height - 1, known.min(0) - room, known.max(0) + room)
    apart = separations(traffic, 0)
    lost = {i for pair, distance in apart.items() if distance < CLOSE_NM for i in pair}
    for i in range(len(traffic.names)):
        style = STYLES[i % len(STYLES)]
        if flying[i]:
            for dot in np.linspace(places[i], goals[i], 12)[1:-1] if np.isfinite(goals[i]).all() else ():
                sheet.put(*sheet.place(*dot.tolist()), "·", QUIET)
        if np.isfinite(goals[i]).all():
            sheet.put(*sheet.place(*goals[i].tolist()), "✦", style.removeprefix("bold "))
    for i in np.flatnonzero(flying).tolist():
        style = "bold white on red" if i in lost else STYLES[i % len(STYLES)]
        column, line = sheet.place(*places[i].tolist())
        if width >= 40:
            sheet.write(column + 2, line, traffic.names[i], QUIET)
        sheet.put(column, line, arrow(math.pi / 2 - math.radians(float(traffic.states[0, i, 2]))), style)
    closest = min(apart.values(), default=None)
    words = Text(no_wrap=True, style=QUIET) if closest is None else Text(f"closest {closest:.1f} NM", no_wrap=True)
    if closest is None:
        words.append(f"{int(flying.sum())} flying")
    elif closest < CLOSE_NM:
        words.stylize("bold red")
    return [*sheet.lines(), words]
