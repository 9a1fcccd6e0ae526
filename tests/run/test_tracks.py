"""Recorded episodes as viewers read them: the same states, the same ground, in files of bounded size."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from slipstream.config.load import load
from slipstream.data.run_folder import MAX_RECORD_BYTES, Track, read_tracks
from slipstream.run.folder import write_track
from slipstream.run.parts import episode_files as tracks
from slipstream.run.parts.episode_files import as_ground, as_track
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import Backdrop


def cells(ground):
    """The slow way back: one cell after another."""
    flat = []
    for k, length in enumerate(ground.lengths):
        flat += [k % 2] * length
    return np.array(flat, np.uint8).reshape(ground.rows, ground.columns)


@given(arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 1)))
def test_the_ground_can_be_laid_again_from_its_lengths(occupied):
    ground = as_ground(Backdrop(occupied, 0.1, (1.0, 2.0, 0.3)))
    assert (ground.rows, ground.columns) == occupied.shape
    assert ground.origin == (1.0, 2.0, 0.3)
    np.testing.assert_array_equal(cells(ground), occupied)


@pytest.mark.parametrize("scenario", ["time_trial_random", "gaplock_ppo"])
def test_the_ground_of_a_real_track_is_small(scenario):
    worlds = make_worlds(load(scenario).world, 1)
    worlds.reset()
    backdrop = worlds.backdrop(0)
    ground = as_ground(backdrop)
    worlds.close()
    np.testing.assert_array_equal(cells(ground), backdrop.occupied != 0)
    assert len(msgspec.json.encode(ground)) < 10_000


def test_an_episode_keeps_its_states_and_its_ground(tmp_path):
    worlds = make_worlds(load("head_to_head").world, 1)
    worlds.reset()
    frames = np.stack([worlds.frame(0)] * 3)
    track = as_track(worlds.spec, 4, 100, frames, worlds.backdrop(0))
    (tmp_path / "frames").mkdir()
    write_track(tmp_path, track, keep=50)
    (found,) = read_tracks(tmp_path)
    assert found == track
    assert (found.index, found.timesteps_total, found.tick_seconds) == (4, 100, worlds.spec.tick_seconds)
    np.testing.assert_allclose(np.array(found.states, float), frames, atol=5e-7)
    worlds.close()


def test_an_episode_too_long_for_its_file_keeps_every_nth_state_at_its_time(monkeypatch):
    monkeypatch.setattr(tracks, "MOST_VALUES", 100)
    worlds = make_worlds(load("head_on").world, 1)
    spec = worlds.spec
    worlds.close()
    frames = np.arange(30.0)[:, None, None] * np.ones((1, spec.num_agents, len(spec.frame_fields)))  # 540 values
    track = as_track(spec, 0, 0, frames, None)
    assert [state[0][0] for state in track.states] == [0, 6, 12, 18, 24]
    assert track.tick_seconds == 6 * spec.tick_seconds


def test_the_longest_episode_that_is_kept_whole_can_be_read_again():
    longest = -123456.654321
    assert (len(str(longest)) + 1) * tracks.MOST_VALUES < MAX_RECORD_BYTES


def test_files_from_before_there_was_a_ground_are_still_read():
    old = b'{"index":1,"timesteps_total":2,"fields":["x"],"agents":["a"],"tick_seconds":0.1,"states":[[[1.0]]]}'
    assert msgspec.json.decode(old, type=Track).backdrop is None
