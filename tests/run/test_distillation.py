"""A distilled policy beside a round's aggregate: when it is taken, that all come to the same, what is refused."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from learning import build, digest, recast, scenario_of, tiny
from torch import nn

from slipstream.algos.registry import rules_for
from slipstream.config.algos.learner import MlpNetwork
from slipstream.config.load import override
from slipstream.errors import ScenarioError
from slipstream.federate.aggregate import MergeSettings, aggregate
from slipstream.federate.folder import HISTORY
from slipstream.federate.rounds import RoundRecord
from slipstream.federate.update import ClientUpdate
from slipstream.nets.mlp import Mlp
from slipstream.nets.torso import NetworkKind
from slipstream.run.federated.distillation import AGGREGATE, DISTILLED, distilled_round
from slipstream.run.metrics import read_rows
from slipstream.run.session import train

WORLD = {"ppo": "probe_bandit", "sac": "probe_target", "td3": "probe_target", "dqn": "probe_bandit"}
SHORT = {"observations": 256, "episodes": 4, "epochs": 3}


def client_of(kind, client, root, world=None, **changes):
    federated = {"enabled": True, "clients": 2, "client": str(client), "interval": 16, "root": str(root)}
    settings = {f"federated.{key}": value for key, value in federated.items()} | {"federated.distill": SHORT}
    return scenario_of(world or WORLD[kind], {**tiny(kind), **settings, "seed": 100 + client, **changes})


def a_round(scenario, states):
    """A round of clients with these states: the mean, and what distilling comes to."""
    updates = [ClientUpdate(str(i), 1, "", str(i), state) for i, state in enumerate(states)]
    merged, report = aggregate(MergeSettings(), rules_for(states[0]), updates)
    arrays, said = distilled_round(scenario, "main", updates, merged, report)
    return merged, arrays, said.distilled


def learned(scenario, updates):
    """A learner's weights and statistics after some updates."""
    part = build(scenario)
    for _ in range(updates):
        part.advance()
    state = part.learner.state_dict(include_optim=False)
    return {name: array for name, array in state.items() if rules_for(state)[name].kind != "keep"}


def permuted(state, seed):
    """The same policy with its hidden units in another order: it does the same, but no mean with it is of any use."""
    order = np.random.default_rng(seed).permutation(len(state["actor.torso.0.bias"]))
    rows = {name: state[f"actor.{name}"][order] for name in ("torso.0.weight", "torso.0.bias")}
    return (
        state
        | {f"actor.{name}": array for name, array in rows.items()}
        | {"actor.head.weight": state["actor.head.weight"][:, order]}
    )


@pytest.mark.parametrize("kind", ["ppo", "sac", "td3"])
def test_clients_that_say_the_same_in_another_order_are_distilled_where_their_mean_is_useless(kind, tmp_path):
    changes = {"federated.distill": {"observations": 1000, "episodes": 16, "epochs": 100, "learning_rate": 0.01}}
    longer = {"timesteps": 60 * 32, "algo.learning_rate": 0.01}
    scenario = client_of(kind, 0, tmp_path, "probe_target", **changes, **longer)
    state = learned(scenario, 60)
    merged, arrays, said = a_round(scenario, [permuted(state, seed) for seed in range(4)])
    assert said.chosen == DISTILLED
    assert said.divergence < 0.2 * said.began_at
    assert said.scores[DISTILLED] > said.scores[AGGREGATE]
    others = {name for name in merged if not name.startswith("actor.")}
    assert others
    assert digest({n: merged[n] for n in others}) == digest({n: arrays[n] for n in others})
    assert digest({n: merged[n] for n in merged}) != digest(arrays)


def test_an_ensemble_that_chooses_is_distilled_too(tmp_path):
    changes = {"federated.distill": {"observations": 500, "episodes": 16, "epochs": 100, "learning_rate": 0.01}}
    scenario = client_of("ppo", 0, tmp_path, **changes)
    _, _, said = a_round(scenario, [learned(client_of("ppo", i, tmp_path), 8) for i in range(3)])
    assert said.divergence < said.began_at
    assert said.epochs > 0


def test_whoever_closes_the_round_again_comes_to_the_same_bits(tmp_path):
    states = [learned(client_of("ppo", i, tmp_path), 4) for i in range(2)]
    first, again = (a_round(client_of("ppo", i, tmp_path), states) for i in (0, 1))
    assert digest(first[1]) == digest(again[1])
    assert first[2] == again[2]


def test_the_aggregate_stays_unless_it_is_beaten_by_the_margin(tmp_path):
    states = [learned(client_of("ppo", i, tmp_path), 2) for i in range(2)]
    scenario = client_of("ppo", 0, tmp_path, **{"federated.distill": {**SHORT, "margin": 1e6}})
    merged, arrays, said = a_round(scenario, states)
    assert said.chosen == AGGREGATE
    assert digest(merged) == digest(arrays)


def test_policies_that_cannot_be_compared_leave_the_round_its_aggregate(tmp_path):
    state = learned(client_of("ppo", 0, tmp_path), 2)
    wild = {**state, "actor.head.weight": np.full_like(state["actor.head.weight"], 3e38)}  # its logits overflow
    _, arrays, said = a_round(client_of("ppo", 0, tmp_path), [state, wild])
    assert said.chosen == AGGREGATE
    assert said.reason
    assert arrays.keys() == state.keys()


class BlockTorso(nn.Module):
    """A perceptron that reads the only block by its name."""

    def __init__(self, spec, generator):
        super().__init__()
        (self.block,), self.features = spec.blocks, spec.hidden[-1]
        self.layers = Mlp((self.block.size, *spec.hidden), spec.activation, None, generator)

    def native(self, head=None):
        """Torch runs it."""

    def forward(self, inputs, head=None):
        return self.layers(inputs[self.block.name], head)


class BlockKind(NetworkKind):
    def blocks(self, config, spec):
        return tuple(block.name for block in spec.obs)

    def torso(self, spec, generator):
        return BlockTorso(spec, generator)


BLOCKS = BlockKind()


def test_policies_that_read_blocks_by_name_leave_the_round_its_aggregate(tmp_path, monkeypatch):
    monkeypatch.setattr(MlpNetwork, "implementation", f"{__name__}:BLOCKS")
    scenario = client_of("ppo", 0, tmp_path, **{"algo.normalize_observation": False})
    states = [learned(scenario, updates) for updates in (1, 2)]
    _, _, said = a_round(scenario, states)
    assert said.chosen == AGGREGATE
    assert "one vector" in said.reason
    assert said.scores == {}


def test_policies_that_read_entities_leave_the_round_its_aggregate(tmp_path):
    scenario = client_of("ppo", 0, tmp_path, world="probe_entities")
    _, _, said = a_round(scenario, [learned(scenario, updates) for updates in (1, 2)])
    assert said.chosen == AGGREGATE
    assert "one vector" in said.reason


def test_runs_distil_after_every_round_and_tell_what_came_of_it(tmp_path):
    scenarios = [client_of("ppo", i, tmp_path / "a") for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        begun = [
            pool.submit(train, s, out=tmp_path / str(i), models=tmp_path / f"m{i}") for i, s in enumerate(scenarios)
        ]
        runs = [one.result().run for one in begun]
    lines = (tmp_path / "a" / "main" / HISTORY).read_bytes().splitlines()
    records = [msgspec.json.decode(line, type=RoundRecord) for line in lines]
    assert len(records) >= 2
    assert all(set(record.report.distilled.scores) == {AGGREGATE, DISTILLED} for record in records)
    rows = [row for row in read_rows(runs[1] / "metrics.jsonl") if "fed/round" in row]
    assert [row["fed/distilled"] for row in rows] == [
        float(r.report.distilled.chosen == DISTILLED) for r in records[: len(rows)]
    ]
    assert "fed/distilled_return" in rows[0]
    assert "chosen (returns: aggregate" in (runs[0] / "training_log.txt").read_text()


def test_what_cannot_be_distilled_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ScenarioError, match="dqn learns values"):
        build(client_of("dqn", 0, tmp_path))
    with pytest.raises(ScenarioError, match=r"federated.distill: .*secure"):
        client_of("ppo", 0, tmp_path, **{"federated.privacy": {}})
    with pytest.raises(ScenarioError, match=r"federated.distill: .*transport ring"):
        client_of("ppo", 0, tmp_path, **{"federated.transport": "ring", "federated.peers": {"0": "a", "1": "b"}})
    two = recast(
        override(client_of("ppo", 0, tmp_path), {"world.task": "coordination"}),
        {"left": {"kind": "learning"}, "right": {"kind": "learning"}},
        {"same": "left", "complement": "right"},
    )
    with pytest.raises(ScenarioError, match="'right' plays otherwise in every client"):
        build(two)
