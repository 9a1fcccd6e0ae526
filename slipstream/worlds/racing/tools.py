"""What racing offers."""

from pathlib import Path

from slipstream.worlds.racing.build import build
from slipstream.worlds.racing.config import RacingConfig
from slipstream.worlds.racing.drawing import make_renderer, picture, sketch
from slipstream.worlds.racing.endings import outcomes
from slipstream.worlds.racing.generators import GENERATORS
from slipstream.worlds.racing.shifts import shifts
from slipstream.worlds.racing.terminal import characters
from slipstream.worlds.tools import Drawings, WorldTools

TOOLS = WorldTools[RacingConfig](
    build,
    headline=("success", "lap_s", "progress_m", "crashed", "collided"),
    proportions=(
        *("success", "clean", "crashed", "collided"),
        *("target_finish", "collision", "target_crash", "self_crash", "idle_stop", "timeout"),
    ),
    survival=("progress_m", None),
    shift_figures=("success", "crashed", "lap_s", "progress_m"),
    outcomes=outcomes,
    compared_scripts=("follow_gap", "pure_pursuit"),
    shifts=shifts,
    drawings=Drawings(
        picture=picture,
        renderer=make_renderer,
        sketch=sketch,
        scene=Path(__file__).with_name("scene.js"),
        characters=characters,
    ),
    generators=GENERATORS,
)
