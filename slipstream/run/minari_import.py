"""Datasets of Minari (Farama's collection for offline learning) as ours.

An episode of T steps has T actions and T + 1 observations, so what followed the last step is there: a truncation
bootstraps from it. Nothing is downloaded here.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.action_space import ActionSpace, from_space
from slipstream.config.load import to_plain
from slipstream.config.scenario import Scenario
from slipstream.data.dataset_file import (
    Dataset,
    DatasetPart,
    DatasetRecord,
    Returns,
    allocate,
    from_arrays,
)
from slipstream.data.transitions import TERMINATED, TRUNCATED, WENT_ON, Fields
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.run.setup import gammas
from slipstream.worlds.registry import spec_of
from slipstream.worlds.spaces import Leaf, MismatchError, action_spec, leaves


class MinariEpisode(Protocol):
    """What we read of `minari.EpisodeData`."""

    id: Any
    observations: Any  # [T + 1, ...], or dicts and tuples of such
    actions: Any  # [T, ...]
    rewards: Any  # [T]
    terminations: Any
    truncations: Any


class MinariSource(Protocol):
    """What we read of `minari.MinariDataset`."""

    env_spec: Any
    observation_space: Any
    action_space: Any
    total_steps: Any

    def iterate_episodes(self) -> Iterable[MinariEpisode]:
        """Every episode, in the order of their numbers."""


def import_minari(name: str, scenario: Scenario, gamma: float | None = None) -> Dataset:
    """A dataset that Minari has on this machine, as one of ours for the world of `scenario`."""
    try:
        minari = import_module("minari")
    except ImportError:
        raise ScenarioError(
            f"minari:{name}: the package minari is not installed; pip install 'slipstream[minari]' brings it"
        ) from None
    try:
        source = minari.load_dataset(name)
    except FileNotFoundError:
        raise ScenarioError(
            f"minari:{name}: Minari has no such dataset on this machine; `minari list local` shows those it has, "
            f"`minari download {name}` may bring it"
        ) from None
    except (ImportError, OSError, ValueError) as error:
        raise ScenarioError(f"minari:{name}: Minari cannot read it: {' '.join(str(error).split()):.300}") from error
    return from_minari(source, name, scenario, gamma)


def from_minari(source: MinariSource, name: str, scenario: Scenario, gamma: float | None = None) -> Dataset:
    """Convert episode by episode; refused in one sentence where it is not what the scenario's world shows."""
    where = f"minari:{name}"
    learning = gammas(scenario)
    gamma = next(iter(learning.values()), 1.0) if gamma is None else gamma
    if not 0 <= gamma <= 1:
        raise ScenarioError(f"--gamma {gamma:g}: must be from 0 to 1")
    _refuse_other_environment(where, source, scenario)
    spec = spec_of(scenario.world)
    try:
        found, (action, space) = leaves(source.observation_space), action_spec(source.action_space)
    except WorldContractError as error:
        raise ScenarioError(f"{where}: {error}") from None
    targets = {f"obs.{leaf.block.name}": leaf for leaf in found}
    if spec.masked:  # as the world reads it: a Dict observation with the entry "action_mask"
        targets |= {"mask": targets.pop("obs.action_mask")} if "obs.action_mask" in targets else {}
    blocks = tuple(leaf.block for key, leaf in targets.items() if key != "mask")
    if blocks != spec.obs or action != spec.action or spec.masked != ("mask" in targets):
        raise ScenarioError(
            f"{where}: its observations are {source.observation_space} and its actions {source.action_space}, which is "
            f"not what {spec.name} of {scenario.name} has ({spec.obs_size} inputs, {spec.action.words})"
        )
    total = int(source.total_steps)
    record = DatasetRecord(spec, spec.action.discrete, gamma, 0.0, total, ())
    arrays, at, returns = allocate(record), 0, list[float]()
    for episode in source.iterate_episodes():
        try:
            steps = _steps_of(episode)
            if at + steps > total:
                raise MismatchError(f"there are more than the {total:,} steps it speaks of")
            _write(episode, slice(at, at + steps), arrays, targets, space, gamma)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise ScenarioError(f"{where}: episode {episode.id}: {error}") from None
        returns.append(float(np.sum(episode.rewards, dtype=np.float64)))
        at += steps
    part = DatasetPart(
        rows=at,
        recorded=at,
        source=where,
        policy="minari",
        noise=False,
        team=next(iter(learning), "main"),
        agents=spec.agents,
        seed=None,
        num_worlds=None,
        world=to_plain(scenario)["world"],
        returns=Returns(len(returns), float(np.mean(returns)), min(returns), max(returns)) if returns else None,
    )
    record = DatasetRecord(spec, spec.action.discrete, gamma, 0.0, at, (part,))
    try:
        return from_arrays(record, {key: array[:at] for key, array in arrays.items()})
    except ValueError as error:
        raise ScenarioError(f"{where}: cannot be learned from: {error}") from None


def _refuse_other_environment(where: str, source: MinariSource, scenario: Scenario) -> None:
    ours = scenario.world.gymnasium_id()
    if ours is None:
        raise ScenarioError(
            f"{where}: {scenario.name} is a world of kind {scenario.world.kind}, and Minari's datasets are of "
            "Gymnasium environments; name a scenario with one"
        )
    theirs = getattr(source.env_spec, "id", None)
    if theirs is not None and theirs != ours:
        raise ScenarioError(
            f"{where}: was recorded in {theirs}, and {scenario.name} plays {ours}; name a scenario whose "
            f"world.id is {theirs}"
        )


def _steps_of(episode: MinariEpisode) -> int:
    """Steps of an episode; MismatchError where its arrays are not of one length."""
    steps = len(episode.rewards)
    lengths = {name: _rows(getattr(episode, name)) for name in ("actions", "terminations", "truncations")}
    if wrong := {name: length for name, length in lengths.items() if length != steps}:
        raise MismatchError(f"{steps} rewards, but {', '.join(f'{count} {name}' for name, count in wrong.items())}")
    return steps


def _rows(values: Any) -> int:
    """Of an array, or of the first in a Dict or Tuple of arrays."""
    while isinstance(values, dict | tuple):
        values = next(iter(values.values() if isinstance(values, dict) else values))
    return len(values)


def _write(
    episode: MinariEpisode,
    rows: slice,
    arrays: Fields,
    targets: dict[str, Leaf],
    space: ActionSpace,
    gamma: float,
) -> None:
    """Put an episode's steps into these rows."""
    steps = rows.stop - rows.start
    terminated = np.asarray(episode.terminations, bool)
    truncated = np.asarray(episode.truncations, bool)
    end = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, WENT_ON))
    if steps and end[-1] == WENT_ON:  # the recording stopped in the middle of an episode
        end[-1] = TRUNCATED
    arrays["end"][rows] = end
    arrays["reward"][rows] = episode.rewards
    arrays["discount"][rows] = np.where(terminated, 0.0, gamma)
    arrays["action"][rows] = from_space(space, episode.actions if space.spaces else np.asarray(episode.actions))
    for name, leaf in targets.items():
        seen = _seen(episode.observations, leaf, steps + 1, arrays[name])
        after = arrays[f"next_{name}"][rows]
        arrays[name][rows] = seen[:-1]
        after[:] = seen[1:]
        after[terminated] = 1 if name == "mask" else 0  # as recordings have it: nothing is valued there


def _seen(observations: Any, leaf: Leaf, count: int, like: NDArray[Any]) -> NDArray[Any]:
    """One block of all observations of an episode, [count, ...], each checked against its space."""
    column = observations
    for key in leaf.path:
        column = column[key]
    if len(column) != count:
        raise MismatchError(f"{len(column)} observations '{leaf.block.name}' where {count} belong (steps + 1)")
    out = np.zeros((count, *like.shape[1:]), like.dtype)
    for value, row in zip(column, out, strict=True):
        leaf.write(value, row.reshape(leaf.row_shape))
    return out
