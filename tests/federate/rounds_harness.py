"""A federation of three in a folder, and the functions of studies/federation_faults.py, for the tests of rounds."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
