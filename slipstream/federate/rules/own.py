"""A rule of the user's: a function, named in the scenario as module:function.

    def halves(clients, known):
        first, *others = clients.values()
        return {name: (array + others[-1][name]) / 2 for name, array in first.items()}

It gets the clients' weights by client and name, in the order of client ids, and what is `Known` besides; it returns one
array for each name. Whoever closes a round calls it, and somebody else again if the first was killed, so its result may
depend on its arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.config.aggregators import OWN_RULE, is_own_rule
from slipstream.errors import FederationError
from slipstream.federate.blocks import Clients, stray_number
from slipstream.federate.rules import AggregatorRule, Known, Merged
from slipstream.own_code import find_own

OwnFunction = Callable[[Mapping[str, Mapping[str, NDArray[Any]]], Known], Mapping[str, NDArray[Any]]]


def own_rule(name: str) -> AggregatorRule:
    """The user's function as a rule like all others."""
    find(name)
    return AggregatorRule(OWN_RULE, partial(merge_own, name))


@cache
def find(name: str) -> OwnFunction:
    """The function that a name stands for; its module may be a file in the current folder."""
    assert is_own_rule(name)
    own: OwnFunction = find_own(name, "federated.aggregator", FederationError)
    return own


def merge_own(name: str, clients: Clients, known: Known) -> Merged:
    """What the function makes of the clients' weights; a result that clients could not go on from is refused."""
    shown = {client: {key: _fixed(clients[client][key]) for key in clients[client]} for client in sorted(clients)}
    try:
        found = find(name)(shown, known)
    except Exception as error:
        raise FederationError(f"aggregator {name}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping):
        raise FederationError(f"aggregator {name}: returned a {type(found).__name__}, and not arrays by name")
    like = clients[min(clients)]
    if odd := sorted(map(str, found.keys() ^ like.keys())):
        what = "leaves out" if odd[0] in like else "invents"
        raise FederationError(f"aggregator {name}: its result {what} {odd[0]}")
    return Merged({key: _checked(name, key, found[key], like[key]) for key in like}, None)


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to: what others read next stays as it was sent."""
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(name: str, key: str, value: Any, like: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(value)
    if array.shape != like.shape or array.dtype.kind != "f":
        raise FederationError(
            f"aggregator {name}: {key} is {array.dtype}{list(array.shape)}, and clients have "
            f"{like.dtype}{list(like.shape)}"
        )
    with np.errstate(over="ignore"):
        array = np.array(array, like.dtype)
    if not np.isfinite(array).all():
        raise FederationError(f"aggregator {name}: {stray_number(key, array)}")
    return array
