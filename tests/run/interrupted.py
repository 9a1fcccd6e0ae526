"""Run in a process of its own: `interrupted.py train FOLDER` starts every case and is interrupted, `resume` goes on.

The signal comes after a fixed number of updates, so that the test says where a run is cut.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from learning import TINY, recast, scenario_of, tiny

from slipstream.algos.registry import ALGORITHMS
from slipstream.config.load import override
from slipstream.config.scenario import Scenario
from slipstream.run.loop import Result
from slipstream.run.progress import Display
from slipstream.run.session import resume, train

RATE = [[0, 1e-2], [1, 1e-3]]
# Three updates end in the middle of an episode; what interrupts a run is what saves it.
SHAPE = {"timesteps": 8 * 4 * 5, "collect.rollout_length": 5, "checkpoint.checkpoint_every": 10**9}
PPO = {
    **TINY,
    **SHAPE,
    "algo.minibatch_size": 10,
    "algo.learning_rate": RATE,
    "algo.entropy_coef": [[0, 0.01], [1, 0]],
    "algo.kl_coef": 0.2,
    "algo.kl_target": 0.01,
    "algo.value_clip": 0.5,
}
ROLLOUT = {"normalize_observation": True, "entropy_coef": 0.01}
# The first interruption comes after 6 + 7 gradient steps, with 0.2 of one owed, and the ring full since the last slab.
REPLAY = {
    "normalize_observation": True,
    "batch_size": 8,
    "training_intensity": 0.33,
    "learning_starts": 30,
    "replay.capacity": 47,
}
OWN: dict[str, dict[str, Any]] = {
    "td3": {"policy_delay": 4},  # cut in the middle of a delay
    "dqn": {"target_update": 5, "epsilon": [[0, 1.0], [0.5, 0.1]]},
    "cql": {"sampled_actions": 2},
    "impala": {"minibatch_size": 10},
    "appo": {"minibatch_size": 10, "target_update": 2},
    "ppo": {"minibatch_size": 10},
}
KILLED = {
    **tiny("dqn", **{"replay.prioritised": {}, "replay.n_step": 2, "replay.capacity": 70}),
    "timesteps": 32 * 6,
    "checkpoint.keep": 2,
    "checkpoint.checkpoint_every": 32,
    "evaluate.evaluation_interval": None,
}
PRIORITISED = {"replay.n_step": 3, "replay.prioritised": {}}
PROBES = ("alternating", "bandit", "constant", "corridor", "delayed", "duration", "leaver", "parts", "target")


class StopAfter(Display):
    """Sends this process a Ctrl+C after so many updates."""

    def __init__(self, updates: int) -> None:
        self.left = updates

    def advance(self, done: int, text: str) -> None:
        """One update is over."""
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def learned_by(kind: str, world: str | None = None, changes: dict[str, Any] | None = None, **algo: Any) -> Scenario:
    """A tiny run of an algorithm, on the continuous probe or the masked one if it is not told where."""
    traits = ALGORITHMS[kind].traits
    own = {**(ROLLOUT if traits.data == "rollout" else REPLAY), "learning_rate": RATE, **OWN.get(kind, {}), **algo}
    place = world or ("probe_target" if traits.continuous else "probe_bandit")
    return scenario_of(place, {**tiny(kind, **own), **SHAPE, "collect.overlap": "none", **(changes or {})})


def cases() -> dict[str, Scenario]:
    """Every probe and head_on with PPO, every algorithm, and the options that carry state of their own."""
    found = {f"probe_{task}": scenario_of(f"probe_{task}", PPO) for task in PROBES}
    found["probe_coordination"] = scenario_of("probe_coordination", {**PPO, "algo.centralised_critic": True})
    short = {"world.max_episode_steps": 12}
    found["all parts as one choice"] = learned_by("dqn", "probe_switches")
    found["head_on"] = scenario_of("head_on", {**PPO, **short, "algo.shared_torso": True})
    three = {"a": {"kind": "learning"}, "b": {"kind": "learning"}, "c": {"kind": "scripted", "script": "best"}}
    teams = {"stays_0": "a", "stays_1": "c", "leaves": "b"}
    found["several"] = recast(scenario_of("probe_leaver", PPO), three, teams)

    for kind, cell in (("ppo", "gru"), ("impala", "lstm"), ("reinforce", "gru")):
        network = {"kind": cell, "size": 8, "length": 3}
        found[f"{kind}_{cell}"] = learned_by(kind, "probe_alternating", network=network)
    lstm = {"kind": "lstm", "size": 8, "length": 3}
    found["dqn_lstm"] = learned_by("dqn", "probe_alternating", network=lstm, **PRIORITISED)
    found["sac_gru"] = learned_by("sac", "probe_leaver", network={**lstm, "kind": "gru"})
    found["td3_lstm"] = learned_by("td3", "probe_recall", network=lstm)
    for kind in ("ppo", "sac", "dqn"):
        network = {"kind": "entities", "features": 8}
        found[f"{kind}_entities"] = learned_by(kind, "probe_entities", network=network)
    found["a rival that remembers"] = recast(
        scenario_of("probe_leaver", {**PPO, "algo.network": {"kind": "gru", "size": 8}}),
        {"a": {"kind": "learning"}, "b": {"kind": "past", "of": "a", "every": 1}},
        {"stays_0": "a", "stays_1": "b", "leaves": "a"},
    )
    found |= {kind: learned_by(kind) for kind in ALGORITHMS}
    options = {"kind": "mlp", "norm": "layer", "residual": True}
    found["sac_normed"] = learned_by("sac", network=options, hidden=[16, 16], activation="silu")
    for kind in ("appo", "impala"):
        for lag in (1, 2):
            beside = {"collect.overlap": "deterministic", "collect.lag": lag}
            found[f"{kind}_lag_{lag}"] = learned_by(kind, changes=beside)
            found[f"{kind}_lag_{lag}_durations"] = learned_by(kind, "probe_alternating", beside)
    beside = {"collect.overlap": "deterministic", "collect.lag": 2}
    found |= {f"{kind}_lag_2": learned_by(kind, changes=beside) for kind in ("sac", "td3", "cql")}
    found["dqn_lag_2_durations"] = learned_by("dqn", "probe_alternating", beside, **PRIORITISED)
    found["dqn_durations"] = learned_by("dqn", "probe_duration", **PRIORITISED)
    found["dqn_alternating"] = learned_by("dqn", "probe_alternating", **PRIORITISED, dueling=True)
    found["dqn_masked"] = learned_by("dqn", "probe_bandit", **PRIORITISED, values={"kind": "quantile", "quantiles": 3})
    found["sac_shared"] = learned_by("sac", "head_on", short, **PRIORITISED)
    found["sac_choices"] = learned_by("sac", "probe_bandit")
    found["cql_choices"] = learned_by("cql", "probe_leaver")
    # Episodes of a few steps; with such a border every one succeeds, and phases follow each other.
    phases = {"curriculum.window": 3, "curriculum.evaluation_success": None, "world.border_m": 1e-3}
    convoy = {"world.task": "convoy_lock", "world.max_episode_steps": 7, **phases}
    found["racing_phases"] = scenario_of("gaplock_curriculum", {**PPO, **convoy})
    # Games of a few pills: some matches are made by chance, and one of three games is enough to go on.
    games = {"curriculum.window": 3, "curriculum.success_rate": 0.3, "curriculum.certificate": None}
    found["drmario_phases"] = scenario_of("drmario_curriculum", {**PPO, **games, "world.max_pills": 6})
    gate = {"at_least": 0.02, "max_episodes": 300, "retry_updates": 1}
    hardly = {"curriculum.window": 2, "curriculum.success_rate": 0.01, "curriculum.certificate": gate}
    found["drmario_certified"] = scenario_of("drmario_curriculum", {**PPO, **hardly, "world.max_pills": 6})
    found["drmario_adaptive"] = scenario_of("drmario_levels", {**PPO, "world.max_pills": 6})
    boards = {"collect.overlap": "deterministic", "world.max_pills": 6}
    found["impala_lag_boards"] = learned_by("impala", "drmario_level_0", boards, normalize_observation=False)
    averaged = {"algo.network": "dense_map", "algo.ema_decay": 0.7, "world.max_pills": 6}
    found["drmario_averaged"] = scenario_of("drmario_level_0", {**PPO, **averaged})
    found["drmario_versus"] = scenario_of("drmario_versus", {**PPO, "world.max_pills": 6})
    past = {"policies.past.every": 2, "policies.past.keep": 2, "policies.past.draw": "hard"}
    past["world.max_episode_steps"] = 7
    found["racing_past_selves"] = scenario_of("head_to_head_past_selves", {**PPO, **past})
    dqn = {"kind": "learning", "algo": learned_by("dqn", "probe_leaver", **PRIORITISED).algo.model_dump(mode="json")}
    two = {"a": {"kind": "learning"}, "b": dqn}
    found["rollout_and_replay"] = recast(scenario_of("probe_leaver", PPO), two, {"stays": "b", "leaves": "a"})
    return found


def wide_cases() -> dict[str, Scenario]:
    """Every algorithm with networks and batches that are worth a second thread (core/kernels/share.hpp)."""
    wide = {"hidden": [96, 96], "batch_size": 128, "minibatch_size": 128}
    shape = {"timesteps": 4 * 8 * 16, "collect.num_worlds": 8, "collect.rollout_length": 16}
    found = {}
    for kind, algorithm in ALGORITHMS.items():
        own = {key: value for key, value in wide.items() if key in ("hidden", _batch_key(kind))}
        few = {"training_intensity": 0.05} if algorithm.traits.data == "replay" else {}
        found[kind] = learned_by(kind, changes=shape, **own, **few)
    return found


def _batch_key(kind: str) -> str:
    return "batch_size" if ALGORITHMS[kind].traits.data == "replay" else "minibatch_size" if kind in OWN else ""


def threaded(scenario: Scenario) -> Scenario:
    """The same run on more threads, which may not change a bit."""
    return override(scenario, {"learner_threads": 2, "collect.world_threads": 2})


def begin(folder: Path, name: str, scenario: Scenario, updates: int) -> Result:
    """Train into folder/name and be interrupted."""
    return train(scenario, out=folder / name, models=folder / "models", display=StopAfter(updates))


def be_killed(folder: Path) -> None:
    """Kill copies of a run before every third file system call of an update and its save, then let them end."""
    begin(folder, "base", scenario_of("probe_constant", KILLED), 4)
    for number in range(1, 200, 3):
        run = folder / f"killed_{number}"
        shutil.copytree(folder / "base", run)
        code = _resume_and_die(run, number)
        if code == 0:
            shutil.rmtree(run)
            return
        assert code == -signal.SIGKILL, code
        resume(run, models=folder / "models")


def _resume_and_die(run: Path, number: int) -> int:
    """Resume in a child that is killed instead of its n-th call, once one update was reported; its exit code."""
    child = os.fork()  # this process has one thread
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    class Doom(Display):
        calls = 0

        def advance(self, done: int, text: str) -> None:
            if self.calls:  # the second update: all calls of the first were let through
                os._exit(0)
            for name in ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir"):
                setattr(os, name, self.before(getattr(os, name)))

        def before(self, call: Any) -> Any:
            def called(*args: Any, **kwargs: Any) -> Any:
                self.calls += 1
                if self.calls == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return called

    try:
        resume(run, models=run.parent / "models", display=Doom())
    finally:
        os._exit(1)


def main(verb: str, folder: Path) -> None:
    """Either half, or what a killed run goes through."""
    if verb == "kill":
        be_killed(folder)
        return
    for name, scenario in cases().items():
        if verb == "train":
            result = begin(folder, name, scenario, 3)
            assert (result.reason, result.model) == ("Ctrl+C", None), result
        else:
            result = resume(folder / name, models=folder / "models", display=StopAfter(2))
            assert (result.reason, result.counters.updates) == ("Ctrl+C", 5), result
            result = resume(folder / name, models=folder / "models")
            assert result.model is not None
    for name, scenario in wide_cases().items():
        if verb == "train":
            begin(folder, f"{name}_on_2", threaded(scenario), 2)
        else:
            assert resume(folder / f"{name}_on_2", models=folder / "models").counters.updates == 4


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
