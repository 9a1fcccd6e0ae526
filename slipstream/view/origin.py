"""Which federation or sweep a run belongs to, if any, and how it is named among others.

Clients of one federation share weights, and trials of one sweep differ in settings: neither are seeds of one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from slipstream.view.run import About, cached_by_file

REPLICAS_FILE, ROUNDS, RUNS = (
    "replicas.json",
    "rounds",
    "runs",
)  # in a federation's folder, by run/federated/replicas.py
TRIALS_FILE, TRIALS = "trials.json", "trials"  # in a sweep's, by scale/sweep.py
MOST_TRIALS_BYTES = 64 * 2**20


@dataclass(frozen=True)
class FederatedRuns:
    """Runs that exchange weights."""

    name: str
    rounds: str  # folder of its rounds; unlike the name, unique
    client: str  # the run's name in it


@dataclass(frozen=True)
class SweepTrial:
    """A combination of values that a sweep tries."""

    sweep: str  # its name
    folder: str
    number: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Origin:
    """What a run is part of; both are None for a run on its own."""

    federation: FederatedRuns | None
    trial: SweepTrial | None  # a trial may be a federation


def origin_of(what: About) -> Origin:
    """What a run is part of."""
    shared = what.config.get("federated")
    path = what.path.resolve()
    federation = _federation_of(path, shared) if isinstance(shared, Mapping) and shared.get("enabled") else None
    return Origin(federation, _trial_of(path))


def name_of_run(what: About, origin: Origin) -> str:
    """A run's name in lists: that of its federation or trial, then its folder's."""
    if origin.federation is not None:
        return f"{origin.federation.name}, {what.path.name}"
    return what.path.name if origin.trial is None else _in_trial(origin.trial, what.path.resolve())


def client_name(client: object) -> str:
    """A client's name; one that is only a number gets a word before it."""
    return f"client {client}" if str(client).isdecimal() else str(client)


def tried(values: Mapping[str, Any]) -> str:
    """Values of a trial as text."""
    return ", ".join(f"{key}={value if isinstance(value, str) else _short(value)}" for key, value in values.items())


def rounds_of(history: Path) -> str:
    """The folder of a federation's rounds, from the history file of one policy."""
    return str(history.parent.parent.resolve())


def name_of_federation(folder: Path) -> str:
    """A federation's name: that of its trial if a sweep runs it, otherwise its folder's."""
    folder = folder.resolve()
    trial = _trial_of(folder)
    return folder.name if trial is None else _in_trial(trial, folder)


def federation_name(history: Path) -> str:
    """A federation's name with the policy that a history file is about."""
    folder = history.parent
    inside = folder.parent.name == ROUNDS
    return f"{name_of_federation(folder.parent.parent)}, {folder.name}" if inside else folder.name


# --- reading folders ---


def _federation_of(path: Path, shared: Mapping[str, Any]) -> FederatedRuns:
    client = str(shared.get("client") or path.name)
    above = path.parent.parent
    has_rounds = (above / REPLICAS_FILE).is_file() or (above / ROUNDS).is_dir()
    if path.parent.name == RUNS and has_rounds:  # the folder may have been moved since
        return FederatedRuns(name_of_federation(above), str(above / ROUNDS), client)
    root = Path(str(shared.get("root") or "")).resolve()
    where = root.parent if root.name == ROUNDS else root
    return FederatedRuns(str(shared.get("address") or where.name or "a federation"), str(root), client)


def _in_trial(trial: SweepTrial, path: Path) -> str:
    inside = path.relative_to(Path(trial.folder) / TRIALS).parts[1:]
    return ", ".join([trial.sweep, f"trial {trial.number}", *(part.replace("_", " ") for part in inside)])


def _trial_of(path: Path) -> SweepTrial | None:
    """The trial a run belongs to: runs are in SWEEP/trials/NUMBER, those of federations further down."""
    for folder in path.parents[:5]:
        sweep = folder.parent.parent
        if folder.parent.name == TRIALS and folder.name.isdecimal() and (sweep / TRIALS_FILE).is_file():
            number = int(folder.name)
            return SweepTrial(sweep.name, str(sweep), number, _values(sweep / TRIALS_FILE).get(number, {}))
    return None


@cached_by_file(most=32)
def _values(path: Path) -> Mapping[int, Mapping[str, Any]]:
    """The newest values of every trial, by its number; nothing if the file cannot be read."""
    found: dict[int, Mapping[str, Any]] = {}
    try:
        state = msgspec.json.decode(path.read_bytes()) if path.stat().st_size <= MOST_TRIALS_BYTES else {}
        for trial in state["trials"]:
            newest = trial["changes"][-1] if trial.get("changes") else trial
            found[int(trial["number"])] = dict(newest["values"])
    except (OSError, msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError):
        return {}  # a sweep that is being written, or that another version wrote
    return found


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else msgspec.json.encode(value).decode()
