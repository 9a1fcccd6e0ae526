"""A federation of three in a folder, and the functions of studies/federation_faults.py, for the tests of rounds."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from slipstream.federate.rounds import RoundOutcome
from slipstream.federate.update import ClientUpdate

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # these tests wait for the disk hundreds of times

_spec = importlib.util.spec_from_file_location(
    "federation_faults", Path(__file__).parents[2] / "studies" / "federation_faults.py"
)
assert _spec is not None
assert _spec.loader is not None
faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


def poisoned(client: str, number: int, base: str) -> ClientUpdate:
    """An update of the right layout that is not finite: its client is excluded for it."""
    update = faults.update_of(client, number, base)
    return replace(update, arrays={**update.arrays, "net.weight": np.full((16, 8), np.nan, np.float32)})


def with_c_excluded(exchange: Callable[[ClientUpdate], RoundOutcome]) -> dict[str, RoundOutcome]:
    """Three rounds of a, b and c, who all exchange at once; what the third says, from which c is excluded."""
    outcomes = faults.all_exchange(lambda client: exchange(faults.update_of(client, 1)), "abc")
    for number in (2, 3):
        base = outcomes["a"].model.base
        updates = {client: faults.update_of(client, number, base) for client in "abc"}
        if number == 2:
            updates["c"] = poisoned("c", number, base)
        outcomes = faults.all_exchange(lambda client, updates=updates: exchange(updates[client]), "abc")
    return outcomes
