"""slipstream dataset: record, info, merge and import at work, and what they say to mistakes."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from learning import python

from slipstream.cli.main import main
from slipstream.data.arrays_file import content_hash
from slipstream.data.checkpoint import Checkpoint, save
from slipstream.data.dataset_file import read_dataset, save_dataset
from slipstream.data.transitions import to_fields
from slipstream.run import progress
from slipstream.run.record import record


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bits(path: str) -> str:
    return content_hash(to_fields(read_dataset(Path(path)).rows))


def recorded(*words: str) -> Path:
    """A small dataset by the command."""
    assert main(["dataset", "record", *words]) == 0
    return Path(words[words.index("-o") + 1])


def test_record_says_what_it_takes_before_it_starts_and_where_it_is_afterwards(capsys):
    recorded("probe_leaver", "-o", "datasets/leaver", "--transitions", "2_000", "--seed", "3", "--num-worlds", "4")
    first, *_, said, look = capsys.readouterr().out.splitlines()
    assert first.startswith("2,000 transitions of 37 bytes take 74 kB of memory and as much on disk; 4 worlds, seed 3")
    assert said == "dataset: datasets/leaver (2,000 transitions, 74 kB)"
    assert look == "look:    slipstream dataset info datasets/leaver"
    expected = record("probe_leaver", 2000, seed=3, num_worlds=4)
    assert bits("datasets/leaver") == content_hash(to_fields(expected.rows))


def test_flags_reach_the_recording(capsys):
    run = ["train", "probe_target", "--timesteps", "64", "--out", "run", "--collect.num-worlds", "4"]
    assert main([*run, "--collect.rollout-length", "8", "--algo.minibatch-size", "8", "--algo.epochs", "1"]) == 0
    recorded("run", "-o", "noisy", "--transitions", "200", "--noise")
    recorded("run", "-o", "greedy", "--transitions", "200", "--greedy", "--gamma", "0.5", "--team", "main")
    recorded("run", "-o", "script", "--transitions", "200", "--policy", "best")
    recorded("run", "-o", "plain", "--transitions", "200")
    assert bits("noisy") == bits("plain") != bits("greedy")
    told = {name: read_dataset(Path(name)).record for name in ("noisy", "greedy", "script")}
    assert [(r.parts[0].policy, r.parts[0].noise, r.gamma) for r in told.values()] == [
        ("learned", True, 0.9),
        ("learned", False, 0.5),
        ("best", False, 0.9),
    ]


def test_a_signal_writes_what_there_is(capsys, monkeypatch):
    class Impatient(progress.Lines):
        def advance(self, done: int, text: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(progress, "best_display", Impatient)
    recorded("probe_leaver", "-o", "part", "--transitions", "1000000", "--num-worlds", "4", "--seed", "1")
    rows = len(read_dataset(Path("part")).rows)
    assert f"Ctrl+C: wrote the {rows:,} of 1,000,000 transitions there were" in capsys.readouterr().out
    assert 1024 <= rows < 3 * 1024
    assert bits("part") == content_hash(to_fields(record("probe_leaver", rows, seed=1, num_worlds=4).rows))


def test_info_says_everything_once_for_people_and_once_for_programs(capsys):
    recorded("probe_bandit", "-o", "bandit", "--transitions", "500")
    capsys.readouterr()
    assert main(["dataset", "info", "bandit"]) == 0
    shown = capsys.readouterr().out
    for words in ("bandit: 500 transitions of probe/bandit, 26.5 kB (53 bytes each)", "500 rows  random, probe_bandit"):
        assert words in shown
    for words in ("return        mean", "terminated", "gamma 0.9", "best_masked", "arm_3"):
        assert words in shown
    assert main(["dataset", "info", "bandit", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["world"], told["rows"], told["bytes"]) == ("probe/bandit", 500, 26_500)
    assert told["parts"][0]["policy"] == "random"
    assert sum(told["choices"].values()) == pytest.approx(1.0)
    assert told["terminated"] == pytest.approx(1 / 8, abs=0.03)
    assert set(told["returns"]) == {"episodes", "mean", "min", "max"}


def test_info_of_many_features_is_short_and_names_how_parts_were_taken(capsys):
    recorded("head_on", "-o", "mvp", "--policy", "mvp", "--transitions", "900")
    recorded("head_on", "-o", "random", "--transitions", "300")
    assert main(["dataset", "merge", "mvp", "random", "-o", "both", "--rows", "500", "300", "--seed", "4"]) == 0
    capsys.readouterr()
    assert main(["dataset", "info", "both"]) == 0
    shown = capsys.readouterr().out
    assert "500 rows  mvp, head_on, seed 42, 3 worlds, of 900: drawn with seed 4" in shown
    assert "300 rows  random, head_on, seed 42, 1 worlds, all of 300" in shown
    assert "and 24 more, which --json shows" in shown
    assert "shaping 1" in shown
    assert "in 10 bins from lowest to highest" in shown
    assert len(shown.splitlines()) < 40


def test_merge_says_the_order_of_the_rows(capsys):
    recorded("probe_bandit", "-o", "a", "--transitions", "100")
    recorded("probe_bandit", "-o", "b", "--transitions", "80", "--policy", "best")
    capsys.readouterr()
    assert main(["dataset", "merge", "a", "b", "-o", "ab", "--rows", "70", "30"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("rows in this order, the first of each:\n")
    assert shown.index("70  random") < shown.index("30  best")
    merged, a, b = (read_dataset(Path(name)).rows.reward for name in ("ab", "a", "b"))
    np.testing.assert_array_equal(merged, np.concatenate([a[:70], b[:30]]))


def test_a_mistake_is_one_sentence_and_writes_nothing(capsys, in_an_empty_folder):
    save_dataset(Path("have"), record("probe_bandit", 50))
    save_dataset(Path("target"), record("probe_target", 50))
    save_dataset(Path("gamma"), record("probe_bandit", 50, gamma=0.5))
    save(Path("saved"), Checkpoint({"policy.w": np.zeros(2)}, {"kind": "model"}))
    Path("file").write_text("x")
    before = sorted(in_an_empty_folder.rglob("*"))
    out = ["-o", "new"]
    for words, parts in (
        (["record", "head_no", *out], ["'head_no'", "'head_on'"]),
        (["record", "runs/nowhere", *out], ["runs/nowhere: "]),
        (["record", "have", *out], ["have: ", "scenario"]),
        (["record", "head_on", "-o", "have"], ["have: "]),
        (["record", "head_on", "-o", "file/below"], ["file/below: ", "/file "]),
        (["record", "head_on", "-o", "a b"], ["dataset 'a b' ", "1 to 64"]),
        (
            ["record", "head_on", "--policy", "noob", *out],
            ["--policy: airspace ", "'noob'", "random, learned, noop, mvp", "'noop'"],
        ),
        (["record", "head_on", "--policy", "learned", *out], ["--policy learned: head_on "]),
        (["record", "head_on", "--transitions", "0", *out], ["--transitions 0: "]),
        (["record", "head_on", "--transitions", "900_000_000_000", *out], ["new: 303,300.00 GB ", "GB free"]),
        (["record", "pendulum", "--policy", "noop", *out], ["--policy: Pendulum-v1 ", "'noop'"]),
        (["info", "nowhere"], ["nowhere: ", "meta.json"]),
        (["info", "file"], ["file: ", "meta.json"]),
        (["info", "saved"], ["saved: ", " model"]),
        (["merge", "have", "target", *out], ["have ", "probe/bandit ", "target ", "probe/target "]),
        (["merge", "have", "gamma", *out], ["gamma 0.9 ", "0.5 ", "--gamma"]),
        (["merge", "have", "nowhere", *out], ["nowhere: ", "meta.json"]),
        (["merge", "have", "have", "--rows", "1", *out], ["--rows: 1 ", "2 datasets"]),
        (["merge", "have", "--rows", "51", *out], ["--rows 51: have ", "1 to 50"]),
        (["merge", "have", "--seed", "1", *out], ["--seed 1: ", "--rows"]),
        (["merge", "have", "--rows", "1", "--seed", "-1", *out], ["--seed -1"]),
        (["merge", "have", "-o", "target"], ["target: "]),
        (["import", "d4rl:x", "--scenario", "pendulum", *out], ["d4rl:x: ", "minari:ID"]),
        (["import", "minari:", "--scenario", "pendulum", *out], ["minari:: ", "minari:ID"]),
        (["import", "minari:x-v0", "--scenario", "pendulun", *out], ["'pendulun'", "'pendulum'"]),
        (["import", "minari:x-v0", "--scenario", "pendulum", "-o", "have"], ["have: "]),
    ):
        assert main(["dataset", *words]) == 2, words
        said = capsys.readouterr().err
        assert len(said.strip().splitlines()) == 1, said
        for part in parts:
            assert part in said, words
    assert sorted(in_an_empty_folder.rglob("*")) == before


def test_without_a_verb_they_are_listed_and_a_misspelt_one_is_answered(capsys):
    assert main(["dataset"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in ("record", "info", "merge", "import"))
    assert main(["dataset", "recrod"]) == 2
    assert "'record'" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["record head_on", "record x -o y --noise --greedy", "merge -o x"])
def test_a_wrong_flag_is_explained(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["dataset", *words.split()])
    assert stop.value.code == 2
    assert "usage: slipstream dataset" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["record", "info", "merge", "import"])
def test_every_verb_of_it_has_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["dataset", verb, "--help"])
    assert stop.value.code == 0
    assert f"slipstream dataset {verb}" in capsys.readouterr().out


LIGHT = """
import sys
from slipstream.cli.main import main
code = main(sys.argv[1:])
print([name for name in ("torch", "gymnasium", "minari") if name in sys.modules], code)
"""


def test_looking_at_a_dataset_loads_no_torch(in_an_empty_folder):
    save_dataset(Path("have"), record("probe_bandit", 50))
    done = python("-c", LIGHT, "dataset", "info", "have", cwd=in_an_empty_folder)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr
