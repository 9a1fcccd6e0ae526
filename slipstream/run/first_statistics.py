"""Statistics of observations before the first update: from steps at random, in worlds that nobody learns from.

Without them the first rollout is acted and learned from as it is, and the inputs jump when its statistics are taken in.
"""

from __future__ import annotations

import torch

from slipstream.collect.teams import Seat
from slipstream.config.scenario import Scenario
from slipstream.nets.actor import tensors
from slipstream.run.setup import Cast
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.speed import random_writer
from slipstream.worlds.vec_env import EnvOptions


def observe_at_random(scenario: Scenario, cast: Cast) -> None:
    """Let `collect.seed_statistics` steps go into the statistics of every policy that keeps some."""
    collect = scenario.collect
    kept = [(team, actor) for team in cast.teams if team.learns and (actor := cast.learners[team.policy].actor).norm]
    if not collect.seed_statistics or not kept:
        return
    options = EnvOptions(seed=scenario.seed, evaluation=True)
    worlds = make_worlds(scenario.training_world, collect.num_worlds, options)
    try:
        worlds.reset()
        seats = [(Seat(team, worlds, scenario.seed), actor) for team, actor in kept]
        choose = random_writer(worlds, scenario.seed)
        for step in range(-(-collect.seed_statistics // collect.num_worlds)):
            choose(step)
            worlds.step()
            for seat, actor in seats:
                obs = {name: block.reshape(-1, *block.shape[2:]) for name, block in seat.look().items()}
                actor.observe(tensors(obs, torch.device(scenario.device)))
    finally:
        worlds.close()
