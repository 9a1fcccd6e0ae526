"""The debugger's panels where roles differ."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from slipstream.debug import panels
from slipstream.worlds.foreign.config import PettingZooConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions


def shown(game: str, agents: list[int]) -> str:
    env = make_worlds(PettingZooConfig(env=f"games:{game}"), 1, EnvOptions())
    env.reset()
    focus = SimpleNamespace(
        obs={name: block[0] for name, block in env.obs.items()}, actions=env.actions[0], acting=np.ones(2)
    )
    console = Console(width=200, file=io.StringIO())
    console.print(panels.observation(env.spec, SimpleNamespace(focus=focus), agents))
    return console.file.getvalue()


@pytest.mark.parametrize("game", ["Signals", "Mixed"])
def test_a_panel_lists_the_features_that_its_agents_see(game):
    both, speaker = shown(game, [0, 1]), shown(game, [0])
    assert "said_0" in both
    assert "obs_2" in both
    assert "said_0" not in speaker
    assert "→" in speaker
