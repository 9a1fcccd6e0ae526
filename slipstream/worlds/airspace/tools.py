"""What airspace offers."""

from pathlib import Path

from slipstream.worlds.airspace.build import build
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.airspace.drawing import make_renderer, picture, sketch
from slipstream.worlds.airspace.endings import outcomes
from slipstream.worlds.airspace.flights import analyse, trajectory_csv
from slipstream.worlds.airspace.generators import GENERATORS
from slipstream.worlds.airspace.page import episode_page
from slipstream.worlds.airspace.scenario_json import import_scenario
from slipstream.worlds.airspace.shifts import shifts
from slipstream.worlds.airspace.terminal import characters
from slipstream.worlds.tools import Analysis, Drawings, WorldTools

TOOLS = WorldTools[AirspaceConfig](
    build,
    headline=("clean", "conflicts", "min_separation_nm", "extra_distance_nm", "reached_fraction"),
    survival=("min_separation_nm", 5.0),
    shift_figures=("clean", "lost_separation", "min_separation_nm", "extra_distance_nm"),
    outcomes=outcomes,
    analysis=Analysis("noop", analyse),
    trajectory_csv=trajectory_csv,
    compared_scripts=("mvp", "noop"),
    shifts=shifts,
    drawings=Drawings(
        picture=picture,
        renderer=make_renderer,
        sketch=sketch,
        page=episode_page,
        scene=Path(__file__).with_name("scene.js"),
        characters=characters,
    ),
    generators=GENERATORS,
    import_scenario=import_scenario,
)
