"""Every command, scenario and snippet in the pages works as printed.

The blocks of a page are run in order in one empty folder, as a reader would: `bash` and `console` line by line through
the same entry point as the command, `python` by exec, `yaml` written to the file its first line names, as is `python`
where it names one. Budgets are cut down by flags appended here (SMALLER); everything else is what the page says.
"""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

import pytest
from doc_blocks import PAGES, ROOT, blocks, commands, exchanges

from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.config.sweep import load_sweep
from slipstream.judging import judge
from slipstream.worlds.airspace import drawing as airspace
from slipstream.worlds.drmario import drawing as drmario
from slipstream.worlds.racing import drawing as racing

# Appended to the page's own words; the last value of a flag counts.
SMALLER = {
    "train": ["--timesteps", "2048", "--evaluate.evaluation-duration", "2"],
    "resume": ["--timesteps", "8192"],
    "eval": ["--episodes", "2"],
    "arena": ["--max-games", "4"],
    "shift": ["--episodes", "1"],
    "replay": ["--seconds", "1"],
    "sweep": ["--dry-run"],  # trials are processes; tests/cli/test_sweep_verb.py runs them
    "federate": ["--dry-run"],  # replicas are processes; tests/cli/test_federate.py runs them
    "bench": ["--worlds", "1", "8", "--threads", "1", "--seconds", "0.01"],
}
RUNNABLE = {"bash", "console", "python", "yaml"}
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))


@pytest.fixture(autouse=True)
def small_endings(monkeypatch):
    """A run ends by judging 100 episodes and drawing one; here it judges two, and only the first run draws."""
    judged, drawn = judge.judge, []

    def judge_two(scenario, saved, episodes, *more, **options):
        return judged(scenario, saved, min(episodes, 2), *more, **options)

    def draw_once(draw, spec, frames, backdrop, path, title):
        if path.name not in drawn:
            drawn.append(path.name)
            draw(spec, frames, backdrop, path, title)

    monkeypatch.setattr(judge, "judge", judge_two)
    for drawing in (airspace, drmario, racing):
        monkeypatch.setattr(drawing, "picture", partial(draw_once, drawing.picture))


def pages_with_code():
    return [page for page in PAGES if any(block.kind in RUNNABLE for block in blocks(page))]


@pytest.mark.parametrize("page", pages_with_code(), ids=lambda page: page.name)
def test_the_page_works_as_printed(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.reason is not None or block.kind not in RUNNABLE:
            continue
        where = f"{page.name}:{block.line}"
        if block.kind == "bash":
            for command in commands(block.text):
                code, said = run(command, capsys)
                assert code == 0, f"{where}: {command}\n{said}"
        elif block.kind == "console":
            for command, answer in exchanges(block.text):
                code, said = run(command, capsys, shrink=False)
                assert code == 2, f"{where}: {command} was to be refused\n{said}"
                missing = [line for line in answer if squeeze(line) not in squeeze(said)]
                assert not missing, f"{where}: {command} does not say {missing} but\n{said}"
        elif block.kind == "python":
            if file := re.match(r"# (\w+\.py)\n", block.text):
                Path(file[1]).write_text(block.text)
            exec(compile(block.text, where, "exec"), names)
        else:
            write_scenario(block.text, tmp_path, where)


def test_every_command_of_ours_beside_another_projects_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [line for line in (ROOT / "docs" / "coming-from.md").read_text().splitlines() if line.startswith("|")]
    ours = [command for row in rows for command in re.findall(r"`(slipstream [^`]+)`", row)]
    assert len(ours) > 15
    for command in ours:
        code, said = run(command, capsys)
        assert code == 0, f"{command}\n{said}"


def run(command: str, capsys, shrink: bool = True) -> tuple[int, str]:
    """Exit code and everything printed of one line of a page."""
    command, _, target = command.partition(" > ")
    program, *words = shlex.split(command)
    if program == "make":
        unknown = [word for word in words if "=" not in word and word not in TARGETS]
        return (2, f"the Makefile has no target {unknown}") if unknown else (0, "")
    assert program == "slipstream", f"{command}: neither slipstream nor make; mark the block <!-- not run: why -->"
    wants_help = {"-h", "--help"} & set(words)
    capsys.readouterr()
    try:
        code = main(words + (smaller(words) if shrink and words and not wants_help else []))
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    said = capsys.readouterr()
    if target:
        Path(target).write_text(said.out)
    return code, said.out + said.err


def smaller(words: list[str]) -> list[str]:
    """Flags that cut down the budget of a command, and how much is learned from what it collects."""
    named = {word.lower() for word in words}
    from_replay = named & {"sac", "td3", "dqn", "cql", "convoy_lock_td3"}
    updates = ["--algo.training-intensity", "0.02"] if from_replay else ["--algo.epochs", "1"]
    if from_replay and named & {"ppo", "appo", "impala"}:  # no flag is of both
        updates = []
    workers = ["--workers", "2"] if words[0] == "bench" and "--workers" in words else []
    return SMALLER.get(words[0], []) + (updates if words[0] == "train" else []) + workers


def squeeze(text: str) -> str:
    """Without the frames and line breaks of boxes, which depend on the width of the terminal."""
    return " ".join(re.sub(r"[│─╭╮╰╯]", " ", text).split())


def write_scenario(text: str, folder, where: str) -> None:
    name = re.match(r"# ([\w-]+\.yaml)\n", text)
    assert name is not None, f"{where}: the first line of a yaml block names its file: # my_task.yaml"
    path = folder / name[1]
    path.write_text(text)
    load_sweep(path) if "\nparameters:" in text else load(path)
