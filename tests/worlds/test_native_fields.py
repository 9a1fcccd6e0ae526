"""A world's config field is declared once: the core's structs are made from the classes that scenarios are read by."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream import _core
from slipstream.worlds.airspace.config import HorizontalCrConfig
from slipstream.worlds.drmario import build as drmario
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.racing import build as racing
from slipstream.worlds.racing.config import CarConfig, RacingConfig
from slipstream.worlds.vec_env import to_native

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import fields

OPTIONS = _core.VecEnvOptions()


@pytest.mark.parametrize("header", fields.HEADERS, ids=lambda header: header.world)
def test_the_header_of_a_world_is_what_its_config_classes_say(header):
    assert header.path.read_text() == fields.write(header), "run `make fields`"


@pytest.mark.parametrize("header", fields.HEADERS, ids=lambda header: header.world)
def test_every_field_of_a_config_is_in_the_core_or_said_to_be_pythons_alone(header):
    classes = {cls.__name__: cls for part in header.structs.values() for cls in fields._all(part)}
    for key in (*header.only_python, *header.resolved):
        assert key.split(".")[1] in classes[key.split(".")[0]].model_fields
    text = header.path.read_text()
    for cls in classes.values():
        for name, info in cls.model_fields.items():
            alone = f"{cls.__name__}.{name}" in header.only_python or fields._is_tag(info.annotation)
            assert (f'visit("{name}"' in text) or alone


def test_a_field_out_of_its_bounds_is_refused_by_the_core_alone():
    config = _core.HorizontalCrConfig()
    config.heading_step_deg = 181.0
    with pytest.raises(ValueError, match=r"heading_step_deg is 181.*180"):
        _core.make_horizontal_cr(config, 1, OPTIONS)
    config.heading_step_deg = float("nan")
    with pytest.raises(ValueError, match="heading_step_deg"):
        _core.make_horizontal_cr(config, 1, OPTIONS)


def test_a_field_reaches_the_core_by_its_name():
    config = HorizontalCrConfig(num_intruders=7, braking_mps2=1.5)
    native = to_native(config, _core.HorizontalCrConfig())
    assert {name: getattr(native, name) for name in HorizontalCrConfig.model_fields if name != "kind"} == (
        config.model_dump(exclude={"kind"})
    )


def test_an_item_of_a_list_is_held_to_its_bounds_too():
    config = _core.DrMarioConfig()
    config.levels = [0, 25]
    with pytest.raises(ValueError, match=r"levels\[1\] is 25.*24"):
        _core.make_drmario(config, 1, OPTIONS)


def test_a_choice_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"fast.*low, medium, high"):
        _core.DrMarioConfig().speed = "fast"


@pytest.mark.parametrize(
    ("made", "default"),
    [
        (drmario.native_config(DrMarioConfig()), _core.DrMarioConfig()),
        (racing.native_config(RacingConfig(cars=(CarConfig(id="car"),))), _core.RacingConfig()),
    ],
    ids=["drmario", "racing"],
)
def test_what_is_worked_out_in_python_is_the_cores_default(made, default):
    mine, core = plain(made), plain(default)
    for name in ("cars", "phases", "course"):  # lists that the core leaves empty, and the map of the track
        mine.pop(name, None), core.pop(name, None)
    assert mine == core


def plain(value: Any) -> Any:
    """A struct of the core as plain data, however deep."""
    if type(value).__module__ != _core.__name__:
        return value
    names = [name for name in dir(value) if not name.startswith("_") and not callable(getattr(type(value), name))]
    return {name: plain(getattr(value, name)) for name in names}
