"""Demonstrations of a run: reading them, and refusing those that would teach another task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.algos.protocol import Algorithm
from slipstream.collect.shaping import Shaping
from slipstream.config.algos.offpolicy import DemonstrationsConfig, ReplayLearnerConfig
from slipstream.config.base import dotted
from slipstream.config.load import from_plain, to_plain
from slipstream.config.scenario import Scenario
from slipstream.data.arrays_file import content_hash
from slipstream.data.dataset_file import Dataset, DatasetPart, DatasetRecord, load_dataset, read_record
from slipstream.data.spans import join
from slipstream.data.transitions import Transitions, to_fields
from slipstream.errors import ScenarioError, suggest
from slipstream.replay.demonstrations import Demonstrations
from slipstream.replay.frames import make_replay
from slipstream.spec import WorldSpec

OTHER = 1 << 61  # keeps draws of recorded rows apart from those of the run's own

Change = tuple[tuple[str | int, ...], Any, Any]  # where two worlds differ, and what stands there


def refuse_bad_demonstrations(scenario: Scenario, spec: WorldSpec, shaping: Shaping) -> None:
    """Refuse scripts that the world does not have, datasets that cannot be read, and rewards of another task."""
    for name, algo in scenario.learning.items():
        settings = None if algo.replay_config is None else algo.replay_config.demonstrations
        if settings is None:
            continue
        where = _where(scenario, name)
        if settings.path is None:
            _refuse_no_script(where, settings.script or "", spec)
            continue
        record = read_record(Path(settings.path))
        for part in record.parts:
            _refuse_other_world(where, settings.path, scenario, part)
        _refuse_other_shaping(where, settings.path, record, shaping)


def load_demonstrations(
    scenario: Scenario,
    policy: str,
    config: ReplayLearnerConfig,
    settings: DemonstrationsConfig,
    learner: Algorithm,
    spec: WorldSpec,
    like: Transitions,
) -> Demonstrations:
    """The demonstrations of a learner, which takes them into its input statistics; `like` shows the run's own rows."""
    if settings.path is None:
        dataset = _played(scenario, policy, settings)
    else:
        discrete = learner.actor_spec().discrete
        dataset = load_dataset(settings.path, spec, discrete, config.gamma, _where(scenario, policy))
    rows = join(dataset, config.replay.n_step)
    learner.observe(rows)  # type: ignore[attr-defined]  # it learns from replay
    seed = (scenario.seed * 1_000_003 + list(scenario.policies).index(policy)) % 2**61
    held = make_replay(like, len(rows), seed ^ OTHER)
    held.add(rows)
    digest = np.frombuffer(bytes.fromhex(content_hash(to_fields(dataset.rows))), np.uint8)
    return Demonstrations(held, settings.share, digest)


def _played(scenario: Scenario, policy: str, settings: DemonstrationsConfig) -> Dataset:
    """What the script does in this run's world: the same rows whenever the run is begun or resumed."""
    from slipstream.run.record import record

    return record(scenario, settings.transitions, policy=settings.script, team=policy)


def _where(scenario: Scenario, policy: str) -> str:
    return dotted((*scenario.algo_path(policy), "replay", "demonstrations"))


def _refuse_no_script(where: str, script: str, spec: WorldSpec) -> None:
    if script not in spec.scripts:
        raise ScenarioError(
            f"{where}.script: {spec.name} has no script '{script}' (it has: {', '.join(spec.scripts) or 'none'})"
            + suggest(script, spec.scripts)
        )


def _refuse_other_world(where: str, path: str, scenario: Scenario, part: DatasetPart) -> None:
    here = to_plain(scenario)
    try:
        recorded = to_plain(from_plain({**here, "world": part.world}))["world"]  # of an older version, say
    except ScenarioError:
        recorded = part.world
    change = next(_changes((), recorded, here["world"]), None)
    if change is not None:
        place, there, now = change
        raise ScenarioError(
            f"{where}: {path} was recorded with {dotted(('world', *place))} {there!s:.60}, which is "
            f"{now!s:.60} here, so its rewards may be those of another task; record it again with this scenario"
        )


def _refuse_other_shaping(where: str, path: str, record: DatasetRecord, shaping: Shaping) -> None:
    here = (shaping.kappa, None if shaping.model is None else shaping.model.digest)
    if (record.shaping_coef, record.shaping_model) != here:
        raise ScenarioError(
            f"{where}: {path} was recorded with shaping {record.shaping_coef:g} and this run has "
            f"{shaping.kappa:g} (or another model of it), so their rewards do not mean the same; record it again with "
            "this scenario"
        )


def _changes(path: tuple[str | int, ...], one: Any, other: Any) -> Iterator[Change]:
    """Where two plain values differ, innermost places."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from _changes((*path, key), one.get(key), other.get(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _changes((*path, place), left, right)
    elif one != other:
        yield path, one, other
