"""What Dr. Mario offers."""

from pathlib import Path

from slipstream.worlds.drmario.best_times import keep_records, records
from slipstream.worlds.drmario.build import build, unseen
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.drmario.drawing import make_renderer, picture
from slipstream.worlds.drmario.endings import outcomes
from slipstream.worlds.drmario.generators import GENERATORS
from slipstream.worlds.drmario.shifts import shifts
from slipstream.worlds.drmario.terminal import characters, tile
from slipstream.worlds.drmario.time_floors import time_goals, with_time_goals
from slipstream.worlds.tools import Drawings, RecordKeeping, TimeRules, WorldTools

TOOLS = WorldTools[DrMarioConfig](
    build,
    headline=("success", "clear_frames", "pills", "virus_share", "top_out"),
    proportions=("success", "clean", "top_out", "timeout"),
    survival=("virus_share", None),
    shift_figures=("success", "top_out", "virus_share", "pills"),
    outcomes=outcomes,
    records=RecordKeeping(keep_records, records),
    compared_scripts=("greedy", "fastest"),
    shifts=shifts,
    unseen=unseen,
    time_rules=TimeRules(time_goals, with_time_goals),
    drawings=Drawings(
        picture=picture,
        renderer=make_renderer,
        scene=Path(__file__).with_name("scene.js"),
        characters=characters,
        tile=tile,
    ),
    generators=GENERATORS,
)
