"""How fast a scenario collects: its own policies act, and nobody learns; in this process, or with worker processes."""

from __future__ import annotations

import time

from slipstream.algos.protocol import Progress
from slipstream.config.base import dotted
from slipstream.config.load import override
from slipstream.config.scenario import Scenario
from slipstream.errors import ScenarioError
from slipstream.run.setup import complete, make_cast, make_training_worlds, resolve
from slipstream.run.sources import make_source
from slipstream.worlds.speed import Taken

STEPS = 32  # of every world in a slab


class Collecting:
    """Worlds that a scenario's policies act in, ready to be timed; satisfies worlds.speed.Stepper."""

    def __init__(self, scenario: Scenario, worlds: int, workers: int) -> None:
        if scenario.is_offline:
            raise ScenarioError(f"{scenario.name}: it learns offline and steps no worlds, so nothing is collected")
        changes: dict[str, object] = {
            "collect.num_worlds": worlds,
            "collect.workers": workers,
            "collect.rollout_length": STEPS,
            "collect.overlap": "none",
            "collect.world_threads": 1,  # one for each process, so that processes can be compared
            "learner_threads": 1,
        }
        for name, algo in scenario.learning.items():
            if algo.rollout_minibatch is not None:  # whatever the number of worlds, it divides the slab
                changes[dotted((*scenario.algo_path(name), "minibatch_size"))] = STEPS
        asked = resolve(override(scenario, changes))
        self._worlds = make_training_worlds(asked)
        self.agents = self._worlds.spec.num_agents
        asked = complete(asked, self._worlds.spec)
        cast = make_cast(asked, self._worlds.spec)
        source = make_source(asked, self._worlds, cast, lambda event, sentence, /, **fields: None)
        assert source is not None  # there is one for every scenario that is not offline
        self._source = source
        self._steps = asked.rollout_steps
        self._source.begin(0)
        self._slabs = 0
        self.take(0.0)  # workers have begun, memory is touched

    def take(self, seconds: float) -> Taken:
        """Collect slabs for about so long, at least one."""
        slabs = frames = 0
        start, cpu = time.perf_counter(), time.process_time()
        while slabs == 0 or time.perf_counter() - start < seconds:
            if self._slabs:
                self._source.publish(self._slabs)
            frames += self._source.take(Progress(0.0, self._slabs)).ticks
            self._slabs += 1
            slabs += 1
        return Taken(slabs * self._steps, frames, time.perf_counter() - start, time.process_time() - cpu)

    def close(self) -> None:
        """End workers, give worlds up."""
        self._source.close()
        self._worlds.close()
