"""Former words, and those of other libraries, are answered with the key that stands for them here."""

import pytest

import slipstream
from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.config.overrides import cli_changes
from slipstream.config.scenario import Scenario
from slipstream.config.schema import annotation_at
from slipstream.config.words import SAYINGS, WORDS
from slipstream.errors import ScenarioError


def refused(*args, **kwargs):
    with pytest.raises(ScenarioError) as caught:
        load(*args, **kwargs)
    return str(caught.value)


PPO, SAC, DQN, IMPALA = {}, {"algo": "sac"}, {"algo": "dqn"}, {"algo": "impala"}


@pytest.mark.parametrize(
    ("key", "algo", "answer"),
    [
        ("lr", PPO, "algo.learning_rate"),
        ("algo.lr", PPO, "algo.learning_rate"),
        ("algo.num_sgd_iter", PPO, "algo.epochs"),
        ("sgd_minibatch_size", PPO, "algo.minibatch_size"),
        ("algo.sgd_minibatch_size", SAC, "algo.batch_size"),
        ("algo.minibatch_size", SAC, "algo.batch_size"),
        ("algo.batch_size", PPO, "algo.minibatch_size"),
        ("train_batch_size", PPO, "collect.num_worlds"),
        ("train_batch_size", SAC, "algo.batch_size"),
        ("rollout_fragment_length", PPO, "collect.rollout_length"),
        ("num_rollout_workers", PPO, "collect.workers"),
        ("lambda", PPO, "algo.gae_lambda"),
        ("algo.gae_lambda", IMPALA, "algo.vtrace_lambda"),
        ("algo.ent_coef", PPO, "algo.entropy_coef"),
        ("algo.ent_coef", SAC, "algo.temperature"),
        ("algo.target_kl", PPO, "algo.kl_stop"),
        ("learning_starts", SAC, "algo.learning_starts"),
        ("n_step", SAC, "algo.replay.n_step"),
        ("algo.n_step", SAC, "algo.replay.n_step"),
        ("algo.tau", DQN, "algo.target_update"),
        ("total_timesteps", PPO, "timesteps"),
        ("federated.mode", PPO, "federated.aggregator"),
        ("federated.timeout", PPO, "federated.timeout_s"),
        ("policies.main.algo", PPO, None),
        ("checkpoint_every", PPO, "checkpoint.checkpoint_every"),
    ],
)
def test_a_word_of_another_library_is_answered_with_ours(key, algo, answer):
    name = "probe_bandit" if algo == DQN else "head_on"
    if answer is None:
        said = refused("gaplock_team", {"policies.defender.algo.buffer_size": 5})
        assert "'policies.defender.algo.replay.capacity'" in said
        return
    assert f"{key}: " in refused(name, {**algo, key: 1})
    assert f"'{answer}'" in refused(name, {**algo, key.replace(".", "__"): 1})
    with pytest.raises(ScenarioError, match=f"--{answer.replace('_', '-')}"):
        cli_changes(load(name, algo), [f"--{key.replace('_', '-')}", "1"])


def test_files_and_python_answer_alike(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("world: {kind: probe, task: bandit}\nalgo: {kind: ppo, lr: 1e-3}\nfederated: {mode: mean}\n")
    lines = refused(file).splitlines()
    assert [line.split(": ", 1)[0] for line in lines] == [f"{file}:2", f"{file}:3"]
    assert "'algo.learning_rate'" in lines[0]
    assert "'federated.aggregator'" in lines[1]
    assert "collect.mode" not in lines[1]
    with pytest.raises(ScenarioError, match=r"algo\.learning_rate"):
        slipstream.train("head_on", lr=1e-3)


def test_a_key_of_another_algorithm_says_whose_it_is():
    said = refused("head_on", {"n_step": 3})
    facts = ("'algo.replay.n_step'", "'algo.kind' sac, td3, dqn or cql", "ppo")
    assert all(fact in said for fact in facts)
    assert "stop" not in said


def test_every_word_leads_to_a_key_that_exists():
    trees = [
        {"world": {"kind": world}, "algo": {"kind": algo, "values": {"kind": "quantile"}}}
        for algo in ("ppo", "impala", "sac", "td3", "dqn", "cql", "appo")
        for world in ("gymnasium", "racing")
    ]
    for section, words in WORDS.items():
        for word, keys in words.items():
            for key in keys:
                path = tuple(key.path.split("."))
                assert any(annotation_at(tree, path, Scenario)[0] is not None for tree in trees), (section, word, key)


@pytest.mark.parametrize("word", SAYINGS)
def test_words_without_a_key_are_answered_with_what_there_is_instead(word):
    assert SAYINGS[word] in refused("probe_bandit", {word: 1})


@pytest.mark.parametrize("words", [["--scenario", "head_on"], ["--scenario=head_on", "--algo", "ppo"]])
@pytest.mark.parametrize("verb", ["train", "federate"])
def test_a_scenario_given_as_a_flag_is_answered_with_the_positional_form(verb, words, capsys):
    assert main([verb, *words]) == 2
    assert f"slipstream {verb} head_on" in capsys.readouterr().err


def test_train_with_repeat_leads_to_federate(capsys):
    assert main(["train", "head_on", "--repeat", "3"]) == 2
    assert "slipstream federate SCENARIO --repeat N" in capsys.readouterr().err


def test_train_in_python_takes_the_folder_device_and_checkpoints_as_the_command_line_does(tmp_path):
    checkpoint = slipstream.train(
        "probe_bandit",
        timesteps=512,
        out=tmp_path / "run",
        models=tmp_path / "models",
        gpu=False,
        checkpoint_every=256,
        log_trajectories=False,
        algo__epochs=1,
        algo__hidden__0=8,
    )
    assert checkpoint.is_relative_to(tmp_path / "run")
    assert list((tmp_path / "models").iterdir())
    trained = load(tmp_path / "run" / "scenario.yaml")
    assert (trained.device, trained.checkpoint.checkpoint_every, trained.algo.hidden[0]) == ("cpu", 256, 8)


# --- help ---


def test_help_shows_the_fields_of_the_algorithm_asked_for_with_the_values_tuned_for_it(capsys):
    sac = load("head_on", {"algo": "sac"})
    assert main(["train", "head_on", "--algo", "sac", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--algo.training-intensity" in shown
    assert f"(default: {sac.algo.replay.capacity})" in shown
    assert f"(default: {sac.collect.rollout_length})" in shown
    assert "--algo.gae-lambda" not in shown


def test_help_shows_what_the_other_words_on_the_line_change(capsys):
    assert main(["train", "head_on", "--preset", "published_cpu", "--algo.epochs", "77", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(default: 77)" in shown
    assert "(default: 256 256)" in shown
    assert main(["federate", "head_on", "--algo", "sac", "--help"]) == 0
    assert "--algo.training-intensity" in capsys.readouterr().out
    assert main(["sweep", "convoy_lock_td3_sweep", "--help"]) == 0
    assert "--algo.policy-delay" in capsys.readouterr().out
    assert main(["train", "cartpole", "acrobot", "--algo", "ppo", "dqn", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("fields of")] == [
        f"fields of {name} with {algo}, and their values:"
        for name in ("cartpole", "acrobot")
        for algo in ("ppo", "dqn")
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "head_on", "--algo", "nonsense"],
        ["train", "head_on", "--preset", "nonsense"],
        ["train", "head_no"],
        ["train", "head_on", "head_no"],
        ["train", "head_on", "--algo.nonsense", "1"],
        ["federate", "head_on", "--algo", "nonsense"],
        ["federate", "head_no"],
        ["sweep", "no_such_sweep"],
    ],
)
def test_help_for_what_is_not_there_is_an_error_and_shows_no_page(words, capsys):
    assert main([*words, "--help"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
