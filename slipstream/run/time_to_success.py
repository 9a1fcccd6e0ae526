"""How long it will take, as a file: a model of the ticks left until an episode succeeds.

What it predicts is T: the ticks from a decision to the success of its episode, where that comes within the `horizon`.
An episode that ends in any other way (lost, or cut off by its world) or comes later counts as T = horizon. So every T
is known, the mean is honest about failures, and a quantile of `horizon` says: not to be expected.

The network gives the chance of success p and quantiles of T given success; together they are one distribution, with the
rest 1 - p at the horizon. Calibration moves its levels and nothing else: what is asked for at level τ is read at
`levels`, where the share of held-out episodes that were over by then was τ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.algos.state import load_module, module_arrays
from slipstream.config.records import from_value
from slipstream.config.world import NetworkConfig
from slipstream.data import checkpoint
from slipstream.data.arrays_file import content_hash, not_finite
from slipstream.data.rollout import Blocks
from slipstream.errors import CheckpointError
from slipstream.nets.actor import tensors, with_network_keys
from slipstream.nets.inputs import VECTOR, Obs, RunningNorm, flatten
from slipstream.nets.mlp import Linear
from slipstream.nets.torso import TorsoSpec, fitting_kind, network_kind
from slipstream.spec import WorldSpec
from slipstream.types import F32, F64, Arrays


class TimesSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is needed to build the network again: saved with its weights."""

    inputs: int
    quantiles: Annotated[int, msgspec.Meta(ge=2)]
    hidden: tuple[int, ...]
    activation: str = "relu"
    network: str = "mlp"  # kind of its torso
    layout: dict[str, Any] = {}  # facts of that kind


def times_spec(world: WorldSpec, quantiles: int, hidden: tuple[int, ...]) -> TimesSpec:
    """A network for this world, of the kind that is made for what it shows."""
    kind = fitting_kind(world)
    layout = network_kind(kind).layout(NetworkConfig.model_validate({"kind": kind}), world)
    return TimesSpec(world.obs_size, quantiles, hidden, network=kind, layout=layout)


class TimesNet(nn.Module):
    """Observation -> logit of success, and quantiles of the ticks until then in a unit of its own."""

    shift: Tensor  # ticks: mean of the times learned from
    scale: Tensor  # ticks: their deviation

    def __init__(self, spec: TimesSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.norm = RunningNorm(spec.inputs) if spec.network == "mlp" else None
        shape = TorsoSpec(spec.inputs, spec.hidden, spec.activation, layout=spec.layout)
        self.torso = network_kind(spec.network).torso(shape, generator)
        self.head = Linear(self.torso.features, 1 + spec.quantiles, 0.1, generator)
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Logits [rows] and standardised quantiles [rows, quantiles], which may cross."""
        x = flatten(obs)
        out = self.torso({VECTOR: x if self.norm is None else self.norm(x)}, self.head)
        return out[:, 0], out[:, 1:]

    @torch.no_grad()
    def times(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Chance of success [rows], and quantiles [rows, quantiles] of the ticks until it, ascending.

        Crossing quantiles are put in order, which brings them closer to the true ones (Chernozhukov, Fernández-Val and
        Galichon 2010).
        """
        logit, quantiles = self(obs)
        return functional.sigmoid(logit), (self.shift + self.scale * quantiles).sort(1).values


VERSION = 1
CPU = torch.device("cpu")


class HeldOutError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model did on episodes that it had not seen, at one decision of each."""

    where: str  # which decision
    episodes: int
    uncalibrated: tuple[float, ...]  # by the report's levels: share of episodes that were over by the ticks given
    calibrated: tuple[float, ...]
    mean_ticks: float  # of T
    predicted_ticks: float
    pinball: float  # mean quantile loss, in ticks
    pinball_blind: float  # of the same quantiles for every position: those of the episodes learned from


class FitReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model was made and how well it did, for people."""

    source: str  # the run, model or scenario that was played
    policy: str  # learned, or the name of a script
    config: dict[str, Any]  # of the world, as in a scenario
    seed: int
    epochs: int
    fitted: int  # episodes
    calibrated: int
    levels: tuple[float, ...]
    held: tuple[HeldOutError, ...]


class TimesRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model says about itself, beside its weights."""

    net: TimesSpec
    world: WorldSpec
    horizon: int  # ticks
    report: FitReport | None = None

    @property
    def levels(self) -> F64:
        """The levels that quantiles are given at."""
        return (np.arange(self.net.quantiles) + 0.5) / self.net.quantiles


@dataclass(frozen=True)
class Times:
    """A model of how long it will take; a row gets the same bits in any batch."""

    record: TimesRecord
    network: TimesNet
    levels: F64  # [quantiles]: where the network's own distribution is read for each of the record's

    def raw(self, obs: Blocks) -> tuple[F64, F64]:
        """The network's own chance of success [rows] and ordered quantiles [rows, quantiles] of the ticks until it."""
        rows = {name: np.ascontiguousarray(block) for name, block in obs.items()}
        chance, quantiles = self.network.times(tensors(rows, CPU))
        return chance.numpy().astype(np.float64), quantiles.numpy().astype(np.float64).clip(0, self.record.horizon)

    def quantiles(self, obs: Blocks) -> F32:
        """Ticks left at the levels (i + 1/2) / quantiles, [rows, quantiles], ascending; at most the horizon."""
        ticks: F32 = read_at(*self.raw(obs), self.levels, float(self.record.horizon)).astype(np.float32)
        return ticks

    def chance(self, obs: Blocks) -> F32:
        """Probability of success within the horizon, [rows]."""
        chance, _ = self.raw(obs)
        own = np.array([0.0, *self.levels, 1.0])
        stated: F32 = np.interp(chance, own, [0.0, *self.record.levels, 1.0]).astype(np.float32)
        return stated

    def mean(self, obs: Blocks) -> F32:
        """Expected ticks left, [rows]."""
        return self.cvar(obs, 1.0)

    def cvar(self, obs: Blocks, alpha: float) -> F32:
        """Expected ticks left in the worst (slowest) share `alpha` of cases, [rows]."""
        if not 0.0 < alpha <= 1.0:
            raise ValueError(f"alpha {alpha}: the share of worst cases must be above 0 and at most 1")
        count = self.record.net.quantiles
        share = ((np.arange(count) + 1) / count - (1.0 - alpha)).clip(0.0, 1.0 / count) / alpha
        # A sum of products by row: a matrix product's bits depend on the number of rows.
        ticks: F32 = (self.quantiles(obs) * share).sum(1).astype(np.float32)
        return ticks

    def potential(self, obs: Blocks) -> F32:
        """Φ = -E[T] / horizon, from -1 (hopeless) to 0 (done)."""
        return -self.mean(obs) / np.float32(self.record.horizon)

    @property
    def arrays(self) -> Arrays:
        """What is saved."""
        return {**module_arrays(self.network, "net"), "levels": self.levels}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that its answers depend on."""
        return content_hash({**self.arrays, "horizon": np.array(self.record.horizon)})


# --- one distribution of a chance and quantiles ---


def read_at(chance: F64, quantiles: F64, levels: F64, horizon: float) -> F64:
    """Ticks [rows, levels] by which an episode succeeds with these probabilities; the horizon where it never does."""
    nodes, count = _nodes(quantiles, horizon), quantiles.shape[1]
    with np.errstate(divide="ignore", over="ignore"):
        within = np.minimum(levels / chance[:, None], 1.0)  # level among the successes
    place = within * count + 0.5
    below = np.minimum(place.astype(np.int64), count)
    part, row = place - below, np.arange(len(nodes))[:, None]
    ticks = nodes[row, below] * (1.0 - part) + nodes[row, below + 1] * part
    return np.where(within < 1.0, ticks, horizon)


def level_of(chance: F64, quantiles: F64, ticks: F64, horizon: float) -> F64:
    """The level [rows] at which a success after so many ticks stands: what `read_at` undoes."""
    nodes, count = _nodes(quantiles, horizon), quantiles.shape[1]
    below = ((nodes <= ticks[:, None]).sum(1) - 1).clip(0, count)
    row = np.arange(len(nodes))
    low, high = nodes[row, below], nodes[row, below + 1]
    part = ((ticks - low) / np.maximum(high - low, 1e-9)).clip(0.0, 1.0)
    level: F64 = chance * ((below + part - 0.5) / count).clip(0.0, 1.0)
    return level


def _nodes(quantiles: F64, horizon: float) -> F64:
    """The quantiles at (i + 1/2) / count with one more on each side, half beyond level 0 and level 1."""
    first = 2 * quantiles[:, :1] - quantiles[:, 1:2]
    last = 2 * quantiles[:, -1:] - quantiles[:, -2:-1]
    return np.concatenate([first, quantiles, last], 1).clip(0, horizon)


# --- writing and reading ---


def save_times(path: Path, times: Times) -> None:
    """Write a model, all or nothing."""
    meta = {"kind": "times", "version": VERSION, "times": msgspec.to_builtins(times.record)}
    checkpoint.save(path, checkpoint.Checkpoint(times.arrays, meta))


def load_times(path: str | Path) -> Times:
    """Load a model and vouch for every bit of it; no code is run."""
    path = Path(path)
    if not (path / checkpoint.META_FILE).is_file():
        raise CheckpointError(
            f"{path}: there is no model of how long it will take here, which is a folder with "
            f"{checkpoint.ARRAYS_FILE} and {checkpoint.META_FILE}"
        )
    saved = checkpoint.load(path)
    if saved.meta.get("kind") != "times":
        raise CheckpointError(
            f"{path}: this is no model of how long it will take but a {saved.meta.get('kind') or 'checkpoint'!s:.40}"
        )
    if saved.meta.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: a model of version {saved.meta.get('version')!r:.40}, and this Slipstream reads {VERSION}; "
            "update it, or train the model again"
        )
    try:
        record = from_value(_with_new_keys(saved.meta.get("times")), TimesRecord)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: the record of this model is not readable: {error}") from None
    if names := not_finite(saved.arrays):
        raise CheckpointError(f"{path}: NaN or infinity in {', '.join(names)}, so it can say nothing; train it again")
    network = TimesNet(record.net, torch.Generator())
    load_module(network, saved.arrays, "net", strict=True)
    levels = np.asarray(saved.arrays.get("levels", ()), np.float64)
    if levels.shape != (record.net.quantiles,) or (np.diff(levels) < 0).any() or abs(levels - 0.5).max() > 0.5:
        raise CheckpointError(
            f"{path}: levels {levels.tolist()!s:.80} are not {record.net.quantiles} ascending probabilities"
        )
    return Times(record, network.eval(), levels)


def _with_new_keys(record: Any) -> Any:
    """A record as today's files have it."""
    if not isinstance(record, dict) or not isinstance(record.get("net"), dict):
        return record
    return {**record, "net": with_network_keys(record["net"])}
