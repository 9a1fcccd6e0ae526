"""Lateral collision risk in the manner of ICAO (Reich's model, Doc 9689), with every assumption a parameter.

    N_ay = P_y(S_y) P_z(0) (λ_x / S_x) Σ_d E_y(d) (|Δv_x(d)| / 2λ_x + |v_y| / 2λ_y + |v_z| / 2λ_z)

in collisions per flight hour, over the directions d (same, opposite). P_y(S_y), the chance that two aircraft which
should be S_y apart overlap sideways, is what episodes say something about: the share of them (or of the time pairs
spend together) with less than S_y, times the chance λ_y / S_y that two such aircraft overlap, if all offsets below S_y
are equally likely. That is a stand-in: a few hundred episodes show nothing near a target level of safety of 5e-9 per
hour, which the upper end of the interval makes plain. Use it to compare policies, not to certify an airspace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from slipstream.worlds.airspace.alerts import Flight, share
from slipstream.worlds.airspace.geometry import separation_nm

NM_M = 1852.0


@dataclass(frozen=True)
class Assumptions:
    """What the model needs beside the episodes; as published with the environment this world grew from, or usual."""

    lateral_nm: float = 5.0  # S_y
    longitudinal_nm: float = 100.0  # S_x: pairs within this along the track are near each other
    length_nm: float = 37.6 / NM_M  # λ_x, of an A320
    width_nm: float = 35.8 / NM_M  # λ_y
    height_nm: float = 11.8 / NM_M  # λ_z
    same_per_hour: float = 10.0  # aircraft on the neighbouring track
    opposite_per_hour: float = 5.0
    speed_kt: float = 480.0  # |V|
    along_kt: float = 20.0  # |Δv_x| of two aircraft in the same direction
    across_kt: float = 80.0  # |v_y| as they meet
    vertical_kt: float = 1.5  # |v_z|
    level_overlap: float = 0.538  # P_z(0): both at the same level overlap vertically


def overlap_rate(assumed: Assumptions) -> float:
    """Collisions per flight hour for P_y(S_y) = 1."""
    a = assumed
    sideways = a.across_kt / (2 * a.width_nm) + a.vertical_kt / (2 * a.height_nm)
    total = 0.0
    for per_hour, along_kt in ((a.same_per_hour, a.along_kt), (a.opposite_per_hour, 2 * a.speed_kt)):
        occupancy = 2 * a.longitudinal_nm * per_hour / a.speed_kt  # aircraft of that flow within S_x, ahead or behind
        total += occupancy * (along_kt / (2 * a.length_nm) + sideways)
    return a.level_overlap * a.length_nm / a.longitudinal_nm * total


def collision_risk(below: float, assumed: Assumptions | None = None) -> float:
    """N_ay per flight hour, where this share of episodes, or of pairs' time, had less than S_y."""
    assumed = assumed or Assumptions()
    return below * assumed.width_nm / assumed.lateral_nm * overlap_rate(assumed)


def figures(flights: Sequence[Flight], lateral_nm: float) -> dict[str, float]:
    """Shares of episodes and of pairs' time below S_y, the risk by either, and the highest the episodes allow."""
    time = np.array([_pairs(flight, lateral_nm) for flight in flights]).reshape(-1, 2)
    below_episodes, (below, together) = int((time[:, 0] > 0).sum()), time.sum(0).tolist()
    assumed = Assumptions(lateral_nm=lateral_nm)
    by_episode, by_time = share(below_episodes, len(flights)), share(below, together)
    highest = _highest(below_episodes, len(flights))
    return {
        "risk_p_y_episodes": by_episode,
        "risk_p_y_pair_time": by_time,
        "risk_n_ay_episodes": collision_risk(by_episode, assumed),
        "risk_n_ay_episodes_high": collision_risk(highest, assumed),
        "risk_n_ay_pair_time": collision_risk(by_time, assumed),
    }


def _pairs(flight: Flight, lateral_nm: float) -> tuple[float, float]:
    """Samples that pairs spent below a distance, and together."""
    below = together = 0
    for i, j in combinations(range(flight.states.shape[1]), 2):
        both = flight.present[:, i] & flight.present[:, j]
        near = separation_nm(flight.states[:, i], flight.states[:, j]) < lateral_nm
        together += int(both.sum())
        below += int((both & near).sum())
    return below, together


def _highest(happened: int, episodes: int) -> float:
    """Upper end of the one-sided 95 % interval of a share (Clopper and Pearson): about 3 / n if it never happened."""
    from scipy.stats import beta

    if not episodes:
        return math.nan
    return 1.0 if happened == episodes else float(beta.ppf(0.95, happened + 1, episodes - happened))
