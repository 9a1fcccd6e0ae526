"""Cars on their own: the single-track model, one state at a time.

A state is float64 [7]: x_m, y_m, steer_rad, speed_mps, yaw_rad, yaw_rate, slip_rad, all of the centre of gravity.
`compat` is f1tenth_gym to the letter; `clean` is what the worlds drive with by default (docs/racing.md).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slipstream import _core
from slipstream.types import F64

Mode = Literal["clean", "compat"]


class Car(NamedTuple):
    """Size and limits of a car."""

    length_m: float
    width_m: float
    steer_max: float  # rad, to either side
    speed_min: float  # m/s
    speed_max: float
    accel_max: float  # m/s²
    wheelbase_m: float


def vehicles() -> tuple[str, ...]:
    """Names of the cars."""
    return tuple(_core.racing_vehicles())


def car(vehicle: str = "f1tenth") -> Car:
    """Size and limits of a car by name."""
    return Car(*_core.racing_vehicle(vehicle))


def derivative(state: ArrayLike, inputs: ArrayLike, vehicle: str = "f1tenth", mode: Mode = "clean") -> F64:
    """Time derivative of a state.

    Args:
        state: [7], as above.
        inputs: [2] steering rate in rad/s and acceleration in m/s², which are brought within the car's limits.
        vehicle: One of `vehicles()`.
        mode: clean or compat.

    Returns:
        [7], per second.
    """
    return _core.racing_derivative(_numbers(state), _numbers(inputs), vehicle, mode)


def simulate(state: ArrayLike, commands: ArrayLike, vehicle: str = "f1tenth", mode: Mode = "clean") -> F64:
    """Drive where there are no walls.

    Args:
        state: [7], as above.
        commands: [T, 2] steering angle in rad and speed in m/s, one for every 0.01 s.
        vehicle: One of `vehicles()`.
        mode: clean or compat.

    Returns:
        [T, 7], the state after each command.
    """
    return _core.racing_simulate(_numbers(state), _numbers(commands), vehicle, mode)


def overlap(pose_a: ArrayLike, pose_b: ArrayLike, length: float, width: float) -> NDArray[np.bool_]:
    """Whether two rectangles touch.

    Args:
        pose_a: [..., 3] x_m, y_m, yaw_rad of their centres.
        pose_b: The same of the others.
        length: Metres along the yaw.
        width: Metres across.

    Returns:
        bool [...].
    """
    a, b = np.broadcast_arrays(_numbers(pose_a), _numbers(pose_b))
    first, second = (np.ascontiguousarray(pose.reshape(-1, a.shape[-1])) for pose in (a, b))
    return _core.racing_overlap(first, second, length, width).astype(bool).reshape(a.shape[:-1])


def _numbers(values: ArrayLike) -> F64:
    return np.ascontiguousarray(values, dtype=np.float64)
