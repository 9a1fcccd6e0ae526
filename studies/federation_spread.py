"""How far honest updates lie apart, beside the length of their mean: what the proof behind Krum needs to be small.

python studies/federation_spread.py    # half a minute; nothing is kept, docs/results/federation.md quotes it

Krum is proven to resist f liars among n where the honest updates' deviation (of all numbers together) is below the norm
of their mean by a factor η(n, f) (Blanchard et al. 2017). The clients are those of federation_attacks.py
without liars, by the mean, in their first eight rounds, on seeds the tables do not use.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from federation_attacks import CLIENTS, OFF, TASKS, Server, Task, flat, make_client, update_of, weights_of

from slipstream.algos.registry import rules_for

SEEDS, ROUNDS, LIARS = (1, 2), 8, 2


def main() -> None:
    torch.set_num_threads(1)
    for name, task in TASKS.items():
        found = [ratio for seed in SEEDS for ratio in ratios(task, seed)]
        low, middle, high = min(found), float(np.median(found)), max(found)
        print(f"{name}: deviation / norm of the mean {middle:.2f} ({low:.2f} to {high:.2f}, {len(found)} rounds)")
    print(f"proven for Krum below {1.0 / eta(CLIENTS, LIARS):.2f} ({CLIENTS} clients, {LIARS} liars)")


def ratios(task: Task, seed: int) -> list[float]:
    """Of every round."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        scenarios = task.scenarios_of(seed, task.rounds)
        clients = {str(i): make_client(each, Path(folder) / str(i)) for i, each in enumerate(scenarios)}
        start = clients["0"].learner.state_dict()
        server = Server("mean", LIARS, OFF, rules_for(start))
        weights = weights_of(server.rules)
        for number in range(1, ROUNDS + 1):
            for client in clients.values():
                client.learn(False)
            base = server.base
            updates = [update_of(name, each, number, base.hash if base else "") for name, each in clients.items()]
            before = flat(base.arrays if base else start, weights)
            moved = np.stack([flat(update.arrays, weights) - before for update in updates])
            found.append(float(np.sqrt(moved.var(0, ddof=1).sum()) / np.linalg.norm(moved.mean(0))))
            merged = server.close(updates)
            assert merged is not None
            for client in clients.values():
                client.go_on(merged)
    return found


def eta(n: int, f: int) -> float:
    """The factor of the proof."""
    return float(np.sqrt(2 * (n - f + (f * (n - f - 2) + f * f * (n - f - 1)) / (n - 2 * f - 2))))


if __name__ == "__main__":
    main()
