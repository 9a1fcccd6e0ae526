"""What every test shares: one torch thread, no stray environment, and the golden data where it is given."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

# Studies are scripts beside the package, and tests run parts of them. Behind everything else: studies/learning.py must
# not stand in for tests/learning.py.
sys.path.append(str(Path(__file__).parents[1] / "studies"))

# A suite that was started in the background, or by nohup, ignores these, and so would every command it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

torch.set_num_threads(1)  # two pytest workers share two cores, and the bits depend on it


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden data, named by SLIPSTREAM_GOLDEN."""
    folder = os.environ.get("SLIPSTREAM_GOLDEN")
    if not folder:
        pytest.skip("SLIPSTREAM_GOLDEN does not name the folder of golden data")
    return Path(folder)
