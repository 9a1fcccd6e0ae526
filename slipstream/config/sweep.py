"""The sweep: one frozen value that says which scenario is run with which values, how they are chosen and compared."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from slipstream.config.base import Config, Count, Name, Problem, plain, refuse_problems
from slipstream.config.explain import explain
from slipstream.config.load import load, override
from slipstream.config.records import check_name, name_from
from slipstream.config.scenario import Scenario
from slipstream.config.yaml import KeyPath, dump_yaml, load_yaml
from slipstream.errors import ScenarioError, suggest

SWEEPS = Path(__file__).resolve().parent.parent / "sweeps"
MAX_TRIALS = 10_000

Steps = Annotated[int | None, Field(ge=2, le=1000)]
STEPS_TEXT = (
    "Try only this many values, evenly spaced, both ends included; a grid needs it. null: any value in between."
)


class Choice(Config):
    """One of a list of values."""

    kind: Literal["choice"] = Field("choice", description="One of a list of values.")
    values: tuple[Any, ...] = Field(min_length=1, description="The values, of any type that the key takes.")

    def points(self) -> list[Any]:
        """The values, in order."""
        return [plain(value) for value in self.values]

    def value_at(self, share: float) -> Any:
        """The value a share of the way through them, 0 <= share < 1."""
        return self.points()[int(share * len(self.values))]

    def probes(self) -> list[Any]:
        """Values that show whether a key can take this parameter: all of them."""
        return self.points()


class RangeConfig(Config):
    """What numbers between two others share."""

    kind: str
    low: float = Field(description="The smallest value.")
    high: float = Field(description="The largest value.")
    steps: Steps = Field(None, description=STEPS_TEXT)

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}; set a single value under overrides")
        return self

    def between(self, share: float) -> Any:
        """The number a share of the way from low to high, 0 <= share <= 1."""
        return self.readable(self.low + share * (self.high - self.low))

    def readable(self, value: float) -> float:
        """A number with no more digits than a person would type again, between low and high."""
        return min(self.high, max(self.low, float(f"{value:.6g}")))

    def points(self) -> list[Any]:
        """The values it can have, in order; none where there are no steps."""
        return [] if self.steps is None else [self.between(index / (self.steps - 1)) for index in range(self.steps)]

    def value_at(self, share: float) -> Any:
        """The value a share of the way through the range, 0 <= share < 1."""
        counted = self.points()
        return counted[int(share * len(counted))] if counted else self.between(share)

    def probes(self) -> list[Any]:
        """Values that show whether a key can take this parameter: both ends, and one in between."""
        return [self.between(0.0), self.between(1.0), self.value_at(0.37)]


class Uniform(RangeConfig):
    """A number between two others."""

    kind: Literal["uniform"] = Field("uniform", description="A number between low and high, uniformly distributed.")


class LogUniform(RangeConfig):
    """A positive number whose order of magnitude is not known."""

    kind: Literal["log_uniform"] = Field("log_uniform", description="A number whose logarithm is uniform.")
    low: float = Field(gt=0, description="The smallest value.")
    high: float = Field(gt=0, description="The largest value.")
    steps: Steps = Field(None, description=STEPS_TEXT.replace("evenly spaced", "spaced by equal ratios"))

    def between(self, share: float) -> Any:
        """The number a share of the way from low to high, by ratio."""
        return self.readable(self.low * (self.high / self.low) ** share)


class Integer(RangeConfig):
    """A whole number between two others."""

    kind: Literal["integer"] = Field("integer", description="A whole number from low to high, uniformly distributed.")
    low: int = Field(description="The smallest value.")
    high: int = Field(description="The largest value.")

    @model_validator(mode="after")
    def _has_numbers(self) -> Self:
        if self.steps is not None and self.steps > self.high - self.low + 1:
            raise ValueError(f"there are no {self.steps} whole numbers from {self.low} to {self.high}; use fewer steps")
        return self

    def between(self, share: float) -> Any:
        """The whole number nearest to a share of the way from low to high."""
        return round(self.low + share * (self.high - self.low))

    def points(self) -> list[Any]:
        """The values it can have, in order."""
        return list(range(self.low, self.high + 1)) if self.steps is None else super().points()


Parameter = Annotated[Choice | Uniform | LogUniform | Integer, Field(discriminator="kind")]


class MethodConfig(Config):
    """How the values of trials are chosen, and when trials are compared."""

    kind: str

    def stages(self, budget: int) -> tuple[int, ...]:
        """Steps at which trials are compared; the last is their whole budget."""
        return (budget,)


class Grid(MethodConfig):
    """Every combination of the parameters' values."""

    kind: Literal["grid"] = Field("grid", description="Grid search: every combination of values.")


class RandomSearch(MethodConfig):
    """Values drawn at random, whatever the results."""

    kind: Literal["random"] = Field("random", description="Random search.")
    trials: Count = Field(16, le=MAX_TRIALS, description="Number of trials.")


class Tpe(MethodConfig):
    """Optuna's tree-structured Parzen estimator: values like those of the better trials so far."""

    kind: Literal["tpe"] = Field("tpe", description="Tree-structured Parzen estimator (Optuna).")
    trials: Count = Field(32, le=MAX_TRIALS, description="Number of trials.")
    startup: Count = Field(8, description="Random trials before the first suggestion.")
    batch: Count = Field(
        4,
        description="Trials suggested at a time. The next batch waits until these are over, so that results do not "
        "depend on who finishes first.",
    )


class Asha(MethodConfig):
    """Successive halving: all trials start, and at each rung the better ones continue."""

    kind: Literal["asha"] = Field("asha", description="Successive halving: many trials start, the better continue.")
    trials: Count = Field(27, le=MAX_TRIALS, description="Number of trials that start.")
    eta: int = Field(
        3, ge=2, le=100, description="One trial in eta continues to the next rung, with eta times the budget."
    )
    rungs: int = Field(3, ge=2, le=20, description="Number of rungs; the last has the scenario's timesteps.")

    def stages(self, budget: int) -> tuple[int, ...]:
        """Steps of the rungs."""
        return tuple(math.ceil(budget / self.eta**left) for left in range(self.rungs - 1, -1, -1))


class Pbt(MethodConfig):
    """Population-based training: the worst continue from checkpoints of the best, with changed values."""

    kind: Literal["pbt"] = Field("pbt", description="Population-based training.")
    population: int = Field(8, ge=2, le=1000, description="Number of trials that train side by side.")
    interval: Count = Field(description="Steps between two comparisons.")
    quantile: float = Field(
        0.25, gt=0, le=0.5, description="Fraction of the population that is replaced by copies of the best."
    )
    resample: float = Field(
        0.25, ge=0, le=1, description="Probability that a value is drawn again instead of changed a little."
    )

    def stages(self, budget: int) -> tuple[int, ...]:
        """Steps of the comparisons."""
        first = min(self.interval, budget)
        return (*range(first, budget, first), budget)


Method = Annotated[Grid | RandomSearch | Tpe | Asha | Pbt, Field(discriminator="kind")]


class MetricConfig(Config):
    """The metric that trials are compared by."""

    name: str = Field("eval/return_mean", min_length=1, description="A key of metrics.jsonl (docs/metrics.md).")
    mode: Literal["max", "min"] = Field(
        "max", description="Whether a larger value is better (max) or a smaller one (min)."
    )
    over: float = Field(
        0.1, ge=0, le=1, description="Take the mean over this last fraction of a run's steps; 0: the last report only."
    )


class Sweep(Config):
    """Everything a sweep needs: the same sweep gives the same table, however often it is stopped and continued."""

    name: Name = Field("sweep", description="Name used in folder names; default: the name of the file.")
    description: str = Field("", max_length=2000, description="What the sweep is for, for people.")
    scenario: str = Field(min_length=1, description="The scenario: a name, or a file in the folder of this one.")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Changes of the scenario for all trials, by dotted path."
    )
    parameters: dict[str, Parameter] = Field(
        min_length=1, max_length=32, description="What is varied, by dotted path, such as algo.learning_rate."
    )
    method: Method = Field(
        default_factory=RandomSearch, description="How values are chosen: grid, random, tpe, asha or pbt."
    )
    metric: MetricConfig = Field(default_factory=MetricConfig, description="The metric that trials are compared by.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the drawn values.")
    repeat: Count = Field(1, le=1000, description="Runs per trial; their seeds are the same in all trials.")
    seed_base: int | None = Field(
        None, ge=0, lt=2**62, description="Seed of the first run of a trial; null: the scenario's."
    )
    seed_step: Count = Field(1, le=2**31, description="Distance between the seeds of a trial's runs.")
    max_parallel: Count | None = Field(
        None, le=1024, description="How many runs at a time; null: one per CPU core. Does not change results."
    )

    @model_validator(mode="after")
    def _fits_its_method(self) -> Sweep:
        refuse_problems(_problems(self))
        return self

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs of a trial, once `seed_base` is known."""
        assert self.seed_base is not None
        return tuple(self.seed_base + index * self.seed_step for index in range(self.repeat))


def _problems(sweep: Sweep) -> Iterator[Problem]:
    own = sweep.method.kind
    for path, parameter in sweep.parameters.items():
        place = ("parameters", path)
        if path in ("seed", "name", "description", "preset"):
            yield place, "cannot be a parameter; the seeds of runs are set by repeat, seed_base and seed_step"
        if own in ("asha", "pbt") and path == "timesteps":
            yield place, f"{own} compares trials after the same steps; set it under overrides"
        if own == "grid" and not parameter.points():
            yield place, "a grid needs a number of values; add steps, as in steps: 5"
        if path in sweep.overrides:
            yield place, "is under overrides too; keep one of them"
    many = math.prod(len(parameter.points()) for parameter in sweep.parameters.values())
    if own == "grid" and many > MAX_TRIALS:
        yield ("method",), f"the grid has {many:,} combinations, more than {MAX_TRIALS:,}; use fewer values, or random"


# --- reading and checking ---


class LoadedSweep(NamedTuple):
    """A sweep and its scenario, and where a key of its file is written."""

    sweep: Sweep
    base: Scenario
    where: Callable[[KeyPath], str]


def load_sweep(name_or_path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> LoadedSweep:
    """Reads a packaged sweep by name, or a YAML file by path; `changes` are laid over its own keys."""
    path = find_sweep(name_or_path)
    label = str(path.relative_to(SWEEPS.parent)) if path.is_relative_to(SWEEPS) else str(path)
    document = load_yaml(path, label)
    if not isinstance(document.value, dict):
        raise ScenarioError(f"{label}:1: a sweep maps keys to values, found a {type(document.value).__name__}")
    values = {"name": name_from(path.stem), **document.value, **(changes or {})}

    def where(key: KeyPath) -> str:
        found = next((key[:n] for n in range(len(key), 0, -1) if key[:n] in document.lines), None)
        return label if found is None else f"{label}:{document.lines[found]}"

    try:
        sweep = Sweep.model_validate(values)
    except ValidationError as error:
        raise explain(error, values, where, Sweep) from None
    beside = path.parent / sweep.scenario
    source: str | Path = beside if sweep.scenario.endswith((".yaml", ".yml")) else sweep.scenario
    try:
        base = load(source, sweep.overrides)
    except ScenarioError as error:
        raise ScenarioError(f"{where(('scenario',))}: scenario {sweep.scenario}: {error}") from None
    return LoadedSweep(sweep, base, where)


def find_sweep(name_or_path: str | os.PathLike[str]) -> Path:
    """The file a name or path stands for, as with scenarios."""
    text = os.fspath(name_or_path)
    if not isinstance(name_or_path, str) or set(text) & {"/", "\\"} or text.endswith((".yaml", ".yml")):
        return Path(text)
    check_name(text, "sweep")
    names = {path.stem: path for path in sorted(SWEEPS.glob("*.yaml"))}
    if text not in names:
        raise ScenarioError(
            f"there is no sweep '{text}'{suggest(text, names)} (known: {', '.join(names)}; your own file is given by "
            "its path, ending in .yaml)"
        )
    return names[text]


def dump_sweep(sweep: Sweep) -> str:
    """A sweep as YAML that loads back equal, every value written out."""
    return dump_yaml(plain(sweep))


def check_parameters(read: LoadedSweep) -> None:
    """Refuse parameters that the scenario does not have, or values it would not take, each alone; all told at once."""
    problems = []
    for path, parameter in read.sweep.parameters.items():
        for value in parameter.probes():
            try:
                override(read.base, {path: value})
            except ScenarioError as error:
                said = str(error).replace("override: ", "").replace(f"{path}: ", "")
                problems.append(f"{read.where(('parameters', path))}: parameters.{path}: {said}")
                break
    if problems:
        raise ScenarioError("\n".join(problems))


def check_budget(read: LoadedSweep) -> None:
    """Refuse a metric that no report could have by the time trials are first compared."""
    sweep, base = read.sweep, read.base
    first = sweep.method.stages(base.timesteps)[0]
    interval = base.evaluate.evaluation_interval
    if not sweep.metric.name.startswith("eval/"):
        return
    place = f"{read.where(('metric', 'name'))}: metric.name: {sweep.metric.name} comes from evaluations"
    if interval is None:
        raise ScenarioError(f"{place}, but the scenario has evaluate.evaluation_interval null; give it one")
    update = base.rollout_steps
    if interval * update > first:
        raise ScenarioError(
            f"{place}, the first of which is after {interval * update:,} steps ({interval} updates of {update:,}), but "
            f"trials are compared at {first:,}; try evaluate.evaluation_interval {max(1, first // update)} or a larger "
            "budget"
        )
