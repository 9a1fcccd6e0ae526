"""Agents that see and do different things in one world: what each row holds, and what each environment is given."""

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.collect.teams import Seat, Team
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.spec import ActionSpec, RoleSpec, WorldSpec
from slipstream.worlds.check import check_world, spec_faults
from slipstream.worlds.foreign.config import PettingZooConfig
from slipstream.worlds.foreign.roles import kinds_of
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions


def worlds(name, count=1, **options):
    return make_worlds(PettingZooConfig(env=f"games:{name}"), count, EnvOptions(**options))


@pytest.mark.parametrize("name", ["Signals", "Rules", "Levers", "Mixed", "Arms", "Visitors", "Badges", "Eyes"])
def test_worlds_of_unlike_agents_keep_the_contract(name):
    config = PettingZooConfig(env=f"games:{name}")
    assert check_world(lambda n, options: make_worlds(config, n, options), 60) == []


def test_every_role_has_its_own_blocks_and_choices():
    spec = worlds("Signals").spec
    assert spec.roles == ("speaker", "listener")
    assert [block.name for block in spec.obs] == ["obs", "lamp", "said"]
    assert spec.action == ActionSpec(discrete=True, size=5)
    speaker, listener = spec.seen_by([0]), spec.seen_by([1])
    assert [block.name for block in speaker.obs] == ["obs"]
    assert [block.shape for block in listener.obs] == [(1,), (4,)]
    assert (speaker.action.size, listener.action.size) == (3, 5)
    assert (speaker.action_space.start, listener.action_space.start) == (0, 1)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=WorldSpec) == spec


def test_an_agents_row_holds_its_own_blocks_and_nothing_of_the_others():
    env = worlds("Signals", seed=4)
    env.reset()
    assert env.obs["obs"][0, 0].sum() == 1
    assert env.obs["said"][0].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert env.obs["lamp"][0, :, 0].tolist() == [0, 1]
    assert not env.obs["obs"][0, 1].any()
    target = env.obs["obs"][0, 0].argmax()
    env.actions[...] = [[target, 0]]
    env.step()
    assert env.rewards[0].tolist() == [1, 1]
    assert env.obs["said"][0, 1].argmax() == 1 + target


def test_blocks_of_one_name_and_unlike_shapes_are_named_by_role():
    spec = worlds("Arms").spec
    assert spec.roles == ("short", "long", "long")
    assert [block.name for block in spec.obs] == ["short.obs", "long.obs"]
    assert spec.seen_by([1, 2]).obs[0].shape == (3,)


def test_environments_are_given_actions_of_each_agents_own_space():
    env = worlds("Mixed")
    env.reset()
    assert env.actions.shape == (1, 2, 2)  # the widest: two axes
    env.actions[...] = [[[2, 9], [-1, 0.5]]]
    env.step()
    given = env._worlds[0].actions
    assert given["speaker_0"] == 2
    assert given["pointer_0"].tolist() == [-2, 1]


def test_seats_show_a_team_its_blocks_and_write_its_part_of_the_actions():
    env = worlds("Mixed", 3)
    env.reset()
    speaker, pointer = (Seat(Team("p", (k,), object(), discrete=k == 0), env, 0) for k in (0, 1))
    assert list(speaker.look()) == ["obs"]
    assert [block.shape for block in pointer.look().values()] == [(3, 1, 1), (3, 1, 4)]
    assert speaker.mask() is None
    speaker.write(np.array([[0], [1], [2]], np.int32))
    pointer.write(np.full((3, 1, 2), 0.5, np.float32))
    assert env.actions[:, 0, 0].tolist() == [0, 1, 2]
    assert env.actions[:, 1].tolist() == [[0.5, 0.5]] * 3


def test_choices_of_any_number_survive_the_float32_of_mixed_worlds():
    """Whole numbers up to 2^24 are exact in float32, and no environment has as many choices."""
    kind = kinds_of("m", worlds("Mixed")._worlds[0], ["speaker_0", "pointer_0"]).kinds[0]
    choices = np.zeros((1, 2, 2), np.float32)
    for choice in (0, 1, 255, 65_537, 2**24 - 1):
        choices[0, 0, 0] = choice
        assert kind.to_space(choices, 2) == [[choice]]


class Named:
    """Agents by name, with a width of observation each."""

    def __init__(self, **widths):
        self.widths = widths

    def observation_space(self, agent):
        return spaces.Box(0, 1, (self.widths[agent],), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)


@pytest.mark.parametrize(
    ("widths", "roles", "kinds"),
    [
        ({"red_0": 1, "red_1": 1, "blue_0": 1}, ("red", "red", "blue"), [(0, 1, 2)]),
        ({"red_0": 1, "red_1": 1, "blue_0": 2}, ("red", "red", "blue"), [(0, 1), (2,)]),
        ({"p_0": 1, "p_1": 2, "p_2": 1}, ("p_0", "p_1", "p_2"), [(0, 2), (1,)]),  # one name, two kinds
    ],
)
def test_roles_are_told_from_names_and_spaces(widths, roles, kinds):
    found = kinds_of("named", Named(**widths), list(widths))
    assert found.roles == roles
    assert [kind.agents for kind in found.kinds] == kinds
    assert len(found.unlike) == (0 if len(kinds) == 1 else len(set(roles)))


def test_one_policy_for_unlike_agents_is_refused_by_their_names():
    spec = worlds("Signals").spec
    with pytest.raises(ScenarioError, match=r"speaker_0 and listener_0 of games:Signals.*speaker and listener"):
        spec.seen_by([0, 1])
    assert worlds("Arms").spec.seen_by([1, 2]).action.size == 3


def test_an_action_that_no_policy_can_take_names_the_agent():
    class Odd(Named):
        def action_space(self, agent):
            return spaces.Discrete(2) if agent == "a" else spaces.Text(3)

    with pytest.raises(WorldContractError, match=r"odd: b: .*Text"):
        kinds_of("odd", Odd(a=1, b=1), ["a", "b"])


def test_faults_of_views_are_found():
    spec = worlds("Signals").spec
    speaker, listener = spec.unlike
    wide = msgspec.structs.replace(speaker, action=ActionSpec(discrete=True, size=9))
    lost = msgspec.structs.replace(speaker, obs=("nowhere",))
    stranger = RoleSpec("stranger", ("obs",), speaker.action)
    for views, said in [
        ((speaker,), "one view each"),
        ((speaker, listener, stranger), "one view each"),
        ((lost, listener), "nowhere"),
        ((speaker, msgspec.structs.replace(listener, obs=())), "sees nothing"),
        ((wide, listener), "'speaker' does not fit"),
    ]:
        faults = list(spec_faults(msgspec.structs.replace(spec, unlike=views)))
        assert any(said in fault for fault in faults), (said, faults)


def test_an_agent_may_come_leave_and_come_again():
    env = worlds("Visitors", autoreset=False)
    env.reset()
    env.actions[...] = 1
    alive, rewards, ended = [], [], []
    for _ in range(8):
        env.step()
        alive.append(int(env.alive[0, 1]))
        rewards.append(env.rewards[0, 1])
        ended.append(int(env.terminated[0, 1]))
    assert alive == [0, 0, 1, 1, 0, 0, 1, 1]
    assert rewards == [0, 0, 3, 4, 0, 0, 7, 8]
    assert ended == [0, 0, 0, 1, 0, 0, 0, 1]
    assert env.episode_return[0].tolist() == [36, 22]
    assert env.episode_decisions[0].tolist() == [8, 4]
    assert env.episode_done[0]
