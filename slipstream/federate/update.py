"""An update: the named arrays that a client sends, and its claims about them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from slipstream.errors import FederationError

Arrays = dict[str, NDArray[Any]]

# Ids become names of files. Dots and dashes are fine inside, but no id begins with a dot: "." and ".." are folders.
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class ClientUpdate:
    """One policy of one client, as sent to a round."""

    client: str
    round: int
    base: str  # content hash of the aggregate the client started from; "" before the first round
    nonce: str  # drawn once for every update: the same one, sent again, is still one
    arrays: Arrays
    weight: float = 1.0  # claimed; clipped to the round before it counts
    facts: Mapping[str, float] = field(default_factory=dict)  # samples, episodes, mean return: for weights and reports


def check_id(text: str, what: str) -> str:
    """The id, if it is safe as part of a path; refused otherwise, before any file is touched."""
    if not isinstance(text, str) or _ID.fullmatch(text) is None:
        shown = repr(text)[:80]
        raise FederationError(
            f"{what} {shown}: ids are 1 to 64 letters, digits, '_', '-' or '.', and do not begin with a dot, "
            "because they become names of files"
        )
    return text
