"""Every field of every packaged scenario can be named in an override, on the command line and in Python alike."""

import typing

import pytest
from pydantic import BaseModel

from slipstream.config.load import load, override, to_plain
from slipstream.config.overrides import cli_changes
from slipstream.config.packaged import list_scenarios
from slipstream.config.scenario import Scenario
from slipstream.config.schema import members
from slipstream.errors import ScenarioError

NAMES = [info.name for info in list_scenarios()]
UNIONS = (typing.Union, type(int | str))


def leaves(annotation, value, path=(), kind_of=()):
    """A slow, obvious walk of the schema: (path, value there, flags that switch the unions around it)."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    options = typing.get_args(annotation) if typing.get_origin(annotation) in UNIONS else (annotation,)
    options = [typing.get_args(o)[0] if typing.get_origin(o) is typing.Annotated else o for o in options]
    options = [inner for o in options for inner in (typing.get_args(o) if typing.get_origin(o) in UNIONS else (o,))]
    models = [m for o in options if isinstance(o, type) and issubclass(o, BaseModel) for m in members(o)]
    yield path, value, kind_of
    for model in models:
        kinds = typing.get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
        is_here = isinstance(value, dict) and (value.get("kind") in kinds or not kinds)
        switch = kind_of if is_here or not kinds else (*kind_of, ((*path, "kind"), kinds[0]))
        for name, field in model.model_fields.items():
            below = value.get(name) if is_here else None
            yield from leaves(field.annotation, below, (*path, name), switch)
    for option in options:
        arguments = typing.get_args(option)
        if typing.get_origin(option) is dict and isinstance(value, dict):
            for key in (*value, "new"):
                yield from leaves(arguments[1], value.get(key), (*path, key), kind_of)
        if typing.get_origin(option) is tuple and isinstance(value, list):
            for index in range(len(value) + (arguments[-1] is Ellipsis)):
                entry = arguments[0] if arguments[-1] is Ellipsis else arguments[index]
                yield from leaves(entry, value[index] if index < len(value) else None, (*path, index), kind_of)


def one_of_each(name):
    """Paths of a scenario, without the tens of entries that are like their neighbours."""
    seen = set()
    for path, value, switches in leaves(Scenario, to_plain(load(name))):
        shape = (tuple(part if isinstance(part, str) else "#" for part in path), switches)
        if path and shape not in seen:
            seen.add(shape)
            yield path, value, switches


def flag(path):
    return "--" + ".".join(str(part).replace("_", "-") if i < 2 else str(part) for i, part in enumerate(path))


def words(value):
    if isinstance(value, list):
        return [word for entry in value for word in words(entry)]
    return ["None" if value is None else str(value)]


def is_plain(value):
    return not isinstance(value, dict) and not (isinstance(value, list) and any(isinstance(v, dict) for v in value))


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_known_to_the_command_line_and_takes_the_value_it_has(name):
    scenario = load(name)
    plain, by_switches = {}, {}
    for path, value, switches in one_of_each(name):
        if not switches and is_plain(value) and value is not None:
            plain[path] = value
        else:
            by_switches.setdefault(switches, []).append(path)
    own = cli_changes(scenario, [word for path in plain for word in (flag(path), *words(plain[path]))])
    for path, value in plain.items():
        found = own
        for part in path:
            found = found[part if isinstance(found, list) else str(part)]
        assert found == value, path
    for switches, paths in by_switches.items():
        flags = [word for where, kind in switches for word in (flag(where), kind)]
        cli_changes(scenario, [*flags, *(word for path in paths for word in (flag(path), "None"))])  # none is unknown
    assert len(plain) > 80
    assert len(by_switches) > 10, "other algorithms, worlds, policies, values"


@pytest.mark.parametrize("name", ["gaplock_curriculum", "drmario_curriculum", "simple_spread", "gaplock_dqn"])
def test_in_python_fields_take_their_own_values_and_refuse_others_in_a_sentence_that_names_them(name):
    scenario = load(name)
    own = {path: value for path, value, switches in one_of_each(name) if not switches}
    plain = {"__".join(map(str, path)): value for path, value in own.items() if is_plain(value) and value is not None}
    assert override(scenario, plain) == scenario
    refused = 0
    for path in list(own)[::5]:
        if "kwargs" in path:  # anything may stand there
            continue
        with pytest.raises(ScenarioError) as caught:
            override(scenario, {".".join(map(str, path)): {"no such": ["thing"]}})
        assert str(path[0]) in str(caught.value)
        assert f"{path[-1]}: unknown key" not in str(caught.value)
        refused += 1
    assert refused > 20
