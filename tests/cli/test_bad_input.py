"""Mistakes of the user: one clear sentence on stderr, exit code 2, no traceback, nothing overwritten."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from slipstream.cli.main import main
from slipstream.data import checkpoint
from slipstream.errors import SlipstreamError

SMALL = ["--collect.num-worlds", "4", "--collect.rollout-length", "8", "--algo.minibatch-size", "8"]
SMALL += ["--algo.epochs", "1", "--learner-threads", "1"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complain(words: list[str], capsys) -> str:
    """What the command says on stderr; it must end with code 2 and without a traceback."""
    try:
        code = main(words)
    except SystemExit as stop:  # argparse ends the program itself
        code = stop.code
    said = capsys.readouterr()
    assert code == 2, said
    assert "Traceback" not in said.err
    assert said.err.strip()
    return said.err


def assert_one_sentence(text: str) -> None:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("slipstream: ")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)

SENTENCES = [
    # words of the command, what the sentence must hold
    (["train", "head_no"], ["'head_no'", "'head_on'"]),
    (["train", "head_on", "--algo", "pop"], ["--algo: ", "'pop'", "'ppo'"]),
    (["train", "head_on", "--algo", "ppo", "a3c"], ["--algo: ", "'a3c'", "ppo, appo, impala"]),
    (["train", "head_on", "--preset", "publisht"], ["'publisht'", "'published'"]),
    (["train", "../head_on"], ["head_on"]),
    (["train", "..%2fhead_on"], ["'..%2fhead_on'", "1 to 64"]),
    (["train", ""], ["scenario ''", "1 to 64"]),
    (["train", "a" * 300], ["'aaaaaaaa", "1 to 64"]),
    (["train", "/etc/passwd"], ["/etc/passwd"]),
    (["train", "missing.yaml"], ["missing.yaml"]),
    (["train"], ["slipstream train head_on"]),
    (["train", "--seed", "3"], ["slipstream train head_on"]),
    (["train", "head_on", "--seed", "-1"], ["seed: ", "-1"]),
    (["train", "head_on", "--algo.minibatch-size", "3000"], ["algo.minibatch_size: 3000 ", " 8192 ", "2048 or 4096"]),
    (["train", "probe_bandit", "--algo.centralised-critic"], ["algo.centralised_critic: probe/bandit "]),
    (
        ["train", "probe_bandit", "--stop.zero-conflict-streak", "5"],
        ["stop.zero_conflict_streak: probe/bandit ", "stop.target_return"],
    ),
    (["train", "probe_bandit", "probe_leaver", "--out", "x"], ["--out x: ", "2 runs"]),
    (["train", "probe_bandit", "--gpu", "--timesteps", "32"], ["device: cuda ", "--no-gpu"]),
    (["resume", "nowhere"], ["nowhere: "]),
    (["resume", "."], [".: ", "scenario.yaml"]),
    (["eval", "nowhere/at/all"], ["nowhere/at/all: "]),
    (["eval", "head_no"], ["'head_no'", "'head_on'"]),
    (["eval", "head_on", "--episodes", "0"], ["--episodes 0: "]),
    (["eval", "cartpole", "--episodes", "1"], ["cartpole: CartPole-v1 "]),
    (["eval", "."], [".: ", "meta.json"]),
    (["eval", "nowhere", "--scenario", "head_on"], ["nowhere: "]),
    (["scenarios", "head_no"], ["'head_no'", "'head_on'"]),
    (["bench", "head_no"], ["'head_no'", "'head_on'"]),
    (["bench", "probe_constant", "--worlds", "0"], ["--worlds 0: "]),
    (["bench", "probe_constant", "--threads", "0"], ["--threads 0: "]),
    (["bench", "probe_constant", "--workers", "0"], ["--workers 0: "]),
    (["bench", "probe_constant", "--seconds", "-1"], ["--seconds -1: ", "3600"]),
    (["check-world", "head_no"], ["'head_no'", "'head_on'"]),
    (["trian", "head_on"], ["'trian'", "'train'"]),
]


@pytest.mark.parametrize(("words", "parts"), SENTENCES, ids=[" ".join(w)[:60] or "-" for w, _ in SENTENCES])
def test_a_mistake_is_one_sentence(words, parts, capsys, in_an_empty_folder):
    said = complain(words, capsys)
    assert_one_sentence(said)
    for part in parts:
        assert part in said
    assert not list(in_an_empty_folder.iterdir())  # nothing was begun


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["train", "head_on", "--algo.clip-coeff", "0.1"], ["clip-coef"]),
        (["train", "head_on", "--timesteps", "many"], ["--timesteps: 'many'", "100_000"]),
        (["train", "head_on", "--timesteps", "inf"], ["--timesteps: 'inf'", "100_000"]),
        (["train", "head_on", "--timesteps", "nan"], ["--timesteps: 'nan'", "100_000"]),
        (["train", "head_on", "--timesteps", "-5"], ["--timesteps: '-5'", "100_000"]),
        (["resume"], ["run"]),
        (["eval", "head_on", "--episodes", "some"], ["--episodes: ", "'some'"]),
    ],
)
def test_a_wrong_flag_is_explained(words, parts, capsys):
    said = complain(words, capsys)
    for part in parts:
        assert part in said


FILES = {
    "unreadable": ("world: [unclosed\n", ["mine.yaml:2: ", "YAML"]),
    "tabs": ("world:\n\tkind: probe\n", ["mine.yaml:"]),
    "binary": ("\x00\x01\x02", ["mine.yaml"]),
    "code": ("world: !!python/object/apply:os.system ['touch hacked']\n", ["mine.yaml:1"]),
    "bomb": (BOMB, ["mine.yaml"]),
    "deep": ("[" * 5000 + "]" * 5000, ["mine.yaml"]),
    "list": ("- a\n- b\n", ["mine.yaml:1: ", "list"]),
    "nothing": ("", ["mine.yaml: world: "]),
    "twice": ("world: {kind: probe, task: bandit}\nseed: 1\nseed: 2\n", ["mine.yaml:3", "seed"]),
    "key": (
        "world: {kind: probe, task: bandit}\nalgo: {kind: ppo, learning_rat: 1}\n",
        ["mine.yaml:2", "learning_rate"],
    ),
    "algorithm": ("world: {kind: probe, task: bandit}\nalgo: {kind: a3c}\n", ["mine.yaml:2: algo: ", "'a3c'"]),
    "world": ("world: {kind: prob, task: bandit}\n", ["mine.yaml:1", "probe"]),
    "value": ("world: {kind: probe, task: bandit}\nseed: no\n", ["mine.yaml:2: seed: ", "'no'"]),
    "script": (
        "world: {kind: probe, task: bandit}\npolicies: {main: {kind: scripted, script: bset}}\n",
        ["policies.main.script: probe/bandit ", "'bset'", "'best'"],
    ),
    "include": (
        "includes: [../../../etc/passwd]\nworld: {kind: probe, task: bandit}\n",
        ["mine.yaml:1: includes: ", "'../../../etc/passwd'"],
    ),
    "name": ("name: ../../evil\nworld: {kind: probe, task: bandit}\n", ["mine.yaml:1", "name"]),
    "frozen": (
        "world: {kind: probe, task: leaver}\npolicies: {main: {kind: learning}, old: {kind: frozen, path: nope}}\n"
        "teams: {leaves: old}\n",
        ["nope: ", "checkpoints/"],
    ),
    "id": ("world: {kind: gymnasium, id: NoSuchThing-v0}\n", ["NoSuchThing"]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_one_sentence_with_its_place(case, capsys, in_an_empty_folder):
    text, parts = FILES[case]
    Path("mine.yaml").write_text(text)
    said = complain(["train", "mine.yaml", "--timesteps", "32", *SMALL], capsys)
    assert_one_sentence(said)
    for part in parts:
        assert part in said
    assert [path.name for path in in_an_empty_folder.iterdir()] == ["mine.yaml"]


def trained(capsys) -> Path:
    words = ["train", "probe_bandit", "--timesteps", "64", "--out", "run", "--models", "models"]
    assert main([*words, "--checkpoint-every", "32", *SMALL]) == 0
    capsys.readouterr()
    return Path("run")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_run_in_the_same_folder_is_refused_and_nothing_is_overwritten(capsys):
    before = contents(trained(capsys))
    said = complain(["train", "probe_bandit", "--timesteps", "64", "--out", "run", *SMALL], capsys)
    assert_one_sentence(said)
    assert "slipstream: run: " in said
    assert "slipstream resume run" in said
    assert contents(Path("run")) == before


def spoil_bits(path: Path) -> None:
    data = bytearray((path / "arrays.safetensors").read_bytes())
    data[len(data) // 2] ^= 4
    (path / "arrays.safetensors").write_bytes(data)


def truncate(path: Path) -> None:
    data = (path / "arrays.safetensors").read_bytes()
    (path / "arrays.safetensors").write_bytes(data[: len(data) // 2])


def spoil_record(path: Path) -> None:
    (path / "meta.json").write_text((path / "meta.json").read_text().replace("bandit", "bandid", 1))


def lose_arrays(path: Path) -> None:
    (path / "arrays.safetensors").unlink()


@pytest.mark.parametrize("spoil", [spoil_bits, truncate, spoil_record, lose_arrays])
def test_a_damaged_model_is_refused(spoil, capsys):
    trained(capsys)
    (model,) = Path("models").iterdir()
    spoil(model)
    before = contents(model)
    said = complain(["eval", str(model), "--episodes", "2"], capsys)
    assert_one_sentence(said)
    assert model.name in said
    assert contents(model) == before


def test_a_run_whose_checkpoints_are_all_damaged_cannot_be_resumed_and_keeps_its_files(capsys):
    run = trained(capsys)
    for path in (run / "checkpoints").iterdir():
        truncate(path)
    rows = (run / "metrics.jsonl").read_bytes()
    said = complain(["resume", "run", "--timesteps", "128"], capsys)
    assert_one_sentence(said)
    assert all(f"{path}/arrays.safetensors: " in said for path in (run / "checkpoints").iterdir())
    assert (run / "metrics.jsonl").read_bytes() == rows


def test_foreign_files_are_never_taken_for_checkpoints(capsys):
    Path("model.pt").write_bytes(b"PK\x03\x04 not ours")
    said = complain(["eval", "model.pt"], capsys)
    assert all(part in said for part in ("model.pt: ", "arrays.safetensors", "meta.json"))
    Path("keras").mkdir()
    Path("keras/saved_model.pb").write_bytes(b"x")
    assert_one_sentence(complain(["eval", "keras"], capsys))
    # A whole checkpoint of ours that holds no run.
    checkpoint.save(Path("checkpoint_1"), checkpoint.Checkpoint({"x": np.zeros(3)}, {"kind": "other"}))
    said = complain(["eval", "checkpoint_1"], capsys)
    assert all(part in said for part in ("checkpoint_1: ", "scenario"))


def test_a_model_whose_run_is_gone_cannot_be_resumed(capsys):
    shutil.rmtree(trained(capsys))
    (model,) = Path("models").iterdir()
    assert_one_sentence(complain(["resume", str(model)], capsys))


def test_a_policy_of_another_world_is_refused_naming_both(capsys):
    trained(capsys)
    said = complain(["eval", "run", "--scenario", "probe_corridor", "--episodes", "2"], capsys)
    assert_one_sentence(said)
    assert "probe/bandit" in said
    assert "probe/corridor" in said


def test_a_folder_that_cannot_be_written_is_one_sentence(capsys):
    Path("file").write_text("x")
    said = complain(["train", "probe_bandit", "--timesteps", "32", "--out", "file/run", *SMALL], capsys)
    assert_one_sentence(said)
    said = complain(["train", "probe_bandit", "--timesteps", "32", "--runs", "file", *SMALL], capsys)
    assert_one_sentence(said)
    assert Path("file").read_text() == "x"


def test_models_that_cannot_be_written_are_one_sentence_and_the_run_stays(capsys):
    Path("file").write_text("x")
    words = ["train", "probe_bandit", "--timesteps", "32", "--out", "run", "--models", "file", *SMALL]
    assert main(words) == 1
    told = capsys.readouterr()
    assert_one_sentence(told.err)
    assert "the model" in told.err
    assert "file" in told.out.split("100%")[1]  # why, as it happened
    assert main(["resume", "run", "--models", "models"]) == 0


def test_debug_shows_the_traceback():
    with pytest.raises(SlipstreamError):
        main(["train", "head_no", "--debug"])


def test_a_scenario_edited_into_nonsense_is_explained_on_resume(capsys):
    run = trained(capsys)
    text = (run / "scenario.yaml").read_text()
    (run / "scenario.yaml").write_text(text.replace("gamma: 0.9\n", "gamma: 9\n"))
    said = complain(["resume", "run"], capsys)
    assert_one_sentence(said)
    assert "gamma" in said
    config = json.loads((run / "config.json").read_text())
    assert config["algo"]["gamma"] == 0.9
