"""The registry: 120 of the console's 32,767 games on every level from 0 to 20, the same for everybody, from a rule.

The rule: seeds are taken in the order of the SHA-256 of `slipstream drmario registry 1 SEED` (the number in decimal);
one whose layout on any level is that of a seed taken before is passed over; the first 120 are the registry. They are
the same seeds on every level, so a world that plays several levels needs one list. A console makes the pills of a game
before its viruses: a seed's pills are the same on every level too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from slipstream.errors import ScenarioError, WorldContractError
from slipstream.types import U8
from slipstream.worlds.drmario.config import SEEDS
from slipstream.worlds.drmario.engine import generate, seed_at
from slipstream.worlds.vec_env import VecEnv

LEVELS = tuple(range(21))
PER_LEVEL = 120
RULE = "slipstream drmario registry 1"
DIGITS = 16  # of a hash that are kept: 64 bits
MOST_DRAWS = 1_000  # per seed, before it is said that a world does not play it


class RecordedGame(msgspec.Struct, frozen=True):
    """One game of the registry."""

    level: int
    seed: int  # number of the console's, 1 to 32767: drmario.seed_at
    layout: str  # hash of the 128 cells
    signature: str  # hash of the pills
    pills: str  # 128 digits from 0 to 8, as `generate` gives them: the first under control is number 1


@lru_cache(maxsize=1)
def registry_seeds() -> tuple[int, ...]:
    """The registry's seeds, in its order."""
    chosen: list[int] = []
    taken: set[tuple[int, str]] = set()
    for seed in sorted(range(1, SEEDS + 1), key=_rank):
        layouts = {(level, _hash(generate(level, seed_at(seed))[0])) for level in LEVELS}
        if taken.isdisjoint(layouts):
            chosen.append(seed)
            taken |= layouts
        if len(chosen) == PER_LEVEL:
            break
    return tuple(chosen)


def entries(level: int) -> tuple[RecordedGame, ...]:
    """The registry's games on one level."""
    if level not in LEVELS:
        raise ScenarioError(f"level {level}: the registry has the levels {LEVELS[0]} to {LEVELS[-1]}")
    return tuple(_entry(level, seed) for seed in registry_seeds())


@lru_cache(maxsize=SEEDS)
def signature(seed: int) -> str:
    """The hash of a seed's 128 pills: what tells one order of pills from another."""
    return _hash(generate(0, seed_at(seed))[1])


def episodes_of(env: VecEnv, seeds: Sequence[int], games: int, stream: int, first: int) -> dict[int, list[int]]:
    """The numbers of the first episodes, from `first` on, in which a world plays each of these seeds.

    A world draws a game's seed from its episode's stream, keyed by `stream` and the number; which seed that gives is
    seen by starting episodes. The numbers hold in every phase of that world: the level is drawn apart from the seed.
    """
    at = env.spec.frame_fields.index("seed")
    wanted: dict[int, list[int]] = {seed: [] for seed in seeds}
    missing = len(wanted) * games
    for begin in range(first, first + MOST_DRAWS * games * max(1, len(wanted)), env.num_worlds):
        if not missing:
            return wanted
        env.reseed(
            np.full(env.num_worlds, stream, np.uint64), np.arange(begin, begin + env.num_worlds, dtype=np.uint32)
        )
        env.reset()
        for i in range(env.num_worlds):
            found = wanted.get(int(env.frame(i)[0, at]))
            if found is not None and len(found) < games:
                found.append(begin + i)
                missing -= 1
    never = [seed for seed, found in wanted.items() if len(found) < games]
    raise WorldContractError(
        f"{env.spec.name} does not play the seeds {', '.join(map(str, never[:5]))} of its registry"
    )


def _entry(level: int, seed: int) -> RecordedGame:
    board, pills = generate(level, seed_at(seed))
    return RecordedGame(level, seed, _hash(board), signature(seed), "".join(map(str, pills.tolist())))


def _rank(seed: int) -> bytes:
    return hashlib.sha256(f"{RULE} {seed}".encode()).digest()


def _hash(cells: U8) -> str:
    return hashlib.sha256(cells.tobytes()).hexdigest()[:DIGITS]
