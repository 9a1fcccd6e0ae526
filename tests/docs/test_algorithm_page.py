"""The algorithm that docs/adding-an-algorithm.md prints, in a copy of the package: it learns and is resumed."""

from __future__ import annotations

import re

import pytest
from doc_blocks import ROOT, blocks
from test_extending import DRIVER, changed_package, python, rows

PAGE = ROOT / "docs" / "adding-an-algorithm.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
SOLVED = 4.2  # choosing at random returns 2.6 on average, the best choices 4.8


def test_the_pages_algorithm_learns_and_is_resumed(tmp_path):
    tree = changed_package(tmp_path, list(blocks(PAGE)))
    lines = [
        line for block in blocks(PAGE) if block.kind == "bash" for line in block.text.splitlines() if "a2c" in line
    ]
    python(tree, DRIVER, "\n".join(lines))
    found = rows(tree, "a2c")
    (solved,) = (
        row["eval/return_mean"] for row in found if row["timesteps_total"] == 8192 and "eval/return_mean" in row
    )
    assert solved > SOLVED
    assert found[-1]["timesteps_total"] == 10240


@pytest.mark.parametrize(("learner", "lines"), [("PPO", 900), ("SAC", 850)])
def test_a_learner_is_read_in_four_files(learner, lines):
    begins, ends = rf"- \*\*{learner}\*\* \(under {lines} lines[^)]*\):", r"(?:\n- |Beneath them)"
    entry = re.search(rf"{begins}(.*?){ends}", ARCHITECTURE.read_text(), re.S)
    files = re.findall(r"`(slipstream/\S+\.py)`", entry[1])
    assert len(files) == 4
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) < lines
