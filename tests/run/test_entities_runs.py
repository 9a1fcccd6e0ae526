"""A policy that reads others as rows acts where more of them are shown than in training; any other one is refused."""

from __future__ import annotations

import json

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from learning import tiny

import slipstream
from slipstream.algos.registry import ALGORITHMS, rules_for
from slipstream.cli.main import main
from slipstream.config.load import load, override
from slipstream.errors import ScenarioError
from slipstream.run.policy_file import load_policy
from slipstream.run.session import train
from slipstream.run.views import refuse_other_view
from slipstream.spec import EntityRows
from slipstream.worlds.check import spec_faults
from slipstream.worlds.registry import spec_of

ENTITIES = {"kind": "entities", "features": 8, "heads": 2}
FEW = {"world.random_sector.num_aircraft": 3, "world.neighbor_topk": 2, "world.max_episode_steps": 20}
OWN = 7  # features of an aircraft itself, before the rows of others
MANY = {**FEW, "world.random_sector.num_aircraft": 7, "world.neighbor_topk": 6}


def flown(folder, kind="ppo", **algo):
    scenario = load("random_sector", {**tiny(kind, **algo), **FEW})
    return train(scenario, out=folder / "run", models=folder / "models")


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return flown(tmp_path_factory.mktemp("few"), network=ENTITIES)


def test_airspace_marks_its_neighbours():
    spec = spec_of(load("random_sector", FEW).world)
    (rows,) = spec.entities
    names = spec.obs[0].features
    assert (rows.block, names[rows.first], rows.features[0]) == ("obs", "neighbor1_present", "present")
    assert names[rows.first :] == tuple(f"neighbor{k}_{name}" for k in (1, 2) for name in rows.features)
    assert spec_of(load("random_sector", MANY).world).entities == spec.entities
    assert spec_of(load("random_sector", {"world.neighbor_topk": 0}).world).entities == ()
    assert spec_of(load("head_on", {"world.preset": "legacy"}).world).entities == ()


@pytest.mark.parametrize(
    "wrong",
    [
        EntityRows("obs", OWN, ("present", "x", "y")),  # 22 elements are no whole rows of three
        EntityRows("obs", OWN + 22, ("present",)),  # nor are none
        EntityRows("cars", 0, ("present",)),
    ],
)
def test_rows_that_their_block_cannot_hold_are_a_fault_of_the_world(wrong):
    spec = spec_of(load("random_sector", FEW).world)
    assert not list(spec_faults(spec))
    assert list(spec_faults(msgspec.structs.replace(spec, entities=(wrong,))))
    assert list(spec_faults(msgspec.structs.replace(spec, entities=spec.entities * 2)))


def test_eval_judges_it_among_more_aircraft(few, tmp_path, capsys):
    (tmp_path / "many.yaml").write_text(json.dumps(slipstream.config.load.to_plain(load("random_sector", MANY))))
    asked = ["eval", str(few.run), "--scenario", str(tmp_path / "many.yaml"), "--episodes", "2", "--json"]
    assert main(asked) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"mvp", "noop"} < {row["policy"] for row in rows}


def test_it_acts_among_any_number_of_others(few):
    policy = load_policy(few.model)
    worlds = slipstream.make("random_sector", num_worlds=2, neighbor_topk=6, max_episode_steps=20)
    worlds.reset()
    assert policy.act(worlds.obs["obs"]).shape == worlds.actions.shape
    alone = np.zeros((4, OWN + 11), np.float32)
    alone[:, :OWN] = np.random.default_rng(0).normal(size=(4, OWN))
    among_nobody = np.concatenate([alone, np.zeros((4, 11 * 8), np.float32)], 1)
    assert np.allclose(policy.act(alone), policy.act(among_nobody), atol=1e-6)


@pytest.mark.parametrize("width", [OWN - 1, OWN, OWN + 10, OWN + 2 * 11 + 1])
def test_a_row_that_is_cut_off_is_refused(few, width):
    with pytest.raises(ValueError, match=rf"'obs' .*\({width},\).*\(29,\)"):
        load_policy(few.model).act(np.zeros(width))


def test_it_plays_as_a_frozen_policy_among_more(few, tmp_path):
    scenario = load("random_sector", MANY)
    refuse_other_view(load_policy(few.model).record, spec_of(scenario.world), "policies.other.path")


@pytest.mark.parametrize(
    ("network", "changes"),
    [
        ("mlp", {}),  # a perceptron reads every element by its place
        (ENTITIES, {"world.observation": "legacy"}),  # other features
    ],
)
def test_what_does_not_fit_is_refused(network, changes, tmp_path):
    result = flown(tmp_path, network=network)
    spec = spec_of(load("random_sector", {**MANY, **changes}).world)
    with pytest.raises(ScenarioError, match=r"29 inputs.*cannot act"):
        refuse_other_view(load_policy(result.model).record, spec, "here")


def test_weights_go_on_among_more(few, tmp_path):
    """Fine-tuning: nothing in the arrays depends on how many were shown."""
    scenario = load("random_sector", {**tiny("ppo", network=ENTITIES), **MANY, "init_from.path": str(few.run)})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert result.counters.updates == 8
    notes = (result.run / "training_log.txt").read_text()
    assert "shape" not in notes


@pytest.mark.parametrize("kind", sorted(ALGORITHMS))
def test_a_federation_pools_the_statistics_of_entities(kind):
    from slipstream.run.setup import make_cast, resolve

    scenario = resolve(load("probe_entities", tiny(kind, network=ENTITIES, normalize_observation=True)))
    (learner,) = make_cast(scenario, spec_of(scenario.world)).learners.values()
    rules = rules_for(learner.state_dict())
    assert rules["actor.entity_norms.0.mean"] == ("statistics", "actor.entity_norms.0", 0.0)


# --- environments of the user's ---


class Meadow(gymnasium.Env):
    """Say on which side the red one is, of at most four animals; own time beside them."""

    def __init__(self, animals: int = 4) -> None:
        self.observation_space = spaces.Dict(
            {"animals": spaces.Box(-1.0, 1.0, (animals, 3)), "left": spaces.Box(0.0, 1.0, (1,))}
        )
        self.action_space = spaces.Discrete(2)

    def _show(self):
        seen = np.zeros(self.observation_space["animals"].shape, np.float32)
        seen[: self.np_random.integers(1, len(seen) + 1)] = [1.0, -1.0, 0.5]
        return {"animals": seen, "left": np.ones(1, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ticks = 0
        return self._show(), {}

    def step(self, action):
        self.ticks += 1
        return self._show(), float(action == 1), self.ticks == 4, False, {}


def test_a_box_with_two_axes_is_rows_of_entities(tmp_path, capsys):
    world = {"world": {"kind": "gymnasium", "id": "test_entities_runs:Meadow-v0"}}
    gymnasium.register("Meadow-v0", Meadow)
    (tmp_path / "meadow.yaml").write_text(json.dumps({**world, "algo": {"kind": "ppo", "network": ENTITIES}}))
    scenario = load(str(tmp_path / "meadow.yaml"), {**tiny("ppo", network=ENTITIES), "world.id": "Meadow-v0"})
    spec = spec_of(scenario.world)
    assert [(rows.block, rows.first, rows.features) for rows in spec.entities] == [("animals", 0, ("0", "1", "2"))]
    assert not list(spec_faults(spec))
    more = override(scenario, {"world.kwargs": {"animals": 9}})
    policy = load_policy(train(scenario, out=tmp_path / "run", models=tmp_path / "models").model)
    refuse_other_view(policy.record, spec_of(more.world), "here")
    shown, _ = Meadow(9).reset(seed=1)
    assert policy.act(shown) in (0, 1)
    assert policy.act({"animals": np.stack([shown["animals"]] * 5), "left": np.ones((5, 1))}).shape == (5,)
