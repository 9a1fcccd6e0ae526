"""Runs whose actions have several parts: the same bits however they are collected, saved policies, files, refusals."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from learning import build, scenario_of, tiny

import slipstream
from slipstream.algos.registry import ALGORITHMS
from slipstream.data.dataset_file import merge as merge_datasets
from slipstream.data.dataset_file import save_dataset
from slipstream.data.dataset_summary import describe
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.run import portable_model as portable
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.policy_file import from_checkpoint
from slipstream.run.record import record
from slipstream.run.saved_cast import load_cast, own_script
from slipstream.run.session import train
from slipstream.run.views import refuse_other_view

ON_PARTS = [name for name, kind in ALGORITHMS.items() if kind.traits.parts]
JOINTLY = [name for name, kind in ALGORITHMS.items() if kind.traits.discrete and not kind.traits.parts]


class Desk(gymnasium.Env):
    """Pays for each part of the action by itself: the lamp as shown, the switches on, the slider where shown."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Dict(
        lamp=spaces.Discrete(2, start=1), switches=spaces.MultiBinary(2), slider=spaces.Box(0.0, 10.0, (1,), np.float32)
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def observe(self):
        self.shown = self.np_random.choice([-1.0, 1.0]), self.np_random.uniform(-1, 1)
        return np.array(self.shown, np.float32)

    def step(self, action):
        assert self.action_space.contains(action)
        lamp, slider = self.shown
        pay = float(action["lamp"] == (2 if lamp > 0 else 1)) + action["switches"].sum() / 2
        pay += 1.0 - (action["slider"][0] / 5 - 1 - slider) ** 2
        self.t += 1
        return self.observe(), float(pay), False, self.t == 8, {}


def desk(**changes):
    """A scenario of that environment."""
    world = {"world.kind": "gymnasium", "world.id": f"{__name__}:Desk-v0"}
    return scenario_of("cartpole", {**world, "timesteps": 8192, "evaluate.evaluation_interval": None, **changes})


gymnasium.register("Desk-v0", entry_point=Desk)


def run(name, kind, folder, **changes):
    """A tiny run's folder."""
    scenario = scenario_of(name, {**tiny(kind), **changes})
    return train(scenario, out=folder / "run", models=folder / "models").run


# --- bits ---


def rollouts_of(worlds, first, threads=1):
    """What some of a batch's worlds recorded in two slabs."""
    scenario = scenario_of(
        "probe_parts", {**tiny("ppo"), "collect.num_worlds": worlds, "collect.world_threads": threads}
    )
    parts = build(scenario)
    found = []
    for slab in range(2):
        rollouts, _ = parts.collector.collect(slab)
        (rollout,) = rollouts.values()
        found.append({name: getattr(rollout, name)[:, first : first + 4].copy() for name in ("action", "logp", "mask")})
    return found


def test_what_a_world_records_does_not_depend_on_who_is_beside_it():
    for alone, among in zip(rollouts_of(4, 0), rollouts_of(40, 0, threads=2), strict=True):
        for name, array in alone.items():
            np.testing.assert_array_equal(array, among[name])


@pytest.mark.parametrize(("name", "kind"), [("probe_parts", "ppo"), ("probe_switches", "dqn")])
def test_workers_give_the_bits_of_one_process(name, kind, tmp_path):
    found = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        made = run(name, kind, folder, **{"collect.workers": workers})
        found.append(metrics_hash(made / "metrics.jsonl"))
    assert found[0] == found[1]


# --- learning in somebody else's environment ---


@pytest.mark.parametrize("kind", ["ppo", "impala"])
def test_an_environment_with_a_dict_of_actions_is_learned_and_the_policy_answers_in_its_own_terms(kind, tmp_path):
    settings = {
        "algo.kind": kind,
        "algo.hidden": [32, 32],
        "algo.learning_rate": [[0, 5e-3], [1, 0]],
        "algo.minibatch_size": 256,
        "algo.epochs": 4,
        "algo.gamma": 0.5,
        "algo.init_log_std": -1,
        "algo.entropy_coef": 0.0,
        "collect.num_worlds": 16,
        "collect.rollout_length": 32,
    }
    result = train(desk(timesteps=24576, **settings), out=tmp_path / "run", models=tmp_path / "models")
    policy = slipstream.load_policy(result.run)
    env, earned = Desk(), 0.0
    obs, _ = env.reset(seed=5)
    for _ in range(64):
        action = policy.act(obs)
        assert list(action) == list(env.action_space)
        assert env.action_space.contains(action)
        obs, reward, *_ = env.step(action)
        earned += reward / 64
    assert earned > 0.95 * 3
    many = policy.act(np.zeros((2, 5, 2), np.float32))
    assert {key: value.shape for key, value in many.items()} == {
        "lamp": (2, 5),
        "slider": (2, 5, 1),
        "switches": (2, 5, 2),
    }


# --- files ---

EXPORTS = [
    ("probe_parts", "ppo", {}),
    ("probe_switches", "dqn", {}),
    ("probe_switches", "appo", {}),
    ("probe_parts", "ppo", {"algo.network": {"kind": "gru", "size": 8}}),
]


@pytest.mark.parametrize(("name", "kind", "changes"), EXPORTS)
def test_an_exported_file_acts_as_the_policy(name, kind, changes, tmp_path):
    scenario, saved = load_cast(run(name, kind, tmp_path, **changes))
    policy = from_checkpoint(saved, Path(name))
    asked = portable.record(scenario, saved, "main", 100)
    assert asked.mask.shape[1] == 7
    assert portable.describe(policy, {})["action"]["parts"] == [3, 4]
    portable.write_onnx(portable.to_program(policy, asked), policy, {}, tmp_path / "policy.onnx")
    agreement = portable.compare(policy, portable.read_onnx(tmp_path / "policy.onnx", policy), asked)
    assert agreement.rows == asked.rows > 20
    assert agreement.worst <= 1e-5

    def other(obs, mask):
        answers = policy.answer(obs, mask, obs.get("memory"))[0].copy()
        answers[:, 1] = mask[:, 3:].argmin(1)  # a forbidden arm, where there is one
        return answers

    assert portable.compare(policy, other, asked).worst > 1e8


@pytest.mark.parametrize("kind", ["ppo", "appo"])
def test_an_exported_file_answers_in_the_environments_own_numbers(kind, tmp_path):
    small = {**tiny(kind), "timesteps": 256}
    result = train(desk(**small), out=tmp_path / "run", models=tmp_path / "models")
    scenario, saved = load_cast(result.run)
    policy = from_checkpoint(saved, result.run)
    asked = portable.record(scenario, saved, "main", 50)
    portable.write_onnx(portable.to_program(policy, asked), policy, {}, tmp_path / "policy.onnx")
    answer = portable.read_onnx(tmp_path / "policy.onnx", policy)
    assert portable.compare(policy, answer, asked).worst <= 1e-5
    told = answer(asked.obs, asked.mask)
    own = policy.act(asked.obs)
    np.testing.assert_allclose(told, np.column_stack([own["lamp"], own["switches"], own["slider"]]), atol=1e-4)


def test_recordings_hold_what_was_done_and_can_be_learned_from_as_one_choice(tmp_path):
    for policy in ("random", "best"):
        dataset = record(scenario_of("probe_switches"), 400, policy=policy, seed=1)
        assert not dataset.record.discrete
        assert dataset.rows.action.shape == (400, 2)
        assert dataset.rows.mask.shape == (400, 7)
        first, second = dataset.rows.action.astype(int).T
        rows = np.arange(400)
        assert dataset.rows.mask[rows, first].all()
        assert dataset.rows.mask[rows, 3 + second].all()
        shares = describe(dataset).choices
        assert len(shares) == 7
        assert sum(shares.values()) == pytest.approx(2)
        save_dataset(tmp_path / policy, dataset)
    together = merge_datasets([tmp_path / "random", tmp_path / "best"])
    save_dataset(tmp_path / "both", together)
    offline = {**tiny("cql"), "algo.replay.dataset": str(tmp_path / "both"), "algo.gamma": 0.9}
    result = train(scenario_of("probe_switches", offline), out=tmp_path / "run", models=tmp_path / "models")
    assert len(list(read_rows(result.run / "metrics.jsonl"))) > 0


def test_a_recording_by_a_learner_of_one_choice_holds_that_choice():
    dataset = record(scenario_of("probe_switches", {"algo.kind": "dqn"}), 300, policy="random", seed=1)
    assert dataset.record.discrete
    assert dataset.record.choices == 12
    assert dataset.rows.mask.shape == (300, 12)
    assert dataset.rows.mask[np.arange(300), dataset.rows.action].all()


# --- functions of the user's ---


def first_allowed(obs, mask):
    """The first allowed choice in each part."""
    return np.stack([mask[:, :3].argmax(1), mask[:, 3:].argmax(1)], 1)


def forbidden(obs, mask):
    """Sometimes a masked choice."""
    return np.stack([mask[:, :3].argmin(1), mask[:, 3:].argmax(1)], 1)


def test_a_script_of_the_users_gives_a_choice_for_each_part():
    worlds = slipstream.make("probe_switches", num_worlds=4)
    worlds.reset()
    obs, mask = {"obs": worlds.obs["obs"][:, 0]}, worlds.action_mask[:, 0]
    fine = own_script(f"{__name__}:first_allowed", worlds.spec, "script").act(obs, mask, None)
    assert fine.action.dtype == np.float32
    with pytest.raises(WorldContractError, match=r"forbidden: .*part 0 .* masked"):
        own_script(f"{__name__}:forbidden", worlds.spec, "script").act(obs, mask * [[1, 0, 1, 1, 1, 1, 1]], None)


# --- refusals ---


@pytest.mark.parametrize("kind", [*JOINTLY, "td3"])
def test_who_cannot_act_on_parts_and_axes_refuses_in_one_sentence(kind):
    with pytest.raises(
        ScenarioError, match=rf"^policies\.main: {kind} .*, but .*probe/parts has parts of 3, 4 choices and 1 "
    ):
        build(scenario_of("probe_parts", {**tiny(kind)}))


def test_td3_refuses_choices_too():
    with pytest.raises(ScenarioError, match=r"td3 .* axes.* probe/switches has parts of 3, 4 choices$"):
        build(scenario_of("probe_switches", {**tiny("td3")}))


def test_who_acts_on_parts_may_also_take_them_for_one_choice():
    parts = build(scenario_of("probe_switches", {**tiny("ppo"), "algo.discrete_actions": True}))
    assert parts.learner.actor.spec.outputs == 12
    assert np.isfinite(parts.advance()["policy_loss"])
    (recorder,) = parts.collector.recorders.values()
    rollout = recorder.rollout
    assert rollout.mask.shape[-1] == 12
    assert np.take_along_axis(rollout.mask, rollout.action[..., None].astype(np.int64), -1)[1:].all()


def test_too_many_combinations_are_refused_by_who_takes_them_for_one_choice(monkeypatch):
    monkeypatch.setattr("slipstream.spec.MOST_JOINT", 11)
    with pytest.raises(ScenarioError, match=r"dqn .*parts of 3, 4 choices$"):
        build(scenario_of("probe_switches", {**tiny("dqn")}))
    with pytest.raises(ScenarioError, match=r"^algo\.discrete_actions: .*parts of 3, 4 choices"):
        build(scenario_of("probe_switches", {**tiny("ppo"), "algo.discrete_actions": True}))


def test_a_policy_of_other_parts_is_refused(tmp_path):
    policy = slipstream.load_policy(run("probe_switches", "ppo", tmp_path))
    spec = slipstream.make("probe_parts", num_worlds=1).spec
    with pytest.raises(ScenarioError, match=r"parts of 3, 4 choices\).* parts of 3, 4 choices and 1 action axis"):
        refuse_other_view(policy.record, spec, "here")


def test_everybody_either_acts_on_parts_or_says_why_not():
    assert set(ON_PARTS) == {"ppo", "appo", "impala", "reinforce"}
    assert set(JOINTLY) == {"dqn", "sac", "cql"}
    assert set(ALGORITHMS) == {*ON_PARTS, *JOINTLY, "td3"}
