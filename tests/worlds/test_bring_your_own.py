"""What docs/bring-your-own.md shows works."""

import re
from pathlib import Path

import pytest

from slipstream.config.load import load

PAGE = (Path(__file__).parents[2] / "docs" / "bring-your-own.md").read_text()


def test_the_pages_scenarios_load(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    kinds = []
    for i, block in enumerate(blocks):
        (tmp_path / f"{i}.yaml").write_text(block)
        kinds.append(load(tmp_path / f"{i}.yaml").world.kind)
    assert kinds == ["gymnasium", "pettingzoo"]


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_pages_python_runs(block):
    exec(compile(block, "bring-your-own.md", "exec"), {})
