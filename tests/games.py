"""Small games of PettingZoo's kinds, with answers that can be worked out by hand; tests name them as games:Name."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Signals(ParallelEnv):
    """A speaker with 3 words and a listener with 5 buttons, each paid 1 for naming the number that it alone sees.

    The speaker sees a one-hot of 3; the listener sees a Dict of what was said last (a Discrete of 4, 0 at first) and a
    lamp. Best return: `horizon` each.
    """

    metadata: ClassVar = {"name": "signals"}
    possible_agents = ("speaker_0", "listener_0")

    def __init__(self, horizon: int = 4):
        self.horizon = horizon
        self.agents: list[str] = []

    def observation_space(self, agent):
        if agent == "speaker_0":
            return spaces.Box(0, 1, (3,), np.float32)
        return spaces.Dict({"said": spaces.Discrete(4), "lamp": spaces.Box(1, 2, (1,), np.float32)})

    def action_space(self, agent):
        return spaces.Discrete(3) if agent == "speaker_0" else spaces.Discrete(5, start=1)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.rng, self.t, self.said = np.random.default_rng(seed), 0, 0
        return self.observe(), {}

    def observe(self):
        self.target = int(self.rng.integers(3))
        seen = {"said": self.said, "lamp": np.ones(1, np.float32)}
        return {"speaker_0": np.eye(3, dtype=np.float32)[self.target], "listener_0": seen}

    def step(self, actions):
        self.t += 1
        paid = {
            "speaker_0": float(actions["speaker_0"] == self.target),
            "listener_0": float(actions["listener_0"] == self.said + 1),
        }
        self.said = 1 + int(actions["speaker_0"])
        over = dict.fromkeys(self.agents, self.t == self.horizon)
        if self.t == self.horizon:
            self.agents = []
        return self.observe(), paid, over, dict.fromkeys(over, False), {}


class Mixed(Signals):
    """The speaker of Signals, and a pointer that is paid by how near it points, in two axes, to what was said last."""

    metadata: ClassVar = {"name": "mixed"}
    possible_agents = ("speaker_0", "pointer_0")

    def observation_space(self, agent):
        return super().observation_space("speaker_0" if agent == "speaker_0" else "listener_0")

    def action_space(self, agent):
        return spaces.Discrete(3) if agent == "speaker_0" else spaces.Box(-2, 2, (2,), np.float32)

    def observe(self):
        found = super().observe()
        return {"speaker_0": found["speaker_0"], "pointer_0": found["listener_0"]}

    def step(self, actions):
        aim = np.array([self.said - 1.5, 1.0], np.float32)
        self.actions = actions
        paid = 1.0 - float(np.square(actions["pointer_0"] - aim).mean())
        obs, rewards, *rest = super().step({**actions, "listener_0": 0})
        return obs, {"speaker_0": rewards["speaker_0"], "pointer_0": paid}, *rest


class Arms(ParallelEnv):
    """Two arms, with 1 and 3 joints: each joint is paid by how near it is to the number that its arm sees."""

    metadata: ClassVar = {"name": "arms"}
    possible_agents = ("short_0", "long_0", "long_1")

    def __init__(self):
        self.agents: list[str] = []

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (1 if agent == "short_0" else 3,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-1, 1, (1 if agent == "short_0" else 3,), np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.t, self.rng = list(self.possible_agents), 0, np.random.default_rng(seed)
        return self.observe(), {}

    def observe(self):
        sizes = {agent: self.observation_space(agent).shape for agent in self.possible_agents}
        self.seen = {agent: self.rng.uniform(-1, 1, size).astype(np.float32) for agent, size in sizes.items()}
        return self.seen

    def step(self, actions):
        self.t += 1
        paid = {agent: 1 - float(np.square(actions[agent] - self.seen[agent]).mean()) for agent in self.agents}
        over = dict.fromkeys(self.agents, self.t == 4)
        if self.t == 4:
            self.agents = []
        return self.observe(), paid, over, dict.fromkeys(over, False), {}


class Nim(AECEnv):
    """Take one, two or three stones in turn; who takes the last wins (+1, the other -1).

    Who has no multiple of 4 before it wins with the right move. `faults` plants a mistake.
    """

    metadata: ClassVar = {"name": "nim"}

    def __init__(self, stones: int = 5, fault: str = ""):
        self.possible_agents = ["player_0", "player_1"]
        self.stones, self.fault = stones, fault

    def observation_space(self, agent):
        seen = spaces.Box(0, 1, (self.stones + 1,), np.float32)
        return spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.left = 1 + int(np.random.default_rng(seed).integers(self.stones))
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent):
        allowed = [self.left >= take for take in (1, 2, 3)] if agent == self.agent_selection else [False] * 3
        if self.fault == "nothing allowed" and self.left < 3:
            allowed = [False] * 3
        seen = {"observation": np.eye(self.stones + 1)[self.left], "action_mask": np.array(allowed, np.int8)}
        if self.fault == "no mask":
            del seen["action_mask"]
        seen["observation"] = seen["observation"].astype(np.float32)
        return seen

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        other = self.possible_agents[1 - self.possible_agents.index(agent)]
        assert 1 + action <= self.left, "not allowed"
        self.left -= 1 + action
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if self.left == 0:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = other
        if self.left == 0:
            self._deads_step_first()


class Tolls(AECEnv):
    """Three agents in turn; every turn of agent k pays 10^k to everybody, and each leaves after `turns` of its own.

    Agent 2 comes only when the first round is over, where `late`.
    """

    metadata: ClassVar = {"name": "tolls"}

    def __init__(self, turns: int = 2, late: bool = False):
        self.possible_agents = ["a", "b", "c"]
        self.turns, self.late = turns, late

    def observation_space(self, agent):
        return spaces.Box(0, 100, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:2] if self.late else list(self.possible_agents)
        self.taken = dict.fromkeys(self.possible_agents, 0)
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.t, self.agent_selection = 0, "a"

    def observe(self, agent):
        return np.array([self.t, self.taken[agent]], np.float32)

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.t += 1
        self.taken[agent] += 1
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 10.0 ** self.possible_agents.index(agent))
        self._accumulate_rewards()
        if agent == "b" and "c" not in self.agents and self.taken["c"] == 0:
            self.agents.append("c")
            self._cumulative_rewards["c"] = self.rewards["c"] = 0.0
            self.terminations["c"] = self.truncations["c"] = False
            self.infos["c"] = {}
        self.terminations[agent] = self.taken[agent] == self.turns
        places = {name: k for k, name in enumerate(self.possible_agents)}
        following = sorted(self.agents, key=lambda name: (places[name] - places[agent] - 1) % 3)
        self.agent_selection = following[0]
        self._deads_step_first()


class Visitors(ParallelEnv):
    """A host who is always there, and a guest who comes at step 2, leaves at step 4, and comes again at step 6 of 8."""

    metadata: ClassVar = {"name": "visitors"}
    possible_agents = ("host", "guest")

    def __init__(self):
        self.agents: list[str] = []

    def observation_space(self, agent):
        return spaces.Box(0, 10, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, ["host"]
        return self.observe(), {}

    def observe(self):
        return {agent: np.full(1, self.t, np.float32) for agent in self.agents}

    def step(self, actions):
        self.t += 1
        assert set(actions) == set(self.agents)
        paid = {agent: float(self.t) for agent in self.agents}
        over = {agent: self.t == 8 or (agent == "guest" and self.t == 4) for agent in self.agents}
        obs = self.observe()
        self.agents = [agent for agent in self.agents if not over[agent]]
        if self.t in (2, 6):
            self.agents.append("guest")
            obs |= self.observe()
        return obs, paid, over, dict.fromkeys(over, False), {}


class Badges(ParallelEnv):
    """Three agents that see the same, nothing; agent k is paid 1 for choosing k."""

    metadata: ClassVar = {"name": "badges"}
    possible_agents = ("guard_0", "guard_1", "guard_2")

    def __init__(self, block: str = ""):
        self.agents: list[str] = []
        self.block = block  # a name for its only block

    def observation_space(self, agent):
        box = spaces.Box(0, 1, (1,), np.float32)
        return spaces.Dict({self.block: box}) if self.block else box

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self.observe(), {}

    def observe(self):
        zero = np.zeros(1, np.float32)
        return {agent: {self.block: zero} if self.block else zero for agent in self.possible_agents}

    def step(self, actions):
        self.t += 1
        paid = {agent: float(actions[agent] == k) for k, agent in enumerate(self.possible_agents)}
        over = dict.fromkeys(self.possible_agents, self.t == 4)
        if self.t == 4:
            self.agents = []
        return self.observe(), paid, over, dict.fromkeys(over, False), {}


class Eyes(Signals):
    """The speaker of Signals as a seer, who sees its number as a picture, and a mover in its listener's place."""

    metadata: ClassVar = {"name": "eyes"}
    possible_agents = ("seer_0", "mover_0")

    def observation_space(self, agent):
        if agent == "seer_0":
            return spaces.Box(0, 255, (1, 6, 6), np.uint8)
        return super().observation_space("listener_0")

    def action_space(self, agent):
        return super().action_space("speaker_0" if agent == "seer_0" else "listener_0")

    def observe(self):
        found = super().observe()
        picture = np.zeros((1, 6, 6), np.uint8)
        picture[0, self.target] = 255
        return {"seer_0": picture, "mover_0": found["listener_0"]}

    def step(self, actions):
        obs, paid, over, cut, infos = super().step({"speaker_0": actions["seer_0"], "listener_0": actions["mover_0"]})
        return obs, {"seer_0": paid["speaker_0"], "mover_0": paid["listener_0"]}, over, cut, infos


class Rules(Signals):
    """Signals with masks: the speaker may not say the number after its own, nor the listener push the last button."""

    metadata: ClassVar = {"name": "rules"}

    def observation_space(self, agent):
        seen, choices = super().observation_space(agent), int(self.action_space(agent).n)
        mask = spaces.Box(0, 1, (choices,), np.int8)
        return spaces.Dict({"seen" if agent == "speaker_0" else "heard": seen, "action_mask": mask})

    def observe(self):
        found = super().observe()
        words, buttons = np.ones(3, np.int8), np.ones(5, np.int8)
        words[(self.target + 1) % 3] = buttons[4] = 0
        return {
            "speaker_0": {"seen": found["speaker_0"], "action_mask": words},
            "listener_0": {"heard": found["listener_0"], "action_mask": buttons},
        }

    def step(self, actions):
        assert actions["speaker_0"] != (self.target + 1) % 3, "not allowed"
        assert actions["listener_0"] != 5, "not allowed"
        return super().step(actions)


class Levers(Signals):
    """Signals whose listener sets two levers, of 4 and 2 places: what was said last, and always the second place."""

    metadata: ClassVar = {"name": "levers"}

    def action_space(self, agent):
        return spaces.Discrete(3) if agent == "speaker_0" else spaces.MultiDiscrete([4, 2])

    def step(self, actions):
        said, second = actions["listener_0"]
        right = int(said) == self.said and int(second) == 1
        return super().step({**actions, "listener_0": self.said + 1 if right else 0})
