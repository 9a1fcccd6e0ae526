"""Dr. Mario: the game frame by frame, its planner, and batches of games to learn from."""

from pathlib import Path

from slipstream.worlds.drmario.best_times import keep_records, records
from slipstream.worlds.drmario.endings import outcomes
from slipstream.worlds.drmario.engine import Engine, Frame, Terminal, Versus, generate, seed_at
from slipstream.worlds.drmario.face import make, unseen
from slipstream.worlds.drmario.generators import GENERATORS
from slipstream.worlds.drmario.letters import characters, tile
from slipstream.worlds.drmario.planning import PlacementPlan, plan
from slipstream.worlds.drmario.render import make_renderer, picture
from slipstream.worlds.drmario.shifts import shifts
from slipstream.worlds.drmario.time_floors import time_goals, with_time_goals

PROPORTIONS = ("success", "clean", "top_out", "timeout")
HEADLINE = ("success", "clear_frames", "pills", "virus_share", "top_out")
SCENE = Path(__file__).with_name("scene.js")
SHIFT_FIGURES = ("success", "top_out", "virus_share", "pills")
SURVIVAL = ("virus_share", None)
BESIDE = ("greedy", "fastest")

__all__ = [
    "BESIDE",
    "GENERATORS",
    "HEADLINE",
    "PROPORTIONS",
    "SCENE",
    "SHIFT_FIGURES",
    "SURVIVAL",
    "Engine",
    "Frame",
    "PlacementPlan",
    "Terminal",
    "Versus",
    "characters",
    "generate",
    "keep_records",
    "make",
    "make_renderer",
    "outcomes",
    "picture",
    "plan",
    "records",
    "seed_at",
    "shifts",
    "tile",
    "time_goals",
    "unseen",
    "with_time_goals",
]
