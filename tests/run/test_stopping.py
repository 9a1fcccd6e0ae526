"""The rules that end training early, as pure functions, and once in a run."""

from learning import TINY, scenario_of

from slipstream.config.scenario import BandRule, StopConfig
from slipstream.run.loop import train
from slipstream.run.metrics import read_rows
from slipstream.run.stopping import StopState, after_evaluation


def feed(config: StopConfig, evaluations: list[tuple[int, float, str | None]]) -> list[str | None]:
    """Reasons after each evaluation of (steps, mean return, episodes as text: '+' clean, '-' not)."""
    state, reasons = StopState(), []
    for steps, mean, episodes in evaluations:
        clean = None if episodes is None else [e == "+" for e in episodes]
        state, reason = after_evaluation(config, state, steps, mean, clean)
        reasons.append(reason)
    return reasons


def test_no_rule_never_stops():
    assert feed(StopConfig(), [(1, 1e9, "++++")]) == [None]


def test_the_streak_counts_episodes_across_evaluations_and_starts_again_after_an_unclean_one():
    config = StopConfig(zero_conflict_streak=6)
    assert feed(config, [(1, 0.0, "++++"), (2, 0.0, "++")]) == [None, "6 consecutive clean evaluation episodes"]
    assert feed(config, [(1, 0.0, "++++"), (2, 0.0, "+-+++"), (3, 0.0, "++")]) == [None, None, None]
    assert feed(config, [(1, 0.0, "-+++++"), (2, 0.0, "+")])[-1] is not None


def test_a_streak_that_broke_within_an_evaluation_does_not_count():
    # Six in a row, but the seventh was not clean: the streak is what stands at the end.
    assert feed(StopConfig(zero_conflict_streak=6), [(1, 0.0, "++++++-")]) == [None]


def test_clean_evaluations_count_evaluations_not_episodes():
    config = StopConfig(clean_evaluations=3)
    clean = [(1, 0.0, "++++++"), (2, 0.0, "+"), (3, 0.0, "++")]
    assert feed(config, clean) == [None, None, "3 consecutive evaluations with clean episodes only"]
    assert feed(config, [*clean[:2], (3, 0.0, "+++-"), *clean[:2]]) == [None] * 5
    assert feed(config, [(1, 0.0, None)] * 4) == [None] * 4


def test_the_target_return_must_be_reached():
    config = StopConfig(target_return=5.0)
    assert feed(config, [(1, 4.999, None)]) == [None]
    assert "5.00 reached the target 5" in str(feed(config, [(1, 5.0, None)])[0])


BANDS = StopConfig(bands=BandRule(band_steps=100, min_bands=3, good_bands=2, clean_episodes=4))


def test_two_good_bands_after_the_least_number_stop():
    good = [(50 * i, 0.0, "++") for i in range(1, 7)]  # three bands of two evaluations, all clean
    assert feed(BANDS, good) == [None] * 5 + ["3 consecutive good bands of 100 steps"]


def test_bands_need_their_least_number_even_if_good():
    assert feed(BANDS, [(50 * i, 0.0, "++") for i in range(1, 5)]) == [None] * 4


def test_one_unclean_episode_spoils_its_band_only():
    bad_first = [(50, 0.0, "+-"), (100, 0.0, "++++")] + [(50 * i, 0.0, "++") for i in range(3, 7)]
    assert feed(BANDS, bad_first)[-1] == "2 consecutive good bands of 100 steps"
    bad_last = [(50 * i, 0.0, "++") for i in range(1, 6)] + [(300, 0.0, "+-")]
    assert feed(BANDS, bad_last)[-1] is None


def test_a_band_with_too_few_episodes_is_not_good():
    assert feed(BANDS, [(100 * i, 0.0, "+++") for i in range(1, 9)]) == [None] * 8


def test_bands_begin_where_the_last_one_ended():
    # Evaluations every 80 steps: bands close at 160, 320, 480, not at multiples of 100.
    reasons = feed(BANDS, [(80 * i, 0.0, "++") for i in range(1, 7)])
    assert [r is not None for r in reasons] == [False] * 5 + [True]


# --- in a run ---


def test_a_run_stops_at_its_target_and_says_why(tmp_path):
    scenario = scenario_of("probe_constant", {**TINY, "stop.target_return": 8.0})  # every episode returns 8
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert result.counters.updates == 2  # the first evaluation
    assert "reached the target" in result.reason
    assert not result.interrupted


def test_a_run_stops_after_its_wall_time(tmp_path):
    scenario = scenario_of("probe_constant", {**TINY, "timesteps": 10**9, "stop.wall_time_s": 0.2})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert result.reason == "0.2 s of wall time are over"
    assert result.model is not None


QUIET_TRAFFIC = {**TINY, "timesteps": 100_000, "algo.minibatch_size": 8, "algo.learning_rate": 0.0}


def test_a_run_stops_when_its_evaluations_are_clean(tmp_path):
    # parallel is a control: doing nothing is right, and the mean action of an untrained policy is next to nothing.
    scenario = scenario_of("parallel", {**QUIET_TRAFFIC, "stop.zero_conflict_streak": 6})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert result.reason == f"{result.stop.streak} consecutive clean evaluation episodes"
    rows = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    streaks = [row["stop/zero_conflict_streak"] for row in rows]
    assert streaks[-1] >= 6 > max(streaks[:-1])
    assert sum(row.get("eval/episodes", 0) for row in rows) >= 6


def test_a_run_stops_after_good_bands(tmp_path):
    bands = {"band_steps": 64, "min_bands": 2, "good_bands": 2, "clean_episodes": 3}
    changes = {**QUIET_TRAFFIC, "stop.zero_conflict_streak": None, "stop.bands": bands}
    result = train(scenario_of("parallel", changes), out=tmp_path / "run", models=tmp_path / "models")
    assert result.reason == "2 consecutive good bands of 64 steps"
    assert result.stop.bands * 64 == result.counters.steps
