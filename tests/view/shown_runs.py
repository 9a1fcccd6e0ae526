"""Runs to look at, written by hand, and a viewer that serves them."""

import json
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime

import numpy as np

from slipstream.config.load import load, to_plain
from slipstream.run import folder as run_folder
from slipstream.run.parts.episode_files import as_track
from slipstream.view import server
from slipstream.view.catalogue import Catalogue
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

NOW = datetime(2026, 11, 16, tzinfo=UTC)
SCRIPTS = {"head_on": "mvp", "head_to_head": "follow_gap", "drmario_level_0": "fastest"}


def make_run(root, name, scenario="head_on", seed=1, algo="ppo", values=(1.0, 2.0, 3.0), outcome="timesteps reached"):
    """A finished run (or with outcome None one that is being written), whose returns are `values`."""
    config = to_plain(load(scenario)) | {"algo": {"kind": algo}, "seed": seed}
    run = run_folder.create(
        root, scenario, algo, NOW, scenario_yaml=f"name: {scenario}\n", config=config, out=root / name,
        metadata=run_folder.describe_run(seed=seed, command=["slipstream", "train", scenario], now=NOW),
    )  # fmt: skip
    append(run.path, [report(k, value) for k, value in enumerate(values, 1)])
    evaluation = {"event": "evaluation", "timesteps_total": 1000 * len(values), "eval/return_mean": values[-1]}
    evaluation |= {"eval/episodes": 20.0, "eval/clean_fraction": 0.75}
    (run.path / "events.jsonl").write_text(json.dumps(evaluation) + "\n")
    (run.path / "training_log.txt").write_text("begun\n")
    if outcome is not None:
        run_folder.end_session(run, NOW, 1.0, outcome, 1000 * len(values))
        run.close()
    return run


def report(k, value):
    return {"timesteps_total": 1000 * k, "env/return_mean": value, "eval/return_mean": value, "train/entropy": 1.0 / k}


def append(path, rows):
    with (path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def record(path, scenario, steps=40, index=1):
    """Play a scripted episode and put it where a run puts the episodes of its evaluations."""
    worlds = make_worlds(load(scenario).world, 1, EnvOptions(seed=3))
    worlds.reset()
    backdrop, frames = worlds.backdrop(0), [worlds.frame(0)]
    for _ in range(steps):
        worlds.act_scripted(SCRIPTS[scenario], range(worlds.spec.num_agents))
        worlds.step()
        if worlds.terminated.any() or worlds.truncated.any():
            break
        frames.append(worlds.frame(0))
    run_folder.write_track(path, as_track(worlds.spec, index, 1000 * index, np.stack(frames), backdrop), keep=50)
    worlds.close()


@contextmanager
def serving(*roots):
    """A viewer over these folders, in a thread; gives its port."""
    listening = server.listen(18765)
    running = server.make_server(Catalogue(roots))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not running.started:
        assert time.monotonic() < deadline, "the viewer did not start"
        time.sleep(0.01)
    try:
        yield listening.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join(10)
        listening.close()
        assert not thread.is_alive()
