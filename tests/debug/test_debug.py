"""The loop under a person's hand: every key, every view, and that looking changes no bit."""

import re
import time
from pathlib import Path

import numpy as np
import pytest
from learning import TINY, build, scenario_of
from screens import drive, text_of, until

from slipstream.cli.debug import make_app, with_worlds
from slipstream.cli.main import main
from slipstream.debug import control as control
from slipstream.debug import panels
from slipstream.debug.app import DebugApp
from slipstream.errors import ScenarioError
from slipstream.run.metrics import metrics_hash
from slipstream.run.session import resume, train

QUIET = {
    "evaluate.evaluation_interval": None,
    "stop.zero_conflict_streak": None,
    "shaping.use_potential_shaping": False,
}


def app_of(folder, name="head_on", **changes):
    scenario = scenario_of(name, {**TINY, **QUIET, **changes})
    return scenario, make_app(scenario, runs=folder / "runs", models=folder / "models", out=folder / "run")


async def begun(pilot):
    """Wait until the loop is held before its first step, and the screen shows it."""
    await until(pilot, lambda: "held" in text_of(pilot.app))


async def at(pilot, step):
    """Wait until so many steps are taken, and the screen shows it."""
    await until(pilot, lambda: pilot.app.loop.control.snapshot.step == step and f"step {step:,}" in text_of(pilot.app))


def test_a_run_stepped_by_hand_has_the_bits_of_one_that_ran_alone(tmp_path):
    scenario, app = app_of(tmp_path, **{"evaluate.evaluation_interval": 2})

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("n")
        await at(pilot, 1)
        await pilot.press("n", "n")
        await at(pilot, 3)
        assert app.loop.control.paused
        await pilot.press("0", "g", "2", "m")
        await until(pilot, lambda: app.loop.is_over)
        await until(pilot, lambda: "over" in text_of(app))

    drive(app, steps)
    assert app.loop.error is None
    plain = train(scenario, out=tmp_path / "plain", models=tmp_path / "models").run
    assert metrics_hash(tmp_path / "run" / "metrics.jsonl") == metrics_hash(plain / "metrics.jsonl")


def test_a_run_that_was_left_goes_on_as_if_it_had_not_been(tmp_path):
    scenario, app = app_of(tmp_path)

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("n", "q")
        await until(pilot, lambda: app.loop.is_over)

    drive(app, steps)
    assert app.loop.ending == "Ctrl+C"
    resume(tmp_path / "run", models=tmp_path / "models")
    plain = train(scenario, out=tmp_path / "plain", models=tmp_path / "models").run
    assert metrics_hash(tmp_path / "run" / "metrics.jsonl") == metrics_hash(plain / "metrics.jsonl")


def test_what_is_shown_is_what_the_worlds_are_at(tmp_path):
    """Against a collector of the same scenario that was stepped to the same place."""
    scenario, app = app_of(tmp_path)
    parts = build(scenario)
    rollouts, _ = parts.collector.collect(0)  # eight steps: as far as the first update
    env, seen = parts.env, []

    async def steps(pilot):
        await begun(pilot)
        await pilot.press(*"nnnnnnn", "3")
        await at(pilot, 7)
        await pilot.press("n")  # learns from the eight, and holds before the ninth
        await at(pilot, 8)
        await until(pilot, lambda: app.loop.control.snapshot.focus.world == 2)
        seen.append(app.loop.control.snapshot)

    drive(app, steps)
    (snapshot,) = seen
    np.testing.assert_array_equal(snapshot.frames[2], env.frame(2))
    np.testing.assert_array_equal(snapshot.focus.obs["obs"], env.obs["obs"][2])
    (rollout,) = rollouts.values()
    np.testing.assert_allclose(snapshot.returns, rollout.reward[1:].sum((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(snapshot.focus.parts.sum(1), snapshot.focus.rewards, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(snapshot.focus.part_sums.sum(1), snapshot.focus.returns, rtol=1e-4, atol=1e-6)
    assert snapshot.lengths == [8] * 4


def test_keys_hold_step_and_pace(tmp_path):
    _, app = app_of(tmp_path, timesteps=2**30, **{"checkpoint.checkpoint_every": 2**30})

    async def steps(pilot):
        await begun(pilot)
        held_by = app.loop.control
        await until(pilot, lambda: "held" in text_of(app))
        await pilot.press("f")
        await at(pilot, 60)
        assert held_by.paused
        await pilot.press("n")
        await at(pilot, 61)
        await pilot.press("plus", "plus")
        assert (held_by.pace, held_by.paused) == (32.0, False)
        await until(pilot, lambda: held_by.step > 63)
        await until(pilot, lambda: "runs" in text_of(app))
        await pilot.press("minus", "minus", "minus")
        assert held_by.pace == 4.0
        await pilot.press("space")
        await until(pilot, lambda: "held" in text_of(app))
        held = held_by.step
        await pilot.press("m")
        await until(pilot, lambda: held_by.step > held + 100)
        assert held_by.pace is None
        await until(pilot, lambda: "as fast as it can" in text_of(app))
        await pilot.press("minus")
        assert held_by.pace == 1024.0
        await pilot.press("q")

    drive(app, steps)


def test_keys_choose_worlds_and_views(tmp_path):
    _, app = app_of(tmp_path)

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("n")
        await at(pilot, 1)
        assert app.view == "grid"
        text = text_of(app)
        for world in "1234":
            assert f"{world}  ep 1" in text
        assert "closest" in text
        await pilot.press("tab", "tab")
        assert app.focused_world == 2
        await pilot.press("shift+tab", "shift+tab", "shift+tab")
        assert app.focused_world == 3
        await pilot.press("2")
        await until(pilot, lambda: "world 2  episode 1  step 1" in text_of(app))
        text = text_of(app)
        for word in ("A1", "A2", "act_cost", "progress", "waypoint_distance", "ground_forward"):
            assert word in text
        await pilot.press("r")
        await until(pilot, lambda: "act_cost" not in text_of(app))
        await until(pilot, lambda: "waypoint_distance" in text_of(app))
        await pilot.press("p")
        await until(pilot, lambda: "waypoint_distance" not in text_of(app))
        await pilot.press("r", "p")
        await until(pilot, lambda: "act_cost" in text_of(app) and "waypoint_distance" in text_of(app))
        await pilot.press("9")  # there is no such world
        assert app.focused_world == 1
        await pilot.press("0")
        await until(pilot, lambda: "episodes ended" in text_of(app))
        await until(pilot, lambda: "1  ep 1" in text_of(app))
        await pilot.press("g")
        await until(pilot, lambda: "episodes ended" not in text_of(app) and "4  ep 1" in text_of(app))
        await pilot.press("g")
        await until(pilot, lambda: "world 2  episode 1" in text_of(app))
        await pilot.press("question_mark")
        await pilot.pause()
        await until(pilot, lambda: "begins anew" in text_of(app))
        await pilot.press("escape", "q")

    drive(app, steps, (120, 34))


def test_every_number_is_a_world_and_keys_have_a_second_name(tmp_path):
    _, app = app_of(tmp_path, **{"collect.num_worlds": 16, "collect.rollout_length": 2, "timesteps": 2**20})

    async def steps(pilot):
        await begun(pilot)
        held_by = app.loop.control
        for key in "987654321":
            await pilot.press(key)
            assert (app.view, app.focused_world) == ("focus", int(key) - 1)
            await until(pilot, lambda: f"world {app.focused_world + 1}  episode" in text_of(app))
        await pilot.press("space")
        assert not held_by.paused
        await until(pilot, lambda: held_by.step > 2)
        await pilot.press("space")
        assert held_by.paused
        before = held_by.pace
        await pilot.press("equals_sign")  # + without Shift
        assert (held_by.pace, held_by.paused) == (2 * before, False)
        for key in ("question_mark", "h"):
            await pilot.press(key)
            await until(pilot, lambda: "begins anew" in text_of(app))
            await pilot.press("escape")
            await until(pilot, lambda: "begins anew" not in text_of(app))
        await pilot.press("ctrl+c")
        await until(pilot, lambda: app.loop.is_over)

    drive(app, steps, (120, 34))


def test_no_key_of_the_debug_mode_is_without_a_test():
    """A key that is added needs one: every key of the application is pressed in this file."""
    source = Path(__file__).read_text()
    keys = {key for binding in DebugApp.BINDINGS for key in binding.key.split(",")}
    assert len(keys) > 25
    assert [key for key in keys if f'"{key}"' not in source and key not in "987654321"] == []


def test_another_number_of_worlds_begins_another_run_once_no_more_keys_come(tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.debug.app.DEBOUNCE_S", 0.2)
    _, app = app_of(tmp_path)

    async def steps(pilot):
        await begun(pilot)
        first = app.loop
        await pilot.press("right_square_bracket", "left_square_bracket", "left_square_bracket")
        assert app.wanted == 2
        await until(pilot, lambda: app.loop is not first and app.loop.control.snapshot is not None)
        assert (app.loop.num_worlds, app.loop.control.rollout_length) == (2, 16)
        await until(pilot, lambda: "2 worlds" in text_of(app))
        monkeypatch.setattr("slipstream.debug.app.DEBOUNCE_S", 3600.0)  # whatever follows begins none
        for _ in range(5):
            await pilot.press("right_square_bracket")
        assert app.wanted == 32
        await pilot.press("right_square_bracket")
        assert app.wanted == 32
        await until(pilot, lambda: "64 worlds do not divide" in text_of(app))
        await pilot.press("q")
        await until(pilot, lambda: app.loop.is_over)

    drive(app, steps)
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run", "run-2"]


def test_it_fits_any_terminal(tmp_path):
    _, app = app_of(tmp_path)

    async def steps(pilot):
        await begun(pilot)
        for width, height in ((20, 6), (40, 12), (80, 24), (200, 60)):
            await pilot.resize_terminal(width, height)
            for key in ("g", "1", "0", "question_mark", "escape"):
                await pilot.press(key)
                await pilot.pause()
                lines = text_of(app).splitlines()
                assert len(lines) == height
                assert max(map(len, lines)) <= width
        await pilot.press("q")
        await until(pilot, lambda: app.loop.is_over)

    drive(app, steps)


def test_the_hud_says_how_fast_many_worlds_are_beside_one(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "gain", lambda pairs, worlds: 2.0 if len(pairs) >= 2 else None)
    _, app = app_of(tmp_path)

    async def steps(pilot):
        await begun(pilot)
        await until(pilot, lambda: "measuring speed" in text_of(app))
        await pilot.press("n", "n", "n")
        await at(pilot, 3)
        await until(pilot, lambda: "one world is being timed" in text_of(app))
        await pilot.press("f")
        await at(pilot, 63)
        await until(pilot, lambda: "2.0 × one world, efficiency 50%" in text_of(app))
        await until(pilot, lambda: "4 worlds" in text_of(app))
        await pilot.press("q")

    drive(app, steps, (120, 30))


def pair(many, alone):
    """Four steps of the loop and of one world, each as (seconds, ticks)."""
    return (control.Timed(*many),) * 4, (control.Timed(*alone),) * 4


def test_many_worlds_are_compared_with_one_that_was_timed_beside_them_and_often_enough():
    fair = [pair((0.001, 16), (0.0005, 1))] * control.KNOWN  # 16 worlds: 16,000 and 2,000 ticks per second
    assert control.gain(fair, 16) == pytest.approx(8.0)
    assert control.gain(fair[1:], 16) is None
    stall = control.Timed(2.0, 1)  # the machine did something else for two seconds, in half of the steps
    stalled = [(many, (*alone[:2], stall, stall)) for many, alone in fair]
    assert control.gain(stalled, 16) == pytest.approx(8.0)


def test_decisions_that_last_are_compared_by_their_frames():
    long, short = pair((0.001, 16 * 30), (0.0005, 30)), pair((0.001, 16 * 10), (0.0005, 50))
    assert control.gain([long, short] * 6, 16) == pytest.approx((16 * 20 / 0.001) / (40 / 0.0005))


def test_one_world_is_as_fast_as_itself_and_what_cannot_be_is_not_said():
    assert control.gain([], 1) == 1.0
    assert control.gain([pair((0.001, 16), (0.025, 1))] * 20, 16) is None  # 16 worlds 400 times as fast as one
    assert control.gain([pair((0.001, 16), (0.00102, 1))] * 20, 16) == 16.0


def test_timing_one_world_changes_no_bit_of_learners_of_either_kind(tmp_path):
    off_policy = {
        "collect.num_worlds": 4,
        "device": "cpu",
        "learner_threads": 1,
        "algo.kind": "dqn",
        "algo.learning_starts": 64,
        "algo.batch_size": 16,
        "timesteps": 512,
        "collect.rollout_length": 8,
    }
    scenario = scenario_of("probe_bandit", {**QUIET, **off_policy})
    pairs = []
    app = make_app(scenario, runs=tmp_path / "runs", models=tmp_path / "models", out=tmp_path / "run")

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("m")
        await until(pilot, lambda: app.loop.is_over)
        pairs.extend(app.loop.control._pairs)

    drive(app, steps)
    assert len(pairs) >= 2
    plain = train(scenario, out=tmp_path / "plain", models=tmp_path / "models").run
    assert metrics_hash(tmp_path / "run" / "metrics.jsonl") == metrics_hash(plain / "metrics.jsonl")


def test_the_return_is_the_learners_and_not_its_scripted_rivals(tmp_path):
    _, app = app_of(tmp_path, "gaplock_ppo")
    seen = []

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("f")
        await at(pilot, 60)
        seen.append((app.loop.control.spec, app.loop.control._teams, app.loop.control.snapshot))
        await pilot.press("q")

    drive(app, steps)
    ((spec, teams, snapshot),) = seen
    (rival,) = [team for team in teams if team.rival]
    own = [agent for agent in range(spec.num_agents) if agent not in rival.agents]
    assert snapshot.focus.returns[rival.agents[0]] != 0.0
    assert snapshot.returns[snapshot.focus.world] == pytest.approx(sum(snapshot.focus.returns[agent] for agent in own))


def test_what_leads_out_is_always_on_the_screen_and_nothing_is_cut_at_80_columns(tmp_path):
    _, app = app_of(tmp_path)

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("f")
        await at(pilot, 60)
        for width, height in ((80, 24), (60, 20), (40, 12)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            app.draw()
            await pilot.pause()
            lines = text_of(app).splitlines()
            assert "? help" in lines[-1]
            assert "q leave" in lines[-1]
            assert not any("…" in line for line in (*lines[:2], lines[-1]))
        assert max(map(len, (line.plain for line in panels.keys(80).split()))) <= 80
        assert all(key in panels.keys(80).plain for key in panels.KEY_LINE[:8])
        await pilot.press("q")

    drive(app, steps, (80, 24))


def test_the_loop_says_that_it_steps_or_learns(tmp_path):
    found = control.LoopControl()
    found.rollout_length = 8
    found._waits = True
    assert found.doing == "held"
    found.let(60)
    assert (found.doing, found.to_go) == ("stepping", 60)
    found._credit, found._waits, found.step = 0, False, 8  # the last step of a rollout is under way
    found._stepped_at = time.perf_counter()
    assert found.doing == "stepping"
    found._stepped_at -= 10.0
    assert found.doing == "learning"
    found.hold(False)
    assert found.doing == "learning"
    found._waits = True
    assert found.doing == "runs"


def test_the_summary_counts_worlds_and_successes_by_phase(tmp_path):
    asked = {"collect.num_worlds": 8, "collect.rollout_length": 4, "world.max_pills": 5, "timesteps": 2**20}
    _, app = app_of(tmp_path, "drmario_levels", **asked)
    seen = []

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("0", "f")
        await at(pilot, 60)
        await until(pilot, lambda: "phases, worlds in each" in text_of(app))
        seen.append((text_of(app), app.loop.control.snapshot, app.loop.control.spec))
        await pilot.press("q")

    drive(app, steps, (120, 40))
    ((text, snapshot, spec),) = seen
    assert len(snapshot.phases) == 8
    for i, name in enumerate(spec.phases):
        assert f"{name} {snapshot.phases.count(i)}" in text.replace("\u00a0", " ")
    counts = panels.phase_success(spec, snapshot.ended).split(" · ")
    assert all(count.replace("\u00a0", " ") in text for count in counts)  # none is broken over two lines
    assert snapshot.ended
    assert "% of " in text.replace("\u00a0", " ")


def test_a_large_terminal_shows_a_long_observation_side_by_side(tmp_path):
    _, app = app_of(tmp_path, "drmario_level_0")
    heads = {}

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("n", "1")
        await at(pilot, 1)
        for width in (200, 100):
            await pilot.resize_terminal(width, 50)
            await until(pilot, lambda: "observation" in text_of(app))
            app.draw()
            await pilot.pause()
            heads[width] = text_of(app).count("observation")
        await pilot.press("q")

    drive(app, steps, (200, 50))
    assert heads == {200: 2, 100: 1}


def test_worlds_without_a_picture_take_a_line_each_in_the_grid(tmp_path):
    _, app = app_of(tmp_path, "cartpole", **{"collect.num_worlds": 16, "collect.rollout_length": 2})

    async def steps(pilot):
        await begun(pilot)
        await until(pilot, lambda: all(f"{world}  ep 1" in text_of(app) for world in range(1, 17)))
        assert "no picture" not in text_of(app)
        await pilot.press("q")

    drive(app, steps, (80, 24))


def test_agents_beyond_the_first_are_a_key_away(tmp_path):
    _, app = app_of(tmp_path, "converging")

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("1")
        names = app.loop.control.spec.agents
        assert len(names) > 3
        head = f"{names[0]} +episode"
        await until(pilot, lambda: re.search(head, text_of(app)) is not None)
        assert not re.search(f"{names[3]} +episode", text_of(app))
        await pilot.press("a", "a", "a")
        await until(pilot, lambda: re.search(f"{names[3]} +episode", text_of(app)) is not None)
        await pilot.press("q")

    drive(app, steps, (120, 40))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("time_trial_oval", ("m/s", "lap 1", "progress", "scan_0")),
        ("drmario_level_0", ("left", "virus", "yellow, cells set", "choice", "frames/s")),
        ("probe_target", ("tick", "no parts", "x", "left")),
        ("cartpole", ("no picture of this world", "obs_3")),
    ],
)
def test_worlds_of_every_kind_are_shown(tmp_path, name, words):
    _, app = app_of(tmp_path, name)

    async def steps(pilot):
        await begun(pilot)
        await pilot.press("n", "n", "n", "1")
        await at(pilot, 3)
        await until(pilot, lambda: all(word in text_of(app) for word in words))
        await pilot.press("0", "g")
        await until(pilot, lambda: "2  ep " in text_of(app))
        await pilot.press("q")

    drive(app, steps, (120, 100))


def test_an_error_in_the_loop_ends_the_view_and_is_raised(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    _, app = app_of(tmp_path)

    async def steps(pilot):
        await until(pilot, lambda: app.loop.is_over)

    drive(app, steps)
    assert str(tmp_path / "run") in str(app.loop.error)


def test_workers_and_overlap_are_left_out_and_offline_learning_is_refused(tmp_path):
    assert with_worlds(scenario_of("head_on", TINY), 2).rollout_steps == 32
    offline = scenario_of("pendulum", {"algo.kind": "cql", "algo.replay.dataset": str(tmp_path / "d")})
    with pytest.raises(ScenarioError, match=r"^--ui debug: pendulum .*dataset"):
        make_app(offline, runs=tmp_path, models=tmp_path, out=None)


def test_where_there_is_no_terminal_debug_trains_in_plain_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--timesteps", "64", "--collect.num-worlds", "4", "--collect.rollout-length", "8"]
    words += ["--algo.minibatch-size", "8", "--algo.epochs", "1", "--learner-threads", "1"]
    assert main(["train", "probe_bandit", *words, "--ui", "debug"]) == 0
    assert "training probe_bandit with ppo" in capsys.readouterr().out
    assert len(list(Path("runs").iterdir())) == 1
