"""Minari's episodes as ours: T actions, T + 1 observations, and what followed the last step of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from learning import scenario_of

from slipstream.action_space import from_space, to_space
from slipstream.config.load import from_plain
from slipstream.data.transitions import TERMINATED, TRUNCATED, WENT_ON
from slipstream.errors import ScenarioError
from slipstream.replay import buffer as replay
from slipstream.run import minari_import
from slipstream.run.minari_import import from_minari, import_minari
from slipstream.run.record import record
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.spaces import action_spec


@dataclass
class Episode:
    """The shape of minari.EpisodeData."""

    id: int
    observations: Any
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any
    infos: dict = field(default_factory=dict)


class Source:
    """The shape of minari.MinariDataset."""

    def __init__(
        self, env_id: str | None, obs: spaces.Space, action: spaces.Space, episodes: Sequence[Episode]
    ) -> None:
        self.env_spec = None if env_id is None else SimpleNamespace(id=env_id)
        self.observation_space, self.action_space = obs, action
        self.total_steps = np.int64(sum(len(e.rewards) for e in episodes))
        self._episodes = episodes

    def iterate_episodes(self):
        return iter(self._episodes)


def pendulum(*lengths: int, end: str = "truncated", **changes) -> Source:
    """Episodes whose every number says which episode and step it is of."""
    env = gymnasium.make("Pendulum-v1")
    episodes = []
    for number, length in enumerate(lengths):
        steps = np.arange(length + 1, dtype=np.float32) + 100 * number
        flags = np.zeros(length, bool)
        last = flags.copy()
        last[-1:] = True
        episode = Episode(
            id=number,
            observations=np.stack([steps, -steps, steps / 2], 1),
            actions=np.linspace(-2, 2, length, dtype=np.float32)[:, None],
            rewards=steps[:-1].astype(np.float64) + 0.5,
            terminations=last if end == "terminated" else flags,
            truncations=last if end == "truncated" else flags,
        )
        episodes.append(episode)
    for name, value in changes.items():
        setattr(episodes[-1], name, value)
    return Source("Pendulum-v1", env.observation_space, env.action_space, episodes)


def scenario():
    return scenario_of("pendulum", {"algo.gamma": 0.9})


def test_rows_join_each_step_with_the_observation_that_followed():
    dataset = from_minari(pendulum(3, 2), "pendulum/mine-v0", scenario())
    rows = dataset.rows
    assert rows.obs["obs"][:, 0].tolist() == [0, 1, 2, 100, 101]
    assert rows.next_obs["obs"][:, 0].tolist() == [1, 2, 3, 101, 102]  # 3 and 102: where the truncations bootstrap
    assert rows.obs["obs"][:, 1].tolist() == [0, -1, -2, -100, -101]
    assert rows.reward.tolist() == [0.5, 1.5, 2.5, 100.5, 101.5]
    np.testing.assert_allclose(rows.discount, [0.9] * 5, rtol=1e-7)
    assert rows.action[:, 0].tolist() == [-1, 0, 1, -1, 1]  # of axes in -2..2
    assert dataset.end.tolist() == [WENT_ON, WENT_ON, TRUNCATED, WENT_ON, TRUNCATED]
    (part,) = dataset.record.parts
    assert (part.source, part.policy, part.rows) == ("minari:pendulum/mine-v0", "minari", 5)
    assert part.returns is not None
    assert (part.returns.episodes, part.returns.min, part.returns.max) == (2, 4.5, 202.0)


def test_nothing_is_bootstrapped_after_a_termination():
    dataset = from_minari(pendulum(3, end="terminated"), "x-v0", scenario(), gamma=0.5)
    assert dataset.rows.discount.tolist() == [0.5, 0.5, 0.0]
    assert dataset.rows.next_obs["obs"][:, 0].tolist() == [1, 2, 0]
    assert dataset.end.tolist() == [WENT_ON, WENT_ON, TERMINATED]
    both = pendulum(2, terminations=np.array([False, True]))  # and truncated too
    assert from_minari(both, "x-v0", scenario()).end.tolist() == [WENT_ON, TERMINATED]


def test_a_recording_that_stops_in_mid_episode_was_cut_off_there():
    dataset = from_minari(pendulum(3, end="neither"), "x-v0", scenario())
    assert dataset.end.tolist() == [WENT_ON, WENT_ON, TRUNCATED]
    assert dataset.rows.next_obs["obs"][-1, 0] == 3
    np.testing.assert_allclose(dataset.rows.discount, [0.9] * 3)


@pytest.mark.parametrize("name", ["pendulum", "cartpole"])
def test_an_imported_play_has_the_rows_of_our_own_recording(name):
    """Gymnasium stepped by hand with our recording's actions and seeds, told in Minari's shape."""
    ours = record(scenario_of(name), 450, seed=3, num_worlds=1)
    config = scenario_of(name).world
    env = gymnasium.make(config.id)
    _, space = action_spec(env.action_space)
    from slipstream.worlds.foreign.vec_env import episode_seed

    episodes, at = [], 0
    while at < 450:
        obs, actions, rewards, over, cut = [env.reset(seed=episode_seed(3, False, 0, len(episodes)))[0]], [], [], [], []
        while at < 450 and not (over and (over[-1] or cut[-1])):
            action = to_space(space, ours.rows.action[at : at + 1])[0]
            seen, reward, terminated, truncated, _ = env.step(action)
            obs.append(seen), actions.append(action), rewards.append(reward)
            over.append(terminated), cut.append(truncated)
            at += 1
        arrays = (np.array(values) for values in (obs, actions, rewards, over, cut))
        episodes.append(Episode(len(episodes), *arrays))
    theirs = from_minari(
        Source(config.id, env.observation_space, env.action_space, episodes), "x-v0", scenario_of(name)
    )
    for side in ("obs", "next_obs"):
        np.testing.assert_array_equal(getattr(theirs.rows, side)["obs"], getattr(ours.rows, side)["obs"])
    np.testing.assert_allclose(theirs.rows.action, ours.rows.action, atol=1e-6)
    np.testing.assert_array_equal(theirs.rows.reward, ours.rows.reward)
    np.testing.assert_array_equal(theirs.rows.discount, ours.rows.discount)
    np.testing.assert_array_equal(theirs.end[:-1], ours.end[:-1])  # the last episode stops in the middle
    assert len(episodes) > 2


def test_encoding_an_action_undoes_decoding_it():
    for box in (
        spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
        spaces.Box(np.array([-2.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)),
    ):
        _, space = action_spec(box)
        actions = np.random.default_rng(0).uniform(-1, 1, (50, 2)).astype(np.float32)
        np.testing.assert_allclose(from_space(space, to_space(space, actions)), actions, atol=1e-6)
    assert from_space(action_spec(spaces.Box(-2.0, 2.0, (1,)))[1], np.array([[-9.0], [9.0]])).tolist() == [[-1], [1]]
    _, free = action_spec(spaces.Box(np.array([-2.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)))
    assert from_space(free, np.array([[9.0, 9.0]])).tolist() == [[1, 9]]  # an axis without bounds passes through
    assert from_space(action_spec(spaces.Box(3.0, 3.0, (1,)))[1], np.array([[3.0]])).tolist() == [[0]]
    assert from_space(action_spec(spaces.Discrete(3, start=5))[1], np.array([5, 7])).tolist() == [0, 2]


class Masked(gymnasium.Env):
    """Dict observations, one of them the mask of a Discrete action."""

    observation_space = spaces.Dict(
        {"seen": spaces.Box(-1e3, 1e3, (2,)), "action_mask": spaces.MultiBinary(3), "spot": spaces.Discrete(4)}
    )
    action_space = spaces.Discrete(3, start=1)


def test_dicts_masks_and_discrete_observations_become_what_the_world_shows(monkeypatch):
    gymnasium.register("test/Masked-v0", entry_point=Masked)
    task = from_plain({"world": {"kind": "gymnasium", "id": "test/Masked-v0"}, "algo": {"kind": "dqn", "gamma": 0.5}})
    masks = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 0]], np.int8)
    observations = {
        "seen": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
        "action_mask": masks,
        "spot": np.array([0, 3, 2]),
    }
    episode = Episode(0, observations, np.array([1, 3]), np.ones(2), np.array([False, True]), np.zeros(2, bool))
    source = Source("test/Masked-v0", Masked.observation_space, Masked.action_space, [episode])
    dataset = from_minari(source, "x-v0", task)
    rows = dataset.rows
    worlds = make_worlds(task.world, 1)
    assert {name: block.shape[2:] for name, block in worlds.obs.items()} == {"seen": (2,), "spot": (4,)}
    assert rows.action.tolist() == [0, 2]
    assert rows.mask is not None
    assert rows.mask.tolist() == [[1, 1, 0], [0, 1, 1]]
    assert rows.next_mask is not None
    assert rows.next_mask.tolist() == [[0, 1, 1], [1, 1, 1]]
    assert rows.obs["spot"].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert rows.next_obs["seen"].tolist() == [[3, 4], [0, 0]]
    kept = {name: space for name, space in Masked.observation_space.items() if name != "action_mask"}
    unmasked = Source("test/Masked-v0", spaces.Dict(kept), Masked.action_space, [])
    with pytest.raises(ScenarioError, match=r"minari:x-v0: .*'seen'.* test/Masked-v0 .*\(6 inputs, 3 choices\)"):
        from_minari(unmasked, "x-v0", task)


def test_what_does_not_fit_is_refused_in_a_sentence(monkeypatch):
    other = pendulum(2)
    other.env_spec.id = "CartPole-v1"
    wider = pendulum(2)
    wider.observation_space = spaces.Box(-1, 1, (4,))
    text = pendulum(2)
    text.observation_space = spaces.Text(5)
    for source, said in (
        (other, r" CartPole-v1, .*pendulum .*Pendulum-v1; .* world\.id "),
        (wider, r"\(4,\).* Pendulum-v1 .*pendulum .*\(3 inputs, 1 action axis\)"),
        (text, r" Text \('obs'\)"),
        (pendulum(3, observations=np.zeros((3, 3), np.float32)), r"episode 0: 3 .*'obs' .* 4 "),
        (pendulum(2, 3, actions=np.zeros((2, 1))), r"episode 1: 3 rewards, but 2 actions"),
        (pendulum(3, observations=np.zeros((4, 2), np.float32)), r"episode 0: .*'obs' .*\(2,\).*\(3,\)"),
        (pendulum(3, rewards=np.array([0.0, np.nan, 0.0])), r"NaN .* reward$"),
        (pendulum(3, rewards=np.array([[0.0], [0.0], [0.0]])), r"episode 0: .*\(3,1\).*\(3,\)"),
        (pendulum(), r" 0 rows$"),
    ):
        with pytest.raises(ScenarioError, match=f"minari:x-v0: .*{said}"):
            from_minari(source, "x-v0", scenario())
    with pytest.raises(ScenarioError, match=r"minari:x-v0: head_on .* airspace,"):
        from_minari(pendulum(2), "x-v0", scenario_of("head_on"))
    more = pendulum(3, 3)
    more.total_steps = 5
    with pytest.raises(ScenarioError, match=r"minari:x-v0: episode 1: .* 5 steps"):
        from_minari(more, "x-v0", scenario())
    with pytest.raises(ScenarioError, match="--gamma 2"):
        from_minari(pendulum(2), "x-v0", scenario(), gamma=2.0)
    monkeypatch.setattr(replay, "available_memory", lambda: 10)
    with pytest.raises(ScenarioError, match=r" 2 transitions .* GB "):
        from_minari(pendulum(2), "x-v0", scenario())


def test_a_source_that_does_not_say_its_environment_is_taken_at_its_word():
    source = pendulum(2)
    source.env_spec = None
    assert len(from_minari(source, "x-v0", scenario()).rows) == 2


def test_without_minari_the_sentence_says_what_to_install(monkeypatch):
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(minari_import, "import_module", absent)
    with pytest.raises(ScenarioError, match=r"minari:x-v0: .*slipstream\[minari\]"):
        import_minari("x-v0", scenario())


def test_with_minari_its_dataset_is_loaded_and_a_missing_one_told(monkeypatch):
    def load(name: str) -> Source:
        if name == "x-v0":
            return pendulum(2)
        raise FileNotFoundError("not here") if name == "y-v0" else ValueError("Malformed\ndataset ID")

    monkeypatch.setattr(minari_import, "import_module", lambda name: SimpleNamespace(load_dataset=load))
    assert len(import_minari("x-v0", scenario()).rows) == 2
    with pytest.raises(ScenarioError, match=r"minari:y-v0: .*`minari download y-v0`"):
        import_minari("y-v0", scenario())
    with pytest.raises(ScenarioError, match=r"minari:z: .*Malformed dataset ID"):
        import_minari("z", scenario())
