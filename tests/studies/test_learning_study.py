"""The learning study in miniature: its table of tasks, one real cell of each side, and the page from made-up cells."""

import inspect
import re
from dataclasses import replace
from functools import partial

import numpy as np
import offline
import pytest
from cloning import clone
from learning_cells import baseline_cells, cells_of, dataset_recipe, ours, run_cell, scenario_of
from learning_page import write_page
from learning_tasks import DATASETS, TASKS, WORLDS
from players import Random, everyone, judged, world_spec

from slipstream.config.load import load
from slipstream.data.dataset_file import read_dataset
from slipstream.run import session
from slipstream.worlds.foreign.config import GymnasiumConfig

TASK = {task.name: task for task in TASKS}
SEEDS = (11, 12, 13)


def test_every_task_has_a_name_of_its_own_and_a_packaged_scenario_of_its_algorithm():
    assert len(TASK) == len(TASKS)
    for task in TASKS:
        scenario = scenario_of(task, 1)
        assert scenario.algo.kind == (task.kind or task.algo), task.name
        assert scenario.is_offline == bool(WORLDS[task.world].dataset), task.name


def test_the_peers_settings_are_arguments_its_algorithms_know():
    peer_sb3 = pytest.importorskip("peer_sb3")
    for task in TASKS:
        if task.peer is None:
            continue
        known = inspect.signature(peer_sb3.ALGOS[task.peer["algo"]].__init__).parameters
        ours = {"algo", "n_envs", "normalize", "action_noise_std"}
        assert not set(task.peer) - ours - set(known), task.name


def test_a_curve_has_its_points_whatever_the_length_of_a_rollout():
    for task in TASKS:
        if task.score == "return":
            scenario = scenario_of(task, 1)
            evaluations = scenario.timesteps / scenario.rollout_steps / scenario.evaluate.evaluation_interval
            assert 14 <= evaluations <= 26, task.name


def test_a_cell_of_other_settings_is_another_cell():
    task = TASK["cartpole_ppo"]
    (cell,), (shorter,) = cells_of(task, ["ours"], [1], None), cells_of(task, ["ours"], [1], 5000)
    assert cell["recipe"] != shorter["recipe"]
    assert cells_of(task, ["ours", "sb3"], [1, 2], None)[0] == cell


def test_random_play_is_uniform_over_what_is_allowed():
    scenario = load("cartpole")
    spec = world_spec(scenario)
    assert not spec.action.low < -1
    draws = Random(spec, 0).act({"obs": np.zeros((4000, 4))}, None, None).action
    assert abs(draws.mean() - 0.5) < 0.03
    mask = np.tile(np.array([0, 1], np.uint8), (50, 1))
    assert Random(spec, 0).act({"obs": np.zeros((50, 4))}, mask, None).action.tolist() == [1] * 50
    lengths = judged(scenario, everyone(Random(spec, 0), spec), episodes=50).lengths
    assert 15 < lengths.mean() < 32  # 22 in the long run


def test_a_cell_of_ours_trains_and_is_judged():
    (asked,) = cells_of(TASK["cartpole_ppo"], ["ours"], [1], 512)
    found = run_cell(asked, budget=512)
    assert found["steps"] == 512
    assert 8 < found["return"] <= 500
    assert [steps for steps, _ in found["curve"]] == [256, 512]
    assert found["seconds"] > 0
    assert found["commit"]


def test_half_a_run_is_no_cell(monkeypatch):
    monkeypatch.setattr(session, "train", partial(session.train, pause_at=1000))  # ends as by a signal
    with pytest.raises(RuntimeError, match="1,024 steps"):
        ours(TASK["cartpole_ppo"], 1, 4000)


def test_offline_cells_learn_from_a_record_made_once(tmp_path, monkeypatch):
    about = {"scenario": "pendulum", "recorder": {"timesteps": 2048, "algo.epochs": 1}, "learned": 300, "random": 700}
    monkeypatch.setitem(DATASETS, "pendulum_mixed", {**about, "seed": 3})
    monkeypatch.setattr(offline, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(offline, "clone", partial(clone, steps=20))
    monkeypatch.setattr(judged, "__defaults__", (4,))  # episodes
    quick = {"algo.batch_size": 8, "collect.rollout_length": 5}  # 40 gradient steps
    found = ours(replace(TASK["pendulum_offline_cql"], overrides=quick), seed=1, budget=40)
    assert found["steps"] == 40
    assert -2000 < found["return"] < 0
    (made,) = (tmp_path / "kept").iterdir()
    recorded = read_dataset(offline.dataset("pendulum_mixed"))
    assert [(part.rows, part.policy) for part in recorded.record.parts] == [(300, "learned"), (700, "random")]
    for cell in baseline_cells("pendulum_offline", ["baseline"], [1]):
        assert -2000 < run_cell(cell, budget=None)["return"] < 0
    assert [made] == list((tmp_path / "kept").iterdir())
    monkeypatch.setitem(DATASETS, "pendulum_mixed", {**about, "seed": 4})
    assert dataset_recipe("pendulum_mixed") not in made.name


def test_sb3_learns_from_every_agent_of_our_worlds_as_a_row():
    peer_sb3 = pytest.importorskip("peer_sb3")
    from slipstream.worlds.registry import make_worlds
    from slipstream.worlds.vec_env import EnvOptions

    inner = make_worlds(load("probe_coordination").world, 3, EnvOptions(seed=1))
    rows = peer_sb3.SharedPolicy(inner)
    assert rows.num_envs == 3 * inner.spec.num_agents
    rows.reset()
    for _ in range(inner.spec.max_episode_steps or 20):
        rows.step_async(np.zeros(rows.num_envs, np.int64))
        obs, rewards, done, infos = rows.step_wait()
        assert obs.tolist() == next(iter(inner.obs.values())).reshape(rows.num_envs, -1).tolist()
        assert rewards.tolist() == inner.rewards.reshape(-1).tolist()
        if done.any():
            break
    assert done.any()
    (final,) = inner.final_obs.values()
    for row in np.flatnonzero(done):
        assert infos[row]["terminal_observation"].tolist() == final.reshape(rows.num_envs, -1)[row].tolist()
        assert infos[row]["TimeLimit.truncated"] == bool(inner.truncated.reshape(-1)[row])


# --- the page ---


def made_up(task, who, scores, **more):
    cells = cells_of(TASK[task], [who], SEEDS, None) if task in TASK else baseline_cells(task, ["baseline"], SEEDS)
    extra = {"seconds": 10.0, "cpu_seconds": 9.0, "curve": [[1000, 1.0], [2000, 2.0]], "commit": "abc", **more}
    return [{**cell, "return": score, **extra} for cell, score in zip(cells, scores, strict=False)]


@pytest.fixture
def page(tmp_path):
    def write(*cells):
        path = tmp_path / "learning.md"
        write_page([cell for group in cells for cell in group], SEEDS, path)
        return path.read_text()

    return write


def test_the_page_says_scores_odds_and_whether_the_target_was_met(page, tmp_path):
    text = page(
        made_up("cartpole_dqn", "ours", [400, 480, 490]),
        made_up("cartpole_dqn", "sb3", [500, 500, 500]),
        made_up("cartpole_ppo", "ours", [500, 500, 500]),
        made_up("cartpole_ppo", "sb3", [500, 500, 500]),
        made_up("cartpole", "random", [20, 22, 24]),
        made_up("half_cheetah_ppo", "ours", [1, 5, 9]),
        made_up("half_cheetah_ppo", "sb3", [2, 4, 8]),
    )
    assert "**" not in next(line for line in text.splitlines() if line.startswith("| HalfCheetah"))  # may be better
    rows = [line for line in text.splitlines() if line.startswith("| CartPole")]
    assert len(rows) == 5
    ppo, dqn = rows[0], rows[2]
    assert "| 500.0 [500.0, 500.0] | 0.50 [0.50, 0.50] | 10 | 9 | 495 | yes |" in ppo
    assert "| 456.7 [" in dqn  # three runs: nothing is trimmed
    assert "**0.00 [0.00, 0.00]**" in dqn
    assert dqn.endswith("| 475 | **no** |")
    assert rows[4].startswith("| CartPole-v1 | – | random | – | 3 | 22.0 [")
    assert re.search(r"\(2 tasks\).* probability \**0\.25 .* other 0,", " ".join(text.split()))
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "learning_cartpole.png",
        "learning_half_cheetah.png",
        "learning_profile.png",
    }


def test_cells_of_other_settings_are_not_in_the_page_but_are_owned_up_to(page):
    old = [{**cell, "recipe": "00000000"} for cell in made_up("cartpole_dqn", "ours", [1, 1, 1])]
    text = page(old, made_up("cartpole_dqn", "ours", [500, 500]))
    assert "| 50,000 | 2 | 500.0" in text
    assert "keeps 3 cells of earlier settings" in text
    assert "Not all seeds are done: cartpole_dqn ours (2)." in text


def test_the_page_names_what_a_row_changes_in_its_scenario(page):
    text = page(made_up("cartpole_dqn_per", "ours", [490, 500, 500]))
    assert "| CartPole-v1 | DQN + PER | Slipstream | 50,000 | 3 |" in text
    assert "`slipstream train cartpole --algo dqn --algo.replay.prioritised.alpha 0.6 --timesteps 50000`" in text


def test_clean_flights_are_counted_over_all_seeds(page):
    flights = {"clean": 0.5, "extra_distance_nm": 3.0, "steps": 7}
    cells = made_up("head_on_ppo", "ours", [1, 2, 3], reached_streak=True, **flights)
    cells[0]["reached_streak"] = False
    text = page(cells)
    assert "| head_on | PPO | 2 of 3 | 10.0 (10.0 – 10.0) | 7 | 50.0% [44.4%, 55.6%] | 3.00 |" in text


def test_gymnasium_worlds_of_the_study_have_the_title_they_are_known_by():
    for task in TASKS:
        world = scenario_of(task, 1).world
        if isinstance(world, GymnasiumConfig):
            assert WORLDS[task.world].title.removesuffix(", offline") == world.id


def test_cloning_finds_the_mean_of_the_recorded_actions():
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2000, 3)).astype(np.float32)
    action = np.tanh(obs[:, :1]) + 0.3 * rng.choice([-1, 1], (2000, 1)).astype(np.float32)
    player = clone(obs, action.astype(np.float32), seed=1, steps=400)
    asked = rng.normal(size=(200, 3)).astype(np.float32)
    assert np.abs(player.act({"obs": asked}, None, None).action - np.tanh(asked[:, :1])).mean() < 0.12
