"""A world in a package of its own, as docs/adding-a-world.md prints it: installed, listed, trained, with its verb."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "adding-a-world.md"


def install(site: Path) -> dict[str, str]:
    """Let pip install the page's package into a folder; returns the environment to use it in."""
    project = site.with_name(f"{site.name}_project")
    for block in blocks(PAGE):
        if file := re.match(r"# ([\w/]+\.(py|yaml|toml))\n", block.text):
            path = project / file[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    words = [*pip, "--no-build-isolation", "--target", site, project]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def slipstream(env: dict[str, str], cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipstream", *words]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return tmp_path_factory.mktemp("lake") / "site"


@pytest.fixture(scope="module")
def env(site):
    return install(site)


@pytest.fixture
def changed(env, site, tmp_path):
    """A copy of the installed package, to be changed, and the environment to use it in."""
    copy = shutil.copytree(site, tmp_path / "site")
    return copy, {**env, "PYTHONPATH": env["PYTHONPATH"].replace(str(site), str(copy))}


def test_a_world_of_another_package_is_trained_by_its_scenarios_name(env, tmp_path):
    words = ("train", "lake_small", "--out", "run", "--evaluate.evaluation-interval", "8", "--no-gpu")
    done = slipstream(env, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval/return_mean"] > 0.8  # drifting about finds the buoy now and then; rowing to it earns 0.9


def test_its_verb_and_scenario_are_listed_and_its_verb_runs(env, tmp_path):
    assert "  lake-depths  print how far" in slipstream(env, tmp_path, "--help").stdout
    listed = slipstream(env, tmp_path, "scenarios").stdout
    assert "lake:" in listed
    assert "lake_small" in listed
    done = slipstream(env, tmp_path, "lake-depths", "lake_small")
    assert (done.returncode, done.stdout.split()) == (0, ["2", "1", "0", "1", "2"])


def test_its_fields_are_checked_like_any_others(env, tmp_path):
    done = slipstream(env, tmp_path, "train", "lake_small", "--world.length", "1")
    assert done.returncode == 2
    assert "world.length" in done.stderr
    assert "3" in done.stderr


def test_its_worlds_keep_the_contract(env, tmp_path):
    done = slipstream(env, tmp_path, "check-world", "lake_small")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_that_cannot_be_loaded_is_left_out_with_a_warning(changed, tmp_path):
    package, broken = changed
    (package / "lake" / "__init__.py").write_text("import nothing_of_this_name\n")
    done = slipstream(broken, tmp_path, "scenarios")
    assert done.returncode == 0
    assert "lake_small" not in done.stdout
    assert "head_on" in done.stdout
    assert "'lake'" in done.stderr
    assert "nothing_of_this_name" in done.stderr


def test_a_package_cannot_take_the_name_of_another_world(changed, tmp_path):
    package, twice = changed
    entries = package / "lake-1.0.dist-info" / "entry_points.txt"
    entries.write_text(entries.read_text().replace("lake =", "airspace ="))
    done = slipstream(twice, tmp_path, "scenarios", "head_on")
    assert done.returncode == 0
    assert "'airspace'" in done.stderr
