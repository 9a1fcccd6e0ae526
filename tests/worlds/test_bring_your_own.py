"""What docs/bring-your-own.md shows works."""

import re
from pathlib import Path

import pytest

from slipstream.config.load import load
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

PAGE = (Path(__file__).parents[2] / "docs" / "bring-your-own.md").read_text()


def test_the_pages_scenarios_load(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    kinds = []
    for i, block in enumerate(blocks):
        (tmp_path / f"{i}.yaml").write_text(block)
        kinds.append(load(tmp_path / f"{i}.yaml").world.kind)
    assert kinds == ["gymnasium", "gymnasium", "pettingzoo", "gymnasium"]


def test_the_pages_wrappers_are_put_around_its_environment(tmp_path, monkeypatch):
    for block in re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL):
        if file := re.match(r"# (corridor\.\w+)\n", block):
            (tmp_path / file[1]).write_text(block)
    monkeypatch.chdir(tmp_path)
    env = make_worlds(load("corridor.yaml").world, 1, EnvOptions())
    assert env.spec.obs_size == 2  # the place and the time
    env.reset()
    for _ in range(5):
        env.actions[...] = 1
        env.step()
        assert env.rewards[0, 0] == pytest.approx(-0.1)
    assert env.terminated[0, 0]


PYTHON = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if '"runs/' not in block]


@pytest.mark.parametrize("block", PYTHON)  # tests/docs runs the one that needs a trained policy
def test_the_pages_python_runs(block):
    exec(compile(block, "bring-your-own.md", "exec"), {})
