"""Worlds are found by their entry points: the same table in the project file and in the source."""

import tomllib
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest

from slipstream.worlds.tools import OnUse
from slipstream.worlds.world import BUILT_IN, GROUP, config_classes, installed, tools_of, worlds

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_the_project_declares_the_worlds_that_the_source_knows():
    assert PROJECT["entry-points"][GROUP] == BUILT_IN


def test_every_world_has_a_config_class_of_its_kind_and_can_be_built():
    assert [own.model_fields["kind"].default for own in config_classes()] == list(worlds())
    assert all(callable(tools_of(kind).build) for kind in worlds())


def test_every_folder_of_scenarios_that_a_world_names_is_there():
    folders = [Path(world.scenarios) for world in worlds().values() if world.scenarios is not None]
    assert all(any(folder.glob("*.yaml")) for folder in folders)


def test_entry_points_are_read_as_importlib_reads_them(tmp_path, monkeypatch):
    text = f"""[console_scripts]
other = a:b

[{GROUP}]
# a comment
lake = lake:WORLD
pond=pond.world:WORLD [extra]

[pytest11]
x = y
"""
    for name in ("lake-1.0.dist-info", "none-1.0.dist-info"):
        (tmp_path / name).mkdir()
    (tmp_path / "lake-1.0.dist-info" / "entry_points.txt").write_text(text)
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "missing")])
    theirs = EntryPoints._from_text_for(text, None).select(group=GROUP)
    assert list(installed()) == [(e.name, f"{e.module}:{e.attr}") for e in theirs]
    assert dict(installed()) == {"lake": "lake:WORLD", "pond": "pond.world:WORLD"}


@pytest.mark.parametrize("kind", BUILT_IN)
def test_what_a_world_imports_on_use_is_there(kind):
    tools = tools_of(kind)
    fields = [*tools, *tools.drawings, *(tools.analysis or ())]
    assert all(callable(field.load()) for field in fields if isinstance(field, OnUse))
