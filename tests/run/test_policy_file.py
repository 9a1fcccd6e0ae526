"""A trained policy loads in one line, needs neither world nor config, and acts with the learner's own bits."""

import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from learning import TINY, build, digest, python, recast, scenario_of, tiny

import slipstream
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError
from slipstream.nets.actor import Actor, ActorSpec
from slipstream.run.loop import Result
from slipstream.run.policy_file import Policy, PolicyRecord
from slipstream.run.portable_model import Portable
from slipstream.run.session import train
from slipstream.spec import ObsBlock, WorldSpec
from slipstream.worlds.foreign.vec_env import episode_seed
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.spaces import action_spec
from slipstream.worlds.vec_env import EnvOptions


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Result]:
    folder = tmp_path_factory.mktemp("trained")
    wanted = {
        "masked": scenario_of("probe_bandit", TINY),
        "continuous": scenario_of("head_on", TINY),
        "table": scenario_of("probe_target", {**TINY, "algo.discrete_actions": True}),
        "several": recast(
            scenario_of("probe_leaver", {**TINY, "algo.minibatch_size": 8}),
            {"stay": {"kind": "learning"}, "leave": {"kind": "learning"}},
            {"stays": "stay", "leaves": "leave"},
        ),
    }
    return {name: train(scenario, out=folder / name, models=folder / "models") for name, scenario in wanted.items()}


def learner_of(name: str, result: Result) -> tuple:
    """The learner as the run left it, and worlds to show it."""
    saved = checkpoint.load(result.checkpoint)
    scenario = checkpoint_scenario(saved)
    parts = build(scenario)
    state = {k.removeprefix("policy.main."): v for k, v in saved.arrays.items() if k.startswith("policy.main.")}
    parts.learner.load_state_dict(state)
    return parts.learner, parts.env


def checkpoint_scenario(saved):
    from slipstream.config.load import from_plain

    return from_plain(saved.meta["scenario"])


@pytest.mark.parametrize("name", ["masked", "continuous", "table"])
def test_model_checkpoint_and_run_act_with_the_bits_of_the_learner(name, trained):
    result = trained[name]
    learner, env = learner_of(name, result)
    obs = np.random.default_rng(0).uniform(-1, 1, (500, *env.obs["obs"].shape[2:])).astype(np.float32)
    mask = np.tile(np.array([1, 0, 1, 1], np.uint8), (500, 1)) if name == "masked" else None
    expected = learner.act({"obs": obs}, mask, None).action
    if name == "table":
        expected = np.asarray(env.spec.action.table, np.float32)[expected]
    elif name == "continuous":
        expected = np.clip(expected, -1, 1)
    assert result.model is not None
    for path in (result.model, result.checkpoint, result.run):
        policy = slipstream.load_policy(path)
        assert policy.act(obs, mask).tobytes() == expected.tobytes()
        for k in (0, 77, 499):  # alone, too
            one = policy.act(obs[k], None if mask is None else mask[k])
            assert np.asarray(one).tobytes() == expected[k].tobytes()


def test_leading_axes_are_kept(trained):
    env = slipstream.make("head_on", num_worlds=5, max_episode_steps=5)
    policy = slipstream.load_policy(trained["continuous"].run)
    action = policy.act(env.obs["obs"])
    assert action.shape == env.actions.shape
    assert action.dtype == env.actions.dtype
    np.testing.assert_array_equal(policy.act({"obs": env.obs["obs"]}), action)
    bandit = slipstream.load_policy(trained["masked"].run)
    obs, mask = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 4), np.uint8)
    mask[..., 2] = 1
    assert bandit.act(obs, mask).tolist() == [[2, 2, 2], [2, 2, 2]]


def test_actions_stay_within_the_bounds_of_the_world(trained, tmp_path):
    saved = checkpoint.load(trained["continuous"].checkpoint)
    saved.arrays["policy.main.actor.head.bias"][:] = [5.0, -5.0]
    checkpoint.save(tmp_path / "checkpoint_1", saved)
    policy = slipstream.load_policy(tmp_path / "checkpoint_1")
    assert policy.act(np.zeros(policy.record.world.obs_size)).tolist() == [1.0, -1.0]


def test_float64_observations_are_taken(trained):
    policy = slipstream.load_policy(trained["masked"].run)
    obs = np.random.default_rng(0).uniform(-1, 1, (9, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.act(obs.astype(np.float64)), policy.act(obs))
    np.testing.assert_array_equal(policy.act(obs.tolist()), policy.act(obs))


def test_a_wrong_observation_is_explained(trained):
    policy = slipstream.load_policy(trained["masked"].run)
    with pytest.raises(ValueError, match=r"'obs' .*\(7,\).*\(4,\).*probe/bandit"):
        policy.act(np.zeros(7))
    with pytest.raises(ValueError, match=r"'obs'.*'obz'\?"):
        policy.act({"obz": np.zeros(4)})


def test_one_of_several_policies_is_named(trained):
    model = trained["several"].model
    assert slipstream.load_policy(model, "stay").record.agents == (0, 1)
    assert slipstream.load_policy(model, "leave").record.agents == (2,)
    with pytest.raises(CheckpointError, match=r"\(stay, leave\)"):
        slipstream.load_policy(model)
    with pytest.raises(CheckpointError, match=r"'leeve'.*'leave'\?"):
        slipstream.load_policy(model, "leeve")


def test_an_export_holds_only_what_acting_needs_and_a_page_for_people(trained):
    result = trained["continuous"]
    assert result.model is not None
    assert {path.name for path in result.model.iterdir()} == {
        "arrays.safetensors",
        "meta.json",
        "metadata.json",
        "README.txt",
    }
    model, state = checkpoint.load(result.model), checkpoint.load(result.checkpoint)
    assert all(key.startswith("policy.main.actor.") for key in model.arrays)
    assert digest(model.arrays) == digest({k: v for k, v in state.arrays.items() if k in model.arrays})
    assert "slipstream.load_policy" in (result.model / "README.txt").read_text()


NEITHER_WORLD_NOR_CONFIG = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        banned = ("slipstream.worlds.registry", "slipstream.worlds.vec_env",
                  "slipstream.worlds.airspace.", "gymnasium", "pettingzoo", "scipy", "matplotlib")
        if name.startswith(banned):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Absent())
import numpy as np, slipstream
policy = slipstream.load_policy(sys.argv[1])
obs = np.linspace(-1, 1, policy.record.world.obs_size, dtype=np.float32)
print(policy.act(obs).tobytes().hex())
"""


def test_loading_needs_neither_world_nor_config(trained, tmp_path):
    model = tmp_path / "copied elsewhere"
    assert trained["continuous"].model is not None
    shutil.copytree(trained["continuous"].model, model)
    done = python("-c", NEITHER_WORLD_NOR_CONFIG, str(model), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    policy = slipstream.load_policy(model)
    obs = np.linspace(-1, 1, policy.record.world.obs_size, dtype=np.float32)
    assert done.stdout.strip() == policy.act(obs).tobytes().hex()


def test_a_checkpoint_without_a_policy_is_refused(tmp_path):
    checkpoint.save(tmp_path / "checkpoint_1", checkpoint.Checkpoint({"x": np.zeros(3)}, {"kind": "run"}))
    with pytest.raises(CheckpointError, match=r"checkpoint_1: .* only kind;"):
        slipstream.load_policy(tmp_path / "checkpoint_1")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda record: record.update(agents=0), r"`\$\.agents`"),
        (lambda record: record.update(surprise=1), "`surprise`"),
        (lambda record: record["actor"].update(inputs="many"), r"`\$\.actor\.inputs`"),
        (lambda record: record.pop("world"), "`world`"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(spoil, said, trained, tmp_path):
    saved = checkpoint.load(trained["masked"].checkpoint)
    spoil(saved.meta["policies"]["main"])
    path = Path(tmp_path / "checkpoint_1")
    checkpoint.save(path, saved)
    with pytest.raises(CheckpointError, match=f"checkpoint_1: .*'main' .*{said}"):
        slipstream.load_policy(path)


@pytest.mark.parametrize(("name", "kind"), [("pendulum", "ppo"), ("pendulum", "td3"), ("cartpole", "dqn")])
def test_in_a_users_own_environment_it_acts_as_it_did_in_training(name, kind, tmp_path):
    scenario = scenario_of(name, tiny(kind))
    policy = slipstream.load_policy(train(scenario, out=tmp_path / "run", models=tmp_path / "models").run)
    policy.network.head.weight.data *= 300.0  # so that it goes to the bounds
    worlds, env = make_worlds(scenario.world, 1, EnvOptions(seed=3)), gymnasium.make(scenario.world.id)
    worlds.reset()
    obs, _ = env.reset(seed=episode_seed(3, False, 0, 0))
    taken = []
    for _ in range(8):
        worlds.actions[0] = policy.choose({"obs": worlds.obs["obs"][0]}, None, None).action
        worlds.step()
        taken.append(policy.act(obs))
        assert env.action_space.contains(taken[-1])
        obs, *_ = env.step(taken[-1])
        np.testing.assert_array_equal(obs, worlds.obs["obs"][0, 0])
    assert name == "cartpole" or np.abs(taken).max() == 2.0  # a pendulum's torque, not an axis of -1 to 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "V100000000"},
        {"dtype": "float32", "shape": [2], "low": [0.0], "high": [1.0]},
        {"dtype": "float32", "shape": [1], "low": [0.0], "high": [1.0, 2.0]},
        {"dtype": "float32", "shape": [-1, -1], "low": [0.0], "high": [1.0]},
        {"dtype": "float32", "shape": [10**9], "low": [], "high": []},
    ],
    ids=str,
)
def test_a_saved_action_space_that_makes_no_sense_is_refused(wrong, trained, tmp_path):
    saved = checkpoint.load(trained["continuous"].checkpoint)
    record = saved.meta["policies"]["main"]
    world = {**record["world"], "action_space": wrong}
    meta = {**saved.meta, "policies": {"main": {**record, "world": world}}}
    checkpoint.save(tmp_path / "wrong", checkpoint.Checkpoint(saved.arrays, meta))
    with pytest.raises(CheckpointError, match=r"/wrong: .*'main' .*`\$\.world\.action_space"):
        slipstream.load_policy(tmp_path / "wrong")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-1),
        spaces.Box(-5, 5, (2, 2), np.float64),
        spaces.Box(0, 9, (3,), np.int32),
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
    ],
    ids=str,
)
def test_actions_are_of_the_environments_own_space(space):
    action, own = action_spec(space)
    spec = WorldSpec(
        "toy", ("agent",), ("agent",), (ObsBlock("obs", "float32", (4,), -1, 1),), action, action_space=own
    )
    actor = ActorSpec(4, action.size, action.discrete, (8,), "tanh", False)
    policy = Policy(PolicyRecord(actor, spec, (0,)), Actor(actor, torch.Generator().manual_seed(0)))
    policy.network.head.weight.data *= 1000.0
    obs = np.random.default_rng(0).normal(size=(5, 40, 4)).astype(np.float32)
    many = policy.act(obs)
    assert many.shape == (5, 40, *space.shape)
    assert all(space.contains(one) for one in many.reshape(-1, *space.shape))
    np.testing.assert_array_equal(policy.act(obs[3, 7]), many[3, 7])
    written = Portable(policy)([torch.from_numpy(obs[3])], None).numpy()  # as other programs get it
    np.testing.assert_allclose(written, many[3], rtol=1e-5)
    if own.discrete:
        assert set(many.ravel().tolist()) == {-1, 0, 1}
    else:  # bounded axes reach their bounds, others go as far as the network says
        said = policy.choose({"obs": obs.reshape(-1, 4)}, None, None).action
        assert many.max() == min(space.high.max(), said.max())
        assert said.max() > 1.0
