"""Many worlds stepped as one: the Python face of the world contract.

Arrays are created once and written in place; N worlds, A agents. After `step`:

* `alive` says who was alive before that step, so whose row counts; `acting` whose action the next step reads.
* `ticks` is how long the step was: 1, but in worlds whose decisions last (Dr. Mario); 0 where none was taken.
* `rewards` is paid on the row where an agent decides again or ends, over `duration` ticks.
* `final_obs`, `final_mask`, `final_state`, `final_potential` are valid where `terminated` or `truncated`; with
  autoreset the other arrays already show the next episode.
* `episode_*` are valid where `episode_done`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.config.base import Config
from slipstream.config.records import from_value
from slipstream.errors import ScenarioError, WorldContractError, suggest
from slipstream.spec import WorldSpec
from slipstream.types import F32, F64, I32, U8, U32, U64

PHASES = 256  # that a world may have; the core's kPhases


@dataclass(frozen=True)
class EnvOptions:
    """How a batch of worlds is seeded and stepped; the world itself is described by its config."""

    seed: int = 0
    evaluation: bool = False  # draws from streams no training world ever uses
    first_world: int = 0  # global index of world 0, so that workers draw what one process would
    threads: int = 1
    autoreset: bool = True  # same-step
    reward_parts: bool = False
    tick_discount: float = 1.0  # the learner's gamma, for rewards paid several ticks after a decision
    seed_stride: int = 0  # foreign environments: between the seeds of neighbouring worlds; 0: seeds are hashed

    def native(self) -> _core.VecEnvOptions:
        """The same for the core, whose worlds have streams keyed by seed, world and episode."""
        return _core.VecEnvOptions(**{key: value for key, value in asdict(self).items() if key != "seed_stride"})


def timed(phase: int, limit: int) -> int:
    """An entry of `VecEnv.phases` whose episodes may last so many ticks; 0: as the phase itself has it."""
    return phase + PHASES * limit


class Backdrop(NamedTuple):
    """Occupied cells [rows, columns], row 0 the lowest; metres per cell; x, y of the lower left corner, and yaw."""

    occupied: U8
    resolution_m: float
    origin: tuple[float, float, float]


class Recorded(NamedTuple):
    """An episode as it was played, T steps of A agents.

    Row t of everything but `frames` belongs to the step from frame t to frame t + 1.
    """

    frames: F64  # [T + 1, A, F], named by spec.frame_fields
    actions: NDArray[Any]  # [T, A, K] or [T, A], as they were handed to the world
    rewards: F32  # [T, A]
    parts: F32 | None  # [T, A, P], named by spec.reward_parts
    alive: U8  # [T, A], before the step
    ticks: I32  # [T], how long the step was
    backdrop: Backdrop | None


class VecEnv(Protocol):
    """What collectors, adapters and checks need of a batch of worlds, native or foreign."""

    spec: WorldSpec
    num_worlds: int
    exact_resume: bool  # restore() continues bit for bit; False: at each world's next episode
    obs: dict[str, NDArray[Any]]  # per block [N, A, ...]
    final_obs: dict[str, NDArray[Any]]
    state: F32 | None  # [N, S]
    final_state: F32 | None
    actions: NDArray[Any]  # f32 [N, A, K] or i32 [N, A]
    action_mask: U8 | None  # [N, A, M], 1 = allowed
    final_mask: U8 | None
    rewards: F32  # [N, A]
    potential: F32 | None
    final_potential: F32 | None
    reward_parts: F32 | None  # [N, A, P]
    terminated: U8  # [N, A]
    truncated: U8
    alive: U8
    acting: U8
    duration: I32
    ticks: I32  # [N]
    episode_done: U8
    episode_length: I32
    episode_return: F64  # [N, A]
    episode_stats: F64  # [N, Q], the first agent's where agents have their own
    agent_stats: F64  # [N, A, Q], read-only
    episode_index: U32  # [N]
    episode_decisions: I32  # [N, A]
    phases: Sequence[int]  # [N], of `spec.phases`: those of the episodes which start from now on; see `timed`

    def reset(self, mask: U8 | None = None) -> None:
        """Start the next episode of every world, or of the masked ones."""

    def step(self, active: U8 | None = None) -> None:
        """Advance every world, or the active ones, by one step."""

    def act_scripted(self, name: str, agents: Sequence[int]) -> None:
        """Write the actions of these agent columns as the world's script would choose them."""

    def reseed(self, seeds: U64, worlds: U32, mask: U8 | None = None) -> None:
        """Give worlds streams of their own; takes effect at their next reset."""

    def snapshot(self) -> bytes:
        """The whole batch as bytes."""

    def restore(self, data: bytes) -> None:
        """Continue exactly where `snapshot` was taken."""

    def join(self, parts: Sequence[bytes], counts: Sequence[int]) -> bytes:
        """Snapshots of so many neighbours each as one of this many worlds; the batch itself stays as it is."""

    def split(self, data: bytes, counts: Sequence[int]) -> list[bytes]:
        """The inverse of `join`."""

    def frame(self, world: int) -> F64:
        """What a viewer needs of one world: [A, fields] named by `spec.frame_fields`."""

    def backdrop(self, world: int) -> Backdrop | None:
        """What stands still in one world, for viewers; None where nothing does."""

    def close(self) -> None:
        """Let go of threads, processes and windows."""


class NativeVecEnv:
    """A batch of native worlds; every array is a view of memory the core owns."""

    exact_resume = True
    spec: WorldSpec
    obs: dict[str, NDArray[Any]]
    final_obs: dict[str, NDArray[Any]]
    state: F32 | None
    final_state: F32 | None
    actions: NDArray[Any]
    action_mask: U8 | None
    final_mask: U8 | None
    rewards: F32
    potential: F32 | None
    final_potential: F32 | None
    reward_parts: F32 | None
    terminated: U8
    truncated: U8
    alive: U8
    acting: U8
    duration: I32
    ticks: I32
    episode_done: U8
    episode_length: I32
    episode_return: F64
    episode_stats: F64
    agent_stats: F64
    episode_index: U32
    episode_decisions: I32

    def __init__(self, native: _core.VecEnv) -> None:
        self._native = native
        self.spec = from_value(native.spec(), WorldSpec)
        self.num_worlds = native.num_worlds
        for name, array in native.views().items():
            setattr(self, name, array)
        self.episode_stats = self.agent_stats[:, 0]
        # One row for all agents is shown to each of them without being copied.
        shape = (self.num_worlds, self.spec.num_agents, len(self.spec.stats))
        self.agent_stats = np.broadcast_to(self.agent_stats, shape)
        self.step = native.step  # bound once: this is the hot call
        self.reset = native.reset

    def act_scripted(self, name: str, agents: Sequence[int]) -> None:
        """Write the actions of these agent columns as the world's script would choose them."""
        if name not in self.spec.scripts:
            known = ", ".join(self.spec.scripts) or "none"
            raise WorldContractError(
                f"{self.spec.name} has no scripted policy '{name}' (it has: {known})" + suggest(name, self.spec.scripts)
            )
        self._native.act_scripted(self.spec.scripts.index(name), list(agents))

    def reseed(self, seeds: U64, worlds: U32, mask: U8 | None = None) -> None:
        """Give worlds streams of their own; takes effect at their next reset."""
        self._native.reseed(seeds, worlds, mask)

    def snapshot(self) -> bytes:
        """The whole batch as bytes."""
        return self._native.snapshot()

    def restore(self, data: bytes) -> None:
        """Continue exactly where `snapshot` was taken."""
        try:
            self._native.restore(data)
        except ValueError as error:
            raise WorldContractError(f"{self.spec.name}: cannot restore {len(data)} bytes: {error}") from None

    def join(self, parts: Sequence[bytes], counts: Sequence[int]) -> bytes:
        """Snapshots of so many neighbours each as one of this many worlds; the batch itself stays as it is."""
        before, first = self.snapshot(), 0
        try:
            for part, count in zip(parts, counts, strict=True):
                self._native.restore(part, first, count)
                first += count
            return self._native.snapshot()
        except ValueError as error:
            sizes = ", ".join(map(str, counts))
            raise WorldContractError(f"{self.spec.name}: cannot join snapshots of {sizes} worlds: {error}") from None
        finally:
            self._native.restore(before)

    def split(self, data: bytes, counts: Sequence[int]) -> list[bytes]:
        """The inverse of `join`."""
        before = self.snapshot()
        try:
            self.restore(data)
            starts = [sum(counts[:i]) for i in range(len(counts))]
            return [self._native.snapshot(start, count) for start, count in zip(starts, counts, strict=True)]
        finally:
            self._native.restore(before)

    def frame(self, world: int) -> F64:
        """What a viewer needs of one world: [A, fields] named by `spec.frame_fields`."""
        return self._native.frame(world)

    def backdrop(self, world: int) -> Backdrop | None:
        """What stands still in one world, for viewers; None where nothing does."""
        seen = self._native.backdrop(world)
        return None if seen is None else Backdrop(*seen)

    @property
    def phases(self) -> Sequence[int]:
        """By world, of `spec.phases`: those of the episodes which start from now on."""
        return self._native.phases

    @phases.setter
    def phases(self, phases: Sequence[int]) -> None:
        self._native.phases = list(phases)

    def close(self) -> None:
        """Nothing to do: threads end with the object."""


# --- from a config to a batch of native worlds ---

Native = TypeVar("Native")


def make_native(
    make: Callable[[Native, int, _core.VecEnvOptions], _core.VecEnv],
    native: Native,
    num_worlds: int,
    options: EnvOptions,
) -> NativeVecEnv:
    """A batch that the core makes from one of its configs; what the core refuses is an error of the scenario."""
    try:
        return NativeVecEnv(make(native, num_worlds, options.native()))
    except ValueError as error:
        raise ScenarioError(f"world: {error}") from None


def to_native(config: Config, native: Native, without: Collection[str] = ()) -> Native:
    """Fill a struct of the core with the fields that it shares with a config, but for some that are worked out."""
    for name in type(config).model_fields:
        if name not in without and hasattr(native, name):
            setattr(native, name, _value(getattr(config, name)))
    return native


def _value(value: Any) -> Any:
    if isinstance(value, Config):
        return to_native(value, getattr(_core, type(value).__name__)())
    return [_value(item) for item in value] if isinstance(value, tuple) else value
