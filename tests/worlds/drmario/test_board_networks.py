"""Networks for boards: the same for every colour, for every batch, and only for placements there are."""

import numpy as np
import pytest
import torch

from slipstream.algos.ppo import Ppo
from slipstream.config.algos import PpoConfig
from slipstream.config.load import load
from slipstream.errors import ScenarioError
from slipstream.nets.actor import tensors
from slipstream.nets.heads import FORBIDDEN
from slipstream.nets.inputs import VECTOR
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.drmario.networks.boards import ColumnTorso, PlacementFeatures
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

CONFIG = PpoConfig(network="candidates", normalize_observation=False, hidden=(32, 16), activation="relu")


def position(**changes):
    """Inputs and masks of games some pills old, their spec, and an actor with lively weights."""
    config = DrMarioConfig.model_validate({"levels": (8,), **changes})
    env = make_worlds(config, 24, EnvOptions(seed=11))
    env.reset()
    for _ in range(9):
        env.act_scripted("random", range(env.spec.num_agents))
        env.step()
    obs = {name: np.ascontiguousarray(block[:, 0]) for name, block in env.obs.items()}
    actor = Ppo(CONFIG, env.spec, 1, torch.device("cpu")).actor
    with torch.no_grad():
        actor.head.weight.mul_(100.0)
    return obs, torch.from_numpy(env.action_mask[:, 0].copy()), env.spec, actor


def recoloured(obs, order):
    """The same games with colours exchanged: colour c becomes order[c]."""
    planes = obs["planes"].copy()
    planes[:, list(order)] = obs["planes"][:, :3]
    pills = np.zeros_like(obs["pills"])
    for k in range(2):
        piece = obs["pills"][:, 9 * k : 9 * k + 9].argmax(1)
        new = 3 * np.array(order)[piece // 3] + np.array(order)[piece % 3]
        pills[np.arange(len(pills)), 9 * k + new] = 1
    return obs | {"planes": planes, "pills": pills}


@torch.no_grad()
def logits(actor, obs, mask):
    return actor(tensors(obs, torch.device("cpu")), mask).logits


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0), (0, 2, 1)])
def test_what_is_learned_for_one_colour_holds_for_all(order):
    obs, mask, spec, actor = position()
    obs["aux"][:, [spec.obs[2].features.index(f"{c}_viruses") for c in ("yellow", "red", "blue")]] = 0.1
    here, there = logits(actor, obs, mask), logits(actor, recoloured(obs, order), mask)
    torch.testing.assert_close(here, there)
    assert here[mask != 0].std() > 0.1, "scores that hardly differ prove nothing"
    critic = Ppo(CONFIG, spec, 2, torch.device("cpu")).critic
    obs["pills"][:] = 0
    again = recoloured(obs, order) | {"pills": obs["pills"]}
    values = [critic(None, actor.inputs(tensors(o, torch.device("cpu")))) for o in (obs, again)]
    torch.testing.assert_close(*values)
    assert values[0].std() > 1e-3


def test_only_placements_there_are_have_a_score():
    obs, mask, _, actor = position()
    scores = logits(actor, obs, mask)
    assert (scores[mask == 0] == FORBIDDEN).all()
    assert (scores[mask != 0] > -100).all()


def test_a_row_gets_the_same_bits_in_any_batch():
    obs, mask, spec, actor = position()
    critic = Ppo(CONFIG, spec, 2, torch.device("cpu")).critic
    whole = logits(actor, obs, mask)
    values = critic(None, actor.inputs(tensors(obs, torch.device("cpu"))))
    for i in (0, 7, 23):
        alone = {name: block[i : i + 1] for name, block in obs.items()}
        assert torch.equal(logits(actor, alone, mask[i : i + 1])[0], whole[i])
        assert torch.equal(critic(None, actor.inputs(tensors(alone, torch.device("cpu"))))[0], values[i])


def test_boards_that_differ_in_their_pieces_alone_are_looked_at_once_and_valued_each(monkeypatch):
    obs, _, spec, actor = position()
    critic = Ppo(CONFIG, spec, 2, torch.device("cpu")).critic
    many = {name: np.repeat(block, 9, 0) for name, block in obs.items()}
    for row, pills in enumerate(many["pills"]):
        pills[9:] = 0
        pills[9 + row % 9] = 1
    x = actor.inputs(tensors(many, torch.device("cpu")))
    each = critic(None, x)  # with gradients
    looked = []
    look = ColumnTorso._look
    monkeypatch.setattr(ColumnTorso, "_look", lambda self, x: looked.append(len(x)) or look(self, x))
    with torch.no_grad():
        assert torch.equal(critic(None, x), each)
    assert looked == [24]
    assert len(each.unique()) > 100


def test_a_placement_is_described_by_what_is_around_it():
    """Against the board itself, cell by cell."""
    obs, mask, _, actor = position()
    board = actor.board
    assert isinstance(board, PlacementFeatures)
    x = actor.inputs(tensors(obs, torch.device("cpu")))
    found = board.candidates(x[VECTOR], mask)
    rng = np.random.default_rng(0)
    for k in rng.choice(len(found.row), 60, replace=False).tolist():
        i, choice = int(found.row[k]), int(found.choice[k])
        side, row, column = choice // 128, choice % 128 // 8, choice % 8
        row, column = row + (side == 1), column - (side == 2)
        first, second = divmod(int(obs["pills"][i, :9].argmax()), 3)
        near, far = (second, first) if side in (1, 2) else (first, second)
        planes = obs["planes"][i]
        window = found.x[k, : 5 * 10 * 8].reshape(5, 10, 8).numpy()
        for dy in range(10):
            for dx in range(8):
                y, at = row + dy - 3, column + dx - 3
                inside = 0 <= y < 16 and 0 <= at < 8
                cell = planes[:4, y, at] if inside else np.zeros(4)
                neither = cell[:3].sum() - max(cell[near], cell[far])
                outside = not inside and not (y < 0 and 0 <= at < 8)
                assert window[:, dy, dx].tolist() == [cell[near], cell[far], neither, cell[3], outside]
    assert found.x.shape[1] == board.inputs


def test_gradients_reach_every_weight():
    obs, mask, spec, actor = position()
    critic = Ppo(CONFIG, spec, 2, torch.device("cpu")).critic
    x = actor.inputs(tensors(obs, torch.device("cpu")))
    loss = actor.distribution(x, mask).logp(mask.float().argmax(1)).sum() + critic(None, x).sum()
    loss.backward()
    for name, weight in [*actor.named_parameters(), *critic.named_parameters()]:
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"algo.normalize_observation": True}, "normalize_observation: false"),
        ({"algo.shared_torso": True}, "shared_torso: false"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, setting):
    with pytest.raises(ScenarioError, match=f"algo: network candidates .*{setting}"):
        load("drmario_level_0", changes)


def test_a_world_without_a_board_is_refused():
    env = make_worlds(load("head_on").world, 1)
    with pytest.raises(ScenarioError, match=r"algo\.network: 'candidates' .*airspace .*obs"):
        Ppo(CONFIG, env.spec, 1, torch.device("cpu"))
