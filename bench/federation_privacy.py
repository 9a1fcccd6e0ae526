"""Privacy: what hiding updates costs a round, in CPU time.

    python bench/federation_privacy.py [--repeats 20] [--clients 5] [--parameters 150000]

Secure aggregation of a whole sum, all clients and the server in one process, with none and with one client dropped, by
phase; beside masks in pairs alone, in 32 bits and without recovery (the scheme that was measured before it was built:
12.6 ms for 5 x 150,000), and beside the plain sum. Then a client's clipping and noise, and ε of a thousand rounds.
The best of the repeats counts, which are interleaved. Writes docs/results/federation_privacy.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

from slipstream.federate.privacy import Privacy, private_update, spent
from slipstream.federate.secure import SecureClient, Server, SumTerms, encode
from slipstream.federate.update import ClientUpdate

Vectors = dict[str, Any]


def secure_sum(vectors: Vectors, dropped: frozenset[str] = frozenset()) -> tuple[Any, dict[str, float], dict[str, int]]:
    """The sum, CPU seconds of each phase, and bytes that one client sends in it."""
    length = len(next(iter(vectors.values())))
    terms = SumTerms("bench", len(vectors) // 2 + 1, length)
    marks = [time.process_time()]
    sent = {}
    server, clients = Server(terms), {name: SecureClient(terms, name) for name in vectors}
    for client in clients.values():
        server.receive(message := client.keys)
    sent["keys"] = len(encode(message))
    listed = server.list_keys()
    marks.append(time.process_time())
    for client in clients.values():
        server.receive(message := client.share(listed))
    sent["shares"] = len(encode(message))
    inboxes = server.deliver()
    marks.append(time.process_time())
    there = {name: client for name, client in clients.items() if name not in dropped}
    for name, client in there.items():
        server.receive(message := client.mask(inboxes[name], vectors[name]))
    sent["vectors"] = len(encode(message))
    survivors = server.survivors()
    marks.append(time.process_time())
    for client in there.values():
        server.receive(message := client.unmask(survivors))
    sent["unmask"] = len(encode(message))
    total = server.open_sum().total
    marks.append(time.process_time())
    phases = dict(zip(sent, (b - a for a, b in itertools.pairwise(marks)), strict=True))
    return total, phases, sent


def pairs_alone(vectors: Vectors) -> Any:
    """Masks in pairs in the ring of 32 bits, units of 2^-16: no shares, so nobody may drop out."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    keys = {name: X25519PrivateKey.generate() for name in vectors}
    total = np.zeros(len(next(iter(vectors.values()))), np.uint32)
    for name, vector in vectors.items():
        masked = np.rint(vector * 2**16).astype(np.int64).astype(np.uint32)
        for other in vectors:
            if other != name:
                shared = keys[name].exchange(keys[other].public_key())
                key = HKDF(SHA256(), 32, salt=None, info=b"mask").derive(shared)
                stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(masked.nbytes))
                (np.add if name < other else np.subtract)(masked, np.frombuffer(stream, np.uint32), out=masked)
        total += masked
    return total.view(np.int32) / 2**16


def cpu(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--parameters", type=int, default=150_000)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    vectors = {f"client_{i:03d}": rng.normal(size=args.parameters) for i in range(args.clients)}
    last = frozenset(sorted(vectors)[-1:])
    plain = np.sum(list(vectors.values()), axis=0)
    without_last = plain - vectors[next(iter(last))]
    weights = {"w": next(iter(vectors.values())).astype(np.float32)}
    update = ClientUpdate("a", 0, "", "", weights)
    privacy = Privacy(clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)

    best: dict[str, float] = {}
    phases: dict[str, float] = {}
    errors: dict[str, float] = {}
    sent: dict[str, int] = {}

    def keep(name: str, seconds: float, into: dict[str, float] = best) -> None:
        into[name] = min(seconds, into.get(name, float("inf")))

    for _ in range(args.repeats):
        (total, by_phase, sent), seconds = cpu(lambda: secure_sum(vectors))
        keep("secure sum", seconds)
        for name, value in by_phase.items():
            keep(name, value, phases)
        errors["secure sum"] = float(np.abs(total - plain).max())
        (total, *_), seconds = cpu(lambda: secure_sum(vectors, last))
        keep("secure sum, one dropped", seconds)
        errors["secure sum, one dropped"] = float(np.abs(total - without_last).max())
        total, seconds = cpu(lambda: pairs_alone(vectors))
        keep("pairs alone, 32 bits", seconds)
        errors["pairs alone, 32 bits"] = float(np.abs(total - plain).max())
        keep("plain sum", cpu(lambda: np.sum(list(vectors.values()), axis=0))[1])
        keep("clip and noise, one client", cpu(lambda: private_update(update, weights, weights, privacy))[1])
        q = float(rng.uniform(0.01, 0.02))  # a new one each time: what was worked out before is remembered
        keep("ε of 1,000 rounds", cpu(lambda q=q: spent(privacy, 1000, q))[1])

    print(f"{args.clients} clients x {args.parameters:,} numbers, best of {args.repeats}, OMP_NUM_THREADS="
          f"{os.environ.get('OMP_NUM_THREADS', 'unset')}")  # fmt: skip
    print(f"{'':<32}{'CPU ms':>10}{'error':>12}")
    for name, seconds in best.items():
        shown = f"{errors[name]:12.1e}" if name in errors else ""
        print(f"{name:<32}{1e3 * seconds:10.2f}{shown}")
    print("\nby phase, all clients together, and what one client sends")
    for name, seconds in phases.items():
        print(f"  {name:<30}{1e3 * seconds:10.2f}{sent[name]:>12,} bytes")
    ratio = best["secure sum"] / best["pairs alone, 32 bits"]
    print(
        f"\ndouble masks in 64 bits with recovery cost {ratio:.2f}x of masks in pairs alone in 32 bits (12.6 ms before)"
    )
    record = {
        "benchmark": "federation_privacy",
        **machine(),
        "clients": args.clients,
        "parameters": args.parameters,
        "cpu_seconds": best,
        "phases": phases,
        "bytes": sent,
        "errors": errors,
    }
    (RESULTS / "federation_privacy.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
