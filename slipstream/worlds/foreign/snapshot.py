"""What can be saved of foreign environments: which episode each world would start next."""

from __future__ import annotations

import msgspec

from slipstream.config.records import from_json
from slipstream.errors import WorldContractError

SNAPSHOT_VERSION = 1


class ForeignSnapshot(msgspec.Struct, forbid_unknown_fields=True):
    """What `ForeignVecEnv.snapshot` writes."""

    version: int
    name: str
    seeds: list[int]
    streams: list[int]
    next_episode: list[int]


def encoded(name: str, seeds: list[int], streams: list[int], next_episode: list[int]) -> bytes:
    """A snapshot of this world as bytes."""
    return msgspec.json.encode(ForeignSnapshot(SNAPSHOT_VERSION, name, seeds, streams, next_episode))


def decoded(name: str, data: bytes, worlds: int) -> ForeignSnapshot:
    """The snapshot in these bytes, which must be of so many worlds of this name."""
    try:
        saved = from_json(data, ForeignSnapshot)
    except msgspec.MsgspecError as error:
        raise WorldContractError(f"{name}: cannot restore {len(data)} bytes: {error}") from None
    widths = {len(saved.seeds), len(saved.streams), len(saved.next_episode)}
    if saved.version != SNAPSHOT_VERSION or saved.name != name or widths != {worlds}:
        raise WorldContractError(
            f"the snapshot is of {len(saved.seeds)} worlds of {saved.name} (version {saved.version}), "
            f"not of {worlds} worlds of {name} (version {SNAPSHOT_VERSION})"
        )
    return saved
