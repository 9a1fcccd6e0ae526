"""Best times: nothing is lost among writers, exactly the fastest stay, and no file can do harm."""

import math
import multiprocessing
import os
import signal
import sqlite3
from collections import defaultdict

import msgspec
import numpy as np
import pytest

from slipstream.data.disk import is_disk_full
from slipstream.errors import ScenarioError, TrainingError
from slipstream.worlds.drmario import best_times
from slipstream.worlds.drmario.best_times import (
    KEEP,
    Clear,
    best,
    clears,
    floors,
    human_record_frames,
    record,
    record_episodes,
    replay,
    unpack,
    whole_levels,
)
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.drmario.registry import signature
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

STATS = ("success", "clean", "clear_frames", "frames", "pills", "level", "seed")
FORK = multiprocessing.get_context("fork")


def clear(frames: int, seed: int = 1, level: int = 0, run: str = "a", **more) -> Clear:
    return Clear(**{"level": level, "seed": seed, "speed": "high", "signature": "s", "frames": frames, "pills": 9,
                    "run": run, **more})  # fmt: skip


def drawn(rng: np.random.Generator, run: str, count: int) -> list[Clear]:
    """Clears of a few games, with many ties and repetitions."""
    return [
        clear(int(rng.integers(1, 80)), int(rng.integers(1, 3)), int(rng.integers(0, 2)), run,
              pills=int(rng.integers(1, 3)), speed=str(rng.choice(["low", "high"])))
        for _ in range(count)
    ]  # fmt: skip


def fastest(told: list[Clear]) -> set[tuple]:
    """What must stay of all that was told: a plain sort within every game."""
    games = defaultdict(set)
    for c in told:
        games[c.level, c.seed, c.speed, c.signature].add((c.frames, c.pills, c.run))
    return {(*game, *row) for game, rows in games.items() for row in sorted(rows)[:KEEP]}


def kept(path) -> set[tuple]:
    return {(c.level, c.seed, c.speed, c.signature, c.frames, c.pills, c.run) for c in clears(path)}


def write(path, number: int, ready) -> None:
    rng = np.random.default_rng(number)
    ready.wait()
    for _ in range(25):
        record(path, drawn(rng, f"run_{number % 2}", 6))


def test_four_processes_lose_nothing_and_keep_exactly_the_fastest(tmp_path):
    path = tmp_path / "times.sqlite3"  # not there yet: they race to make it, too
    ready = FORK.Barrier(4)
    writers = [FORK.Process(target=write, args=(path, number, ready)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * 4
    rngs = [np.random.default_rng(number) for number in range(4)]
    told = [c for number, rng in enumerate(rngs) for _ in range(25) for c in drawn(rng, f"run_{number % 2}", 6)]
    assert len(fastest(told)) == 8 * KEEP, "every game has more clears than are kept"
    assert kept(path) == fastest(told)
    assert not list(tmp_path.glob(".tmp-*"))
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def die_while_writing(path, ready) -> None:
    with best_times._opened(path) as database:
        database.execute("BEGIN IMMEDIATE")
        database.executemany(
            "INSERT INTO clears VALUES (0, ?, 'high', 's', 1, 1, 'dead', '', NULL)", [(i,) for i in range(999)]
        )
        ready.set()
        signal.pause()


def test_a_writer_that_is_killed_leaves_what_was_there_and_nothing_of_its_own(tmp_path):
    path = tmp_path / "times.sqlite3"
    record(path, [clear(500), clear(400, seed=2)])
    ready = FORK.Event()
    victim = FORK.Process(target=die_while_writing, args=(path, ready))
    victim.start()
    assert ready.wait(60)
    assert len(clears(path)) == 2, "readers are not kept waiting by a writer"
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert {c.run for c in clears(path)} == {"a"}
    record(path, [clear(300)])
    assert [c.frames for c in best(path, 0, 1, k=5)] == [300, 500]


def test_clears_come_back_as_they_were_told_the_fastest_first(tmp_path):
    path = tmp_path / "times.sqlite3"
    told = [
        clear(700, at="yesterday"),
        clear(300, game=b"\x01\x02\x00"),
        clear(500, level=3),
        clear(300, seed=9, run="b"),
    ]
    record(path, told)
    found = clears(path)
    assert [(c.level, c.frames, c.run) for c in found] == [(0, 300, "a"), (0, 300, "b"), (0, 700, "a"), (3, 500, "a")]
    assert found[2].at == "yesterday"
    assert found[0].at > "2026"
    assert found[0].game == b"\x01\x02\x00"
    assert best(path, 0, 1) == [found[0]]
    assert best(path, 0, 1, k=9) == [found[0], found[2]]
    assert best(path, 0, 1, speed="low") == []
    assert [c.level for c in clears(path, level=3)] == [3]


def test_what_a_resumed_run_tells_again_changes_nothing_but_may_add_the_game(tmp_path):
    path = tmp_path / "times.sqlite3"
    record(path, [clear(300, at="first")])
    record(path, [clear(300, at="second", game=b"\x07"), clear(300, at="third")])
    (found,) = clears(path)
    assert (found.at, found.game) == ("first", b"\x07")


def test_all_of_a_batch_is_written_or_nothing(tmp_path):
    path = tmp_path / "times.sqlite3"
    record(path, [clear(500)])
    with pytest.raises(ScenarioError, match=r"times\.sqlite3: .*clears\.run"):
        record(path, [clear(100), msgspec.structs.replace(clear(200), run=None)])
    assert [c.frames for c in clears(path)] == [500]


def rows_of(*episodes: dict) -> list[list[float]]:
    return [[float(episode.get(name, math.nan)) for name in STATS] for episode in episodes]


def test_of_finished_episodes_the_cleared_ones_are_recorded_once_however_often_they_are_told(tmp_path):
    path = tmp_path / "times.sqlite3"
    rows = rows_of(
        {"success": 1, "clear_frames": 900, "frames": 900, "pills": 12, "level": 2, "seed": 77},
        {"success": 0, "frames": 4000, "pills": 50, "level": 2, "seed": 78},
        {"success": 1, "clear_frames": 800, "frames": 800, "pills": 11, "level": 0, "seed": 77},
    )
    world = DrMarioConfig(levels=(0, 2), speed="medium")
    assert record_episodes(path, STATS, rows, "run_1", world) == 2
    once = clears(path)
    assert record_episodes(path, STATS, rows, "run_1", world) == 2
    assert clears(path) == once
    assert [(c.level, c.seed, c.speed, c.signature, c.frames, c.pills, c.run) for c in once] == [
        (0, 77, "medium", signature(77), 800, 11, "run_1"),
        (2, 77, "medium", signature(77), 900, 12, "run_1"),
    ]
    nothing = tmp_path / "nothing.sqlite3"
    assert record_episodes(nothing, STATS, rows[1:2], "run_1", world) == 0
    assert not nothing.exists()


def test_games_that_are_not_the_levels_own_are_no_best_times(tmp_path):
    row = rows_of({"success": 1, "clear_frames": 90, "pills": 2, "level": 0, "seed": 7})
    phases = ({"name": "one", "viruses": 1}, {"name": "few", "levels": (0, 1)}, {"name": "more", "levels": (1, 2)})
    curriculum = DrMarioConfig.model_validate({"phases": phases})
    assert whole_levels(curriculum) == {1, 2}
    assert whole_levels(DrMarioConfig.model_validate({"phases": ({"name": "m", "matches": 2},)})) == set()
    assert whole_levels(DrMarioConfig(players=2)) == set()
    assert whole_levels(DrMarioConfig(levels=(4,))) == {4}
    for world in (curriculum, DrMarioConfig(players=2)):
        assert record_episodes(tmp_path / "times.sqlite3", STATS, row, "r", world) == 0


def test_floors_are_numpys_quantiles_of_every_seeds_best(tmp_path):
    path = tmp_path / "times.sqlite3"
    rng = np.random.default_rng(3)
    told = [
        clear(int(rng.integers(300, 9000)), seed, level) for level in (0, 5) for seed in range(1, 40) for _ in range(3)
    ]
    record(path, [*told, clear(1, seed=1, speed="low"), clear(2, level=1)])
    at = [0.0, 0.1, 0.33, 0.5, 0.9, 1.0]
    bests = [min(c.frames for c in told if (c.level, c.seed) == (5, seed)) for seed in range(1, 40)]
    np.testing.assert_array_equal(floors(path, 5, at), np.quantile(bests, at))
    assert floors(path, 0, [0.0])[0] == 1
    assert floors(path, 0, [0.0], speed="high")[0] == min(c.frames for c in told if c.level == 0)
    assert np.isnan(floors(path, 20, at)).all()


# --- games that are kept ---


def played(level: int, speed: str) -> list[Clear]:
    """Clears by the script, with their placements."""
    config = DrMarioConfig(levels=(level,), speed=speed, max_pills=250)
    env = make_worlds(config, 12, EnvOptions(seed=4, autoreset=False))
    env.reset()
    counter = env.spec.frame_fields.index("counter")
    first = [int(env.frame(i)[0, counter]) for i in range(12)]
    choices, found = [[] for _ in range(12)], []
    stat = env.spec.stats.index
    while env.alive.any():
        env.act_scripted("greedy", [0])
        for i in range(12):
            choices[i].append(int(env.actions[i, 0]))
        env.step()
        for i in np.flatnonzero(env.episode_done):
            figures = env.episode_stats[i]
            if figures[stat("success")]:
                seed = int(figures[stat("seed")])
                frames, pills = int(figures[stat("clear_frames")]), int(figures[stat("pills")])
                game = best_times.pack(first[i], choices[i])
                found.append(clear(frames, seed, level, speed=speed, pills=pills, game=game))
    return found


@pytest.mark.parametrize(("level", "speed"), [(0, "high"), (3, "low")])
def test_a_game_that_is_kept_takes_the_frames_it_says_when_played_button_by_button(level, speed):
    found = played(level, speed)
    assert len(found) >= 2
    assert [replay(c) for c in found] == [c.frames for c in found]
    assert [len(unpack(c.game)[1]) for c in found] == [c.pills for c in found]


def test_a_game_that_is_not_what_it_says_is_found_out():
    game = played(0, "high")[0]
    counter, placements = unpack(game.game)
    assert replay(msgspec.structs.replace(game, game=best_times.pack(counter, placements[:-1]))) is None
    assert replay(msgspec.structs.replace(game, game=best_times.pack(counter, [600, 65535]))) is None
    assert replay(msgspec.structs.replace(game, seed=game.seed % 32767 + 1)) != game.frames
    with pytest.raises(ScenarioError, match=f"level 0, seed {game.seed}, "):
        replay(msgspec.structs.replace(game, game=None))
    with pytest.raises(ScenarioError, match="2 bytes"):
        replay(msgspec.structs.replace(game, game=b"\x01\x02"))


def test_the_human_records_are_in_frames():
    assert human_record_frames(0) == round(7.4 * 60.0988)
    assert human_record_frames(20) == round(123.6 * 60.0988)
    assert math.isnan(human_record_frames(21))


# --- files that are not ours, or cannot be written ---


def altered(path, *statements: str) -> None:
    record(path, [clear(500)])
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)


TRIGGER = "CREATE TRIGGER t AFTER INSERT ON clears BEGIN DELETE FROM clears; END"
VIEW = ("DROP TABLE clears", "CREATE VIEW clears AS SELECT 1")
FOREIGN = {
    "text": (lambda path: path.write_text("frames,seed\n" * 500), r"times\.sqlite3: .*file is not a database"),
    "another program's": (lambda path: sqlite3.connect(path).execute("CREATE TABLE t (x)"), "application 0 .*table t"),
    "empty": (lambda path: path.touch(), "application 0 .*nothing"),
    "another version": (lambda path: altered(path, "PRAGMA user_version = 2"), "version 2.* version 1"),
    "with a trigger": (lambda path: altered(path, TRIGGER), "table clears, trigger t"),
    "with a view": (lambda path: altered(path, *VIEW), "view clears"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_database_of_ours_is_neither_read_nor_written(kind, tmp_path):
    path = tmp_path / "times.sqlite3"
    make, message = FOREIGN[kind]
    make(path)
    before = path.read_bytes()
    for use in (lambda: clears(path), lambda: record(path, [clear(400)]), lambda: floors(path, 0, [0.5])):
        with pytest.raises(ScenarioError, match=message):
            use()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ("0, 1, 'high', 's', 'soon', 9", "frames"),
        ("0, 1, 'fast', 's', 5, 9", "speed"),
        ("0, -1, 'high', 's', 5, 9", "seed"),
    ],
)
def test_a_row_that_is_no_clear_is_told_with_its_column(values, column, tmp_path):
    path = tmp_path / "times.sqlite3"
    altered(path, f"INSERT INTO clears VALUES ({values}, 'r', '', NULL)")
    with pytest.raises(ScenarioError, match=rf"times\.sqlite3: .*\$\.{column}"):
        clears(path)


def test_a_damaged_database_is_told_and_a_missing_one_too(tmp_path):
    path = tmp_path / "times.sqlite3"
    record(path, [clear(500 + i, seed=i + 1) for i in range(300)])
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xee" * (len(whole) - 4096))
    with pytest.raises(ScenarioError, match=f"{path}: .*malformed"):
        clears(path)
    with pytest.raises(ScenarioError, match=r"nothing\.sqlite3: "):
        clears(tmp_path / "nothing.sqlite3")
    assert not (tmp_path / "nothing.sqlite3").exists()
    with pytest.raises(ScenarioError, match=f"{tmp_path}: "):
        record(tmp_path, [clear(1)])


def test_a_full_disk_is_told_as_one_so_that_training_can_go_on(tmp_path, monkeypatch):
    path = tmp_path / "times.sqlite3"
    record(path, [clear(500)])
    connect = sqlite3.connect

    def cramped(*args, **kwargs):
        database = connect(*args, **kwargs)
        database.execute("PRAGMA max_page_count = 2")
        return database

    monkeypatch.setattr(sqlite3, "connect", cramped)
    with pytest.raises(OSError, match=r"times\.sqlite3") as error:
        record(path, [clear(500, seed=seed, game=bytes(999)) for seed in range(1, 99)])
    assert is_disk_full(error.value)
    assert len(clears(path)) == 1


def test_a_database_that_somebody_holds_is_told_after_a_while(tmp_path, monkeypatch):
    path = tmp_path / "times.sqlite3"
    record(path, [clear(500)])
    monkeypatch.setattr(best_times, "BUSY_S", 0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(TrainingError, match=r"0\.01 s"):
        record(path, [clear(400)])
    holder.close()
    record(path, [clear(400)])
