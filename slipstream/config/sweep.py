"""The sweep: one frozen value that says which scenario is tried with which values, how they are chosen and judged."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from slipstream.config.base import Config
from slipstream.config.explain import explain
from slipstream.config.load import load, override
from slipstream.config.names import check_name, name_from
from slipstream.config.scenario import Count, Name, Scenario, dotted
from slipstream.config.yaml import KeyPath, dump_yaml, load_yaml
from slipstream.errors import ScenarioError, suggest

SWEEPS = Path(__file__).resolve().parent.parent / "sweeps"
MAX_TRIALS = 10_000

Steps = Annotated[int | None, Field(ge=2, le=1000)]
STEPS_TEXT = "Only so many values, evenly apart, both ends among them; a grid needs it. null: any in between."


class Choice(Config):
    """One of a few values."""

    kind: Literal["choice"] = Field("choice", description="One of a few values.")
    values: tuple[Any, ...] = Field(min_length=1, description="The values, of any kind that the key takes.")


class Uniform(Config):
    """A number between two others."""

    kind: Literal["uniform"] = Field("uniform", description="A number, all equally likely.")
    low: float = Field(description="The smallest.")
    high: float = Field(description="The largest.")
    steps: Steps = Field(None, description=STEPS_TEXT)

    @model_validator(mode="after")
    def _has_room(self) -> Uniform:
        _in_order(self.low, self.high)
        return self


class LogUniform(Config):
    """A positive number whose order of magnitude is not known."""

    kind: Literal["log_uniform"] = Field("log_uniform", description="A number, all orders of magnitude equally likely.")
    low: float = Field(gt=0, description="The smallest.")
    high: float = Field(gt=0, description="The largest.")
    steps: Steps = Field(None, description=STEPS_TEXT.replace("evenly apart", "by equal ratios"))

    @model_validator(mode="after")
    def _has_room(self) -> LogUniform:
        _in_order(self.low, self.high)
        return self


class Integer(Config):
    """A whole number between two others."""

    kind: Literal["integer"] = Field("integer", description="A whole number, all equally likely.")
    low: int = Field(description="The smallest.")
    high: int = Field(description="The largest.")
    steps: Steps = Field(None, description=STEPS_TEXT)

    @model_validator(mode="after")
    def _has_room(self) -> Integer:
        _in_order(self.low, self.high)
        if self.steps is not None and self.steps > self.high - self.low + 1:
            raise ValueError(f"there are no {self.steps} whole numbers from {self.low} to {self.high}; try fewer steps")
        return self


def _in_order(low: float, high: float) -> None:
    if low >= high:
        raise ValueError(f"low {low:g} must be below high {high:g}; for a single value, set it under overrides")


Parameter = Annotated[Choice | Uniform | LogUniform | Integer, Field(discriminator="kind")]


class Grid(Config):
    """Every combination of the parameters' values."""

    kind: Literal["grid"] = Field("grid", description="Every combination of values.")


class RandomSearch(Config):
    """Values drawn independently of each other and of what came out."""

    kind: Literal["random"] = Field("random", description="Values drawn at random.")
    trials: Count = Field(16, le=MAX_TRIALS, description="How many combinations.")


class Tpe(Config):
    """Optuna's tree-structured Parzen estimator: values like those of the better trials so far."""

    kind: Literal["tpe"] = Field("tpe", description="Values like those of the better trials (Optuna).")
    trials: Count = Field(32, le=MAX_TRIALS, description="How many combinations.")
    startup: Count = Field(8, description="Trials drawn at random before any is suggested.")
    batch: Count = Field(
        4, description="Trials suggested at a time; the next ones are when all of these are over, so that it does not "
        "matter who is first."
    )  # fmt: skip


class Asha(Config):
    """Successive halving: all begin, and at each rung the better ones go on."""

    kind: Literal["asha"] = Field("asha", description="Many begin, the better ones go on (successive halving).")
    trials: Count = Field(27, le=MAX_TRIALS, description="How many combinations begin.")
    eta: int = Field(3, ge=2, le=100, description="One in so many goes on, to a budget so many times as large.")
    rungs: int = Field(3, ge=2, le=20, description="Budgets there are, the last being the scenario's timesteps.")


class Pbt(Config):
    """Population-based training: the worse go on from the better ones' checkpoints, with values changed a little."""

    kind: Literal["pbt"] = Field("pbt", description="The worse go on from the better ones' checkpoints.")
    population: int = Field(8, ge=2, le=1000, description="How many train side by side.")
    interval: Count = Field(description="Steps between two comparisons.")
    quantile: float = Field(0.25, gt=0, le=0.5, description="Share that is given up, for as many of the best.")
    resample: float = Field(
        0.25, ge=0, le=1, description="Chance that a value is drawn anew instead of changed a little."
    )


Method = Annotated[Grid | RandomSearch | Tpe | Asha | Pbt, Field(discriminator="kind")]


class MetricConfig(Config):
    """What makes a trial good."""

    name: str = Field("eval/return_mean", min_length=1, description="A key of metrics.jsonl (docs/metrics.md).")
    mode: Literal["max", "min"] = Field("max", description="Whether more is better, or less.")
    over: float = Field(
        0.1, ge=0, le=1, description="Mean over the reports of this last share of a run's steps; 0: the last report."
    )


class Sweep(Config):
    """Everything a sweep needs: the same sweep gives the same table, however often it was stopped."""

    name: Name = Field("sweep", description="Used in folder names; the file's own name unless given.")
    description: str = Field("", max_length=2000, description="What is looked for, for people.")
    scenario: str = Field(min_length=1, description="The scenario that is tried: a name, or a file beside this one.")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Values of the scenario that are the same in all trials, by dotted path."
    )
    parameters: dict[str, Parameter] = Field(
        min_length=1, max_length=32, description="What is tried, by dotted path, such as algo.learning_rate."
    )
    method: Method = Field(default_factory=RandomSearch, description="How values are chosen.")
    metric: MetricConfig = Field(default_factory=MetricConfig, description="What makes a trial good.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the values that are drawn.")
    repeat: Count = Field(1, le=1000, description="Runs of each trial, with seeds that are the same in all trials.")
    seed_base: int | None = Field(None, ge=0, lt=2**62, description="Seed of the first run; null: the scenario's.")
    seed_step: Count = Field(1, le=2**31, description="Distance between the seeds of a trial's runs.")
    max_parallel: Count | None = Field(
        None, le=1024, description="Runs at a time; null: one for each core. It does not change the table."
    )

    @model_validator(mode="after")
    def _fits_its_method(self) -> Sweep:
        problems = list(_problems(self))
        if problems:
            text = "; ".join(f"{dotted(path)}: {sentence}" for path, sentence in problems)
            raise PydanticCustomError("cross_field", "{text}", {"text": text, "problems": problems})
        return self

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs of a trial, once `seed_base` is known."""
        assert self.seed_base is not None
        return tuple(self.seed_base + index * self.seed_step for index in range(self.repeat))


def _problems(sweep: Sweep) -> Iterator[tuple[tuple[str, ...], str]]:
    own = sweep.method.kind
    for path, parameter in sweep.parameters.items():
        place = ("parameters", path)
        if path in ("seed", "name", "description", "preset"):
            yield place, "cannot be tried; the seeds of runs are given by repeat, seed_base and seed_step"
        if own in ("asha", "pbt") and path == "timesteps":
            yield place, f"{own} compares trials at equal steps; set it under overrides"
        if own == "grid" and size(parameter) == 0:
            yield place, "a grid needs to know how many values are tried; add steps, as in steps: 5"
        if path in sweep.overrides:
            yield place, "is under overrides too, which are the same in all trials; keep one of them"
    many = math.prod(map(size, sweep.parameters.values()))
    if own == "grid" and many > MAX_TRIALS:
        yield ("method",), f"the grid has {many:,} combinations, more than {MAX_TRIALS:,}; try fewer values or random"


def size(parameter: Parameter) -> int:
    """How many values a parameter has in a grid; 0 where they cannot be counted."""
    if isinstance(parameter, Choice):
        return len(parameter.values)
    return parameter.steps or (parameter.high - parameter.low + 1 if isinstance(parameter, Integer) else 0)


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
        raise ScenarioError(explain(error, values, where, Sweep)) from None
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
            f"there is no sweep '{text}'{suggest(text, names)} (there is {', '.join(names)}; a file of yours is given "
            "by its path, ending in .yaml)"
        )
    return names[text]


def dump_sweep(sweep: Sweep) -> str:
    """A sweep as YAML that loads back equal, every value written out."""
    return dump_yaml(_plain(sweep))


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return {key: _plain(getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def check_parameters(read: LoadedSweep, values: Mapping[str, Sequence[Any]]) -> None:
    """Refuse parameters that the scenario does not have, or values it would not take, each alone; all told at once."""
    problems = []
    for path, tried in values.items():
        for value in tried:
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
    first = first_steps(sweep, base)
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


def first_steps(sweep: Sweep, base: Scenario) -> int:
    """Steps after which trials are first compared."""
    method = sweep.method
    if isinstance(method, Asha):
        return math.ceil(base.timesteps / int(method.eta ** (method.rungs - 1)))
    return min(method.interval, base.timesteps) if isinstance(method, Pbt) else base.timesteps
