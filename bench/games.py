"""How fast games of Dr. Mario go. Called as `python bench/worlds.py drmario`.

1. Raw frames per CPU second of one game with random buttons, resets not timed.
2. Planned decisions per CPU second on one thread by level (high speed, random placements, whose choice is not timed),
   and where a decision's microseconds go: the planner alone on the same boards, the frames at the raw rate, and the
   rest (observation, mask, bookkeeping).
3. Threads and batch sizes, by wall time.
4. A million decisions of random play: the longest a decision ever lasted, and that each had something to choose.

The public reference pool makes 17 to 440 decisions per second on the same kind of core; it is in no registry, so that
is its published figure and not measured here.
"""

from __future__ import annotations

import json
import os
import time
from statistics import median
from typing import Any

import numpy as np
from cells import RESULTS, machine

from slipstream.worlds.drmario import Engine, plan, seed_at
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, VecEnv

LEVELS = (0, 5, 10, 15, 20)
WORLDS = 64
SIZES, THREADS = (1, 16, 64, 256, 1024), (1, 2)
RAW_TARGET, TARGET, FLOOR = 20e6, 10_000, 1_300
REFERENCE = (17, 440)


def main(quick: bool) -> None:
    """Measure, print, write."""
    record: dict[str, Any] = {"benchmark": "drmario", "command": "python bench/worlds.py drmario", **machine()}
    record["load_average"] = os.getloadavg()[0]
    print(f"{record['cpu']}, commit {record['commit']}, {record['date']}, load {record['load_average']:.1f}\n")
    repeats = 1 if quick else 5
    record["levels"] = [by_level(level, repeats, 0.3 if quick else 1.0) for level in LEVELS]
    print_levels(record["levels"])
    record["threads"] = [scaled(n, t, 0.3 if quick else 1.0) for n in SIZES for t in THREADS]
    print_threads(record["threads"])
    record["regression"] = long_play(20_000 if quick else 1_000_000)
    print_regression(record["regression"])
    if not quick:
        (RESULTS / "drmario_rates.json").write_text(json.dumps(record, indent=1) + "\n")


def games(level: int, worlds: int = WORLDS, threads: int = 1, **changes: Any) -> VecEnv:
    """A batch at high speed, spread over its episodes."""
    config = DrMarioConfig.model_validate({"levels": (level,), "speed": "high", **changes})
    env = make_worlds(config, worlds, EnvOptions(seed=level, threads=threads))
    env.reset()
    for _ in range(30):
        env.act_scripted("random", range(env.spec.num_agents))
        env.step()
    return env


def raw_rate(level: int, seconds: float) -> float:
    """Frames per CPU second."""
    rng = np.random.default_rng(level)
    buttons = rng.choice(np.array([0, 0, 0, 0, 1, 2, 4, 64, 128, 65], np.uint8), 40_000)
    used, frames = 0.0, 0
    while used < seconds:
        engine = Engine(level, "high", seed_at(int(rng.integers(1, 32768))))
        first = int(rng.integers(20_000))
        start = time.process_time()
        frames += engine.run(buttons[first:])
        used += time.process_time() - start
    return frames / used


def by_level(level: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Rates of one level, all repeats."""
    raw = [raw_rate(level, seconds) for _ in range(repeats)]
    env = games(level)
    decisions, frames, planner = [], [], []
    for _ in range(repeats):
        used, steps, ticks = 0.0, 0, 0
        while used < seconds:
            env.act_scripted("random", [0])
            start = time.process_time()
            env.step()
            used += time.process_time() - start
            steps += WORLDS
            ticks += int(env.ticks.sum())
        decisions.append(steps / used)
        frames.append(ticks / steps)
        planner.append(plan_us(env))
    return {
        "level": level, "raw_frames_per_cpu_s": raw, "decisions_per_cpu_s": decisions, "frames_per_decision": frames,
        "plan_us": planner,
    }  # fmt: skip


def plan_us(env: VecEnv) -> float:
    """Microseconds of a plan on the boards the batch has now, less what the call itself takes."""
    boards = [env.frame(i)[0, :128].astype(np.uint8) for i in range(WORLDS)]
    full = np.full(128, 0x80, np.uint8)  # nothing to plan: the price of asking

    def price(asked: list[np.ndarray[Any, Any]]) -> float:
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for board in asked:
                plan(board, threshold=13)
            best = min(best, (time.process_time() - start) / len(asked))
        return best

    return 1e6 * (price(boards) - price([full] * WORLDS))


def print_levels(rows: list[dict[str, Any]]) -> None:
    print("One thread, per CPU second, medians\n")
    print("| level | raw frames | planned decisions | times the reference | us per decision: plan | frames | rest |")
    print("|---:" * 7 + "|")
    for row in rows:
        rate, raw = median(row["decisions_per_cpu_s"]), median(row["raw_frames_per_cpu_s"])
        whole, planner = 1e6 / rate, median(row["plan_us"])
        run = 1e6 * (median(row["frames_per_decision"]) - 20) / raw  # those of the fall are jumped over
        print(
            f"| {row['level']} | {raw / 1e6:.1f}M | {rate:,.0f} | {rate / REFERENCE[1]:,.0f} to "
            f"{rate / REFERENCE[0]:,.0f} | {planner:.1f} | {run:.1f} | {whole - planner - run:.1f} |"
        )
    raw = min(median(row["raw_frames_per_cpu_s"]) for row in rows)
    rate = min(median(row["decisions_per_cpu_s"]) for row in rows)
    print(f"\nraw frames, least: {raw / 1e6:.1f}M (target {RAW_TARGET / 1e6:.0f}M)")
    print(f"decisions, least: {rate:,.0f} (target {TARGET:,}, floor {FLOOR:,})\n")


def scaled(worlds: int, threads: int, seconds: float) -> dict[str, Any]:
    """Decisions per second of wall time at level 10, choices not timed."""
    env = games(10, worlds, threads)
    used, steps, ticks = 0.0, 0, 0
    while used < seconds:
        env.act_scripted("random", [0])
        start = time.perf_counter()
        env.step()
        used += time.perf_counter() - start
        steps += worlds
        ticks += int(env.ticks.sum())
    return {"worlds": worlds, "threads": threads, "decisions_per_s": steps / used, "frames_per_s": ticks / used}


def print_threads(rows: list[dict[str, Any]]) -> None:
    print("Level 10, decisions per second of wall time (frames of play)\n")
    print("| worlds | " + " | ".join(f"{t} thread{'s' * (t > 1)}" for t in THREADS) + " | gain |\n" + "|---:" * 4 + "|")
    for n in SIZES:
        one, two = (row for row in rows if row["worlds"] == n)
        cells = [f"{r['decisions_per_s']:,.0f} ({r['frames_per_s'] / 1e6:.1f}M)" for r in (one, two)]
        print(f"| {n} | {cells[0]} | {cells[1]} | {two['decisions_per_s'] / one['decisions_per_s']:.2f} |")
    print()


def long_play(wanted: int) -> dict[str, Any]:
    """Random play of every kind: spawn to spawn, clears, top-outs, cut games, two players."""
    kinds: tuple[dict[str, Any], ...] = (
        {"level": 0, "max_pills": 60}, {"level": 0, "speed": "low"}, {"level": 12}, {"level": 20},
        {"level": 3, "players": 2}, {"level": 0, "phases": ({"name": "one", "viruses": 1},)},
    )  # fmt: skip
    found = {"decisions": 0, "longest_frames": 0, "cleared": 0, "topped_out": 0, "cut": 0, "nothing_to_choose": 0}
    for kind in kinds:
        env = games(worlds=256, threads=len(os.sched_getaffinity(0)), **kind)
        column = env.spec.stats.index
        done = 0
        while done < wanted / len(kinds):
            env.act_scripted("random", range(env.spec.num_agents))
            done += int(env.acting.sum())
            env.step()
            acting = env.acting != 0
            assert env.action_mask is not None
            found["nothing_to_choose"] += int(
                (~env.action_mask[acting].any(axis=1)).sum() + (~acting.any(axis=1)).sum()
            )
            found["longest_frames"] = max(found["longest_frames"], int(env.ticks.max()))
            stats = env.episode_stats[env.episode_done != 0]
            for name, figure in (("cleared", "success"), ("topped_out", "top_out"), ("cut", "timeout")):
                found[name] += int(stats[:, column(figure)].sum())
        found["decisions"] += done
    return found


def print_regression(found: dict[str, Any]) -> None:
    print(
        f"{found['decisions']:,} decisions of random play: {found['cleared']:,} games cleared, "
        f"{found['topped_out']:,} topped out, {found['cut']:,} cut off; the longest decision took "
        f"{found['longest_frames']:,} frames; "
        f"{found['nothing_to_choose']} had nothing to choose"
    )
