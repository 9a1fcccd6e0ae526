"""What docs/bring-your-own.md shows works."""

import re
from pathlib import Path

import pytest

from slipstream.config.load import load
from slipstream.run.session import train
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

PAGE = (Path(__file__).parents[2] / "docs" / "bring-your-own.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_pages_scenarios_load(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    kinds = []
    for i, block in enumerate(blocks):
        (tmp_path / f"{i}.yaml").write_text(block)
        kinds.append(load(tmp_path / f"{i}.yaml").world.kind)
    assert kinds == ["gymnasium"] * 2 + ["pettingzoo"] * 3 + ["gymnasium"]


def write_files(folder, name):
    """Write the page's files of this name."""
    for block in re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL):
        if file := re.match(rf"# ({name}\.\w+)\n", block):
            (folder / file[1]).write_text(block)


def test_the_pages_scout_and_runner_learn_what_is_right(tmp_path, monkeypatch, capsys):
    write_files(tmp_path, "scouting")
    monkeypatch.chdir(tmp_path)
    train(load("scouting.yaml"), out=tmp_path / "runs" / "scouting")
    (block,) = (block for block in PYTHON if '"runs/scouting"' in block)
    exec(compile(block, "bring-your-own.md", "exec"), {})
    assert capsys.readouterr().out.strip().splitlines()[-1] == "[0 1 2] [0 1 2 3]"


def test_the_pages_wrappers_are_put_around_its_environment(tmp_path, monkeypatch):
    write_files(tmp_path, "corridor")
    monkeypatch.chdir(tmp_path)
    env = make_worlds(load("corridor.yaml").world, 1, EnvOptions())
    assert env.spec.obs_size == 2  # the place and the time
    env.reset()
    for _ in range(5):
        env.actions[...] = 1
        env.step()
        assert env.rewards[0, 0] == pytest.approx(-0.1)
    assert env.terminated[0, 0]


@pytest.mark.parametrize("block", [block for block in PYTHON if '"runs/' not in block])  # tests/docs runs the others
def test_the_pages_python_runs(block):
    exec(compile(block, "bring-your-own.md", "exec"), {})
