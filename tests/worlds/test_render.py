"""Pictures through the adapters, and as GIFs."""

import io
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from native import native_worlds
from pettingzoo.test import parallel_api_test
from PIL import Image

from slipstream.config.load import load
from slipstream.draw.canvas import Canvas, View, round_length
from slipstream.errors import WorldContractError
from slipstream.worlds.film import HOLD_S, MOST_PICTURES, gif, pacing, render_metadata, timing
from slipstream.worlds.gymnasium_env import SlipstreamEnv, SlipstreamVectorEnv, gymnasium_id
from slipstream.worlds.pettingzoo_env import SlipstreamParallelEnv
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions
from slipstream.worlds.world import tools_of

SHOWN = {"head_on": 10, "horizontal_cr": 10, "time_trial_oval": 25}  # and pictures a second
BOTH = pytest.mark.parametrize("make", [SlipstreamEnv, SlipstreamParallelEnv], ids=["gymnasium", "pettingzoo"])


def is_picture(image) -> bool:
    return image.dtype == np.uint8 and image.shape == (480, 640, 3) and len(np.unique(image)) > 10


# Adapters


@pytest.mark.parametrize("name", SHOWN)
@BOTH
def test_a_world_with_a_picture_shows_it_and_shows_what_changed(make, name):
    env = make(name, render_mode="rgb_array")
    assert env.render_mode == "rgb_array"
    assert env.metadata["render_modes"] == ["rgb_array"]
    assert env.metadata["render_fps"] == SHOWN[name]
    env.reset(seed=1)
    first = env.render()
    assert is_picture(first)
    assert first.tobytes() == env.render().tobytes()
    step(env)
    second = env.render()
    assert is_picture(second)
    assert (second != first).any()
    env.reset(seed=1)
    assert env.render().tobytes() == first.tobytes()


def make_renderer(config):
    return tools_of(config.kind).drawings.renderer(config)


def step(env) -> None:
    if isinstance(env, SlipstreamEnv):
        env.step(np.full(env.action_space.shape, 0.5, np.float32))
    else:
        env.step({agent: np.full(env.action_space(agent).shape, 0.5, np.float32) for agent in env.agents})


def test_every_native_world_but_the_probes_has_a_picture():
    for name, config in native_worlds().items():
        assert (tools_of(config.kind).drawings.renderer is not None) == (config.kind != "probe"), name
        modes = SlipstreamParallelEnv(config).metadata["render_modes"]
        assert modes == ([] if config.kind == "probe" else ["rgb_array"]), name


@BOTH
def test_modes_that_do_not_exist_are_refused_with_those_that_do(make):
    with pytest.raises(WorldContractError, match=r"'rgb_aray'.*'rgb_array'"):
        make("head_on", render_mode="rgb_aray")
    with pytest.raises(WorldContractError, match="'rgb_array'"):
        make("probe_target", render_mode="rgb_array")


@BOTH
def test_without_a_mode_nothing_is_shown_and_a_warning_says_why(make):
    env = make("head_on")
    assert env.render_mode is None
    env.reset(seed=0)
    with pytest.warns(UserWarning, match='render_mode="rgb_array"'):
        assert env.render() is None


@BOTH
def test_there_is_nothing_to_show_before_a_reset(make):
    with pytest.raises(ResetNeeded, match="render"):
        make("head_on", render_mode="rgb_array").render()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_batch_shows_what_its_environments_would_show_one_by_one(mode):
    kwargs = {"render_mode": "rgb_array", "max_episode_steps": 3}
    ours = SlipstreamVectorEnv("time_trial_random", 2, autoreset_mode=mode, **kwargs)
    theirs = SyncVectorEnv([lambda: SlipstreamEnv("time_trial_random", **kwargs)] * 2, autoreset_mode=mode)
    assert (ours.render_mode, ours.metadata) == (theirs.render_mode, theirs.metadata)
    for env in (ours, theirs):
        env.reset(seed=4)
    for _ in range(5):
        mine, other = ours.render(), theirs.render()
        assert isinstance(mine, tuple)
        assert [a.tobytes() for a in mine] == [b.tobytes() for b in other]
        ended = [env.step(np.zeros((2, 2), np.float32))[3] for env in (ours, theirs)]
        if mode is AutoresetMode.DISABLED and ended[0].any():
            for env in (ours, theirs):
                env.reset(options={"reset_mask": ended[0].copy()})
    assert (mine[0] != mine[1]).any()


def test_a_batch_without_a_mode_shows_nothing():
    env = SlipstreamVectorEnv("head_on", 2)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match='render_mode="rgb_array"'):
        assert env.render() is None
    assert SlipstreamVectorEnv("probe_target", 2).metadata["render_modes"] == []


@pytest.mark.parametrize("name", SHOWN)
def test_gymnasiums_checker_accepts_what_is_rendered(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(gymnasium_id(name), render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("name", SHOWN)
def test_pettingzoos_checker_accepts_worlds_that_render(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = SlipstreamParallelEnv(name, render_mode="rgb_array")
        parallel_api_test(env, num_cycles=50)
        assert is_picture(env.render())


def test_gymnasium_and_pettingzoo_show_the_same():
    images = []
    for make in (SlipstreamEnv, SlipstreamParallelEnv):
        env = make("time_trial_oval", render_mode="rgb_array")
        env.reset(seed=6)
        step(env)
        images.append(env.render().tobytes())
    assert images[0] == images[1]


# GIFs


@pytest.mark.parametrize(
    ("frames", "tick_s", "shown", "seconds"),
    [
        (1, 10.0, [0], 0.1),
        (3, 10.0, [0, 1, 2], 0.1),  # sped up: ten decisions of 10 s a second
        (4, 0.04, [0, 1, 2, 3], 0.04),  # true time
        (6, 0.01, [0, 2, 4, 5], 0.02),  # true time; no viewer shows a hundred a second
        (300, 0.04, list(range(300)), 0.04),
        (301, 0.04, list(range(0, 301, 2)), 0.08),
        (1001, 0.04, [*range(0, 1001, 4)], 0.1),  # 1.6 times as fast as it was
    ],
)
def test_which_frames_a_gif_shows_and_for_how_long(frames, tick_s, shown, seconds):
    assert timing(frames, tick_s) == (shown, pytest.approx(seconds))


def test_no_gif_has_too_many_pictures_and_all_have_the_first_and_last_frame():
    for count in (2, 299, 300, 301, 599, 600, 601, 4000, 12345):
        shown, _ = timing(count, 0.04)
        assert len(shown) <= MOST_PICTURES
        assert (shown[0], shown[-1]) == (0, count - 1)


def test_a_gif_has_a_picture_per_frame_and_plays_at_the_right_speed():
    env = make_worlds(load("time_trial_oval").world, 1, EnvOptions(autoreset=False))
    env.reset()
    frames, backdrop = [env.frame(0)], env.backdrop(0)
    for _ in range(7):
        env.act_scripted("pure_pursuit", [0])
        env.step()
        frames.append(env.frame(0))
    render = make_renderer(load("time_trial_oval").world)
    data = gif(render, env.spec, np.stack(frames), backdrop, (160, 120))
    assert data == gif(render, env.spec, np.stack(frames), backdrop, (160, 120))
    with Image.open(io.BytesIO(data)) as film:
        assert (film.format, film.size, film.n_frames, film.info["loop"]) == ("GIF", (160, 120), 8, 0)
        durations = []
        for i in range(film.n_frames):
            film.seek(i)
            durations.append(film.info["duration"])
            drawn = render(env.spec, np.stack(frames), backdrop, (160, 120), at=i)
            assert np.abs(np.asarray(film.convert("RGB"), int) - drawn).mean() < 3  # colours of a palette
    assert durations == [40] * 7 + [1000 * HOLD_S]


@pytest.mark.parametrize(
    ("at_s", "shown", "each"),
    [
        ([0.0], [0], []),
        ([0.0, 0.5, 2.0], [0, 1, 2], [0.5, 1.5]),  # as long as they lasted
        ([0.0, 30.0, 120.0], [0, 1, 2], [7.5, 22.5]),  # four times as fast
        ([0.0, 0.01, 0.02, 0.03, 0.04], [0, 2, 4], [0.02, 0.02]),
        ([0.0, 0.0, 1.0], [0, 1, 2], [0.02, 1.0]),
    ],
)
def test_pictures_of_decisions_are_shown_as_long_as_the_decisions_lasted(at_s, shown, each):
    found, seconds = pacing(np.array(at_s))
    assert found == shown
    assert seconds == pytest.approx(each)


def test_a_game_of_pills_takes_its_time_in_a_gif_and_in_videos():
    world = load("drmario_level_0").world
    env = make_worlds(world, 1, EnvOptions(autoreset=False))
    env.reset()
    frames = [env.frame(0)]
    for _ in range(4):
        env.act_scripted("greedy", [0])
        env.step()
        frames.append(env.frame(0))
    data = gif(make_renderer(world), env.spec, np.stack(frames), None, (160, 120))
    lasted_s = frames[-1][0, env.spec.frame_fields.index("frames")] * env.spec.tick_seconds
    with Image.open(io.BytesIO(data)) as film:
        durations = [film.info["duration"]]
        for i in range(1, film.n_frames):
            film.seek(i)
            durations.append(film.info["duration"])
    assert sum(durations[:-1]) / 1000 == pytest.approx(lasted_s, abs=0.05)
    assert render_metadata(world, env.spec)["render_fps"] < 10


def test_every_word_beside_a_bottle_has_a_line_of_its_own_and_a_number_has_a_name(monkeypatch):
    said, text = [], Canvas.text
    monkeypatch.setattr(
        Canvas, "text", lambda self, at, words, *rest: said.append(words) or text(self, at, words, *rest)
    )
    world = load("drmario_level_0").world
    env = make_worlds(world, 1, EnvOptions(autoreset=False))
    env.reset()
    image = make_renderer(world)(env.spec, env.frame(0)[None], None)[:, 372:].astype(int)
    inked = np.abs(image - image[0, -1]).sum(2).max(1) > 60
    begin, end = (np.flatnonzero(np.diff(inked.astype(int)) == change) for change in (1, -1))
    assert len(begin) == len(("name", "next", "the next pill", "level", "viruses", "pills", "seconds", "score"))
    assert (begin[1:] - end[:-1]).min() >= 4  # pixels
    assert not [words for words in said if words.isdecimal()]


# The canvas


def test_a_view_fits_its_rectangle_into_the_box_and_has_y_up():
    view = View.fit((0, 0), (10, 2), (0, 20, 100, 80))
    np.testing.assert_allclose(view.pixels([(0, 0), (10, 2), (5, 1)]), [(0, 60), (100, 40), (50, 50)])


@pytest.mark.parametrize(
    ("most", "length"), [(1.0, 1.0), (1.9, 1.0), (4.9, 2.0), (73.0, 50.0), (0.3, 0.2), (10.0, 10.0)]
)
def test_scale_bars_have_round_lengths(most, length):
    assert round_length(most) == pytest.approx(length)
