"""Networks for boards: what each can see, that each learns, and that a row's bits are its own."""

import msgspec
import numpy as np
import pytest
import torch
from learning import TINY, scenario_of

import slipstream
from slipstream.algos.ppo import Ppo
from slipstream.algos.state import load_module
from slipstream.config.algos import PpoConfig
from slipstream.config.load import load
from slipstream.errors import ScenarioError
from slipstream.judging.judge import judge
from slipstream.nets.actor import Actor, ActorSpec, act, make_actor, tensors, with_network_keys
from slipstream.nets.arithmetic import SHARD, in_shards
from slipstream.nets.heads import FORBIDDEN
from slipstream.nets.inputs import VECTOR
from slipstream.run.saved_cast import load_cast
from slipstream.run.session import resume, train
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.drmario.networks.boards import PIECES, BoardSpec
from slipstream.worlds.drmario.networks.heads import NETWORKS, facts, image
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

CPU = torch.device("cpu")
PLACERS = tuple(NETWORKS)
SIDES = 4


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def config_of(network: str, **changes) -> PpoConfig:
    own = {"normalize_observation": False, "hidden": (16,), "activation": "relu", "minibatch_size": 16}
    return PpoConfig.model_validate({"network": network, **own, **changes})


@pytest.fixture(scope="module")
def positions():
    """Observations, masks and the spec of games some pills old: with few placements, and with many."""
    env = make_worlds(DrMarioConfig(levels=(5,)), 64, EnvOptions(seed=11))
    env.reset()
    for _ in range(9):
        env.act_scripted("random", range(1))
        env.step()
    obs = {name: np.ascontiguousarray(block[:, 0]) for name, block in env.obs.items()}
    mask = env.action_mask[:, 0].copy()
    counts = mask.sum(1, dtype=int)
    assert (counts <= 64).sum() > 16, "more than a shard must fit the smallest width"
    assert (counts > 64).any(), "some must not"
    return obs, mask, env.spec


def lively(actor: Actor) -> Actor:
    """With logits that differ: the last layer begins near zero."""
    with torch.no_grad():
        for name, weight in actor.named_parameters():
            if name.startswith("placer.head.") and name.split(".")[-2] in ("sides", "side", "row", "column", "score"):
                weight.mul_(100.0)
    return actor


# --- a small board, made by hand ---

HEIGHT, WIDTH = 6, 4
CELLS = HEIGHT * WIDTH


def small_spec(height: int = HEIGHT, width: int = WIDTH) -> BoardSpec:
    """Four planes, costs, two pieces and a number."""
    cells = height * width
    return BoardSpec(
        height=height,
        width=width,
        colours=(0, cells, 2 * cells),
        special=3 * cells,
        pieces=8 * cells,
        numbers=8 * cells + 2 * PIECES,
        num_numbers=1,
        costs=4 * cells,
        planes=0,
        num_planes=4,
    )


def make(network: str, board: BoardSpec | None = None) -> Actor:
    board = board or small_spec()
    spec = ActorSpec(
        inputs=board.numbers + board.num_numbers,
        outputs=board.placements,
        discrete=True,
        hidden=(32,),
        activation="relu",
        normalize_observation=False,
        network=network,
        layout=msgspec.to_builtins(board),
    )
    return make_actor(spec, seeded(1))


def blank(actor: Actor, piece: int = 1, after: int = 5) -> torch.Tensor:
    """An empty board with these pieces."""
    board = msgspec.convert(actor.spec.layout, BoardSpec)
    x = torch.zeros(1, actor.spec.inputs)
    x[0, board.pieces + piece] = x[0, board.pieces + PIECES + after] = 1.0
    return x


@torch.no_grad()
def logits(actor: Actor, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    mask = torch.ones(len(x), actor.spec.outputs, dtype=torch.uint8) if mask is None else mask
    return actor.distribution({VECTOR: x}, mask).logits


# --- what each can see ---


@pytest.mark.parametrize("network", PLACERS)
def test_only_placements_there_are_have_a_score(network, positions):
    obs, mask, spec = positions
    mask = mask.copy()
    mask[3] = 0  # an agent that does not act
    actor = lively(Ppo(config_of(network), spec, 1, CPU).actor)
    scores = logits(actor, actor.inputs(tensors(obs, CPU))[VECTOR], torch.from_numpy(mask))
    assert scores.shape == mask.shape == (64, 512)
    assert (scores[mask == 0] == FORBIDDEN).all()
    allowed = scores[mask != 0]
    assert (allowed.abs() < 1000).all()
    assert allowed.std() > 0.01


@pytest.mark.parametrize("network", PLACERS)
def test_what_is_first_and_what_is_second_matters_of_this_piece_and_of_the_next(network):
    actor = lively(make(network))
    x = blank(actor, piece=1, after=5)
    x[0, [0, 9, CELLS + 6, 2 * CELLS + 3, 2 * CELLS + 23]] = 1.0
    here = logits(actor, x)
    for piece, after in ((3, 5), (1, 7)):  # 1 and 3, 5 and 7 are the same colours the other way round
        other = blank(actor, piece, after)
        other[:, : CELLS * 4] = x[:, : CELLS * 4]
        assert (logits(actor, other) - here).abs().max() > 1e-3
    told = x.clone()
    told[0, -1] = 1.0  # the number
    assert (logits(actor, told) - here).abs().max() > 1e-3


def test_torsos_see_all_planes_what_is_like_each_half_and_costs():
    board = small_spec()
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((5, board.numbers + 1), np.float32))
    x[:, board.pieces : board.numbers] = 0.0
    pieces, after = rng.integers(PIECES, size=(2, 5))
    x[np.arange(5), board.pieces + pieces] = x[np.arange(5), board.pieces + PIECES + after] = 1.0
    seen = image(board, x)
    for i in range(5):
        colours = [*divmod(pieces[i], 3), *divmod(after[i], 3)]
        expected = [x[i, plane * CELLS : (plane + 1) * CELLS] for plane in (0, 1, 2, 3, *colours, 4, 5, 6, 7)]
        assert torch.equal(seen[i], torch.stack(expected).view(-1, HEIGHT, WIDTH))
    assert torch.equal(facts(board, x), x[:, board.pieces :])


def test_a_dense_map_moves_with_what_it_sees():
    board = small_spec(18, 17)  # wide enough that these cells do not see the edge
    actor = lively(make("dense_map", board))
    x, moved = blank(actor), blank(actor)
    for plane, row, column in [(0, 8, 8), (1, 9, 7), (2, 9, 8), (3, 8, 9), (5, 7, 8)]:
        x[0, plane * board.cells + row * 17 + column] = 1.0
        moved[0, plane * board.cells + (row + 1) * 17 + column + 1] = 1.0
    here = logits(actor, x).view(SIDES, 18, 17)[:, 7:10, 7:9]
    there = logits(actor, moved).view(SIDES, 18, 17)[:, 8:11, 8:10]
    torch.testing.assert_close(here, there)
    assert here.std() > 0.01


def test_convolutions_see_seven_cells_far_and_attention_sees_all():
    board = small_spec(16, 8)
    for network, reaches in {"dense_map": False, "board_attention": True}.items():
        actor = lively(make(network, board))
        x = blank(actor)
        y = x.clone()
        y[0, 15 * 8 + 3] = 1.0  # in the lowest row
        differs = (logits(actor, x) != logits(actor, y)).view(SIDES, 16, 8).any(0).any(1)
        assert differs[8:].all()
        assert differs[:8].tolist() == [reaches] * 8


def test_factorised_logits_are_sums_of_rows_and_columns():
    for network, is_sum in {"factorised": True, "dense_map": False}.items():
        actor = lively(make(network))
        x = blank(actor)
        x[0, [0, 9, CELLS + 6, 2 * CELLS + 3, 2 * CELLS + 23]] = 1.0
        grid = logits(actor, x).view(SIDES, HEIGHT, WIDTH)
        mixed = grid - grid[:, :1] - grid[:, :, :1] + grid[:, :1, :1]
        assert bool(mixed.abs().max() < 1e-4) == is_sum
        assert grid.std() > 0.01


def test_placements_of_a_decoder_know_each_other_and_those_of_cross_attention_do_not():
    for network, know in {"decoder": True, "cross_attention": False}.items():
        actor = lively(make(network))
        x = blank(actor)
        x[0, [0, 9, CELLS + 6]] = 1.0
        mask = torch.zeros(1, 4 * CELLS, dtype=torch.uint8)
        mask[0, [3, 5, 20, 31, 64, 80]] = 1
        fewer = mask.clone()
        fewer[0, 31] = 0
        both = fewer[0] != 0
        change = (logits(actor, x, mask)[0, both] - logits(actor, x, fewer)[0, both]).abs().max()
        assert bool(change > 1e-5) == know


@pytest.mark.parametrize("network", ["cross_attention", "decoder"])
def test_nobody_looks_at_the_padding_of_tokens(network):
    actor = lively(make(network))
    x, mask, _ = lines(3, np.random.default_rng(0))
    with torch.no_grad():
        few, many = (actor.placer._score(x, mask, width) for width in (14, 96))
    torch.testing.assert_close(few, many)


def test_a_mask_is_needed():
    with pytest.raises(ValueError, match="mask"):
        make("dense_map").distribution({VECTOR: torch.zeros(1, 8 * CELLS + 19)}, None)


# --- bits ---


@pytest.mark.parametrize("network", PLACERS)
def test_a_row_gets_the_same_bits_in_any_batch_at_any_place_on_any_threads(network, positions):
    obs, mask, spec = positions
    actor = lively(Ppo(config_of(network), spec, 1, CPU).actor)
    noise = np.random.default_rng(0).random(mask.shape, np.float32)

    def seen(rows) -> list[bytes]:
        some = {name: np.ascontiguousarray(block[rows]) for name, block in obs.items()}
        return [
            r.tobytes()
            for r in logits(actor, actor.inputs(tensors(some, CPU))[VECTOR], torch.from_numpy(mask[rows])).numpy()
        ]

    def acted(rows) -> list[bytes]:
        some = {name: np.ascontiguousarray(block[rows]) for name, block in obs.items()}
        return [
            a.tobytes() + logp.tobytes()
            for a, logp in zip(*act(actor, some, mask[rows], noise[rows], CPU)[:2], strict=True)
        ]

    many = int(mask.sum(1, dtype=int).argmax())
    order = np.roll(np.arange(64), -many)  # one with many placements first
    whole, chosen = seen(order), acted(order)
    for size, rows in ((1, 3), (7, 21), (16, 32)):
        found = [row for begin in range(0, rows, size) for row in seen(order[begin : min(begin + size, rows)])]
        assert found == whole[:rows], size
    assert acted(order[:5]) == chosen[:5]
    mixed = np.random.default_rng(1).permutation(64)
    assert seen(order[mixed]) == [whole[i] for i in mixed]
    torch.set_num_threads(2)
    try:
        assert seen(order) == whole
    finally:
        torch.set_num_threads(1)


def test_a_shard_has_one_shape_and_a_row_the_width_it_needs_itself():
    counts = np.random.default_rng(0).permutation([0, 1, 5, 8, 9, 16, 17, 40] * 9)
    x = torch.arange(72.0).unsqueeze(1)
    mask = torch.from_numpy((np.arange(40) < counts[:, None]).astype(np.uint8))
    seen = []

    def run(rows, mask, width):
        assert torch.get_num_threads() == 1
        assert rows.shape == (SHARD, 1)
        assert mask.count_nonzero(1).tolist() == counts[rows.flatten().long()].tolist()
        seen.append((set(rows.flatten().tolist()), width))
        return rows.expand(-1, 40)

    torch.set_num_threads(2)
    try:
        out = in_shards(run, x, mask, (8, 16, 40))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert torch.equal(out, x.expand(-1, 40))
    for rows, width in seen:
        assert {8 if counts[int(row)] <= 8 else 16 if counts[int(row)] <= 16 else 40 for row in rows} == {width}


def test_no_rows_are_no_rows():
    for network in PLACERS:
        assert logits(make(network), torch.zeros(0, 8 * CELLS + 19)).shape == (0, 4 * CELLS)


@pytest.mark.parametrize("network", PLACERS)
def test_a_learners_network_is_built_again_from_what_is_saved(network, positions):
    obs, mask, spec = positions
    learner = Ppo(config_of(network), spec, 3, CPU)  # its weights are views of one vector
    lively(learner.actor)
    record = msgspec.json.encode(learner.actor_spec())
    again = make_actor(msgspec.json.decode(record, type=ActorSpec), seeded(99))
    load_module(again, learner.actor_arrays(), "actor", strict=True)
    rows = {name: block[:20] for name, block in obs.items()}
    mine, theirs = (act(actor, rows, mask[:20], None, CPU) for actor in (learner.actor, again))
    assert mine.logp.tobytes() == theirs.logp.tobytes()
    assert mine.action.tobytes() == theirs.action.tobytes()


def test_specs_saved_before_there_was_a_choice_score_candidates(positions):
    _, _, spec = positions
    plain = msgspec.to_builtins(Ppo(config_of("candidates"), spec, 1, CPU).actor_spec())
    board = {name: at for name, at in plain.pop("layout").items() if name not in ("planes", "num_planes")}
    del plain["network"], plain["blocks"]
    old = msgspec.convert(with_network_keys({**plain, "board": board}), ActorSpec)
    assert old.network == "candidates"
    assert make_actor(old, seeded(1)).placer is None


# --- learning ---


@pytest.mark.parametrize("network", PLACERS)
def test_gradients_reach_every_weight(network):
    actor = lively(make(network))
    x, mask, best = lines(24, np.random.default_rng(0))
    x[:, -1] = torch.linspace(-1, 1, 24)
    actor.distribution({VECTOR: x}, mask).logp(best).sum().backward()
    for name, weight in actor.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def lines(rows: int, rng: np.random.Generator):
    """Boards with one column whose top has the colour of the piece's first half, and the placement that goes on there.

    The other columns have a colour that the piece has not; so the first half must be the lower one, over that column.
    """
    x = np.zeros((rows, 8 * CELLS + 19), np.float32)
    mask, best = np.zeros((rows, SIDES, HEIGHT, WIDTH), np.uint8), np.zeros(rows, np.int64)
    for i in range(rows):
        first, second, other = rng.permutation(3)
        planes = x[i, : 3 * CELLS].reshape(3, HEIGHT, WIDTH)
        right = rng.integers(WIDTH)
        free = HEIGHT - 1 - rng.integers(2, HEIGHT - 1, WIDTH)  # lowest free row of each column
        for column in range(WIDTH):
            for row in range(free[column] + 1, HEIGHT):
                top = first if column == right else other
                planes[top if row <= free[column] + 2 else rng.integers(3), row, column] = 1.0
            mask[i, 3, free[column], column] = mask[i, 1, free[column] - 1, column] = 1
            if column + 1 < WIDTH:
                row = min(free[column : column + 2])
                mask[i, 0, row, column] = mask[i, 2, row, column + 1] = 1
        x[i, 8 * CELLS + 3 * first + second] = x[i, 8 * CELLS + PIECES + rng.integers(PIECES)] = 1.0
        best[i] = 3 * CELLS + free[right] * WIDTH + right
    flat = mask.reshape(rows, -1)
    x[:, 4 * CELLS : 8 * CELLS] = 1 - flat  # costs
    return torch.from_numpy(x), torch.from_numpy(flat), torch.from_numpy(best)


@pytest.mark.parametrize(
    ("network", "steps"),
    [("dense_map", 40), ("factorised", 40), ("cross_attention", 12), ("decoder", 12), ("board_attention", 120)],
)
def test_every_head_learns_where_to_go_on(network, steps):
    rng = np.random.default_rng(0)
    actor = make(network)
    x, mask, best = lines(1024, rng)
    new_x, new_mask, new_best = lines(128, rng)
    assert new_mask.sum(1).float().mean() == 14  # by chance one in 14 is right
    optimiser = torch.optim.Adam(actor.parameters(), 5e-3)
    for step in range(steps):
        some = slice(32 * step % 1024, 32 * step % 1024 + 32)
        optimiser.zero_grad()
        (-actor.distribution({VECTOR: x[some]}, mask[some]).logp(best[some]).mean()).backward()
        optimiser.step()
    right = logits(actor, new_x, new_mask).argmax(1) == new_best
    assert right.float().mean() > 0.7


# --- in a run ---


@pytest.mark.parametrize("network", PLACERS)
def test_every_head_trains_resumes_and_is_judged(network, tmp_path):
    few = {"collect.rollout_length": 4, "evaluate.evaluation_duration": 2, "world.max_pills": 3, "algo.epochs": 1}
    small = {**TINY, **few, "timesteps": 2 * 16, "algo.network": network, "algo.ema_decay": 0.9}
    done = train(scenario_of("drmario_level_0", small), out=tmp_path / "run", models=tmp_path / "models")
    assert done.counters.updates == 2
    more = resume(done.run, timesteps=3 * 16, models=tmp_path / "models")
    assert more.counters.updates == 3
    for path in (done.model, more.run, more.model):
        judged = judge(*load_cast(path), episodes=2).rows[0]
        assert (judged.policy, judged.episodes) == ("learned", 2)
        assert slipstream.load_policy(path).record.actor.network == network


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"algo.normalize_observation": True}, "normalize_observation: false"),
        ({"algo.shared_torso": True}, "shared_torso: false"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, setting):
    with pytest.raises(ScenarioError, match=f"algo: network decoder .*{setting}"):
        load("drmario_level_0", {"algo.network": "decoder", **changes})
