"""Decisions and where they led, as rows: what replay holds and off-policy learners eat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.data.rollout import F32, U8, Blocks

I64 = NDArray[np.int64]
Fields = dict[str, NDArray[Any]]

# How a row ended, where that is kept beside the rows: they alone do not tell a truncation from a decision followed by
# another.
WENT_ON, TERMINATED, TRUNCATED = 0, 1, 2


@dataclass(frozen=True)
class Transitions:
    """Rows of finished decisions; the value target of a row is reward + discount * value(next_obs)."""

    obs: Blocks  # per block [B, ...], at the decision
    action: NDArray[Any]  # f32 [B, K] or i32 [B]
    mask: U8 | None  # [B, M], allowed choices at the decision
    reward: F32  # [B], discounted over the ticks (and the decisions, for n-step) the row spans
    discount: F32  # [B], gamma^ticks; 0 where the row ends in a termination, so that nothing is bootstrapped
    next_obs: Blocks  # per block [B, ...]; the final observation where the row ends in a truncation
    next_mask: U8 | None  # [B, M]

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(frozen=True)
class Sample:
    """Transitions drawn from a replay, and how; the arrays are valid until the next draw."""

    rows: Transitions
    index: I64  # [B], where they stand: what `update_priorities` wants back
    weight: F32  # [B], importance weights; 1 where the draw was uniform


def to_fields(rows: Transitions) -> Fields:
    """The same arrays by name: what files hold and copies go through. Optional ones that are None are left out."""
    return {
        **{f"obs.{name}": block for name, block in rows.obs.items()},
        **{f"next_obs.{name}": block for name, block in rows.next_obs.items()},
        "action": rows.action,
        "reward": rows.reward,
        "discount": rows.discount,
        **({} if rows.mask is None else {"mask": rows.mask}),
        **({} if rows.next_mask is None else {"next_mask": rows.next_mask}),
    }


def from_fields(fields: Fields, blocks: Sequence[str] | None = None) -> Transitions:
    """The opposite of `to_fields`; `blocks` are those of an observation in order, where `fields` come from a file."""

    def under(prefix: str) -> Blocks:
        if blocks is not None:
            return {name: fields[prefix + name] for name in blocks}
        return {name.removeprefix(prefix): array for name, array in fields.items() if name.startswith(prefix)}

    return Transitions(
        obs=under("obs."),
        action=fields["action"],
        mask=fields.get("mask"),
        reward=fields["reward"],
        discount=fields["discount"],
        next_obs=under("next_obs."),
        next_mask=fields.get("next_mask"),
    )
