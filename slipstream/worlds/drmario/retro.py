"""Dr. Mario in an emulator, for those who have the cartridge's ROM: decisions by placement, read from RAM alone.

    core = open_retro("DrMario-Nes")          # stable-retro, with an integration of yours that names your ROM
    env = RetroEnv(core)                      # Gymnasium; observations, mask and rewards are the native world's
    observation, info = env.reset()

Anything with the small surface of `Core` will do. A decision is planned by our planner and its buttons are pressed
frame by frame; `info["as_planned"]` says whether the pill came to rest where it was sent. The next decision is planned
from what RAM says then, so a core whose timing differs from ours costs placements and no more. No ROM was at hand to
try it with: tests use a core that is our own engine behind these addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from numpy.typing import NDArray

from slipstream.errors import ScenarioError, WorldContractError
from slipstream.types import U8
from slipstream.worlds.drmario.build import build
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.drmario.position import PlacementPlan, allowed, observation, plan_position, pose_of, with_pill
from slipstream.worlds.drmario.ram import FALLING, IN_LEVEL, MODE, RAM_SIZE, RamState, state_from_ram
from slipstream.worlds.spaces import action_space, checked_actions, observation_space
from slipstream.worlds.vec_env import EnvOptions

Observation = dict[str, NDArray[Any]]

BUTTONS = {"RIGHT": 1, "LEFT": 2, "DOWN": 4, "UP": 8, "START": 16, "SELECT": 32, "B": 64, "A": 128}
ON_THE_WAY = (2, 3, 8)  # modes between the menus and a level
START_EVERY = 60  # frames, in the menus
LONGEST_WAIT = 6_000  # frames without a pill


class Core(Protocol):
    """What is used of an emulator: stable-retro's `RetroEnv` has it."""

    buttons: Sequence[str | None]  # names, in the order of an action

    def reset(self) -> object:
        """Begin again."""

    def step(self, action: U8, /) -> object:
        """One frame with these buttons, 0 or 1 each."""

    def get_ram(self) -> U8:
        """The console's RAM, from address 0; what comes after its 2,048 bytes is not looked at."""


def open_retro(game: str, state: str | None = None) -> Core:
    """A stable-retro environment of a game it knows, from a saved state or from the title screen."""
    try:
        import stable_retro  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ScenarioError(
            "an emulator needs stable-retro, which is not installed: pip install stable-retro, and import a ROM of "
            "your own with it; the native world (slipstream.worlds.drmario) needs neither"
        ) from None
    core: Core = stable_retro.make(
        game,
        state=stable_retro.State.NONE if state is None else state,
        inttype=stable_retro.data.Integrations.ALL,
        use_restricted_actions=stable_retro.Actions.ALL,  # its filter drops START
        obs_type=stable_retro.Observations.RAM,
        render_mode=None,
    )
    return core


class RetroEnv(gymnasium.Env[Observation, np.int64]):
    """One decision per pill, as in the native world with the same config; level and speed are the core's own."""

    def __init__(self, core: Core, config: DrMarioConfig | None = None) -> None:
        config = DrMarioConfig() if config is None else config
        if config.actions != "placement" or config.players != 1:
            found = f"actions is {config.actions!r}, players is {config.players}"
            raise ScenarioError(f"an emulator is played by one player's placements; {found}")
        if config.reward.match:
            raise ScenarioError("reward.match: matched cells are not counted in an emulator; set it to 0")
        missing = sorted(set(BUTTONS) - {name for name in core.buttons if name})
        if missing:
            raise ScenarioError(f"the core has no buttons {', '.join(missing)}; is it a NES?")
        native = build(config, 1, EnvOptions())
        self._spec = native.spec
        native.close()
        self._core, self._config = core, config
        self.observation_space = observation_space(self._spec)
        self.action_space = action_space(self._spec)
        self._state: RamState | None = None  # with a pill to place; None: call reset()
        self._reach: PlacementPlan | None = None
        self._frames = self._pills = self._viruses_at_first = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin again, through the menus if need be, until a pill can be moved; the core is not seeded."""
        super().reset(seed=seed, options=options)
        self._core.reset()
        first = self._enter_level()
        self._frames, self._pills, self._viruses_at_first = 0, 0, first.viruses
        state = self._until_decision(first)
        return self._observation(state), {"action_mask": allowed(self._reach).astype(np.int8), "frames": 0}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Send the pill there, and go on until the next one can be moved or the game is over."""
        before, reach = self._state, self._reach
        if before is None or reach is None:
            raise ResetNeeded("the game is over or has not begun; call reset()")
        choice = int(checked_actions(self._spec, action))
        if not allowed(reach)[choice]:
            raise InvalidAction(f"placement {choice} cannot be reached; info['action_mask'] says which can")
        frames, self._pills = self._frames, self._pills + 1
        locked = self._lock(reach.script(choice))
        as_planned = np.array_equal(locked.board, with_pill(before.board, pose_of(choice), before.colours))
        after = self._until_decision(locked)
        terminated, truncated = _over(after), not _over(after) and self._pills >= self._config.max_pills
        if terminated or truncated:
            self._state = None
        duration = self._frames - frames
        info = {
            "action_mask": allowed(self._reach).astype(np.int8),
            "duration": duration,
            "frames": self._frames,
            "as_planned": as_planned,
        }
        return self._observation(after), self._reward(before, after, duration), terminated, truncated, info

    # --- frames ---

    def _press(self, buttons: int) -> bytes:
        """One frame; returns the RAM after it."""
        held = [int(name is not None and bool(buttons & BUTTONS.get(name, 0))) for name in self._core.buttons]
        self._core.step(np.array(held, np.uint8))
        self._frames += 1
        return self._ram()

    def _ram(self) -> bytes:
        return bytes(self._core.get_ram()[:RAM_SIZE])

    def _enter_level(self) -> RamState:
        ram = self._ram()
        for frame in range(LONGEST_WAIT):
            state = state_from_ram(ram) if ram[MODE] == IN_LEVEL else None
            if state is not None and state.controllable:
                return state
            in_menus = state.demo if state is not None else ram[MODE] not in ON_THE_WAY
            ram = self._press(BUTTONS["START"] if in_menus and frame % START_EVERY == 0 else 0)
        raise WorldContractError(
            f"no pill came under control within {LONGEST_WAIT} frames of a reset (the mode at {MODE:#06x} is "
            f"{ram[MODE]}); begin from a state that was saved within a level"
        )

    def _lock(self, script: bytes) -> RamState:
        """Play the buttons; where the core is slower than the plan, let go of them until the pill rests."""
        for buttons in chain(script, repeat(0, LONGEST_WAIT)):
            state = state_from_ram(self._press(buttons))
            if state.action != FALLING or _over(state):
                return state
        raise WorldContractError(f"the pill has not come to rest within {LONGEST_WAIT} frames; is the game paused?")

    def _until_decision(self, state: RamState) -> RamState:
        """Frames without buttons until the game is over or a pill can be sent somewhere; others fall by themselves."""
        for _ in range(LONGEST_WAIT):
            if _over(state):
                self._state = self._reach = None
                return state
            if state.controllable and (reach := plan_position(state.position)) and allowed(reach).any():
                self._state, self._reach = state, reach
                return state
            state = state_from_ram(self._press(0))
        raise WorldContractError(f"no pill came under control within {LONGEST_WAIT} frames; is the game paused?")

    # --- what is shown and paid ---

    def _observation(self, state: RamState) -> Observation:
        return observation(
            self._spec, self._config.planes, state.position, self._reach, speed=state.speed, level=state.level,
            viruses_at_first=self._viruses_at_first, pills_used=self._pills / self._config.max_pills,
        )  # fmt: skip

    def _reward(self, before: RamState, after: RamState, frames: int) -> float:
        pay = self._config.reward
        killed = before.viruses - after.viruses
        return (
            pay.virus * killed / max(1, self._viruses_at_first)
            + pay.clear * (after.viruses == 0)
            + pay.top_out * (after.failed and after.viruses > 0)
            + pay.pill
            + pay.second * frames * self._spec.tick_seconds
        )


def _over(state: RamState) -> bool:
    return state.failed or state.viruses == 0
