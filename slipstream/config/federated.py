"""The `federated:` block of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from slipstream.config.aggregators import AGGREGATORS, is_own_rule, traits_of, usable_rule, with_fallbacks
from slipstream.config.base import Config, Count, Name, Positive, Problem, refuse_problems
from slipstream.errors import suggest

NAMES = " or ".join(", ".join(AGGREGATORS).rsplit(", ", 1))

TransportName = Literal["files", "tcp", "ring", "gossip"]


class TransportTraits(NamedTuple):
    """What the other fields of a scenario must fit, and what `slipstream federate` gives replicas."""

    has_folder: bool = False  # clients meet in a folder: one of them may be away, and several policies can be shared
    needs_address: bool = False  # of a coordinator, which `slipstream federate` starts
    needs_peers: bool = False  # an address of every client; nobody sees all updates, so only the mean is possible


TRANSPORTS: dict[TransportName, TransportTraits] = {
    "files": TransportTraits(has_folder=True),
    "tcp": TransportTraits(needs_address=True),
    "ring": TransportTraits(needs_peers=True),
    "gossip": TransportTraits(needs_peers=True),
}


class ServerConfig(Config):
    """Server optimiser: a step from the last aggregate towards the new one, instead of the new one itself."""

    kind: Literal["fedadam", "fedyogi", "reptile"] = Field(
        description="fedadam, fedyogi: Adam or Yogi on the difference; reptile: a fraction of the difference."
    )
    rate: Positive = Field(0.1, description="Step size; for reptile, the fraction of the difference that is applied.")
    tau: Positive = Field(
        1e-3,
        description="fedadam and fedyogi: added to the root of the second moment; keeps small differences small.",
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
    quarantine_rounds: int = Field(
        5, ge=0, description="Rounds for which a client is excluded after a refused update; 0: none."
    )


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
        20, description="Maximum number of passes over the observations, of which a fifth is held out."
    )
    learning_rate: Positive = Field(1e-3, description="Adam's step size.")
    margin: float = Field(0.0, ge=0, description="Mean return by which the distilled policy must beat the aggregate.")


class PrivacyConfig(Config):
    """Differential privacy of whole clients: each client's change is clipped, and noise is added to it."""

    clip_norm: Positive = Field(1.0, description="Largest norm of the change that a client sends.")
    noise_multiplier: Positive = Field(
        1.0, description="Standard deviation of the noise in the sum over clients, as a multiple of clip_norm."
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="Probability with which the bound epsilon may fail."
    )


class DpSgdConfig(Config):
    """Differential privacy of single rows (DP-SGD): each row's gradient is clipped, and noise is added to the sum."""

    clip_norm: Positive = Field(1.0, description="Largest norm of one row's gradient.")
    noise_multiplier: Positive = Field(
        1.0, description="Standard deviation of the noise in the sum over a batch, as a multiple of clip_norm."
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
    root: str = Field(
        "federations/shared",
        min_length=1,
        description="Folder of the rounds: clients meet in it (transport files), or the coordinator keeps its rounds "
        "there (tcp).",
    )
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
    token_file: str | None = Field(
        None, description="File with the token that the coordinator or the peers require; null: no token."
    )
    aggregator: str = Field(
        "mean",
        description=f"Rule that merges the clients' weights: {NAMES}; or your own function, as module:function.",
    )
    liars: int = Field(
        0, ge=0, description="Number of malicious or broken clients that the aggregator must withstand; 0: none."
    )
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
    timeout_s: Positive = Field(600.0, description="Seconds from the first update of a round to its deadline.")
    quorum: Count | None = Field(
        None,
        description="Accepted updates that a round needs to close at its deadline; null: more than half.",
    )
    staleness: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Weight of a stale update, multiplied once per missed round; 0 refuses stale updates."
    )
    optimizer_strategy: Literal["local", "average", "reset"] = Field(
        "local", description="Optimiser moments after a round: kept by each client, averaged, or reset to zero."
    )
    proximal_mu: float = Field(
        0.0, ge=0, description="FedProx: weight of the penalty on the distance to the last aggregate; 0: no penalty."
    )
    maml: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="First-order MAML: fraction of an interval's episodes that a client only adapts in. It sends the "
        "change learned in the rest, applied to the weights the interval began with; null: it sends all changes.",
    )
    merge_mu: Positive | None = Field(
        None, description="Continue from (own weights + mu × aggregate) / (1 + mu); null: continue from the aggregate."
    )
    checkpoint_after_sync: bool = Field(
        True, description="Save a checkpoint after every round, and keep the aggregate with the best mean return."
    )
    park: bool = Field(
        False, description="Save and exit instead of waiting for a round to close; resume the run afterwards."
    )
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
                f"there is no such aggregator{suggest(name, AGGREGATORS)} (known: {known}; your own function is named "
                "module:function)"
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
        refuse_problems(problems(self))
        return self

    @property
    def has_others(self) -> bool:
        """Whether there are other clients to exchange weights with."""
        return self.enabled and self.clients > 1

    @property
    def needed(self) -> int:
        """Clients that a round needs at its deadline."""
        return self.clients // 2 + 1 if self.quorum is None else self.quorum


# --- which fields do not fit together ---


def problems(config: FederatedConfig) -> Iterator[Problem]:
    """Every problem between the fields of the block."""
    for check in (_sharing, _closing, _transport, _own_rule, _secure, _distill, _privacy):
        yield from check(config)


def _sharing(config: FederatedConfig) -> Iterator[Problem]:
    if config.agents == ():
        yield ("agents",), "an empty list shares nothing; name policies, or leave it out to share all"
    if config.weights is not None and not traits_of(config.aggregator).reads_weights:
        yield ("weights",), f"only weighted_mean uses weights, but the aggregator is {config.aggregator}"


def _closing(config: FederatedConfig) -> Iterator[Problem]:
    """A federation in which no round could ever close."""
    if config.quorum is not None and config.quorum > config.clients:
        yield ("quorum",), f"{config.quorum} updates can never come from {config.clients} clients"
    if not config.has_others:
        return
    if usable_rule(config.aggregator, config.liars, config.clients) is None:
        fewest = min(traits_of(name).needed(config.liars) for name in with_fallbacks(config.aggregator))
        against = f" against {config.liars} liars" if config.liars else ""
        yield (
            ("aggregator",),
            f"{config.aggregator}{against} needs at least {fewest} clients, but there are {config.clients}, so no "
            "round could close; use more clients, or the aggregator mean",
        )
    if isinstance(config.weights, dict):
        if config.client not in config.weights or len(config.weights) < config.clients:
            known = ", ".join(config.weights) or "none"
            yield ("weights",), f"each of the {config.clients} clients needs a number; given for: {known}"
        elif not any(config.weights.values()):
            yield ("weights",), "all are 0; at least one must be above 0"


def _transport(config: FederatedConfig) -> Iterator[Problem]:
    """What the transport needs, and what it cannot do."""
    name, traits = config.transport, TRANSPORTS[config.transport]
    if config.has_others and traits.needs_address and config.address is None:
        yield ("address",), f"transport {name} needs one, such as tcp://127.0.0.1:7777 or ipc://fed.sock"
    if config.has_others and traits.needs_peers and len(config.peers) != config.clients:
        yield (
            ("peers",),
            f"transport {name} needs the address of each of {config.clients} clients, as in {{'0': "
            f"'tcp://127.0.0.1:7000', '1': 'tcp://127.0.0.1:7001'}}; there are {len(config.peers)}",
        )
    if traits.needs_peers and config.aggregator != "mean":
        yield ("aggregator",), f"transport {name} can only compute the mean"
    if traits.needs_peers and config.server is not None:
        yield ("server",), f"transport {name} has no server; leave it out"
    if config.park and not traits.has_folder:
        yield ("park",), f"needs transport files, where a client may be away; this is {name}"


def _own_rule(config: FederatedConfig) -> Iterator[Problem]:
    """What cannot be asked of a function of the user's."""
    if is_own_rule(config.aggregator) and config.liars:
        yield ("liars",), f"nobody knows how many liars {config.aggregator} withstands; leave it 0"
    if config.optimizer_strategy == "average" and not traits_of(config.aggregator).merges_moments:
        yield (
            ("optimizer_strategy",),
            f"{config.aggregator} merges weights, but not optimiser moments; set it to local or reset",
        )


def _secure(config: FederatedConfig) -> Iterator[Problem]:
    """What secure aggregation excludes."""
    if not config.secure:
        return
    only = "with secure, only the sum of all updates can be read"
    if not traits_of(config.aggregator).is_mean:
        yield ("aggregator",), f"{config.aggregator} compares single updates, but {only}; use mean"
    for name in ("clip_norm", "max_norm", "min_cosine"):
        if getattr(config.defence, name) is not None:
            yield ("defence", name), f"looks at single updates, but {only}; set it to null"
    if not TRANSPORTS[config.transport].has_folder:
        yield ("transport",), f"secure aggregation needs transport files; this is {config.transport}"
    if config.optimizer_strategy == "average":
        yield ("optimizer_strategy",), "secure aggregation sums weights only; set it to local or reset"
    if config.server is not None:
        yield ("server",), "secure aggregation uses the sum itself; leave server out"
    if config.weights == "reward_delta":
        yield ("weights",), "secure aggregation needs weights above 0, which a change of reward need not be"
    if config.staleness or config.park:
        yield ("park" if config.park else "staleness",), "secure aggregation cannot use updates that come late"
    if config.has_others and config.clients < 3:
        yield ("clients",), "secure aggregation needs at least 3: of a sum of two, each client knows the other's part"


def _distill(config: FederatedConfig) -> Iterator[Problem]:
    """What distillation excludes."""
    if config.distill is None:
        return
    if TRANSPORTS[config.transport].needs_peers:
        yield ("distill",), f"needs all clients' policies in one place, but transport {config.transport} passes on sums"
    if config.secure or config.privacy is not None:
        yield ("distill",), "needs single clients' policies, which secure and privacy hide; choose one of them"


def _privacy(config: FederatedConfig) -> Iterator[Problem]:
    """What differential privacy excludes."""
    if config.privacy is not None and config.optimizer_strategy == "average":
        yield ("optimizer_strategy",), "privacy adds no noise to optimiser moments; set it to local or reset"
    if (config.privacy is not None or config.dp_sgd is not None) and isinstance(config.weights, str):
        yield ("weights",), f"{config.weights} would reveal what a client saw; give numbers, or leave weights out"
    elif config.privacy is not None and config.weights is not None and config.secure:
        yield ("weights",), "clients share the noise of a secure sum equally; leave weights out"
