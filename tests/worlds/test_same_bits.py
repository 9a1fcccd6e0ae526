"""World k lives through the same bits whatever the batch width, the threads or the worker that ran it."""

import numpy as np
import pytest
from native import maker, native_worlds

from slipstream.worlds.repeat import SEED, play
from slipstream.worlds.vec_env import EnvOptions

WORLDS = native_worlds()  # test_check.py proves the same for all of them with fewer worlds
LARGE = [name for name in WORLDS if name.startswith("probe_")] + ["head_on", "horizontal_cr", "random_sector"]
LARGE += ["time_trial_oval", "gaplock_dqn", "drmario_level_0"]
WIDEST = 1024
STEPS = 100  # x 1024 worlds: more than 10^5 steps in the widest batch alone


@pytest.mark.parametrize("name", LARGE)
def test_a_worlds_trajectory_does_not_depend_on_width_or_threads(name: str):
    make = maker(WORLDS[name])

    def digests(width: int, threads: int, first_world: int = 0) -> np.ndarray:
        options = EnvOptions(seed=SEED, threads=threads, first_world=first_world)
        return play(make(width, options), STEPS, first_world=first_world)

    truth = digests(WIDEST, threads=1)
    assert np.unique(truth, axis=1).shape[1] > 0.99 * WIDEST, "worlds that hardly differ prove nothing"
    np.testing.assert_array_equal(digests(WIDEST, threads=2), truth)
    for width in (1, 7, 64):
        for threads in (1, 2):
            for first in (0, WIDEST - width):
                rows = slice(first, first + width)
                np.testing.assert_array_equal(
                    digests(width, threads, first),
                    truth[:, rows],
                    f"width {width}, {threads} threads, world {first}",
                )
