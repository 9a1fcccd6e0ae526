"""Rule-following drivers get around, and their lap times are what physics and the published ones say."""

import numpy as np
import pytest

from slipstream.errors import ScenarioError
from slipstream.worlds import racing
from slipstream.worlds.racing import FollowGap, Map, PurePursuit


@pytest.mark.parametrize("mode", ["clean", "compat"])
@pytest.mark.parametrize("seed", [1, 5, 7, 13])
def test_both_drivers_finish_laps_of_circuits_and_the_raceline_is_faster(seed, mode):
    track = racing.circuit(seed)
    line = racing.raceline(track)
    gap = racing.drive(track, FollowGap(), mode=mode, laps=2)
    pursuit = racing.drive(track, PurePursuit(), line, mode=mode, laps=2)
    for driven in (gap, pursuit):
        assert not driven.crashed
        assert len(driven.lap_s) == 2
        assert driven.progress_m == pytest.approx(2 * track.length_m, abs=0.2)
        assert driven.lap_s[1] < driven.lap_s[0]  # the first one began at rest
    assert pursuit.lap_s[1] < gap.lap_s[1]
    assert pursuit.lap_s[1] > line.lap_s  # nobody is faster than the line's own speeds


def test_a_straight_road_is_driven_in_the_time_its_speed_takes():
    driven = racing.drive(racing.corridor(60.0), FollowGap(fast_mps=4.0), start_s=2.0)
    assert driven.crashed  # into the wall at its end
    assert driven.progress_m == pytest.approx(58.0, abs=0.5)
    way = driven.path[driven.path[:, 0] < 50.0]
    assert np.abs(way[:, 1]).max() < 0.05
    assert 0.04 * len(way) == pytest.approx(48.0 / 4.0, rel=0.05)


def test_a_driver_who_does_not_steer_hits_the_wall():
    driven = racing.drive(racing.oval(), FollowGap(gain=0.0))
    assert driven.crashed
    assert driven.lap_s == ()
    assert 8.0 < driven.progress_m < 20.0  # the end of the straight is at 10 m


def test_time_runs_out():
    driven = racing.drive(racing.oval(), FollowGap(), limit_s=1.0)
    assert not driven.crashed
    assert driven.lap_s == ()
    assert len(driven.path) == 26  # every 0.04 s, and the end


def test_a_slower_share_takes_longer():
    track = racing.oval()
    line = racing.raceline(track)
    laps = [racing.drive(track, PurePursuit(share=share), line, laps=2).lap_s[1] for share in (0.5, 0.7, 0.9)]
    assert laps == sorted(laps, reverse=True)
    assert laps[0] / laps[2] == pytest.approx(0.9 / 0.5, rel=0.1)


def test_drivers_that_make_no_sense_are_refused():
    with pytest.raises(ScenarioError, match=r"PurePursuit .*raceline\(track\)"):
        racing.drive(racing.oval(), PurePursuit())
    with pytest.raises(ScenarioError, match=r"grid_centerline\.csv"):
        racing.drive(Map.from_grid(np.zeros((40, 40)), 0.1), FollowGap())
    with pytest.raises(ValueError, match="laps is 0"):
        racing.drive(racing.oval(), FollowGap(), laps=0)


@pytest.mark.parametrize(("name", "gap_s", "pursuit_s"), [("aut", 19.10, 16.79), ("mco", 34.99, 28.08)])
def test_lap_times_on_real_tracks_are_near_the_published_ones(golden, name, gap_s, pursuit_s):
    """Follow-the-gap at 5 m/s and pure pursuit of a raceline at 8 m/s, 25 decisions a second, compat physics."""
    if not (golden / "maps").is_dir():
        pytest.skip("the golden folder has no maps")
    track = Map.load(golden / "maps" / f"{name}.yaml")
    gap = racing.drive(track, FollowGap(), mode="compat")
    pursuit = racing.drive(track, PurePursuit(), racing.raceline(track), mode="compat")
    assert not gap.crashed
    assert not pursuit.crashed
    assert gap.lap_s[0] == pytest.approx(gap_s, rel=0.1)
    assert pursuit.lap_s[0] == pytest.approx(pursuit_s, rel=0.1)
