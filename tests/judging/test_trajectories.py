"""Trajectory logs as Parquet: what the world showed, ordered and paid, step by step."""

import numpy as np
import pytest
from pyarrow import parquet

from slipstream.config.load import load
from slipstream.judging.judge import judge, write_trajectories


@pytest.mark.parametrize("name", ["head_on", "time_trial_oval", "drmario_level_0", "probe_leaver"])
def test_every_world_is_logged_step_by_step(name, tmp_path):
    scenario = load(name, {"world.max_episode_steps": 40} if name in ("head_on", "time_trial_oval") else {})
    judgement = judge(scenario, None, 2, [1, 2], record=True)
    write_trajectories(tmp_path / "logs", scenario.world, judgement.spec, judgement.recorded)
    table = parquet.read_table(tmp_path / "logs" / "trajectories.parquet").to_pydict()
    spec, rows = judgement.spec, judgement.rows
    assert set(table["policy"]) == set(spec.scripts)
    assert set(table["episode"]) == {0, 1, 2, 3}  # two of each seed
    assert set(table["agent"]) == set(spec.agents)
    assert set(spec.frame_fields) <= set(table)
    where = np.array(table["policy"]) == rows[0].policy
    if not spec.has_durations:  # where decisions last, what is paid is discounted
        returns = np.array(table["reward"])[where].sum() / 4
        assert returns == pytest.approx(rows[0].figures["return"].estimate, abs=1e-4)
        parts = [np.array(table[f"reward_{part}"]) for part in spec.reward_parts]
        np.testing.assert_allclose(sum(parts) if parts else table["reward"], table["reward"], atol=1e-5)
    length = max(t for t, e, p in zip(table["step"], table["episode"], where, strict=True) if p and e == 3) + 1
    assert judgement.recorded[rows[0].policy][3].rewards.shape[0] == length
    times = {
        (e, s): t for e, s, t, p in zip(*(table[k] for k in ("episode", "step", "time_s")), where, strict=True) if p
    }
    last = judgement.recorded[rows[0].policy][0]
    assert times[0, 0] == pytest.approx(last.ticks[0] * spec.tick_seconds)


def test_only_worlds_with_a_log_format_get_csv_files(tmp_path):
    for name, expected in (("head_on", ["traj_ep_0000.csv", "traj_ep_0001.csv"]), ("probe_leaver", [])):
        scenario = load(name)
        judgement = judge(scenario, None, 2, record=True)
        written = write_trajectories(tmp_path / name, scenario.world, judgement.spec, judgement.recorded)
        assert sorted(path.name for path in written) == sorted(["trajectories.parquet", *expected])
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == sorted(p.name for p in written)
