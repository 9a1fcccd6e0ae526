"""Scenarios and runs that an older version wrote load under the new names."""

import pytest

from slipstream.config.load import dump, from_plain, load, to_plain
from slipstream.errors import ScenarioError


@pytest.mark.parametrize(
    ("coef", "is_on", "kappa"), [(0, False, 1.0), (0.0, False, 1.0), (0.5, True, 0.5), (1, True, 1.0)]
)
def test_shaping_coef_is_kappa_and_a_switch(coef, is_on, kappa, tmp_path):
    old = to_plain(load("head_on"))
    del old["shaping"]
    old["collect"]["shaping_coef"] = coef
    file = tmp_path / "old.yaml"
    file.write_text(
        f"includes: [presets/probe.yaml]\nworld: {{kind: probe, task: corridor}}\ncollect: {{shaping_coef: {coef}}}\n"
    )
    for scenario in (from_plain(old), load(file), load("head_on", {"collect.shaping_coef": coef})):
        assert (scenario.shaping.use_potential_shaping, scenario.shaping.kappa) == (is_on, kappa)
        assert "shaping_coef" not in dump(scenario)


def test_an_old_value_that_is_wrong_is_refused_under_the_new_name():
    with pytest.raises(ScenarioError, match=r"shaping\.kappa: .*-1.* 0"):
        load("head_on", {"collect.shaping_coef": -1})
