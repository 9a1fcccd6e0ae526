"""Training under a person's hand: `slipstream train … --ui debug`."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.watch import need_textual
from slipstream.config.errors import ScenarioError, SlipstreamError
from slipstream.config.load import override

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario
    from slipstream.view.tui.debug import DebugApp
    from slipstream.view.tui.stage import Stage

ALONE_S = 0.3  # how long one world is timed


def debug(scenario: Scenario, *, runs: Path, models: Path, out: Path | None) -> int:
    """Hold, step and look into the loop; every number of worlds is a run of its own, which is saved when left."""
    need_textual()
    app = make_app(scenario, runs=runs, models=models, out=out)
    app.run()
    loop = app.loop
    if loop is None:
        return 0
    loop.join()
    if loop.error is not None:
        raise loop.error
    print("\n".join([loop.stage.title, *loop.stage.notes]))
    return 0


def make_app(scenario: Scenario, *, runs: Path, models: Path, out: Path | None) -> DebugApp:
    """The view and its loop, with the scenario's own number of worlds at first."""
    from slipstream.view.tui.debug import DebugApp

    if scenario.is_offline:
        raise ScenarioError("--ui debug: this scenario learns from a dataset and steps no worlds to look into")
    scenario = override(scenario, {"collect.workers": 0, "collect.overlap": "none"})
    folders = (out if number == 1 else out and out.with_name(f"{out.name}-{number}") for number in count(1))

    def work(stage: Stage, num_worlds: int) -> str:
        from slipstream.train.experiment import train

        asked = with_worlds(scenario, num_worlds)
        return train(asked, root=runs, models=models, out=next(folders), display=stage, overseer=stage).reason

    def fits(num_worlds: int) -> str | None:
        try:
            with_worlds(scenario, num_worlds)
        except SlipstreamError as error:
            return str(error)
        return None

    return DebugApp(work, scenario.collect.num_worlds, scenario.world.kind, lambda: alone(scenario), fits)


def with_worlds(scenario: Scenario, num_worlds: int) -> Scenario:
    """The scenario with another number of worlds and rollouts of the same size, so that minibatches still fit."""
    steps = scenario.rollout_steps
    if num_worlds == scenario.collect.num_worlds:
        return scenario
    if steps % num_worlds:
        raise ScenarioError(f"{num_worlds} worlds do not divide the rollout of {steps} steps")
    return override(scenario, {"collect.num_worlds": num_worlds, "collect.rollout_length": steps // num_worlds})


def alone(scenario: Scenario) -> float:
    """Steps per second of one world alone, collected as training collects."""
    from slipstream.collect.serial import Collector
    from slipstream.train.setup import gammas, make_cast, make_training_worlds, resolve

    one = resolve(with_worlds(scenario, 1))
    worlds = make_training_worlds(one)
    cast = make_cast(one, worlds.spec)
    collector = Collector(worlds, cast.teams, 16, one.seed, gammas(one), cast.shaping)
    collector.collect(0)  # the first touch is slower
    taken, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < ALONE_S:
        collector.collect(0)
        taken += 16
    worlds.close()
    return taken / seconds
