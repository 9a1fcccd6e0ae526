"""Games between policies: neither seed nor side favours anybody, and only what is comparable is compared."""

import dataclasses

import numpy as np
import pytest
from learning import TINY, recast, scenario_of

from slipstream.collect.episodes import play
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.judging import arena
from slipstream.judging.arena import FIRST_GAME, duel, league, load_contenders, make_arena, meet, split
from slipstream.run.certify import FIRST_CERTIFIED
from slipstream.run.saved_cast import FIRST_JUDGED
from slipstream.run.session import train
from slipstream.run.setup import make_evaluation_worlds
from slipstream.stats.ratings import EloTest, Score, elo
from slipstream.worlds.registry import make_worlds

SHORT = {"world.max_pills": 12, "world.phases": [{"name": "easy", "viruses": 2}]}  # games of a second at most
TEST = EloTest(0.0, 50.0, 0.025)


def ring_of(words, games, name="drmario_versus", changes=SHORT, margin=0.0, seed=7):
    return make_arena(*load_contenders(words, scenario_of(name, changes)), games, seed, margin)


def spec_of(scenario):
    return make_worlds(scenario.world, 1).spec


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Of one short run: after its first update, and after its last."""
    folder = tmp_path_factory.mktemp("arena")
    changes = {**TINY, **SHORT, "timesteps": 128, "evaluate.evaluation_interval": None, "algo.learning_rate": 0.01}
    scenario = scenario_of("drmario_versus", {**changes, "checkpoint.checkpoint_every": 32, "checkpoint.keep": 9})
    run = train(scenario, out=folder / "run", models=folder / "models").run
    return [str(run / "checkpoints" / name) for name in ("checkpoint_32", "checkpoint_128")]


def mirrored(found):
    """What the second one sees."""
    elo = found.elo._replace(estimate=-found.elo.estimate, low=-found.elo.high, high=-found.elo.low)
    return dataclasses.replace(
        found,
        score=Score(found.score.losses, found.score.draws, found.score.wins),
        pairs=found.pairs[::-1],
        elo=elo,
        stronger={"first": "second", "second": "first"}.get(found.stronger, found.stronger),
        log_ratios=found.log_ratios[::-1],
    )


def test_swapping_the_two_mirrors_the_result_bit_for_bit(checkpoints):
    for one, other in [checkpoints, ("script:greedy", "script:random"), ("script:random", checkpoints[1])]:
        there = duel(ring_of([one, other], 16), TEST)
        assert duel(ring_of([other, one], 16), TEST) == mirrored(there)
        assert there.score.games > 10
        assert there.score.wins != there.score.losses


def test_nobody_is_stronger_than_itself(checkpoints):
    for word in ("script:random", checkpoints[1]):
        found = duel(ring_of([word, word], 60), TEST)
        assert found.pairs == (0, 0, found.score.games // 2, 0, 0), "a point on every seed: exactly half of all"
        assert found.score.wins == found.score.losses
        assert found.score.wins > 0 or word != "script:random"
        assert (found.score.mean, found.elo.estimate, found.stronger) == (0.5, 0.0, "neither")


def test_the_stronger_one_is_found_on_whichever_place_it_was_named():
    assert duel(ring_of(["script:greedy", "script:random"], 1000), TEST).stronger == "first"
    found = duel(ring_of(["script:random", "script:greedy"], 1000), TEST)
    assert found.stronger == "second"
    assert found.score.games < 300
    assert found.elo.high < 0


def test_the_verdict_does_not_depend_on_the_width_of_a_batch(checkpoints, monkeypatch):
    learned = [checkpoints[1], "script:fastest"]
    narrow, broad = (meet(ring_of(learned, games), 0, 1, 0, 6) for games in (4, 12))
    np.testing.assert_array_equal(narrow, broad)
    words = ["script:greedy", "script:random"]
    told, wide = [], duel(ring_of(words, 1000), TEST)
    for width in (13, 5):
        monkeypatch.setattr(arena, "BATCH", width)
        assert duel(ring_of(words, 1000), TEST, told.append) == wide
    assert told[-1] == wide
    assert told.count(wide) == 2, "once it is settled, nobody plays on"
    assert [step.stronger for step in told[:-1]].count("open") >= 5, "it was looked at as games went on"


def test_the_seed_chooses_the_games_and_more_games_begin_with_the_same():
    words = ["script:greedy", "script:random"]
    few, many = (meet(ring_of(words, 40), 0, 1, 0, count) for count in (10, 20))
    np.testing.assert_array_equal(few, many[:10])
    np.testing.assert_array_equal(meet(ring_of(words, 10), 0, 1, 12, 8), many[12:])
    assert (meet(ring_of(words, 40, seed=8), 0, 1, 0, 20) != many).any()


def test_games_are_played_where_no_table_and_no_certificate_gets_to():
    assert FIRST_JUDGED + 2**20 < FIRST_GAME
    assert FIRST_GAME + arena.MOST_GAMES // 2 <= FIRST_CERTIFIED


def test_a_duel_without_an_end_stops_after_its_last_game():
    found = duel(ring_of(["script:greedy", "script:random"], 6), EloTest(0.0, 1.0))
    assert (found.stronger, found.score.games) == ("open", 6)


# --- who won ---


def test_the_higher_return_is_the_winner_that_the_bottles_show():
    """A player wins by clearing its bottle or by the other's running over; read off the last frame of each game."""
    ring = ring_of(["script:greedy", "script:random"], 32, changes={"world.max_pills": 40}, margin=1.0)
    worlds, (left, right) = ring.worlds, (ring.seats[0][0], ring.seats[1][1])
    played = play(worlds, [left, right], 16, ring.seed, FIRST_GAME, record=16)
    ends = np.array([frames[-1, :, worlds.spec.frame_fields.index("terminal")] for frames in played.frames])
    clear, full = ends == 1, ends == 2
    good = clear | full[:, ::-1]
    winner = np.where(good[:, 0] == good[:, 1], 0.5, np.where(good[:, 0], 1.0, 0.0))
    np.testing.assert_array_equal(meet(ring, 0, 1, 0, 16)[:, 0], winner)
    assert len(set(winner)) > 1


def test_draws_are_counted_and_a_margin_makes_more_of_them():
    unfinished = {"world.max_pills": 4}  # too few to win or to lose: only viruses differ
    words = ["script:greedy", "script:random"]
    strict, lenient = (duel(ring_of(words, 40, changes=unfinished, margin=m), TEST).score for m in (0.0, 1.0))
    assert lenient == Score(0, lenient.games, 0)
    assert 0 < strict.draws < strict.games
    assert strict.wins > strict.losses


def test_returns_that_differ_by_rounding_alone_are_a_draw(monkeypatch):
    ring = ring_of(["script:greedy", "script:random"], 8)
    one = np.array([[100.0, 100.00001], [0.3, 0.1 + 0.2], [100.0, 100.1], [0.0, 1e-30]])

    def played(worlds, teams, count, seed, first):
        return type("Played", (), {"returns": one})

    monkeypatch.setattr(arena, "play", played)
    points = meet(ring, 0, 1, 0, 4)
    np.testing.assert_array_equal(points, [[0.5, 0.5], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]])


def test_sides_of_different_roles_are_compared_with_the_same_side_of_the_other_game():
    """An attacker's return says nothing beside a defender's: who attacks better, and who defends better."""
    ring = ring_of(["script:squeezer", "script:straight"], 12, "gaplock_team", {"world.max_episode_steps": 40})
    assert not ring.alike
    found = meet(ring, 0, 1, 0, 6)
    games = [
        play(ring.worlds, [ring.seats[a][0], ring.seats[1 - a][1]], 6, ring.seed, FIRST_GAME).returns for a in (0, 1)
    ]
    attack = games[0][:, 0] - games[1][:, 0]  # squeezer's, then straight's
    defence = games[1][:, 1] - games[0][:, 1]
    for column, difference in ((0, attack), (1, defence)):
        np.testing.assert_array_equal(found[:, column], 0.5 + 0.5 * np.sign(difference))
    assert (found != 0.5).any()
    itself = ring_of(["script:squeezer"] * 2, 6, "gaplock_team", {"world.max_episode_steps": 40})
    assert (meet(itself, 0, 1, 0, 3) == 0.5).all()


# --- among many ---


def test_everybody_plays_everybody_and_is_ranked(checkpoints):
    words = ["script:random", "script:greedy", checkpoints[0], "script:greedy"]
    ring, told = ring_of(words, 20), []
    found = league(ring, lambda i, j, score: told.append((i, j, score)))
    assert [(i, j) for i, j, _ in told] == [(i, j) for i in range(4) for j in range(i + 1, 4)]
    for i, j, score in told:
        assert score.games == 20
        assert found.scores[i][j] == score == Score(*reversed(found.scores[j][i]))
        points = meet(ring, i, j, 0, 10)
        assert score.mean == points.mean()
    table = [[20 * found.scores[i][j].mean if i != j else 0.0 for j in range(4)] for i in range(4)]
    np.testing.assert_allclose([rating.estimate for rating in found.ratings], elo(table), atol=1e-6)
    assert found.scores[1][3].mean == 0.5
    best = sorted(range(4), key=lambda i: -found.ratings[i].estimate)[:2]
    assert set(best) == {1, 3}


# --- who may play ---


def test_the_sides_of_a_scenario():
    pupil = {"pupil": {"kind": "learning"}, "master": {"kind": "scripted", "script": "best"}}
    tiny = {**TINY, "algo.minibatch_size": 8}
    leaver = scenario_of("probe_leaver", tiny)
    for scenario, sides in [
        (scenario_of("drmario_versus"), ((0,), (1,))),
        (scenario_of("head_to_head_past_selves"), ((0,), (1,))),  # two teams
        (leaver, ((0, 1), (2,))),  # two roles: two that stay, one that leaves
        (recast(leaver, pupil, {"stays": "pupil", "leaves": "master"}), ((0,), (1,))),
        (scenario_of("random_sector"), ((0, 2, 4, 6), (1, 3, 5, 7))),
    ]:
        assert split(scenario, spec_of(scenario)) == sides
    for scenario, words in [
        (scenario_of("probe_bandit"), r"probe_bandit: .*\(player\)"),
        (scenario_of("gaplock_ppo"), r"gaplock_ppo: .*\(attacker\)"),
        (scenario_of("parallel"), r"parallel: .*\(A1\+A2\+A3\)"),
        (recast(leaver, pupil, {"stays": "master", "leaves": "pupil"}), r"\(leaves\)"),
    ]:
        with pytest.raises(ScenarioError, match=words):
            split(scenario, spec_of(scenario))


def test_the_scenarios_own_scripts_play_along(monkeypatch):
    policies = {"pupil": {"kind": "learning"}, "master": {"kind": "scripted", "script": "best"}}
    leaver = scenario_of("probe_leaver", {**TINY, "algo.minibatch_size": 8})
    scenario = recast(leaver, policies, {"stays": "pupil", "leaves": "master"})
    ring = make_arena(*load_contenders(["script:best"] * 2, scenario), 8, None, 0.0)
    assert [(team.policy, team.agents, team.script) for team in ring.others] == [("master", (2,), "best")]
    assert ring.seed == scenario.evaluate.seed
    seated = []

    def watched(worlds, teams, *rest):
        seated.append(sorted(agent for team in teams for agent in team.agents))
        return play(worlds, teams, *rest)

    monkeypatch.setattr(arena, "play", watched)
    assert (meet(ring, 0, 1, 0, 4) == 0.5).all()
    assert seated == [[0, 1, 2]] * 2, "nobody is left without a policy"


def test_a_policy_plays_the_roles_it_learned_and_no_other(tmp_path):
    tiny = {**TINY, "algo.minibatch_size": 8, "timesteps": 32, "evaluate.evaluation_interval": None}
    leaver = scenario_of("probe_leaver", tiny)
    policies = {"goer": {"kind": "learning"}, "rest": {"kind": "scripted", "script": "best"}}
    scenario = recast(leaver, policies, {"stays": "rest", "leaves": "goer"})
    goer = str(train(scenario, out=tmp_path / "goer", models=tmp_path).run)
    with pytest.raises(ScenarioError, match=r"goer: .*leaves.*stays_0\+stays_1"):
        make_arena(*load_contenders([goer, "script:best"], leaver), 8, None, 0.0)
    both = {"goer": {"kind": "learning"}, "stayer": {"kind": "learning"}}
    scenario = recast(leaver, both, {"stays": "stayer", "leaves": "goer"})
    pair = str(train(scenario, out=tmp_path / "pair", models=tmp_path).run)
    ring = make_arena(*load_contenders([pair, "script:best"], None), 8, None, 0.0)
    assert [team.policy for team in ring.seats[0]] == ["goer", "stayer"]
    assert [team.agents for team in ring.seats[0]] == [(2,), (0, 1)]


def test_what_cannot_play_is_refused_in_one_sentence(checkpoints, tmp_path):
    tiny = {**TINY, "timesteps": 32, "evaluate.evaluation_interval": None}
    bandit = str(train(scenario_of("probe_bandit", tiny), out=tmp_path / "bandit", models=tmp_path).run)
    for words, sentence in [
        ([checkpoints[0], bandit], r"bandit: .*probe/bandit.*drmario_versus"),
        ([checkpoints[0], "script:gredy"], r"script:gredy: drmario_versus.*'greedy'"),
    ]:
        with pytest.raises(ScenarioError, match=sentence):
            make_arena(*load_contenders(words, None), 8, None, 0.0)
    with pytest.raises(ScenarioError, match="--scenario"):
        load_contenders(["script:a", "script:b"], None)
    with pytest.raises(CheckpointError, match=r"greedy: .*script:NAME"):
        load_contenders(["greedy"], None)


def test_the_scenario_is_that_of_the_first_run_unless_one_is_given(checkpoints):
    own, _ = load_contenders(["script:greedy", *checkpoints], None)
    assert own.world.max_pills == 12
    given, contenders = load_contenders(checkpoints, scenario_of("drmario_versus"))
    assert given.world.max_pills == 200
    assert [who.name for who in contenders] == checkpoints
    assert make_evaluation_worlds(given, 1).spec.name == "drmario_versus"
