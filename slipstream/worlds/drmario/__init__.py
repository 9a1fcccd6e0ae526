"""Dr. Mario: the game frame by frame, its planner, and batches of games to learn from."""

from slipstream.worlds.drmario.best_times import keep_records
from slipstream.worlds.drmario.engine import Engine, Frame, Terminal, Versus, generate, seed_at
from slipstream.worlds.drmario.face import make, unseen
from slipstream.worlds.drmario.planning import Plan, plan
from slipstream.worlds.drmario.render import make_renderer, picture

PROPORTIONS = ("success", "clean", "top_out", "timeout")
HEADLINE = ("success", "clear_frames", "pills", "virus_share", "top_out")

__all__ = [
    "HEADLINE",
    "PROPORTIONS",
    "Engine",
    "Frame",
    "Plan",
    "Terminal",
    "Versus",
    "generate",
    "keep_records",
    "make",
    "make_renderer",
    "picture",
    "plan",
    "seed_at",
    "unseen",
]
