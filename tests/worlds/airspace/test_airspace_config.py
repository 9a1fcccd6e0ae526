"""The schema people write and the struct the core reads say the same; nonsense is refused in one sentence."""

import typing

import numpy as np
import pytest
from airspace_scenes import aircraft, airspace, frozen
from pydantic import ValidationError

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds.airspace import config as schema
from slipstream.worlds.airspace import draw_tracks, propagate
from slipstream.worlds.airspace.build import build
from slipstream.worlds.vec_env import EnvOptions, to_native


def test_every_value_arrives_in_the_core():
    config = frozen("head_on", wind_speed_kt=12.5, neighbor_topk=2, team_share="equal", reach_reward=3.0)
    native = to_native(config, _core.AirspaceConfig())
    for name in schema.AirspaceConfig.model_fields.keys() - {"detect_alerts"}:  # which evaluations read
        value = getattr(config, name)
        if isinstance(value, (int, float)):
            assert getattr(native, name) == value, name
    assert native.team_share == "equal"
    for given, taken in zip(config.aircraft, native.aircraft, strict=True):
        assert all(getattr(taken, name) == getattr(given, name) for name in schema.AircraftConfig.model_fields)


def test_preset_fills_in_what_is_left_open():
    own = build(frozen("head_on", preset="legacy", observation="own_frame"), 1, EnvOptions()).spec
    legacy = build(frozen("head_on", preset="legacy"), 1, EnvOptions()).spec
    unified = build(frozen("head_on"), 1, EnvOptions()).spec
    assert own.obs == unified.obs != legacy.obs
    assert own.reward_parts == legacy.reward_parts != unified.reward_parts


@pytest.mark.parametrize(("changes", "is_ignored"), [({}, True), ({"heading_deadband_deg": 1.0}, False)])
def test_small_orders_are_ignored_by_preset_legacy_unless_a_deadband_is_given(changes, is_ignored):
    env = build(frozen("head_on", preset="legacy", heading_step_deg=20.0, **changes), 1, EnvOptions())
    env.reset()
    before = env.frame(0)[0, env.spec.frame_fields.index("heading_deg")]
    env.actions[:] = 0.1  # 2 degrees
    env.step()
    after = env.frame(0)[0, env.spec.frame_fields.index("heading_deg")]
    assert (abs((after - before + 180.0) % 360.0 - 180.0) < 0.5) == is_ignored


def test_schema_knows_the_aircraft_types_of_the_core():
    assert list(typing.get_args(schema.AircraftType)) == _core.airspace_types()


ONE = aircraft("A1", 52.0, 4.0, 0.0, (53.0, 4.0))


@pytest.mark.parametrize(
    ("crew", "changes"),
    [
        ([], {}),
        ([ONE, ONE], {}),
        ([ONE | {"type": "A330"}], {}),
        ([ONE | {"lat_deg": 91.0}], {}),
        ([ONE], {"separation_nm": 0.0}),
        ([ONE], {"position_jitter_nm": -1.0}),
        ([ONE], {"violation_entry_penalty": 25.0}),
        ([ONE], {"random_sector": {"num_aircraft": 4}}),
        ([ONE], {"seperation_nm": 5.0}),
    ],
)
def test_schema_refuses_nonsense(crew, changes):
    with pytest.raises(ValidationError):
        airspace(*crew, **changes)


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        (airspace(ONE | {"cas_kt": 400.0}), "'A1' .*cas_kt 400.* A320 .*131 and 316 kt"),
        (airspace(ONE, decision_s=2.5), r"decision_s 2\.5 .* 1 s"),
        (
            schema.AirspaceConfig.model_validate({"random_sector": {"num_aircraft": 32, "density_per_nm2": 0.1}}),
            r"random_sector: 32 .*0\.1 .*1\.97848 NM.* min_start_separation_nm 8",
        ),
    ],
)
def test_what_only_the_core_can_judge_is_refused_with_what_was_found(config, facts):
    with pytest.raises(ScenarioError, match=facts):
        build(config, 1, EnvOptions())


def test_propagate_refuses_unknown_types_and_wrong_shapes():
    state = [[52.0, 4.0, 0.0, 148.0]]
    with pytest.raises(ValueError, match="'A330'"):
        propagate(state, [[0.0, 250.0]], 1, aircraft_type="A330")
    with pytest.raises(ValueError, match=r"targets .*\(1, 3\).* 1 aircraft"):
        propagate(state, [[0.0, 250.0, 1.0]], 1)


def test_thirty_two_aircraft_fly_in_one_world():
    config = schema.AirspaceConfig.model_validate({"random_sector": {"num_aircraft": 32, "density_per_nm2": 0.002}})
    env = build(config, 2, EnvOptions())
    env.reset()
    for _ in range(20):
        env.act_scripted("mvp", range(32))
        env.step()
    assert env.obs["obs"].shape[:2] == (2, 32)
    assert np.isfinite(env.obs["obs"]).all()


def test_tracks_are_drawn_in_the_order_of_the_frame_fields(tmp_path):
    env = build(frozen("head_on"), 1, EnvOptions())
    env.reset()
    fields = list(env.spec.frame_fields)
    assert [fields[i] for i in (0, 1, 2, 5, 6, 7)] == [
        "lat_deg",
        "lon_deg",
        "heading_deg",
        "waypoint_lat_deg",
        "waypoint_lon_deg",
        "present",
    ]
    frames = [env.frame(0)]
    for _ in range(30):
        env.act_scripted("mvp", range(2))
        env.step()
        frames.append(env.frame(0))
    path = tmp_path / "tracks.png"
    draw_tracks(np.stack(frames), path, "head_on", 5.0)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
