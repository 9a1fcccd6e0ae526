"""docs/scaling.md and its pictures, from what was measured and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cells import RESULTS, ROOT, Cell
from scaling_measure import WORLDS
from scaling_model import GPU, JITTER, LINKS, MODELS, NODE_WORKERS, TRAIN_S, WORKERS, Check, Costs, cluster
from scaling_sim import bound

NEAR = 0.2  # of what was measured
PAGE = ROOT / "docs" / "scaling.md"
WORLD_NAMES = {"head_on": "head_on (a microsecond a step)", "works": "works (a millisecond a step)"}
OVERLAPS = ("none", "deterministic", "free")
COLOURS = ("#b5532a", "#3b6ea5", "#2f8f5b")

TEXT = """# Scaling: workers, replicas, nodes, or a GPU?

What would another core, another machine or a GPU bring? This page has the costs of every part, **measured** on two
cores; a small simulation that is fed with them; and what it says about 1 to 10,000 workers and 1 to 1,000 replicas.
Nobody has run Slipstream on a thousand machines: whatever goes beyond two cores here is **simulated**, and rests on a
few numbers that are **assumed**. Every heading says which it is.

<!-- not run: a quarter of an hour on an idle machine, and it overwrites the results -->
```bash
make study-scaling                        # all of it; or one by one:
python studies/scaling.py measure         # costs and loops of this machine: docs/results/scaling.json
python studies/scaling.py simulate        # docs/results/scaling_simulated.json
python studies/scaling.py page            # this page and its pictures
```

## What to add

{advice}

## What things cost (measured)

Core seconds on {cpu}, commit `{commit}`, medians of {repeats} repeats, one thread each. Step, inference, recording
and updates are per row: one step of one agent.

{costs}

A slab is what a worker makes between two orders: {slabs}. *Alone* is collecting it in the learner's own process, *by
a worker* is with writing it into shared memory and loading weights, *waiting* is when no core is used. The learner's
*part* is order, answer and copy of one worker's slab. `works` computes for a millisecond a step; `waits` sleeps for
one, as a world does that is another program.

{more_costs}

## Is the simulation right? (measured beside simulated)

The simulation gets the costs above, none of which come from a loop with two workers, and says how fast whole loops
run on two cores: take, update, publish, without evaluation and reports. {verdict}

{checks}

Medians and ranges of {repeats} repeats. The machine was shared; while a clock ran, what was measured went before
everything else on it, a learner and its only worker had a core each, and so had the replay service. Rings and gossip
are from `docs/results/federation_peers.json` (best and median): costs from 2 processes, checked with 4.

Two repeats of the loops from before learner and worker had a core each were thrown away: with others busy, both had
been put on one core, and head_on with a fixed lag made 96 k rows a second instead of 133 k (the simulation said 131 k).
Loops without workers are hardly a test, since costs come from such loops; the service's price of a draw comes from the
point with one producer.

With several producers and the learner on the one core that was left for them, the replay service is not predicted
well: who of them runs next is up to the operating system, and the repeats themselves differ by a factor of almost two.
With one producer it is; in the table further down every client has a core of its own.

## Workers (simulated)

Every worker has a core of its own and the worlds of a whole slab, so twice the workers are twice the rows in every
update. The learner has one core, APPO's updates, and one link through which slabs come by TCP. **Assumed**: a GPU
makes updates {gpu:g} times as fast, and all else stays on the learner's core; slabs vary by {jitter} (deviation); the
{node} workers of a machine fetch weights once; 0.1 ms latency.

![Rows per second by number of workers, simulated](results/scaling_workers.png)

Rows per second at most, and in brackets the least number of workers (of {counts}) with nine tenths of that:

{workers}

*Waits for* is what was busy nine tenths of the time or more with 10,000 workers and a fixed lag. The closed form (the
least of what each part could do by itself) is the grey line; the simulation is tested against it.

- **In turn** (`overlap: none`) learner and workers are never busy at once. That costs most where both take equally
  long, and little where an update of so many rows takes far longer than collecting them.
- **Fixed lag** (`deterministic`) and **free** end at the same rate: both keep the narrowest part busy. With few
  workers free is behind, because a worker with one slot (`prefetch: 1`) waits until its slab was sent and copied.
- More rows in an update are not more learning: the simulation counts rows, and knows nothing of what a larger batch
  is worth.

## A replay service (simulated)

Producers on machines of their own; one learner draws batches of 256 and learns from each for as long as SAC does on
one core here (`docs/results/learners.json`), or {gpu:g} times as fast (assumed).

{replay}

One learner draws far less than a service can give: the learner is what to make faster. With 1 Gbit the link is full
with two fast producers; with 10 Gbit the service's one core is, with a dozen of them or some thousands of slow ones.
Very many get less out of it than a hundred do, because each of its turns then finds fewer blocks.

## Replicas (simulated)

Replicas train for {train:g} s between rounds (assumed, as is that they vary by {jitter}) and meet at a coordinator,
in a ring or in pairs. The share of time that is left for training, by replicas:

![Share of time spent training, by replicas, simulated](results/scaling_replicas.png)

{replicas}

- A **coordinator** takes every update through one core, one disk and one link: its round grows with the number of
  replicas.
- In a **ring** every link carries twice the model, however many there are. What grows is the time until all have
  found each other: as it is done now, somebody talks to everybody. That, not bandwidth, ends it.
- **Gossip** costs the same for any number, and a pair waits for nobody else; but after a round only pairs agree.

## What this leaves out

- `collect.workers` is at most 1,024, and the pool watches its sockets with `select`, which ends at about a thousand:
  beyond that, lines are what the design would do, not what the code does. On Ray a thread forwards messages for each
  worker ([ray](ray.md)): dozens, not thousands.
- An order cost the same with 1 as with 64 workers (measured); that it still does with thousands is assumed.
- The learner's copying and its update take turns on one core, as in the code. An update may use several threads
  (`learner_threads`).
- Evaluation, reports, checkpoints, failures, other traffic on links. And memory: {memory}
- Other processors have other costs. Run `make study-scaling` where it matters.
"""


def table(head: str, rows: Sequence[Sequence[str]]) -> str:
    """`head`: columns by |."""
    columns = head.split("|")
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def short(value: float) -> str:
    """Three digits: 1.23 M, 456 k, 78.9."""
    for unit, size in ((" M", 1e6), (" k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def number(count: int) -> str:
    return "one" if count == 1 else f"{count:,}"


def pick(rows: Sequence[Cell], **wanted: Any) -> list[Cell]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def most(rows: Sequence[Cell]) -> float:
    return max(float(row["per_s"]) for row in rows)


def enough(rows: Sequence[Cell]) -> int:
    """The least number of workers with nine tenths of the best rate."""
    best = most(rows)
    return int(next(row["workers"] for row in rows if row["per_s"] >= 0.9 * best))


# --- tables ---


def cost_table(costs: Costs) -> str:
    rows = []
    for name, world in costs.worlds.items():
        alone, waits = world.serial_s(world.worlds), world.wait_s(world.worlds)
        split = [seconds(alone * world.shares[key] / world.rows) for key in ("world", "act", "record")]
        updates = [seconds(world.update_s[algo]) for algo in ("ppo", "appo")]
        slab = [alone, world.worker_s(world.worlds), world.part_s(world.worlds)]
        rows.append([f"`{name}`", *split, *updates, *map(seconds, slab), seconds(waits) if waits else "-"])
    head = "world|step|inference|recording|PPO update|APPO update|slab alone|by a worker|learner's part|waiting"
    return table(head, rows)


def more_costs(costs: Costs) -> str:
    serving, ring = costs.serving, costs.ring
    pairs: list[tuple[str, list[float]]] = [
        ("the learner: an order and its answer, without the slab", [costs.order(1)]),
        ("a megabyte received by TCP; copied", [costs.tcp_byte_s * 1e6, costs.copy_byte_s * 1e6]),
        ("256 rows into a replay service: client; service; its turn", [serving.add_s, serving.keep_s, serving.turn_s]),
        ("256 rows out of it: client; service", [serving.draw_s, serving.give_s]),
        ("a ring: finding each other, per peer; a megabyte", [ring["meet_s"], ring["reduce_byte_s"] * 1e6]),
        ("a pair: finding each other; a megabyte", [ring["pair_s"], ring["pair_byte_s"] * 1e6]),
    ]
    for size, keep in costs.coordinator_s.items():
        wait, client = costs.disk_s[size], costs.client_s[size]
        what = f"a coordinator, {size:,} parameters, per client: core; disk; the client's core; and once a round"
        pairs.append((what, [keep.each, wait.each, client, keep.at_zero + wait.at_zero]))
    rows = [[what, "; ".join(map(seconds, values))] for what, values in pairs]
    crowded = [f"{percent(world.crowded)} ({name})" for name, world in costs.worlds.items() if name != "waits"]
    return table("what|seconds", [*rows, ["speed of a core while the other one works too", ", ".join(crowded)]])


def check_table(found: Sequence[Check]) -> str:
    rows = []
    for check in found:
        show = short if check.unit == "rows/s" else seconds
        ratio = f"{check.ratio:.2f}" if abs(check.ratio - 1) <= NEAR else f"**{check.ratio:.2f}**"
        span = f"{show(check.low)} to {show(check.high)}"
        rows.append([check.what, show(check.measured), span, show(check.simulated), ratio])
    return table("point (rows per second, or seconds of a round)|measured|range|simulated|simulated / measured", rows)


def verdict(found: Sequence[Check]) -> str:
    loops = [check for check in found if check.what.split(",")[0] in WORLDS]
    others = [check for check in found if check not in loops]

    def say(checks: Sequence[Check], what: str) -> str:
        near = sum(abs(check.ratio - 1) <= NEAR for check in checks)
        worst = max(abs(check.ratio - 1) for check in checks)
        return f"{near} of {len(checks)} {what} are within {percent(NEAR)}, the worst is {percent(worst)} off"

    far = [check.what for check in found if abs(check.ratio - 1) > NEAR]
    tail = f" **Not within:** {'; '.join(far)}." if far else ""
    return f"{say(loops, 'loops of training')}; {say(others, 'points of replay and federation')}.{tail}"


def worker_table(rows: Sequence[Cell]) -> str:
    lines = []
    for world in WORLD_NAMES:
        for gpu in (False, True):
            for link in LINKS:
                own = {way: pick(rows, world=world, gpu=gpu, link=link, overlap=way) for way in OVERLAPS}
                cells = [f"{short(most(own[way]))} ({enough(own[way]):,})" for way in OVERLAPS]
                one = short(own["deterministic"][0]["per_s"])
                last = own["deterministic"][-1]["bottleneck"]
                lines.append([f"`{world}`", "GPU" if gpu else "CPU", link, one, *cells, last])
    return table("world|learner|link|1 worker, fixed lag|in turn|fixed lag|free|waits for", lines)


def replay_table(rows: Sequence[Cell]) -> str:
    lines = []
    for row in pick(rows, gpu=False):
        if row["producers"] in (1, 10, 100, 10_000):
            key = {name: row[name] for name in ("world", "link", "producers")}
            drawn = [pick(rows, gpu=gpu, **key)[0]["out_per_s"] for gpu in (False, True)]
            figures = map(short, (row["per_s"], *drawn))
            lines.append([f"`{row['world']}`", row["link"], f"{row['producers']:,}", *figures, row["bottleneck"]])
    return table("world|link|producers|rows/s in|drawn, CPU|drawn, GPU|what comes in waits for", lines)


def replica_table(rows: Sequence[Cell]) -> str:
    lines = []
    for parameters in MODELS:
        for link in LINKS:
            for way in ("star", "ring", "gossip"):
                own = pick(rows, parameters=parameters, link=link, way=way)
                shares = [percent(row["efficiency"]) for row in own if row["replicas"] in (4, 30, 100, 1000)]
                name, last = way.replace("star", "coordinator"), own[-1]
                took = [seconds(last["seconds"]), last["bottleneck"]]
                lines.append([f"{parameters:,}", link, name, *shares, *took])
    return table("parameters|link|way|4|30|100|1,000|a round of 1,000|most of the time lost", lines)


def advice(costs: Costs, rows: Sequence[Cell], replicas: Sequence[Cell]) -> str:
    """The answers, in words."""

    def of(world: str, gpu: bool, link: str = "10 Gbit") -> list[Cell]:
        return pick(rows, world=world, gpu=gpu, overlap="deterministic", link=link)

    fast, slow = costs.worlds["head_on"], costs.worlds["works"]
    update = fast.update_s["ppo"] * fast.rows
    share = update / (fast.serial_s(fast.worlds) + update)
    star = pick(replicas, parameters=MODELS[-1], link="1 Gbit", way="star")
    good = max((row["replicas"] for row in star if row["efficiency"] >= 0.8), default=1)
    cpu, gpu = of("head_on", False), of("head_on", True)
    slow_cpu, slow_gpu = of("works", False), of("works", True)
    thin = of("head_on", True, "1 Gbit")
    return f"""- **Fast worlds and a CPU learner: one worker beside the learner, no more.** In head_on {percent(share)} of PPO's loop is the update
  (measured), so two workers in turn bring nothing. A worker that collects while the learner learns (`collect.overlap`, for algorithms that may learn from an
  older policy) hides what collecting costs; with {number(enough(cpu))} the learner's core is full, at {short(most(cpu))} rows a second (simulated; measured on two cores too).
- **Slow worlds: workers.** At a millisecond a step, one makes {short(slow.rows / slow.worker_s(slow.worlds))} rows a second (measured). Every one adds its rate until the learner's core is full: about
  {enough(slow_cpu):,} of them, {short(most(slow_cpu))} rows a second (simulated). They may be on other machines; 1 Gbit is plenty.
- **A GPU, once the learner is what all wait for.** With updates {GPU:g} times as fast (assumed) head_on makes {short(most(gpu))} rows a second with {enough(gpu):,} workers, {most(gpu) / most(cpu):.1f} times
  as many and not {GPU:g}: then it waits for the learner's core, which hears and copies slabs. At a millisecond a step it is of no use below
  {enough(slow_cpu):,} workers, and brings {most(slow_gpu) / most(slow_cpu):.1f} times the rows with {enough(slow_gpu):,} (simulated).
- **A faster link, for a GPU in fast worlds only:** 1 Gbit ends at {short(most(thin))} rows a second of head_on (simulated).
- **Replicas** multiply whole runs and wait for each other only in rounds. At a coordinator, with a million parameters, 1 Gbit and a round every {TRAIN_S:g} s,
  about {good:,} keep four fifths of their time for training (simulated). With more, meet less often, or in pairs."""  # noqa: E501


# --- pictures ---


def plot(axis: Any, rows: Sequence[Cell], x: str, y: str, style: str, colour: str, label: str) -> None:
    axis.plot([r[x] for r in rows], [r[y] for r in rows], style, color=colour, marker="o", ms=3, label=label)


def finish(figure: Any, title: str, path: Path) -> None:
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_workers(costs: Costs, rows: Sequence[Cell], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6))
    for axis, (world, name) in zip(axes, WORLD_NAMES.items(), strict=True):
        for gpu, style in ((False, "-"), (True, "--")):
            caps = [min(bound(cluster(costs, world, n, "deterministic", "10 Gbit", gpu)).values()) for n in WORKERS]
            axis.plot(WORKERS, caps, color="#d0d0d0", lw=6, zorder=0, label=None if gpu else "closed form")
            for overlap, colour in (("none", COLOURS[0]), ("deterministic", COLOURS[1])):
                own = pick(rows, world=world, gpu=gpu, link="10 Gbit", overlap=overlap)
                how = "in turn" if overlap == "none" else "fixed lag"
                plot(axis, own, "workers", "per_s", style, colour, f"{'GPU (assumed)' if gpu else 'CPU'}, {how}")
        thin = pick(rows, world=world, gpu=True, link="1 Gbit", overlap="deterministic")
        plot(axis, thin, "workers", "per_s", ":", "#777777", "GPU (assumed), fixed lag, 1 Gbit")
        axis.set(xscale="log", yscale="log", xlabel="workers, a core each", title=name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("rows per second")
    axes[1].legend(fontsize=8, loc="lower right", title="learner, overlap; 10 Gbit")
    finish(figure, "Simulated from costs measured on two cores", path)


def draw_replicas(rows: Sequence[Cell], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    shown = [{**row, "share": 100 * row["efficiency"]} for row in rows]
    for axis, parameters in zip(axes, MODELS, strict=True):
        for way, colour in zip(("star", "ring", "gossip"), COLOURS, strict=True):
            for link, style in (("1 Gbit", "-"), ("10 Gbit", "--")):
                own = pick(shown, parameters=parameters, link=link, way=way)
                plot(axis, own, "replicas", "share", style, colour, f"{way.replace('star', 'coordinator')}, {link}")
        axis.set(xscale="log", xlabel="replicas", title=f"{parameters:,} parameters", ylim=(0, 103))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"% of time training, a round every {TRAIN_S:g} s")
    axes[0].legend(fontsize=8, loc="lower left")
    finish(figure, "Simulated from costs measured on one machine", path)


def draw(costs: Costs, simulated: Cell) -> None:
    draw_workers(costs, simulated["workers"], RESULTS / "scaling_workers.png")
    draw_replicas(simulated["replicas"], RESULTS / "scaling_replicas.png")


def write_page(measured: Cell, costs: Costs, found: Sequence[Check], simulated: Cell) -> str:
    size = costs.worlds["head_on"].bytes(costs.worlds["head_on"].worlds)
    return TEXT.format(
        advice=advice(costs, simulated["workers"], simulated["replicas"]),
        cpu=measured["cpu"],
        commit=measured["commit"],
        repeats=len({cell["repeat"] for cell in measured["cells"]}),
        costs=cost_table(costs),
        slabs=", ".join(f"`{name}` {width} worlds x {ticks} steps" for name, (width, ticks) in WORLDS.items()),
        more_costs=more_costs(costs),
        verdict=verdict(found),
        checks=check_table(found),
        gpu=GPU,
        jitter=percent(JITTER),
        node=NODE_WORKERS,
        workers=worker_table(simulated["workers"]),
        counts=", ".join(f"{n:,}" for n in WORKERS),
        replay=replay_table(simulated["replay"]),
        train=TRAIN_S,
        replicas=replica_table(simulated["replicas"]),
        memory=f"a slab of head_on has {size / 1e6:.1f} MB, an update from 10,000 of them {size * 1e4 / 1e9:.0f} GB.",
    )
