"""Sweeps: the episodes that were named, each once, the same in any batch; figures that make nothing up."""

import csv
import io
import math

import numpy as np
import pytest
from learning import scenario_of
from PIL import Image

from slipstream.collect.episodes import play
from slipstream.data import disk
from slipstream.run.saved_cast import script_instead
from slipstream.stats.intervals import median_interval, upper_cvar, wilson
from slipstream.worlds.drmario.cli import playing
from slipstream.worlds.drmario.cli.playing import DrawnEpisode, PlayerRow, as_columns, play_each, spread
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

PHASES = [{"name": "easy", "viruses": 1}, {"name": "level 2", "levels": [2]}, {"name": "matches", "matches": 1}]
SEED = 9


def quiet(done: int) -> None:
    del done


@pytest.fixture(scope="module")
def scenario():
    return scenario_of("drmario_level_0", {"world.phases": PHASES, "world.max_pills": 15})


def worlds(scenario, count: int):
    return make_worlds(scenario.world, count, EnvOptions(evaluation=True, autoreset=False))


def test_every_episode_is_the_one_that_playing_it_alone_gives(scenario):
    """`play` is the oracle: one world, one episode at a time, by its number."""
    draws = [DrawnEpisode(phase, number) for number in (3, 70, 4) for phase in (2, 0, 1)] + [DrawnEpisode(0, 3)]
    alone = worlds(scenario, 1)
    expected = []
    for phase, number in draws:
        alone.phases = [phase]
        expected.append(play(alone, script_instead(scenario, "random", alone.spec), 1, SEED, number).stats[0])
    assert len({tuple(row.tolist()) for row in expected[:9]}) == 9, "they are different episodes"
    for width in (1, 4, 16):
        env, told = worlds(scenario, width), []
        played = play_each(env, script_instead(scenario, "random", env.spec), draws, SEED, told.append)
        np.testing.assert_array_equal([game.stats for game in played], expected)
        assert told[-1] == len(draws)
        assert told == sorted(told)


def test_an_episode_comes_with_its_first_frame_and_the_actions_that_make_it_again(scenario):
    env = worlds(scenario, 3)
    draws = [DrawnEpisode(1, number) for number in range(5)]
    played = play_each(env, script_instead(scenario, "random", env.spec), draws, SEED, quiet)
    alone = worlds(scenario, 1)
    for draw, game in zip(draws, played, strict=True):
        alone.phases = [draw.phase]
        alone.reseed(np.array([SEED], np.uint64), np.array([draw.number], np.uint32))
        alone.reset()
        np.testing.assert_array_equal(alone.frame(0), game.opening)
        for action in game.actions:
            assert not alone.episode_done[0]
            alone.actions[0] = action
            alone.step()
        assert alone.episode_done[0]
        np.testing.assert_array_equal(alone.episode_stats[0], game.stats)


class Counting:
    """A player that takes the first choice there is and counts how many there were to weigh."""

    def __init__(self) -> None:
        self.weighed = 0

    def act(self, obs, mask, noise):
        self.weighed += int(mask.sum())
        return type("Decision", (), {"action": mask.argmax(1).astype(np.int32), "logp": np.zeros(len(mask))})()


def test_a_world_without_an_episode_costs_a_network_nothing(scenario):
    def weighed(width: int) -> int:
        env, player = worlds(scenario, width), Counting()
        team = playing.Team("main", (0,), player, discrete=True)
        play_each(env, [team], [DrawnEpisode(1, 5)], SEED, quiet)
        return player.weighed

    assert weighed(8) == weighed(1)


def test_a_sweep_of_a_world_without_phases_or_masks():
    probe = scenario_of("probe_corridor")
    env = make_worlds(probe.world, 3, EnvOptions(evaluation=True, autoreset=False))
    draws = [DrawnEpisode(0, number) for number in range(7)]
    played = play_each(env, script_instead(probe, env.spec.scripts[0], env.spec), draws, SEED, quiet)
    oracle = play(env, script_instead(probe, env.spec.scripts[0], env.spec), 7, SEED)
    np.testing.assert_array_equal(np.array([game.stats for game in played]).reshape(7, -1), oracle.stats)
    assert [len(game.actions) for game in played] == oracle.lengths.tolist()


def test_figures_are_over_what_reached_the_goal_and_say_how_many_did():
    times = np.random.default_rng(0).exponential(1000, size=30)
    found = spread(times, 50)
    assert (found.episodes, found.reached) == (50, 30)
    assert found.success == wilson(30, 50)
    assert found.mean == pytest.approx(sum(times) / 30)
    assert found.variance == pytest.approx(sum((times - found.mean) ** 2) / 29)
    assert found.cvar == tuple(upper_cvar(times, level) for level in (0.25, 0.5, 0.75))
    assert found.mean < found.cvar[0] < found.cvar[1] < found.cvar[2] < max(times)
    assert found.median == median_interval(times)
    assert found.median_all == np.sort(times)[24:26].mean(), "the 25th and 26th of fifty"


def test_what_cannot_be_known_is_not_made_up():
    assert spread([5.0, 7.0], 4).median_all == math.inf
    assert spread([5.0, 7.0], 3).median_all == 7.0
    one, none = spread([5.0], 1), spread([], 3)
    assert math.isnan(one.variance)
    assert (none.success.estimate, none.median_all) == (0.0, math.inf)
    assert all(math.isnan(value) for value in (none.mean, none.variance, none.median.estimate, *none.cvar))


ROWS = [
    PlayerRow("ours", 0, spread([300.0, 500.0, 900.5], 4), 200.0),
    PlayerRow("ours", 3, spread([], 4), math.nan),
    PlayerRow("theirs", 0, spread(range(400, 410), 10), 200.0),
]


def test_the_csv_says_what_the_rows_do(tmp_path):
    disk.write_csv(tmp_path / "a.csv", [as_columns(row, "level", "frames") for row in ROWS])
    first, second, third = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text()))
    assert (first["player"], first["level"], first["episodes"], first["reached"]) == ("ours", "0", "4", "3")
    assert float(first["mean_frames"]) == pytest.approx(1700.5 / 3)
    assert float(first["cvar_0.5_frames"]) == pytest.approx((900.5 + 0.5 * 500) / 1.5)
    assert (first["median_frames"], first["record_frames"], first["median_low_frames"]) == ("500", "200", "")
    assert (second["mean_frames"], second["median_all_frames"], second["record_frames"]) == ("", "inf", "")
    assert float(third["median_low_frames"]) == 401


def test_parquet_holds_the_same_cells_with_their_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [as_columns(row, "level", "frames") for row in ROWS]
    disk.write_parquet(tmp_path / "a.parquet", rows)
    found = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [list(row) for row in found] == [list(row) for row in rows]
    for row, expected in zip(found, rows, strict=True):
        assert all(a == b or (a != a and b != b) for a, b in zip(row.values(), expected.values(), strict=True))
    assert isinstance(found[0]["level"], int)


def test_the_picture_is_drawn_even_where_a_player_reached_nothing(tmp_path):
    playing.draw(tmp_path / "a.png", ROWS, "times", "level", "frames", "record")
    with Image.open(tmp_path / "a.png") as picture:
        shown = {color for _, color in picture.convert("RGB").getcolors(1 << 20)}
    for color in playing.COLORS[:2]:
        assert tuple(bytes.fromhex(color[1:])) in shown, "both players"
