"""The examples of docs/extending.md, applied to a copy of the package as a reader would, and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT, Block, blocks

from slipstream import _core

PAGE = ROOT / "docs" / "extending.md"
BLOCKS = list(blocks(PAGE))
# An editable install finds the package by a hook that comes before PYTHONPATH: the copy must win.
SITE = """
import sys

sys.meta_path = [finder for finder in sys.meta_path if "slipstream" not in type(finder).__module__]
"""
WORK = "work"  # where a reader types the commands: no folder of the package, nor on Python's path
_NAMED = re.compile(r"(?:#|//) ([\w/.]+\.\w+)\n")  # a block that begins with a path is a file, or a change of one


def change(text: str, hunk: str) -> str:
    """A file with one change made, at the only place with the lines that stay or go; … is the rest of a line."""
    lines = text.splitlines()
    wanted = [(line[:1], line[1:]) for line in hunk.splitlines()]
    old = [own for sign, own in wanted if sign != "+"]
    if not old:  # nothing says where: at the end
        return text + "".join(f"{own}\n" for _, own in wanted)
    ends = range(len(old), len(lines) + 1)
    places = [end - len(old) for end in ends if all(map(_matches, lines[end - len(old) : end], old))]
    assert len(places) == 1, f"in {len(places)} places of the file:\n{hunk}"
    found, new = iter(lines[places[0] :]), []
    for sign, own in wanted:
        kept = own if sign == "+" else next(found)
        new += [] if sign == "-" else [kept]
    return "\n".join([*lines[: places[0]], *new, *lines[places[0] + len(old) :], ""])


def _matches(line: str, own: str) -> bool:
    return line.startswith(own[:-1]) if own.endswith("…") else line == own


def changed_package(root: Path, changes: list[Block]) -> Path:
    """A copy of the package and of the core's sources, with every change of a page."""
    hidden = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("slipstream", "core", "tools"):
        shutil.copytree(ROOT / name, root / name, ignore=hidden)
    library = Path(_core.__file__)
    (root / "slipstream" / library.name).symlink_to(library)
    (root / "sitecustomize.py").write_text(SITE)
    (root / WORK).mkdir()
    for block in changes:
        if block.kind == "bash":
            for line in (line for line in block.text.splitlines() if line.startswith(("cp ", "sed "))):
                subprocess.run(line, shell=True, check=True, cwd=root)
        elif named := _NAMED.match(block.text):
            path = root / ("" if "/" in named[1] else WORK) / named[1]
            rest = block.text[named.end() :]
            if block.kind == "diff":
                path.write_text(change(path.read_text(), rest))
            else:
                assert not path.exists(), f"line {block.line}: {named[1]} is there already"
                path.write_text(rest)
    return root


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return changed_package(tmp_path_factory.mktemp("tree"), BLOCKS)


# Runs the commands of standard input one after the other, those that end in & in processes of their own.
DRIVER = """
import shlex, subprocess, sys
from slipstream.cli.main import main

beside = []
for line in sys.stdin.read().splitlines():
    words = shlex.split(line)[1:]
    if words[-1] == "&":
        beside.append(subprocess.Popen([sys.executable, "-P", "-m", "slipstream", *words[:-1]]))
    elif code := main(words):
        sys.exit(f"{line}: exit code {code}")
if any(process.wait(60) for process in beside):
    sys.exit("a process beside ours has failed")
"""


def python(tree: Path, program: str, given: str = "") -> str:
    """What a program prints that sees the changed package; the current folder is not on its path."""
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        words, input=given, env=env, cwd=tree / WORK, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def printed(tree):
    """What all commands of the page print."""
    text = "".join(block.text for block in BLOCKS if block.kind == "bash" and "core" not in str(block.reason))
    return python(tree, DRIVER, "".join(line + "\n" for line in text.splitlines() if line.startswith("slipstream ")))


def rows(tree: Path, run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (tree / WORK / run / "metrics.jsonl").read_text().splitlines()]


def test_the_stop_rule_ends_a_run(tree, printed):
    log = (tree / WORK / "floor" / "training_log.txt").read_text()
    assert "is below 1000" in log
    assert len(rows(tree, "floor")) == 1


def test_the_metric_is_in_both_files(tree, printed):
    assert all(row["env/truncated_share"] == 0.0 for row in rows(tree, "ends"))
    assert "truncated_share" in (tree / WORK / "ends" / "training_progress.csv").read_text().splitlines()[0]


def test_the_metric_with_a_memory_goes_on_in_a_resumed_run(tree, printed):
    best = [row["env/best_return"] for row in rows(tree, "ends") if "env/best_return" in row]
    assert best == sorted(best)
    assert rows(tree, "ends")[-1]["timesteps_total"] == 6144
    meta = tree / WORK / "ends" / "checkpoints" / "checkpoint_6144" / "meta.json"
    assert json.loads(meta.read_text())["meta"]["best_episode"] == best[-1]
    code = (
        "from slipstream.data.checkpoint import Checkpoint; from slipstream.run.parts.best_episode import BestEpisode; "
        "part = BestEpisode(None); part.load(Checkpoint({}, {})); print(part.rows()); "
        "part.load(Checkpoint({}, {'best_episode': 3.5})); print(part.rows())"
    )
    assert python(tree, code) == "{}\n{'env/best_return': 3.5}\n"


def test_the_algorithm_learns(tree, printed):
    assert json.loads((tree / WORK / "awr" / "config.json").read_text())["algo"]["kind"] == "awr"
    assert any("train/return_baseline" in row for row in rows(tree, "awr"))


def test_the_network_learns_from_images(tree, printed):
    for run, patch in (("dots", 2), ("dots_dqn", 4)):
        algo = json.loads((tree / WORK / run / "config.json").read_text())["algo"]
        assert algo["network"] == {"kind": "pooled", "patch": patch}
        assert rows(tree, run)[-1]["eval/return_mean"] > 0.8  # guessing earns 0.5
    assert (tree / WORK / "dots.onnx").exists()


def test_the_network_refuses_a_world_without_an_image_of_its_size(tree):
    code = (
        "from slipstream.config.algos.learner import PooledNetwork; from slipstream.nets.pooled import POOLED; "
        "from slipstream.spec import ActionSpec, ObsBlock, WorldSpec\n"
        "spec = WorldSpec('w', ('a',), ('a',), (ObsBlock('i', 'uint8', (1, 8, 8), 0, 255),), ActionSpec(True, 2))\n"
        "print(POOLED.layout(PooledNetwork(patch=8), spec))\n"
        "try:\n    POOLED.layout(PooledNetwork(patch=9), spec)\nexcept Exception as error:\n    print(error)\n"
    )
    said = python(tree, code)
    assert "{'patch': 8}" in said
    assert "at least 9 pixels each way, and w " in said


def test_the_aggregation_rule_merges(tree):
    (code,) = (block.text for block in BLOCKS if "merge_by" in block.text and block.kind == "python")
    python(tree, code)
    refused = 'clients["b"]["weight"][0] = np.nan\ntry:\n    merge_by("midrange", clients)\nexcept Exception as bad:\n'
    assert "client b: weight" in python(tree, f"{code}\n{refused}    print(bad)")


def test_clients_of_the_transport_go_on_from_the_same_weights(tree, printed):
    rounds = [[row["fed/round"] for row in rows(tree, run) if "fed/round" in row] for run in ("client_0", "client_1")]
    assert rounds[0] == rounds[1] != []
    given = json.dumps([str(tree / WORK / "federations" / "shared" / "main"), rounds[0][-1]])
    assert python(tree, MEETING, given) == "True True\n"


# Where a resumed run goes on, by a folder and a round that is over; and that every aggregate is worked out of updates
# that all went on from the one before.
MEETING = """
import json, sys
from pathlib import Path
from slipstream.algos.registry import rules_for
from slipstream.federate.aggregate import MergeSettings, aggregate
from slipstream.federate.mailbox import Mailbox
from slipstream.federate.rounds import Federation, RoundLimits

folder, over = json.loads(sys.stdin.read())
bases = []


def merge(updates, base):
    bases.append(None if base is None else base.hash)
    assert {update.client for update in updates} == {"0", "1"}
    assert all(update.base == (bases[-1] or "") for update in updates)
    return aggregate(MergeSettings("mean"), rules_for(updates[0].arrays), updates, base)


model = Mailbox(Federation(Path(folder), RoundLimits(2, 2), merge, "")).catch_up("")
print(model.round > over, len(set(bases)) == model.round - 1 and model.base not in bases)
"""


def test_the_verb_and_the_exporter_do_their_work(tree, printed):
    assert "ends: 6,144\nawr: 4,096" in printed
    assert "slipstream_env_truncated_share 0.0" in (tree / WORK / "prom" / "ends.prom").read_text()


def test_the_views_answer_has_every_run(tree, printed):
    code = (
        "from pathlib import Path; from slipstream.view.answers import ANSWERS, Query; "
        "from slipstream.view.catalogue import Catalogue; "
        "print(ANSWERS['/api/sizes'](Catalogue([Path('.')]), Query({}, lambda name: [])))"
    )
    assert "'name': 'dots'" in python(tree, code)


def test_the_worlds_field_reaches_the_core(tree):
    code = "import runpy, sys; sys.argv = ['fields.py']; runpy.run_path('../tools/fields.py', run_name='__main__')"
    python(tree, code)
    assert "double arrival_drift_rad = 3.2;" in (tree / "core" / "airspace" / "fields.hpp").read_text()


def test_the_examples_pass_the_linter(tree):
    ruff = Path(sys.executable).with_name("ruff")
    words = [ruff, "check", "--no-cache", "--config", ROOT / "pyproject.toml", "slipstream"]
    done = subprocess.run(words, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_views_script_can_be_read(tree):
    subprocess.run(["node", "--check", str(tree / "slipstream" / "view" / "static" / "sizes.js")], check=True)
