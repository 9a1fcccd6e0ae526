"""Actions of several parts: environments of others that have them, and our worlds shown to others."""

from __future__ import annotations

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import InvalidAction
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

from slipstream.action_space import ActionSpace, flat_mask, from_space, row_of, to_space
from slipstream.config.load import load
from slipstream.errors import WorldContractError
from slipstream.spec import ActionSpec, joint_mask, wrong_choice
from slipstream.worlds.check import check_world
from slipstream.worlds.foreign.config import GymnasiumConfig, PettingZooConfig
from slipstream.worlds.gymnasium_env import SlipstreamEnv, SlipstreamVectorEnv
from slipstream.worlds.pettingzoo_env import SlipstreamParallelEnv
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.repeat import draw, to_actions
from slipstream.worlds.spaces import action_spec
from slipstream.worlds.vec_env import EnvOptions

SPACE = spaces.Dict(
    aim=spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 9.0], np.float32)),
    gear=spaces.Discrete(3, start=-1),
    inner=spaces.Tuple((spaces.MultiBinary(2), spaces.Dict(level=spaces.MultiDiscrete([2, 4], start=[0, 5])))),
    whole=spaces.Box(0, 5, (1,), np.int32),
)
PARTS = (3, 2, 2, 2, 4)  # gear, the switches, the levels


class Cockpit(gymnasium.Env):
    """Takes and checks actions of SPACE; three steps; masks in the shape of the action space."""

    action_space = SPACE
    observation_space = spaces.Dict(
        seen=spaces.Box(-1, 1, (2,), np.float32),
        action_mask=spaces.Dict(
            gear=spaces.Box(0, 1, (3,), np.int8),
            inner=spaces.Tuple(
                (
                    spaces.Box(0, 1, (2, 2), np.int8),
                    spaces.Dict(level=spaces.Tuple((spaces.MultiBinary(2), spaces.MultiBinary(4)))),
                )
            ),
        ),
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.taken = 0, []
        return self.observe(), {}

    def observe(self):
        odd = self.t % 2
        self.allowed = {
            "gear": np.array([odd, 1, 1 - odd], np.int8),
            "switches": np.array([[1, 0], [0, 1]] if odd else [[1, 1], [1, 1]], np.int8),
            "levels": (np.array([1, 1 - odd], np.int8), np.array([0, 1, 0, 1], np.int8)),
        }
        inner = (self.allowed["switches"], {"level": self.allowed["levels"]})
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"seen": seen, "action_mask": {"gear": self.allowed["gear"], "inner": inner}}

    def step(self, action):
        assert self.action_space.contains(action), action
        (switches, rest), level = action["inner"], action["inner"][1]["level"]
        fine = self.allowed["gear"][action["gear"] + 1]
        fine = fine and all(self.allowed["switches"][k, bit] for k, bit in enumerate(switches))
        fine = fine and all(self.allowed["levels"][k][n] for k, n in enumerate(level - [0, 5]))
        assert set(rest) == {"level"}
        self.taken.append(action)
        self.t += 1
        return self.observe(), float(fine), self.t == 3, False, {}


class Crew(ParallelEnv):
    """Two agents with a MultiDiscrete action and one mask for all its choices."""

    metadata = {"name": "crew"}  # noqa: RUF012

    def __init__(self, mask_size=5):
        self.possible_agents = ["a", "b"]
        self.mask_size = mask_size

    def observation_space(self, agent):
        return spaces.Dict(
            seen=spaces.Box(0, 1, (1,), np.float32), action_mask=spaces.Box(0, 1, (self.mask_size,), np.int8)
        )

    def action_space(self, agent):
        return spaces.MultiDiscrete([2, 3])

    def observe(self):
        mask = np.array([0, 1, 1, 0, 1], np.int8)
        return {a: {"seen": np.zeros(1, np.float32), "action_mask": mask} for a in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self.observe(), {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1
        assert all(self.action_space(a).contains(action) for a, action in actions.items())
        rewards = {a: float(action[0] == 1 and action[1] in (0, 2)) for a, action in actions.items()}
        over = dict.fromkeys(self.agents, self.t == 4)
        seen, infos = self.observe(), {a: {} for a in self.agents}
        self.agents = [] if self.t == 4 else self.agents
        return seen, rewards, over, dict.fromkeys(over, False), infos


@pytest.fixture
def register():
    made = []

    def add(cls, name="SlipstreamTestCockpit-v0"):
        gymnasium.register(name, entry_point=cls)
        made.append(name)
        return GymnasiumConfig(id=name)

    yield add
    for name in made:
        gymnasium.registry.pop(name)


# --- their spaces as ours ---


def test_parts_come_first_and_then_the_axes():
    action, own = action_spec(SPACE)
    assert action.parts == PARTS
    assert (action.size, action.axes, action.mask_size, action.outputs) == (8, 3, 13, 16)
    assert action.names == (
        "gear",
        "inner.0.0",
        "inner.0.1",
        "inner.1.level.0",
        "inner.1.level.1",
        "aim.0",
        "aim.1",
        "whole",
    )
    one = to_space(own, np.array([0, 1, 0, 1, 3, 1.0, -1.0, 0.3], np.float32))
    assert one["gear"] == -1
    assert one["inner"][0].tolist() == [1, 0]
    assert one["inner"][1]["level"].tolist() == [1, 8]
    assert one["aim"].tolist() == [2.0, 0.0]
    assert one["whole"].tolist() == [3]
    assert SPACE.contains(one)


def test_a_tree_of_boxes_is_axes_and_nothing_else():
    action, own = action_spec(spaces.Tuple((spaces.Box(-1, 3, (2,)), spaces.Dict(x=spaces.Box(0, 1, (1, 2))))))
    assert (action.parts, action.size, action.discrete) == ((), 4, False)
    left, right = to_space(own, np.array([0.0, 1.0, -1.0, 1.0], np.float32))
    assert left.tolist() == [1.0, 3.0]
    assert right["x"].tolist() == [[0.0, 1.0]]


leaves = st.sampled_from(
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiDiscrete([[2, 3], [4, 1]]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(-3, 5, (2,), np.float32),
        spaces.Box(0, 7, (2, 1), np.int64),
    ]
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda some: spaces.Tuple(some))
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(lambda some: spaces.Dict(some))
    ),
    max_leaves=5,
)


@given(space=trees, seed=st.integers(0, 1000))
def test_every_action_is_in_its_space_and_comes_back(space, seed):
    action, own = action_spec(space)
    assert msgspec.json.decode(msgspec.json.encode(own), type=ActionSpace) == own  # as saved with a policy
    rng = np.random.default_rng(seed)
    if action.discrete:
        ours = rng.integers(0, action.size, 6).astype(np.int32)
    else:
        parts = [rng.integers(0, n, 6) for n in action.parts]
        ours = np.stack([*parts, *rng.uniform(-1, 1, (action.axes, 6))], 1).astype(np.float32)
    theirs = to_space(own, ours)
    assert all(space.contains(row_of(theirs, row)) for row in range(6))
    back = from_space(own, theirs)
    assert back.dtype == ours.dtype
    np.testing.assert_allclose(to_space_flat(own, back), to_space_flat(own, ours), atol=1e-5)
    np.testing.assert_array_equal(back[..., : len(action.parts)], ours[..., : len(action.parts)])


def to_space_flat(own, ours):
    """All numbers of actions as one list."""
    found = []

    def walk(value):
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ():
            walk(child)
        if not isinstance(value, dict | tuple):
            found.append(np.asarray(value, np.float64).ravel())

    walk(to_space(own, ours))
    return np.concatenate(found)


@pytest.mark.parametrize(
    "space",
    [spaces.Dict(), spaces.Tuple(()), spaces.Dict(note=spaces.Text(5)), spaces.Tuple((spaces.Sequence(SPACE),))],
    ids=["no entries", "nothing", "words", "sequence"],
)
def test_what_no_policy_can_give_is_refused(space):
    with pytest.raises(WorldContractError, match="action space"):
        action_spec(space)


@pytest.mark.parametrize(
    "wrong",
    [
        {"starts": [0, 0], "shape": [3]},
        {"starts": [0], "shape": [1], "low": [0.0], "high": [1.0]},
        {"spaces": [{"dtype": "int64"}], "keys": ["a", "b"]},
        {"spaces": [{"dtype": "int64"}], "shape": [2]},
        {"keys": ["a"]},
    ],
    ids=str,
)
def test_a_saved_space_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, ActionSpace)


def test_what_was_saved_before_there_were_parts_is_read():
    old = {"discrete": True, "size": 3, "low": -1.0, "high": 1.0, "names": [], "table": []}
    assert msgspec.convert(old, ActionSpec) == ActionSpec(discrete=True, size=3)
    assert msgspec.convert({"dtype": "int64", "shape": [], "start": 2}, ActionSpace) == ActionSpace("int64", start=2)


# --- their environments ---


def test_an_environment_gets_actions_of_its_own_and_its_masks_hold_for_its_own_parts(register):
    env = make_worlds(register(Cockpit), 3, EnvOptions(seed=1))
    env.reset()
    assert env.spec.masked
    assert list(env.obs) == ["seen"]
    assert env.action_mask[0, 0].tolist() == [0, 1, 1, *[1, 1, 1, 1], *[1, 1], *[0, 1, 0, 1]]
    for step in range(7):
        env.actions[...] = to_actions(env, draw(env, step))
        env.step()
        assert (env.rewards == 1).all()  # nothing forbidden was done, by the environment's own books
    assert env.action_mask[0, 0].tolist() == [1, 1, 0, *[1, 0, 0, 1], *[1, 0], *[0, 1, 0, 1]]


def test_a_policy_is_given_the_mask_as_the_environment_shows_it(register):
    env = make_worlds(register(Cockpit), 1, EnvOptions(seed=1))
    env.reset()
    alone = Cockpit()
    shown, _ = alone.reset(seed=1)
    np.testing.assert_array_equal(flat_mask(env.spec.action_space, shown["action_mask"]), env.action_mask[0, 0])
    assert flat_mask(env.spec.action_space, [1, 0, 1]).tolist() == [1, 0, 1]
    pair = ActionSpace("int64", (2,), starts=(0, 0))
    assert flat_mask(pair, (np.array([1, 0]), np.array([0, 1, 1]))).tolist() == [1, 0, 0, 1, 1]


def test_a_mask_taken_for_another_parts_shows(register, monkeypatch):
    env = make_worlds(register(Cockpit), 3, EnvOptions(seed=1))
    env.reset()
    paid = 0.0
    for step in range(7):
        env.action_mask[...] = np.roll(env.action_mask, 2, axis=-1)
        env.actions[...] = to_actions(env, draw(env, step))
        env.step()
        paid += env.rewards.mean()
    assert paid < 6


def test_check_world_accepts_it(register):
    config = register(Cockpit)
    assert check_world(lambda worlds, options: make_worlds(config, worlds, options), steps=60) == []


def test_a_part_that_allows_nothing_is_refused(register):
    env = make_worlds(register(type("Stuck", (Cockpit,), {"observe": stuck})), 1, EnvOptions())
    with pytest.raises(WorldContractError, match="mask of agent_0 allows nothing"):
        env.reset()


def stuck(self):
    seen = Cockpit.observe(self)
    seen["action_mask"]["gear"][:] = 0
    return seen


def test_a_pettingzoo_environment_has_one_mask_for_all_choices():
    env = make_worlds(PettingZooConfig(env=f"{__name__}:Crew"), 2, EnvOptions(seed=1))
    env.reset()
    assert env.spec.action.parts == (2, 3)
    for step in range(9):
        env.actions[...] = to_actions(env, draw(env, step))
        env.step()
        assert (env.rewards == 1).all()


@pytest.mark.parametrize("size", [4, 6])
def test_a_mask_of_another_size_is_refused(size):
    config = PettingZooConfig(env=f"{__name__}:Crew", kwargs={"mask_size": size})
    with pytest.raises(WorldContractError, match=r"action_mask.* 5"):
        make_worlds(config, 1, EnvOptions())


# --- combinations as one choice ---


@given(parts=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), seed=st.integers(0, 999))
def test_a_combination_is_allowed_where_each_of_its_choices_is(parts, seed):
    spec = ActionSpec(discrete=False, size=len(parts), parts=parts)
    mask = np.random.default_rng(seed).integers(0, 2, (3, sum(parts))).astype(np.uint8)
    joint, table, firsts = joint_mask(parts, mask), spec.joint_table, np.cumsum((0, *parts[:-1]))
    assert joint.shape == (3, len(table))
    for row in range(3):
        for allowed, combination in zip(joint[row], table, strict=True):
            assert allowed == all(mask[row, first + int(n)] for first, n in zip(firsts, combination, strict=True))


def test_too_many_combinations_or_axes_are_not_one_choice():
    assert len(ActionSpec(False, 8, parts=(2,) * 8).joint_table) == 256
    assert ActionSpec(False, 9, parts=(2,) * 9).joint_table == ()
    assert ActionSpec(False, 3, parts=(2, 2)).joint_table == ()
    assert ActionSpec(False, 2).joint_table == ()


def test_wrong_choices_are_named():
    spec = ActionSpec(discrete=False, size=3, parts=(2, 3))
    good = np.array([[1, 2, 0.5]], np.float32)
    assert wrong_choice(spec, good) is None
    for column, value in ((0, 2), (1, -1), (1, 0.5)):
        bad = good.copy()
        bad[0, column] = value
        assert f"part {column}" in wrong_choice(spec, bad)
    assert "part 1" in wrong_choice(spec, good, np.array([[1, 1, 1, 1, 0]], np.uint8))
    assert wrong_choice(spec, good, np.array([[0, 1, 0, 0, 1]], np.uint8)) is None


# --- our worlds shown to others ---


@pytest.mark.parametrize(("name", "form"), [("probe_parts", spaces.Tuple), ("probe_switches", spaces.MultiDiscrete)])
def test_our_worlds_are_environments_of_these_spaces(name, form):
    env = SlipstreamEnv(name)
    assert isinstance(env.action_space, form)
    check_env(env, skip_render_check=True)
    batch = SlipstreamVectorEnv(name, 4)
    batch.reset(seed=3)
    batch.action_space.seed(1)
    single = [SlipstreamEnv(name) for _ in range(4)]
    for i, each in enumerate(single):
        each.reset(seed=3 + i)
    for _ in range(5):
        actions = batch.action_space.sample()
        _, rewards, *_ = batch.step(actions)
        for i, each in enumerate(single):
            own = tuple(part[i] for part in actions) if isinstance(actions, tuple) else actions[i]
            assert each.step(own)[1] == rewards[i]


def test_our_parallel_environment_takes_them_too():
    env = SlipstreamParallelEnv("probe_parts")
    _, infos = env.reset(seed=1)
    (agent,) = env.agents
    assert infos[agent]["action_mask"].shape == (7,)
    worlds = make_worlds(load("probe_parts").world, 1, EnvOptions(seed=1, autoreset=False))
    worlds.reset()
    worlds.act_scripted("best", [0])
    best = worlds.actions[0, 0]
    _, rewards, *_ = env.step({agent: (best[:2].astype(np.int64), best[2:])})
    worlds.step()
    assert rewards[agent] == worlds.rewards[0, 0]


@pytest.mark.parametrize(
    "action",
    [
        (np.array([0, 4]), np.zeros(1)),
        (np.array([0.0, 1.0]), np.zeros(1)),
        (np.array([0, 1]), np.full(1, np.nan)),
        (np.array([0, 1]),),
        np.zeros(3),
    ],
    ids=["no such choice", "not whole", "not finite", "no axes", "one array"],
)
def test_what_is_not_in_the_space_is_refused(action):
    env = SlipstreamEnv("probe_parts")
    env.reset(seed=0)
    with pytest.raises(InvalidAction):
        env.step(action)
