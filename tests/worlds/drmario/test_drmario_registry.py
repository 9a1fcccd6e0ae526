"""The registry: the same 120 games of every level for everybody, and worlds that play nothing else."""

import csv
import hashlib
import json

import numpy as np
import pytest

from slipstream.cli.main import main
from slipstream.config.load import dump, from_plain, load, to_plain
from slipstream.config.yaml import parse_yaml
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.run.setup import make_evaluation_worlds, make_training_worlds, resolve
from slipstream.worlds import drmario
from slipstream.worlds.drmario import registry
from slipstream.worlds.drmario.registry import LEVELS, PER_LEVEL, entries, episodes_of, registry_seeds, signature
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

# Of all entries as JSON: figures on the registry's games compare only as long as this holds.
GOLDEN = "2d580cd3270cb7daa8f91e78b0f7b602a53b260d18c36aa1fc8d876507cb9795"


def test_the_registry_is_what_it_always_was():
    text = json.dumps([[e.level, e.seed, e.layout, e.signature, e.pills] for level in LEVELS for e in entries(level)])
    assert registry_seeds()[:5] == (30340, 12062, 32058, 22800, 30716)
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN


def test_every_level_has_as_many_different_layouts_and_orders_of_pills_as_seeds():
    for level in LEVELS:
        games = entries(level)
        assert len(games) == PER_LEVEL
        for what in ("seed", "layout", "signature"):
            assert len({getattr(game, what) for game in games}) == PER_LEVEL
        assert tuple(game.seed for game in games) == registry_seeds()


def test_an_entry_says_what_the_game_it_names_is():
    game = entries(7)[3]
    engine = drmario.Engine(7, seed=drmario.seed_at(game.seed))
    assert game.layout == hashlib.sha256(engine.board.tobytes()).hexdigest()[:16]
    assert [int(pill) for pill in game.pills] == engine.reserve.tolist()
    assert 3 * engine.colours[0] + engine.colours[1] == int(game.pills[1])
    assert game.signature == hashlib.sha256(engine.reserve.tobytes()).hexdigest()[:16] == signature(game.seed)


def test_a_seed_is_passed_over_only_where_it_repeats_a_layout():
    order = sorted(range(1, 32768), key=lambda seed: hashlib.sha256(f"{registry.RULE} {seed}".encode()).digest())
    considered = order[: order.index(registry_seeds()[-1]) + 1]
    passed = [seed for seed in considered if seed not in registry_seeds()]
    assert [seed for seed in considered if seed not in passed] == list(registry_seeds())
    assert passed, "otherwise this says nothing"
    boards = {
        seed: [drmario.generate(level, drmario.seed_at(seed))[0].tobytes() for level in LEVELS] for seed in order[:200]
    }
    for seed in passed:
        before = [boards[other] for other in considered[: considered.index(seed)] if other not in passed]
        assert any(other[level] == boards[seed][level] for other in before for level in LEVELS)


def test_a_level_without_a_registry_is_refused():
    with pytest.raises(ScenarioError, match=r"level 21: .*0 to 20"):
        entries(21)


def test_training_and_evaluation_play_all_of_the_registry_and_nothing_else():
    scenario = resolve(load("drmario_level_0", {"world.seeds": "registry", "device": "cpu", "world.levels": [0, 3]}))
    for env in (make_training_worlds(scenario), make_evaluation_worlds(scenario, 64)):
        at = env.spec.frame_fields.index("seed")
        seen = set()
        for _ in range(20):
            env.reset()
            seen |= {int(env.frame(i)[0, at]) for i in range(env.num_worlds)}
        env.close()
        assert seen == set(registry_seeds())


def test_a_scenario_with_the_registry_is_saved_and_loaded_and_a_slip_is_told():
    scenario = load("drmario_level_0", {"world.seeds": "registry"})
    assert from_plain(to_plain(scenario)) == scenario
    assert from_plain(parse_yaml(dump(scenario), "it").value) == scenario
    with pytest.raises(ScenarioError, match=r"world\.seeds: .*'registri'.* 'registry'"):
        load("drmario_level_0", {"world.seeds": "registri"})


def test_the_numbers_of_episodes_hold_on_every_level_and_are_each_seeds_first():
    phases = [{"name": f"level {level}", "levels": [level]} for level in (0, 20)]
    config = load("drmario_level_0", {"world.phases": phases, "world.seeds": "registry"}).world
    env = make_worlds(config, 16, EnvOptions(evaluation=True, autoreset=False))
    wanted = registry_seeds()[:16]
    numbers = episodes_of(env, wanted, games=2, stream=5, first=1000)
    assert [len(numbers[seed]) for seed in wanted] == [2] * 16
    fields = [env.spec.frame_fields.index(name) for name in ("level", "seed")]
    for phase, level in enumerate((0, 20)):
        for game in range(2):
            env.phases = [phase] * 16
            env.reseed(np.full(16, 5, np.uint64), np.array([numbers[seed][game] for seed in wanted], np.uint32))
            env.reset()
            assert [env.frame(i)[0, fields].tolist() for i in range(16)] == [[level, seed] for seed in wanted]
    wider = make_worlds(config, 50, EnvOptions(evaluation=True, autoreset=False))
    assert episodes_of(wider, wanted, games=2, stream=5, first=1000) == numbers


def test_a_seed_that_a_world_never_plays_is_no_endless_search(monkeypatch):
    monkeypatch.setattr(registry, "MOST_DRAWS", 50)
    env = make_worlds(load("drmario_level_0", {"world.seeds": [1, 2]}).world, 8, EnvOptions(autoreset=False))
    with pytest.raises(WorldContractError, match="seeds 3"):
        episodes_of(env, [1, 3], games=1, stream=0, first=0)


def test_the_verb_prints_what_the_registry_holds(tmp_path, capsys):
    games = entries(4)
    assert main(["drmario", "seeds", "--level", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:4] for line in lines] == [["4", str(g.seed), g.layout, g.signature] for g in games]
    assert lines[0].split()[4].rstrip("…") == games[0].pills[1:25]
    assert main(["drmario", "seeds", "--level", "4", "--json"]) == 0
    assert [entry["pills"] for entry in json.loads(capsys.readouterr().out)] == [game.pills for game in games]
    assert main(["drmario", "seeds", "--csv", str(tmp_path / "all.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert len(rows) == len(LEVELS) * PER_LEVEL
    assert rows[4 * PER_LEVEL]["layout"] == games[0].layout
    assert main(["drmario", "seeds", "--level", "22"]) == 2
