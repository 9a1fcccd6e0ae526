"""Who may import whom (docs/architecture.md), and that help is quick because it loads no torch."""

import ast
from pathlib import Path

import pytest
from learning import python

import slipstream
from slipstream.worlds.world import BUILT_IN

PACKAGE = Path(__file__).parents[1] / "slipstream"

# What every part may import.
OPEN = {"errors", "types", "own_code"}

# Part of the package -> the parts it may import. `_core` is the native extension, open to those who work on arrays.
MAY_IMPORT = {
    "errors": set(),
    "types": set(),
    "own_code": set(),
    "action_space": set(),
    "spec": {"action_space"},
    "config": {"worlds.world"},
    "stats": set(),
    "draw": {"stats"},
    "worlds": {"spec", "action_space", "config", "draw", "runtime.platform", "_core"},
    "nets": {"spec", "config", "_core"},
    "runtime": set(),
    "data": {"spec", "config", "replay.buffer", "runtime.platform", "_core"},
    "replay": {"spec", "config", "runtime", "data", "_core"},
    "algos": {"spec", "config", "nets", "data", "replay.buffer", "_core"},
    "collect": {"spec", "config.records", "worlds", "runtime", "data", "_core"},
    "federate": {"config.aggregators", "config.federated", "config.records", "runtime", "data", "_core"},
    "run": {
        "spec",
        "action_space",
        "config",
        "stats",
        "worlds",
        "nets",
        "runtime",
        "data",
        "replay",
        "algos",
        "collect",
        "federate",
        "_core",
    },
    "judging": {"spec", "config", "stats", "draw", "worlds", "nets", "data", "algos", "collect", "run"},
    "scale": {
        "spec",
        "config",
        "stats",
        "draw",
        "worlds",
        "runtime",
        "data",
        "replay",
        "collect",
        "run",
        "federate",
    },
    "view": {
        "config.records",
        "stats",
        "draw",
        "worlds",
        "runtime.place",
        "runtime.process",
        "runtime.platform",
        "data.disk",
        "data.run_folder",
    },
    "debug": {"spec", "worlds", "collect.teams", "runtime.signals", "view.tui"},
    "cli": {
        "spec",
        "config",
        "stats",
        "draw",
        "worlds",
        "nets",
        "runtime",
        "data",
        "replay",
        "algos",
        "collect",
        "run",
        "federate",
        "scale",
        "judging",
        "view",
        "debug",
        "__init__",
    },
}


def imports(path: Path) -> set[str]:
    """Dotted names under slipstream that a file imports, those inside functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "slipstream"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the arrows"
            module = node.module or ""
            if module == "slipstream":
                found |= {f"slipstream.{alias.name}" for alias in node.names}
            elif module.startswith("slipstream."):
                found.add(module)
    return {name.removeprefix("slipstream.") for name in found if name != "slipstream"}


def may_import(path: Path) -> set[str]:
    """What a file may import: a world's kinds of networks are built with `nets`, and loaded when one is asked for."""
    of_networks = part_of(path) == "worlds" and "networks" in path.relative_to(PACKAGE).parts
    return OPEN | MAY_IMPORT[part_of(path)] | ({"nets"} if of_networks else set())


def part_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if parts[0] == "worlds" and "cli" in parts:  # a world's own verbs may use what other verbs use
        return "cli"
    return parts[0].removesuffix(".py")


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if part_of(path) not in ("__init__", "__main__")]


def test_every_part_of_the_package_has_its_arrows():
    assert {part_of(path) for path in FILES} == set(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_follow_the_arrows(part):
    wrong = []
    for path in FILES:
        if part_of(path) != part:
            continue
        for name in imports(path):
            own = name.split(".")[0] == part or name in ("__version__",)
            allowed = any(name == ok or name.startswith(ok + ".") for ok in may_import(path))
            if not own and not allowed:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


WORLDS = [path.name for path in sorted((PACKAGE / "worlds").iterdir()) if (path / "config.py").exists()]


def test_every_world_has_a_room_of_its_own():
    rooms = {place.split(":")[0] for place in BUILT_IN.values()}
    assert rooms == {f"slipstream.worlds.{name}" for name in WORLDS}


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_outside_its_package_names_a_world(world):
    """A world is found by its entry point; everything else works with any."""
    wrong = []
    for path in FILES:
        if path.is_relative_to(PACKAGE / "worlds" / world):
            continue
        names = [name for name in imports(path) if f"{name}.".startswith(f"worlds.{world}.")]
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in names]
    assert not wrong


HEAVY = """
import sys
from slipstream.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code or 0
loaded = [name for name in ("torch", "scipy", "gymnasium", "pettingzoo", "matplotlib") if name in sys.modules]
print("loaded:", loaded, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", [["--help"], ["train", "head_on", "--help"], ["scenarios"], ["train", "head_no"]])
def test_help_and_mistakes_are_quick_because_they_load_nothing_heavy(words, tmp_path):
    done = python("-c", HEAVY, *words, cwd=tmp_path)
    assert done.returncode == (2 if "head_no" in words else 0), done.stderr
    assert "loaded: []" in done.stderr


def test_importing_the_package_loads_nothing_heavy(tmp_path):
    done = python(
        "-c", "import sys, slipstream; print([m for m in ('torch', 'numpy') if m in sys.modules])", cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"


def test_no_public_function_hides_a_part_of_the_package():
    assert not set(slipstream.__all__) & {part_of(path) for path in FILES}
