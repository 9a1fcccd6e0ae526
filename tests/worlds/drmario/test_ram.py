"""A game read from the console's RAM is the game that was written there, and what cannot be is refused."""

import numpy as np
import pytest
from fake_console import ram_of
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.cli.main import main
from slipstream.errors import ScenarioError
from slipstream.worlds import drmario
from slipstream.worlds.drmario import Engine
from slipstream.worlds.drmario import config as schema
from slipstream.worlds.drmario.build import build
from slipstream.worlds.drmario.position import plan_engine, pose_of, position_of, speed_ups, threshold, with_pill
from slipstream.worlds.drmario.ram import channel_counts, state_from_ram, viruses_on_board
from slipstream.worlds.vec_env import EnvOptions


def played(level, speed, seed, placements, rng):
    """Games at the first frame of each of their pills, with how many were thrown before."""
    engine, spawned = Engine(level=level, speed=speed, seed=drmario.seed_at(seed)), 0
    for _ in range(placements):
        yield engine, spawned
        plan = plan_engine(engine)
        choices = np.flatnonzero(plan.cost_to_lock != 0xFFFF)
        if not choices.size:
            return
        engine.run(plan.script(int(rng.choice(choices))))
        while not (engine.controllable or engine.terminal):
            spawned += engine.step(0).spawned
        if engine.terminal:
            return


@pytest.mark.parametrize("speed", schema.SPEEDS)
def test_what_is_read_is_what_the_game_is(speed):
    rng, seen = np.random.default_rng(1), 0
    for game in range(6):
        for engine, spawned in played(4 * game % 21, speed, 100 + game, 80, rng):
            state = state_from_ram(ram_of(engine, spawned))
            np.testing.assert_array_equal(state.board, engine.board)
            assert (state.pill, state.colours, state.preview) == (engine.pill, engine.colours, engine.preview)
            assert (state.viruses, state.level, state.speed) == (engine.viruses, engine.level, engine.speed)
            assert state.controllable == engine.controllable
            assert viruses_on_board(state) == engine.viruses
            ours, theirs = state.position, position_of(engine)
            np.testing.assert_array_equal(ours.board, theirs.board)
            assert ours[1:] == theirs[1:], "gravity and counters too, so that plans are the same"
            seen += 1
    assert seen > 60


def test_a_pill_is_read_in_mid_air_with_all_its_counters():
    rng, seen = np.random.default_rng(2), set()
    engine = Engine(level=2, speed="medium")
    for byte in np.repeat(rng.choice([0, 1, 2, 4, 66, 128], 60), rng.integers(1, 25, 60)).tolist():
        if engine.controllable:
            ours, theirs = state_from_ram(ram_of(engine)).position, position_of(engine)
            assert ours[1:] == theirs[1:]
            seen.add((ours.speed_counter > 0, ours.hor_velocity > 0, ours.held > 0))
        engine.step(byte)
    assert len(seen) > 4


@pytest.mark.parametrize("speed", range(3))
def test_gravity_is_the_engines_through_the_longest_of_games(speed):
    """Yellow pills dropped where they come clear themselves, beside a virus that they never touch: 520 of them."""
    board = np.full((16, 8), 0xFF, np.uint8)
    board[15, 7] = 0xD1
    engine, pill = Engine.from_state(board=board, reserve=np.zeros(128, np.uint8), speed=speed), 1
    while pill <= 520:
        assert engine.threshold == threshold(speed, speed_ups(pill))
        pill += engine.step(4).spawned
        assert not engine.terminal


def test_counts_are_those_of_the_native_worlds_planes():
    """Every preset for one player, by the names of the world's own spec."""
    for preset, actions in [("bottle", "placement"), ("bottle_conn_mask", "placement"), ("extended", "controller")]:
        config = schema.DrMarioConfig(levels=(14,), observation=preset, actions=actions, seeds=(700,))
        env = build(config, 1, EnvOptions(seed=2))
        env.reset()
        values = dict(zip(env.spec.frame_fields, env.frame(0)[0].astype(int).tolist(), strict=True))
        board, reserve = drmario.generate(14, drmario.seed_at(values["seed"]))
        engine = Engine.from_state(board=board, reserve=reserve, level=14, frame_counter=values["counter"])
        counts = channel_counts(state_from_ram(ram_of(engine)), preset)
        shown = env.obs["planes"][0, 0].sum((1, 2)).tolist()
        assert counts == dict(zip(env.spec.obs[0].features, shown, strict=True))
        env.close()


def test_the_second_player_is_read_from_his_own_bytes():
    ram = bytearray(ram_of(Engine(level=3)))
    other = ram_of(Engine(level=7, speed="low"))
    ram[0x0380:0x03B0] = other[0x0300:0x0330]
    ram[0x0500:0x0580] = other[0x0400:0x0480]
    first, second = state_from_ram(bytes(ram)), state_from_ram(bytes(ram), player=1)
    assert (first.level, second.level, second.speed) == (3, 7, 0)
    assert (viruses_on_board(first), viruses_on_board(second)) == (16, 32)


@pytest.mark.parametrize(
    ("address", "value", "facts"),
    [
        (0x0301, 3, "0x0301 is 0x03.* 0 to 2"),
        (0x0305, 8, "0x0305 is 0x08.* 0 to 7"),
        (0x0305, 7, "0x0305 is 0x07.* 0 to 6"),
        (0x0306, 16, "0x0306 is 0x10.* 0 to 15"),
        (0x030B, 0x26, "0x030b is 0x26.* 0 to 2"),
        (0x0316, 25, "0x0316 is 0x19.* 0 to 24"),
        (0x0324, 0x1A, "0x0324 is 0x1a"),
        (0x0325, 4, "0x0325 is 0x04.* 0 to 3"),
        (0x0400, 0x00, "0x0400: .*row 0, column 0: 0x00"),
        (0x047F, 0x90, "0x0400: .*row 15, column 7: 0x90"),
        (0x07FF, 9, "0x07ff is 0x09.* 0 to 8"),
    ],
)
def test_bytes_that_no_game_has_are_refused_by_address(address, value, facts):
    ram = bytearray(ram_of(Engine()))
    ram[address] = value
    with pytest.raises(ScenarioError, match=facts):
        state_from_ram(bytes(ram))


def test_ram_of_another_length_or_of_a_menu_says_so():
    with pytest.raises(ScenarioError, match=r"2047 .*2048"):
        state_from_ram(ram_of(Engine())[1:])
    with pytest.raises(ScenarioError, match="0x0046 is 0"):
        state_from_ram(bytes(2048))
    with pytest.raises(ScenarioError, match=r"player 2: .*0 and 1"):
        state_from_ram(ram_of(Engine()), player=2)


READ = [*range(0x300, 0x330), *range(0x400, 0x480), 0x43, 0x46, 0xF7, 0x741, 0x790]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_it(data):
    """A state, or an error of ours; whatever is read can be planned for and counted."""
    ram = bytearray(ram_of(Engine(level=9)))
    for _ in range(data.draw(st.integers(1, 6))):
        ram[
            data.draw(st.sampled_from([*range(0x300, 0x330), *range(0x400, 0x480), 0x43, 0x46, 0xF7, 0x741, 0x790]))
        ] = data.draw(st.integers(0, 255))
    try:
        state = state_from_ram(bytes(ram))
    except ScenarioError:
        return
    assert all(count <= 2 for name, count in channel_counts(state, "extended").items() if name.startswith("falling"))
    counts = channel_counts(state, "bottle_conn_mask")
    assert counts["virus"] == viruses_on_board(state)
    assert sum(counts[name] for name in ("yellow", "red", "blue")) == int((state.board < 0xF0).sum())


def test_a_placement_is_the_pose_that_it_is():
    """Every placement in the bottle, against where the engine puts a pill that was planned there."""
    rng = np.random.default_rng(0)
    for engine, _ in played(0, "high", 5, 12, rng):
        plan, before, colours = plan_engine(engine), engine.board.copy(), engine.colours
        choice = int(rng.choice(np.flatnonzero(plan.cost_to_lock != 0xFFFF)))
        copy = Engine.from_state(
            board=before, reserve=np.roll(engine.reserve, 1 - first_of(engine)), frame_counter=engine.frame_counter
        )
        assert copy.colours == colours
        copy.run(plan.script(choice))
        np.testing.assert_array_equal(copy.board, with_pill(before, pose_of(choice), colours))


def first_of(engine):
    """Where in the reserve the pill under control is."""
    wanted = [3 * engine.colours[0] + engine.colours[1], 3 * engine.preview[0] + engine.preview[1]]
    pairs = np.stack([engine.reserve, np.roll(engine.reserve, -1)], 1)
    return int(np.flatnonzero((pairs == wanted).all(1))[0])


def test_a_dump_is_shown_with_its_counts(tmp_path, capsys):
    (tmp_path / "dump.bin").write_bytes(ram_of(Engine(level=4)))
    assert main(["drmario", "ram", str(tmp_path / "dump.bin")]) == 0
    said = capsys.readouterr().out
    assert said.count("@") == 20
    assert "level 4, speed high and 0 faster, 20 viruses (20 on the board)" in said
    assert "virus             20" in said
    (tmp_path / "dump.bin").write_bytes(b"NES\x1a" + bytes(40_000))
    assert main(["drmario", "ram", str(tmp_path / "dump.bin")]) == 2
    assert "40004 bytes" in capsys.readouterr().err
