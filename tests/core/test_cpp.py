"""Builds the C++ tests with the address and undefined-behaviour sanitizers and runs each of them."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cpp-tests"
NAMES = sorted(path.stem for path in (ROOT / "core" / "tests").glob("test_*.cpp"))


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"


@pytest.fixture(scope="session")
def built() -> Path:
    # The one `make cpp-test` uses, so that both share one build.
    cmake = shutil.which("cmake", path=Path(sys.executable).parent) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not on the path")
    BUILD.mkdir(parents=True, exist_ok=True)
    # Test processes that run at the same time share this folder.
    with (BUILD.parent / "cpp-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(cmake, "-S", ROOT, "-B", BUILD, "-DSLIPSTREAM_TESTS=ON", "-DSLIPSTREAM_SANITIZE=ON")
        run(cmake, "--build", BUILD, "--parallel", "2")
    return BUILD


@pytest.mark.parametrize("name", NAMES)
def test_cpp_checks_pass_under_the_sanitizers(built: Path, name: str):
    run(built / name)
