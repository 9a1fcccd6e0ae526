"""Judges a trained policy beside the world's scripts on the same episodes, with intervals; and writes trajectories."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.collect.episodes import Episodes, play, together
from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario
from slipstream.config.world import WorldConfig
from slipstream.data import checkpoint
from slipstream.data.disk import replace_file
from slipstream.errors import ScenarioError
from slipstream.run.saved_cast import FIRST_JUDGED, script_instead, trained_teams
from slipstream.run.setup import make_evaluation_worlds
from slipstream.spec import WorldSpec
from slipstream.stats.intervals import UNKNOWN, Interval, mean_interval, wilson
from slipstream.types import F64
from slipstream.worlds.tools import Analysis
from slipstream.worlds.vec_env import Backdrop, Recorded, VecEnv
from slipstream.worlds.world import tools_of

Columns = dict[str, NDArray[Any]]


class EndingShare(NamedTuple):
    """How many episodes ended in one way, and the share of all with Wilson's interval."""

    episodes: int
    share: Interval


@dataclass(frozen=True)
class PolicyRow:
    """One policy's figures over the judged episodes."""

    policy: str
    episodes: int
    figures: Mapping[str, Interval]
    outcomes: Mapping[str, EndingShare] = field(default_factory=dict)
    analysis: Mapping[str, float] = field(default_factory=dict)  # NaN where undefined


@dataclass(frozen=True)
class Judgement:
    """A table of policies on one scenario, and the first judged episode of the first row, for pictures."""

    scenario: str
    kind: str  # of the world
    rows: tuple[PolicyRow, ...]
    spec: WorldSpec
    frames: F64 | None
    backdrop: Backdrop | None
    recorded: Mapping[str, tuple[Recorded, ...]] = field(default_factory=dict)  # by policy, in the order of episodes
    opponent: str | None = None  # who plays against every row


def as_plain(judgement: Judgement) -> dict[str, Any]:
    """The figures as plain values, for files and programs; what is undefined is None."""
    return {
        "scenario": judgement.scenario,
        "headline": ["return", *tools_of(judgement.kind).headline_of(judgement.spec)],
        "opponent": judgement.opponent,
        "rows": [
            {
                "policy": row.policy,
                "episodes": row.episodes,
                "figures": {name: value.plain() for name, value in row.figures.items()},
                "outcomes": {
                    name: {"episodes": ended.episodes, **ended.share.plain()} for name, ended in row.outcomes.items()
                },
                "analysis": {name: x if math.isfinite(x) else None for name, x in row.analysis.items()},
            }
            for row in judgement.rows
        ],
    }


def judge(
    scenario: Scenario,
    saved: checkpoint.Checkpoint | None,
    episodes: int,
    seed: int | Sequence[int] | None = None,
    label: str = "learned",
    *,
    record: bool = False,
    analysis: bool = False,
) -> Judgement:
    """Play the same fresh episodes with the trained policies (if any), and with every script in their place.

    Args:
        scenario: What is played.
        saved: What was learned; None: the scripts alone.
        episodes: Of every row, and of every seed.
        seed: Of the episodes, or several whose episodes are pooled; None: the scenario's.
        label: Name of the learned row.
        record: Keep every step of every episode; otherwise only of the first row's first.
        analysis: Add what this kind of world reads from whole episodes.
    """
    seeds = [scenario.evaluate.seed] if seed is None else [seed] if isinstance(seed, int) else list(seed)
    kind = scenario.world.kind
    own_analysis = _analysis(scenario) if analysis else None
    worlds = make_evaluation_worlds(scenario, episodes, reward_parts=record)
    spec = worlds.spec
    casts = make_casts(scenario, saved, spec.scripts, spec, label)
    every = episodes if record or analysis else 0
    played: dict[str, Episodes] = {}
    for name, teams in casts.items():
        first = 1 if not played and spec.frame_fields else 0
        played[name] = play_seeds(worlds, teams, episodes, seeds, max(every, first))
    worlds.close()
    opponent = ", ".join(sorted({team.script or team.policy for team in teams if team.rival}))
    rows = []
    for name, own in played.items():
        read = {}
        if own_analysis is not None:
            beside = played[own_analysis.baseline].recorded
            read = own_analysis.figures(scenario.world, spec, own.recorded, beside)
        ended = {} if not spec.stats else count_outcomes(kind, own)
        rows.append(PolicyRow(name, episodes * len(seeds), figures(own, tools_of(kind).proportions), ended, read))
    shown = next(iter(played.values())).recorded
    return Judgement(
        scenario=scenario.name,
        kind=kind,
        rows=tuple(rows),
        spec=spec,
        frames=shown[0].frames if shown else None,
        backdrop=shown[0].backdrop if shown else None,
        recorded={name: own.recorded for name, own in played.items()} if record else {},
        opponent=opponent or None,
    )


def make_casts(
    scenario: Scenario, saved: checkpoint.Checkpoint | None, scripts: Sequence[str], spec: WorldSpec, label: str
) -> dict[str, Sequence[Team]]:
    """Who plays in each row: the trained policies (if any), and every script in their place."""
    casts: dict[str, Sequence[Team]] = {} if saved is None else {label: trained_teams(scenario, saved, spec)}
    casts |= {script: script_instead(scenario, script, spec) for script in scripts}
    if not casts:
        raise ScenarioError(f"{scenario.name}: {spec.name} has no script to play; name a run or a model")
    return casts


def play_seeds(worlds: VecEnv, teams: Sequence[Team], episodes: int, seeds: Sequence[int], record: int) -> Episodes:
    """Judged episodes of every seed, pooled."""
    return together([play(worlds, teams, episodes, seed, FIRST_JUDGED, record) for seed in seeds])


def _analysis(scenario: Scenario) -> Analysis[Any]:
    analysis = tools_of(scenario.world.kind).analysis
    if analysis is None:
        raise ScenarioError(
            f"{scenario.name}: {scenario.world.kind} worlds have no analysis of their own; leave out --analysis"
        )
    return analysis


def count_outcomes(kind: str, episodes: Episodes) -> dict[str, EndingShare]:
    """How many episodes ended in each way."""
    total = len(episodes.lengths)
    ways = tools_of(kind).outcomes_of(episodes.stat, episodes.names)
    return {name: EndingShare(int(flags.sum()), wilson(int(flags.sum()), total)) for name, flags in ways.items()}


def figures(episodes: Episodes, proportions: Collection[str] = ("clean",)) -> dict[str, Interval]:
    """Mean and 95 % interval of the return, the length and every figure of the world, over episodes that have it."""
    result = {"return": mean_interval(episodes.team_returns), "length": mean_interval(episodes.lengths)}
    for name in episodes.names:
        values = episodes.stat(name)
        values = values[np.isfinite(values)]
        if name in proportions:  # a bootstrap of all ones would claim certainty
            result[name] = wilson(int(values.sum()), len(values))
        else:
            result[name] = mean_interval(values) if len(values) else UNKNOWN
    return result


# --- trajectories: every step of judged episodes ---


def trajectory_columns(spec: WorldSpec, recorded: Sequence[Recorded]) -> Columns:
    """Episodes as a table: a row for each agent and step while it is alive, with the frame after the step."""
    parts = [_episode(spec, number, played) for number, played in enumerate(recorded)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _episode(spec: WorldSpec, number: int, played: Recorded) -> Columns:
    step, agent = np.nonzero(played.alive)
    seconds = np.cumsum(played.ticks) * spec.tick_seconds
    table: Columns = {
        "episode": np.full(len(step), number, np.int32),
        "step": step.astype(np.int32),
        "time_s": seconds[step],
        "agent": np.array(spec.agents)[agent],
    }
    table |= {name: played.frames[1:][step, agent, k] for k, name in enumerate(spec.frame_fields)}
    actions = played.actions[step, agent]
    if actions.ndim == 1:
        table["action"] = actions
    else:
        names = spec.action.names or tuple(str(k) for k in range(actions.shape[1]))
        table |= {f"action_{name}": actions[:, k] for k, name in enumerate(names)}
    table["reward"] = played.rewards[step, agent]
    if played.parts is not None:
        table |= {f"reward_{name}": played.parts[step, agent, k] for k, name in enumerate(spec.reward_parts)}
    return table


def write_trajectories(
    folder: Path, config: WorldConfig, spec: WorldSpec, recorded: Mapping[str, Sequence[Recorded]]
) -> list[Path]:
    """Write trajectories.parquet of all policies and, if the world has such logs, traj_ep_*.csv of the first."""
    pyarrow, parquet = _arrow()
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for policy, episodes in recorded.items():
        table = trajectory_columns(spec, episodes)
        rows = len(table["episode"])
        who = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [policy])
        tables.append(pyarrow.table({"policy": who} | {name: pyarrow.array(value) for name, value in table.items()}))
    sink = io.BytesIO()
    parquet.write_table(pyarrow.concat_tables([table.unify_dictionaries() for table in tables]), sink)
    written = [folder / "trajectories.parquet"]
    replace_file(written[0], sink.getvalue(), durable=False)
    as_csv = tools_of(config.kind).trajectory_csv
    for number, played in enumerate(next(iter(recorded.values()))):
        if as_csv is not None:
            written.append(folder / f"traj_ep_{number:04d}.csv")
            replace_file(written[-1], as_csv(config, spec, played, number).encode(), durable=False)
    return written


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ScenarioError(
            "trajectories are written as Parquet, which needs pyarrow: pip install 'slipstream[data]'"
        ) from None
    return pyarrow, parquet
