"""What the command line and the environment change in a scenario.

Dotted overrides on the command line: the flags are a scenario's own fields, its values their defaults.

`--algo.learning-rate 1e-3`, `--algo.hidden 32 16`, `--world.cars.0.mass-scale 1.1` (entries of lists by number),
`--policies.main.algo.kind sac` (of mappings by key), `--stop.bands None`, `--algo.no-normalize-observation`. A kind
may stand alone: `--algo.network conv` is `--algo.network.kind conv`. A value that is itself a mapping or list may be
written as YAML: `--federated.weights '{0: 2, 1: 1}'`. Words become values by the types of the schema; whether they are
allowed is said by `override`, in the sentences that files and Python get.
"""

from __future__ import annotations

import itertools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from slipstream.config.base import dotted, flag_of
from slipstream.config.load import override, put, to_plain
from slipstream.config.scenario import Scenario
from slipstream.config.schema import (
    alternatives,
    annotation_at,
    child,
    inner,
    is_list,
    is_mapping,
    kinds,
    members,
    pick,
)
from slipstream.config.yaml import KeyPath, parse_yaml
from slipstream.errors import ScenarioError

_FLAG = re.compile(r"--?[A-Za-z]")
_SIGNED = ("--checkpoint.best-by",)  # flags whose values may begin with a minus sign
_FORMER_FLAGS = {
    "--evaluate.enable-hallucination-detection": "--world.detect-alerts",
    "--evaluate.no-enable-hallucination-detection": "--world.no-detect-alerts",
}


def cli_overrides(scenario: Scenario, argv: Sequence[str], prog: str | None = None) -> Scenario:
    """Applies flags such as `--algo.learning-rate 1e-3`; `--help` prints this scenario's fields and values, and ends.

    Unknown flags, and values that the schema refuses, raise ScenarioError.
    """
    asks_help = {"-h", "--help"} & set(argv)
    changed = override(scenario, cli_changes(scenario, [word for word in argv if word not in ("-h", "--help")]))
    if asks_help:
        from slipstream.config.help import print_fields

        print_fields(changed, prog)
        raise SystemExit(0)
    return changed


def cli_changes(scenario: Scenario, argv: Sequence[str]) -> dict[str, Any]:
    """What flags change in a scenario, as `override` and `load` take it; all that are unknown are told at once."""
    tree = to_plain(scenario)
    flags = _with_kinds(tree, list(_flags(argv)))
    changes: dict[str, Any] = {}
    problems = []
    for flag in flags:
        try:
            path, value = _read_flag(flag, tree)
        except ScenarioError as error:
            problems.append(str(error))
            continue
        put(changes, path, value)
    if problems:
        raise ScenarioError("\n".join(problems))
    return changes


class _Flag(NamedTuple):
    name: str  # as it was written, without what follows "="
    words: tuple[str, ...]

    @property
    def parts(self) -> list[str]:
        return self.name.lstrip("-").split(".")


def _flags(argv: Sequence[str]) -> Iterator[_Flag]:
    """Flags with the words that follow them."""
    words = list(argv)
    if words and not _FLAG.match(words[0]):
        raise ScenarioError(f"'{words[0]}' does not follow a flag; set fields as in --algo.learning-rate 1e-3")
    starts: list[int] = []
    for i, word in enumerate(words):
        is_value = bool(starts) and words[starts[-1]].replace("_", "-") in _SIGNED and not word.startswith("--")
        starts += [i] if _FLAG.match(word) and not is_value else []
    for start, end in itertools.pairwise([*starts, len(words)]):
        name, equals, value = words[start].partition("=")
        name = _FORMER_FLAGS.get(name.replace("_", "-"), name)
        given = (*([value] if equals else []), *words[start + 1 : end])
        yield _Flag("--algo.kind", tuple(map(str.lower, given))) if name == "--algo" else _Flag(name, given)


def _with_kinds(tree: dict[str, Any], flags: Sequence[_Flag]) -> list[_Flag]:
    """The flags with `.kind` where a kind stands alone, as in `--algo.network conv`.

    The scenario's values get the kinds that flags ask for, by which their other flags are known.
    """
    found = list(flags)
    parts = [flag.parts[:-1] if flag.parts[-1] == "kind" else flag.parts for flag in flags]
    for number in sorted(range(len(flags)), key=lambda number: len(parts[number])):  # a world's before its track's
        flag = flags[number]
        path: list[str | int] = []
        annotation, value = Scenario, tree
        for name in parts[number]:
            if (part := _part(annotation, value, name)) is None:
                break
            path.append(part)
            annotation, value = inner(annotation, value, part), child(value, part)
        if len(path) == len(parts[number]) and len(flag.words) == 1 and flag.words[0] in kinds(annotation):
            put(tree, [*path, "kind"], flag.words[0])
            found[number] = flag if len(flag.parts) > len(path) else _Flag(f"{flag.name}.kind", flag.words)
    return found


def _read_flag(flag: _Flag, tree: dict[str, Any]) -> tuple[KeyPath, Any]:
    """The path a flag names and the value it gives."""
    path: list[str | int] = []
    annotation, value = Scenario, tree
    negated = False
    for depth, name in enumerate(flag.parts):
        found = _part(annotation, value, name)
        if found is None and depth == len(flag.parts) - 1 and name.startswith(("no-", "no_")):
            found = _part(annotation, value, name[3:])
            negated = found is not None and bool in list(alternatives(inner(annotation, value, found)))
            found = found if negated else None
        if found is None:
            raise ScenarioError(f"{flag.name}: {_unknown(flag, tuple(path), tree)}")
        path.append(found)
        annotation, value = inner(annotation, value, found), child(value, found)
    if negated:
        if flag.words:
            raise ScenarioError(f"{flag.name}: takes no value, but '{' '.join(flag.words)}' follows it")
        return tuple(path), False
    try:
        return tuple(path), _value(annotation, flag.words, dotted(path))
    except ValueError as error:
        raise ScenarioError(f"{flag.name}: {error}") from None


def _part(annotation: Any, value: Any, name: str) -> str | int | None:
    """What a part of a flag's name means in a value: a field, a key, a number; None where it means nothing."""
    under = name.replace("-", "_")
    if (model := pick(annotation, value)) is not None:
        return under if under in model.model_fields else None
    if len(list(members(annotation))) > 1:
        return "kind" if name == "kind" else None
    if is_mapping(annotation):
        return under if isinstance(value, Mapping) and name not in value and under in value else name
    return int(name) if is_list(annotation) and name.isdigit() else None


def _unknown(flag: _Flag, around: KeyPath, tree: dict[str, Any]) -> str:
    """Why a flag's name means nothing, and what to write instead."""
    annotation, value = annotation_at(tree, around, Scenario)
    many = kinds(annotation)
    if pick(annotation, value) is None and len(list(members(annotation))) > 1:
        return f"set its kind first: {flag_of(dotted(around))}.kind {' or '.join(many)}"
    name = flag.parts[len(around)]
    if is_list(annotation) and not is_mapping(annotation):
        many_entries = len(value) if isinstance(value, list) else 0
        entries = f"{flag_of(dotted(around))}.0" + (f" to .{many_entries - 1}" if many_entries > 1 else "")
        return f"'{name}' is not a number; entries of this list are {entries}, as in {flag_of(dotted(around))}.0"
    if around and pick(annotation, value) is None:
        return f"{flag_of(dotted(around))} is a single value and has no field '{name}'"
    from slipstream.config.explain import unknown_key

    return f"unknown flag; {unknown_key((*around, name.replace('-', '_')), tree, Scenario, as_flag=True)}"


# --- words into values ---


def _value(annotation: Any, words: Sequence[str], path: str) -> Any:
    """What words mean where `annotation` may stand; what fits nothing is left for the schema to refuse."""
    if len(words) == 1 and words[0][:1] in ("[", "{"):
        return parse_yaml(words[0], flag_of(path)).value
    options = list(alternatives(annotation))
    if list(words) in (["None"], ["null"]) and (types.NoneType in options or str not in options):
        return None
    for option in options:
        try:
            return _as(option, words)
        except ValueError:
            continue
    if not words:
        raise ValueError("needs a value")
    plain = [_plain(word) for word in words]
    return plain[0] if len(plain) == 1 else plain


def _as(option: Any, words: Sequence[str]) -> Any:
    """Words as a value of one type; ValueError where they are none."""
    origin, arguments = typing.get_origin(option), typing.get_args(option)
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return [_as(_only(kind), [word]) for kind, word in zip(arguments, words, strict=True)]
        return _many(_only(arguments[0]), words)
    if option is bool:
        known: Mapping[str, Any] = {"": True, "true": True, "false": False}
        return _among(known, " ".join(words).lower())
    (word,) = words
    if origin is Literal:
        return _among({str(value): value for value in arguments}, word)
    if option not in (int, float, str):
        raise ValueError
    return whole(word) if option is int else option(word)


def _many(option: Any, words: Sequence[str]) -> list[Any]:
    """Entries of a list, or, where each is a list of so many values, as many words for each."""
    size = len(typing.get_args(option)) if typing.get_origin(option) is tuple else 1
    rows = [words[i : i + size] for i in range(0, len(words), size)]
    return [_as(option, row) for row in rows]


def _only(annotation: Any) -> Any:
    return next(alternatives(annotation))


def _among(known: Mapping[str, Any], word: str) -> Any:
    if word not in known:
        raise ValueError
    return known[word]


def _plain(word: str) -> Any:
    try:
        return parse_yaml(word, "").value
    except ScenarioError:
        return word


def whole(text: str) -> int:
    """A whole number, which may be written 1e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(f"{text} is not a whole number") from None
        return int(number)


# --- FED_… variables ---


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("must be 1 or 0")


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _weights(text: str) -> dict[str, float] | str:
    """samples, reward_delta, "0.5,0.5" by index or "a:2,b:1" by name."""
    if text in ("samples", "reward_delta"):
        return text
    found = {}
    for index, part in enumerate(_names(text)):
        client, _, weight = part.rpartition(":")
        found[client or str(index)] = _number(weight)
    return found


def _peers(text: str) -> dict[str, str]:
    """0=ipc://a.sock,1=tcp://host:7001"""
    pairs = [part.partition("=") for part in _names(text)]
    if not all(address for _, _, address in pairs):
        raise ValueError("must be a list NAME=ADDRESS,…")
    return {name: address for name, _, address in pairs}


VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "FED_ENABLED": ("enabled", _flag),
    "FED_TOTAL_CLIENTS": ("clients", _count),
    "FED_CLIENT_ID": ("client", str),
    "FED_ROOT": ("root", str),
    "FED_INTERVAL": ("interval", _count),
    "FED_ROUND_INTERVAL": ("interval", _count),  # the older name wins where both are set
    "FED_ROUND": ("first_round", _count),
    "FED_CHECKPOINT_AFTER_SYNC": ("checkpoint_after_sync", _flag),
    "FED_OPTIMIZER_STRATEGY": ("optimizer_strategy", str),
    "FED_TIMEOUT": ("timeout_s", _number),
    "FED_WEIGHTS": ("weights", _weights),
    "FED_AGENTS": ("agents", _names),
    "FED_ADDRESS": ("address", str),
    "FED_PEERS": ("peers", _peers),
}


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """What FED_… variables change in a scenario, by dotted path; the command line is applied after them."""
    return dict(_changes(environment))


def _changes(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for variable, (field, read) in VARIABLES.items():
        text = environment.get(variable, "")
        if not text:
            continue
        try:
            value = read(text)
        except ValueError as error:
            raise ScenarioError(f"{variable}={text}: {error}; it sets federated.{field}") from None
        yield f"federated.{field}", value
        if field == "weights":  # as users of the variable expect; the aggregator `mean` has no weights
            yield "federated.aggregator", "weighted_mean"
