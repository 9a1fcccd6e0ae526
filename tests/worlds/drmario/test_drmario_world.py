"""Batches of games: what a decision does, what is seen, what is paid, and that nothing ever waits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.config.load import load
from slipstream.errors import ScenarioError
from slipstream.worlds import drmario, vec_env
from slipstream.worlds.drmario import Engine, Terminal
from slipstream.worlds.drmario import config as schema
from slipstream.worlds.drmario.build import unseen
from slipstream.worlds.drmario.position import plan_engine
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions


def games(worlds=1, seed=3, parts=False, discount=1.0, autoreset=True, **config):
    options = EnvOptions(seed=seed, reward_parts=parts, tick_discount=discount, autoreset=autoreset)
    env = make_worlds(schema.DrMarioConfig.model_validate(config), worlds, options)
    env.reset()
    return env


def figures(env, world=0):
    return dict(zip(env.spec.stats, env.episode_stats[world].tolist(), strict=True))


def shown(env, world=0, player=0):
    values = dict(zip(env.spec.frame_fields, env.frame(world)[player].astype(int).tolist(), strict=True))
    return np.array([values[f"cell_{i}"] for i in range(128)], np.uint8), values


@pytest.mark.parametrize("speed", schema.SPEEDS)
@pytest.mark.parametrize("level", [0, 12, 20])
def test_a_decision_leads_where_its_buttons_lead_frame_by_frame(speed, level):
    """Warp equals replay byte for byte: boards, pills, counters, score and the frames it took."""
    rng = np.random.default_rng(level)
    env = games(speed=speed, levels=[level], max_pills=100, autoreset=False)
    engine = replayed(env, speed, level)
    for _ in range(60):
        planned = plan_engine(engine)
        costs = planned.cost_to_lock.copy()
        if engine.colours[0] == engine.colours[1]:
            costs[256:] = 0xFFFF
        np.testing.assert_array_equal(env.action_mask[0, 0] != 0, costs != 0xFFFF)
        np.testing.assert_allclose(env.obs["costs"][0, 0].reshape(-1), np.minimum(costs / 128, 1.0), rtol=1e-6)
        action = int(rng.choice(np.flatnonzero(costs != 0xFFFF)))
        frames = engine.run(planned.script(action))
        while not (engine.controllable or engine.terminal):
            engine.step(0)
            frames += 1
        env.actions[:] = action
        env.step()
        board, values = shown(env)
        assert (board == engine.board.reshape(-1)).all()
        assert env.ticks[0] == frames == env.duration[0, 0]
        assert (values["score"], values["viruses"]) == (engine.score, engine.viruses)
        assert values["terminal"] == engine.terminal
        if engine.terminal:
            assert env.terminated[0, 0]
            return
        assert (values["pill_row"], values["pill_col"], values["pill_rot"]) == engine.pill
        assert divmod(values["pill_id"], 3) == engine.colours
        assert divmod(values["preview_id"], 3) == engine.preview


def replayed(env, speed, level):
    """The same game outside."""
    values = shown(env)[1]
    board, reserve = drmario.generate(level, drmario.seed_at(values["seed"]))
    return Engine.from_state(
        board=board, reserve=reserve, level=level, speed=speed, frame_counter=values["counter"]
    )  # fmt: skip


def play(env, script, steps):
    """Yield after every step."""
    for _ in range(steps):
        env.act_scripted(script, list(range(env.spec.num_agents)))
        env.step()
        yield


@pytest.mark.parametrize("config", [{}, {"levels": [20]}, {"speed": "low", "levels": [8]}, {"players": 2}])
def test_no_decision_waits_and_every_one_has_something_to_choose(config):
    """10^5 decisions of random play through clears, top-outs and cut games; bench/worlds.py plays 10^6."""
    env = games(worlds=256, max_pills=60, **config)
    ends = np.zeros(3, int)
    for _ in play(env, "random", 100):
        acting = env.acting != 0
        assert acting.any(axis=1).all(), "a step ends where somebody decides"
        assert env.action_mask[acting].any(axis=1).all()
        assert env.ticks.max() < 6000
        assert env.ticks.min() >= 1
        done = env.episode_done != 0
        stats = env.episode_stats[done]
        column = env.spec.stats.index
        ends += [int(stats[:, column(name)].sum()) for name in ("success", "top_out", "timeout")]
    assert ends[1] > 0


def test_games_are_cleared_by_a_player_who_tries():
    env = games(worlds=64, max_pills=200, levels=[0])
    cleared = []
    for _ in play(env, "greedy", 400):
        for i in np.flatnonzero(env.episode_done).tolist():
            cleared.append(figures(env, i))
    assert np.mean([game["success"] for game in cleared]) > 0.5
    won = [game for game in cleared if game["success"]]
    assert all(game["viruses_left"] == 0 and game["virus_share"] == 1 for game in won)
    assert all(game["clear_frames"] == game["frames"] for game in won)
    assert all(np.isnan(game["clear_frames"]) for game in cleared if not game["success"])


def test_the_fastest_placement_is_the_fastest():
    env = games(worlds=32)
    costs = env.obs["costs"][:, 0].reshape(32, -1).copy()
    env.act_scripted("fastest", [0])
    allowed = np.where(env.action_mask[:, 0] != 0, costs, 2.0)
    np.testing.assert_array_equal(allowed[np.arange(32), env.actions[:, 0]], allowed.min(axis=1))


def test_rewards_are_paid_in_parts_and_discounted_by_the_frame_they_fall_due():
    weights = {"virus": 0.5, "clear": 0.25, "top_out": -1.0, "match": 0.01, "pill": -0.02, "second": -0.1}
    plain = games(worlds=32, parts=True, reward=weights, max_pills=60, levels=[0, 20])
    later = games(worlds=32, discount=0.999, reward=weights, max_pills=60, levels=[0, 20])
    met = set()
    for _ in zip(play(plain, "greedy", 150), play(later, "greedy", 150), strict=True):
        np.testing.assert_allclose(plain.reward_parts.sum(2), plain.rewards, atol=1e-5)
        names = plain.spec.reward_parts
        met |= {names[k] for k in np.flatnonzero(plain.reward_parts.any((0, 1)))}
        seconds = plain.reward_parts[:, 0, names.index("second")]
        np.testing.assert_allclose(seconds, -0.1 * plain.ticks * plain.spec.tick_seconds, rtol=1e-4)
        np.testing.assert_array_equal(plain.episode_return, later.episode_return)
        lower = 0.999 ** plain.ticks[:, None].astype(float)
        size = np.abs(plain.reward_parts).sum(2)
        assert (np.abs(later.rewards) <= size + 1e-6).all()
        assert (np.abs(later.rewards - plain.rewards) <= size * (1 - lower) + 1e-6).all()
    assert met == set(weights)


def test_planes_say_what_is_in_the_bottle():
    env = games(worlds=8, levels=[15], observation="bottle_conn_mask")
    for _ in play(env, "random", 12):
        for i in range(8):
            board, values = shown(env, i)
            planes = env.obs["planes"][i, 0].reshape(12, 128)
            kind, colour = board & 0xF0, np.where(board < 0xF0, board & 0x0F, 9)
            for c in range(3):
                np.testing.assert_array_equal(planes[c], colour == c)
            np.testing.assert_array_equal(planes[3], kind == 0xD0)
            for plane, joined in zip(planes[4:8], (0x50, 0x40, 0x70, 0x60), strict=True):
                np.testing.assert_array_equal(plane, kind == joined)
            np.testing.assert_array_equal(planes[8:].reshape(-1), env.action_mask[i, 0])
            pills = env.obs["pills"][i, 0]
            assert np.flatnonzero(pills).tolist() == [values["pill_id"], 9 + values["preview_id"]]


@pytest.mark.parametrize(
    ("preset", "config", "planes"),
    [
        ("bottle", {}, 4), ("bottle_mask", {}, 8), ("bottle_conn", {}, 8), ("bottle_conn_mask", {}, 12),
        ("extended", {"actions": "controller"}, 13), ("versus", {"players": 2}, 20),
    ],
)  # fmt: skip
def test_every_observation_has_its_planes(preset, config, planes):
    env = games(observation=preset, **config)
    assert env.obs["planes"].shape[2:] == (planes, 16, 8)


def test_the_opponents_bottle_is_the_other_players():
    env = games(worlds=4, players=2, levels=[3])
    for _ in play(env, "random", 20):
        planes = env.obs["planes"].reshape(4, 2, 20, 128)
        np.testing.assert_array_equal(planes[:, 0, 8:16], planes[:, 1, :8])
        np.testing.assert_array_equal(planes[:, 1, 8:16], planes[:, 0, :8])


def test_players_decide_on_their_own_frames_and_win_or_lose_together():
    env = games(worlds=32, players=2, max_pills=100, reward={"win": 1.0, "virus": 0, "clear": 0, "top_out": 0})
    alone = ends = 0
    for _ in play(env, "greedy", 300):
        alone += int((env.acting.sum(axis=1) == 1).sum())
        for i in np.flatnonzero(env.episode_done).tolist():
            first, second = env.episode_return[i]
            assert first == -second
            assert (first > 0) == (figures(env, i)["success"] == 1)
            ends += 1
    assert alone > 100
    assert ends > 10


def test_a_controller_presses_buttons_frame_by_frame():
    env = games(actions="controller", speed="medium")
    names = env.spec.action.names
    features = env.spec.obs[2].features
    column = shown(env)[1]["pill_col"]
    env.actions[:] = names.index("left")
    env.step()
    assert (env.ticks[0], shown(env)[1]["pill_col"]) == (1, column - 1)
    env.actions[:] = names.index("none")
    env.step()
    row = env.obs["aux"][0, 0, features.index("pill_row")]
    for _ in range(2):
        env.actions[:] = names.index("down")
        env.step()
    assert env.obs["aux"][0, 0, features.index("pill_row")] < row
    waits = [int(env.ticks[0]) for _ in play(env, "random", 600)]
    assert max(waits) > 30, "what follows a lock is one step"
    assert waits.count(1) > 500


def test_phases_are_played_as_they_say():
    phases = [
        {"name": "matches", "matches": 2},
        {"name": "few", "levels": [5], "viruses": 3},
        {"name": "all", "levels": [5, 6]},
    ]
    env = games(worlds=64, phases=phases, max_pills=200)
    assert env.phases == [2] * 64
    assert {shown(env, i)[1]["viruses"] for i in range(64)} == {24, 28}
    env.phases = [1] * 64
    env.reset()
    assert {shown(env, i)[1]["viruses"] for i in range(64)} == {3}
    env.phases = [i % 2 for i in range(64)]  # each world its own
    env.reset()
    assert [shown(env, i)[1]["viruses"] for i in range(64)] == [0, 3] * 32
    env.phases = [0] * 64
    env.reset()
    assert {shown(env, i)[1]["viruses"] for i in range(64)} == {0}
    ends = [figures(env, i) for _ in play(env, "greedy", 60) for i in np.flatnonzero(env.episode_done).tolist()]
    assert ends
    assert all(end["matches"] >= 2 for end in ends if end["success"])


def test_a_time_goal_counts_only_what_is_in_time():
    limit = 600
    phases = [{"name": "in time", "viruses": 1, "max_seconds": limit / schema.FRAMES_PER_SECOND}]
    env = games(worlds=64, phases=phases, max_pills=200)
    ends = [figures(env, i) for _ in play(env, "greedy", 80) for i in np.flatnonzero(env.episode_done).tolist()]
    assert {end["success"] for end in ends} == {0.0, 1.0}
    for end in ends:
        assert end["success"] == (end["viruses_left"] == 0 and end["frames"] <= limit)
        assert end["timeout"] == (not end["success"] and not end["top_out"])
        if end["viruses_left"] > 0 and not end["top_out"]:
            assert end["frames"] > limit


def timed(**changes):
    return {"phases": [{"name": "in time", "max_seconds": 10.0}], "max_pills": 200, **changes}


def test_being_late_is_an_end_where_there_is_a_time_goal_and_a_cut_in_worlds_saved_before():
    for changes, is_the_end in (({}, True), ({"time_left": False}, False)):
        env = games(worlds=32, **timed(**changes))
        late = 0
        for _ in play(env, "random", 60):
            for i in np.flatnonzero(env.episode_done).tolist():
                end = figures(env, i)
                if end["timeout"] and end["frames"] > 10.0 * schema.FRAMES_PER_SECOND and end["viruses_left"]:
                    late += 1
                    assert (env.terminated[i, 0], env.truncated[i, 0]) == (is_the_end, not is_the_end)
        assert late > 10


def test_games_that_run_out_of_pills_in_time_are_cut_off():
    env = games(worlds=32, **timed(max_pills=3))
    for _ in play(env, "random", 3):
        pass
    assert env.truncated.all()


def test_the_time_left_is_seen_until_it_is_over():
    env = games(worlds=8, **timed())
    column = list(env.spec.obs[2].features).index("time_left")
    seen = []
    for _ in play(env, "random", 8):
        frames = np.array([shown(env, i)[1]["frames"] for i in range(8)])
        seconds = np.maximum(0.0, (round(10 * schema.FRAMES_PER_SECOND) - frames) / schema.FRAMES_PER_SECOND)
        np.testing.assert_allclose(env.obs["aux"][:, 0, column], seconds / (seconds + 30), rtol=1e-6)
        seen += env.obs["aux"][:, 0, column].tolist()
    assert min(seen) < 0.15 < 0.2 < max(seen)
    env.phases = [vec_env.timed(0, 60)] * 8  # a limit of its own, as certificates have
    env.reset()
    np.testing.assert_allclose(env.obs["aux"][:, 0, column], (60 / 60.0988) / (60 / 60.0988 + 30), rtol=1e-6)


def test_games_without_a_time_goal_show_no_clock():
    assert "time_left" not in games().spec.obs[2].features
    assert "time_left" not in games(**timed(time_left=False)).spec.obs[2].features
    config = schema.DrMarioConfig.model_validate(timed(phases=[{"name": "a"}, {"name": "b", "max_seconds": 10.0}]))
    assert config.only_phase(0).shows_time_left  # what a policy was trained on stays as it was
    said = config.model_dump()
    del said["time_left"]
    assert schema.DrMarioConfig.model_validate(said).time_left is False  # saved before there was a clock


def test_certificates_are_earned_on_seeds_that_training_never_draws():
    rest, words = unseen(schema.DrMarioConfig(first_seed=3, last_seed=32_760))
    assert rest.seeds == (1, 2, *range(32_761, 32_768))
    assert "9 seeds that training never draws" in words
    rest, words = unseen(schema.DrMarioConfig(seeds=(5, 7)))
    assert set(range(1, 32_768)) - set(rest.seeds) == {5, 7}
    every = schema.DrMarioConfig()
    assert unseen(every) == (every, "games of all the console's seeds, which training drew from too")
    fixed = schema.DrMarioConfig(seeds="registry")
    assert unseen(fixed) == (fixed, "games of this registry, drawn with replacement")


@given(first=st.integers(1, 32000), count=st.integers(0, 200))
@settings(max_examples=10, deadline=None)
def test_games_come_from_the_seeds_they_may_come_from(first, count):
    env = games(worlds=40, first_seed=first, last_seed=first + count)
    assert all(first <= shown(env, i)[1]["seed"] <= first + count for i in range(40))
    env = games(worlds=40, seeds=[first, first + count])
    assert {shown(env, i)[1]["seed"] for i in range(40)} <= {first, first + count}


def test_an_action_that_is_not_allowed_lets_the_pill_fall():
    env = games(speed="high")
    env.actions[:] = int(np.flatnonzero(env.action_mask[0, 0] == 0)[0])
    env.step()
    board, values = shown(env)
    assert values["pills"] == 1
    assert (board[3::8] != 0xFF).any()


def test_a_cleared_level_is_terminated_and_a_spent_one_truncated():
    env = games(worlds=64, max_pills=5, autoreset=True)
    for _ in play(env, "random", 5):
        pass
    assert env.truncated.any()
    assert not (env.truncated & env.terminated).any()
    assert env.final_mask[env.truncated != 0].any(axis=1).all()


@pytest.mark.parametrize(
    ("config", "key", "facts"),
    [
        ({"levels": [25]}, "levels.0", "25.* 24"),
        ({"levels": []}, "levels", r"\[\].* 1 "),
        ({"first_seed": 9, "last_seed": 8}, "", "first_seed 9 .*last_seed 8"),
        ({"observation": "versus"}, "", "'versus' .*players is 1"),
        ({"actions": "controller", "observation": "bottle_mask"}, "", "'bottle_mask' .*controller .*'extended'"),
        ({"phases": [{"name": "a", "viruses": 1, "matches": 1}]}, "phases.0", "'a' .*viruses .*matches"),
        ({"phases": [{"name": "a"}, {"name": "a"}]}, "", "phases: .*a, a"),
        ({"players": 2, "phases": [{"name": "a", "matches": 1}]}, "", "phases: 'a' .*matches.* players is 2"),
        ({"seeds": [40000]}, "seeds.0", "40000.* 32767"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_its_key(config, key, facts):
    with pytest.raises(ScenarioError, match=facts) as refused:
        load("drmario_level_0", {f"world.{name}": value for name, value in config.items()})
    assert ".".join(filter(None, ("world", key))) in refused.value.keys


def test_a_game_is_over_for_the_engine_where_it_is_for_the_world():
    env = games(worlds=64, levels=[20], speed="high", autoreset=False)
    for _ in play(env, "random", 60):
        for i in range(64):
            values = shown(env, i)[1]
            ended = bool(env.terminated[i, 0])
            if env.alive[i, 0]:
                assert ended == (values["terminal"] in (Terminal.CLEAR, Terminal.TOP_OUT))
