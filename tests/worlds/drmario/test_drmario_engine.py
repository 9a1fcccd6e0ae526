"""The game equals recorded games frame by frame, and does what the rules say where nothing was recorded."""

import hashlib
import json

import numpy as np
import pytest
from drmario_games import board, cells, pills, recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds import drmario
from slipstream.worlds.drmario import Engine, Terminal, Versus

RIGHT, LEFT, DOWN, B, A = 1, 2, 4, 64, 128


@pytest.mark.parametrize("numbers", recorded())
def test_levels_are_those_of_the_console(numbers):
    for vector in numbers["vectors"]:
        made, reserve, after = _core.drmario_generate(vector["level"], (vector["rng0"], vector["rng1"]))
        assert made.tobytes() == bytes.fromhex(vector["board"])
        assert "".join(map(str, reserve)) == vector["reserve"]
        assert after == (vector["rng0_after"], vector["rng1_after"])


@pytest.mark.parametrize("numbers", recorded())
def test_games_are_those_recorded_frame_by_frame(numbers):
    for game in numbers["games"]:
        replay(game)


def replay(game):
    engine = Engine.from_state(
        level=game.get("level", 0),
        speed=game["speed"],
        board=cells(game["initial_board"]),
        reserve=game["reserve"],
        frame_counter=game["frame_counter0"],
    )
    digests, seen = dict(map(tuple, game["board_sha256"])), hashlib.sha256()
    locks, clears, spawns = [], [], []
    for frame, buttons in enumerate(bytes.fromhex(game["buttons"])[: game["n_frames"]]):
        colours = engine.colours
        happened = engine.step(buttons)
        seen.update(engine.board.tobytes())
        if frame in digests:
            assert seen.hexdigest() == digests[frame], f"boards differ before frame {frame}"
        assert happened.falling == engine.falling == (game["falling"][frame] == "1")
        assert engine.pill == tuple(int(digit, 16) for digit in game["pose"][3 * frame : 3 * frame + 3])
        if happened.locked is not None:
            locks.append([frame, *happened.locked, *colours])
        if happened.matched:
            clears.append([frame, happened.matched, happened.viruses])
        if happened.spawned:
            spawns.append([frame, *engine.colours, *engine.preview, engine.threshold])
    assert (locks, clears, spawns) == (game["locks"], game["clears"], game["spawns"][1:])
    assert (engine.terminal, engine.viruses) == (game["end_reason"], game["viruses_left"])
    assert engine.board.tobytes() == bytes.fromhex(game["final_board"])


def test_the_cartridges_demo_is_played_to_its_last_frame(golden):
    demo = json.loads((golden / "drmario_demo.json").read_text())
    first = demo["first_controllable_frame"]
    engine = Engine.from_state(
        level=10,
        speed="medium",
        board=cells(demo["initial_board"]),
        reserve=demo["pill_ids"],
        frame_counter=demo["frame_counter_at_first_controllable_frame"],
    )
    truth, changes = cells(demo["initial_board"]).copy(), {}
    for frame, index, value in demo["board_changes"]:
        changes.setdefault(frame, []).append((index, value))
    buttons, equal = bytes.fromhex(demo["buttons"]), 0
    for frame in range(1, 5701):
        for index, value in changes.get(frame, []):
            truth[index] = value
        if frame >= first:
            engine.step(buttons[frame - 1])
            assert engine.board.tobytes() == truth.tobytes(), f"frame {frame}"
            assert engine.falling == (demo["falling"][frame - 1] == "1")
            assert engine.pill == tuple(int(digit, 16) for digit in demo["pose"][3 * frame - 3 : 3 * frame])
        equal += 1
    assert (equal, engine.viruses) == (5700, 18)


# Of our own engine, which equals the recordings: what random buttons lead to, for machines without them.
DIGESTS = {
    (0, "low"): "07f8dc405c184b98",
    (5, "medium"): "0a7390612b835c56",
    (12, "high"): "4014f7c7d266ccfb",
    (20, "high"): "095ca6ec2803ac21",
}


@pytest.mark.parametrize(("level", "speed"), list(DIGESTS))
def test_random_games_go_as_they_always_went(level, speed):
    engine = Engine(level, speed, drmario.seed_at(4242 + level))
    rng, seen = np.random.default_rng(level), hashlib.sha256()
    for buttons in rng.choice(np.array([0, 0, 0, RIGHT, LEFT, DOWN, A, B], np.uint8), 3000).tolist():
        engine.step(buttons)
        seen.update(engine.board.tobytes())
    assert seen.hexdigest()[:16] == DIGESTS[level, speed]


def test_the_generator_has_one_cycle_of_32767_states_and_all_of_them_are_numbered():
    numbered = {drmario.seed_at(number) for number in range(1, 32768)}
    assert len(numbered) == 32767
    r0, r1 = 0x89, 0x88
    met = set()
    while (r0, r1) not in met:
        met.add((r0, r1))
        carry = (r0 >> 1 ^ r1 >> 1) & 1
        r0, r1 = carry << 7 | r0 >> 1, (r0 & 1) << 7 | r1 >> 1
    assert met == numbered


@given(level=st.integers(0, 24), number=st.integers(1, 32767))
@settings(max_examples=60, deadline=None)
def test_a_level_has_its_viruses_and_no_three_in_line_two_apart(level, number):
    made, reserve = drmario.generate(level, drmario.seed_at(number))
    virus = made & 0xF0 == 0xD0
    assert virus.sum() == 4 * (min(level, 20) + 1)
    assert reserve.max() <= 8
    top = 16 - {15: 11, 16: 11, 17: 12, 18: 12}.get(level, 10 if level < 15 else 13)
    assert not virus[:top].any()
    for first, second in ((made[:, :-2], made[:, 2:]), (made[:-2], made[2:])):
        assert ((first != second) | (first == 0xFF)).all()


def settle(engine, frames=400):
    """Let go of everything until the next pill can be moved."""
    engine.step(0)
    for _ in range(frames):
        if engine.controllable or engine.terminal:
            return
        engine.step(0)


def drop_pill(engine, buttons=0):
    """Fall straight down, then settle."""
    while not engine.step(buttons).locked:
        pass
    settle(engine)


def test_each_further_virus_of_one_pill_counts_twice_as_much_up_to_32_times():
    lying = board("YYY.....")
    engine = Engine.from_state(board=lying, reserve=pills(0, 0), speed="high")
    for _ in range(40):
        if engine.step(DOWN).locked:
            break
    assert engine.score == 0
    settle(engine)
    assert (engine.viruses, engine.score, engine.terminal) == (0, 300 * (1 + 2 + 4), Terminal.CLEAR)
    many = board("YYYYYYY.", "YYYYYYY.")
    many[:, 7] = 0xFF
    low = Engine.from_state(board=many, reserve=pills(0), speed="low")
    script = drmario.plan(low.board, threshold=low.threshold).script(14 * 8 + 7 + 128)
    low.run(script)
    settle(low)
    assert low.score == 100 * (1 + 2 + 4 + 8 + 16 + 32 * 9)


def test_a_bottle_that_is_full_at_the_top_ends_the_game():
    tower = np.full((16, 8), 0xFF, np.uint8)
    tower[2:, 3:5] = np.tile([[0xD0, 0xD1], [0xD1, 0xD2]], (7, 1))
    engine = Engine.from_state(board=tower, reserve=pills(0, 4, 8), speed="high")
    for _ in range(3000):
        engine.step(0)
    assert engine.terminal == Terminal.TOP_OUT
    before = engine.board.tobytes(), engine.frame_counter
    engine.step(A)
    assert (engine.board.tobytes(), engine.frame_counter) == before, "a game that is over stays as it is"


def test_pushing_left_and_right_at_once_is_pushing_nowhere():
    both, neither = (Engine(3, "medium") for _ in range(2))
    for _ in range(60):
        both.step(LEFT | RIGHT)
        neither.step(0)
    assert both.pill == neither.pill


# --- two players ---


def versus(first, second, *ids, counter=1):
    return Versus.from_state(boards=(first, second), reserve=pills(*ids), frame_counter=counter)


def play_until(game, happens, buttons=(DOWN, 0)):
    for _ in range(2000):
        frames = game.step(*buttons)
        if happens(*frames):
            return frames
    raise AssertionError("it never happened")


# A yellow and red pill that falls straight completes a yellow and a red column, and a yellow row, and a red row.
MATCHES = {
    2: ("........", "B..yr...", "...yr...", "...yr..."),
    3: ("YYY.....", "B..yr...", "...yr...", "...yr..."),
    4: ("YYY..RRR", "B..yr...", "...yr...", "...yr..."),
}
COLOURS = {2: [0x80, 0x81], 3: [0x80, 0x80, 0x81], 4: [0x80, 0x81, 0x80, 0x81]}  # rows come before columns
YELLOW_RED = 1


@pytest.mark.parametrize("size", MATCHES)
@pytest.mark.parametrize("counter", range(4))
def test_garbage_lands_in_the_columns_the_frame_counter_says(size, counter):
    game = versus(board(*MATCHES[size]), board("R......."), YELLOW_RED, 4, 4, 4, 4, counter=counter)
    me, other = game.players
    landed = None
    for _ in range(600):
        at, before = game.frame_counter, other.board
        if game.step(DOWN, 0 if me.attack == 0 else DOWN)[1].garbage:
            landed = at, before, other.board
            break
    assert landed is not None
    at, before, after = landed
    first = at & (1 if size == 4 else 3)
    columns = [first + (4 if size == 2 else 2) * k for k in range(size)]
    assert np.flatnonzero(after[0] != before[0]).tolist() == columns
    assert after[0, columns].tolist() == COLOURS[size]
    assert me.attack == 0, "it is sent once"


def test_garbage_falls_a_row_every_sixteen_frames_before_the_next_pill():
    game = versus(board(*MATCHES[4]), board("R......."), YELLOW_RED, 4, 4, 4, 4)
    play_until(game, lambda _, second: second.garbage, (DOWN, DOWN))
    falls, before = [], game.players[1].board
    for frame in range(400):
        second = game.step(0, 0)[1]
        if second.spawned:
            break
        if (game.players[1].board != before).any():
            falls.append(frame)
            before = game.players[1].board
    assert len(falls) > 8
    assert set(np.diff(falls)) == {16}


def test_a_single_match_sends_nothing():
    game = versus(board("R......Y", "...y...."), board("R......."), YELLOW_RED, 0, 0, 0)
    for _ in range(900):
        assert not any(frame.garbage for frame in game.step(DOWN, DOWN))
    assert game.players[0].attack == 0


def test_both_players_get_the_same_pills_and_at_one_level_the_same_viruses():
    game = Versus((7, 7), ("low", "high"), drmario.seed_at(99))
    assert (game.players[0].board == game.players[1].board).all()
    assert (game.players[0].reserve == game.players[1].reserve).all()
    apart = Versus((2, 15), seed=drmario.seed_at(99))
    assert [player.viruses for player in apart.players] == [12, 64]


def test_the_pill_appears_at_once_with_two_players_and_after_a_throw_with_one():
    def frames_between_pills(step):
        frames = 0
        while not step().locked:
            pass
        while not step().spawned:
            frames += 1
        return frames

    alone, game = Engine(0, "high"), Versus((0, 0))
    assert frames_between_pills(alone.step) - frames_between_pills(lambda: game.step()[0]) == 21


def test_clearing_wins_and_topping_out_loses():
    game = versus(board("...Y....", "...y....", "...y...."), board("R......."), YELLOW_RED)
    while not game.over:
        game.step(DOWN, 0)
    assert (game.winner, game.players[0].terminal) == (0, Terminal.CLEAR)
    tower = np.full((16, 8), 0xFF, np.uint8)
    tower[1:, 3:5] = np.tile([[0xD0, 0xD1], [0xD1, 0xD2], [0xD2, 0xD0]], (5, 1))
    game = versus(tower, board("R......."), 0, 4, 8)
    while not game.over:
        game.step(0, 0)
    assert (game.winner, game.players[0].terminal) == (1, Terminal.TOP_OUT)
    both = versus(tower, tower.copy(), 0, 4, 8)
    while not both.over:
        both.step(0, 0)
    assert both.winner is None, "both on one frame is a draw"


# --- what is refused ---


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: Engine(25), "level 25: .*0 to 24"),
        (lambda: Engine(0, "fast"), "speed 'fast' .*low, medium, high"),
        (lambda: Engine(0, 3), r"speed 3: .*0 \(low\), 1 \(medium\) .*2 \(high\)"),
        (lambda: Engine(0, seed=(0, 0)), r"seed \(0, 0\): .*1 … 32767"),
        (lambda: Engine(0, seed=(300, 0)), r"seed \(300, 0\): .*0x89, 0x88"),
        (lambda: drmario.seed_at(0), "seed number 0: .*1 to 32767"),
        (lambda: Engine.from_state(board=np.zeros((15, 8), int), reserve=pills()), r"16 rows of 8 .*\(15, 8\)"),
        (lambda: Engine.from_state(board=np.full((16, 8), 0x13), reserve=pills()), "row 0, column 0: 0x13"),
        (lambda: Engine.from_state(board=board(), reserve="012"), r"128 .* 0 to 8.*\(3,\)"),
        (lambda: drmario.plan(board(), threshold=70), "threshold 70: .*0 to 69"),
        (lambda: drmario.plan(board(), threshold=13, col=8), "column 8, .*0 to 7"),
        (lambda: drmario.plan(board(), threshold=13, hor_velocity=16), "hor_velocity 16, .*0 to 15"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(make, facts):
    with pytest.raises(ScenarioError, match=facts):
        make()
