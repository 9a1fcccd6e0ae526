"""Numbers recorded from BlueSky, and from the published environment that ran on it."""

import numpy as np
import pytest
from airspace_scenes import FIVE, NINE, Episode, batch, frozen, golden

from slipstream.worlds.airspace import closest_approach, propagate, separation_nm, well_clear

GOLDEN = golden()
REFERENCE = GOLDEN[0]["reference_env"]


@pytest.mark.parametrize("data", GOLDEN, ids=["fixture", "all"][: len(GOLDEN)])
def test_flight_follows_bluesky_for_300_seconds(data):
    for episode in data["episodes"]:
        lat, lon, heading, tas, cas = (
            np.array(episode[key]) for key in ("lat_deg", "lon_deg", "hdg_deg", "tas_ms", "cas_ms")
        )
        targets = np.stack([episode["cmd_hdg_deg"], episode["cmd_cas_kt"]], axis=-1)
        state = np.stack([lat[0], lon[0], heading[0], tas[0]], axis=-1)
        for k, target in enumerate(targets, start=1):
            end = propagate(state, target, 10)[-1]
            state = end[:, :4]
            there = np.stack([lat[k], lon[k], heading[k], tas[k]], axis=-1)
            assert separation_nm(state, there).max() < 0.001
            turned = (end[:, 2] - heading[k] + 180.0) % 360.0 - 180.0
            assert np.abs(turned).max() < 0.02
            assert np.abs(end[:, 3] - tas[k]).max() < 0.05
            assert np.abs(end[:, 4] - cas[k]).max() < 0.05


@pytest.mark.parametrize("data", GOLDEN, ids=["fixture", "all"][: len(GOLDEN)])
def test_encounter_geometry_of_recorded_pairs(data):
    for case in data["cpa_cases"]:
        given, out = case["in"], case["out"]
        mps = 1852.0 / 3600.0  # knots here are NM per hour
        own, other = (
            [given[f"lat{i}_deg"], given[f"lon{i}_deg"], given[f"hdg{i}_deg"], given[f"spd{i}_kt"] * mps]
            for i in (1, 2)
        )
        free, clamped = closest_approach(own, other), closest_approach(own, other, horizon_s=120.0)
        clear = well_clear(own, other, given["dz_ft"])
        numbers = {
            "range_nm": free.range_nm,
            "range_haversine_nm": separation_nm(own, other),
            "tcpa_s": free.tcpa_s,
            "dcpa_nm": free.dcpa_nm,
            "tcpa_clamped_s": clamped.tcpa_s,
            "dcpa_clamped_nm": clamped.dcpa_nm,
            "hmd_nm": clear.miss_nm,
        }
        for name, value in numbers.items():
            assert float(value) == pytest.approx(out[name], rel=1e-9, abs=1e-9), name
        if out["taumod_s"] is None:
            assert np.isnan(clear.modified_tau_s)
        else:
            assert float(clear.modified_tau_s) == pytest.approx(out["taumod_s"], rel=1e-9, abs=1e-9)
        assert bool(clear.violated_horizontally) == out["wcv_horizontal"]
        assert bool(clear.violated) == out["wcv"]
        assert bool(free.range_nm < 5.0) == out["los_5nm"]
        assert bool(clamped.dcpa_nm < 5.0) == out["conflict_5nm_120s"]


@pytest.mark.parametrize("name", FIVE + NINE)
def test_legacy_preset_repeats_the_published_episode_without_actions(name):
    episode = Episode(frozen(name, preset="legacy"), "noop")
    recorded = REFERENCE["noop_episode"][name]
    least = np.array([frame[:, 8].min() for frame in episode.frames[1:]])  # what 10 s samples see
    assert episode.returns[0] == pytest.approx(REFERENCE["noop_returns"][name], abs=1e-2)
    assert episode.lengths[0] == recorded["decisions"]
    assert episode["reached"][0] == recorded["reached"]
    assert least.min() == pytest.approx(recorded["min_sep_nm_10s_samples"], abs=1e-3)
    assert np.count_nonzero(least < 5.0) == recorded["los_decisions"]


def test_legacy_preset_repeats_the_published_observations_and_rewards():
    reference = REFERENCE["head_on_constant_actions"]
    defaults = {"team_coordination_weight": 0.2, "team_ema": 0.001, "team_cap": 0.01}
    env = batch(frozen("head_on", preset="legacy", **defaults))
    assert env.reward_parts is not None
    block = env.spec.obs[0]
    for record in reference["records"]:
        if record["after"] != "reset":
            env.actions[0] = [reference["actions"][agent] for agent in env.spec.agents]
            env.step()
        for i, agent in enumerate(env.spec.agents):
            lat, lon, heading, tas = env.frame(0)[i, :4]
            state = record["state"][agent]
            assert [lat, lon] == pytest.approx([state["lat_deg"], state["lon_deg"]], abs=1e-6)
            assert (heading - state["hdg_deg"] + 180.0) % 360.0 == pytest.approx(180.0, abs=1e-3)
            assert tas / 0.514444 == pytest.approx(state["tas_kt"], abs=1e-2)
            seen = np.concatenate([np.atleast_1d(value) for value in record["obs"][agent].values()])
            assert len(seen) == len(block.features)
            np.testing.assert_allclose(env.obs[block.name][0, i], seen, atol=2e-4, err_msg=agent)
            if "reward" not in record:
                continue
            assert env.rewards[0, i] == pytest.approx(record["reward"][agent], abs=1e-5)
            for part, value in zip(env.spec.reward_parts, env.reward_parts[0, i], strict=True):
                assert value == pytest.approx(record["reward_parts"][agent][part], abs=2e-6), part
