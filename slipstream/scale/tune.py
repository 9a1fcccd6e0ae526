"""Our runs in Ray Tune, for who has its schedulers already: `Tuner(trainable("head_on"), …)`.

    values = {"algo.learning_rate": tune.loguniform(1e-4, 1e-2)}
    config = tune.TuneConfig(metric="eval/return_mean", mode="max", scheduler=ASHAScheduler(...), num_samples=8)
    tune.Tuner(trainable("head_on", report_every=40_000), param_space=values, tune_config=config).fit()

A trial's values are the keys of a scenario. Every report has the whole run as its checkpoint, so that schedulers may
stop a trial, go on with it later, or let it go on from another's run with other values (PBT). `slipstream sweep` needs
no Tune and gives the same table every time; Tune decides by who reports first.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

try:
    from ray import tune
except ImportError as error:
    raise ImportError(f"Ray Tune is not installed ({error}); pip install 'slipstream[tune]'") from None

from slipstream.config.load import dump, load, override
from slipstream.config.scenario import Scenario
from slipstream.data.disk import replace_file
from slipstream.data.run_folder import SCENARIO_FILE
from slipstream.errors import ScenarioError
from slipstream.run import session
from slipstream.run.metrics import read_rows

ONE_THREAD = {"learner_threads": 1, "collect.world_threads": 1}  # a trial has one CPU unless Tune is told otherwise


def trainable(
    scenario: str | Path | Scenario, *, report_every: int, changes: Mapping[str, Any] | None = None
) -> Callable[[dict[str, Any]], None]:
    """A function that Tune's trials run.

    Args:
        scenario: The name or file of a scenario, or one that was loaded.
        report_every: Environment steps between two reports, each with the newest figure of every metric.
        changes: Values for all trials, beside those that Tune chooses.
    """
    given = scenario if isinstance(scenario, Scenario) else load(scenario)
    base = override(given, {**ONE_THREAD, **(changes or {})})
    if base.federated.has_others:
        raise ScenarioError(
            f"federated.clients {base.federated.clients}: a trial of Tune is one run, and would wait for clients that "
            "nobody starts; use slipstream sweep, or set federated.enabled false"
        )

    def run(values: dict[str, Any]) -> None:
        folder = Path(tune.get_context().get_trial_dir()) / "run"
        models = folder.with_name("models")
        steps = _take_over(folder, values)
        while True:
            if steps:
                result = session.resume(folder, models=models, pause_at=steps + report_every)
            else:
                result = session.train(override(base, values), out=folder, models=models, pause_at=report_every)
            steps = result.counters.steps
            known: dict[str, Any] = {}
            for row in read_rows(folder / "metrics.jsonl"):
                known |= row
            tune.report(known, checkpoint=tune.Checkpoint.from_directory(str(folder)))
            if not result.interrupted:
                return

    return run


def _take_over(folder: Path, values: Mapping[str, Any]) -> int:
    """Go on from the run that Tune says, with this trial's values; the steps that it has done, 0 if there is none."""
    shutil.rmtree(folder, ignore_errors=True)  # of a trial that was lost before it reported
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as kept:
        shutil.copytree(kept, folder)
    changed = override(load(folder / SCENARIO_FILE, preset="default"), values)
    replace_file(folder / SCENARIO_FILE, dump(changed).encode())
    return int([*read_rows(folder / "metrics.jsonl")][-1]["timesteps_total"])
