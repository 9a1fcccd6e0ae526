"""Which class learns for which `kind` of config, and how a federation merges the arrays of each class's state."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module

from slipstream.algos.adam import BETA1, BETA2, MOMENTS
from slipstream.algos.protocol import Algorithm
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError

CLASSES = {
    "ppo": "Ppo",
    "appo": "Appo",
    "impala": "Impala",
    "reinforce": "Reinforce",
    "sac": "Sac",
    "td3": "Td3",
    "dqn": "Dqn",
    "cql": "Cql",
}


class _Algorithms(Mapping[str, type[Algorithm]]):
    """The classes of CLASSES by kind; its file is imported when one is asked for, as a run uses one or two."""

    def __getitem__(self, kind: str) -> type[Algorithm]:
        found: type[Algorithm] = getattr(import_module(f"slipstream.algos.{kind}"), CLASSES[kind])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(CLASSES)

    def __len__(self) -> int:
        return len(CLASSES)


ALGORITHMS = _Algorithms()

_NORMALISER = ("mean", "m2", "count", "shift", "scale")
_VALUES = ("mean", "deviation", "batches", "head.weight", "head.bias")
_OPTIMISER = re.compile(r"(\w*optim)\.(?:step|.+\.(?:{}))".format("|".join(MOMENTS)))


@cache
def _known_names() -> tuple[frozenset[str], Mapping[str, Rule]]:
    """Names of networks, and rules of single numbers, of all algorithms."""
    layouts = [algorithm.layout for algorithm in ALGORITHMS.values()]
    # Targets are merged like what they follow: the mean of the targets is what would have followed the mean.
    networks = frozenset(name for layout in layouts for name in (*layout.networks, *layout.followers))
    return networks, {name: rule for layout in layouts for name, rule in layout.numbers.items()}


def rules_for(names: Iterable[str]) -> dict[str, Rule]:
    """A rule for every name of a learner's state; a name without one is refused."""
    known = frozenset(names)
    return {name: _rule(name, known) for name in sorted(known)}


def _rule(name: str, known: Collection[str]) -> Rule:
    networks, numbers = _known_names()
    if name in numbers:
        return numbers[name]
    if optimiser := _OPTIMISER.fullmatch(name):
        group = optimiser[1]
        if name.endswith("." + MOMENTS[0]):
            return Rule("first_moment", group, BETA1)
        return Rule("second_moment", group, BETA2) if name.endswith("." + MOMENTS[1]) else Rule("optim_step", group)
    for kind, parts in (("statistics", _NORMALISER), ("values", _VALUES)):
        for part in parts:
            group = name.removesuffix("." + part)
            if group != name and all(f"{group}.{other}" in known for other in parts):
                return Rule("statistics" if kind == "statistics" else "values", group)
    if "." in name and name.partition(".")[0] in networks:
        return Rule("merge")
    raise FederationError(
        f"{name}: no rule says how to merge this array of several clients; add it to the layout of its "
        "algorithm in slipstream/algos"
    )
