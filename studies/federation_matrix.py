"""Every learner, rule and strategy of a federation, with and without worker processes: the same bits.

python studies/federation_matrix.py [--only td3,sac,dqn,meetings,others] [--jobs 1]     # make study-federation-matrix

A cell is three clients that learn together for a moment, twice: collecting in their own process, and with two workers
each. All arrays of their last checkpoints must be the same, and every round must have closed with all three.

`meetings` tries every transport, with and without privacy and secure sums, for every learner and strategy, rule and
server step (federation_meetings.py). It writes tables of rounds that closed, or why a run is refused, to
docs/results/federation_meetings.md. `others` tries weights, MAML, FedProx, distillation and the like in the same way.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, run_cells, save_cells

WORLDS = {"td3": "probe_target", "sac": "probe_target", "dqn": "probe_bandit"}
RULES = ("mean", "weighted_mean", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median")
STRATEGIES = ("local", "average", "reset")
MEETINGS, OTHERS = "meetings", "others"
PAGE = """# Which federated settings work together: transports, privacy, algorithms

Look up whether a transport works with an algorithm, with `privacy` and `secure`, and with each `optimizer_strategy`
(column moments). "2 closed" means that it works. "refused (1)" means that a run is refused at its start, for the reason
with that number below the table.

For each combination, three clients train apart, exchange weights, train on, and exchange again. `make
study-federation-matrix` repeats this page, or `python studies/federation_matrix.py --only meetings`.
"""
RULES_PAGE = """## Aggregators and server steps

The same with every aggregator, a function of your own among them, and every `server` step. Every algorithm of the table
above was tried; `optimizer_strategy` is local.
"""
OTHERS_PAGE = """# Which federated settings work together: weights, MAML, distillation and others

Look up whether a transport, `privacy` and `secure` work with client weights, MAML, FedProx, partial merging,
distillation, DP-SGD and late updates. "2 closed" means that it works. "refused (1)" means that a run is refused at its
start, for the reason with that number below the table. Where algorithms differ, they are named.

The combinations are tried as on [the other page](federation_meetings.md), with the same algorithms. With `merge_mu`
clients keep a part of their own weights, so they differ afterwards. `make study-federation-matrix` repeats this page,
or `python studies/federation_matrix.py --only others`.
"""
CLIENTS = 3
SHORT: dict[str, Any] = {
    "timesteps": 96, "learner_threads": 1, "device": "cpu", "collect.num_worlds": 4, "collect.rollout_length": 8,
    "algo.hidden": [16], "algo.batch_size": 16, "algo.training_intensity": 0.25, "algo.learning_starts": 32,
    "algo.replay.capacity": 200, "evaluate.evaluation_interval": None, "federated.enabled": True,
    "federated.clients": CLIENTS, "federated.interval": 4,
    "federated.defence": {"clip_norm": None, "max_norm": None, "min_cosine": None},
}  # fmt: skip


def run_cell(cell: Cell) -> Cell:
    """Both ways of collecting, compared."""
    with tempfile.TemporaryDirectory() as folder:
        serial, rounds = together(cell, Path(folder) / "serial", workers=0)
        spread, _ = together(cell, Path(folder) / "spread", workers=2)
    return {"same_bits": serial == spread, "rounds": rounds}


def together(cell: Cell, folder: Path, workers: int) -> tuple[list[str], int]:
    """Hashes of what the clients hold in the end, and how many rounds closed with all of them."""
    import msgspec

    from slipstream.config.load import load
    from slipstream.data import checkpoint
    from slipstream.federate.folder import HISTORY
    from slipstream.federate.rounds import RoundRecord
    from slipstream.run.session import train

    def one(client: int) -> str:
        own = {
            "algo.kind": cell["algo"], "federated.aggregator": cell["rule"], "collect.workers": workers,
            "federated.optimizer_strategy": cell["strategy"], "federated.root": str(folder / "rounds"),
            "federated.client": str(client), "seed": 100 + client,
        }  # fmt: skip
        done = train(load(WORLDS[cell["algo"]], {**SHORT, **own}), out=folder / str(client), models=folder / "models")
        arrays = checkpoint.load_latest(done.run / "checkpoints").checkpoint.arrays
        found = hashlib.sha256()
        for name in sorted(arrays):
            if not name.startswith("source."):  # of the collector, which is what differs
                found.update(name.encode() + arrays[name].tobytes())
        return found.hexdigest()

    with ThreadPoolExecutor(CLIENTS) as pool:
        hashes = list(pool.map(one, range(CLIENTS)))
    lines = (folder / "rounds" / "main" / HISTORY).read_bytes().splitlines()
    records = [msgspec.json.decode(line, type=RoundRecord) for line in lines]
    return hashes, sum(record.state == "closed" and len(record.participants) == CLIENTS for record in records)


def main() -> None:
    """Compute what is missing, and say what differs."""
    args = asked(__doc__, "federation_matrix", [*WORLDS, MEETINGS, OTHERS])
    bad = []
    if algos := [one for one in args.only if one in WORLDS]:
        cells = [
            {"algo": algo, "rule": rule, "strategy": strategy}
            for algo in algos
            for rule in RULES
            for strategy in STRATEGIES
        ]
        done = run_cells("federation_matrix", cells, run_cell, args.jobs, args.out)
        bad = [cell for cell in done if not cell["same_bits"] or not cell["rounds"]]
        rounds = sum(cell["rounds"] for cell in done)
        print(f"{len(done)} cells, {rounds} rounds with all three; {len(bad)} differ: {bad}")
    if MEETINGS in args.only:
        bad += meetings(args.out.with_name("federation_meetings.json"))
    if OTHERS in args.only:
        bad += others(args.out.with_name("federation_others.json"))
    sys.exit(bool(bad))


def meetings(path: Path) -> list[Cell]:
    """All of them, again, as they take some minutes; those in which a round did not close with all three."""
    from federation_meetings import ALGOS, ROUNDS, all_cells, as_table, learned, meet, rule_cells, rule_table
    from federation_meetings import together as alike

    done: dict[str, list[Cell]] = {"ways": [], "rules": []}
    for algo in ALGOS:
        clients = learned(algo)
        done["ways"] += [{**cell, **meet(cell, clients)} for cell in all_cells([algo])]
        done["rules"] += [{**cell, **meet(cell, clients)} for cell in rule_cells([algo])]
        print(algo, *(len(cells) for cells in done.values()), flush=True)
    save_cells(path, "federation_meetings", [*done["ways"], *alike(done["rules"])])
    found = {name: _judged(cells, ROUNDS) for name, cells in done.items()}
    ways, rules = as_table(done["ways"]), rule_table(done["rules"])
    text = f"{PAGE}\n{found['ways'][0]}\n\n{ways}\n\n{RULES_PAGE}\n{found['rules'][0]}\n\n{rules}\n"
    print(text)
    path.with_suffix(".md").write_text(text)
    return [cell for _, bad in found.values() for cell in bad]


def others(path: Path) -> list[Cell]:
    """Other ways to learn together, in every way to meet."""
    from federation_meetings import ALGOS, ROUNDS, extra_cells, extra_table, learned, meet
    from federation_meetings import together as alike

    done: list[Cell] = []
    for algo in ALGOS:
        clients = learned(algo)
        done += [{**cell, **meet(cell, clients)} for cell in extra_cells([algo])]
        print(algo, len(done), flush=True)
    save_cells(path, "federation_others", alike(done))
    said, bad = _judged(done, ROUNDS)
    text = f"{OTHERS_PAGE}\n{said}\n\n{extra_table(done)}\n"
    print(text)
    path.with_suffix(".md").write_text(text)
    return bad


def _judged(cells: Sequence[Cell], rounds: int) -> tuple[str, list[Cell]]:
    """How many combinations worked, in a sentence; and those that were neither refused nor did."""
    met = [cell for cell in cells if "refused" not in cell]
    differ = ("merge_mu",)  # by intention
    bad = [cell for cell in met if cell["rounds"] != rounds or not (cell["agree"] or cell.get("extra") in differ)]
    said = (
        f"Of {len(cells):,} combinations, {len(met) - len(bad):,} closed all {rounds} rounds with all three clients, "
        f"which then held the same weights. {len(cells) - len(met):,} are refused at the start. {len(bad)} did neither."
    )
    return said, bad


if __name__ == "__main__":
    main()
