"""Our worlds as Gymnasium environments: `SlipstreamEnv`, `SlipstreamVectorEnv`, ids `slipstream/<Name>-v0`.

Gymnasium knows one agent per environment. In a world with several, `agent` names the one that is controlled
(the first unless said otherwise) and `others` the world's script that acts for the rest (its first one); an
episode is over when the controlled agent ends. `SlipstreamParallelEnv` in `pettingzoo_env` shows all agents.
A step is one decision of the controlled agent: ticks in which it does not decide pass unseen, and their
rewards are summed.

`info` holds `action_mask` (int8; of several parts their choices side by side) in worlds that have one, `duration`
(ticks) in worlds where decisions last, and, with the last step of a world's episode, `stats`: the world's own figures
by name, the controlled agent's where agents have their own.

`render_mode="rgb_array"` shows worlds that have a picture; in the others `metadata["render_modes"]` is empty.

Importing this module registers every packaged native scenario: `gymnasium.make("slipstream/HeadOn-v0")`;
without an import, `gymnasium.make("slipstream.worlds.gymnasium_env:slipstream/HeadOn-v0")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.core import RenderFrame
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from slipstream.config.load import load
from slipstream.config.packaged import list_scenarios
from slipstream.errors import WorldContractError, suggest
from slipstream.spec import WorldSpec, action_columns
from slipstream.types import Bools
from slipstream.worlds.film import RGB_ARRAY, make_film, render_metadata, warn_of_no_mode
from slipstream.worlds.registry import make_worlds, world_config
from slipstream.worlds.spaces import action_space, batch_of_one, checked_actions, in_form, observation_space
from slipstream.worlds.vec_env import EnvOptions

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario
    from slipstream.config.world import WorldConfig


class StepResult(NamedTuple):
    """What one decision of each controlled agent led to, [N] each; rows that were not stepped are zero."""

    rewards: NDArray[np.float64]
    terminated: Bools
    truncated: Bools
    duration: NDArray[np.int64]


class AgentView:
    """One agent of every world of a batch, with a script acting for the other agents."""

    def __init__(
        self,
        world: str | Scenario | WorldConfig,
        num_worlds: int,
        agent: str | None,
        others: str | None,
        options: EnvOptions,
        overrides: dict[str, Any],
        render_mode: str | None,
    ) -> None:
        config = world_config(world, overrides)
        self.env = make_worlds(config, num_worlds, options)
        self.column = _column(self.env.spec, agent)
        self.spec = self.env.spec.seen_by([self.column])
        self._place = (slice(None), self.column, *action_columns(self.env.spec, [self.column]))
        self.film = make_film(config, self.env, render_mode)
        self.metadata = render_metadata(config, self.spec)
        self._others = [k for k in range(self.spec.num_agents) if k != self.column]
        self._script = _script(self.spec, others) if self._others else ""
        self.ended = np.ones(num_worlds, np.bool_)  # waiting for a reset, as before the first one
        self._world_over = np.zeros(num_worlds, np.bool_)

    def reset(self, rows: Bools) -> None:
        """Start the next episode of these worlds with the controlled agent, up to its first decision."""
        self.env.reset(rows.view(np.uint8))
        while (without := rows & (self.env.alive[:, self.column] == 0)).any():
            self.env.reset(without.view(np.uint8))
        if self.film is not None:
            self.film.start(rows)
        self.ended[rows] = False
        self._advance(rows & (self.env.acting[:, self.column] == 0))

    def reseed(self, seeds: Sequence[int | None], rows: Bools) -> None:
        """A world whose row has a seed s draws as the first world of a batch with seed s would."""
        given = np.array([seed is not None for seed in seeds]) & rows
        numbers = np.array([(seed or 0) % 2**64 for seed in seeds], np.uint64)
        self.env.reseed(numbers, np.zeros(len(seeds), np.uint32), given.view(np.uint8))

    def act(self, actions: Any) -> None:
        """Write the controlled agents' actions, [N] or [N, K]."""
        self.env.actions[self._place] = checked_actions(self.spec, actions, (self.env.num_worlds,))

    def step(self, rows: Bools) -> StepResult:
        """Step these worlds until their controlled agents decide again or end."""
        self._world_over[...] = False
        result = self._advance(rows)
        self.ended |= result.terminated | result.truncated
        return result

    def _advance(self, waiting: Bools) -> StepResult:
        env, k, n = self.env, self.column, len(waiting)
        result = StepResult(np.zeros(n), np.zeros(n, np.bool_), np.zeros(n, np.bool_), np.zeros(n, np.int64))
        while waiting.any():
            if self._others:
                env.act_scripted(self._script, self._others)
            env.step(waiting.view(np.uint8))
            if self.film is not None:
                self.film.add(waiting)
            # Rows that wait no longer show zeros, so that adding leaves them as they are.
            np.add(result.rewards, env.rewards[:, k], out=result.rewards)
            np.logical_or(result.terminated, env.terminated[:, k], out=result.terminated)
            np.logical_or(result.truncated, env.truncated[:, k], out=result.truncated)
            np.maximum(result.duration, env.duration[:, k], out=result.duration)
            np.logical_or(self._world_over, env.episode_done, out=self._world_over)
            waiting = waiting & ~(result.terminated | result.truncated) & (env.acting[:, k] == 0)
        return result

    def observe(self, out: dict[str, NDArray[Any]]) -> None:
        """Write all observations; an ended agent shows its last one until it is reset."""
        for name, array in out.items():
            np.copyto(array, self.env.obs[name][:, self.column])
            array[self.ended] = self.env.final_obs[name][self.ended, self.column]

    def observation(self, i: int) -> Any:
        """A copy of one row's observation, in the form of its space."""
        source = self.env.final_obs if self.ended[i] else self.env.obs
        return in_form({block.name: source[block.name][i, self.column].copy() for block in self.spec.obs})

    def mask(self) -> NDArray[np.int8] | None:
        """A copy of all action masks, [N, M]."""
        if self.env.action_mask is None or not self.spec.masked:
            return None
        return self.env.action_mask[:, self.column, : self.spec.action.mask_size].astype(np.int8)

    def stats(self, i: int) -> dict[str, dict[str, float]]:
        """The controlled agent's figures of an episode that ended with this step, as an entry of info."""
        if not self._world_over[i] or not self.spec.stats:
            return {}
        return {"stats": dict(zip(self.spec.stats, self.env.agent_stats[i, self.column].tolist(), strict=True))}

    def info(self, i: int, result: StepResult | None = None) -> dict[str, Any]:
        """What one environment's info holds after a step (with its result) or after a reset."""
        info: dict[str, Any] = {}
        if self.env.action_mask is not None and self.spec.masked:
            info["action_mask"] = self.env.action_mask[i, self.column, : self.spec.mask_size].astype(np.int8)
        if result is not None:
            if self.spec.has_durations:
                info["duration"] = int(result.duration[i])
            info |= self.stats(i)
        return info


class SlipstreamVectorEnv(VectorEnv[Any, Any, Any]):
    """A native batch of worlds as a Gymnasium vector environment, in any of the three autoreset modes.

    Before a `reset(seed=...)` environment i is world i of seed `seed`; after it, it draws what a
    `SlipstreamEnv` reset with that seed (plus i) draws. `copy=False` returns the same arrays at every step.
    """

    def __init__(
        self,
        world: str | Scenario | WorldConfig,
        num_envs: int = 1,
        *,
        agent: str | None = None,
        others: str | None = None,
        seed: int = 0,
        threads: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        render_mode: str | None = None,
        **world_overrides: Any,
    ) -> None:
        options = EnvOptions(seed=seed, threads=threads, autoreset=False)
        self._seat = AgentView(world, num_envs, agent, others, options, world_overrides, render_mode)
        self._copy = copy
        self._started = False
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self._seat.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = render_mode
        self.num_envs = num_envs
        self.single_observation_space = observation_space(self._seat.spec)
        self.single_action_space = action_space(self._seat.spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._buffers = {block.name: np.zeros((num_envs, *block.shape), block.dtype) for block in self._seat.spec.obs}

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all, or those in `options["reset_mask"]`; an int seed gives environment i seed + i."""
        rows = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            rows = _reset_mask(options["reset_mask"], self.num_envs)
        if seed is not None:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(f"{len(seeds)} seeds were given for {self.num_envs} environments")
            self._seat.reseed(seeds, rows)
        self._seat.reset(rows)
        self._started = True
        return self._observations(), self._row_infos({}, rows)

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """One decision of every environment; ended ones are treated as the autoreset mode says."""
        seat = self._seat
        resetting = seat.ended.copy()
        if not self._started:
            raise ResetNeeded("reset() comes before the first step()")
        if resetting.any() and self.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise ResetNeeded(
                f"environments {np.flatnonzero(resetting).tolist()} have ended and autoreset is disabled; "
                'call reset(options={"reset_mask": terminated | truncated}) first'
            )
        seat.act(actions)
        result = seat.step(~resetting)
        ended = result.terminated | result.truncated
        infos: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(ended).tolist():
                final = {"final_obs": seat.observation(i), "final_info": seat.info(i, result)}
                infos = self._add_info(infos, final, i)
            if ended.any():
                seat.reset(ended)
            going = ~ended
        else:
            for i in np.flatnonzero(ended).tolist():
                infos = self._add_info(infos, seat.stats(i), i)
            if resetting.any():
                seat.reset(resetting)
            going = ~resetting
        infos = self._row_infos(infos, np.ones(self.num_envs, np.bool_))
        if seat.spec.has_durations and going.any():
            infos |= {"duration": np.where(going, result.duration, 0), "_duration": going}
        return self._observations(), result.rewards, result.terminated, result.truncated, infos

    def _observations(self) -> Any:
        self._seat.observe(self._buffers)
        buffers = self._buffers
        return in_form({name: block.copy() for name, block in buffers.items()} if self._copy else buffers)

    def _row_infos(self, infos: dict[str, Any], rows: Bools) -> dict[str, Any]:
        """Adds what every one of these rows has, as `_add_info` would row by row."""
        mask = self._seat.mask()
        if mask is not None:
            infos |= {"action_mask": np.where(rows[:, None], mask, np.int8(0)), "_action_mask": rows.copy()}
        return infos

    def render(self) -> tuple[RenderFrame, ...] | None:
        """A picture uint8 [height, width, 3] of every environment; None without a render mode."""
        film = self._seat.film
        if film is None:
            warn_of_no_mode()
            return None
        return tuple(film.picture(i) for i in range(self.num_envs))

    def close_extras(self, **_: Any) -> None:
        """Let go of the worlds' threads."""
        self._seat.env.close()


class SlipstreamEnv(gymnasium.Env[Any, Any]):
    """One native world as a Gymnasium environment.

    `reset(seed=s)` gives the first episode of seed s, later resets the episodes after it; an environment that
    was never given a seed draws one from the operating system, as Gymnasium environments do.
    """

    # Of a world that has a picture; an environment's own says what its world has.
    metadata = {"render_modes": [RGB_ARRAY]}  # noqa: RUF012  (Gymnasium declares it as a plain attribute)

    def __init__(
        self,
        world: str | Scenario | WorldConfig,
        *,
        agent: str | None = None,
        others: str | None = None,
        render_mode: str | None = None,
        **world_overrides: Any,
    ) -> None:
        self._seat = AgentView(world, 1, agent, others, EnvOptions(autoreset=False), world_overrides, render_mode)
        self.metadata = self._seat.metadata
        self.render_mode = render_mode
        self._seeded = False
        self.observation_space = observation_space(self._seat.spec)
        self.action_space = action_space(self._seat.spec)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._seat.reseed([self.np_random_seed], ALL)
            self._seeded = True
        self._seat.reset(ALL)
        return self._seat.observation(0), self._seat.info(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One decision of the controlled agent."""
        seat = self._seat
        if seat.ended[0]:
            raise ResetNeeded("the episode is over or was never started; call reset()")
        seat.act(batch_of_one(action))
        result = seat.step(ALL)
        ends = bool(result.terminated[0]), bool(result.truncated[0])
        return seat.observation(0), float(result.rewards[0]), *ends, seat.info(0, result)

    def render(self) -> RenderFrame | list[RenderFrame] | None:
        """A picture uint8 [height, width, 3]; None without a render mode."""
        film = self._seat.film
        if film is None:
            warn_of_no_mode()
            return None
        return film.picture(0)

    def close(self) -> None:
        """Let go of the world."""
        self._seat.env.close()


ALL: Bools = np.ones(1, np.bool_)  # the rows of a batch of one


def _column(spec: WorldSpec, agent: str | None) -> int:
    if agent is None:
        return 0
    if agent not in spec.agents:
        raise WorldContractError(
            f"{spec.name} has no agent '{agent}' (it has {', '.join(spec.agents)})" + suggest(agent, spec.agents)
        )
    return spec.agents.index(agent)


def _script(spec: WorldSpec, others: str | None) -> str:
    if not spec.scripts:
        raise WorldContractError(
            f"{spec.name} has {spec.num_agents} agents and no script to act for those that Gymnasium cannot "
            "show; use slipstream.worlds.pettingzoo_env.SlipstreamParallelEnv, which shows all of them"
        )
    if others is not None and others not in spec.scripts:
        raise WorldContractError(
            f"{spec.name} has no scripted policy '{others}' (it has {', '.join(spec.scripts)})"
            + suggest(others, spec.scripts)
        )
    return others or spec.scripts[0]


def _reset_mask(mask: Any, num_envs: int) -> Bools:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ValueError(f'options["reset_mask"] must be a bool array of shape ({num_envs},) with some True')
    return np.ascontiguousarray(mask)


def gymnasium_id(scenario: str) -> str:
    """head_on -> slipstream/HeadOn-v0."""
    return f"slipstream/{''.join(part.capitalize() for part in scenario.split('_'))}-v0"


def register_scenarios() -> None:
    """Make every packaged native scenario known to Gymnasium; foreign ones are known to it already."""
    for scenario in list_scenarios():
        env_id = gymnasium_id(scenario.name)
        foreign = not load(scenario.name).world.is_native
        if not foreign and env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point=f"{__name__}:SlipstreamEnv",
                vector_entry_point=f"{__name__}:SlipstreamVectorEnv",
                kwargs={"world": scenario.name},
            )


register_scenarios()
