"""What Flower 1.41.0 makes of given arrays, as recorded in flower_numbers.json.

Recorded in an environment of its own, where flwr and numpy of constraints.txt are installed:

    python3 -m venv flwrenv && flwrenv/bin/pip install -c constraints.txt flwr==1.41.0 numpy
    flwrenv/bin/python tests/federate/flower_numbers.py
"""

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np

RECORDED = Path(__file__).with_suffix(".json")
SHAPES = {"weight": (3, 4), "bias": (4,), "scale": ()}
CASES = [(1, 3, 0), (2, 5, 1), (3, 7, 1), (4, 8, 1), (5, 10, 2), (6, 11, 2)]  # seed, clients, liars
SERVER = {"rate": 0.05, "beta1": 0.8, "beta2": 0.95, "tau": 1e-2}
ROUNDS = 4


def clients(seed, count, liars):
    """Clients that agree but for noise, and liars among them; float64, so that both sides can be compared to 1e-9."""
    rng = np.random.default_rng(seed)
    centre = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    made = {}
    for index in range(count):
        lie = 50.0 if index < liars else 0.1
        made[f"c{index:02}"] = {name: array + lie * rng.normal(size=array.shape) for name, array in centre.items()}
    return made


def weights(seed, count):
    """Examples of each client, within twice their median."""
    return dict(zip(sorted(clients(seed, count, 0)), (10 + np.arange(count)).tolist(), strict=True))


def by_flower(seed, count, liars):
    """The rules of flwr.server.strategy.aggregate on these clients, as flat lists of numbers."""
    from flwr.server.strategy import aggregate as flower

    made = clients(seed, count, liars)
    examples = weights(seed, count)

    def results(counts=None):
        return [
            ([np.asarray(array) for array in made[c].values()], 1 if counts is None else counts[c])
            for c in sorted(made)
        ]

    found = {
        "mean": flower.aggregate(results()),
        "weighted_mean": flower.aggregate(results(examples)),
        "median": flower.aggregate_median(results()),
        # A fraction that makes Flower cut off exactly `liars` at each end.
        "trimmed_mean": flower.aggregate_trimmed_avg(results(), (liars + 0.5) / count),
        "krum": flower.aggregate_krum(results(), liars, 0),
    }
    if count >= 2 * liars + 3:
        found["multi_krum"] = flower.aggregate_krum(results(), liars, count - liars - 2)
    if count >= 4 * liars + 3:
        found["bulyan"] = flower.aggregate_bulyan(results(), liars, flower.aggregate_krum, to_keep=0)
    return {rule: plain(arrays) for rule, arrays in found.items()}


def server_means(seed):
    """The aggregates of some rounds, as offsets that a server optimiser goes on from wherever it is."""
    rng = np.random.default_rng(seed)
    return [{name: rng.normal(size=shape) * 0.1 for name, shape in SHAPES.items()} for _ in range(ROUNDS + 1)]


def server_by_flower(kind, seed):
    """FedAdam or FedYogi of flwr.serverapp over some rounds, as flat lists of numbers.

    Flower's first round has the number 1 and FedAdam's bias correction adds one to it; we count steps from 1. Here
    Flower is told of rounds 0, 1, 2 …, which makes both count alike.
    """
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAdam, FedAvg, FedYogi

    names = {"eta": "rate", "beta_1": "beta1", "beta_2": "beta2", "tau": "tau"}
    strategy = {"fedadam": FedAdam, "fedyogi": FedYogi}[kind](**{key: SERVER[ours] for key, ours in names.items()})
    first, *rest = server_means(seed)
    strategy.current_arrays = first
    found = []
    for number, change in enumerate(rest):
        merged = {name: np.asarray(strategy.current_arrays[name] + change[name]) for name in SHAPES}
        record = ArrayRecord({name: Array(array) for name, array in merged.items()})
        with patch.object(FedAvg, "aggregate_train", lambda self, number, replies, record=record: (record, None)):
            arrays, _ = strategy.aggregate_train(number, [])
        strategy.current_arrays = {name: array.numpy() for name, array in arrays.items()}
        found.append(plain(strategy.current_arrays[name] for name in SHAPES))
    return found


def plain(arrays):
    """Arrays as one list of numbers, in the order of SHAPES."""
    return [float(number) for array in arrays for number in np.asarray(array).ravel()]


def everything():
    """All that is recorded."""
    return {
        "rules": {str(case): by_flower(*case) for case in CASES},
        "server": {
            f"{kind} {seed}": server_by_flower(kind, seed) for kind in ("fedadam", "fedyogi") for seed in (1, 2)
        },
    }


if __name__ == "__main__":
    import flwr

    RECORDED.write_text(json.dumps({"flwr": flwr.__version__, "numpy": np.__version__, **everything()}) + "\n")
    print(f"{RECORDED}: {RECORDED.stat().st_size} bytes")
