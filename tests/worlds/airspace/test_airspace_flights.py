"""Trajectory logs with the published columns, and figures of collision risk."""

import csv
import io
import itertools
import math
import re

import numpy as np
import pytest
from airspace_scenes import frozen, scene

from slipstream.collect.episodes import play
from slipstream.collect.teams import Team
from slipstream.worlds.airspace import risk
from slipstream.worlds.airspace.alerts import Flight
from slipstream.worlds.airspace.build import build
from slipstream.worlds.airspace.flights import episode_page, flight_of, log_columns, trajectory_csv
from slipstream.worlds.vec_env import EnvOptions

PUBLISHED = [
    *(
        "episode_id",
        "step_idx",
        "sim_time_s",
        "agent_id",
        "lat_deg",
        "lon_deg",
        "alt_ft",
        "hdg_deg",
        "tas_kt",
        "cas_kt",
    ),
    *("action_hdg_delta_deg", "action_spd_delta_kt", "reward", "min_separation_nm", "conflict_flag", "collision_flag"),
    *("wp_dist_nm", "waypoint_reached", "waypoint_hits", "conflict_pairs_count", "dist_to_A0_nm", "dist_to_A1_nm"),
    *("dist_to_A2_nm", "dist_to_A3_nm", "reward_act_cost", "reward_progress", "reward_drift", "reward_time"),
    *("reward_violate_entry", "reward_violate_step", "reward_reach", "reward_terminal", "reward_total", "reward_team"),
    *("team_phi", "team_dphi", "gt_conflict", "predicted_alert", "tp", "fp", "fn", "tn"),
]


def record(config, script="mvp"):
    env = build(config, 1, EnvOptions(seed=1, autoreset=False, evaluation=True, reward_parts=True))
    team = Team("all", tuple(range(env.spec.num_agents)), script=script)
    return env.spec, play(env, [team], 1, seed=1, record=1).recorded[0]


def rows_of(config, script="mvp"):
    spec, played = record(config, script)
    return spec, played, list(csv.DictReader(io.StringIO(trajectory_csv(config, spec, played, 7))))


def test_the_columns_are_the_published_ones():
    config = scene("canonical_crossing", preset="legacy")
    spec, _, rows = rows_of(config)
    assert list(log_columns(spec)) == PUBLISHED == list(rows[0])
    spec, _, rows = rows_of(scene("canonical_crossing"))
    assert list(log_columns(spec)) == [*PUBLISHED, "reward_distance"] == list(rows[0])
    assert len(PUBLISHED) == 42


@pytest.mark.parametrize("preset", ["unified", "legacy"])
def test_rows_are_of_those_still_on_their_way_and_say_what_the_world_says(preset):
    config = frozen("canonical_crossing", preset=preset)
    spec, played, rows = rows_of(config, "noop")
    flight = flight_of(config, spec, played)
    assert len(rows) == flight.active[:-1].sum()
    assert {row["episode_id"] for row in rows} == {"7"}
    own = [row for row in rows if row["agent_id"] == "A2"]
    assert [row["waypoint_reached"] for row in own] == ["0"] * (len(own) - 1) + ["1"]
    start = 2.0 if preset == "legacy" else 0.0
    assert [float(row["sim_time_s"]) for row in own] == [start + 10.0 * (k + 1) for k in range(len(own))]
    for k, row in enumerate(own):
        assert row["dist_to_A2_nm"] == ""
        assert float(row["reward"]) == pytest.approx(played.rewards[k, 2])
        parts = [float(row[f"reward_{name}"]) for name in ("act_cost", "progress", "time", "violate_entry")]
        parts += [float(row[f"reward_{name}"]) for name in ("violate_step", "reach", "terminal")]
        parts += [float(row["reward_drift" if preset == "legacy" else "reward_distance"])]
        assert (row["reward_drift"] == "") == (row["reward_team"] == "") == (preset == "unified")
        assert sum(parts) == pytest.approx(float(row["reward_total"]), abs=1e-5)
        others = [float(row[f"dist_to_A{j}_nm"]) for j in (0, 1, 3) if row[f"dist_to_A{j}_nm"]]
        assert float(row["min_separation_nm"] or "inf") == min(others, default=math.inf)
        assert int(row["conflict_flag"]) == (min(others, default=math.inf) < 5.0)
    for row in rows:  # one of four, for the whole scene
        assert sum(int(row[name]) for name in ("tp", "fp", "fn", "tn")) == 1
        assert int(row["tp"]) == int(row["gt_conflict"]) * int(row["predicted_alert"])


def test_the_logged_team_potential_is_the_one_that_the_published_team_term_is_paid_by():
    config = frozen("head_on", preset="legacy", team_share="equal")
    _, _, rows = rows_of(config, "mvp")
    average, paid = 0.0, []
    for row in (row for row in rows if row["agent_id"] == "A1"):
        average = (1 - config.team_ema) * average + config.team_ema * float(row["team_dphi"])
        cut = min(max(average, -config.team_cap), config.team_cap)
        paid.append((config.team_coordination_weight * cut, float(row["reward_team"])))
    assert len(paid) > 10
    assert max(abs(logged) for _, logged in paid) > 1e-3
    assert [by_hand for by_hand, _ in paid] == pytest.approx([logged for _, logged in paid], abs=1e-6)


def test_the_team_potential_is_logged_where_it_is_not_paid_too():
    config = frozen("head_on")
    _, _, rows = rows_of(config, "noop")
    own = [row for row in rows if row["agent_id"] == "A1"]
    phi = [min(1.0, 0.5 * float(row["min_separation_nm"]) / 5.0) for row in own if row["min_separation_nm"]]
    assert [float(row["team_phi"]) for row in own[: len(phi)]] == pytest.approx(phi)
    assert min(phi) < 0.5
    changes = [0.99 * after - before for before, after in itertools.pairwise(phi)]
    assert [float(row["team_dphi"]) for row in own[1 : len(phi)]] == pytest.approx(changes)


def test_who_has_arrived_flies_on_in_legacy_but_orders_nothing_and_has_no_rows():
    config = frozen("parallel", preset="legacy")
    spec, played = record(config, "noop")
    flight = flight_of(config, spec, played._replace(actions=np.ones_like(played.actions)))
    assert flight.present.all()
    arrived = ~flight.active[:-1]
    assert 0 < arrived.sum() < arrived.size
    assert (flight.orders[arrived] == 0.0).all()
    assert (flight.orders[~arrived] == (18.0, 10.0)).all()
    rows = list(csv.DictReader(io.StringIO(trajectory_csv(config, spec, played, 0))))
    assert len(rows) == (~arrived).sum()
    assert [row["agent_id"] for row in rows if row["waypoint_reached"] == "1"] == ["A3", "A2", "A1"]


def test_orders_are_in_degrees_and_knots():
    _, played, rows = rows_of(scene("head_on"))
    assert float(rows[0]["action_hdg_delta_deg"]) == pytest.approx(18.0 * played.actions[0, 0, 0])
    assert float(rows[0]["action_spd_delta_kt"]) == pytest.approx(10.0 * played.actions[0, 0, 1])
    assert any(abs(float(row["action_hdg_delta_deg"])) > 3.0 for row in rows)


# --- collision risk ---


def test_the_risk_is_the_formula_worked_out_by_hand():
    assumed = risk.Assumptions()
    x, y, z = 37.6 / 1852, 35.8 / 1852, 11.8 / 1852
    across = 80 / (2 * y) + 1.5 / (2 * z)
    same = 2 * 100 * 10 / 480 * (20 / (2 * x) + across)
    opposite = 2 * 100 * 5 / 480 * (2 * 480 / (2 * x) + across)
    expected = 0.01 * y / 5 * 0.538 * x / 100 * (same + opposite)
    assert risk.collision_risk(0.01, assumed) == pytest.approx(expected, rel=1e-12)


def test_episodes_and_pair_time_are_counted_where_both_are_there():
    states = np.zeros((4, 2, 4))
    states[:, 1, 0] = [1.0, 4 / 60, 4 / 60, 1.0]  # 60, 4, 4, 60 NM north
    both = np.array([[1, 1], [1, 1], [1, 0], [1, 0]], np.bool_)
    near = Flight(states, both, both, np.zeros((2, 2)), np.zeros((3, 2, 2)), 10.0)
    states = states.copy()
    states[:, 1, 0] = 1.0
    told = risk.figures([near, near._replace(states=states)], 5.0)
    assert told["risk_p_y_episodes"] == 0.5
    assert told["risk_p_y_pair_time"] == 0.25  # one of the four samples with both
    assert told["risk_n_ay_episodes"] == pytest.approx(risk.collision_risk(0.5))
    assert told["risk_n_ay_episodes"] < told["risk_n_ay_episodes_high"] < risk.collision_risk(1.0)


def test_no_loss_in_a_hundred_episodes_is_no_proof_of_safety():
    apart = np.zeros((2, 2, 4))
    apart[:, 1, 0] = 1.0
    here = np.ones((2, 2), np.bool_)
    flight = Flight(apart, here, here, np.zeros((2, 2)), np.zeros((1, 2, 2)), 10.0)
    told = risk.figures([flight] * 100, 5.0)
    assert told["risk_n_ay_episodes"] == 0.0
    assert told["risk_n_ay_episodes_high"] == pytest.approx(risk.collision_risk(1 - 0.05 ** (1 / 100)))


# --- a page ---


def test_the_page_of_an_episode_stands_alone_and_names_everybody():
    config = scene("head_on")
    spec, played = record(config, "noop")
    page = episode_page(config, spec, played, "A < B </script>")
    assert "A &lt; B" in page
    assert page.count("</script>") == page.count("<script")  # the title ends none
    assert "A < B" not in page
    assert not re.search(r"https?:", page.replace("http://www.w3.org/2000/svg", ""))
    assert '"A1"' in page
    assert "Losses of separation" in page
