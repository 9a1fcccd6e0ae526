"""The verb about scenarios: list and describe them, make new ones, check, draw and import them."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.cli.flags import make_parser
from slipstream.config.checks import without_effect
from slipstream.config.help import commented
from slipstream.config.load import dump, lay_over, load, start_from, to_plain
from slipstream.config.packaged import ScenarioInfo, find, list_scenarios
from slipstream.config.records import check_name
from slipstream.config.yaml import load_yaml, parse_yaml
from slipstream.errors import ScenarioError, SlipstreamError, suggest
from slipstream.worlds.world import tools_of, worlds

if TYPE_CHECKING:
    from slipstream.config.world import WorldConfig
    from slipstream.spec import ActionSpec
    from slipstream.worlds.tools import Renderer

MAX_JSON_BYTES = 4_000_000  # of a file to import; the largest published one has a few thousand
USAGE = """slipstream scenarios                   list them
       slipstream scenarios NAME              describe one
       slipstream scenarios new NAME …        write your own
       slipstream scenarios check FILE …      find all mistakes
       slipstream scenarios draw NAME         draw the scene
       slipstream scenarios import FILE.json  convert one of another project"""

Values = dict[str, Any]


def scenarios(argv: Sequence[str]) -> int:
    """List the packaged scenarios, describe one, or use one of the tools."""
    words = list(argv)
    tools: dict[str, Callable[[Sequence[str]], int]] = {"new": _new, "check": _check, "draw": _draw, "import": _import}
    if words and words[0] in tools:
        return tools[words[0]](words[1:])
    parser = make_parser("scenarios", "Scenarios and tools for them.", usage=USAGE)
    parser.add_argument("name", nargs="?", help="a scenario's name or file")
    args = parser.parse_args(words)
    if args.name is None:
        _list()
    else:
        print(dump(load(args.name)), end="")
        print(_describe_world(args.name))
    return 0


def _list() -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(listing(list_scenarios(), width)))
    print("\nslipstream scenarios NAME describes one; slipstream train NAME trains it")


def listing(found: Sequence[ScenarioInfo], width: int | None) -> list[str]:
    """Families with their scenarios; descriptions wrap between words at this width, and not at all at None."""
    lines, family = [], ""
    wide = max((len(info.name) for info in found), default=0) + 4
    for info in found:
        if info.family != family:
            family = info.family
            lines.append(f"{family}:")
        room = len(info.description) + 1 if width is None else max(20, width - wide)
        parts = textwrap.wrap(info.description, room, break_on_hyphens=False) or [""]
        lines.append(f"  {info.name:<{wide - 2}}{parts[0]}")
        lines += [" " * wide + part for part in parts[1:]]
    return lines


def _describe_world(name: str) -> str:
    from slipstream.worlds.registry import spec_of

    spec = spec_of(load(name).world)
    lines = [
        "",
        f"# {spec.name}: {spec.num_agents} agents ({', '.join(spec.agents[:8])}{' …' if spec.num_agents > 8 else ''})",
        *(f"# action of {view.role}: {_action(view.action)}; it sees {', '.join(view.obs)}" for view in spec.unlike),
        *([] if spec.unlike else [f"# action: {_action(spec.action)}"]),
        f"# scripted policies: {', '.join(spec.scripts) or 'none'}",
        f"# episode figures: {', '.join(spec.stats) or 'none'}",
    ]
    for block in spec.obs:
        lines.append(f"# observation {block.name} {list(block.shape)}: {', '.join(block.features)}")
    return "\n".join(lines)


def _action(action: ActionSpec) -> str:
    return action.words + (f": {', '.join(action.names)}" if action.names else "")


# --- new ---


def _new(argv: Sequence[str]) -> int:
    parser = make_parser("scenarios new", "Write a scenario of your own as YAML, with what every key means.")
    add = parser.add_argument
    add("name", nargs="?", help="its name; the file is NAME.yaml")
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--from", dest="origin", metavar="SCENARIO", help="begin with this one (a name or a file)")
    origin.add_argument("--generator", metavar="NAME", help="make it from numbers")
    origin.add_argument("--generators", action="store_true", help="list the generators and their parameters")
    add("--param", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the generator")
    add(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a value to change, as in world.separation_nm=6"
    )
    add("--out", type=Path, metavar="FILE", help="another file than NAME.yaml")
    args = parser.parse_args(argv)
    if args.generators:
        _list_generators()
        return 0
    if args.name is None or (args.origin is None and args.generator is None):
        raise ScenarioError("new: give a name and a start, as in: slipstream scenarios new mine --from head_on")
    check_name(args.name, "scenario")
    if args.origin is not None:
        if args.param:
            raise ScenarioError(f"--param {args.param[0]}: needs --generator; change values with --set KEY=VALUE")
        values, made = start_from(args.origin, args.set), f"from {args.origin}"
    else:
        values = lay_over(_generate(args.generator, args.param), args.set)
        made = " ".join(["by the generator", args.generator, *args.param])
    _write(args.name, args.out, values, made)
    return 0


def _generators() -> dict[str, Callable[..., Values]]:
    """What makes scenarios from numbers, by name: functions whose keyword arguments have defaults."""
    return {name: made for kind in worlds() for name, made in tools_of(kind).generators.items()}


def _list_generators() -> None:
    for name, generator in _generators().items():
        print(f"{name}: {inspect.getdoc(generator)}")
        types = typing.get_type_hints(generator)
        for key, parameter in inspect.signature(generator).parameters.items():
            choices = typing.get_args(types[key])
            print(f"  --param {key}={parameter.default}" + (f" ({', '.join(choices)})" if choices else ""))


def _generate(name: str, words: Sequence[str]) -> Values:
    known = _generators()
    if name not in known:
        raise ScenarioError(f"there is no generator '{name}'{suggest(name, known)} (known: {', '.join(known)})")
    parameters = inspect.signature(known[name]).parameters
    types = typing.get_type_hints(known[name])
    given: Values = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in parameters:
            raise ScenarioError(
                f"--param {word}: {name} has {', '.join(f'{k}={p.default}' for k, p in parameters.items())}"
                f"{suggest(key, parameters)}"
            )
        given[key] = _typed(f"--param {key}", text, parameters[key].default, typing.get_args(types[key]))
    return known[name](**given)


def _typed(where: str, text: str, default: object, choices: Sequence[str]) -> object:
    """A parameter's value, of its default's type, and one of the choices where there are some."""
    if isinstance(default, str):
        if choices and text not in choices:
            raise ScenarioError(f"{where}: found '{text}', must be {' or '.join(choices)}{suggest(text, choices)}")
        return text
    value = parse_yaml(text, where).value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScenarioError(f"{where}: found '{text}', must be a number such as {default}")
    if isinstance(default, int) and value != int(value):
        raise ScenarioError(f"{where}: found '{text}', must be a whole number such as {default}")
    return int(value) if isinstance(default, int) else float(value)


def _write(name: str, out: Path | None, values: Values, made: str) -> None:
    """Write a new file, once it is known to load; what is there already stays."""
    path = out or Path(f"{name}.yaml")
    if path.exists():
        raise ScenarioError(f"{path}: already exists; choose another name or --out")
    ordered = {key: values[key] for key in ("description", "includes") if values.get(key)}
    ordered |= {key: value for key, value in values.items() if key not in ("description", "includes", "name")}
    text = f"{name}, made {made}. Keys that are not here are as in the files it includes; slipstream scenarios {path} "
    heading = f"{text}prints all of them, slipstream train {path} trains it."
    path.write_text(commented(ordered, {}, heading))
    try:
        whole = to_plain(load(path))
    except SlipstreamError as error:
        path.unlink()
        raise ScenarioError(re.sub(rf"^{re.escape(str(path))}:\d+: ", "", str(error), flags=re.MULTILINE)) from None
    path.write_text(commented(ordered, whole, heading))
    print(f"{path}: written; check it after changes with: slipstream scenarios check {path}")


# --- check ---


def _check(argv: Sequence[str]) -> int:
    parser = make_parser(
        "scenarios check",
        "Find every mistake in scenario files, with file and line; also what does not go together, such as "
        "an algorithm that cannot act in the world.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="files, or names of packaged scenarios")
    args = parser.parse_args(argv)
    wrong = 0
    for file in args.files:
        problems = _problems(file)
        wrong += bool(problems)
        print("\n".join(problems) if problems else f"{file}: fine")
        for sentence in () if problems else without_effect(load(file)):
            print(f"{file}: {sentence}")
    if wrong:
        raise ScenarioError(f"{wrong} of {len(args.files)} scenarios cannot be trained as they are")
    return 0


def _problems(file: str) -> list[str]:
    """What is wrong with a scenario, one line each: what the schema says, or else what setting it up says."""
    try:
        scenario = load(file)
    except ScenarioError as error:
        return str(error).split("\n")
    from slipstream.run.setup import make_cast, resolve
    from slipstream.worlds.registry import make_worlds

    try:
        worlds = make_worlds(scenario.world, 1)
        try:
            make_cast(resolve(scenario), worlds.spec)
        finally:
            worlds.close()
    except SlipstreamError as error:
        return [f"{_where(file, str(error))}: {error}"]
    return []


def _where(file: str, sentence: str) -> str:
    """The file, and the line of the deepest key that a sentence begins with."""
    path = find(file)
    lines = load_yaml(path).lines
    named = tuple(sentence.split(":", 1)[0].split("."))
    around = [named[:length] for length in range(len(named), 0, -1)]
    around += [("algo",)] if named[0] == "policies" else []  # where the only policy is not written out
    return next((f"{path}:{lines[key]}" for key in around if key in lines), str(path))


# --- draw ---


def _draw(argv: Sequence[str]) -> int:
    parser = make_parser("scenarios draw", "Draw what a scenario looks like before anybody has acted.")
    parser.add_argument("name", help="a scenario's name or file")
    parser.add_argument("--png", type=Path, metavar="FILE", help="where to write (default: NAME.png)")
    args = parser.parse_args(argv)
    scenario = load(args.name)
    path = args.png or Path(f"{scenario.name}.png")
    drawings = tools_of(scenario.world.kind).drawings
    if drawings.sketch is not None:
        said = drawings.sketch(scenario.world, path, scenario.name)
    elif drawings.renderer is not None:
        said = _draw_first_moment(scenario.world, drawings.renderer(scenario.world), path)
    else:
        raise ScenarioError(f"{scenario.name}: worlds of kind {scenario.world.kind} cannot be drawn")
    print(f"{path}: {said}")
    return 0


def _draw_first_moment(config: WorldConfig, renderer: Renderer, path: Path) -> str:
    from PIL import Image

    from slipstream.worlds.registry import make_worlds
    from slipstream.worlds.vec_env import EnvOptions

    batch = make_worlds(config, 1, EnvOptions(seed=0))
    batch.reset()
    Image.fromarray(renderer(batch.spec, batch.frame(0)[None], batch.backdrop(0))).save(path)
    batch.close()
    return "the beginning of an episode"


# --- import ---


def _import(argv: Sequence[str]) -> int:
    parser = make_parser(
        "scenarios import",
        "Write another project's scenario (the air-traffic project's JSON) as one of ours, with the same numbers.",
    )
    parser.add_argument("file", type=Path, help="the JSON file")
    parser.add_argument("--name", help="of the new scenario (default: the file's name)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="another file than NAME.yaml")
    args = parser.parse_args(argv)
    record = _read_json(args.file)
    try:
        asked = (tools_of(kind).import_scenario(record) for kind in worlds())
        values = next((values for values in asked if values is not None), None)
    except ScenarioError as error:
        raise ScenarioError(f"{args.file}: {error}") from None
    if values is None:
        keys = ", ".join(list(record)[:6]) if isinstance(record, Mapping) else type(record).__name__
        raise ScenarioError(
            f"{args.file}: is not a known kind of scenario (found {keys}; an air-traffic one has 'agents')"
        )
    name = args.name or args.file.stem
    check_name(name, "scenario")
    _write(name, args.out, values, f"from {args.file.name}")
    return 0


def _read_json(path: Path) -> object:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ScenarioError(f"{path}: is larger than {MAX_JSON_BYTES:,} bytes, more than any scenario needs")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ScenarioError(f"{path}{line}: is not JSON: {str(error)[:120]}") from None
