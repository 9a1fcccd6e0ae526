"""Studies are scripts beside the package: their modules are found there."""

import sys
from pathlib import Path

# Behind everything else: studies/learning.py must not stand in for tests/learning.py.
sys.path.append(str(Path(__file__).parents[2] / "studies"))
