"""`algo.network`: kinds and their spellings, and a kind of one's own that reads named blocks, in every algorithm."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slipstream.algos.protocol import Progress
from slipstream.algos.registry import ALGORITHMS
from slipstream.algos.state import load_module
from slipstream.config.algos import PpoConfig, SacConfig, learner
from slipstream.config.algos.learner import MlpNetwork
from slipstream.config.load import from_plain, load, to_plain
from slipstream.config.overrides import cli_overrides
from slipstream.config.world import NetworkConfig
from slipstream.data.rollout import allocate_rollout
from slipstream.errors import ScenarioError
from slipstream.nets.actor import ActorSpec, act, make_actor
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Linear, Mlp, MlpTorso, run
from slipstream.nets.networks import ActionShape, make_networks
from slipstream.nets.torso import NetworkKind, TorsoSpec, WithOutput, network_kind
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec

CPU = torch.device("cpu")
SPEC = WorldSpec(
    name="seen",
    agents=("a",),
    roles=("a",),
    obs=(ObsBlock("speed", "float32", (2,), -1.0, 1.0), ObsBlock("frame", "uint8", (4, 4), 0.0, 255.0)),
    action=ActionSpec(discrete=True, size=3),
)


SPEC_OF_NUMBERS = msgspec.structs.replace(SPEC, obs=SPEC.obs[:1])


# --- spellings ---


@pytest.mark.parametrize("spelling", ["perceptron", "mlp", {"kind": "mlp"}])
def test_a_perceptron_has_an_old_name_a_name_and_a_kind(spelling):
    assert load("drmario_level_0", {"algo.network": spelling}).algo.network == MlpNetwork()
    assert PpoConfig.model_validate({"kind": "ppo", "network": spelling}).network == MlpNetwork()


def test_a_flag_names_a_kind():
    scenario = load("drmario_level_0")
    for flags in (["--algo.network", "decoder"], ["--algo.network.kind", "decoder"]):
        assert cli_overrides(scenario, flags).algo.network.kind == "decoder"
    assert cli_overrides(scenario, ["--algo.network", "perceptron"]).algo.network.kind == "mlp"


def test_a_scenario_saved_with_the_old_name_loads_and_is_saved_with_the_new_one():
    values = to_plain(load("drmario_level_0"))
    values["algo"]["network"] = "candidates"
    again = from_plain(values)
    assert to_plain(again)["algo"]["network"] == {"kind": "candidates"}
    assert from_plain(to_plain(again)) == again


@pytest.mark.parametrize("kind", ["sac", "cql", "td3", "dqn"])
def test_critics_of_actions_refuse_networks_for_placements(kind):
    with pytest.raises(ScenarioError, match=r"algo: network decoder .*mlp.* ppo, appo, impala"):
        load("drmario_level_0", {"algo.kind": kind, "algo.network": "decoder"})


def test_an_unknown_kind_is_refused():
    with pytest.raises(ScenarioError, match=r"algo\.network"):
        load("head_on", {"algo.network": "transformer"})
    with pytest.raises(ValueError, match=r"'transformer'.*mlp"):
        network_kind("transformer")


def test_widths_are_the_learners_and_their_place_is_said():
    with pytest.raises(ScenarioError, match=r"algo\.network\.hidden.*algo\.hidden"):
        load("head_on", {"algo.network": {"kind": "mlp", "hidden": [8]}})


# --- a kind of one's own ---


class SumTorso(nn.Module):
    """Reads the vector, and a frame of bytes under its own name."""

    def __init__(self, spec: TorsoSpec, generator: torch.Generator) -> None:
        super().__init__()
        assert [block.name for block in spec.blocks] == ["frame"]
        self.scale = spec.layout["scale"]
        self.layers = Mlp((spec.vector + 16, *spec.hidden), spec.activation, None, generator)
        self.features = spec.hidden[-1]

    def native(self, head: Linear | None = None) -> None:
        """Torch runs it."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        assert inputs["frame"].dtype == torch.uint8
        frame = inputs["frame"].flatten(1).float() * self.scale
        out: Tensor = self.layers(torch.cat([inputs[VECTOR], frame], 1), head)
        return out


class SumKind(NetworkKind):
    def blocks(self, config: NetworkConfig, spec: WorldSpec) -> tuple[str, ...]:
        return ("frame",)

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> SumTorso:
        return SumTorso(spec, generator)

    def layout(self, config: NetworkConfig, spec: WorldSpec) -> dict[str, Any]:
        assert isinstance(config, SumNetwork)
        return {"scale": config.scale}


SUM = SumKind()


class SumNetwork(MlpNetwork):
    implementation: ClassVar[str] = f"{__name__}:SUM"
    kind: Literal["sum"] = "sum"
    scale: float = 1 / 255


@pytest.fixture
def own_kind(monkeypatch):
    monkeypatch.setattr(learner, "NETWORKS", (*learner.NETWORKS, SumNetwork))


def settings(kind: str) -> Any:
    """The algorithm's config with this network and small layers."""
    config = load("probe_bandit", {"algo.kind": kind}).algo
    return config.model_copy(update={"network": SumNetwork(), "hidden": (8,), "accumulate": 2})


def rows(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    frame = rng.integers(0, 256, (count, 4, 4), np.uint8)
    return {"speed": rng.normal(size=(count, 2)).astype(np.float32), "frame": frame}


def world(kind: str) -> WorldSpec:
    continuous = ActionSpec(discrete=False, size=2)
    return msgspec.structs.replace(SPEC, action=continuous) if kind in ("td3", "sac") else SPEC


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_algorithm_builds_acts_and_saves_with_a_kind_of_ones_own(kind, own_kind):
    learner: Any = ALGORITHMS[kind](settings(kind), world(kind), 3, CPU)
    spec = msgspec.json.decode(msgspec.json.encode(learner.actor_spec()), type=ActorSpec)
    assert (spec.network, spec.inputs, [block.name for block in spec.blocks]) == ("sum", 2, ["frame"])
    again = make_actor(spec)
    load_module(again, learner.actor_arrays(), "actor", strict=True)
    mine, theirs = (act(actor, rows(5), None, None, CPU) for actor in (learner.actor, again))
    assert mine.action.tobytes() == theirs.action.tobytes()
    other = rows(5)
    other["frame"] = 255 - other["frame"]
    assert act(again, other, None, None, CPU).logp.tobytes() != mine.logp.tobytes() or spec.head in ("point", "values")


def test_settings_of_a_kind_are_saved_with_the_policy_and_build_it_again(own_kind):
    config = settings("ppo").model_copy(update={"network": SumNetwork(scale=0.5)})
    learner: Any = ALGORITHMS["ppo"](config, SPEC, 3, CPU)
    spec = msgspec.json.decode(msgspec.json.encode(learner.actor_spec()), type=ActorSpec)
    torsos: Any = (learner.actor.torso, learner.critic.torso, make_actor(spec).torso)
    assert [torso.scale for torso in torsos] == [0.5, 0.5, 0.5]


def transitions(kind: str, count: int) -> Any:
    from slipstream.data.transitions import Sample, Transitions

    rng = np.random.default_rng(4)
    discrete = world(kind).action.discrete
    action = rng.integers(0, 3, count).astype(np.int32) if discrete else rng.uniform(-1, 1, (count, 2))
    fields: dict[str, Any] = {
        "obs": rows(count),
        "action": action if discrete else action.astype(np.float32),
        "reward": rng.normal(size=count).astype(np.float32),
        "discount": np.full(count, 0.9, np.float32),
        "next_obs": rows(count),
        "mask": None,
        "next_mask": None,
    }
    return Sample(Transitions(**fields), np.arange(count), np.ones(count, np.float32))


@pytest.mark.parametrize("kind", ["sac", "cql", "td3", "dqn"])
def test_replay_learners_learn_from_named_blocks(kind, own_kind):
    learner: Any = ALGORITHMS[kind](settings(kind), world(kind), 3, CPU)
    before = learner.state_dict(include_optim=False)
    for _ in range(2):
        learner.update(transitions(kind, 12), Progress(0.0, 0))
    after = learner.state_dict(include_optim=False)
    still = [n for n in before if n.split(".")[0] in learner.layout.networks and np.array_equal(before[n], after[n])]
    assert not [name for name in still if "norm" not in name]


def test_gradients_of_single_rows_are_refused_for_other_kinds_than_perceptrons(own_kind):
    learner: Any = ALGORITHMS["dqn"](settings("dqn"), SPEC, 3, CPU)
    with pytest.raises(ScenarioError, match=r"federated\.dp_sgd.*sum"):
        learner.hide_rows(None)


def test_an_output_layer_on_a_native_torso_is_part_of_the_native_pass():
    generator = torch.Generator().manual_seed(1)
    critic = WithOutput(MlpTorso((3, 8), "tanh", None, generator), 2, generator)
    x = torch.randn(5, 3, generator=generator)
    net = critic.native()
    assert net is not None
    assert torch.equal(run(net.on(x))[0], critic({VECTOR: x}))
    assert torch.allclose(critic({VECTOR: x}), critic.output(critic.torso({VECTOR: x})), atol=1e-6)


def test_a_learner_that_names_no_network_gets_a_perceptron_where_there_is_no_image():
    for config in (PpoConfig(), SacConfig()):
        assert config.network is None
        assert make_networks(config, SPEC_OF_NUMBERS, ActionShape(3, True), 0, CPU).network == MlpNetwork()


@pytest.mark.parametrize("kind", ["ppo", "appo", "impala", "reinforce"])
def test_rollout_learners_learn_from_named_blocks(kind, own_kind):
    rng = np.random.default_rng(5)
    rollout = allocate_rollout(SPEC, 6, 4, 1, True, 0)
    for obs in (rollout.obs, rollout.last_obs):
        obs["speed"][...] = rng.normal(size=obs["speed"].shape)
        obs["frame"][...] = rng.integers(0, 256, obs["frame"].shape)
    for ones in (rollout.decided, rollout.paid, rollout.duration):
        ones[...] = 1
    rollout.action[...] = rng.integers(0, 3, rollout.action.shape)
    rollout.reward[...] = rng.normal(size=rollout.reward.shape)
    rollout.logp[...] = np.log(1 / 3)
    rollout.terminated[-1] = 1
    learner: Any = ALGORITHMS[kind](settings(kind), SPEC, 3, CPU)
    before = learner.state_dict(include_optim=False)
    assert learner.update(rollout, Progress(0.0, 0))["rows"] == 28
    after = learner.state_dict(include_optim=False)
    trained = [name for name in before if name.split(".")[0] in learner.layout.networks]
    assert not [name for name in trained if np.array_equal(before[name], after[name])]


def test_a_kind_that_reads_every_block_by_name_has_an_empty_vector(own_kind):
    frames = msgspec.structs.replace(SPEC, obs=SPEC.obs[1:])
    learner: Any = ALGORITHMS["ppo"](settings("ppo"), frames, 3, CPU)
    acted = learner.act({"frame": rows(5)["frame"]}, None, None)
    assert (learner.actor_spec().inputs, acted.action.shape) == (0, (5,))
