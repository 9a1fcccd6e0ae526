"""A judgement: the same fresh episodes for every row, intervals on every figure."""

import numpy as np
import pytest
from learning import TINY, recast, scenario_of

from slipstream.collect.episodes import Episodes, play
from slipstream.collect.teams import Team, judged_agents
from slipstream.config.load import override
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.judging.judge import figures, judge
from slipstream.run.loop import Result
from slipstream.run.saved_cast import load_cast, script_instead
from slipstream.run.session import train
from slipstream.run.setup import make_evaluation_worlds
from slipstream.stats.intervals import mean_interval, wilson


@pytest.fixture(scope="module")
def bandit(tmp_path_factory) -> Result:
    folder = tmp_path_factory.mktemp("judged")
    changes = {"timesteps": 8192, "evaluate.evaluation_interval": None}
    return train(scenario_of("probe_bandit", changes), out=folder / "run", models=folder / "models")


def test_learned_and_scripted_rows_play_the_same_episodes(bandit):
    scenario, saved = load_cast(bandit.run)
    judgement = judge(scenario, saved, episodes=30)
    assert [row.policy for row in judgement.rows] == ["learned", "best"]
    learned, best = (row.figures for row in judgement.rows)
    assert learned["return"] == best["return"]  # the bandit is solved, so equal episodes give equal figures
    assert learned["return"].low < learned["return"].estimate < learned["return"].high
    assert judgement.frames is not None


def test_the_seed_chooses_the_episodes_and_the_same_seed_repeats_them(bandit):
    scenario, saved = load_cast(bandit.run)
    one, again, other = (judge(scenario, saved, 20, seed).rows[0].figures["return"] for seed in (1, 1, 2))
    assert one == again != other


def test_run_checkpoint_and_model_are_judged_alike(bandit):
    assert bandit.model is not None
    results = [judge(*load_cast(path), 10) for path in (bandit.run, bandit.checkpoint, bandit.model)]
    assert results[0].rows == results[1].rows == results[2].rows


def test_scripts_alone_can_be_judged():
    assert [row.policy for row in judge(scenario_of("probe_bandit"), None, 5).rows] == ["best"]


def test_a_policy_of_another_world_is_refused_naming_both(bandit):
    _, saved = load_cast(bandit.run)
    with pytest.raises(ScenarioError, match=r"probe/bandit.*probe/corridor"):
        judge(scenario_of("probe_corridor"), saved, 5)


def test_scripted_and_frozen_partners_play_along(bandit, tmp_path):
    scenario = scenario_of("probe_leaver", {**TINY, "algo.minibatch_size": 8})
    master = {"pupil": {"kind": "learning"}, "master": {"kind": "scripted", "script": "best"}}
    first = train(
        recast(scenario, master, {"stays": "master", "leaves": "pupil"}), out=tmp_path / "a", models=tmp_path / "m"
    )
    assert first.model is not None
    frozen = {"pupil": {"kind": "learning"}, "old": {"kind": "frozen", "path": str(first.model)}}
    second = train(
        recast(scenario, frozen, {"stays": "pupil", "leaves": "old"}), out=tmp_path / "b", models=tmp_path / "m"
    )
    saved = checkpoint.load(second.checkpoint)
    assert not [name for name in saved.arrays if name.startswith("policy.old")]
    rows = judge(*load_cast(second.run), 10).rows
    assert [row.policy for row in rows] == ["learned", "best"]
    assert rows[0].figures["return"].estimate <= rows[1].figures["return"].estimate


def test_an_unknown_script_or_a_frozen_policy_of_another_world_is_refused(bandit, tmp_path):
    leaver = scenario_of("probe_leaver", {**TINY, "algo.minibatch_size": 8})
    wrong = {"a": {"kind": "learning"}, "b": {"kind": "scripted", "script": "bset"}}
    with pytest.raises(ScenarioError, match=r"policies\.b\.script: probe/leaver.*'best'"):
        train(recast(leaver, wrong, {"stays": "a", "leaves": "b"}), out=tmp_path / "x")
    foreign = {"a": {"kind": "learning"}, "b": {"kind": "frozen", "path": str(bandit.run)}}
    with pytest.raises(ScenarioError, match=r"probe/bandit.*probe/leaver"):
        train(recast(leaver, foreign, {"stays": "a", "leaves": "b"}), out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_figures_are_means_with_intervals_and_a_proportion_for_clean():
    rng = np.random.default_rng(0)
    done = Episodes(
        names=("clean", "laps"),
        returns=rng.normal(size=(40, 2)),
        lengths=np.full(40, 9.0),
        stats=np.stack([np.ones(40), rng.normal(size=40)], 1),
    )
    shown = figures(done)
    assert shown["clean"] == wilson(40, 40)
    assert shown["clean"].low < 1.0  # forty clean episodes are not certainty
    assert shown["laps"] == mean_interval(done.stats[:, 1])
    assert shown["return"].estimate == pytest.approx(done.returns.sum(1).mean())


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=str(tmp_path / "nothing")):
        load_cast(tmp_path / "nothing")
    checkpoint.save(tmp_path / "checkpoint_1", checkpoint.Checkpoint({}, {"kind": "run"}))
    with pytest.raises(CheckpointError, match=f"{tmp_path / 'checkpoint_1'}.*scenario"):
        load_cast(tmp_path / "checkpoint_1")


def test_impossible_options_are_refused_in_one_sentence():
    for name, changes, words in [
        ("probe_bandit", {"algo.centralised_critic": True}, "centralised_critic"),
        ("probe_target", {"stop.zero_conflict_streak": 3}, "zero_conflict_streak"),
    ]:
        scenario = override(scenario_of(name, TINY), changes)
        with pytest.raises(ScenarioError, match=words):
            train(scenario)


def test_a_policy_that_plays_both_sides_is_judged_against_a_script_and_not_itself():
    scenario = scenario_of("drmario_versus", {"world.max_pills": 150})
    judgement = judge(scenario, None, episodes=12)
    success = {row.policy: row.figures["success"].estimate for row in judgement.rows}
    assert judgement.opponent == "greedy"
    assert success["random"] == 0 < success["greedy"]
    itself = judge(override(scenario, {"evaluate.opponent": "self"}), None, episodes=12)
    assert itself.opponent is None
    assert itself.rows[0].policy == "random"
    assert itself.rows[0].figures["success"].estimate > 0.2  # of two that are alike one wins


@pytest.mark.parametrize("name", ["drmario_versus", "drmario_past_selves", "head_to_head"])
def test_the_learners_own_side_is_what_is_told(name):
    worlds = make_evaluation_worlds(scenario_of(name), 1)
    teams = script_instead(scenario_of(name), "random", worlds.spec)
    worlds.close()
    assert judged_agents(teams) == [0]
    assert [team.script for team in teams if team.rival] == [teams[-1].script] != ["random"]


def test_sides_that_have_policies_of_their_own_stay_as_they_are():
    scenario = scenario_of("gaplock_team")
    worlds = make_evaluation_worlds(scenario, 1)
    assert judged_agents(script_instead(scenario, "random", worlds.spec)) == [0, 1]
    worlds.close()


def test_a_learner_that_is_not_the_first_agent_is_told_its_own_figures():
    scenario = scenario_of("drmario_versus", {"world.max_pills": 60})
    worlds = make_evaluation_worlds(scenario, 16)
    weak, strong = Team("a", (0,), script="random", rival=True), Team("b", (1,), script="greedy")
    won = play(worlds, [weak, strong], 16, seed=3).stat("success").mean()
    weak, strong = Team("a", (0,), script="random"), Team("b", (1,), script="greedy", rival=True)
    lost = play(worlds, [weak, strong], 16, seed=3).stat("success").mean()
    worlds.close()
    assert won > 0.5 > lost


def test_an_opponent_that_the_world_does_not_have_is_refused():
    with pytest.raises(ScenarioError, match=r"evaluate\.opponent"):
        judge(scenario_of("drmario_versus", {"evaluate.opponent": "greddy"}), None, episodes=1)
