"""Best times: which games were cleared, in how many frames and by whom; a SQLite file that several processes may write.

Of every game (level, seed, speed, order of pills) the KEEP fastest clears stay, ordered by frames, then pills, then
run, so that what stays does not depend on who wrote first. The same clear of the same run told twice is one row: a run
that is resumed and plays again what it had played changes nothing.
"""

from __future__ import annotations

import errno
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from slipstream.config.records import from_value
from slipstream.errors import ScenarioError, SlipstreamError, TrainingError
from slipstream.types import F64
from slipstream.worlds.drmario.config import FRAMES_PER_SECOND, SEEDS, DrMarioConfig, GamesConfig, Speed
from slipstream.worlds.drmario.engine import HIGHEST_LEVEL, Terminal, begin_game
from slipstream.worlds.drmario.position import UNREACHABLE, plan_engine
from slipstream.worlds.drmario.registry import signature
from slipstream.worlds.tools import Records

FILE = "best_times.sqlite3"
KEEP = 10  # clears of each game
SHOWN = (0.0, 0.1, 0.5, 0.9)  # quantiles over seeds that viewers show
APPLICATION = 0x534C424D  # "SLBM": says whose database a SQLite file is
VERSION = 1
BUSY_S = 60.0  # another writer holds the file for milliseconds

# The fastest times people have made on each level from 0 on, in seconds (speedrun.com, June 2026).
HUMAN_RECORDS_S = (
    7.4, 14.1, 19.0, 28.3, 34.0, 41.0, 49.0, 50.5, 51.1, 65.2, 73.2, 80.1, 76.1, 85.4, 90.0, 90.6, 96.5, 103.0, 111.6,
    127.9, 123.6,
)  # fmt: skip

_COLUMNS = ("level", "seed", "speed", "signature", "frames", "pills", "run", "at", "game")
_TABLE = """CREATE TABLE clears (
  level INTEGER NOT NULL, seed INTEGER NOT NULL, speed TEXT NOT NULL, signature TEXT NOT NULL,
  frames INTEGER NOT NULL, pills INTEGER NOT NULL, run TEXT NOT NULL, at TEXT NOT NULL, game BLOB,
  PRIMARY KEY (level, seed, speed, signature, frames, pills, run)
) WITHOUT ROWID"""
_INSERT = f"""INSERT INTO clears VALUES ({", ".join("?" * len(_COLUMNS))})
  ON CONFLICT DO UPDATE SET game = coalesce(game, excluded.game)"""
_PRUNE = f"""DELETE FROM clears WHERE (level, seed, speed, signature) = (?1, ?2, ?3, ?4) AND (frames, pills, run) > (
  SELECT frames, pills, run FROM clears WHERE (level, seed, speed, signature) = (?1, ?2, ?3, ?4)
  ORDER BY frames, pills, run LIMIT 1 OFFSET {KEEP - 1})"""


class Clear(msgspec.Struct, frozen=True, kw_only=True):
    """A game that was cleared."""

    level: Annotated[int, Meta(ge=0, le=HIGHEST_LEVEL)]
    seed: Annotated[int, Meta(ge=1, le=SEEDS)]  # number of the console's
    speed: Speed
    signature: str  # of its pills: registry.signature
    frames: Annotated[int, Meta(ge=1)]  # from the first on which the first pill can be moved to the last virus
    pills: Annotated[int, Meta(ge=0)]
    run: str  # who cleared it
    at: str = ""  # when it was first told, UTC
    game: bytes | None = None  # how: see `pack`


def human_record_frames(level: int) -> float:
    """The fastest time people have made on a level, in frames; NaN where none is known."""
    return float(round(HUMAN_RECORDS_S[level] * FRAMES_PER_SECOND)) if level < len(HUMAN_RECORDS_S) else math.nan


def pack(frame_counter: int, placements: ArrayLike) -> bytes:
    """A game as bytes: the counter of its first frame, then every placement as two bytes, the low one first."""
    return bytes([frame_counter]) + np.asarray(placements, "<u2").tobytes()


def unpack(game: bytes) -> tuple[int, list[int]]:
    """The first frame's counter and the placements of a packed game."""
    if len(game) % 2 != 1:
        raise ScenarioError(f"a recorded game of {len(game)} bytes: it is one byte, and two for every placement")
    return game[0], np.frombuffer(game, "<u2", offset=1).tolist()


def replay(clear: Clear) -> int | None:
    """Play a recorded game again, button by button; the frames it takes, None where it does not clear the level."""
    if clear.game is None:
        raise ScenarioError(f"level {clear.level}, seed {clear.seed}, {clear.run}: its placements were not kept")
    counter, placements = unpack(clear.game)
    engine = begin_game(clear.level, clear.speed, clear.seed, counter)
    frames = 0
    while not engine.terminal and placements:
        plan = plan_engine(engine)
        nowhere = plan.cost_to_lock.min() == UNREACHABLE  # the pill falls by itself and is nobody's decision
        frames += engine.run(bytes(1) if nowhere else plan.script(placements.pop(0)))
        while not (engine.controllable or engine.terminal):
            engine.step()
            frames += 1
    return frames if engine.terminal == Terminal.CLEAR else None


# --- writing ---


def record_episodes(
    path: Path, spec_stats: Sequence[str], rows: Iterable[Sequence[float]], run: str, world: DrMarioConfig
) -> int:
    """Record the clears among finished episodes of a world; returns how many there were.

    Args:
        path: The database; made where there is none.
        spec_stats: Names of an episode's figures (`spec.stats`).
        rows: The figures of finished episodes, in that order.
        run: Who played.
        world: What was played. Games of two players, and levels that some phase plays with fewer viruses or for
            matches, are left out: an episode does not say whether its bottle was the level's own.
    """
    at = {name: spec_stats.index(name) for name in ("success", "clear_frames", "pills", "level", "seed")}
    whole = whole_levels(world)
    clears = [
        Clear(
            level=int(row[at["level"]]),
            seed=int(row[at["seed"]]),
            speed=world.speed,
            signature=signature(int(row[at["seed"]])),
            frames=int(row[at["clear_frames"]]),
            pills=int(row[at["pills"]]),
            run=run,
        )
        for row in rows
        if row[at["success"]] and int(row[at["level"]]) in whole
    ]
    if clears:
        record(path, clears)
    return len(clears)


def keep_records(
    config: DrMarioConfig, folder: Path, stats: Sequence[str], episodes: Sequence[Sequence[float]], run: str
) -> None:
    """Record the clears of a run in its folder."""
    if any(row[stats.index("success")] > 0 for row in episodes):
        record_episodes(folder / FILE, stats, episodes, run, config)


def whole_levels(world: DrMarioConfig) -> set[int]:
    """The levels that a world plays as they are, by one player, in every phase that plays them."""
    phases = world.phases or (GamesConfig(name="all", levels=world.levels),)
    part = {level for phase in phases if phase.viruses or phase.matches for level in phase.levels}
    return {level for phase in phases for level in phase.levels} - part if world.players == 1 else set()


def record(path: Path, clears: Iterable[Clear]) -> None:
    """Add clears, all or none, and keep the fastest of every game; safe from several processes at once."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    told = [clear if clear.at else msgspec.structs.replace(clear, at=now) for clear in clears]
    games = {(clear.level, clear.seed, clear.speed, clear.signature) for clear in told}
    with _opened(path, make=True) as database, _written(database):
        database.executemany(_INSERT, [[getattr(clear, name) for name in _COLUMNS] for clear in told])
        database.executemany(_PRUNE, sorted(games))


# --- reading ---


def best(path: Path, level: int, seed: int, k: int = 1, speed: Speed | None = None) -> list[Clear]:
    """The k fastest clears of one seed on a level."""
    return clears(path, level, seed, speed)[:k]


def clears(path: Path, level: int | None = None, seed: int | None = None, speed: Speed | None = None) -> list[Clear]:
    """Every clear that is kept, or those of a level, a seed, a speed: by level, then the fastest first."""
    asked, given = _asked(level=level, seed=seed, speed=speed)
    order = "level, frames, pills, run, seed, speed, signature"
    with _opened(path) as database:
        rows = database.execute(f"SELECT {', '.join(_COLUMNS)} FROM clears {asked} ORDER BY {order}", given).fetchall()
    try:
        return [from_value(dict(zip(_COLUMNS, row, strict=True)), Clear) for row in rows]
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{path}: holds a row that is no clear: {error}") from None


def floors(path: Path, level: int, quantiles: Sequence[float], speed: Speed | None = None) -> F64:
    """Quantiles, over the seeds that were cleared, of each seed's best frames on a level; NaN where there is none.

    They are goals for time: the 0.5 of a level is what half of its seeds have been cleared in.
    """
    asked, given = _asked(level=level, speed=speed)
    with _opened(path) as database:
        bests = database.execute(f"SELECT min(frames) FROM clears {asked} GROUP BY seed", given).fetchall()
    return np.quantile(np.array(bests, np.float64), quantiles) if bests else np.full(len(quantiles), np.nan)


def records(folder: Path) -> Records | None:
    """The best times of a run by level, for viewers: how many seeds were cleared, and quantiles of their bests."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with _peeked(path) as database:
            found = database.execute("SELECT level, min(frames) FROM clears GROUP BY level, seed, speed").fetchall()
    except sqlite3.Error:  # being written at this moment, or none of ours
        return None
    rows = []
    for level in sorted({level for level, _ in found}):
        bests = [frames for own, frames in found if own == level]
        floors = np.quantile(bests, SHOWN).tolist()
        times = [*floors, human_record_frames(level)]
        rows.append((str(level), str(len(bests)), *(_seconds(frames) for frames in times)))
    names = ("fastest", "10 % of seeds", "half of seeds", "90 % of seeds", "human record")
    title = "best times: seconds in which so many seeds were cleared"
    return Records(title, ("level", "seeds", *names), tuple(rows))


def _seconds(frames: float) -> str:
    return "–" if math.isnan(frames) else f"{frames / FRAMES_PER_SECOND:.1f}"


def _asked(**columns: int | str | None) -> tuple[str, tuple[int | str, ...]]:
    """The WHERE of those columns that are asked for, and its values."""
    given = {name: value for name, value in columns.items() if value is not None}
    return f"WHERE {' AND '.join(f'{name} = ?' for name in given)}" if given else "", tuple(given.values())


# --- the file ---


@contextmanager
def _opened(path: Path, make: bool = False) -> Iterator[sqlite3.Connection]:
    """The database, checked to be one of ours; what SQLite finds wrong with it becomes an error of ours."""
    try:
        if make and not path.exists():
            _make(path)
        if not path.is_file():
            raise ScenarioError(f"{path}: there is no database of best times; training and sweeps write them")
        with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last clears, never the file
            _refuse_foreign(path, database)
            yield database
    except sqlite3.Error as error:
        raise _explained(path, error) from None


@contextmanager
def _peeked(path: Path) -> Iterator[sqlite3.Connection]:
    """The database for a reader who must leave no trace: SQLite would make files beside one that nobody writes now."""
    still = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{still}", uri=True, timeout=0)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        yield database


@contextmanager
def _written(database: sqlite3.Connection) -> Iterator[None]:
    """One transaction that has the right to write from its beginning, so that it never has to give up halfway."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if database.in_transaction:  # a full disk has ended it already
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _make(path: Path) -> None:
    """Make an empty database beside its place and put it there whole, unless another process was first.

    Made in place, two who make it at once would meet: SQLite refuses a change to WAL at once, however long one waits.
    """
    with TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
        whole = Path(folder) / path.name
        with closing(sqlite3.connect(whole)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {VERSION}")
            database.execute(_TABLE)
        with suppress(FileExistsError):
            os.link(whole, path)


def _refuse_foreign(path: Path, database: sqlite3.Connection) -> None:
    """Only exactly our table is worked with: a trigger in the file would run with what we write."""
    ((application,),) = database.execute("PRAGMA application_id")
    ((version,),) = database.execute("PRAGMA user_version")
    if application == APPLICATION and version != VERSION:
        raise ScenarioError(f"{path}: best times of version {version}; this reads version {VERSION}")
    schema = list(database.execute("SELECT type, name, sql FROM sqlite_master"))
    if application != APPLICATION or [sql for _, _, sql in schema] != [_TABLE]:
        found = ", ".join(f"{kind} {name}" for kind, name, _ in schema[:4]) or "nothing"
        raise ScenarioError(
            f"{path}: a SQLite database of application {application} with {found!s:.200}, none of best times; "
            "name another file"
        )


def _explained(path: Path, error: sqlite3.Error) -> SlipstreamError | OSError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return TrainingError(f"{path}: another process has kept it from being written for {BUSY_S:g} s")
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return OSError(errno.EIO, f"best times cannot be kept here: {error}", str(path))
    return ScenarioError(f"{path}: no readable database of best times ({error}); move it away and begin a new one")
