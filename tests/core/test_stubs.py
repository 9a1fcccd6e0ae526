"""The checked-in type stubs of the native module are those its present code generates (`make stubs`)."""

import subprocess
import sys
from pathlib import Path

CHECKED_IN = Path(__file__).resolve().parents[2] / "slipstream" / "_core.pyi"


def test_checked_in_stubs_are_what_the_module_generates(tmp_path: Path):
    fresh = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "slipstream._core", "-o", str(fresh)]
    subprocess.run(command, check=True)
    assert fresh.read_text() == CHECKED_IN.read_text(), "run `make stubs` and commit slipstream/_core.pyi"
