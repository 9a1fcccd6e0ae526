"""How the arrays of each learner's state are merged in a federation: by the `layout` that each algorithm states."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from slipstream.algos.adam import BETA1, BETA2, MOMENTS
from slipstream.algos.registry import ALGORITHMS
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError

LAYOUTS = [algorithm.layout for algorithm in ALGORITHMS.values()]
# Targets are merged like what they follow: the mean of the targets is what would have followed the mean.
NETWORKS = frozenset(name for layout in LAYOUTS for name in (*layout.networks, *layout.followers))
NUMBERS = {name: rule for layout in LAYOUTS for name, rule in layout.numbers.items()}
_NORMALISER = ("mean", "m2", "count", "shift", "scale")
_VALUES = ("mean", "deviation", "batches", "head.weight", "head.bias")
_OPTIMISER = re.compile(r"(\w*optim)\.(?:step|.+\.(?:{}))".format("|".join(MOMENTS)))


def rules_for(names: Iterable[str]) -> dict[str, Rule]:
    """A rule for every name of a learner's state; a name without one is refused."""
    known = frozenset(names)
    return {name: _rule(name, known) for name in sorted(known)}


def _rule(name: str, known: Collection[str]) -> Rule:
    if name in NUMBERS:
        return NUMBERS[name]
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
    if "." in name and name.partition(".")[0] in NETWORKS:
        return Rule("merge")
    raise FederationError(
        f"{name}: no rule says how to merge this array of several clients; add it to the layout of its "
        "algorithm in slipstream/algos"
    )
