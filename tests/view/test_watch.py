"""Every key and every view of `slipstream watch`, on runs whose numbers are known."""

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest
from learning import TINY
from screens import drive, text_of, until

from slipstream.cli import watch as watch_verb
from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.data.run_folder import LOCK_FILE
from slipstream.errors import SlipstreamError
from slipstream.run.metrics import metrics_hash
from slipstream.run.session import train
from slipstream.view.tui.watch import TITLES, Clocks, LeaveScreen, WatchApp, cpu_s, is_due
from slipstream.worlds.drmario.best_times import Clear, record
from slipstream.worlds.drmario.registry import signature


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of eight updates."""
    folder = tmp_path_factory.mktemp("watched")
    return train(load("head_on", TINY), out=folder / "run", models=folder / "models").run


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it to write in."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def report(run, step, **values):
    """Add a row to the metrics; keys have __ for /."""
    row = {"timesteps_total": step} | {key.replace("__", "/"): value for key, value in values.items()}
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


def happen(run, event, **fields):
    with (run / "events.jsonl").open("ab") as file:
        file.write(msgspec.json.encode({"event": event, "timesteps_total": 256, "time": "now", **fields}) + b"\n")


def configure(run, **changes):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | changes))


def seen(run, *keys, size=(100, 30)):
    """The screen after these keys."""
    app = WatchApp(run)
    found = []

    async def steps(pilot):
        await pilot.press(*keys)
        await pilot.pause()
        found.append(text_of(app))

    drive(app, steps, size)
    return found[0]


# --- views ---


def test_the_line_on_top_says_what_runs_how_far_it_is_and_how_fast(run):
    report(run, 192, perf__steps_per_s=1234.5, time_total_s=62.0)
    text = seen(run)
    for word in ("head_on", "ppo", "finished", "75%", "192 of 256 steps", "1,234/s", "took 1:02"):
        assert word in text


def test_the_overview_shows_returns_shares_of_time_and_the_figures(run):
    times = {"perf__time_update_frac": 0.75, "perf__time_world_frac": 0.25}
    report(run, 300, env__return_mean=-12.5, env__return_median=-11.25, env__clean_mean=0.5, **times)
    report(run, 310, env__return_mean=-10.5, env__return_median=-11.75, env__clean_mean=0.625, **times)
    text = seen(run, "1", size=(100, 40))
    for word in ("training -10.5", "update 75%", "world 25%", "-11.75", "0.625", "evaluation, best"):
        assert word in text


def test_a_wide_terminal_shows_losses_beside_returns(run):
    assert "value" not in seen(run, "1", size=(100, 30)).split("time")[0]
    text = seen(run, "1", size=(140, 30))
    for word in ("return", "loss", "policy", "value"):
        assert word in text


def test_every_loss_has_a_scale_of_its_own(run):
    for step in (300, 310):
        report(run, step, train__policy_loss=-0.0125, train__value_loss=4321.0)
    text = seen(run, "1", size=(140, 50))
    assert "loss, policy" in text
    assert "loss, value" in text
    plots = text.split("loss, value")
    assert "4,321" not in plots[0]
    assert "4,321" in plots[1]


def test_the_overview_uses_a_large_terminal_and_cuts_no_name_there(run):
    report(run, 300, env__well_clear_violations_seconds_mean=1.0)
    lines = seen(run, "1", size=(200, 50)).splitlines()
    assert "well clear violations seconds" in "\n".join(lines)
    assert sum(not line.strip() for line in lines) < 12


def test_sparklines_of_all_metrics_end_at_the_same_step(run):
    for step in range(300, 400, 10):
        report(run, step, env__often=float(step), **({"eval__seldom": 1.0} if step in (300, 390) else {}))
    lines = seen(run, "7", size=(200, 120)).splitlines()
    names = ("perf/steps_per_s", "env/often", "eval/seldom")
    rows = [next(line for line in lines if line.strip().startswith(name)) for name in names]
    places = [[i for i, letter in enumerate(row) if letter in "▁▂▃▄▅▆▇█"] for row in rows]
    early, often, seldom = [(min(found), max(found)) for found in places]
    assert often == seldom
    assert early[0] < often[0]  # it was told from the start
    assert early[1] < often[1]  # and not lately


def test_learning_shows_what_learners_and_their_weights_do(run):
    report(run, 300, train__grad_norm=3.25, diag__actor_norm=8.125, diag__actor_update_ratio=0.015625)
    text = seen(run, "2", size=(100, 40))
    for word in ("train/grad_norm", "3.25", "diag/actor_norm", "8.125", "0.01562", "diag/critic_update_ratio"):
        assert word in text


def test_goals_show_how_near_every_reason_to_stop_is(run):
    configure(run, stop={"zero_conflict_streak": 20, "target_return": 50.0, "bands": {"good_bands": 2}})
    report(run, 300, stop__zero_conflict_streak=5, eval__return_mean=25.0)
    text = seen(run, "3")
    for word in ("clean episodes in a row", "5 of 20", "evaluation return", "25 of 50", "ended: the budget", "bands"):
        assert word in text
    assert "none in this run" in text
    assert "none were attempted" in text


def test_goals_show_phases_in_turn_and_certificates(run):
    phases = [{"name": "one virus"}, {"name": "two viruses"}, {"name": "level 0"}]
    configure(run, world={"kind": "airspace", "phases": phases})
    report(run, 300, curriculum__phase=1, curriculum__certified=1, curriculum__max_seconds=41.25)
    begun = {"attempt": 1, "metric": "success", "bar": 0.9, "spends": 0.025, "steps": 4096, "by": "training"}
    over = {**begun, "verdict": "pass", "phase": "one virus", "successes": 61, "trials": 62}
    lines = [json.dumps(begun), json.dumps(over), '{"attempt": 2, "half wri']
    (run / "certificates.jsonl").write_text("\n".join(lines))
    text = seen(run, "3")
    for word in (
        "✓  one virus",
        "▶  two viruses, within 41.2 s",
        "1 phases have a certificate",
        "pass",
        "61 of 62",
        "0.025",
        "4.1k",
    ):
        assert word in text


def test_goals_show_the_success_of_phases_that_are_played_at_once(run):
    report(run, 300, **{"curriculum__success__easy": 0.75, "curriculum__success__hard": 0.25})
    text = seen(run, "3")
    assert "75% succeed" in text
    assert "25% succeed" in text


def test_goals_show_best_times_and_leave_no_trace_beside_them(run):
    configure(run, world={"kind": "drmario"})
    frames = {1: 600, 2: 1200, 3: 1800}
    clears = [
        Clear(level=0, seed=seed, speed="low", signature=signature(seed), frames=f, pills=9, run="r")
        for seed, f in frames.items()
    ]
    record(run / "best_times.sqlite3", clears)
    before = files(run)
    text = seen(run, "3", size=(100, 40))
    assert files(run) == before
    (line,) = [line for line in text.splitlines() if line.strip().startswith("0 ")]
    # 600, 720 (a tenth of the way along the sorted bests), 1200, 1680 frames at 60.0988 a second; people's is 7.4 s
    assert line.split() == ["0", "3", "10.0", "12.0", "20.0", "28.0", "7.4"]


def test_federation_lists_rounds_and_what_became_of_them(run):
    assert "learns alone" in seen(run, "4")
    configure(run, federated={"enabled": True, "client": "b", "clients": 4, "transport": "files"})
    assert "no round yet" in seen(run, "4")
    report(run, 300, fed__round=1.0, fed__clients=4.0, fed__took_part=1.0, fed__drift_l2=0.375)
    report(run, 310, fed__round=2.0, fed__clients=3.0, fed__took_part=0.0, fed__drift_l2=0.125)
    happen(run, "round", policy="main", round=2, state="refused", reason="too far away")
    lines = seen(run, "4", size=(120, 30)).splitlines()
    (two,) = [line for line in lines if "too far away" in line]
    assert two.split()[:5] == ["310", "2", "3", "0", "–"]
    assert "0.125" in two
    assert any(line.split()[:3] == ["300", "1", "4"] for line in lines)
    assert any("client b of 4, over files" in line for line in lines)


def test_machinery_shows_replay_workers_and_what_was_set_aside(run):
    text = seen(run, "5")
    for word in ("no replay", "own process collects", "all numbers were finite"):
        assert word in text
    workers = {"collector__worker_0__steps_per_s": 1500.0, "collector__worker_1__heartbeat_age_s": 12.5}
    report(run, 300, replay__fill=0.875, collector__latency_max_s=0.625, **workers)
    happen(run, "worker_died", worker=1, phase="stepping", why="killed by signal 9")
    happen(run, "worker_restarted", worker=1, seconds=1.5)
    happen(run, "quarantine", why="reward")
    text = seen(run, "5", size=(120, 40))
    for word in ("replay/fill", "0.875", "1,500", "12.5", "collector/latency_max_s", "quarantine"):
        assert word in text
    assert [line.split()[:4] for line in text.splitlines() if line.startswith("1 ")] == [["1", "–", "12.5", "1"]]


def test_the_log_shows_the_newest_events_and_the_log_and_nothing_that_moves_a_terminal(run):
    happen(run, "checkpoint", path="checkpoint_999", why="best")
    with (run / "training_log.txt").open("a") as file:
        file.write("all is \x1b[2Jwell\n")
    text = seen(run, "6", size=(100, 60))
    for word in ("checkpoint_999", "evaluation", "all is  [2Jwell", "training head_on with ppo"):
        assert word in text
    assert "\x1b" not in text


def test_metrics_shows_the_chosen_one_large(run):
    (run / "metrics.jsonl").write_bytes(b"")
    report(run, 32, env__return_mean=1.5, b=2.0, a=3.0)
    report(run, 64, env__return_mean=2.5, b=4.0, a=3.5)
    assert "━ env/return_mean 2.5" in seen(run, "7", "up", "up")
    assert "━ a 3.5" in seen(run, "7", "down")
    assert "━ b 4" in seen(run, "7", "down", "down", "down", "down")
    assert "━ a 3.5" in seen(run, "7", "down", "down", "down", "down", "up")


def test_a_run_without_a_single_report_is_shown_too(run):
    for name in ("metrics.jsonl", "events.jsonl", "training_log.txt"):
        (run / name).unlink()
    app = WatchApp(run)

    async def steps(pilot):
        for i, title in enumerate(TITLES):
            await pilot.press(str(i + 1))
            await pilot.pause()
            text = text_of(app)
            assert title in text
            assert any(word in text for word in ("no report yet", "no data", "none", "no update", "alone", "nothing"))

    drive(app, steps)


# --- keys ---


def test_keys_turn_the_views(run):
    app = WatchApp(run)

    async def steps(pilot):
        found = []
        for key in ("tab", "tab", "right", "shift+tab", "left", "left", "shift+tab", "6", "2"):
            await pilot.press(key)
            found.append(TITLES[app.at])
        assert found == [
            "learning", "goals", "federation", "goals", "learning", "overview", "metrics", "log", "learning"
        ]  # fmt: skip

    drive(app, steps)


def test_no_key_of_the_view_is_without_a_test():
    source = Path(__file__).read_text()
    keys = {key for binding in WatchApp.BINDINGS for key in binding.key.split(",")}
    assert len(keys) > 15
    assert [key for key in keys if f'"{key}"' not in source] == []


def test_keys_scroll_what_has_no_room(run):
    app = WatchApp(run)

    async def steps(pilot):
        await pilot.press("2", "down", "down", "down")
        await pilot.pause()
        assert app._scroll.scroll_y == 3
        await pilot.press("up")
        await pilot.pause()
        assert app._scroll.scroll_y == 2
        await pilot.press("pagedown")
        await until(pilot, lambda: app._scroll.scroll_y > 3)
        await pilot.press("pageup")
        await until(pilot, lambda: app._scroll.scroll_y == 0)
        await pilot.press("1")
        await pilot.pause()
        assert app._scroll.scroll_y == 0

    drive(app, steps, (80, 24))


def test_what_is_new_is_seen_unless_the_picture_is_held(run):
    app = WatchApp(run)

    async def steps(pilot):
        report(run, 300, train__grad_norm=77.125)
        await pilot.press("2", "r")
        await pilot.pause()
        assert "77.12" in text_of(app)
        await pilot.press("space")
        report(run, 310, train__grad_norm=88.125)
        await pilot.press("r")
        await pilot.pause()
        assert "88.12" not in text_of(app)
        assert "held" in text_of(app)
        await pilot.press("space")
        await pilot.pause()
        assert "88.12" in text_of(app)
        assert "held" not in text_of(app)

    drive(app, steps)


def test_looks_come_by_themselves(run, monkeypatch):
    monkeypatch.setattr("slipstream.view.tui.watch.LEAST_S", 0.01)
    monkeypatch.setattr("slipstream.view.tui.watch.BUDGET", 1e9)
    app = WatchApp(run)

    async def steps(pilot):
        report(run, 300, perf__steps_per_s=4321.0)
        await until(pilot, lambda: "4,321/s" in text_of(app))

    drive(app, steps)


def test_looks_are_as_far_apart_as_they_are_dear():
    """At 0.3 %, a look of 12 ms is paid for by four CPU seconds of the run, or of the clock where nobody runs it."""
    looked = Clocks(100.0, 1.0, 50.0)
    assert is_due(None, looked)
    assert not is_due(looked, Clocks(120.0, 1.012, 53.9))
    assert is_due(looked, Clocks(120.0, 1.012, 54.1))
    assert is_due(looked, Clocks(130.0, 9.0, 50.0))  # half a minute is long enough for anybody
    for one in (looked, looked._replace(run_s=None)):
        assert not is_due(one, Clocks(103.9, 1.012, None))
        assert is_due(one, Clocks(104.1, 1.012, None))


def test_the_cpu_seconds_of_a_run_are_those_of_who_holds_its_lock(run):
    (run / LOCK_FILE).write_text(f"{os.getpid()}\n")
    before, said, after = time.process_time(), cpu_s(run), time.process_time()
    assert before - 0.1 <= said <= after + 0.1  # the system counts in ticks of 10 ms
    (run / LOCK_FILE).write_text("nobody")
    assert cpu_s(run) is None


def test_a_run_that_was_cut_back_and_half_written_is_read_anew(run):
    app = WatchApp(run)

    async def steps(pilot):
        report(run, 300, train__grad_norm=77.125)
        await pilot.press("2", "r")
        lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        (run / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
        await pilot.press("r")
        await pilot.pause()
        assert "77.12" not in text_of(app)
        assert f"{json.loads(lines[2])['timesteps_total']} of 256" in text_of(app)

    drive(app, steps)


def test_it_fits_any_terminal(run):
    app = WatchApp(run)

    async def steps(pilot):
        for size in ((80, 24), (200, 60), (40, 12)):
            await pilot.resize_terminal(*size)
            for key in "137":
                await pilot.press(key)
                await pilot.pause()
                assert len(text_of(app).splitlines()) == size[1]

    drive(app, steps)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_help_is_shown_and_the_view_is_left(run, key):
    app = WatchApp(run)

    async def steps(pilot):
        for asked in ("question_mark", "h"):
            await pilot.press(asked)
            await pilot.pause()
            assert "refresh now" in text_of(app)
            await pilot.press("escape")
            await pilot.pause()
            assert "refresh now" not in text_of(app)
        await pilot.press(key)

    drive(app, steps)
    assert app.return_value == "left"


def files(run):
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*"))


def test_nothing_in_the_folder_changes(run):
    before = files(run)
    seen(run, "1", "2", "3", "4", "5", "6", "7", "r", "space", "r")
    assert files(run) == before


# --- training that belongs to the view ---


class Training:
    """In place of the process that trains."""

    def __init__(self):
        self.code, self.stops = None, 0

    def is_over(self):
        return self.code is not None

    def stop(self):
        self.stops += 1


def test_leaving_asks_what_becomes_of_training_and_lets_it_go_on(run):
    app = WatchApp(run, training := Training())

    async def steps(pilot):
        await pilot.press("q")
        await pilot.pause()
        assert isinstance(app.screen, LeaveScreen)
        box = app.screen.query_one("#box").region
        assert abs(box.x - (100 - box.right)) <= 1, "in the middle"
        assert abs(box.y - (30 - box.bottom)) <= 1
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, LeaveScreen)
        await pilot.press("q", "g")

    drive(app, steps)
    assert app.return_value == "left"
    assert training.stops == 0


def test_leaving_stops_training_as_ctrl_c_would_and_waits_for_its_checkpoint(run):
    app = WatchApp(run, training := Training())

    async def steps(pilot):
        await pilot.press("q", "s")
        await pilot.pause()
        assert "stopping" in text_of(app)
        assert training.stops == 1
        await pilot.press("q", "s")  # a second signal would end it without a checkpoint
        assert training.stops == 1
        training.code = 0
        await pilot.press("r")

    drive(app, steps)
    assert app.return_value == "stopped"


def test_a_run_that_has_not_begun_is_waited_for_and_one_that_never_does_is_left(run):
    elsewhere = run.with_name("later")
    app = WatchApp(elsewhere, training := Training())

    async def steps(pilot):
        assert "starting" in text_of(app)
        shutil.copytree(run, elsewhere)
        await pilot.press("r")
        await pilot.pause()
        assert "finished" in text_of(app)

    drive(app, steps)
    app = WatchApp(run.with_name("never"), training)

    async def fail(pilot):
        training.code = 2
        await pilot.press("r")

    drive(app, fail)
    assert app.return_value == "left"


def test_training_under_the_view_is_the_same_training(tmp_path):
    """On a real terminal: the command to its end, with the bits of the one without a view."""
    small = ["--timesteps", "256", "--collect.num-worlds", "4", "--collect.rollout-length", "8"]
    small += ["--algo.minibatch-size", "8", "--algo.epochs", "1", "--learner-threads", "1"]
    words = ["train", "probe_bandit", "--models", str(tmp_path / "models"), *small]
    assert main([*words, "--out", str(tmp_path / "plain"), "--ui", "none"]) == 0
    code, shown = on_a_terminal([*words, "--runs", str(tmp_path / "runs"), "--ui", "tui"], tmp_path)
    assert code == 0, shown
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("probe_bandit_ppo_")
    assert f"run:    {run}" in shown
    assert metrics_hash(run / "metrics.jsonl") == metrics_hash(tmp_path / "plain" / "metrics.jsonl")


def on_a_terminal(words, folder):
    """Exit code and output of a command on a terminal of its own, where q is pressed once the run has ended."""
    control, terminal = pty.openpty()
    command = [sys.executable, "-m", "slipstream", *words]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", "OMP_NUM_THREADS": "1"}
    shown, end, asked = b"", time.monotonic() + 240, 0.0
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=env) as program:
        os.close(terminal)
        os.set_blocking(control, False)
        while program.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
            with suppress(OSError):
                shown += os.read(control, 1 << 20)
            over = [path for path in folder.glob("runs/*/metadata.json") if b'"outcome"' in path.read_bytes()]
            if over and time.monotonic() >= asked + 1.0:  # it may still judge what was learned
                judged = b"finished" in shown and not psutil.Process(program.pid).children()
                os.write(control, b"q" if judged else b"r")
                asked = time.monotonic()
        program.kill()
    with suppress(OSError):
        shown += os.read(control, 1 << 20)
    os.close(control)
    return program.returncode, shown.decode(errors="replace")


# --- where there is no terminal ---


def test_a_pipe_gets_lines_that_end_with_the_run(run, capsys):
    report(run, 300, perf__steps_per_s=1234.0, env__return_mean=-7.25)
    assert main(["watch", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"head_on with ppo in {run}, finished"
    for word in ("300 steps", "1,234/s", "return -7.25", "eval "):
        assert word in lines[1]
    assert lines[2].startswith("finished: the budget")
    assert len(lines) == 3


def test_lines_follow_a_live_run_until_it_ends(run, monkeypatch):
    from slipstream.view.tui import views

    states = iter(["running", "running", "running", "stopped"])
    monkeypatch.setattr("slipstream.view.run.state_of", lambda *_: next(states))
    monkeypatch.setattr(views.time, "sleep", lambda _: report(run, 300, perf__steps_per_s=100.0))
    said = []
    views.follow(run, 1.0, said.append)
    assert [line.split()[0] for line in said] == ["head_on", "256", "300", "300", "stopped:"]


def test_the_newest_run_of_a_folder_is_watched_where_none_is_named(run, monkeypatch, capsys):
    (run.parent / "runs").mkdir()
    monkeypatch.chdir(run.parent)
    for name, when in (("older", 1_000_000), ("newer", 3_000_000), ("oldest", 500_000)):
        shutil.copytree(run, Path("runs") / name)
        os.utime(Path("runs") / name / "metrics.jsonl", (when, when))
        os.utime(Path("runs") / name, (400_000, 400_000))
    assert watch_verb.newest_run(Path("runs")) == Path("runs/newer")
    assert watch_verb.newest_run(Path("runs/older")) == Path("runs/older")
    os.utime("runs/oldest/metrics.jsonl", (4_000_000, 4_000_000))  # it was resumed
    assert main(["watch", "--plain"]) == 0
    assert str(Path("runs/oldest")) in capsys.readouterr().out


def test_what_is_no_run_is_refused_and_a_missing_library_is_named(tmp_path, monkeypatch, capsys, run):
    (tmp_path / "empty").mkdir()
    assert main(["watch", str(tmp_path / "empty")]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'empty'}: " in said
    assert "scenario.yaml" in said
    monkeypatch.setattr(watch_verb, "find_spec", lambda name: None)
    with pytest.raises(SlipstreamError, match=r"pip install 'slipstream\[tui\]'"):
        watch_verb.need_textual()
