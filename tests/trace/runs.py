"""Small runs, one for each way through the system, and the hashes of what they leave behind.

    python tests/trace/runs.py                                    checks all of them against what was recorded
    python tests/trace/runs.py ppo sac                            some of them
    python tests/trace/runs.py --record                           records them: only where bits are meant to change

Everything is done by commands and read from the files of a run: what a user has, and what no change inside may change.
"""

from __future__ import annotations

import os

# Libraries choose their code by the processor, and with it their last bits: they are held to what all of ours have.
# This must be said before they are imported, and to nobody but this script and what it starts.
if __name__ == "__main__":
    os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}
    os.environ |= {"OPENBLAS_CORETYPE": "Haswell", "ONEDNN_MAX_CPU_ISA": "AVX2"}

import contextlib
import hashlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

RECORDED = Path(__file__).with_name("recorded.json")

SCENARIOS = Path(__file__).with_name("scenarios")

# By name: the commands, as one would write them in a terminal beside the scenario files, which say every setting as it
# was when the hashes were recorded. Runs are made in r, or in f by federations.
TOGETHER = "--federated.interval 2 --federated.timeout-s 120 --repeat 2 --seed-base 5 --root f"
RUNS: dict[str, list[str]] = {
    "ppo": ["train ppo.yaml --out r"],
    "ppo, two threads, its critic sees all": ["train ppo_central.yaml --out r --learner-threads 2"],
    "ppo, resumed": ["train ppo.yaml --out r --timesteps 96", "resume r --timesteps 256"],
    "appo beside its collector": ["train appo.yaml --out r"],
    "impala with workers": ["train impala.yaml --out r --collect-workers 2"],
    "reinforce": ["train reinforce.yaml --out r"],
    "sac": ["train sac.yaml --out r"],
    "sac from a replay service": ["train served.yaml --out r"],
    "td3 with workers": ["train td3.yaml --out r --collect-workers 2"],
    "dqn with priorities": ["train dqn.yaml --out r"],
    "cql": ["train cql.yaml --out r"],
    "two learners in step": ["train ppo.yaml --out r --learners 2"],
    "federation over files": [f"federate td3.yaml {TOGETHER}"],
    "federation over the coordinator": [f"federate impala.yaml {TOGETHER} --federated.transport tcp"],
    "airspace, ppo": ["train airspace_ppo.yaml --out r"],
    "airspace, sac, resumed": [
        "train airspace_sac.yaml --out r --timesteps 96",
        "resume r --timesteps 256",
    ],
    "racing, laps": ["train racing_laps.yaml --out r"],
    "racing, phases of a curriculum": ["train racing_phases.yaml --out r"],
    "racing, two policies": ["train racing_two_policies.yaml --out r"],
    "dr. mario, phases of a curriculum": ["train drmario_phases.yaml --out r"],
    "dr. mario against past selves": ["train drmario_past_selves.yaml --out r"],
    "gymnasium, ppo": ["train cartpole.yaml --out r"],
    "gymnasium, sac": ["train pendulum.yaml --out r"],
}


def run(name: str) -> dict[str, Any]:
    """Do the commands of a run in the current folder, and say what it left behind."""
    for path in SCENARIOS.iterdir():
        shutil.copy(path, path.name)
    for command in RUNS[name]:
        _slipstream(command)
    folders = sorted(path.parent for path in Path().glob("**/metrics.jsonl"))
    return {str(folder): fingerprint(folder) for folder in folders}


def _slipstream(command: str) -> None:
    from slipstream.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(command.split())
    if code:
        raise SystemExit(f"slipstream {command}: exit code {code}\n{said.getvalue()}")


def fingerprint(run: Path) -> dict[str, str]:
    """Hashes of a run's metrics by key, those of the clock left out, and of its newest checkpoint's arrays by part."""
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # One row for each update; that of a final evaluation was not there when the hashes were recorded.
    rows = list({row["updates_total"]: row for row in reversed(written)}.values())[::-1]
    keys = sorted({key for row in rows for key in row})
    found = {key: _hash(json.dumps(row.get(key)).encode() for row in rows) for key in keys if not _is_of_the_clock(key)}
    newest = max(run.glob("checkpoints/checkpoint_*"), key=lambda path: int(path.name.split("_")[1]))
    arrays = load_file(newest / "arrays.safetensors")
    for part in sorted({name.split(".")[0] for name in arrays}):
        own = sorted(name for name in arrays if name.split(".")[0] == part)
        found[f"checkpoint/{part}"] = _hash(_bytes(name, arrays[name]) for name in own)
    return found


def _bytes(name: str, array: np.ndarray[Any, Any]) -> bytes:
    return f"{name}|{array.dtype}|{array.shape}|".encode() + np.ascontiguousarray(array).tobytes()


def _is_of_the_clock(key: str) -> bool:
    from slipstream.run.metrics import is_time_key

    return is_time_key(key)


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part + b"\n")
    return digest.hexdigest()[:16]


def processor() -> str:
    """The kind of this machine's processor, as far as libraries choose their code by it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    width = "AVX-512" if "avx512f" in found.get("flags", "").split() else "AVX2"
    return f"{found.get('vendor_id', 'unknown')}, {width}"


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of the recorded is another now, or not there; metrics may be added."""
    found = []
    for run, figures in recorded.items():
        there = now.get(run)
        if there is None:
            found.append(f"{run} is not there")
        else:
            found += [f"{run}: {key}" for key, value in figures.items() if there.get(key) != value]
    return found


def main(words: list[str]) -> int:
    """Run the named ones, or all, and compare them with what was recorded; or record them."""
    record = "--record" in words
    names = [word for word in words if word != "--record"] or list(RUNS)
    recorded: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    failed = 0
    for name in names:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            now = run(name)
        wrong = [] if record else differences(recorded.get(name, {"every run": {}}), now)
        recorded[name] = now
        failed += bool(wrong)
        print(f"{name}: {'; '.join(wrong) or 'ok'} ({time.perf_counter() - began:.1f} s)", flush=True)
    if record:
        RECORDED.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
