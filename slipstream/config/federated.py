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
    """A step from the last aggregate towards the new one, instead of the new one itself."""

    kind: Literal["fedadam", "fedyogi", "reptile"] = Field(
        description="fedadam, fedyogi: Adam or Yogi on the difference; reptile: a fraction of the difference."
    )
    rate: Positive = Field(0.1, description="Step size; for reptile, the fraction of the difference that is applied.")
    tau: Positive = Field(
        1e-3,
        description="fedadam and fedyogi: added to the root of the second moment, to keep small differences small.",
    )


class DefenceConfig(Config):
    """Checks that an update must pass before it is merged."""

    clip_norm: Positive | None = Field(
        3.0, description="Scale a change down to this many times the median norm of the round; null: never."
    )
    max_norm: Positive | None = Field(
        10.0, description="Refuse a change above this many times the median norm of the round; null: never."
    )
    min_cosine: Annotated[float, Field(ge=-1, lt=1)] | None = Field(
        -0.3, description="Refuse a change whose cosine to the median change is below this; null: never."
    )
    quarantine_rounds: int = Field(5, ge=0, description="Rounds for which a client is excluded after a refused update.")


class DistillConfig(Config):
    """After a round, distil all clients' policies into one, and use it if it plays better than the aggregate."""

    observations: int = Field(
        2048,
        ge=50,
        description="Observations to fit to, from episodes that the clients' policies and the aggregate play.",
    )
    episodes: Count = Field(
        16, description="Episodes that each policy plays for observations, and again for the comparison."
    )
    epochs: Count = Field(
        20, description="Largest number of passes over the observations; a fifth of them is held out."
    )
    learning_rate: Positive = Field(1e-3, description="Adam's step size.")
    margin: float = Field(0.0, ge=0, description="Mean return by which the distilled policy must beat the aggregate.")


class PrivacyConfig(Config):
    """Differential privacy of whole clients: each client's change is clipped, and noise is added to it."""

    clip_norm: Positive = Field(1.0, description="Largest norm of the change that a client sends.")
    noise_multiplier: Positive = Field(
        1.0, description="Standard deviation of the noise in the sum over clients, in units of clip_norm."
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="Probability with which the bound epsilon may fail."
    )


class DpSgdConfig(Config):
    """Differential privacy of single rows (DP-SGD): each row's gradient is clipped, and noise is added to the sum."""

    clip_norm: Positive = Field(1.0, description="Largest norm of one row's gradient.")
    noise_multiplier: Positive = Field(
        1.0, description="Standard deviation of the noise in the sum over a batch, in units of clip_norm."
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="Probability with which the bound epsilon may fail."
    )


class FederatedConfig(Config):
    """Federated learning: every `interval` episodes, runs exchange weights and continue from the merged ones."""

    enabled: bool = Field(False, description="Exchange weights with the other clients.")
    clients: Count = Field(1, description="Number of runs in the federation; with 1, rounds are skipped.")
    client: Name = Field("0", description="Name of this run in the federation.")
    interval: Count = Field(10, description="Episodes between two rounds, counted over all worlds and workers.")
    init_seed: int = Field(0, ge=0, description="Seed of the initial weights, which are the same for all clients.")
    first_round: Count | None = Field(
        None, description="Round that the federation must be in when this run starts (1: a new federation); null: any."
    )
    agents: tuple[Name, ...] | None = Field(
        None, description="Policies to share, or agents or roles they act for; null: all learning policies."
    )
    root: str = Field("federations/shared", min_length=1, description="Folder in which clients meet (transport files).")
    transport: TransportName = Field(
        "files",
        description="How weights travel: a shared folder (files), a coordinator (tcp), a ring of peers, or gossip.",
    )
    address: str | None = Field(
        None,
        description="Address of the coordinator (transport tcp): tcp://HOST:PORT, or ipc://PATH on one machine.",
    )
    peers: dict[Name, str] = Field(
        default_factory=dict, description="Address of every client, by name (transports ring and gossip)."
    )
    schedule: Literal["matching", "ring", "all"] = Field(
        "matching",
        description="Partners of a client in a round (transport gossip): one other, both neighbours, or everybody.",
    )
    token_file: str | None = Field(None, description="File with the token that the coordinator or the peers require.")
    aggregator: str = Field(
        "mean",
        description=f"Rule that merges the clients' weights: {NAMES}; or your own function, as module:function.",
    )
    liars: int = Field(0, ge=0, description="Number of malicious or broken clients that the aggregator must withstand.")
    weights: Literal["samples", "reward_delta"] | dict[Name, Annotated[float, Field(ge=0)]] | None = Field(
        None,
        description="weighted_mean: weigh clients by samples or reward_delta (at most twice the round's median), or "
        "by a number for each client; null: equal weights.",
    )
    server: ServerConfig | None = Field(
        None, description="Server optimiser, which steps towards the aggregate; null: use the aggregate itself."
    )
    distill: DistillConfig | None = Field(
        None,
        description="After every round, distil the clients' policies into one, play it against the aggregate, and "
        "continue with the better; null: always the aggregate.",
    )
    timeout_s: Positive = Field(600.0, description="Time from the first update of a round to its deadline.")
    quorum: Count | None = Field(
        None,
        description="Fewest accepted updates for a round to close at its deadline; null: more than half.",
    )
    staleness: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Weight of a stale update, multiplied once per missed round; 0 refuses stale updates."
    )
    optimizer_strategy: Literal["local", "average", "reset"] = Field(
        "local", description="Optimiser moments after a round: kept by each client, averaged, or reset to zero."
    )
    proximal_mu: float = Field(
        0.0, ge=0, description="FedProx: weight of the penalty on the distance to the last aggregate."
    )
    maml: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="First-order MAML: fraction of an interval's episodes in which a client adapts; only the change "
        "learned in the rest is sent, applied to where the interval began; null: everything learned is sent.",
    )
    merge_mu: Positive | None = Field(
        None, description="Continue from (own + mu aggregate) / (1 + mu); null: from the aggregate."
    )
    checkpoint_after_sync: bool = Field(
        True, description="Save a checkpoint after every round, and keep the aggregate with the best mean return."
    )
    park: bool = Field(False, description="Save and exit instead of waiting for a round to close; resume afterwards.")
    defence: DefenceConfig = Field(
        default_factory=DefenceConfig, description="Checks that an update must pass before it is merged."
    )
    privacy: PrivacyConfig | None = Field(None, description="Differential privacy of whole clients; null: none.")
    dp_sgd: DpSgdConfig | None = Field(
        None,
        description="Differential privacy of single rows, for shared policies that learn by dqn (extra privacy): this "
        "run's gradient steps are DP-SGD, also without other clients; null: none.",
    )
    secure: bool = Field(
        False,
        description="Secure aggregation: only the sum of all clients' weights can be read (transport files).",
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
