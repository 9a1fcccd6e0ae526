"""Learning from records: the datasets of the study, made once by a fixed recipe, and who else is judged on them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cells import ROOT
from cloning import Cloned, clone
from learning_cells import dataset_recipe, recorder_scenario
from learning_tasks import DATASETS

from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario
from slipstream.data.dataset_file import merge, read_dataset, save_dataset
from slipstream.run.record import record
from slipstream.run.saved_cast import load_cast, trained_teams
from slipstream.run.session import train
from slipstream.spec import WorldSpec

FOLDER = ROOT / "runs" / "studies" / "learning"


def dataset(name: str) -> Path:
    """Where a dataset lies; made where it is missing, with the policy that recorded it beside it."""
    path = FOLDER / f"{name}_{dataset_recipe(name)}"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as temp:
            _make(name, Path(temp) / "made")
            try:
                os.replace(Path(temp) / "made", path)
            except OSError:
                if not path.exists():  # else another cell has made it meanwhile, and it is the same
                    raise
    return path / "dataset"


def recorder(name: str) -> Path:
    """The model that recorded a dataset, or the learned part of it."""
    (model,) = (dataset(name).parent / "models").iterdir()
    return model


def _make(name: str, path: Path) -> None:
    """Train the recorder, then write down random play, if any is asked for, and the recorder's, exploring."""
    about, scenario = DATASETS[name], recorder_scenario(name)
    path.mkdir()
    model = train(scenario, root=path / "runs", models=path / "models").model
    assert model is not None, "there was no room for the model"
    parts = [record(model, about["learned"], seed=about["seed"])]
    if about["random"]:
        parts.append(record(scenario, about["random"], policy="random", seed=about["seed"] + 1))
    save_dataset(path / "dataset", merge(parts))


def cloned(name: str, seed: int) -> Cloned:
    """Behaviour cloning on a dataset of continuous actions."""
    rows = read_dataset(dataset(name)).rows
    (obs,) = rows.obs.values()
    return clone(obs, rows.action, seed)


def recorder_teams(name: str, scenario: Scenario, spec: WorldSpec) -> list[Team]:
    """The policy that recorded a dataset, as players."""
    return trained_teams(scenario, load_cast(recorder(name))[1], spec)
