"""What a metric's values mean: which are better, which are shares, and of which a running mean means something."""

import pytest

from slipstream.view.metric_kinds import better, is_share, is_smoothable


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("eval/return_mean", "higher"),
        ("env/return_min", "higher"),
        ("eval/clean_fraction", "higher"),
        ("eval/conflicts_mean", "lower"),
        ("eval/viruses_left_mean", "lower"),
        ("perf/steps_per_s", "higher"),
        ("train/entropy", None),
        ("train/policy_loss", None),
        ("env/length_mean", None),  # long is good for a pole, and bad in a race
        ("eval/of_my_own_mean", None),
    ],
)
def test_which_values_are_better_is_known_of_some_metrics(key, known):
    assert better(key) == known


@pytest.mark.parametrize(
    ("key", "kind", "share"),
    [
        ("eval/clean_fraction", "airspace", True),
        ("eval/reached_fraction_mean", "airspace", True),
        ("eval/success_mean", "drmario", True),
        ("eval/success_mean", "gymnasium", False),  # nobody has said what it is there
        ("perf/time_world_frac", "", True),
        ("replay/fill", "", True),
        ("eval/return_mean", "airspace", False),
        ("train/explained_variance", "airspace", False),
    ],
)
def test_a_share_is_known_by_its_name_or_by_its_world(key, kind, share):
    assert is_share(key, kind) is share


@pytest.mark.parametrize(
    ("key", "smoothable"),
    [
        *(("env/return_mean", True), ("train/main/entropy", True), ("perf/steps_per_s", True)),
        *(("eval/return_mean", False), ("stop/zero_conflict_streak", False), ("curriculum/phase", False)),
        ("timesteps_total", False),
    ],
)
def test_evaluations_counts_and_phases_are_shown_as_they_were_measured(key, smoothable):
    assert is_smoothable(key) is smoothable
