"""Air traffic at one level: the batched world, its geometry for notebooks, and pictures."""

from pathlib import Path

from slipstream.worlds.airspace.draw import draw_tracks, picture
from slipstream.worlds.airspace.endings import outcomes
from slipstream.worlds.airspace.face import make
from slipstream.worlds.airspace.flights import analyse, trajectory_csv
from slipstream.worlds.airspace.generators import GENERATORS
from slipstream.worlds.airspace.geometry import (
    ClosestApproach,
    WellClear,
    closest_approach,
    propagate,
    separation_nm,
    well_clear,
)
from slipstream.worlds.airspace.letters import characters
from slipstream.worlds.airspace.page import episode_page
from slipstream.worlds.airspace.render import make_renderer
from slipstream.worlds.airspace.scenario_json import import_scenario
from slipstream.worlds.airspace.scenes import sketch
from slipstream.worlds.airspace.shifts import shifts

HEADLINE = ("clean", "conflicts", "min_separation_nm", "extra_distance_nm", "reached_fraction")
SCENE = Path(__file__).with_name("scene.js")
SHIFT_FIGURES = ("clean", "lost_separation", "min_separation_nm", "extra_distance_nm")
SURVIVAL = ("min_separation_nm", 5.0)
BESIDE = ("mvp", "noop")
ANALYSIS_BASELINE = "noop"

__all__ = [
    "ANALYSIS_BASELINE",
    "BESIDE",
    "GENERATORS",
    "HEADLINE",
    "SCENE",
    "SHIFT_FIGURES",
    "SURVIVAL",
    "ClosestApproach",
    "WellClear",
    "analyse",
    "characters",
    "closest_approach",
    "draw_tracks",
    "episode_page",
    "import_scenario",
    "make",
    "make_renderer",
    "outcomes",
    "picture",
    "propagate",
    "separation_nm",
    "shifts",
    "sketch",
    "trajectory_csv",
    "well_clear",
]
