"""The final model: acting networks, shapes and a page for people, in a folder of its own."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.algos.protocol import Arrays
from slipstream.config.load import to_plain
from slipstream.data import checkpoint
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.disk import replace_file
from slipstream.run.policy_file import policy_arrays

if TYPE_CHECKING:
    from slipstream.run.context import Run


def export(run: Run, reason: str) -> Path:
    """Write models/<ALGO>_<scenario>_<timestamp>/: acting networks, shapes and a page for people."""
    scenario, counters = run.scenario, run.counters
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{scenario.algo.kind.upper()}_{scenario.name}_{stamp}"
    arrays: Arrays = {}
    for policy, learner in run.cast.learners.items():
        arrays |= policy_arrays(policy, learner)
    record = {
        "kind": "model",
        "scenario": to_plain(scenario),
        "algorithm": scenario.algo.kind,
        "run": str(run.folder.path.absolute()),
        "reason": reason,
        "counters": msgspec.to_builtins(counters),
        "evaluation": dict(run.evaluation),
        "zero_conflict_streak": run.stop_state.streak,
        "policies": msgspec.to_builtins(dict(run.cast.records)),
        **_curriculum(run),
    }
    new = run.options.models / f"unfinished-{secrets.token_hex(8)}"
    try:
        checkpoint.save(new, Checkpoint(arrays, record))
        replace_file(new / "metadata.json", msgspec.json.format(msgspec.json.encode(record), indent=2))
        return _claim(new, name, lambda path: _readme(run, path, reason))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _curriculum(run: Run) -> dict[str, Any]:
    """How long episodes of each phase may last, where a curriculum has found that out."""
    if run.scenario.curriculum is None:
        return {}
    from slipstream.run.parts.curriculum import Curriculum

    curriculum = run.find(Curriculum)
    assert curriculum is not None
    return {"curriculum": msgspec.to_builtins(curriculum.progress)} if curriculum.progress.limits else {}


def _claim(new: Path, name: str, page: Callable[[Path], str]) -> Path:
    """Give a folder its name, or the next one that is free; two runs that end in the same second get two names.

    The page in it tells the name, so it is written before each try: the folder appears with all that belongs in it.
    """
    for attempt in itertools.count(1):
        path = new.with_name(name if attempt == 1 else f"{name}-{attempt}")
        replace_file(new / "README.txt", page(path).encode())
        try:
            os.rename(new, path)  # fails where a folder with something in it has that name
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return path
    raise AssertionError("there is always a free name")


def _readme(run: Run, path: Path, reason: str) -> str:
    scenario = run.scenario
    lines = [
        f"{scenario.name}, trained with {scenario.algo.kind.upper()} for {run.counters.steps:,} steps ({reason}).",
        f"Run: {run.folder.path}",
        "",
        "Last evaluation (exploration off):",
        *[f"  {key.removeprefix('eval/')}: {value:.4g}" for key, value in run.evaluation.items()],
        "",
        "Use it:",
        "  import slipstream",
        f'  policy = slipstream.load_policy("{path}")',
        "  action = policy.act(observation)",
        f"  $ slipstream eval {path}",
    ]
    return "\n".join(lines) + "\n"
