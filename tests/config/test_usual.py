"""Scenarios that say little: what they begin with, by the environment that they name."""

import pytest

from slipstream.config.load import dump, from_plain, load
from slipstream.config.yaml import parse_yaml


def written(folder, text):
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_an_id_that_we_know_begins_with_our_scenario_for_it(tmp_path):
    mine = load(written(tmp_path, "world: {kind: gymnasium, id: CartPole-v0}\nseed: 3"))
    ours = load("cartpole")
    assert (mine.algo, mine.collect, mine.evaluate, mine.timesteps) == (
        ours.algo,
        ours.collect,
        ours.evaluate,
        ours.timesteps,
    )
    assert (mine.name, mine.seed, mine.world.id, mine.preset) == ("mine", 3, "CartPole-v0", "cartpole")


@pytest.mark.parametrize("algo", ["dqn", "appo"])
def test_another_algorithm_brings_what_is_tuned_for_it_there(tmp_path, algo):
    mine = load(written(tmp_path, f"world: {{kind: gymnasium, id: CartPole-v1}}\nalgo: {algo}"))
    ours = load("cartpole", {"algo": algo})
    assert (mine.algo, mine.collect, mine.timesteps) == (ours.algo, ours.collect, ours.timesteps)
    by_flag = load(written(tmp_path, "world: {kind: gymnasium, id: CartPole-v1}"), {"algo.kind": algo})
    assert by_flag.algo == ours.algo


def test_what_a_file_says_itself_counts(tmp_path):
    mine = load(written(tmp_path, "world: {kind: gymnasium, id: CartPole-v1}\nalgo: {gamma: 0.5}\ntimesteps: 7000"))
    assert (mine.algo.gamma, mine.timesteps) == (0.5, 7000)
    assert mine.algo.gae_lambda == load("cartpole").algo.gae_lambda
    assert load(written(tmp_path, "world: {kind: gymnasium, id: CartPole-v1}"), {"algo.epochs": 2}).algo.epochs == 2


def test_an_id_that_nobody_tuned_for_begins_with_what_is_usual(tmp_path):
    mine = load("gymnasium:Blackjack-v1")
    assert (mine.preset, mine.algo.minibatch_size, mine.evaluate.share) == ("ppo_usual", 64, 0.1)
    off_policy = load("gymnasium:Blackjack-v1", {"algo": "sac"})
    assert off_policy.algo.training_intensity == 1.0
    assert off_policy.algo.replay.capacity is None
    for text in ("world: {kind: pettingzoo, env: mine:parallel_env}", "world: {kind: vector, make: mine:envs}"):
        assert load(written(tmp_path, text)).preset == "ppo_usual"


@pytest.mark.parametrize("network", ["gru", "lstm"])
def test_ppo_with_a_memory_has_what_is_usual_for_memories(tmp_path, network):
    mine = load("gymnasium:Blackjack-v1", {"algo.network": network})
    assert (mine.preset, mine.algo.minibatch_size, mine.collect.num_worlds) == (f"ppo_usual_{network}", 256, 16)
    assert mine.collect.seed_statistics == load("gymnasium:Blackjack-v1").collect.seed_statistics
    text = f"world: {{kind: gymnasium, id: Blackjack-v1}}\nalgo: {{network: {{kind: {network}, size: 8}}}}"
    assert load(written(tmp_path, text)).algo.learning_rate == mine.algo.learning_rate
    assert load("gymnasium:Blackjack-v1", {"algo.network": "mlp"}).preset == "ppo_usual"
    assert load("gymnasium:Blackjack-v1", {"algo.network": network, "algo.kind": "dqn"}).preset == "dqn_usual"
    assert load("gymnasium:CartPole-v1", {"algo.network": network}).preset == "cartpole"


def test_an_id_of_a_namespace_that_we_know_brings_its_wrappers():
    mine = load("gymnasium:ale_py:ALE/Breakout-v5")
    assert mine.world.id == "ale_py:ALE/Breakout-v5"
    assert [wrapper.target for wrapper in mine.world.wrappers][-1].endswith("FrameStackObservation")
    assert mine.algo.network.kind == "conv"


def test_the_preset_default_leaves_every_field_its_default(tmp_path):
    path = written(tmp_path, "world: {kind: gymnasium, id: CartPole-v1}\nalgo: {kind: ppo, epochs: 3}")
    world = {"kind": "gymnasium", "id": "CartPole-v1"}
    plain = {"name": "mine", "world": world, "algo": {"kind": "ppo", "epochs": 3}}
    assert load(path, preset="default") == from_plain(plain)


def test_native_worlds_and_our_own_scenarios_are_as_their_files_say(tmp_path):
    world = {"kind": "probe", "task": "constant"}
    assert load(written(tmp_path, f"world: {world}")) == from_plain({"name": "mine", "world": world})
    assert load("cartpole").preset is None


def test_a_scenario_that_was_saved_loads_as_it_was(tmp_path):
    scenario = load("gymnasium:Blackjack-v1", {"evaluate.share": None})
    saved = written(tmp_path, dump(scenario))
    assert load(saved) == load(saved, preset="default") == scenario
    assert parse_yaml(dump(scenario), "x").value["preset"] == "ppo_usual"
