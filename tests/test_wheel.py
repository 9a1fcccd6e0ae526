"""The wheel, in an environment that has what it declares and nothing else: it trains, and names the extra that lacks.

Here the environment is made of links to what is installed beside the tests: the declared dependencies, and what those
declare in turn. `make test-wheel` lets pip make one from nothing, and names its Python in SLIPSTREAM_WHEEL_PYTHON.
"""

import json
import os
import pty
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import slipstream._core

ROOT = Path(__file__).parents[1]
BUILD = """
import sys
from scikit_build_core.build import build_wheel
print(build_wheel(sys.argv[1], {"wheel.cmake": "false", "wheel.py-api": "py3"}))
"""
COMMAND = """
import sys
from importlib.metadata import entry_points
(found,) = entry_points(group="console_scripts", name="slipstream")
sys.exit(found.load()())
"""
TINY = ["--timesteps", "512", "--collect.num-worlds", "8", "--collect.rollout-length", "64", "--learner-threads", "1"]


def needed(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """Add a distribution and whatever it needs, with these of its extras."""
    own = found.setdefault(name, distribution(name))
    for text in own.requires or []:
        need = Requirement(text)
        asked = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if asked and need.name not in found:
            needed(need.name, frozenset(need.extras), found)


def link(own: Distribution, packages: Path) -> None:
    """Let the files of a distribution be found there."""
    tops = {file.parts[0] for file in own.files or []} - {"..", "__pycache__"}
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(own.locate_file(top))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the wheel and what it declares."""
    if made := os.environ.get("SLIPSTREAM_WHEEL_PYTHON"):
        return made
    folder = tmp_path_factory.mktemp("clean")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    venv.create(folder / "env", with_pip=False)
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(folder / done.stdout.split()[-1]) as wheel:
        wheel.extractall(packages)
        (meta,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    core = Path(slipstream._core.__file__)
    (packages / "slipstream" / core.name).symlink_to(core)
    found: dict[str, Distribution] = {}
    for text in Distribution.at(packages / Path(meta).parent).requires or []:
        if (need := Requirement(text)).marker is None or need.marker.evaluate({"extra": ""}):
            needed(need.name, frozenset(need.extras), found)
    for own in found.values():
        link(own, packages)
    return str(folder / "env" / "bin" / "python")


def run(python: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([python, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=200)


@pytest.fixture(scope="module")
def trained(clean: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that the installed command has trained."""
    folder = tmp_path_factory.mktemp("trained")
    done = run(clean, "-c", COMMAND, "train", "head_on", *TINY, "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_environment_has_the_wheel_and_none_of_its_extras(clean, tmp_path):
    names = ("textual", "psutil", "starlette", "optuna", "pyarrow", "pytest")
    code = "import slipstream; from importlib.util import find_spec; print(slipstream.__file__);"
    code += f"print([name for name in {names} if find_spec(name)])"
    file, found = run(clean, "-c", code, cwd=tmp_path).stdout.split("\n")[:2]
    assert Path(file).is_relative_to(Path(clean).parents[1])
    assert found == "[]"


def test_the_installed_command_trains_judges_and_goes_on(clean, trained):
    done = run(clean, "-c", COMMAND, "eval", "run", "--episodes", "4", "--json", "--png", "tracks.png", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["policy"] == "learned"
    assert (trained / "tracks.png").stat().st_size
    done = run(clean, "-c", COMMAND, "resume", "run", "--timesteps", "1024", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert "1,024 steps" in done.stdout


def test_watch_names_its_extra_on_a_terminal_and_prints_lines_elsewhere(clean, trained):
    done = run(clean, "-c", COMMAND, "watch", "run", cwd=trained)
    assert (done.returncode, done.stderr) == (0, "")
    control, terminal = pty.openpty()
    words = [clean, "-c", COMMAND, "watch", "run"]
    env = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(words, cwd=trained, env=env, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        said = b""
        while b"\n" not in said:
            said += os.read(control, 1000)
        os.close(control)
    assert process.returncode == 2
    assert b"pip install 'slipstream[tui]'" in said


# In one process: each would need a second to begin.
VERBS = """
import contextlib, io, json, sys
from slipstream.cli.main import main
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    print(json.dumps([code, said.getvalue()]))
"""
LACKING = {
    "web": ["view", "."],
    "tb": ["log", "run", "--tensorboard"],
    "wandb": ["log", "run", "--wandb"],
    "export": ["export", "run", "--onnx", "policy.onnx"],
    "sweep": ["sweep", "tpe.yaml", "--root", "sweep"],
    "ray": ["train", "head_on", "--on", "ray"],
    "data": ["eval", "run", "--episodes", "1", "--trajectories", "tracks"],
    "minari": ["dataset", "import", "minari:D4RL/x-v0", "--scenario", "head_on", "-o", "data"],
    "mpe": ["train", "simple_spread"],
    "mujoco": ["train", "half_cheetah"],
    "box2d": ["train", "lunar_lander"],
    "privacy": [
        "federate",
        "probe_target",
        "--repeat",
        "3",
        "--federated.secure",
        "True",
        "--timesteps",
        "256",
        "--root",
        "fed",
    ],
}
TPE = """scenario: probe_delayed
parameters: {algo.learning_rate: {kind: choice, values: [0.001, 0.01]}}
method: {kind: tpe, trials: 2}
metric: {name: env/return_mean, mode: max}
"""


def test_what_an_extra_is_for_is_answered_by_its_name_where_it_lacks(clean, trained):
    (trained / "tpe.yaml").write_text(TPE)
    (trained / "wandb").mkdir()  # as W&B leaves it behind: no package, though Python would import it
    done = run(clean, "-c", VERBS, json.dumps(list(LACKING.values())), cwd=trained)
    assert done.returncode == 0, done.stderr
    answers = dict(zip(LACKING, map(json.loads, done.stdout.splitlines()), strict=True))
    assert {extra: (code, said) for extra, (code, said) in answers.items() if code == 0} == {}
    lost = {extra: said for extra, (_, said) in answers.items() if f"slipstream[{extra}]" not in said}
    assert lost == {}
    assert not [said for _, said in answers.values() if "Traceback" in said]


def test_modules_for_other_programs_name_their_extra_when_they_are_imported(clean, tmp_path):
    for extra in ("rllib", "tune"):
        done = run(clean, "-c", f"import slipstream.scale.{extra}", cwd=tmp_path)
        assert done.stderr.splitlines()[-1].startswith("ImportError")
        assert f"slipstream[{extra}]" in done.stderr.splitlines()[-1]
