"""Fine-tuning: a new run begins with weights that another one has learned (`init_from`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slipstream.algos.protocol import Algorithm
from slipstream.algos.state import load_module, module_arrays
from slipstream.collect.slab import under
from slipstream.config.scenario import InitConfig
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError, ScenarioError, suggest
from slipstream.types import Arrays

SHOWN = 3  # names in a sentence


def initialise(config: InitConfig, learners: Mapping[str, Algorithm]) -> list[str]:
    """Give learners the weights of a run, checkpoint or model; a sentence for each says what fitted."""
    path = Path(config.path)
    saved = _read(path)
    held = sorted({name.split(".")[1] for name in saved if name.startswith("policy.")})
    if not held:
        raise CheckpointError(f"init_from: {path} holds no policy; name a run, a checkpoint or a model")
    told = []
    for name, learner in learners.items():
        source = config.policy or (held[0] if len(held) == 1 else name)
        if source not in held:
            hint = suggest(source, held)
            raise ScenarioError(
                f"init_from.policy: {path} holds {', '.join(held)}, and policy '{name}' looks for '{source}'{hint}"
            )
        what = _take_over(learner, under(saved, f"policy.{source}."), config)
        told.append(f"{name} begins with {source} of {path}: {what}")
    return told


def _read(path: Path) -> Arrays:
    folder = path / "checkpoints"
    if not path.exists():
        raise CheckpointError(f"init_from: {path}: there is no such run, checkpoint or model")
    return (checkpoint.load_latest(folder).checkpoint if folder.is_dir() else checkpoint.load(path)).arrays


def _take_over(learner: Algorithm, given: Arrays, config: InitConfig) -> str:
    """Load what fits into the networks that learn, and let targets and averages begin as what they follow."""
    own: Arrays = {}
    for name in learner.layout.networks:
        own |= module_arrays(learner.modules[name], name)
    wanted = [name for name in own if config.parts is None or any(_is_in(name, part) for part in config.parts)]
    for part in config.parts or ():
        if not any(_is_in(name, part) for name in own):
            raise ScenarioError(f"init_from.parts: this learner has no '{part}'{suggest(part, _parts_of(own))}")
    fits = [name for name in wanted if name in given and given[name].shape == own[name].shape]
    if not fits:
        raise CheckpointError(
            f"init_from: nothing of {config.path} fits: {_problems(wanted, own, given)}; the same hidden sizes and "
            "blocks of observations are needed"
        )
    for name in learner.layout.networks:
        load_module(learner.modules[name], {key: given[key] for key in fits}, name, strict=False)
    _align_targets(learner)
    said = f"{len(fits)} of {len(wanted)} arrays"
    return said if len(fits) == len(wanted) else f"{said}; new: {_problems(set(wanted) - set(fits), own, given)}"


def _align_targets(learner: Algorithm) -> None:
    """Copy to each target network, or average, the network it follows: the one with the same arrays."""
    for target in learner.layout.followers:
        if target not in learner.modules:
            continue
        mine = learner.modules[target].state_dict()
        for name in learner.layout.networks:
            source = learner.modules[name].state_dict()
            if mine.keys() == source.keys():
                load_module(learner.modules[target], module_arrays(learner.modules[name], target), target, True)


def _problems(names: set[str] | list[str], own: Arrays, given: Arrays) -> str:
    """Why these arrays do not fit."""
    found = []
    for name in sorted(names):
        shapes = f"{list(given[name].shape)} there, {list(own[name].shape)} here" if name in given else "not there"
        found.append(f"{name} ({shapes})")
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _is_in(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _parts_of(own: Arrays) -> list[str]:
    return sorted({".".join(name.split(".")[:depth]) for name in own for depth in (1, 2)})
