"""Records what Opacus's RDP accountant says for a grid of settings: python tests/federate/opacus_numbers.py

Writes opacus_numbers.json beside itself. The test compares with it, so that the suite needs no Opacus for that.
"""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path

PATH = Path(__file__).with_name("opacus_numbers.json")
RATES = (0.0005, 0.01, 0.1, 0.5, 0.9, 1.0)
SIGMAS = (0.5, 1.0, 2.0, 8.0)
STEPS = (1, 100, 10_000)
DELTAS = (1e-5, 1e-7)


def ask(q: float, sigma: float, steps: int, delta: float) -> float:
    """Opacus's ε with its own orders."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(sigma, q, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is its first or last
        return float(accountant.get_epsilon(delta))


def main() -> None:
    import opacus
    from opacus.accountants import RDPAccountant

    rows = [[*case, ask(*case)] for case in itertools.product(RATES, SIGMAS, STEPS, DELTAS)]
    record = {
        "command": "python tests/federate/opacus_numbers.py",
        "opacus": opacus.__version__,
        "orders": RDPAccountant.DEFAULT_ALPHAS,
        "columns": ["q", "sigma", "steps", "delta", "epsilon"],
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    PATH.write_text(json.dumps(record)[:-1] + ', "rows": [\n' + lines + "\n]}\n")
    print(f"{len(rows)} rows in {PATH.name}, by Opacus {opacus.__version__}")


if __name__ == "__main__":
    main()
