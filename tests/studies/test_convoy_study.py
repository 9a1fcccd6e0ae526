"""The convoy study in miniature: a design that separates its factors, one cell of each part, the page."""

from itertools import combinations

import numpy as np
import pytest
from convoy import PUBLISHED, SCREEN_STEPS, WAYS, cells_of, changes_of, design, effects, run_cell, write_page

from slipstream.config.load import load


def test_no_factor_is_mixed_up_with_another_or_with_a_pair_of_others():
    columns = 2 * np.array(design()).T - 1  # [factors, runs] of -1 and 1
    assert columns.shape == (len(PUBLISHED), 16)
    assert not columns.sum(1).any()
    for one in range(len(PUBLISHED)):
        for other, third in combinations(range(len(PUBLISHED)), 2):
            alone = columns[one] @ columns[other] if one != other else 0
            assert alone == 0
            assert one in (other, third) or columns[one] @ (columns[other] * columns[third]) == 0


def test_all_factors_as_published_are_the_published_settings_and_none_is_the_scenario():
    now = load("convoy_lock_td3", {"federated.enabled": False, "timesteps": SCREEN_STEPS, "seed": 7})
    cell = {"part": "screen", "seed": 7}
    assert load("convoy_lock_td3", {**changes_of({**cell, "way": "111111"}), "learner_threads": "auto"}) == now
    old = load("convoy_lock_td3", changes_of({**cell, "way": "000000"}))
    published = load("convoy_lock_td3_published")
    for name in (
        "learning_rate",
        "adam_eps",
        "gamma",
        "training_intensity",
        "learning_starts",
        "normalize_observation",
    ):
        assert getattr(old.algo, name) == getattr(published.algo, name), name
    assert old.algo.gamma_per_second is None
    assert old.algo.replay.prioritised == published.algo.replay.prioritised
    assert old.algo.replay.demonstrations is None
    assert old.algo.replay.n_step == 1
    assert old.world == published.world


def test_a_known_effect_is_found_and_only_where_it_is():
    cells = [{"way": "".join(map(str, row)), "success": 0.1 + 0.5 * row[5]} for row in design() for _ in range(3)]
    found = {effect.name: effect for effect in effects(cells)}
    assert found["demonstrations"].now - found["demonstrations"].published == pytest.approx(0.5)
    assert found["demonstrations"].low > 0.4
    for name in set(PUBLISHED) - {"demonstrations"}:
        assert found[name].now == pytest.approx(found[name].published)
        assert found[name].low <= 0 <= found[name].high


def test_a_cell_of_each_part_and_the_page(tmp_path):
    chosen = [{"part": "learned", "way": way, "seed": 1} for way in WAYS if way in ("td3", "ppo")] + cells_of(
        ["screen"], [1]
    )[-1:]
    cells = [{**cell, **run_cell(cell, budget=4096, episodes=2)} for cell in chosen]
    assert all(cell["steps"] >= 4096 for cell in cells)
    write_page(cells, tmp_path / "convoy.json")
    page = (tmp_path / "convoy.md").read_text()
    assert "| td3 | 1 |" in page
    assert "| squeezer |" in page
