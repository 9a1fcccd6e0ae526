"""
Slipstream's native core: batched worlds and the kernels learners share.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy
import numpy.typing
from numpy.typing import NDArray


class VecEnvOptions:
    """How a batch of worlds is seeded and stepped."""

    def __init__(self, *, seed: int = 0, evaluation: bool = False, first_world: int = 0, threads: int = 1, autoreset: bool = True, reward_parts: bool = False, tick_discount: float = 1.0) -> None: ...

class VecEnv:
    """Many worlds stepped as one; buffers are owned here and shown as views."""

    @property
    def num_worlds(self) -> int: ...

    @property
    def threads(self) -> int: ...

    def spec(self) -> dict[str, Any]:
        """The world's spec as plain data."""

    def views(self) -> dict[str, Any]:
        """Every buffer as a numpy view, by name."""

    def reset(self, mask: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None: ...

    def step(self, active: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None: ...

    def act_scripted(self, script: int, agents: Sequence[int]) -> None: ...

    def reseed(self, seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], worlds: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], mask: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None: ...

    @property
    def phases(self) -> list[int]:
        """Of the episodes of each world that start from now on."""

    @phases.setter
    def phases(self, arg: Sequence[int], /) -> None: ...

    def snapshot(self, first: int = 0, count: int | None = None) -> bytes:
        """All worlds, or `count` from the first on, as bytes."""

    def restore(self, bytes: bytes, first: int = 0, count: int | None = None) -> None: ...

    def frame(self, world: int) -> Annotated[NDArray[numpy.float64], dict(shape=(None, None))]:
        """What a viewer needs of one world: [agents, fields]."""

    def backdrop(self, world: int) -> tuple[numpy.typing.NDArray[numpy.uint8], float, tuple[float, float, float]] | None:
        """
        What stands still in one world: occupied cells, metres per cell, origin.
        """

def gae(*, decided: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], value: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], paid: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], reward: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], duration: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], terminated: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], truncated: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], end_value: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], last_value: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], gamma: float, gae_lambda: float, advantage: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], target: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], complete: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    Generalised advantages of decisions of any duration; [rows, columns], time-major.
    """

def copy_windows(*, boards: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None, None), order='C', device='cpu', writable=False)], board: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], corner: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], height: int, width: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    Windows of boards [boards, planes, height, width] into the first columns of `out` [windows, at least their size].
    """

def fill_normal(out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], *, seed: int, step: int, first_world: int = 0) -> None:
    """Standard normal noise [worlds, agents, width] keyed by seed and step."""

def fill_uniform(out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], *, seed: int, step: int, first_world: int = 0) -> None:
    """Uniform (0, 1) noise [worlds, agents, width] keyed by seed and step."""

class MlpShape:
    """Widths and activations of a perceptron; the weights are torch's."""

    def __init__(self, widths: Sequence[int], hidden: str, last: str, norm: bool = False, residual: bool = False) -> None: ...

    @property
    def layers(self) -> int: ...

    @property
    def tensors(self) -> int: ...

    @property
    def parameter_floats(self) -> int: ...

    def hidden_floats(self, rows: int) -> int: ...

def mlp_forward(passes: Sequence[tuple[MlpShape, Sequence[int], int, int, int, int]]) -> None:
    """
    Passes that do not wait for each other, each (shape, parameters, x, rows, hidden, out): addresses of contiguous float32 memory; hidden 0: no backward pass will follow.
    """

def mlp_backward(passes: Sequence[tuple[MlpShape, Sequence[int], int, int, int, int, int, int, int]]) -> None:
    """
    The same back, each (shape, parameters, x, rows, hidden, out, grad_out, grad_parameters, grad_x): gradients that are not wanted have the address 0.
    """

def adam_step(gradients: Sequence[tuple[int, int]], *, learning_rate: float, beta1: float, beta2: float, eps: float, max_norm: float, step: float, parameters: int, first_moment: int, second_moment: int) -> float:
    """
    One step over pieces (address, size) of a gradient; returns its norm before clipping, and does nothing where that is not finite. max_norm 0: no clipping. Addresses are of contiguous float32 memory.
    """

def set_kernel_threads(threads: int) -> None:
    """Threads the kernels share their work over; changes no bit."""

def keep_freed_memory() -> None:
    """
    Let the C library keep what is freed, up to 256 MB, instead of handing it back and taking it anew at each step.
    """

def kernel_threads() -> int:
    """Threads the kernels share their work over."""

class RecurrentShape:
    """Kind and widths of a recurrent cell; the weights are torch's."""

    def __init__(self, cell: str, inputs: int, size: int) -> None: ...

    @property
    def memory(self) -> int: ...

    @property
    def parameter_floats(self) -> int: ...

    def kept_floats(self, rows: int) -> int: ...

def recurrent_forward(shape: RecurrentShape, parameters: Sequence[int], x: int, before: int, rows: int, lengths: int, count: int, kept: int, out: int, after: int) -> None:
    """
    A cell over sequences: addresses of contiguous float32 memory, of lengths int64; lengths 0: every row is a sequence; kept 0: no backward pass will follow; after 0: not wanted.
    """

def recurrent_backward(shape: RecurrentShape, parameters: Sequence[int], x: int, before: int, rows: int, lengths: int, count: int, kept: int, grad_out: int, grad_after: int, grad_parameters: int, grad_x: int, grad_before: int) -> None:
    """
    The same back; grad_after 0: zeros; gradients that are not wanted have the address 0.
    """

class ConvShape:
    """Sizes of convolutions over images of bytes; the weights are torch's."""

    def __init__(self, channels: int, height: int, width: int, channels_first: bool, low: float, scale: float, layers: Sequence[tuple[int, int, int]]) -> None:
        """
        Each layer is (kernel, stride, outputs); a byte b counts (b - low) * scale.
        """

    @property
    def image_bytes(self) -> int: ...

    @property
    def features(self) -> int: ...

    @property
    def parameter_floats(self) -> int: ...

    def hidden_floats(self, rows: int) -> int: ...

def conv_forward(shape: ConvShape, parameters: Sequence[int], images: int, rows: int, hidden: int, out: int) -> None:
    """
    Features of images: addresses of contiguous memory, of images uint8 and else float32; hidden 0: no backward pass will follow.
    """

def conv_backward(shape: ConvShape, parameters: Sequence[int], images: int, rows: int, hidden: int, out: int, grad_out: int, grads: int) -> None:
    """The same back, to the gradients of all parameters."""

def gaussian_surrogate(rows: int, size: int, *, mean: int, log_std: int, old_mean: int, old_log_std: int, action: int, logp: int, advantage: int, weights: tuple[float, float, float, bool], by_mean: int, by_log_std: int) -> tuple[float, float, float, float, float, float]:
    """
    Total, policy loss, entropy, approximate KL, share of clipped rows, KL; addresses of contiguous memory.
    """

def categorical_surrogate(rows: int, size: int, *, logits: int, old_logits: int, action: int, logp: int, advantage: int, weights: tuple[float, float, float, bool], by_logits: int) -> tuple[float, float, float, float, float, float]:
    """
    Total, policy loss, entropy, approximate KL, share of clipped rows, KL; addresses of contiguous memory.
    """

def value_error(rows: int, *, prediction: int, target: int, before: int, clip: float, grads: int) -> float:
    """
    Half the mean squared error; clip 0: no clipping. Addresses of contiguous float32 memory.
    """

def vtrace(*, decided: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], value: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], log_ratio: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], paid: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], reward: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], duration: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], terminated: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], truncated: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], end_value: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], last_value: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], gamma: float, trace_lambda: float, rho_bar: float, c_bar: float, advantage: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], target: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], complete: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    V-trace targets, and advantages that rho is still to weight, of decisions of any duration; [rows, columns].
    """

class SumTree:
    """
    Weights that change often and are drawn from in proportion; float64, any capacity.
    """

    def __init__(self, capacity: int) -> None: ...

    @property
    def capacity(self) -> int: ...

    def total(self) -> float:
        """The sum of all weights."""

    def set(self, index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], value: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Change weights in order: of equal indices the last counts."""

    def get(self, index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Write the weights of these leaves to out."""

    def sample(self, u: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], weight: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """
        Write the leaf in which u * total falls, and its weight, for every u in [0, 1).
        """

def write_rows(store: numpy.typing.NDArray[numpy.uint8], first: int, arrays: Sequence[numpy.typing.NDArray[Any]]) -> None:
    """
    Write rows, one array per field, into records [capacity, stride] from `first` on, wrapping at the end.
    """

def gather_rows(store: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')], index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Copy scattered records to out: one array per field, one behind the other.
    """

def fill_draw(out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')], *, seed: int, draw: int) -> None:
    """Uniform numbers in [0, 1) keyed by seed and draw."""

class FramePool:
    """Frames of one size, each held once however many rows show it."""

    def __init__(self, size: int, chunk: int) -> None: ...

    @property
    def frames(self) -> int:
        """Different frames that are held."""

    @property
    def nbytes(self) -> int:
        """Memory taken."""

    def hold(self, frames: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """
        Hold these frames, one behind the other, once more each, and write their ids; 0 is none's.
        """

    def release(self, ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Give up one hold of each; what nothing holds makes room."""

    def gather(self, ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Copy frames to out, one behind the other; zeros for id 0."""

    def clear(self) -> None:
        """Hold nothing any more."""

def nstep(*, decided: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], paid: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], reward: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], duration: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], terminated: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], truncated: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], gamma: float, steps: int, span_reward: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], discount: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], outcome: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], last: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], next: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], complete: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    n-step outcomes of decisions of any duration; [rows, columns], time-major.
    """

TERMINATED: int = -1

TRUNCATED: int = -2

class ProbeConfig:
    """Which probe world, and how many ticks an episode has."""

    def __init__(self) -> None: ...

    @property
    def task(self) -> str: ...

    @task.setter
    def task(self, arg: str, /) -> None: ...

    @property
    def horizon(self) -> int: ...

    @horizon.setter
    def horizon(self, arg: int, /) -> None: ...

    @property
    def entities(self) -> int: ...

    @entities.setter
    def entities(self, arg: int, /) -> None: ...

def probe_tasks() -> list[str]:
    """Names of the probe worlds."""

def make_probe(config: ProbeConfig, num_worlds: int, options: VecEnvOptions) -> VecEnv:
    """A batch of one probe world."""

class AircraftConfig:
    """One aircraft of a listed scene."""

    def __init__(self) -> None: ...

    @property
    def id(self) -> str: ...

    @id.setter
    def id(self, arg: str, /) -> None: ...

    @property
    def role(self) -> str: ...

    @role.setter
    def role(self, arg: str, /) -> None: ...

    @property
    def type(self) -> str: ...

    @type.setter
    def type(self, arg: str, /) -> None: ...

    @property
    def lat_deg(self) -> float: ...

    @lat_deg.setter
    def lat_deg(self, arg: float, /) -> None: ...

    @property
    def lon_deg(self) -> float: ...

    @lon_deg.setter
    def lon_deg(self, arg: float, /) -> None: ...

    @property
    def heading_deg(self) -> float: ...

    @heading_deg.setter
    def heading_deg(self, arg: float, /) -> None: ...

    @property
    def cas_kt(self) -> float: ...

    @cas_kt.setter
    def cas_kt(self, arg: float, /) -> None: ...

    @property
    def waypoint_lat_deg(self) -> float: ...

    @waypoint_lat_deg.setter
    def waypoint_lat_deg(self, arg: float, /) -> None: ...

    @property
    def waypoint_lon_deg(self) -> float: ...

    @waypoint_lon_deg.setter
    def waypoint_lon_deg(self, arg: float, /) -> None: ...

class RandomSectorConfig:
    """Traffic drawn anew at every reset."""

    def __init__(self) -> None: ...

    @property
    def num_aircraft(self) -> int: ...

    @num_aircraft.setter
    def num_aircraft(self, arg: int, /) -> None: ...

    @property
    def min_aircraft(self) -> int | None: ...

    @min_aircraft.setter
    def min_aircraft(self, arg: int | None, /) -> None: ...

    @property
    def types(self) -> list[str]: ...

    @types.setter
    def types(self, arg: Sequence[str], /) -> None: ...

    @property
    def density_per_nm2(self) -> float: ...

    @density_per_nm2.setter
    def density_per_nm2(self, arg: float, /) -> None: ...

    @property
    def conflict_share(self) -> float: ...

    @conflict_share.setter
    def conflict_share(self, arg: float, /) -> None: ...

    @property
    def conflict_cpa_nm(self) -> float: ...

    @conflict_cpa_nm.setter
    def conflict_cpa_nm(self, arg: float, /) -> None: ...

    @property
    def conflict_after_s(self) -> float: ...

    @conflict_after_s.setter
    def conflict_after_s(self, arg: float, /) -> None: ...

    @property
    def conflict_before_s(self) -> float: ...

    @conflict_before_s.setter
    def conflict_before_s(self, arg: float, /) -> None: ...

    @property
    def min_start_separation_nm(self) -> float: ...

    @min_start_separation_nm.setter
    def min_start_separation_nm(self, arg: float, /) -> None: ...

    @property
    def min_cas_kt(self) -> float: ...

    @min_cas_kt.setter
    def min_cas_kt(self, arg: float, /) -> None: ...

    @property
    def max_cas_kt(self) -> float: ...

    @max_cas_kt.setter
    def max_cas_kt(self, arg: float, /) -> None: ...

    @property
    def center_lat_deg(self) -> float: ...

    @center_lat_deg.setter
    def center_lat_deg(self, arg: float, /) -> None: ...

    @property
    def center_lon_deg(self) -> float: ...

    @center_lon_deg.setter
    def center_lon_deg(self, arg: float, /) -> None: ...

class AirspaceConfig:
    """What an airspace scene is made of."""

    def __init__(self) -> None: ...

    @property
    def preset(self) -> str: ...

    @preset.setter
    def preset(self, arg: str, /) -> None: ...

    @property
    def observation(self) -> str | None: ...

    @observation.setter
    def observation(self, value: str | None) -> None: ...

    @property
    def reward(self) -> str | None: ...

    @reward.setter
    def reward(self, value: str | None) -> None: ...

    @property
    def aircraft(self) -> list[AircraftConfig]: ...

    @aircraft.setter
    def aircraft(self, arg: Sequence[AircraftConfig], /) -> None: ...

    @property
    def random_sector(self) -> RandomSectorConfig: ...

    @random_sector.setter
    def random_sector(self, value: RandomSectorConfig | None) -> None: ...

    @property
    def altitude_ft(self) -> float: ...

    @altitude_ft.setter
    def altitude_ft(self, arg: float, /) -> None: ...

    @property
    def wind_speed_kt(self) -> float: ...

    @wind_speed_kt.setter
    def wind_speed_kt(self, arg: float, /) -> None: ...

    @property
    def wind_from_deg(self) -> float: ...

    @wind_from_deg.setter
    def wind_from_deg(self, arg: float, /) -> None: ...

    @property
    def position_jitter_nm(self) -> float: ...

    @position_jitter_nm.setter
    def position_jitter_nm(self, arg: float, /) -> None: ...

    @property
    def heading_jitter_deg(self) -> float: ...

    @heading_jitter_deg.setter
    def heading_jitter_deg(self, arg: float, /) -> None: ...

    @property
    def speed_jitter_kt(self) -> float: ...

    @speed_jitter_kt.setter
    def speed_jitter_kt(self, arg: float, /) -> None: ...

    @property
    def decision_s(self) -> float: ...

    @decision_s.setter
    def decision_s(self, arg: float, /) -> None: ...

    @property
    def substep_s(self) -> float: ...

    @substep_s.setter
    def substep_s(self, arg: float, /) -> None: ...

    @property
    def max_episode_steps(self) -> int: ...

    @max_episode_steps.setter
    def max_episode_steps(self, arg: int, /) -> None: ...

    @property
    def time_left(self) -> bool | None: ...

    @time_left.setter
    def time_left(self, arg: bool | None, /) -> None: ...

    @property
    def heading_step_deg(self) -> float: ...

    @heading_step_deg.setter
    def heading_step_deg(self, arg: float, /) -> None: ...

    @property
    def speed_step_kt(self) -> float: ...

    @speed_step_kt.setter
    def speed_step_kt(self, arg: float, /) -> None: ...

    @property
    def heading_deadband_deg(self) -> float | None: ...

    @heading_deadband_deg.setter
    def heading_deadband_deg(self, arg: float | None, /) -> None: ...

    @property
    def speed_deadband_kt(self) -> float | None: ...

    @speed_deadband_kt.setter
    def speed_deadband_kt(self, arg: float | None, /) -> None: ...

    @property
    def separation_nm(self) -> float: ...

    @separation_nm.setter
    def separation_nm(self, arg: float, /) -> None: ...

    @property
    def collision_nm(self) -> float: ...

    @collision_nm.setter
    def collision_nm(self, arg: float, /) -> None: ...

    @property
    def waypoint_radius_nm(self) -> float: ...

    @waypoint_radius_nm.setter
    def waypoint_radius_nm(self, arg: float, /) -> None: ...

    @property
    def neighbor_topk(self) -> int: ...

    @neighbor_topk.setter
    def neighbor_topk(self, arg: int, /) -> None: ...

    @property
    def progress_reward_per_km(self) -> float: ...

    @progress_reward_per_km.setter
    def progress_reward_per_km(self, arg: float, /) -> None: ...

    @property
    def time_penalty_per_sec(self) -> float: ...

    @time_penalty_per_sec.setter
    def time_penalty_per_sec(self, arg: float, /) -> None: ...

    @property
    def distance_penalty_per_nm(self) -> float | None: ...

    @distance_penalty_per_nm.setter
    def distance_penalty_per_nm(self, arg: float | None, /) -> None: ...

    @property
    def reach_reward(self) -> float: ...

    @reach_reward.setter
    def reach_reward(self, arg: float, /) -> None: ...

    @property
    def violation_entry_penalty(self) -> float: ...

    @violation_entry_penalty.setter
    def violation_entry_penalty(self, arg: float, /) -> None: ...

    @property
    def violation_step_scale(self) -> float: ...

    @violation_step_scale.setter
    def violation_step_scale(self, arg: float, /) -> None: ...

    @property
    def deep_breach_nm(self) -> float: ...

    @deep_breach_nm.setter
    def deep_breach_nm(self, arg: float, /) -> None: ...

    @property
    def drift_improve_gain(self) -> float: ...

    @drift_improve_gain.setter
    def drift_improve_gain(self, arg: float, /) -> None: ...

    @property
    def drift_deadzone_deg(self) -> float: ...

    @drift_deadzone_deg.setter
    def drift_deadzone_deg(self, arg: float, /) -> None: ...

    @property
    def action_cost_per_unit(self) -> float: ...

    @action_cost_per_unit.setter
    def action_cost_per_unit(self, arg: float, /) -> None: ...

    @property
    def terminal_not_reached_penalty(self) -> float: ...

    @terminal_not_reached_penalty.setter
    def terminal_not_reached_penalty(self, arg: float, /) -> None: ...

    @property
    def team_coordination_weight(self) -> float: ...

    @team_coordination_weight.setter
    def team_coordination_weight(self, arg: float, /) -> None: ...

    @property
    def team_gamma(self) -> float: ...

    @team_gamma.setter
    def team_gamma(self, arg: float, /) -> None: ...

    @property
    def team_ema(self) -> float: ...

    @team_ema.setter
    def team_ema(self, arg: float, /) -> None: ...

    @property
    def team_cap(self) -> float: ...

    @team_cap.setter
    def team_cap(self, arg: float, /) -> None: ...

    @property
    def team_share(self) -> str: ...

    @team_share.setter
    def team_share(self, arg: str, /) -> None: ...

def make_airspace(config: AirspaceConfig, num_worlds: int, options: VecEnvOptions) -> VecEnv:
    """A batch of one airspace scene."""

def airspace_types() -> list[str]:
    """Names of the known aircraft types."""

def airspace_propagate(state: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], targets: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], aircraft_type: str, altitude_ft: float, out: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """
    Flies aircraft toward fixed targets, second by second, into out [seconds, n, 5].
    """

def airspace_pair_geometry(own: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], other: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], horizon_s: float | None, out: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    Distance, closest approach and well clear of pairs flying straight on, into out [n, 7].
    """

class HorizontalCrConfig:
    """bluesky-gym's horizontal conflict resolution task."""

    def __init__(self) -> None: ...

    @property
    def num_intruders(self) -> int: ...

    @num_intruders.setter
    def num_intruders(self, arg: int, /) -> None: ...

    @property
    def initial_speed_mps(self) -> float: ...

    @initial_speed_mps.setter
    def initial_speed_mps(self, arg: float, /) -> None: ...

    @property
    def cruise_speed_mps(self) -> float: ...

    @cruise_speed_mps.setter
    def cruise_speed_mps(self, arg: float, /) -> None: ...

    @property
    def braking_mps2(self) -> float: ...

    @braking_mps2.setter
    def braking_mps2(self, arg: float, /) -> None: ...

    @property
    def decision_s(self) -> float: ...

    @decision_s.setter
    def decision_s(self, arg: float, /) -> None: ...

    @property
    def substep_s(self) -> float: ...

    @substep_s.setter
    def substep_s(self, arg: float, /) -> None: ...

    @property
    def max_episode_steps(self) -> int: ...

    @max_episode_steps.setter
    def max_episode_steps(self, arg: int, /) -> None: ...

    @property
    def heading_step_deg(self) -> float: ...

    @heading_step_deg.setter
    def heading_step_deg(self, arg: float, /) -> None: ...

    @property
    def separation_nm(self) -> float: ...

    @separation_nm.setter
    def separation_nm(self, arg: float, /) -> None: ...

    @property
    def waypoint_radius_km(self) -> float: ...

    @waypoint_radius_km.setter
    def waypoint_radius_km(self, arg: float, /) -> None: ...

    @property
    def reach_reward(self) -> float: ...

    @reach_reward.setter
    def reach_reward(self, arg: float, /) -> None: ...

    @property
    def drift_penalty_per_rad(self) -> float: ...

    @drift_penalty_per_rad.setter
    def drift_penalty_per_rad(self, arg: float, /) -> None: ...

    @property
    def intrusion_penalty(self) -> float: ...

    @intrusion_penalty.setter
    def intrusion_penalty(self, arg: float, /) -> None: ...

def make_horizontal_cr(config: HorizontalCrConfig, num_worlds: int, options: VecEnvOptions) -> VecEnv:
    """A batch of the horizontal conflict resolution task."""

class FollowGap:
    def __init__(self) -> None: ...

    @property
    def view(self) -> float: ...

    @view.setter
    def view(self, arg: float, /) -> None: ...

    @property
    def cap_m(self) -> float: ...

    @cap_m.setter
    def cap_m(self, arg: float, /) -> None: ...

    @property
    def window(self) -> int: ...

    @window.setter
    def window(self, arg: int, /) -> None: ...

    @property
    def half_width(self) -> float: ...

    @half_width.setter
    def half_width(self, arg: float, /) -> None: ...

    @property
    def bubble(self) -> float: ...

    @bubble.setter
    def bubble(self, arg: float, /) -> None: ...

    @property
    def depth(self) -> float: ...

    @depth.setter
    def depth(self, arg: float, /) -> None: ...

    @property
    def gap_m(self) -> float: ...

    @gap_m.setter
    def gap_m(self, arg: float, /) -> None: ...

    @property
    def gain(self) -> float: ...

    @gain.setter
    def gain(self, arg: float, /) -> None: ...

    @property
    def smooth(self) -> float: ...

    @smooth.setter
    def smooth(self, arg: float, /) -> None: ...

    @property
    def fast_mps(self) -> float: ...

    @fast_mps.setter
    def fast_mps(self, arg: float, /) -> None: ...

    @property
    def slow_mps(self) -> float: ...

    @slow_mps.setter
    def slow_mps(self, arg: float, /) -> None: ...

    @property
    def hard(self) -> float: ...

    @hard.setter
    def hard(self, arg: float, /) -> None: ...

    @property
    def careful(self) -> bool: ...

    @careful.setter
    def careful(self, arg: bool, /) -> None: ...

class PurePursuit:
    def __init__(self) -> None: ...

    @property
    def ahead_s(self) -> float: ...

    @ahead_s.setter
    def ahead_s(self, arg: float, /) -> None: ...

    @property
    def ahead_min_m(self) -> float: ...

    @ahead_min_m.setter
    def ahead_min_m(self, arg: float, /) -> None: ...

    @property
    def share(self) -> float: ...

    @share.setter
    def share(self, arg: float, /) -> None: ...

class Squeezer:
    def __init__(self) -> None: ...

    @property
    def ahead_m(self) -> float: ...

    @ahead_m.setter
    def ahead_m(self, arg: float, /) -> None: ...

    @property
    def wide_m(self) -> float: ...

    @wide_m.setter
    def wide_m(self, arg: float, /) -> None: ...

    @property
    def narrow_m(self) -> float: ...

    @narrow_m.setter
    def narrow_m(self, arg: float, /) -> None: ...

    @property
    def close_s(self) -> float: ...

    @close_s.setter
    def close_s(self, arg: float, /) -> None: ...

    @property
    def look_m(self) -> float: ...

    @look_m.setter
    def look_m(self, arg: float, /) -> None: ...

    @property
    def gain(self) -> float: ...

    @gain.setter
    def gain(self, arg: float, /) -> None: ...

class Blocker:
    def __init__(self) -> None: ...

    @property
    def watch_m(self) -> float: ...

    @watch_m.setter
    def watch_m(self, arg: float, /) -> None: ...

    @property
    def room_m(self) -> float: ...

    @room_m.setter
    def room_m(self, arg: float, /) -> None: ...

    @property
    def share(self) -> float: ...

    @share.setter
    def share(self, arg: float, /) -> None: ...

    @property
    def ahead_s(self) -> float: ...

    @ahead_s.setter
    def ahead_s(self, arg: float, /) -> None: ...

    @property
    def ahead_min_m(self) -> float: ...

    @ahead_min_m.setter
    def ahead_min_m(self, arg: float, /) -> None: ...

class CarConfig:
    def __init__(self) -> None: ...

    @property
    def id(self) -> str: ...

    @id.setter
    def id(self, arg: str, /) -> None: ...

    @property
    def role(self) -> str: ...

    @role.setter
    def role(self, arg: str, /) -> None: ...

    @property
    def vehicle(self) -> str: ...

    @vehicle.setter
    def vehicle(self, arg: str, /) -> None: ...

    @property
    def speed_min_mps(self) -> float: ...

    @speed_min_mps.setter
    def speed_min_mps(self, arg: float, /) -> None: ...

    @property
    def speed_max_mps(self) -> float: ...

    @speed_max_mps.setter
    def speed_max_mps(self, arg: float, /) -> None: ...

    @property
    def friction_scale(self) -> float: ...

    @friction_scale.setter
    def friction_scale(self, arg: float, /) -> None: ...

    @property
    def mass_scale(self) -> float: ...

    @mass_scale.setter
    def mass_scale(self, arg: float, /) -> None: ...

    @property
    def reward(self) -> list[float]: ...

    @reward.setter
    def reward(self, arg: Sequence[float], /) -> None: ...

class LidarConfig:
    def __init__(self) -> None: ...

    @property
    def beams(self) -> int: ...

    @beams.setter
    def beams(self, arg: int, /) -> None: ...

    @property
    def fov_rad(self) -> float: ...

    @fov_rad.setter
    def fov_rad(self, arg: float, /) -> None: ...

    @property
    def range_m(self) -> float: ...

    @range_m.setter
    def range_m(self, arg: float, /) -> None: ...

    @property
    def noise_m(self) -> float: ...

    @noise_m.setter
    def noise_m(self, arg: float, /) -> None: ...

    @property
    def dropout(self) -> float: ...

    @dropout.setter
    def dropout(self, arg: float, /) -> None: ...

    @property
    def mount_m(self) -> float: ...

    @mount_m.setter
    def mount_m(self, arg: float, /) -> None: ...

class CircuitConfig:
    def __init__(self) -> None: ...

    @property
    def corners(self) -> int: ...

    @corners.setter
    def corners(self, arg: int, /) -> None: ...

    @property
    def radius_m(self) -> float: ...

    @radius_m.setter
    def radius_m(self, arg: float, /) -> None: ...

    @property
    def roughness(self) -> float: ...

    @roughness.setter
    def roughness(self, arg: float, /) -> None: ...

    @property
    def width_m(self) -> float: ...

    @width_m.setter
    def width_m(self, arg: float, /) -> None: ...

    @property
    def narrowest_m(self) -> float | None: ...

    @narrowest_m.setter
    def narrowest_m(self, arg: float | None, /) -> None: ...

    @property
    def tightest_m(self) -> float: ...

    @tightest_m.setter
    def tightest_m(self, arg: float, /) -> None: ...

    @property
    def resolution_m(self) -> float: ...

    @resolution_m.setter
    def resolution_m(self, arg: float, /) -> None: ...

    @property
    def mirrored(self) -> bool: ...

    @mirrored.setter
    def mirrored(self, arg: bool, /) -> None: ...

class RacingObservation:
    def __init__(self) -> None: ...

    @property
    def scan(self) -> bool: ...

    @scan.setter
    def scan(self, arg: bool, /) -> None: ...

    @property
    def speed(self) -> bool: ...

    @speed.setter
    def speed(self, arg: bool, /) -> None: ...

    @property
    def sway(self) -> bool: ...

    @sway.setter
    def sway(self, arg: bool, /) -> None: ...

    @property
    def steer(self) -> bool: ...

    @steer.setter
    def steer(self, arg: bool, /) -> None: ...

    @property
    def line(self) -> bool: ...

    @line.setter
    def line(self, arg: bool, /) -> None: ...

    @property
    def target(self) -> bool: ...

    @target.setter
    def target(self, arg: bool, /) -> None: ...

    @property
    def frame_stack(self) -> int: ...

    @frame_stack.setter
    def frame_stack(self, arg: int, /) -> None: ...

    @property
    def action_stack(self) -> int: ...

    @action_stack.setter
    def action_stack(self, arg: int, /) -> None: ...

    @property
    def others(self) -> int: ...

    @others.setter
    def others(self, arg: int, /) -> None: ...

    @property
    def ahead_m(self) -> list[float]: ...

    @ahead_m.setter
    def ahead_m(self, arg: Sequence[float], /) -> None: ...

class SpawnConfig:
    def __init__(self) -> None: ...

    @property
    def kind(self) -> str: ...

    @kind.setter
    def kind(self, arg: str, /) -> None: ...

    @property
    def start_m(self) -> float: ...

    @start_m.setter
    def start_m(self, arg: float, /) -> None: ...

    @property
    def gap_m(self) -> float: ...

    @gap_m.setter
    def gap_m(self, arg: float, /) -> None: ...

    @property
    def stagger_m(self) -> float: ...

    @stagger_m.setter
    def stagger_m(self, arg: float, /) -> None: ...

    @property
    def lateral_jitter_m(self) -> float: ...

    @lateral_jitter_m.setter
    def lateral_jitter_m(self, arg: float, /) -> None: ...

    @property
    def yaw_jitter_rad(self) -> float: ...

    @yaw_jitter_rad.setter
    def yaw_jitter_rad(self, arg: float, /) -> None: ...

    @property
    def sets(self) -> list[list[list[float]]]: ...

    def add_set(self, name: str, cars: Sequence[Sequence[float]]) -> None:
        """A place [s_m, lateral_m, yaw_rad] for every car."""

class RacingPhase:
    def __init__(self) -> None: ...

    @property
    def name(self) -> str: ...

    @name.setter
    def name(self, arg: str, /) -> None: ...

    @property
    def lock_mps(self) -> float: ...

    @lock_mps.setter
    def lock_mps(self, arg: float, /) -> None: ...

    @property
    def lock_steps(self) -> int: ...

    @lock_steps.setter
    def lock_steps(self, arg: int, /) -> None: ...

    @property
    def spawns(self) -> list[int]: ...

    @spawns.setter
    def spawns(self, arg: Sequence[int], /) -> None: ...

    @property
    def speed_from_mps(self) -> float: ...

    @speed_from_mps.setter
    def speed_from_mps(self, arg: float, /) -> None: ...

    @property
    def speed_to_mps(self) -> float: ...

    @speed_to_mps.setter
    def speed_to_mps(self, arg: float, /) -> None: ...

    @property
    def follow_gap(self) -> FollowGap: ...

    @follow_gap.setter
    def follow_gap(self, arg: FollowGap, /) -> None: ...

class RacingCourse:
    """What everything drives on, shared by all worlds."""

    def __init__(self, map: RacingMap, line: RacingCenterline, along: RacingCenterline, speed: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], mode: str) -> None: ...

class RacingConfig:
    """What a race is made of."""

    def __init__(self) -> None: ...

    @property
    def task(self) -> str: ...

    @task.setter
    def task(self, arg: str, /) -> None: ...

    @property
    def physics(self) -> str: ...

    @physics.setter
    def physics(self, arg: str, /) -> None: ...

    @property
    def lidar(self) -> LidarConfig: ...

    @lidar.setter
    def lidar(self, arg: LidarConfig, /) -> None: ...

    @property
    def ideal_speed_mps(self) -> float: ...

    @ideal_speed_mps.setter
    def ideal_speed_mps(self, arg: float, /) -> None: ...

    @property
    def action_repeat(self) -> int: ...

    @action_repeat.setter
    def action_repeat(self, arg: int, /) -> None: ...

    @property
    def max_episode_steps(self) -> int: ...

    @max_episode_steps.setter
    def max_episode_steps(self, arg: int, /) -> None: ...

    @property
    def steer_choices(self) -> int: ...

    @steer_choices.setter
    def steer_choices(self, arg: int, /) -> None: ...

    @property
    def speed_choices(self) -> int: ...

    @speed_choices.setter
    def speed_choices(self, arg: int, /) -> None: ...

    @property
    def laps(self) -> int: ...

    @laps.setter
    def laps(self, arg: int, /) -> None: ...

    @property
    def finish_margin_m(self) -> float: ...

    @finish_margin_m.setter
    def finish_margin_m(self, arg: float, /) -> None: ...

    @property
    def lead_m(self) -> float: ...

    @lead_m.setter
    def lead_m(self, arg: float, /) -> None: ...

    @property
    def idle_mps(self) -> float: ...

    @idle_mps.setter
    def idle_mps(self, arg: float, /) -> None: ...

    @property
    def idle_after_s(self) -> float: ...

    @idle_after_s.setter
    def idle_after_s(self, arg: float, /) -> None: ...

    @property
    def pressure_m(self) -> float: ...

    @pressure_m.setter
    def pressure_m(self, arg: float, /) -> None: ...

    @property
    def pressed_s(self) -> float: ...

    @pressed_s.setter
    def pressed_s(self, arg: float, /) -> None: ...

    @property
    def border_m(self) -> float: ...

    @border_m.setter
    def border_m(self, arg: float, /) -> None: ...

    @property
    def circuits(self) -> CircuitConfig: ...

    @circuits.setter
    def circuits(self, arg: CircuitConfig, /) -> None: ...

    @property
    def cars(self) -> list[CarConfig]: ...

    @cars.setter
    def cars(self, arg: Sequence[CarConfig], /) -> None: ...

    @property
    def observation(self) -> RacingObservation: ...

    @observation.setter
    def observation(self, arg: RacingObservation, /) -> None: ...

    @property
    def spawn(self) -> SpawnConfig: ...

    @spawn.setter
    def spawn(self, arg: SpawnConfig, /) -> None: ...

    @property
    def phases(self) -> list[RacingPhase]: ...

    @phases.setter
    def phases(self, arg: Sequence[RacingPhase], /) -> None: ...

    @property
    def pure_pursuit(self) -> PurePursuit: ...

    @pure_pursuit.setter
    def pure_pursuit(self, arg: PurePursuit, /) -> None: ...

    @property
    def squeezer(self) -> Squeezer: ...

    @squeezer.setter
    def squeezer(self, arg: Squeezer, /) -> None: ...

    @property
    def blocker(self) -> Blocker: ...

    @blocker.setter
    def blocker(self, arg: Blocker, /) -> None: ...

    @property
    def course(self) -> RacingCourse: ...

    @course.setter
    def course(self, course: RacingCourse | None) -> None: ...

def make_racing(config: RacingConfig, num_worlds: int, options: VecEnvOptions) -> VecEnv:
    """A batch of one race."""

def racing_vehicles() -> list[str]:
    """Names of the cars."""

def racing_vehicle(name: str) -> list[float]:
    """
    Length, width, largest steering angle, least and largest speed, acceleration, wheelbase.
    """

def racing_derivative(state: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], inputs: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], vehicle: str, mode: str) -> NDArray[numpy.float64]:
    """Time derivative of a state, [7]."""

def racing_simulate(state: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], commands: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], vehicle: str, mode: str) -> NDArray[numpy.float64]:
    """The state after each command, [T, 7], at steps of 0.01 s."""

def racing_overlap(a: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], length: float, width: float) -> NDArray[numpy.uint8]:
    """1 where two cars touch, for each pair of rows."""

class RacingLidar:
    """A scanner's beams."""

    def __init__(self, beams: int, fov: float, range: float) -> None: ...

class RacingMap:
    """A grid of free and occupied cells; row 0 is the lowest."""

    def __init__(self, occupied: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], resolution: float, x: float, y: float, yaw: float) -> None: ...

    def distance(self) -> NDArray[numpy.float64]:
        """
        Metres between the centre of each cell and that of the nearest occupied one.
        """

    def scan(self, lidar: RacingLidar, pose: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], mode: str, opponents: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], length: float, width: float) -> NDArray[numpy.float32]:
        """Metres along each beam, the rightmost first."""

    def touches(self, poses: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], length: float, width: float) -> NDArray[numpy.uint8]:
        """1 where a car touches a wall or leaves the grid."""

class RacingCenterline:
    """The line a track is measured along."""

    def __init__(self, points: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], closed: bool) -> None: ...

    @property
    def length(self) -> float: ...

    @property
    def closed(self) -> bool: ...

    def project(self, points: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float64]:
        """
        Rows of [metres along, metres beside (left positive), heading of the line].
        """

    def at(self, s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float64]:
        """Points [x, y] this far along."""

def racing_corridor(length: float, width: float, resolution: float) -> tuple[NDArray[numpy.uint8], float, list[float], NDArray[numpy.float64], bool]: ...

def racing_oval(straight: float, radius: float, width: float, resolution: float) -> tuple[NDArray[numpy.uint8], float, list[float], NDArray[numpy.float64], bool]: ...

def racing_circuit(seed: int, config: CircuitConfig) -> tuple[NDArray[numpy.uint8], float, list[float], NDArray[numpy.float64], bool]: ...

def racing_follow_gap(map: RacingMap, line: RacingCenterline, start: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], vehicle: str, mode: str, repeat: int, laps: int, limit_s: float, beams: int, fov: float, range: float, driver: FollowGap) -> tuple[NDArray[numpy.float64], list[float], bool, float]: ...

def racing_pure_pursuit(map: RacingMap, line: RacingCenterline, start: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], vehicle: str, mode: str, repeat: int, laps: int, limit_s: float, along: RacingCenterline, speed: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], driver: PurePursuit) -> tuple[NDArray[numpy.float64], list[float], bool, float]: ...

def racing_speeds(line: RacingCenterline, speed_max: float, lateral_max: float, accel_max: float) -> NDArray[numpy.float64]:
    """How fast each point of a line can be driven."""

class DrMarioPlayer:
    """One bottle."""

    @property
    def board(self) -> NDArray[numpy.uint8]: ...

    @property
    def reserve(self) -> NDArray[numpy.uint8]: ...

    @property
    def pill(self) -> tuple[int, int, int]: ...

    @property
    def colours(self) -> tuple[int, int]: ...

    @property
    def preview(self) -> tuple[int, int]: ...

    @property
    def threshold(self) -> int: ...

    @property
    def speed_counter(self) -> int: ...

    @property
    def hor_velocity(self) -> int: ...

    @property
    def controllable(self) -> bool: ...

    @property
    def terminal(self) -> int: ...

    @property
    def held(self) -> int: ...

    @property
    def speed_ups(self) -> int: ...

    @property
    def viruses(self) -> int: ...

    @property
    def attack(self) -> int: ...

    @property
    def score(self) -> int: ...

class DrMarioFrame:
    """What a frame did in one bottle."""

    @property
    def falling(self) -> bool: ...

    @property
    def locked(self) -> bool: ...

    @property
    def spawned(self) -> bool: ...

    @property
    def landed(self) -> bool: ...

    @property
    def pose(self) -> tuple[int, int, int]: ...

    @property
    def cells(self) -> int: ...

    @property
    def viruses(self) -> int: ...

    @property
    def runs(self) -> int: ...

class DrMarioGame:
    """One or two bottles under one frame counter."""

    def __init__(self, boards: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], reserve: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], speeds: Sequence[int], counter: int) -> None: ...

    def step(self, buttons: Sequence[int]) -> None: ...

    def run(self, buttons: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
        """
        Frames run by one player alone, one for each button byte, until the game is over.
        """

    @property
    def counter(self) -> int: ...

    def player(self, arg: int, /) -> DrMarioPlayer: ...

    def happened(self, arg: int, /) -> DrMarioFrame: ...

def drmario_generate(level: int, seed: tuple[int, int]) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8], tuple[int, int]]:
    """
    Board, reserve, and the generator's state when the last virus is placed.
    """

def drmario_generate_pair(first: int, second: int, seed: tuple[int, int]) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8], NDArray[numpy.uint8]]:
    """Both boards and the reserve."""

def drmario_plan(board: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], pose: Sequence[int], threshold: int, odd_next: bool, speed_counter: int, hor_velocity: int, held: int, both: bool) -> NDArray[numpy.uint16]:
    """Fewest frames to lock at each placement; 65535: it cannot be reached."""

def drmario_plan_plainly(board: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], pose: Sequence[int], threshold: int, odd_next: bool, speed_counter: int, hor_velocity: int, held: int, both: bool) -> NDArray[numpy.uint16]:
    """The same by plain search, for tests."""

def drmario_script(board: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], pose: Sequence[int], threshold: int, odd_next: bool, speed_counter: int, hor_velocity: int, held: int, both: bool, placement: int) -> bytes:
    """Buttons, frame by frame; empty where the placement cannot be reached."""

def drmario_seed(number: int) -> tuple[int, int]:
    """The console's states by number, 1 to 32767."""

def drmario_reachable(seed: tuple[int, int]) -> bool:
    """Whether a console can ever be in this state."""

class DrMarioPlanes:
    def __init__(self) -> None: ...

    @property
    def colour(self) -> bool: ...

    @colour.setter
    def colour(self, arg: bool, /) -> None: ...

    @property
    def virus(self) -> bool: ...

    @virus.setter
    def virus(self, arg: bool, /) -> None: ...

    @property
    def joined(self) -> bool: ...

    @joined.setter
    def joined(self, arg: bool, /) -> None: ...

    @property
    def virus_colour(self) -> bool: ...

    @virus_colour.setter
    def virus_colour(self, arg: bool, /) -> None: ...

    @property
    def pill_colour(self) -> bool: ...

    @pill_colour.setter
    def pill_colour(self, arg: bool, /) -> None: ...

    @property
    def falling(self) -> bool: ...

    @falling.setter
    def falling(self, arg: bool, /) -> None: ...

    @property
    def opponent(self) -> bool: ...

    @opponent.setter
    def opponent(self, arg: bool, /) -> None: ...

    @property
    def feasible(self) -> bool: ...

    @feasible.setter
    def feasible(self, arg: bool, /) -> None: ...

class GamesConfig:
    def __init__(self) -> None: ...

    @property
    def name(self) -> str: ...

    @name.setter
    def name(self, arg: str, /) -> None: ...

    @property
    def levels(self) -> list[int]: ...

    @levels.setter
    def levels(self, arg: Sequence[int], /) -> None: ...

    @property
    def viruses(self) -> int | None: ...

    @viruses.setter
    def viruses(self, arg: int | None, /) -> None: ...

    @property
    def matches(self) -> int | None: ...

    @matches.setter
    def matches(self, arg: int | None, /) -> None: ...

    @property
    def max_seconds(self) -> float | None: ...

    @max_seconds.setter
    def max_seconds(self, arg: float | None, /) -> None: ...

class DrMarioConfig:
    def __init__(self) -> None: ...

    @property
    def actions(self) -> str: ...

    @actions.setter
    def actions(self, arg: str, /) -> None: ...

    @property
    def players(self) -> int: ...

    @players.setter
    def players(self, arg: int, /) -> None: ...

    @property
    def speed(self) -> str: ...

    @speed.setter
    def speed(self, arg: str, /) -> None: ...

    @property
    def levels(self) -> list[int]: ...

    @levels.setter
    def levels(self, arg: Sequence[int], /) -> None: ...

    @property
    def phases(self) -> list[GamesConfig]: ...

    @phases.setter
    def phases(self, arg: Sequence[GamesConfig], /) -> None: ...

    @property
    def max_pills(self) -> int: ...

    @max_pills.setter
    def max_pills(self, arg: int, /) -> None: ...

    @property
    def first_seed(self) -> int: ...

    @first_seed.setter
    def first_seed(self, arg: int, /) -> None: ...

    @property
    def last_seed(self) -> int: ...

    @last_seed.setter
    def last_seed(self, arg: int, /) -> None: ...

    @property
    def show_costs(self) -> bool: ...

    @show_costs.setter
    def show_costs(self, arg: bool, /) -> None: ...

    @property
    def time_left(self) -> bool | None: ...

    @time_left.setter
    def time_left(self, arg: bool | None, /) -> None: ...

    @property
    def seeds(self) -> list[int]: ...

    @seeds.setter
    def seeds(self, arg: Sequence[int], /) -> None: ...

    @property
    def planes(self) -> DrMarioPlanes: ...

    @planes.setter
    def planes(self, arg: DrMarioPlanes, /) -> None: ...

    @property
    def reward(self) -> list[float]: ...

    @reward.setter
    def reward(self, arg: Sequence[float], /) -> None: ...

def make_drmario(config: DrMarioConfig, num_worlds: int, options: VecEnvOptions) -> VecEnv:
    """A batch of games."""
