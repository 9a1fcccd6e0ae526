"""Every verb at work, in this process, on small budgets."""

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from slipstream.cli import run as run_verbs
from slipstream.cli.main import GROUPS, main
from slipstream.cli.scenarios import listing
from slipstream.config.packaged import list_scenarios
from slipstream.data import checkpoint
from slipstream.run import progress
from slipstream.run.metrics import read_rows

SMALL = ["--collect.num-worlds", "4", "--collect.rollout-length", "8", "--algo.minibatch-size", "8"]
SMALL += ["--algo.epochs", "1", "--learner-threads", "1"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A folder with a trained run, for verbs that only read."""
    folder = tmp_path_factory.mktemp("kept")
    words = ["train", "probe_bandit", "--timesteps", "256", "--out", str(folder / "run")]
    assert main([*words, "--models", str(folder / "models"), *SMALL]) == 0
    return folder


def test_train_ends_with_a_table_and_what_to_type_next(capsys, in_an_empty_folder):
    assert main(["train", "probe_leaver", "--timesteps", "128", "--seed", "7", *SMALL]) == 0
    shown = capsys.readouterr().out
    (run,) = Path("runs").iterdir()
    (model,) = Path("models").iterdir()
    assert run.name.startswith("probe_leaver_ppo_")
    for words in ("learned", "best", f"run:    {run}", f"model:  {model}", f"slipstream eval {model}"):
        assert words in shown
    assert json.loads((run / "config.json").read_text())["seed"] == 7
    rows = list(read_rows(run / "metrics.jsonl"))
    assert [row["updates_total"] for row in rows] == [1, 2, 3, 4, 4]  # the last row is the last evaluation's
    assert "eval/return_mean" in rows[-1]
    for line in (line.strip() for line in shown.splitlines() if line.startswith("  slipstream ")):
        assert line.split()[1] in {verb.name for group in GROUPS.values() for verb in group}


def test_head_on_draws_its_tracks(capsys):
    assert main(["train", "head_on", "--timesteps", "64", *SMALL, "--stop.zero-conflict-streak", "None"]) == 0
    shown = capsys.readouterr().out
    for row in ("learned", "noop", "mvp"):
        assert row in shown
    (run,) = Path("runs").iterdir()
    assert f"tracks: {run / 'tracks.png'}" in shown
    assert (run / "tracks.png").read_bytes().startswith(b"\x89PNG")
    assert main(["report", str(run)]) == 0
    page = Path("report.html").read_text()
    assert "Final figures" in page  # with the scripts, as the command ended
    assert "mvp" in page


def test_flags_reach_the_scenario():
    words = ["train", "probe_corridor", "--timesteps", "6.4e1", "--checkpoint-every", "32", "--no-gpu"]
    words += ["--num-workers", "2", "--log-trajectories", "--out", "here", "--algo.learning-rate", "5e-4"]
    assert main([*words, "--evaluate.evaluation-interval", "1", "--evaluate.evaluation-duration", "2", *SMALL]) == 0
    config = json.loads(Path("here/config.json").read_text())
    assert config["timesteps"] == 64
    assert config["checkpoint"]["checkpoint_every"] == 32
    assert config["device"] == "cpu"
    assert config["collect"]["world_threads"] == 2
    assert config["algo"]["learning_rate"] == 5e-4
    assert config["evaluate"]["evaluation_interval"] == 1
    assert sorted(path.name for path in Path("here/trajectories").iterdir())[-1] == "traj_ep_000002_0001.csv"
    assert {path.name for path in Path("here/checkpoints").iterdir()} >= {"checkpoint_32", "checkpoint_64"}


def test_a_flag_beats_the_environment_which_beats_the_file(monkeypatch):
    for name, value in {"WORKERS": "3", "PREFETCH": "4", "SEED_STRIDE": "1000"}.items():
        monkeypatch.setenv(f"COLLECT_{name}", value)
    words = ["train", "probe_corridor", "--timesteps", "32", "--out", "here", "--collect.mode", "thread", *SMALL]
    assert main([*words, "--collect-workers", "2", "--collect.prefetch", "5"]) == 0
    collect = json.loads(Path("here/config.json").read_text())["collect"]
    assert (collect["workers"], collect["prefetch"], collect["seed_stride"]) == (2, 5, 1000)


def test_a_variable_that_is_no_number_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("COLLECT_WORKERS", "many")
    assert main(["train", "probe_corridor"]) == 2
    assert "COLLECT_WORKERS=many: " in capsys.readouterr().err


def test_a_preset_lays_the_published_values_under_the_flags():
    words = ["train", "head_on", "--preset", "published", "--no-gpu", "--timesteps", "32", "--out", "here"]
    assert main([*words, "--stop.zero-conflict-streak", "None", *SMALL]) == 0
    config = json.loads(Path("here/config.json").read_text())
    assert config["preset"] == "published_cpu"
    assert (config["algo"]["hidden"], config["algo"]["clip_coef"]) == ([256, 256], 0.1)
    assert config["algo"]["epochs"] == 1  # the flag


def test_several_scenarios_end_in_a_comparison(capsys):
    assert main(["train", "probe_constant", "probe_leaver", "--algo", "ppo", "--timesteps", "64", *SMALL]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("comparison") :]
    assert "probe_constant" in table
    assert "probe_leaver" in table
    assert len(list(Path("runs").iterdir())) == 2


def test_an_interrupted_run_is_the_last_of_several(capsys, monkeypatch):
    import os
    import signal

    class Impatient(progress.Lines):
        def advance(self, done: int, text: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(progress, "best_display", Impatient)
    assert main(["train", "probe_constant", "probe_leaver", "probe_delayed", "--timesteps", "640", *SMALL]) == 0
    assert len(list(Path("runs").iterdir())) == 1
    assert "continue with: slipstream resume" in capsys.readouterr().out


def test_a_file_is_trained_by_its_path():
    Path("mine.yaml").write_text("world: {kind: probe, task: constant}\ntimesteps: 32\n")
    assert main(["train", "mine.yaml", "--out", "here", *SMALL]) == 0
    assert json.loads(Path("here/config.json").read_text())["name"] == "mine"


def test_resume_continues_with_more_steps(capsys, kept):
    shutil.copytree(kept / "run", "run")
    assert main(["resume", "run", "--timesteps", "320"]) == 0
    assert "stopped after 320 steps" in capsys.readouterr().out
    rows = list(read_rows(Path("run/metrics.jsonl")))
    learned = [row["timesteps_total"] for row in rows if "train/policy_loss" in row]
    assert learned == [32 * i for i in range(1, 11)]
    ends = [row["timesteps_total"] for row in rows if "train/policy_loss" not in row]
    assert ends == [256]  # where it ended first; the evaluation at 320 was due anyway
    assert checkpoint.load_latest(Path("run/checkpoints")).path.name == "checkpoint_320"


def test_eval_as_json_holds_every_figure_with_its_interval(capsys, kept):
    for subject in (kept / "run", next((kept / "models").iterdir()), kept / "run/checkpoints/checkpoint_256"):
        assert main(["eval", str(subject), "--episodes", "7", "--json", "--seed", "3"]) == 0
        judged = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert judged["scenario"] == "probe_bandit"
        assert [row["policy"] for row in judged["rows"]] == ["learned", "best"]
        for row in judged["rows"]:
            assert row["episodes"] == 7
            assert set(row["figures"]) >= {"return", "length", "masked_choices"}
            assert set(row["figures"]["return"]) == {"estimate", "low", "high"}


def test_eval_as_json_has_null_for_what_is_undefined(capsys):
    assert main(["eval", "time_trial_oval", "--episodes", "2", "--json"]) == 0
    shown = capsys.readouterr().out
    assert "null" in shown
    json.loads(shown, parse_constant=pytest.fail)


def test_eval_of_a_scenario_shows_its_scripts(capsys):
    assert main(["eval", "probe_bandit", "--episodes", "5"]) == 0
    shown = capsys.readouterr().out
    assert "best" in shown
    assert "learned" not in shown


def test_eval_on_another_scenario_of_the_same_shape(capsys, kept):
    Path("longer.yaml").write_text("world: {kind: probe, task: bandit, horizon: 20}\n")
    words = ["eval", str(kept / "run"), "--scenario", "longer.yaml", "--episodes", "3", "--json"]
    assert main(words) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["scenario"] == "longer"
    assert judged["rows"][0]["figures"]["length"]["estimate"] == 20


def test_eval_draws_a_picture_where_the_world_has_one(kept, capsys):
    assert main(["eval", "head_on", "--episodes", "2", "--png", "tracks.png"]) == 0
    assert Path("tracks.png").read_bytes().startswith(b"\x89PNG")
    assert main(["eval", "probe_bandit", "--episodes", "2", "--png", "none.png"]) == 2
    assert "--png: probe_bandit " in capsys.readouterr().err


def test_scenarios_lists_all_and_describes_one(capsys):
    assert main(["scenarios"]) == 0
    listed = capsys.readouterr().out
    for words in ("airspace:", "head_on", "probe:", "foreign:"):
        assert words in listed
    assert main(["scenarios", "head_on"]) == 0
    described = capsys.readouterr().out
    for words in ("aircraft:", "learning_rate:", "# action:", "noop", "# observation"):
        assert words in described


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_list_of_scenarios_wraps_between_words_and_sets_names_apart(width):
    lines = listing(list_scenarios(), width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for info in list_scenarios():
        assert f"{info.name} {' '.join(info.description.split())}" in text
    piped = listing(list_scenarios(), None)
    assert sum(line.startswith("  ") for line in piped) == len(list_scenarios())  # a line each, for grep


@pytest.mark.parametrize("verb", [verb.name for group in GROUPS.values() for verb in group])
def test_help_fits_80_columns_before_the_fields_of_scenarios(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main([verb, "--help"])
    shown = capsys.readouterr().out.split("fields of ")[0]
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_bench_measures_each_width_and_thread_count(capsys):
    words = ["bench", "probe_constant", "--worlds", "1", "8", "--threads", "1", "2", "--seconds", "0.02"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["worlds"], row["threads"]) for row in rows] == [(1, 1), (8, 1), (1, 2), (8, 2)]
    for row in rows:
        assert row["steps_per_s"] > 0
        assert row["frames_per_s"] == row["steps_per_s"]  # a step of this world is a frame
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["worlds"])
    assert main(words) == 0
    table = " ".join(capsys.readouterr().out.split())
    for head in ("steps/s", "frames/s", "speed-up", "efficiency"):
        assert head in table


def test_bench_counts_the_frames_of_decisions_that_last(capsys):
    assert main(["bench", "drmario_level_0", "--worlds", "2", "--threads", "1", "--seconds", "0.02", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["frames_per_s"] > row["steps_per_s"]


def test_bench_collects_in_this_process_and_with_workers(capsys):
    words = ["bench", "probe_constant", "--worlds", "2", "--threads", "1", "--workers", "1", "--seconds", "0.02"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    kinds = [(row["measured"], row["worlds"], row["workers"]) for row in rows]
    assert kinds == [("stepping", 2, 0), ("collecting", 2, 0), ("collecting", 2, 1)]
    assert [row["beside_one"] for row in rows[:2]] == [1.0, 1.0]
    assert all(row["speedup"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ("probe_digit", r"conv \(small\), chosen .*image \(uint8\[8, 8\], by name\)"),
        ("probe_target", r"mlp, chosen .*obs"),
    ],
)
def test_check_world_says_which_network_a_learner_would_have(capsys, scenario, said):
    assert main(["check-world", scenario]) == 0
    assert re.search(rf"network of main: {said}", capsys.readouterr().out)


def test_check_world_says_that_the_contract_is_kept(capsys):
    assert main(["check-world", "probe_leaver"]) == 0
    assert "keeps the contract" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [verb.name for group in GROUPS.values() for verb in group])
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main([verb, "--help"]))
    assert stop.value.code == 0
    assert f"slipstream {verb}" in capsys.readouterr().out


def test_the_general_help_names_every_verb(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    for group, verbs in GROUPS.items():
        assert f"{group}:" in shown
        assert all(f"  {verb.name} " in shown for verb in verbs)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slipstream 0.")


def test_help_of_a_scenario_shows_its_own_values(capsys):
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main(["train", "probe_corridor", "--help"]))
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for words in ("--algo.learning-rate", "0.003", "--checkpoint-every", "--world.horizon", "16384"):
        assert words in shown


def test_all_stands_for_scenarios_that_exist():
    from slipstream.config.packaged import find_packaged

    assert all(find_packaged(name).is_file() for name in run_verbs.PUBLISHED)
