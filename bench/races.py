"""How fast races step: cars, beams, a car behind, and the second thread. Called as `python bench/worlds.py racing`.

1. Environment steps per CPU second on one thread, 64 worlds, an oval, noise of 1 cm, range 30 m, all cars driven by
   pure pursuit, whose decisions are not timed. A step of f1tenth_gym is one physics step of 0.01 s (action_repeat 1); a
   decision of ours is four of them. f1tenth_gym cannot be installed from a registry, so its rate is the published 635
   steps per CPU second for 2 cars with 1080 beams, measured on the same kind of core; it is not measured here.
2. One scan of 1080 beams with nobody near, with a car behind and with one ahead, in turn.
3. The second thread against two processes, as bench/worlds.py measures it.
"""

from __future__ import annotations

import json
import os
import time
from statistics import median
from typing import Any

import numpy as np
from cells import RESULTS, machine

from slipstream.worlds.racing import oval
from slipstream.worlds.racing.config import CarConfig, LidarConfig, OvalTrack, RacingConfig, SpawnConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

CARS, BEAMS, REPEATS = (1, 2, 4), (54, 108, 1080), (1, 4)
WORLDS = 64
TARGET_RATE = 50_000  # 2 cars, 108 beams
PEER_RATE, PEER_FACTOR = 635, 15  # f1tenth_gym, 2 cars, 1080 beams
TARGET_BEHIND = 0.05


def main(quick: bool) -> None:
    """Measure, print, write."""
    record: dict[str, Any] = {"benchmark": "racing", "command": "python bench/worlds.py racing", **machine()}
    record["load_average"] = os.getloadavg()[0]
    print(f"{record['cpu']}, commit {record['commit']}, {record['date']}, load {record['load_average']:.1f}\n")
    record["rates"] = rates(0.3 if quick else 1.0, 1 if quick else 3)
    print_rates(record["rates"])
    record["behind"] = behind(5 if quick else 25)
    print_behind(record["behind"])
    if len(os.sched_getaffinity(0)) > 1:
        from worlds import FULL, QUICK, print_second_thread, second_thread

        effort = (QUICK if quick else FULL)._replace(paired_sizes=(256, 1024))
        record["second_thread"] = second_thread(effort, ("time_trial_oval", "gaplock_ppo"))
        print_second_thread(record["second_thread"])
    if not quick:
        (RESULTS / "racing_rates.json").write_text(json.dumps(record, indent=1) + "\n")


def race(cars: int, beams: int, repeat: int) -> RacingConfig:
    """Cars on an oval that go on for ever."""
    return RacingConfig(
        task="time_trial" if cars == 1 else "head_to_head",
        track=OvalTrack(straight_m=30.0, radius_m=8.0),
        cars=tuple(CarConfig(id=f"car_{i}") for i in range(cars)),
        lidar=LidarConfig(beams=beams, range_m=30.0),
        spawn=SpawnConfig(kind="random", gap_m=3.0),
        action_repeat=repeat,
        laps=1_000_000,
        max_episode_steps=10_000_000,
    )


def rates(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Steps per CPU second of every cell, all repeats, interleaved."""
    cells = [(cars, beams, repeat) for cars in CARS for beams in BEAMS for repeat in REPEATS]
    found: dict[tuple[int, int, int], list[float]] = {cell: [] for cell in cells}
    for _ in range(repeats):
        for cell in cells:
            found[cell].append(rate(*cell, seconds))
    return [
        {"cars": cars, "beams": beams, "action_repeat": repeat, "steps_per_cpu_s": found[cars, beams, repeat]}
        for cars, beams, repeat in cells
    ]


def rate(cars: int, beams: int, repeat: int, seconds: float) -> float:
    """Steps per CPU second of the worlds alone."""
    env = make_worlds(race(cars, beams, repeat), WORLDS, EnvOptions(seed=1))
    env.reset()
    used, steps = 0.0, 0
    warm = 20
    while used < seconds:
        env.act_scripted("pure_pursuit", range(cars))
        start = time.process_time()
        env.step()
        if warm:
            warm -= 1
            continue
        used += time.process_time() - start
        steps += WORLDS
    return steps / used


def print_rates(rows: list[dict[str, Any]]) -> None:
    best = {(r["cars"], r["beams"], r["action_repeat"]): median(r["steps_per_cpu_s"]) for r in rows}
    print("Environment steps per CPU second on one thread, medians: physics steps of 0.01 s (decisions of 0.04 s)\n")
    print("| cars | " + " | ".join(f"{beams} beams" for beams in BEAMS) + " |\n|---:" + "|---:" * len(BEAMS) + "|")
    for cars in CARS:
        values = [f"{best[cars, beams, 1]:,.0f} ({best[cars, beams, 4]:,.0f})" for beams in BEAMS]
        print(f"| {cars} | " + " | ".join(values) + " |")
    peer = best[2, 1080, 1]
    print(f"\n2 cars, 108 beams: {best[2, 108, 1]:,.0f} and {best[2, 108, 4]:,.0f} (target {TARGET_RATE:,})")
    print(f"2 cars, 1080 beams: {peer:,.0f}, {peer / PEER_RATE:.1f} times {PEER_RATE} (target {PEER_FACTOR})\n")


def behind(rounds: int) -> dict[str, Any]:
    """Microseconds of a scan by who is near, measured in turn."""
    track = oval(30.0, 8.0, 2.2)
    x, y = track.at(10.0)
    yaw = float(track.progress((x, y)).heading_rad)

    def there(ahead: float) -> list[tuple[float, float, float]]:
        return [(x + ahead * np.cos(yaw), y + ahead * np.sin(yaw), yaw)]

    opponents = {"nobody": there(500.0), "behind": there(-1.5), "ahead": there(1.5)}
    times: dict[str, list[float]] = {name: [] for name in opponents}
    for _ in range(rounds):
        for name, cars in opponents.items():
            start = time.process_time()
            for _ in range(400):
                track.scan((x, y, yaw), 1080, 4.7, 30.0, cars)
            times[name].append((time.process_time() - start) / 400 * 1e6)
    more = median(b / a for a, b in zip(times["nobody"], times["behind"], strict=True)) - 1.0
    return {"microseconds": times, "behind_costs_more": more}


def print_behind(found: dict[str, Any]) -> None:
    shown = ", ".join(f"{name} {median(values):.1f} us" for name, values in found["microseconds"].items())
    print(f"One scan of 1080 beams: {shown}; a car behind costs {found['behind_costs_more']:+.1%}")
    print(f"(target below {TARGET_BEHIND:.0%})\n")
