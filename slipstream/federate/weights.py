"""The weights of clients in a weighted mean: what they claim, within limits, or what the settings give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from slipstream.errors import FederationError
from slipstream.federate.update import ClientUpdate

Weights = Literal["custom", "samples", "reward_delta"]

MOST_WEIGHT = 2.0  # of the round's median: what a claimed weight may count at most


def given_weights(updates: Sequence[ClientUpdate], weights: Mapping[str, float]) -> dict[str, float]:
    """Weights that nobody claims, as they are part of the settings: not clipped, but complete."""
    ids = sorted(update.client for update in updates)
    if missing := [client for client in ids if client not in weights]:
        raise FederationError(f"client {missing[0]}: there are weights for {', '.join(sorted(weights))} only")
    return {client: float(weights[client]) for client in ids}


def claimed_weights(updates: Sequence[ClientUpdate], by: Weights) -> dict[str, float]:
    """What each client counts in a weighted mean, clipped to twice the round's median, whatever it claims.

    custom is the update's own weight, samples its fact of that name. reward_delta is how much its mean return has
    risen since the last round: three median deviations above the round's median count double, three below nothing.
    """
    claims: dict[str, float] = {}
    for update in sorted(updates, key=lambda update: update.client):
        if by != "custom" and by not in update.facts:
            raise FederationError(f"client {update.client}: weights are by {by}, but the update does not say its {by}")
        claims[update.client] = float(update.weight if by == "custom" else update.facts[by])
    for client, claim in claims.items():
        if not np.isfinite(claim) or (claim < 0 and by != "reward_delta"):
            raise FederationError(f"client {client}: {by} of {claim} cannot be a weight")
    if by == "reward_delta":
        rise = np.array(list(claims.values()))
        middle = np.median(rise)
        spread = 3.0 * np.median(np.abs(rise - middle))
        score = np.sign(rise - middle) if spread == 0 else np.clip((rise - middle) / spread, -1.0, 1.0)
        claims = dict(zip(claims, (1.0 + score).tolist(), strict=True))
    return clip_weights(claims)


def clip_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Nobody counts more than twice the median of those who count at all.

    Of an even number the lower median, so that one of two cannot raise it.
    """
    counting = sorted(weight for weight in weights.values() if weight > 0)
    most = MOST_WEIGHT * counting[(len(counting) - 1) // 2] if counting else 0.0
    return {client: min(weight, most) for client, weight in weights.items()}
