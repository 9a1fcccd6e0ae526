"""What every learner's config has: schedules, kinds of networks, and LearnerConfig."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, SerializeAsAny, model_validator

from slipstream.config.base import Config, OwnName
from slipstream.config.world import NetworkConfig

if TYPE_CHECKING:
    from slipstream.config.algos.offpolicy import ReplayConfig

ActivationName = Literal["tanh", "relu", "elu", "silu", "gelu"]
ACTIVATION = "Activation after each hidden layer; gelu is its tanh approximation."
Hidden = Annotated[tuple[Annotated[int, Field(ge=1, le=8192)], ...], Field(max_length=8)]

# --- schedules: numbers, or points joined by straight lines over a run ---

Points = tuple[tuple[float, float], ...]


def _check_shape(value: Any) -> Any:
    """Says in one sentence what a schedule may be, instead of one complaint per member of the union."""
    if _is_number(value):
        return value
    if not isinstance(value, tuple) or not value:
        raise ValueError("must be a number, or a list of [fraction of the budget, value] points")
    for point in value:
        if not isinstance(point, tuple) or len(point) != 2 or not all(map(_is_number, point)):
            raise ValueError("each point of a schedule must be [fraction of the budget, value]")
    return value


def _check_points(value: float | Points) -> float | Points:
    points = ((0.0, value),) if isinstance(value, float) else value
    fractions = [fraction for fraction, _ in points]
    if fractions != sorted(set(fractions)) or fractions[0] < 0 or fractions[-1] > 1:
        raise ValueError("the fractions of a schedule must increase and lie between 0 and 1")
    if min(value for _, value in points) < 0:
        raise ValueError("must not be negative")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Schedule = Annotated[float | Points, BeforeValidator(_check_shape), AfterValidator(_check_points)]
"""A number >= 0, or points [fraction of the budget, value] joined by straight lines and flat outside them."""


def schedule_at(schedule: float | Points, fraction: float) -> float:
    """Value of a schedule when `fraction` (0..1) of the training budget has been spent."""
    if isinstance(schedule, float):
        return schedule
    before = schedule[0]
    for after in schedule:
        if fraction <= after[0]:
            width = after[0] - before[0]
            share = (fraction - before[0]) / width if width > 0 else 1.0
            return before[1] + share * (after[1] - before[1])
        before = after
    return before[1]


# --- kinds of networks, as `algo.network` names them ---


FORMER_KINDS = {"perceptron": "mlp"}


def _from_word(value: Any) -> Any:
    """A kind alone, as in `network: mlp`, stands for its defaults."""
    return {"kind": FORMER_KINDS.get(value, value)} if isinstance(value, str) else value


class MlpNetwork(NetworkConfig):
    """A perceptron over the whole observation."""

    implementation: ClassVar[str] = "slipstream.nets.torso:MLP"

    kind: Literal["mlp"] = Field("mlp", description="A perceptron over the whole observation.")
    norm: Literal["layer"] | None = Field(
        None,
        description="layer: normalise each hidden layer's sums, before the activation (LayerNorm), in actor and "
        "critics; null: do not.",
    )
    residual: bool = Field(
        False, description="Add to a hidden layer's output what it reads, where both are hidden layers of one width."
    )


class ConvNetwork(NetworkConfig):
    """Convolutions over all images of an observation; a layer joins their features and all other blocks."""

    implementation: ClassVar[str] = "slipstream.nets.conv:CONV"
    reads_hidden: ClassVar[bool] = False
    shares_torso: ClassVar[bool] = True

    kind: Literal["conv"] = Field("conv", description="Convolutions over images.")
    layers: Literal["auto", "nature", "impala", "small"] = Field(
        "auto",
        description="nature: 8 x 8, 4 x 4 and 3 x 3 with strides (Mnih et al. 2015); impala: residual (Espeholt et al. "
        "2018); small: one of 3 x 3 (MinAtar); auto: nature for images of at least 36 pixels each way, else small.",
    )
    channels: Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=1, max_length=8)] | None = (
        Field(None, description="Channels of each layer; null: 32, 64, 64 (nature), 16, 32, 32 (impala), 16 (small).")
    )
    features: int | None = Field(
        None,
        ge=1,
        le=8192,
        description="Width of the layer that joins all images and the other blocks; null: 512 (nature), 256 (impala), "
        "128 (small).",
    )


class EntitiesNetwork(NetworkConfig):
    """Attention over others that are observed as rows, however many there are."""

    implementation: ClassVar[str] = "slipstream.nets.entities:ENTITIES"
    reads_hidden: ClassVar[bool] = False
    shares_torso: ClassVar[bool] = True

    kind: Literal["entities"] = Field(
        "entities", description="Attention over others that are observed as rows, however many there are."
    )
    features: int = Field(64, ge=1, le=4096, description="Width of what is known of everybody, and of the result.")
    heads: int = Field(4, ge=1, le=64, description="Attention heads; they divide features.")
    depth: int = Field(
        1,
        ge=1,
        le=8,
        description="Attention layers. In the last one the agent attends to the others; in those before it everybody "
        "attends to everybody.",
    )
    blocks: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None, description="Observation blocks whose rows are read as entities; null: all that the world marks."
    )

    @model_validator(mode="after")
    def _heads_divide_features(self) -> Self:
        if self.features % self.heads:
            raise ValueError(f"features {self.features} is not a multiple of heads {self.heads}")
        return self


class ModuleNetwork(NetworkConfig):
    """A torch module of the user's, from the blocks of an observation to features."""

    implementation: ClassVar[str] = "slipstream.nets.module:MODULE"
    reads_hidden: ClassVar[bool] = False
    shares_torso: ClassVar[bool] = True

    kind: Literal["module"] = Field("module", description="A torch module of your own.")
    target: OwnName = Field(
        description="module:Class of the network; the module may be a file in the current folder. It is made with the "
        "shapes of the observation's blocks, and called with the blocks."
    )
    kwargs: dict[str, JsonValue] = Field(default_factory=dict, description="Its keyword arguments (plain values only).")


Encoder = Annotated[
    Annotated[MlpNetwork | ConvNetwork | EntitiesNetwork | ModuleNetwork, Field(discriminator="kind")],
    BeforeValidator(_from_word),
]


class RecurrentNetwork(NetworkConfig):
    """A memory: an encoder of observations, and a cell whose state goes from decision to decision."""

    implementation: ClassVar[str] = "slipstream.nets.recurrent:RECURRENT"
    shares_torso: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    kind: Literal["gru", "lstm"] = Field(description="gru or lstm: the cell that remembers.")
    size: int = Field(64, ge=1, le=4096, description="Width of the cell.")
    length: int = Field(
        32, ge=1, le=10_000, description="Decisions in a sequence that is learned from: as far back as gradients flow."
    )
    span: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        None,
        description="Decisions over which something must be remembered, where they are many (more than about 30): "
        "units of the cell then remember over 1 to so many at first. null: as is usual.",
    )
    encoder: Encoder | None = Field(
        None,
        description="Network between observation and cell, such as conv; null: as without a memory (conv for images, "
        "else mlp, which reads algo.hidden).",
    )


NETWORKS: tuple[type[NetworkConfig], ...] = (
    MlpNetwork,
    ConvNetwork,
    EntitiesNetwork,
    ModuleNetwork,
    RecurrentNetwork,
)
AnyNetwork = Annotated[SerializeAsAny[NetworkConfig], BeforeValidator(_from_word)]


# --- learners ---


RATE = "Adam's learning rate: a number, or a schedule of [fraction of the budget, value] points."


class ExtraLossConfig(Config):
    """A loss of the user's beside the algorithm's own."""

    target: OwnName = Field(
        description="module:function of the loss; it is given the policy on a batch, and the batch. The module may be "
        "a file in the current folder."
    )
    weight: Schedule = Field(
        1.0, description="Its weight: a number, or a schedule of [fraction of the budget, value] points."
    )


class LearnerConfig(Config):
    """What every learner has: networks, a discount and an optimiser."""

    learning_rate: Schedule = Field(3e-4, description=RATE)
    adam_eps: float = Field(
        1e-5, gt=0, description="Adam's epsilon: weights with much smaller gradients than this hardly move."
    )
    network: AnyNetwork | None = Field(
        None,
        description="Kind of network, with its settings, or the name of the kind alone; null: conv where the world "
        "shows images, else mlp.",
    )
    hidden: Hidden = Field((64, 64), description="Width of each hidden layer, in every network.")
    activation: ActivationName = Field("tanh", description=ACTIVATION)
    gamma: float = Field(0.99, ge=0, le=1, description="Discount per tick of the world.")
    gamma_per_second: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Discount per second of the world's time; the run computes gamma from it. null: use gamma.",
    )
    max_grad_norm: float | None = Field(0.5, gt=0, description="Clip gradients to this norm; null: no clipping.")
    normalize_observation: bool = Field(
        True, description="Standardise observations by their running mean and deviation (saved with the policy)."
    )
    show_agent: bool = Field(
        False,
        description="Show a policy that several agents share which of them it acts for: one more block of the "
        "observation, which_agent, with 1 for the agent and 0 for the others.",
    )
    exploration_hold: int = Field(
        1,
        ge=1,
        le=10_000,
        description="Steps for which an agent keeps the same exploration noise. More than 1 helps where the noise of "
        "single steps averages out. Actions then depend on each other in a way that ppo's and reinforce's "
        "probabilities leave out; appo and impala refuse it.",
    )
    discrete_actions: bool = Field(
        False,
        description="Choose from the action table of a continuous world instead of acting on its axes, or among all "
        "combinations of an action's parts.",
    )

    extra_losses: tuple[ExtraLossConfig, ...] = Field(
        (),
        description="Losses of your own that the policy minimises too; learners from rollouts report them as "
        "train/NAME.",
    )

    @property
    def replay_config(self) -> ReplayConfig | None:
        """Its replay buffer; None: it learns from rollouts."""
        return None

    @property
    def collects(self) -> bool:
        """Whether it learns from, or adds, what this run's worlds show."""
        return self.replay_config is None or self.replay_config.collects

    @property
    def rollout_minibatch(self) -> int | None:
        """Agent steps in a minibatch of a rollout; None: rollouts are not split."""
        return None

    @property
    def gradient_rows(self) -> int:
        """Rows in one gradient step; about as many where that depends on the rollout."""
        return self.rollout_minibatch or 1024

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Fields that have no effect because of others: name and reason."""
        if self.gamma_per_second is not None and self.gamma != type(self).model_fields["gamma"].default:
            yield "gamma", "gamma_per_second is set; set that, or null"
        if self.network is None or self.network.reads_hidden:
            return
        for name in ("hidden", "activation"):
            if getattr(self, name) != type(self).model_fields[name].default:
                yield name, f"network {self.network.kind} has widths of its own (algo.network)"

    @model_validator(mode="after")
    def _network_reads_its_inputs(self) -> Self:
        if self.network is not None and self.network.reads_raw_inputs and self.normalize_observation:
            raise ValueError(f"network {self.network.kind} reads raw inputs; it needs normalize_observation: false")
        return self
