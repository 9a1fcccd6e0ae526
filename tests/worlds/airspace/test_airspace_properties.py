"""What must hold for any geometry and any action."""

import numpy as np
from airspace_scenes import aircraft, airspace, batch, scene
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slipstream.worlds.airspace import closest_approach, propagate, separation_nm

angles = st.floats(-360, 360)
offsets = st.floats(-0.4, 0.4)
states = st.tuples(st.floats(51, 53), st.floats(3, 5), angles, st.floats(90, 180)).map(list)


@given(states, angles, st.floats(50, 500))
@settings(max_examples=50, deadline=None)
def test_headings_wrap_and_speeds_stay_in_the_envelope(state, heading, cas_kt):
    track = propagate([state], [[heading, cas_kt]], 300)
    assert np.isfinite(track).all()
    assert (track[..., 2] >= 0).all()
    assert (track[..., 2] < 360).all()
    assert 67.0 - 1e-6 <= track[-1, 0, 4] <= 163.0 + 1e-6
    turned = abs((track[-1, 0, 2] - heading + 180) % 360 - 180)
    assert turned < 1e-9, "five minutes are enough for any turn"


@given(states, states)
@settings(max_examples=100, deadline=None)
def test_separation_is_symmetric_and_closest_approach_is_closest(own, other):
    assert separation_nm(own, other) == separation_nm(other, own)
    found = closest_approach(own, other, horizon_s=600.0)
    back = closest_approach(other, own, horizon_s=600.0)
    np.testing.assert_allclose([*found], [*back], rtol=1e-9, atol=1e-9)
    assert found.dcpa_nm <= found.range_nm + 1e-12
    assert 0.0 <= found.tcpa_s <= 600.0


def test_geometry_is_vectorised_over_leading_dimensions():
    rng = np.random.default_rng(0)
    own = np.stack(
        [rng.uniform(51, 53, (3, 1)), rng.uniform(3, 5, (3, 1)), rng.uniform(0, 360, (3, 1)), np.full((3, 1), 148.0)],
        -1,
    )
    other = np.stack(
        [rng.uniform(51, 53, (1, 4)), rng.uniform(3, 5, (1, 4)), rng.uniform(0, 360, (1, 4)), np.full((1, 4), 130.0)],
        -1,
    )
    table = closest_approach(own, other)
    assert table.range_nm.shape == (3, 4)
    assert table.dcpa_nm[2, 1] == closest_approach(own[2, 0], other[0, 1]).dcpa_nm


@given(st.integers(0, 2**31), st.sampled_from(["converging", "random_sector", "merge_4all"]))
@settings(max_examples=12, deadline=None)
def test_observations_are_finite_and_bounded_for_random_actions(seed, name):
    for observation in ("own_frame", "legacy"):
        env = batch(scene(name, observation=observation), num_worlds=4, seed=seed)
        block = env.spec.obs[0]
        rng = np.random.default_rng(seed)
        held = rng.uniform(-1.5, 1.5, env.actions.shape)
        for step in range(150):
            if step % 5 == 0:
                held = rng.uniform(-1.5, 1.5, env.actions.shape)
            env.actions[...] = held
            env.step()
            for values in (env.obs["obs"], env.final_obs["obs"], env.state):
                assert np.isfinite(values).all()
            assert (env.obs["obs"] >= block.low).all()
            assert (env.obs["obs"] <= block.high).all()
            assert np.isfinite(env.rewards).all()


# --- turning the whole scene ---


def axes(lat_deg, lon_deg):
    """Unit vectors up, east and north at a point of the sphere."""
    lat, lon = np.radians(lat_deg), np.radians(lon_deg)
    up = np.array([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
    east = np.array([-np.sin(lon), np.cos(lon), 0.0])
    return up, east, np.cross(up, east)


def turn(vector, about, angle_deg):
    """Rodrigues' formula."""
    c, s = np.cos(np.radians(angle_deg)), np.sin(np.radians(angle_deg))
    return c * vector + s * np.cross(about, vector) + (1 - c) * (about @ vector) * about


def turned(craft, angle_deg, center=(52.0, 4.0)):
    """The same aircraft after the sphere was turned about the scene's centre."""
    about = axes(*center)[0]

    def point(lat, lon):
        x, y, z = turn(axes(lat, lon)[0], about, angle_deg)
        return float(np.degrees(np.arcsin(z))), float(np.degrees(np.arctan2(y, x)))

    _, east, north = axes(craft["lat_deg"], craft["lon_deg"])
    heading = np.radians(craft["heading_deg"])
    nose = turn(np.sin(heading) * east + np.cos(heading) * north, about, angle_deg)
    lat, lon = point(craft["lat_deg"], craft["lon_deg"])
    _, east, north = axes(lat, lon)
    course = float(np.degrees(np.arctan2(nose @ east, nose @ north)))
    to = point(craft["waypoint_lat_deg"], craft["waypoint_lon_deg"])
    return craft | aircraft(craft["id"], lat, lon, course, to)


crews = st.lists(
    st.tuples(offsets, offsets, angles, offsets, offsets, st.floats(150, 300)), min_size=3, max_size=3
).map(
    lambda rows: [
        aircraft(f"A{i}", 52 + a, 4 + b, h, (52 + c, 4 + d), cas_kt=v) for i, (a, b, h, c, d, v) in enumerate(rows)
    ]
)


@given(crews, st.floats(0, 360))
@settings(max_examples=60, deadline=None)
def test_own_frame_observation_does_not_change_when_the_scene_is_turned(crew, angle_deg):
    here, there = batch(airspace(*crew)), batch(airspace(*(turned(craft, angle_deg) for craft in crew)))
    positions = here.frame(0)[:, :4]
    gaps = np.sort(separation_nm(positions[:, None], positions[None]), axis=1)[:, 1:]
    assume((gaps > 0.1).all() and (np.diff(gaps, axis=1) > 0.01).all())  # who is nearest is not in doubt
    to = np.concatenate([here.frame(0)[:, 5:7], np.zeros((3, 2))], axis=1)
    assume((separation_nm(positions, to) > 0.1).all())
    np.testing.assert_allclose(here.obs["obs"], there.obs["obs"], atol=1e-4)
    np.testing.assert_allclose(here.potential, there.potential, atol=1e-4)


def test_own_frame_sees_right_as_right_and_ahead_as_ahead():
    # Own flies east; one aircraft lies 6 NM south of it (to its right), another 12 NM east (ahead), flying at it.
    cos = np.cos(np.radians(52.0))
    own = aircraft("A1", 52.0, 4.0, 90.0, (52.0, 5.0))
    right = aircraft("A2", 52.0 - 0.1, 4.0, 90.0, (52.0, 5.0))
    ahead = aircraft("A3", 52.0, 4.0 + 0.2 / cos, 270.0, (52.0, 3.0))
    env = batch(airspace(own, right, ahead))
    seen = dict(zip(env.spec.obs[0].features, env.obs["obs"][0, 0], strict=True))
    assert seen["neighbor1_right"] * 20 == np.float32(seen["neighbor1_distance"] * 20)
    np.testing.assert_allclose(seen["neighbor1_right"] * 20, 6.0, atol=0.01)
    np.testing.assert_allclose(seen["neighbor1_forward"], 0.0, atol=0.002)
    np.testing.assert_allclose(seen["neighbor2_forward"] * 20, 12.0, atol=0.02)
    np.testing.assert_allclose(seen["neighbor2_closing"] * 300, 2 * 148.5, atol=0.5)
    np.testing.assert_allclose(seen["neighbor2_cpa_time"] * 300, 12.0 / (2 * 0.0802), atol=0.5)
    assert abs(seen["neighbor2_cpa_distance"]) < 0.02
    assert (seen["neighbor1_present"], seen["neighbor2_present"], seen["neighbor3_present"]) == (1, 1, 0)
    np.testing.assert_allclose([seen["waypoint_cos"], seen["waypoint_sin"]], [1.0, 0.0], atol=0.01)
