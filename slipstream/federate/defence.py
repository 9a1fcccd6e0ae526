"""Checks that an update must pass before it is merged; the sender of a refused one is excluded for some rounds.

Names, shapes, types and finiteness are always checked. With three updates or more, each client's change is compared
with the coordinatewise median of all changes: its norm with the median norm (large changes are clipped, extreme ones
refused), its direction by the cosine. A small malicious change in a plausible direction passes these checks; limiting
its effect is the aggregator's task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.data.arrays_file import not_finite
from slipstream.errors import FederationError
from slipstream.federate.blocks import Rows, blocks, combine_arrays, flat, ordered
from slipstream.federate.server_optim import STATE
from slipstream.federate.update import ClientUpdate
from slipstream.types import Arrays

MIN_FOR_MEDIAN = 3  # of two, nobody can say which one lies

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]
Fault = Literal["", "layout", "not_finite", "impossible", "norm", "cosine"]


class Defence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the checks; None switches a check off."""

    clip_norm: float | None = 3.0  # times the median norm: larger changes are scaled down to it
    max_norm: float | None = 10.0  # times the median norm: larger changes are refused
    min_cosine: float | None = -0.3  # to the median change: changes below this are refused
    quarantine_rounds: int = 5  # for which the sender of a refused update is excluded

    def __post_init__(self) -> None:
        norms = [norm for norm in (self.clip_norm, self.max_norm) if norm is not None]
        cosine_fits = self.min_cosine is None or -1 <= self.min_cosine < 1
        if not all(norm > 0 for norm in norms) or not cosine_fits or self.quarantine_rounds < 0:
            raise FederationError(
                f"defence {self}: clip_norm and max_norm are above 0, min_cosine is within [-1, 1), "
                "quarantine_rounds is 0 or more"
            )


class ArrayChecks(NamedTuple):
    """Which arrays are checked, and how, by their names."""

    judged: frozenset[str] | None = None  # weights: arrays whose change is measured; None: all floats
    optional: Callable[[str], bool] = lambda name: False  # may be absent, as moments are before the first update
    fault: Callable[[ClientUpdate], str] = lambda update: (
        ""
    )  # why its numbers cannot be, as a spread below 0; "": they can


CHECKS = ArrayChecks()


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of the checks for one update."""

    client: str
    fault: Fault = ""
    reason: str = ""
    norm: float | None = None  # length of what it changed
    cosine: float | None = None  # between that and the median of what all changed
    scale: float = 1.0  # what it changed is shortened by this


class ExcludedClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client whose updates are not accepted for some rounds, and why."""

    client: str
    reason: str
    since: int  # the round in which it was refused
    until: int  # the first round in which it may take part again


def layout_of(arrays: Mapping[str, NDArray[Any]]) -> Layout:
    """Names, types and shapes."""
    return tuple((name, arrays[name].dtype.str, arrays[name].shape) for name in sorted(arrays))


def layout_fault(arrays: Arrays, reference: Arrays, checks: ArrayChecks = CHECKS) -> str:
    """The first difference in names, types or shapes, in a sentence; nothing when there is none."""
    absent, strange = (
        sorted(name for name in more.keys() - less.keys() if not checks.optional(name))
        for more, less in ((reference, arrays), (arrays, reference))
    )
    if absent or strange:
        which = f"lacks {absent[0]!r:.80}" if absent else f"has {strange[0]!r:.80}, which the model has not"
        return f"{len(absent)} arrays too few and {len(strange)} too many: it {which}"
    for name in sorted(arrays.keys() & reference.keys()):
        array, like = arrays[name], reference[name]
        if array.dtype != like.dtype or array.shape != like.shape:
            found, wanted = f"{array.dtype}{list(array.shape)}", f"{like.dtype}{list(like.shape)}"
            return f"array {name!r:.80} is {found} where the model has {wanted}"
    return ""


def reference_of(updates: Sequence[ClientUpdate], reference: Arrays | None) -> Arrays:
    """The last aggregate; before the first, the median of the updates that have the most common layout."""
    if reference is not None:
        return without_state(reference)
    finite = [update for update in updates if not not_finite(update.arrays)] or list(updates)
    common = Counter(layout_of(update.arrays) for update in finite)
    # The larger number wins, and between equals the smaller layout: whoever closes the round finds the same.
    layout = min(common, key=lambda layout: (-common[layout], layout))
    alike = [update.arrays for update in finite if layout_of(update.arrays) == layout]
    return {name: _median([arrays[name] for arrays in alike]) for name, _, _ in layout}


def without_state(arrays: Arrays) -> Arrays:
    """An aggregate without the state of a server optimiser."""
    return {name: array for name, array in arrays.items() if not name.startswith(STATE)}


def screen(
    updates: Sequence[ClientUpdate], reference: Arrays, defence: Defence, checks: ArrayChecks = CHECKS
) -> list[Verdict]:
    """A verdict on each update, all of different clients."""
    faults = {update.client: _fault(update, reference, checks) for update in updates}
    sound = [update for update in updates if not faults[update.client].fault]
    verdicts = {verdict.client: verdict for verdict in _judge(sound, reference, defence, checks)}
    return [verdicts.get(update.client, faults[update.client]) for update in updates]


def with_scaled_change(
    update: ClientUpdate, reference: Arrays, scale: float, checks: ArrayChecks = CHECKS
) -> ClientUpdate:
    """The update with its change scaled: by clipping, and for being stale (FedBuff, arXiv:2106.06639)."""
    if scale == 1.0:
        return update
    arrays = dict(update.arrays)
    for name in judged_names(reference, checks):
        old = reference[name].astype(np.float64)
        arrays[name] = np.asarray(old + scale * (arrays[name] - old), arrays[name].dtype)
    return replace(update, arrays=arrays)


def judged_names(reference: Arrays, checks: ArrayChecks) -> list[str]:
    """The float arrays whose change is measured, sorted."""
    floats = (name for name, array in reference.items() if array.dtype.kind == "f")
    return sorted(
        name for name in floats if not checks.optional(name) and (checks.judged is None or name in checks.judged)
    )


def excluded_clients(entries: Sequence[ExcludedClient], round_: int) -> dict[str, ExcludedClient]:
    """The clients that may not take part in a round."""
    return {entry.client: entry for entry in entries if round_ < entry.until}


def _fault(update: ClientUpdate, reference: Arrays, checks: ArrayChecks) -> Verdict:
    if reason := layout_fault(update.arrays, reference, checks):
        return Verdict(update.client, "layout", reason)
    if broken := not_finite(update.arrays):
        reason = f"{len(broken)} of its arrays hold NaN or infinity, the first {broken[0]!r:.80}"
        return Verdict(update.client, "not_finite", reason)
    return Verdict(update.client, "impossible", reason) if (reason := checks.fault(update)) else Verdict(update.client)


def _judge(updates: Sequence[ClientUpdate], reference: Arrays, defence: Defence, checks: ArrayChecks) -> list[Verdict]:
    squares, products, middle_square = np.zeros(len(updates)), np.zeros(len(updates)), 0.0
    # Block by block: all changes of all clients at once would take several times the memory of the updates.
    with np.errstate(over="ignore", invalid="ignore"):
        for name in judged_names(reference, checks) if updates else ():
            (old,), vectors = flat([reference[name]]), flat([update.arrays[name] for update in updates])
            for block in blocks(old.size):
                before = old[block].astype(np.float64)
                deltas = [vector[block] - before for vector in vectors]
                squares += [np.einsum("p,p->", delta, delta) for delta in deltas]  # no BLAS: its sums depend on threads
                if len(updates) >= MIN_FOR_MEDIAN:
                    middle = _middle(deltas)
                    products += [np.einsum("p,p->", delta, middle) for delta in deltas]
                    middle_square += float(np.einsum("p,p->", middle, middle))
        norms = np.sqrt(squares)
        cosines = products / (norms * np.sqrt(middle_square))
    usual = float(np.median(norms)) if len(updates) >= MIN_FOR_MEDIAN else 0.0
    return [
        _verdict(update.client, float(norm), float(cosine), usual, defence)
        for update, norm, cosine in zip(updates, norms, cosines, strict=True)
    ]


def _verdict(client: str, norm: float, cosine: float, usual: float, defence: Defence) -> Verdict:
    if not np.isfinite(norm):
        return Verdict(client, "norm", "the length of what it changed is beyond float64")
    direction = cosine if np.isfinite(cosine) else None  # no median, no change, or a median of no change
    found = Verdict(client, norm=norm, cosine=direction)
    if usual > 0 and defence.max_norm is not None and norm > defence.max_norm * usual:
        reason = f"it changed {norm:.3g} in length, {norm / usual:.1f} times the median of the round"
        return msgspec.structs.replace(found, fault="norm", reason=f"{reason}; at most {defence.max_norm:g} are taken")
    if defence.min_cosine is not None and direction is not None and direction < defence.min_cosine:
        reason = f"its change points away from the others', cosine {direction:.2f}; at least {defence.min_cosine:g}"
        return msgspec.structs.replace(found, fault="cosine", reason=f"{reason} is asked for")
    if usual > 0 and defence.clip_norm is not None and norm > defence.clip_norm * usual:
        return msgspec.structs.replace(found, scale=defence.clip_norm * usual / norm)
    return found


def _middle(rows: Rows) -> NDArray[Any]:
    """The median, number by number; not a number where one of them is beyond float64."""
    try:
        inner = ordered(rows)
    except FloatingPointError:
        return np.full_like(rows[0], np.nan)
    return np.asarray(0.5 * (inner[(len(rows) - 1) // 2] + inner[len(rows) // 2]))


def _median(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Coordinatewise; of integers the lower middle one, so that a count stays one that somebody counted."""
    if arrays[0].dtype.kind == "f":
        return combine_arrays(arrays, lambda rows: _middle([row.astype(np.float64) for row in rows]))
    middle: NDArray[Any] = np.sort(np.stack(arrays), axis=0)[(len(arrays) - 1) // 2]
    return middle
