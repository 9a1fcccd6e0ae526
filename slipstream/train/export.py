"""The final model: acting networks, shapes and a page for people, in a folder of its own."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slipstream.algos.protocol import Arrays
from slipstream.config.load import to_plain
from slipstream.train import checkpoint
from slipstream.train.checkpoint import Checkpoint
from slipstream.train.disk import replace_file
from slipstream.train.policy_file import policy_arrays

if TYPE_CHECKING:
    from slipstream.train.experiment import Session


def export(session: Session, reason: str) -> Path:
    """Write models/<ALGO>_<scenario>_<timestamp>/: acting networks, shapes and a page for people."""
    scenario, counters = session.scenario, session.counters
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{scenario.algo.kind.upper()}_{scenario.name}_{stamp}"
    path = session.models / name
    for attempt in range(2, 1000):
        if not path.exists():
            break
        path = session.models / f"{name}-{attempt}"
    arrays: Arrays = {}
    for policy, learner in session.cast.learners.items():
        arrays |= policy_arrays(policy, learner)
    record = {
        "kind": "model",
        "scenario": to_plain(scenario),
        "algorithm": scenario.algo.kind,
        "reason": reason,
        "counters": msgspec.to_builtins(counters),
        "evaluation": dict(session.evaluation),
        "zero_conflict_streak": session.stop.streak,
        "policies": msgspec.to_builtins(dict(session.cast.records)),
    }
    session.models.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, Checkpoint(arrays, record))
    replace_file(path / "metadata.json", msgspec.json.format(msgspec.json.encode(record), indent=2))
    replace_file(path / "README.txt", _readme(session, path, reason).encode())
    return path


def _readme(session: Session, path: Path, reason: str) -> str:
    scenario = session.scenario
    lines = [
        f"{scenario.name}, trained with {scenario.algo.kind.upper()} for {session.counters.steps:,} steps ({reason}).",
        f"Run: {session.run.path}",
        "",
        "Last evaluation (exploration off):",
        *[f"  {key.removeprefix('eval/')}: {value:.4g}" for key, value in session.evaluation.items()],
        "",
        "Use it:",
        "  import slipstream",
        f'  policy = slipstream.load_policy("{path}")',
        "  action = policy.act(observation)",
        f"  $ slipstream eval {path}",
    ]
    return "\n".join(lines) + "\n"
