"""Ctrl+C and SIGTERM finish the update, save and exit 0; a second signal ends the program at once."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from learning import python, signal_while_held

from slipstream.data import checkpoint
from slipstream.data.run_folder import read_metadata
from slipstream.run.metrics import read_rows
from slipstream.runtime.signals import Interrupts, SignalStop, catching, held

ENDLESS = ["train", "probe_leaver", "--timesteps", "1e9", "--checkpoint-every", "1e9", "--out", "run"]
ENDLESS += ["--collect.num-worlds", "4", "--collect.rollout-length", "8", "--learner-threads", "1"]
ENDLESS += ["--algo.minibatch-size", "8", "--algo.epochs", "1"]

# An update that lasts for ever, as a very large one would seem to.
STUCK = """
import time
from contextlib import suppress
from pathlib import Path
from learning import TINY, scenario_of
from slipstream.run.session import train
from slipstream.run.progress import Display
class Stuck(Display):
    def advance(self, done, text):
        print("working", flush=True)
        time.sleep(60)
train(scenario_of("probe_constant", TINY), out=Path("run"), display=Stuck())
"""


def start(*argv: str, cwd: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, *argv], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_rows(run: Path, process: subprocess.Popen[str], count: int = 3) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "metrics.jsonl").exists() and len(list(read_rows(run / "metrics.jsonl"))) >= count:
            return
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(("number", "called"), [(signal.SIGINT, "Ctrl+C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_a_run_after_its_update_which_saves_says_how_to_go_on_and_exits_0(number, called, tmp_path):
    process = start("-m", "slipstream.cli.main", *ENDLESS, cwd=tmp_path)
    wait_for_rows(tmp_path / "run", process)
    before = signal_while_held(process, number, tmp_path / "run")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert f": {called}" in out
    assert re.search(r"everything is saved; continue with: slipstream resume run$", out, re.MULTILINE)
    assert "Traceback" not in out + err
    assert not (tmp_path / "models").exists()  # an interrupted run exports nothing

    rows = [row["timesteps_total"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert len(rows) <= before + 1  # the update it was in, and no other
    steps = rows[-1]
    latest = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert latest.checkpoint.meta["counters"]["steps"] == steps
    if number == signal.SIGTERM:  # the sentence it printed is a command that works
        more = str(steps + 64)
        done = python("-m", "slipstream.cli.main", "resume", "run", "--timesteps", more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"stopped after {steps + 64:,} steps" in done.stdout


# The command with a terminal of its own, as a person's shell would start it.
ON_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from slipstream.__main__ import main
sys.exit(main())
"""


def test_a_run_whose_terminal_is_closed_saves_and_exits_0(tmp_path):
    control, terminal = pty.openpty()
    words = [sys.executable, "-c", ON_A_TERMINAL, *ENDLESS]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        words, cwd=tmp_path, env=env, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    os.set_blocking(control, False)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or len(list(read_rows(metrics))) < 3:
        assert process.poll() is None
        with suppress(BlockingIOError):
            os.read(control, 65536)
        time.sleep(0.02)
    os.close(control)
    assert process.wait(timeout=120) == 0
    rows = [row["timesteps_total"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    latest = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert latest.checkpoint.meta["counters"]["steps"] == rows[-1]
    assert read_metadata(tmp_path / "run")["sessions"][-1]["outcome"] == "SIGHUP"


def test_a_hangup_that_was_to_be_ignored_is_ignored():
    """As `nohup` and shells that let go of a job have it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catching(), Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.signal is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_a_block_that_is_held_comes_at_its_end():
    done = []

    def work() -> None:
        with catching():
            with held():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("begun")
            done.append("never")

    with pytest.raises(SignalStop) as stopped:
        work()
    assert done == ["begun"]
    assert stopped.value.number == signal.SIGTERM


def test_a_second_signal_ends_the_program_at_once(tmp_path):
    process = start("-c", STUCK, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)  # the first waits for the update
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)  # of the 60 s that its update takes
    assert process.returncode == 128 + signal.SIGTERM
    process.communicate()


# A signal that comes while this module is being imported, in a program that begins as the installed command does.
WHILE_IMPORTING = """
import os, signal, sys
number, name = int(sys.argv[1]), sys.argv[2]
sys.argv = ["slipstream", "eval", "head_on", "--episodes", "1"]
class Finder:
    def find_spec(self, asked, path=None, target=None):
        if asked == name:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder())
from slipstream.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["slipstream.cli.main", "slipstream.config", "slipstream.config.scenario", "torch"])
def test_a_signal_while_python_imports_ends_the_command_without_a_traceback(module, number, tmp_path):
    done = python("-c", WHILE_IMPORTING, str(int(number)), module, cwd=tmp_path)
    ours = module != "slipstream.cli.main"  # once that is there, the command listens and says what stopped it
    assert done.returncode == (128 + number if ours else -number)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("slipstream: interrupted") == ours


def test_to_import_the_package_changes_no_handler(tmp_path):
    code = "import signal, slipstream, slipstream.cli.main; print(signal.getsignal(signal.SIGINT).__name__)"
    assert python("-c", code, cwd=tmp_path).stdout == "default_int_handler\n"


def test_handlers_are_given_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.signal == "SIGTERM"
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_run_in_another_thread_leaves_signals_alone():
    import threading

    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
