"""Training under a person's hand: `slipstream train … --ui debug`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.watch import need_textual
from slipstream.config.load import override
from slipstream.errors import ScenarioError, SlipstreamError

if TYPE_CHECKING:
    from slipstream.collect.teams import Team
    from slipstream.config.scenario import Scenario
    from slipstream.debug.app import DebugApp
    from slipstream.debug.control import LoopControl, OneWorld, Timed

ALONE_STEPS = 5  # that one world alone takes at a time; from one to the next is timed


def debug(scenario: Scenario, *, runs: Path, models: Path, out: Path | None) -> int:
    """Hold, step and look into the loop; every number of worlds is a run of its own, which is saved when left."""
    need_textual()
    app = make_app(scenario, runs=runs, models=models, out=out)
    app.run()
    loop = app.loop
    loop.join()
    if loop.error is not None:
        raise loop.error
    print("\n".join([loop.control.title, *loop.control.notes]))
    return 0


def make_app(scenario: Scenario, *, runs: Path, models: Path, out: Path | None) -> DebugApp:
    """The view and its loop, with the scenario's own number of worlds at first."""
    from slipstream.debug.app import DebugApp

    if scenario.is_offline:
        raise ScenarioError(
            f"--ui debug: {scenario.name} learns from a dataset, or what others add, and steps no worlds to look into"
        )
    scenario = override(scenario, {"collect.workers": 0, "collect.overlap": "none"})
    folders = (out if number == 1 else out and out.with_name(f"{out.name}-{number}") for number in count(1))

    def work(control: LoopControl, num_worlds: int) -> str:
        from slipstream.run.session import train

        asked = with_worlds(scenario, num_worlds)
        return train(asked, root=runs, models=models, out=next(folders), display=control, debugger=control).reason

    def fits(num_worlds: int) -> str | None:
        try:
            with_worlds(scenario, num_worlds)
        except SlipstreamError as error:
            return str(error)
        return None

    def one_world(teams: Sequence[Team]) -> OneWorld:
        return SingleWorld(scenario, teams)

    return DebugApp(work, scenario.collect.num_worlds, scenario.world.kind, one_world, fits)


def with_worlds(scenario: Scenario, num_worlds: int) -> Scenario:
    """The scenario with another number of worlds and rollouts of the same size, so that minibatches still fit."""
    steps = scenario.rollout_steps
    if num_worlds == scenario.collect.num_worlds:
        return scenario
    if steps % num_worlds:
        raise ScenarioError(f"{num_worlds} worlds do not divide the rollout of {steps} steps")
    return override(scenario, {"collect.num_worlds": num_worlds, "collect.rollout_length": steps // num_worlds})


class SingleWorld:
    """One world, collected in as training collects, with the players that train; satisfies OneWorld."""

    def __init__(self, scenario: Scenario, teams: Sequence[Team]) -> None:
        from slipstream.collect.serial import Collector
        from slipstream.run.setup import gammas, make_shaping, make_training_worlds, resolve

        one = resolve(with_worlds(scenario, 1))
        self._worlds = make_training_worlds(one, reward_parts=True)
        shaping = make_shaping(one, self._worlds.spec)
        self._collector = Collector(self._worlds, teams, ALONE_STEPS, one.seed, gammas(one), shaping)

    def take(self, phase: int) -> Sequence[Timed]:
        """A few steps, timed where the loop times its own: from before agents act to before they act again."""
        from slipstream.debug.control import Timed

        self._worlds.phases = [phase]
        steps: list[Timed] = []
        began = 0.0

        def tell(doing: str) -> None:
            nonlocal began
            if doing == "acting":
                now = time.perf_counter()
                if began:
                    steps.append(Timed(now - began, int(self._worlds.ticks.sum())))
                began = now

        self._collector.collect(0, on_tick=tell)
        return steps

    def close(self) -> None:
        """Give the world up."""
        self._worlds.close()
