"""The `federated:` block of a scenario, and the environment variables that stand for its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from slipstream.config.aggregators import AGGREGATORS, is_own_rule
from slipstream.config.base import Config
from slipstream.config.federated_checks import first_problem
from slipstream.config.names import NAME_PATTERN
from slipstream.config.transports import TransportName
from slipstream.errors import ScenarioError, suggest

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NAMES = " or ".join(", ".join(AGGREGATORS).rsplit(", ", 1))


class ServerConfig(Config):
    """A step from the last aggregate towards the new one, in place of taking it whole."""

    kind: Literal["fedadam", "fedyogi", "reptile"] = Field(
        description="fedadam and fedyogi: Adam or Yogi on the difference; reptile: a share of it."
    )
    rate: Positive = Field(0.1, description="Size of the step; for reptile, the share of the way that is gone.")
    tau: Positive = Field(
        1e-3, description="fedadam and fedyogi: added to the root, so that small differences stay so."
    )


class DefenceConfig(Config):
    """What an update must be like before it counts."""

    clip_norm: Positive | None = Field(
        3.0, description="Changes longer than this many times the median change are shortened to it; null: none."
    )
    max_norm: Positive | None = Field(
        10.0, description="Changes longer than this many times the median change are refused; null: none."
    )
    min_cosine: Annotated[float, Field(ge=-1, lt=1)] | None = Field(
        -0.3, description="Changes whose cosine to the median change is smaller are refused; null: none."
    )
    quarantine_rounds: int = Field(5, ge=0, description="Rounds in which a client that was refused is not heard.")


class DistillConfig(Config):
    """After a round, all clients' policies are distilled into one, which is taken where it plays better."""

    observations: int = Field(
        2048, ge=50, description="Rows to fit to, of episodes that the clients' policies and the aggregate play."
    )
    episodes: Count = Field(16, description="Episodes that each of these plays, and others by which two are compared.")
    epochs: Count = Field(20, description="Most passes over the observations; a fifth of them is held out.")
    learning_rate: Positive = Field(1e-3, description="Adam's step size.")
    margin: float = Field(0.0, ge=0, description="Mean return by which the distilled policy must be better.")


class PrivacyConfig(Config):
    """Differential privacy of whole clients: changes are clipped, and noise is added to them."""

    clip_norm: Positive = Field(1.0, description="Longest change of the weights that leaves a client.")
    noise_multiplier: Positive = Field(1.0, description="Deviation of the noise, in clip norms, on the sum of all.")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-5, description="Chance with which epsilon may not hold.")


class DpSgdConfig(Config):
    """Differential privacy of single rows: each row's gradient is clipped, and noise is added to their sum."""

    clip_norm: Positive = Field(1.0, description="Longest gradient of one row.")
    noise_multiplier: Positive = Field(1.0, description="Deviation of the noise, in clip norms, on the sum of a batch.")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-5, description="Chance with which epsilon may not hold.")


class FederatedConfig(Config):
    """Learning together with other runs: every so many episodes, weights are exchanged and merged."""

    enabled: bool = Field(False, description="Exchange weights with the other clients.")
    clients: Count = Field(1, description="Runs that learn together; with one, every round is skipped.")
    client: Name = Field("0", description="This run's name among them.")
    interval: Count = Field(10, description="Episodes, of all worlds and workers together, between two rounds.")
    init_seed: int = Field(0, ge=0, description="Seed of the first weights, which all clients have in common.")
    first_round: Count | None = Field(
        None, description="Round that the others must stand at when this run begins (1: a new federation); null: any."
    )
    agents: tuple[Name, ...] | None = Field(
        None, description="Policies that are shared (or agents or roles they act for); null: all that learn."
    )
    root: str = Field("federations/shared", min_length=1, description="Folder in which clients meet (transport files).")
    transport: TransportName = Field(
        "files",
        description="How weights travel: a shared folder, a coordinator, a ring of all, or pairs of neighbours.",
    )
    address: str | None = Field(
        None,
        description="Where the coordinator listens (transport tcp): tcp://HOST:PORT, or ipc://PATH on one machine.",
    )
    peers: dict[Name, str] = Field(
        default_factory=dict, description="Where every client listens, by name (transports ring and gossip)."
    )
    schedule: Literal["matching", "ring", "all"] = Field(
        "matching", description="Whom a client meets (transport gossip): one other, its neighbours, or everybody."
    )
    token_file: str | None = Field(None, description="File with the word that a coordinator or peers ask for.")
    aggregator: str = Field(
        "mean",
        description=f"How several clients' weights become one: {NAMES}; or a function of yours, as module:function.",
    )
    liars: int = Field(0, ge=0, description="Clients that may send anything, which the aggregator has to survive.")
    weights: Literal["samples", "reward_delta"] | dict[Name, Annotated[float, Field(ge=0)]] | None = Field(
        None,
        description="weighted_mean: what a client counts by (at most twice the median, whatever it claims), or a "
        "number for each client, on which all agree; null: all the same.",
    )
    server: ServerConfig | None = Field(None, description="A step towards the aggregate; null: it is taken as it is.")
    distill: DistillConfig | None = Field(
        None,
        description="Distil the clients' policies into one after every round, compare it with the aggregate in play, "
        "and go on with the better; null: the aggregate.",
    )
    timeout_s: Positive = Field(600.0, description="Longest wait for the others in a round.")
    quorum: Count | None = Field(None, description="Clients that a round needs at its deadline; null: more than half.")
    staleness: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="What an update counts that began one round too early, by round; 0: it is refused."
    )
    optimizer_strategy: Literal["local", "average", "reset"] = Field(
        "local", description="Moments of the optimisers after a round: each its own, merged, or none."
    )
    proximal_mu: float = Field(0.0, ge=0, description="Pull of the losses towards the last aggregate (FedProx).")
    maml: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="First-order MAML: in this part of an interval's episodes a client adapts, and only what it learns "
        "in the rest is sent, carried over to where it began; null: all it has learned is sent.",
    )
    merge_mu: Positive | None = Field(
        None, description="Take over only this much: (own + mu aggregate) / (1 + mu); null: all of it."
    )
    checkpoint_after_sync: bool = Field(
        True, description="Save after every round, and keep the averaged weights whose mean return was the best."
    )
    park: bool = Field(
        False, description="Where a round is not over, save and end instead of waiting; resume when it is."
    )
    defence: DefenceConfig = Field(default_factory=DefenceConfig, description="Checks before an update counts.")
    privacy: PrivacyConfig | None = Field(None, description="Differential privacy of whole clients; null: none.")
    dp_sgd: DpSgdConfig | None = Field(
        None,
        description="Differential privacy of single rows, of shared policies that learn by dqn (extra privacy): this "
        "run's own gradient steps are those of DP-SGD, also where it learns alone; null: none.",
    )
    secure: bool = Field(
        False,
        description="Secure aggregation: nobody sees more than the sum of all clients' weights (transport files).",
    )

    @field_validator("aggregator")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in AGGREGATORS and not is_own_rule(name):
            known = ", ".join(AGGREGATORS)
            raise ValueError(
                f"there is no such aggregator{suggest(name, AGGREGATORS)} (there is {known}; a function of yours is "
                "named module:function)"
            )
        return name

    @model_validator(mode="before")
    @classmethod
    def _cannot_check(cls, values: Any) -> Any:
        """The usual checks look at single updates, which nobody sees where `secure` is on; others are refused below."""
        usual = DefenceConfig()
        if isinstance(values, dict) and values.get("secure") is True:
            given = values.get("defence", usual)
            if given in (usual, usual.model_dump()):
                return {**values, "defence": {"clip_norm": None, "max_norm": None, "min_cosine": None}}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> FederatedConfig:
        if problem := first_problem(self):
            raise ValueError(problem)
        return self

    @property
    def has_others(self) -> bool:
        """Whether there is anybody to learn together with."""
        return self.enabled and self.clients > 1

    @property
    def needed(self) -> int:
        """Clients that a round needs at its deadline."""
        return self.clients // 2 + 1 if self.quorum is None else self.quorum


# --- the environment ---


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("is neither 1 nor 0")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("is not a number") from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _weights(text: str) -> dict[str, float] | str:
    """samples, reward_delta, "0.5,0.5" by index or "a:2,b:1" by name."""
    if text in ("samples", "reward_delta"):
        return text
    found = {}
    for index, part in enumerate(_names(text)):
        client, _, weight = part.rpartition(":")
        found[client or str(index)] = _number(weight)
    return found


def _peers(text: str) -> dict[str, str]:
    """0=ipc://a.sock,1=tcp://host:7001"""
    pairs = [part.partition("=") for part in _names(text)]
    if not all(address for _, _, address in pairs):
        raise ValueError("is not a list of NAME=ADDRESS")
    return {name: address for name, _, address in pairs}


VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "FED_ENABLED": ("enabled", _flag),
    "FED_TOTAL_CLIENTS": ("clients", _whole),
    "FED_CLIENT_ID": ("client", str),
    "FED_ROOT": ("root", str),
    "FED_INTERVAL": ("interval", _whole),
    "FED_ROUND_INTERVAL": ("interval", _whole),  # the older name wins where both are set
    "FED_ROUND": ("first_round", _whole),
    "FED_CHECKPOINT_AFTER_SYNC": ("checkpoint_after_sync", _flag),
    "FED_OPTIMIZER_STRATEGY": ("optimizer_strategy", str),
    "FED_TIMEOUT": ("timeout_s", _number),
    "FED_WEIGHTS": ("weights", _weights),
    "FED_AGENTS": ("agents", _names),
    "FED_ADDRESS": ("address", str),
    "FED_PEERS": ("peers", _peers),
}


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """What FED_… variables change in a scenario, by dotted path; the command line is applied after them."""
    return dict(_changes(environment))


def _changes(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for variable, (field, read) in VARIABLES.items():
        text = environment.get(variable, "")
        if not text:
            continue
        try:
            value = read(text)
        except ValueError as error:
            raise ScenarioError(f"{variable}={text}: {error}; it sets federated.{field}") from None
        yield f"federated.{field}", value
        if field == "weights":  # as users of the variable expect; the aggregator `mean` has no weights
            yield "federated.aggregator", "weighted_mean"
