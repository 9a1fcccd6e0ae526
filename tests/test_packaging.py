"""What the package imports is what it declares, and constraints.txt pins what is needed and nothing else."""

import ast
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from slipstream.worlds.foreign.make import EXTRAS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "slipstream"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Modules whose name is not that of the distribution they come in; pydantic brings the core that it is made for.
COMES_IN = {"PIL": "pillow", "yaml": "pyyaml", "zmq": "pyzmq", "pydantic_core": "pydantic"}
BY_NAME = {"flwr", "minari", "mpe2"}  # imported by a name that is put together, so no import statement shows them
# No extra of ours installs these: an emulator for ROMs that people must bring; data frames, for who has them.
NOT_OURS = {"stable-retro", "pandas"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    return {canonical(Requirement(text).name) for text in requirements}


DECLARED = names(PROJECT["project"]["dependencies"])
OPTIONAL = {extra: names(needs) for extra, needs in PROJECT["project"]["optional-dependencies"].items()}
FOR_USERS = {extra: needs for extra, needs in OPTIONAL.items() if extra != "dev"}


def imported(tree: ast.AST, *, at_import: bool) -> set[str]:
    """Full names that code imports; `at_import`: only when it is itself imported, not within functions."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif not (at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            found |= imported(node, at_import=at_import)
    return found


def distributions(found: set[str]) -> set[str]:
    roots = {name.split(".")[0] for name in found} - set(sys.stdlib_module_names) - {"slipstream"}
    return {canonical(COMES_IN.get(root, root)) for root in roots}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


TREES = {module_of(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
AT_IMPORT = {name: imported(tree, at_import=True) for name, tree in TREES.items()}
# Where everybody comes by: every verb, the loop, and what is built from names in a table.
ON_A_CLUSTER = {"slipstream.run.processes.remote_workers", "slipstream.runtime.slabs"}  # imported where Ray is
PARTS = ("slipstream.cli", "slipstream.run", "slipstream.worlds")
DOORS = [name for name in TREES if name.startswith(PARTS) and name not in ON_A_CLUSTER]


def reached(doors: list[str]) -> set[str]:
    """Modules that are imported when these are, by statements outside of functions."""
    seen: set[str] = set()
    todo = list(doors)
    while todo:
        if (name := todo.pop()) in TREES and name not in seen:
            seen.add(name)
            todo += AT_IMPORT[name]
    return seen


def test_everything_that_is_imported_is_declared():
    everything = set().union(*(distributions(imported(tree, at_import=False)) for tree in TREES.values()))
    assert everything - DECLARED - set().union(*FOR_USERS.values()) == NOT_OURS


def test_what_training_imports_is_a_dependency_and_no_extra():
    wrong = {name: needs for name in reached(DOORS) if (needs := distributions(AT_IMPORT[name]) - DECLARED)}
    assert wrong == {}


def test_no_dependency_and_no_extra_is_declared_that_nothing_imports():
    everything = set().union(*(distributions(imported(tree, at_import=False)) for tree in TREES.values())) | BY_NAME
    runtime = {"nanobind-backend"}  # of the compiled core, which imports it
    unused = (DECLARED | set().union(*FOR_USERS.values())) - everything - runtime
    assert unused == set()


@pytest.mark.parametrize("extra", FOR_USERS)
def test_every_extra_is_named_by_a_sentence_for_who_lacks_it(extra):
    if extra in EXTRAS.values():  # of environments, whose libraries say themselves what they lack
        return
    words = [node.value for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert any(f"slipstream[{extra}]" in text for text in words if isinstance(text, str))


# --- constraints.txt ---


def pins() -> dict[str, tuple[str, set[str]]]:
    """By name: the version, and the packages that are said to need it."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        pin, _, why = line.partition("  # for ")
        if "==" in pin:
            name, version = pin.split("==")
            found[canonical(name)] = (version, {canonical(word) for word in why.split(", ") if word})
    return found


PINS = pins()


def asked_for() -> list[Requirement]:
    """What pyproject.toml and the Makefile install by name."""
    texts = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    texts += [text for needs in PROJECT["project"]["optional-dependencies"].values() for text in needs]
    texts += ["cmake", "ninja", "playwright"]
    return [need for text in texts if (need := Requirement(text)).name != "slipstream"]


def test_everything_asked_for_is_pinned_at_a_version_that_will_do():
    missing = [str(need) for need in asked_for() if canonical(need.name) not in PINS]
    assert missing == []
    assert [str(need) for need in asked_for() if PINS[canonical(need.name)][0] not in need.specifier] == []


def needs_of(name: str) -> set[str] | None:
    """What an installed package needs, with whichever of its extras; None where it is not installed."""
    try:
        return {canonical(Requirement(text).name) for text in requires(name) or []}
    except PackageNotFoundError:
        return None


def test_every_other_pin_says_truly_which_package_needs_it():
    named = {canonical(need.name) for need in asked_for()}
    wrong = []
    for name in set(PINS) - named:
        why = PINS[name][1]
        known = [needs for who in why if (needs := needs_of(who)) is not None]
        if not why or not why <= set(PINS) or (known and not any(name in needs for needs in known)):
            wrong.append(name)
    assert wrong == []
