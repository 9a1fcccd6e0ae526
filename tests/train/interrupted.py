"""Run in a process of its own: `interrupted.py train FOLDER` starts every case and is interrupted, `resume` goes on.

The signal comes after a fixed number of updates, so that the test says where a run is cut.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from learning import TINY, recast, scenario_of

from slipstream.config.scenario import Scenario
from slipstream.train.experiment import Result, resume, train
from slipstream.train.progress import Quiet

ODD = {
    **TINY,
    "timesteps": 8 * 4 * 5,
    "collect.rollout_length": 5,  # three updates end in the middle of an episode
    "algo.minibatch_size": 10,
    "algo.learning_rate": [[0, 1e-2], [1, 1e-3]],
    "algo.entropy_coef": [[0, 0.01], [1, 0]],
    "algo.kl_coef": 0.2,
    "algo.kl_target": 0.01,
    "algo.value_clip": 0.5,
}


class StopAfter(Quiet):
    """Sends this process a Ctrl+C after so many updates."""

    def __init__(self, updates: int) -> None:
        self.left = updates

    def advance(self, done: int, text: str) -> None:
        """One update is over."""
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def cases() -> dict[str, Scenario]:
    """Every probe, head_on, and the options that carry state of their own."""
    plain = {f"probe_{task}": {} for task in ("alternating", "bandit", "constant", "corridor", "delayed")}
    plain |= {f"probe_{task}": {} for task in ("duration", "leaver", "target")}
    found = {name: scenario_of(name, {**ODD, **changes}) for name, changes in plain.items()}
    found["probe_coordination"] = scenario_of("probe_coordination", {**ODD, "algo.centralised_critic": True})
    found["head_on"] = scenario_of("head_on", {**ODD, "algo.shared_torso": True, "world.max_episode_steps": 12})
    three = {"a": {"kind": "learning"}, "b": {"kind": "learning"}, "c": {"kind": "scripted", "script": "best"}}
    several = recast(scenario_of("probe_leaver", ODD), three, {"stays_0": "a", "stays_1": "c", "leaves": "b"})
    found["several"] = several
    return found


def threaded(scenario: Scenario) -> Scenario:
    """The same run on more threads, which may not change a bit."""
    from slipstream.config.load import override

    return override(scenario, {"learner_threads": 2, "collect.world_threads": 2, "algo.gradient_shards": 3})


def begin(folder: Path, name: str, scenario: Scenario, updates: int) -> Result:
    """Train into folder/name and be interrupted."""
    return train(scenario, out=folder / name, models=folder / "models", display=StopAfter(updates))


def main(verb: str, folder: Path) -> None:
    """Either half."""
    for name, scenario in cases().items():
        if verb == "train":
            result = begin(folder, name, scenario, 3)
            assert (result.reason, result.model) == ("Ctrl+C", None), result
        else:
            result = resume(folder / name, models=folder / "models", display=StopAfter(2))
            assert (result.reason, result.counters.updates) == ("Ctrl+C", 5), result
            result = resume(folder / name, models=folder / "models")
            assert result.model is not None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
