"""How cars move, against f1tenth_gym's recorded numbers and against what must hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from racing_tracks import golden_numbers

from slipstream.worlds import racing


@pytest.mark.parametrize("numbers", golden_numbers())
def test_derivatives_in_compat_are_those_of_f1tenth_gym(numbers):
    for case in numbers["derivatives"]:
        ours = racing.derivative(case["state"], case["input"], mode="compat")
        np.testing.assert_allclose(ours, case["derivative"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("numbers", golden_numbers())
def test_trajectories_in_compat_are_those_of_f1tenth_gym(numbers):
    for case in numbers["trajectories"]:
        states = np.array(case["states"])
        ours = racing.simulate(states[0], case["commands_steer_speed"], mode="compat")
        difference = ours - states[1:]
        difference[:, 4] = (difference[:, 4] + np.pi) % (2 * np.pi) - np.pi
        assert np.abs(difference).max() < 1e-9


def test_the_worked_examples_of_the_reference_come_out_in_compat():
    fast = racing.derivative([0, 0, 0.1, 5, 0.2, 0.5, 0.02], [0.5, 1], mode="compat")
    np.testing.assert_allclose(
        fast, [4.879487246653, 1.091148115404, 0.5, 1, 0.5, 20.569492673559, -0.207088028286], rtol=1e-11
    )
    slow = racing.derivative([0, 0, 0.1, 0.3, 0.2, 0, 0], [0.5, 1], mode="compat")
    np.testing.assert_allclose(
        slow, [0.294019973352, 0.059600799239, 0.5, 1, 0.091158090932, 0.762703600996, 0], rtol=1e-11
    )
    after = racing.simulate(np.zeros(7), np.tile([0.1, 4.0], (200, 1)), mode="compat")[-1]
    assert after[3] == pytest.approx(3.999663301839, rel=1e-9)  # the rest of it was recorded without steering delay


@pytest.mark.parametrize("vehicle", racing.vehicles())
def test_a_slow_car_turns_about_one_point(vehicle):
    """Rolling wheels: the centre of gravity goes round a circle whose radius geometry gives."""
    about = racing.car(vehicle)
    steer = 0.5 * about.steer_max
    path = racing.simulate(np.zeros(7), np.tile([steer, 0.4], (4000, 1)), vehicle)
    middle, tail = path[2000], path[2000:]
    assert middle[2] == pytest.approx(steer, abs=1e-6)
    speed, yaw_rate = tail[:, 3].mean(), tail[:, 5].mean()
    rear = {"f1tenth": 0.17145, "limo": 0.17145, "f1fifth": 0.2585, "fullscale": 1.50876}[vehicle]
    radius = np.hypot(about.wheelbase_m / np.tan(steer), rear)
    assert speed / yaw_rate == pytest.approx(radius, rel=1e-4)
    # And it stays on that circle: chord of a known angle.
    angle = yaw_rate * 0.5
    chord = np.hypot(*(tail[50, :2] - tail[0, :2]))
    assert chord == pytest.approx(2 * radius * abs(np.sin(angle / 2)), rel=1e-3)


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(racing.vehicles()),
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-60, 60)), min_size=1, max_size=20),
)
def test_a_clean_car_keeps_within_its_limits_whatever_it_is_told(vehicle, commands):
    about = racing.car(vehicle)
    path = racing.simulate(np.zeros(7), np.repeat(commands, 10, axis=0), vehicle)
    assert np.isfinite(path).all()
    assert np.abs(path[:, 2]).max() <= about.steer_max
    step = about.accel_max * 0.01
    assert path[:, 3].min() >= about.speed_min - step
    assert path[:, 3].max() <= about.speed_max + step
    assert (path[:, 4] >= 0).all()
    assert (path[:, 4] <= 2 * np.pi).all()


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 7.0), st.floats(-0.3, 0.3))
def test_left_and_right_are_alike(speed, steer):
    commands = np.tile([steer, speed], (150, 1))
    left = racing.simulate(np.zeros(7), commands)
    right = racing.simulate(np.zeros(7), commands * [-1, 1])
    np.testing.assert_allclose(left[:, [0, 3]], right[:, [0, 3]], atol=1e-9)
    np.testing.assert_allclose(left[:, [1, 2, 5, 6]], -right[:, [1, 2, 5, 6]], atol=1e-9)


def test_the_clean_servo_settles_where_compat_chatters():
    commands = np.tile([0.1, 2.0], (100, 1))
    clean = racing.simulate(np.zeros(7), commands)[50:, 2]
    compat = racing.simulate(np.zeros(7), commands, mode="compat")[50:, 2]
    assert np.ptp(clean) < 1e-3
    assert np.ptp(compat) > 0.03  # one step of full rate, back and forth


def test_wheels_that_roll_leave_no_slip_behind():
    """Braking out of a fast corner ends in the slip angle that the steering alone gives."""
    fast = racing.simulate(np.zeros(7), np.tile([0.2, 6.0], (200, 1)))[-1]
    slow = racing.simulate(fast, np.tile([0.2, 0.3], (300, 1)))[-1]
    assert slow[3] < 0.4
    assert slow[6] == pytest.approx(np.arctan(np.tan(slow[2]) * 0.17145 / 0.3302), abs=1e-9)


@pytest.mark.parametrize("numbers", golden_numbers())
def test_rectangles_touch_where_exact_geometry_says_so(numbers):
    about = numbers["rectangles"]
    for pair in about["pairs"]:
        if abs(pair["margin"]) > 1e-6:
            assert bool(racing.overlap(pair["a"], pair["b"], about["length"], about["width"])) == pair["overlap"]


@given(st.tuples(*[st.floats(-1, 1)] * 2, st.floats(-7, 7)), st.tuples(*[st.floats(-1, 1)] * 2, st.floats(-7, 7)))
def test_touching_is_mutual_and_agrees_with_points_inside(a, b):
    """If a point of one is inside the other they touch; and what touches has such a point nearby."""
    touching = bool(racing.overlap(a, b, 0.58, 0.31))
    assert touching == bool(racing.overlap(b, a, 0.58, 0.31))
    along, across = np.meshgrid(np.linspace(-0.29, 0.29, 30), np.linspace(-0.155, 0.155, 16))
    for own, other in ((a, b), (b, a)):
        x = own[0] + along * np.cos(own[2]) - across * np.sin(own[2]) - other[0]
        y = own[1] + along * np.sin(own[2]) + across * np.cos(own[2]) - other[1]
        inside = (np.abs(x * np.cos(other[2]) + y * np.sin(other[2])) < 0.29) & (
            np.abs(y * np.cos(other[2]) - x * np.sin(other[2])) < 0.155
        )
        if inside.any():
            assert touching


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: racing.derivative(np.zeros(6), np.zeros(2)), "6 numbers"),
        (lambda: racing.simulate(np.zeros(7), np.zeros((3, 3))), "commands .*3 numbers"),
        (lambda: racing.simulate(np.zeros(7), np.zeros((3, 2)), "f1twelfth"), "'f1twelfth'.* f1tenth, limo"),
        (lambda: racing.simulate(np.zeros(7), np.zeros((3, 2)), mode="dirty"), "'dirty' .*clean, compat"),  # type: ignore[arg-type]
        (lambda: racing.overlap(np.zeros(3), np.zeros(3), 0.5, -0.3), r"length is 0\.5.* width -0\.3"),
    ],
)
def test_what_makes_no_sense_is_refused(call, facts):
    with pytest.raises(ValueError, match=facts):
        call()
