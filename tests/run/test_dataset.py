"""Recording: the rows of a dataset are what happened, and who acted acted as they do."""

from pathlib import Path

import numpy as np
import pytest
from learning import TINY, recast, scenario_of
from walked import assert_rows, by_script, in_recorded_order, uniformly, walk

from slipstream.config.load import override
from slipstream.data import checkpoint
from slipstream.data.arrays_file import content_hash
from slipstream.data.dataset_file import Dataset, DatasetRecord, merge
from slipstream.data.transitions import TERMINATED, TRUNCATED, to_fields
from slipstream.errors import CheckpointError, ScenarioError, WorldContractError
from slipstream.run import record as recording
from slipstream.run.policy_file import load_policy
from slipstream.run.record import record
from slipstream.run.session import train


def bits(dataset: Dataset) -> str:
    return content_hash({**to_fields(dataset.rows), "end": dataset.end})


# --- what is recorded ---

CASES = [
    ("probe_leaver", "random"),  # an agent dies before the others
    ("probe_leaver", "best"),
    ("probe_constant", "random"),  # truncations
    ("probe_corridor", "random"),  # terminations and truncations
    ("probe_bandit", "random"),  # masks
    ("probe_duration", "random"),  # decisions of 1 and 4 ticks, truncated
    ("probe_alternating", "random"),  # two agents that decide at different ticks, terminated in mid-decision
    ("probe_coordination", "best"),
    ("probe_target", "random"),  # axes
    ("head_on", "mvp"),  # axes, a potential, agents that arrive at different ticks
]


@pytest.mark.parametrize(("name", "policy"), CASES)
@pytest.mark.parametrize("worlds", [1, 3])
def test_recorded_rows_are_those_of_a_walk_of_one_agent_at_a_time(name, policy, worlds, monkeypatch):
    monkeypatch.setattr(recording, "SLAB_STEPS", 7 * worlds)  # slabs of 7 ticks: decisions cross their borders
    scenario = override(scenario_of(name), {"shaping.use_potential_shaping": True, "shaping.kappa": 0.5})
    ticks = 245 if name == "head_on" else 70
    gamma, agents = 0.9, tuple(range(len(record(scenario, 1).record.world.agents)))
    choose = uniformly(5) if policy == "random" else by_script(policy)
    walked = in_recorded_order(walk(scenario, agents, worlds, ticks, 5, gamma, choose), slab=7)
    dataset = record(scenario, len(walked), policy=policy, seed=5, gamma=gamma, num_worlds=worlds)
    assert len(dataset.rows) == len(walked)
    assert_rows(dataset, walked)


def test_the_walk_meets_deaths_truncations_long_decisions_and_masks():
    """What the test above would miss if the worlds did not show it."""
    ends = {name: record(name, 400, seed=5).end for name in ("probe_leaver", "probe_corridor", "probe_duration")}
    assert TERMINATED in ends["probe_leaver"]
    assert {TERMINATED, TRUNCATED} <= set(ends["probe_corridor"].tolist())
    assert TRUNCATED in ends["probe_duration"]
    assert len(np.unique(record("probe_duration", 400, seed=5).rows.discount)) == 2
    assert (record("probe_bandit", 400, seed=5).rows.mask == 0).any()


def test_rewards_of_long_decisions_are_discounted_by_the_tick():
    """By the rules of the probes: 1 after a tick or 4 after four; 1 for each tick that the choice matched the bit."""
    gamma = 0.9
    rows = record("probe_duration", 500, seed=3, gamma=gamma).rows
    is_long = (rows.action == 1) == (rows.obs["obs"][:, 0] > 0)
    np.testing.assert_allclose(rows.reward, np.where(is_long, 4 * gamma**3, 1.0), rtol=1e-6)
    np.testing.assert_allclose(rows.discount, np.where(is_long, gamma**4, gamma), rtol=1e-6)

    dataset = record("probe_alternating", 500, seed=3, gamma=gamma)
    rows = dataset.rows
    period = np.where(rows.obs["obs"][:, 1] < 0, 2, 3)
    left = np.rint(8 * rows.obs["obs"][:, 2])
    ticks = np.minimum(period, left)
    matched = (rows.action == 1) == (rows.obs["obs"][:, 0] > 0)
    np.testing.assert_allclose(rows.reward, matched * (1 - gamma**ticks) / (1 - gamma), rtol=1e-5)
    over = left <= period
    np.testing.assert_array_equal(dataset.end == TERMINATED, over)
    np.testing.assert_allclose(rows.discount, np.where(over, 0.0, gamma**period), rtol=1e-6)


def test_only_the_chosen_teams_decisions_are_recorded():
    scenario = recast(
        scenario_of("probe_leaver"),
        {"stay": {"kind": "learning"}, "leave": {"kind": "learning"}},
        {"stays": "stay", "leaves": "leave"},
    )
    for team, is_leaver, agents in (("stay", 0.0, ("stays_0", "stays_1")), ("leave", 1.0, ("leaves",))):
        dataset = record(scenario, 300, team=team, seed=1, num_worlds=2)
        np.testing.assert_array_equal(dataset.rows.obs["obs"][:, 2], is_leaver)
        assert dataset.record.parts[0].agents == agents
        indices = (2,) if team == "leave" else (0, 1)
        slab = recording.SLAB_STEPS // 2
        walked = in_recorded_order(walk(scenario, indices, 2, 500, 1, 0.9, uniformly(1)), slab)
        assert_rows(dataset, walked)  # so the other team acts at random too
    with pytest.raises(ScenarioError, match=r"probe_leaver: .*\(stay, leave\).*--team"):
        record(scenario, 10)
    with pytest.raises(ScenarioError, match=r"--team: .*'leaf' .*'leave'\?"):
        record(scenario, 10, team="leaf")


def test_frozen_and_scripted_teams_act_as_the_scenario_says_and_are_not_recorded():
    scenario = recast(
        scenario_of("probe_coordination"),
        {"main": {"kind": "learning"}, "other": {"kind": "scripted", "script": "best"}},
        {"complement": "other"},
    )
    rows = record(scenario, 400, seed=2).rows
    np.testing.assert_array_equal(rows.obs["obs"][:, 1], -1.0)  # the first agent
    right = (rows.action == 1) == (rows.obs["obs"][:, 0] > 0)
    np.testing.assert_array_equal(rows.reward, right)  # paid whenever it is right, for the script always is


def test_random_actions_are_uniform_on_axes_and_on_what_a_mask_allows():
    axes = record("probe_target", 20_000, seed=1).rows.action
    counts = np.array([np.histogram(axes[:, k], bins=10, range=(-1, 1))[0] for k in range(2)])
    assert (np.abs(counts - 2000) < 6 * np.sqrt(2000)).all()
    assert (record("probe_target", 20_000, seed=1, noise=False).rows.action == axes).all()
    rows = record("probe_bandit", 20_000, seed=1).rows
    for allowed in np.unique(rows.mask, axis=0):
        taken = np.bincount(rows.action[(rows.mask == allowed).all(1)], minlength=4)
        assert (taken[allowed == 0] == 0).all()
        expected = taken.sum() / allowed.sum()
        assert (np.abs(taken[allowed == 1] - expected) < 6 * np.sqrt(expected)).all()


def test_the_record_says_who_acted_and_what_they_earned():
    dataset = record("probe_leaver", 640, policy="best", seed=9, gamma=0.5, num_worlds=4)
    told = dataset.record
    (part,) = told.parts
    assert (told.rows, told.gamma, told.discrete, told.shaping_coef) == (640, 0.5, True, 0.0)
    assert (part.policy, part.source, part.seed, part.num_worlds) == ("best", "probe_leaver", 9, 4)
    assert part.world == {"kind": "probe", "task": "leaver", "horizon": 8, "entities": 4}
    # Two agents earn 1 on each of 8 ticks; the third on the 1 to 7 it stays, and 2 when it leaves.
    assert part.returns is not None
    assert 8 + 8 + 1 + 2 <= part.returns.min < part.returns.mean < part.returns.max <= 8 + 8 + 7 + 2
    assert part.returns.episodes == 256 // 8 * 4  # a slab is 256 ticks of 4 worlds
    assert record("probe_corridor", 100).record.shaping_coef == 0.0  # its scenario says so
    shaped = override(scenario_of("probe_corridor"), {"shaping.use_potential_shaping": True, "shaping.kappa": 2.0})
    assert record(shaped, 100).record.shaping_coef == 2


def test_the_same_words_give_the_same_bits_and_fewer_transitions_are_the_first_of_more():
    for name in ("probe_leaver", "probe_alternating", "pendulum"):
        full = record(name, 1500, seed=4, num_worlds=3)
        assert bits(full) == bits(record(name, 1500, seed=4, num_worlds=3))
        assert bits(full) != bits(record(name, 1500, seed=5, num_worlds=3))
        assert bits(merge([full], [600])) == bits(record(name, 600, seed=4, num_worlds=3))


def test_by_default_every_world_can_end_an_episode():
    """Else a short recording of many worlds would hold nothing but beginnings."""
    assert record("head_on", 3000).record.parts[0].num_worlds == 3000 // (150 * 2)
    assert record("head_on", 50).record.parts[0].num_worlds == 1
    assert record("probe_leaver", 10_000).record.parts[0].num_worlds == 32  # the scenario's


def test_a_recording_that_is_stopped_keeps_what_there_is():
    asked = []
    dataset = record("probe_leaver", 100_000, seed=4, num_worlds=3, stop=lambda: len(asked.append(1) or asked) == 2)
    assert 1024 < len(dataset.rows) < 3 * 2 * 1024
    assert dataset.record.rows == dataset.record.parts[0].recorded == len(dataset.rows)
    assert bits(dataset) == bits(record("probe_leaver", len(dataset.rows), seed=4, num_worlds=3))


def test_what_is_not_finite_is_never_recorded(monkeypatch):
    monkeypatch.setattr(recording.RandomPlayer, "act", lambda *_: recording.Acted(np.full((1, 2), np.nan), np.zeros(1)))
    with pytest.raises(WorldContractError, match=r"probe/target: NaN .* action,"):
        record("probe_target", 10, num_worlds=1)


# --- learned policies ---

REPLAY = {"timesteps": 256, "collect.num_worlds": 4, "collect.rollout_length": 8, "algo.hidden": [16]}
REPLAY |= {"algo.learning_starts": 64, "algo.batch_size": 16, "evaluate.evaluation_interval": None}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    """Runs of four algorithms that explore in four ways."""
    folder = tmp_path_factory.mktemp("trained")
    wanted = {
        "ppo": scenario_of("probe_target", {**TINY, "timesteps": 64, "algo.init_log_std": 0.5}),
        "sac": scenario_of("probe_target", {"algo": {"kind": "sac"}, **REPLAY}),
        "td3": scenario_of("probe_target", {"algo": {"kind": "td3", "exploration_noise": 0.25}, **REPLAY}),
        "dqn": scenario_of("probe_bandit", {"algo": {"kind": "dqn", "epsilon": 0.3}, **REPLAY}),
        "table": scenario_of("probe_target", {"algo": {"kind": "dqn", "epsilon": 0.3}, **REPLAY}),
    }
    for name, scenario in wanted.items():
        train(scenario, out=folder / name, models=folder / "models" / name)
    return {name: folder / name for name in wanted} | {"models": folder / "models"}


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_a_greedy_recording_holds_the_policys_own_actions(name, trained):
    dataset = record(trained[name], 800, noise=False, seed=1)
    policy = load_policy(trained[name])
    np.testing.assert_array_equal(dataset.rows.action, policy.act(dataset.rows.obs, dataset.rows.mask))
    assert (dataset.record.parts[0].policy, dataset.record.parts[0].noise) == ("learned", False)


@pytest.mark.parametrize("name", ["ppo", "sac", "td3"])
def test_a_noisy_recording_explores_as_the_algorithm_does(name, trained):
    dataset = record(trained[name], 2000, seed=1)
    action, greedy = dataset.rows.action, load_policy(trained[name]).act(dataset.rows.obs)
    assert np.abs(action).max() <= 1.0
    inside = np.abs(action) < 1.0
    spread = np.std((action - greedy)[inside])
    if name == "td3":
        assert spread == pytest.approx(0.25, rel=0.1)
    else:
        assert spread > 0.2
    if name == "ppo":  # a Gaussian of deviation e^0.5 leaves the bounds, where the world stops it
        assert (np.abs(action) == 1.0).mean() > 0.2
    assert dataset.record.parts[0].noise
    assert bits(dataset) == bits(record(trained[name], 2000, seed=1))


def test_dqn_chooses_at_random_as_often_as_it_did(trained):
    rows = record(trained["dqn"], 4000, seed=1).rows
    greedy = load_policy(trained["dqn"]).act(rows.obs, rows.mask)
    assert (rows.mask[np.arange(len(rows)), rows.action] == 1).all()
    # A random choice among m allowed ones is the greedy one once in m times.
    expected = 0.3 * np.mean(1 - 1 / rows.mask.sum(1))
    assert np.mean(rows.action != greedy) == pytest.approx(expected, abs=0.03)


def test_a_model_and_its_run_record_the_same_bits(trained):
    (model,) = (trained["models"] / "sac").iterdir()
    assert bits(record(model, 500, seed=3)) == bits(record(trained["sac"], 500, seed=3))


def test_a_policy_that_is_not_what_its_scenario_describes_is_refused(trained, tmp_path):
    (model,) = (trained["models"] / "sac").iterdir()
    saved = checkpoint.load(model)
    scenario = saved.meta["scenario"]
    meta = saved.meta | {"scenario": scenario | {"algo": scenario["algo"] | {"hidden": [16, 16]}}}
    checkpoint.save(tmp_path / "model", checkpoint.Checkpoint(saved.arrays, meta))
    with pytest.raises(CheckpointError, match=r"probe_target: .*'main' .*: hidden .*16, 16"):
        record(tmp_path / "model", 10)


def test_choices_from_an_action_table_are_recorded_as_choices(trained):
    for policy in ("learned", "random"):
        dataset = record(trained["table"], 500, policy=policy)
        assert dataset.record.discrete
        assert dataset.rows.action.dtype == np.int32
        assert set(dataset.rows.action.tolist()) <= {0, 1, 2, 3}
    table = np.asarray(dataset.record.world.action.table, np.float32)
    expected = 1 - np.mean((table[dataset.rows.action] - dataset.rows.obs["obs"][:, :2]) ** 2, axis=1)
    np.testing.assert_allclose(dataset.rows.reward, expected, atol=1e-6)
    with pytest.raises(ScenarioError, match=r"probe_target: .*'best' .* probe/target, .* dqn "):
        record(trained["table"], 500, policy="best")


def test_what_cannot_be_played_is_refused_in_a_sentence(trained):
    for words, sentence in (
        ({"policy": "mpv"}, r"--policy: airspace .*'mpv' .*'mvp'\?"),
        ({"policy": "learned"}, "--policy learned: head_on "),
        ({"transitions": 0}, "--transitions 0: "),
        ({"seed": -1}, "--seed -1"),
        ({"num_worlds": 0}, "--num-worlds 0"),
        ({"gamma": 1.5}, "--gamma 1.5"),
        ({"team": "other"}, "--team: .*'other' .* head_on .*main"),
    ):
        with pytest.raises(ScenarioError, match=sentence):
            record("head_on", **words)
    scripted = recast(scenario_of("probe_leaver"), {"main": {"kind": "scripted", "script": "best"}}, {})
    with pytest.raises(ScenarioError, match=r"^probe_leaver: .*\(main\)"):
        record(scripted)
    with pytest.raises(ScenarioError, match="nowhere/at/all: "):
        record("nowhere/at/all")


# --- size ---


def test_what_will_be_recorded_is_said_before_the_first_step():
    class Enough(Exception):  # noqa: N818
        pass

    def announce(asked: DatasetRecord) -> None:
        # obs and next_obs 3 numbers each, reward, discount, choice, end
        assert (asked.rows, asked.row_bytes, asked.nbytes) == (1000, 37, 37_000)
        raise Enough

    with pytest.raises(Enough):
        record("probe_leaver", 1000, announce=announce, display=None)


def test_the_stated_bytes_are_those_of_the_arrays():
    for name in ("probe_bandit", "probe_target", "head_on"):
        dataset = record(name, 100)
        arrays = [*to_fields(dataset.rows).values(), dataset.end]
        assert dataset.record.nbytes == sum(array.nbytes for array in arrays)
