"""The rules that end training early, as pure functions, and once in a run."""

import pytest
from learning import TINY, scenario_of

from slipstream.config import stopping
from slipstream.config.load import load, override
from slipstream.config.stopping import (
    EVALUATED_RULES,
    RULE_FIELDS,
    RULES,
    BandRule,
    PlateauRule,
    RunPosition,
    Stop,
    StopKind,
    StoppingConfig,
    StopRule,
    StopState,
    after_evaluation,
    most_important,
    reason_to_stop,
)
from slipstream.data import checkpoint
from slipstream.errors import ScenarioError
from slipstream.run.certify import Attempt, read_ledger
from slipstream.run.metrics import read_rows
from slipstream.run.parts import certificate
from slipstream.run.session import resume, train
from slipstream.stats.sequential import Certificate, least_trials


def feed(config: StoppingConfig, evaluations: list[tuple[int, float, str | None]]) -> list[str | None]:
    """Reasons after each evaluation of (steps, mean return, episodes as text: '+' clean, '-' not)."""
    scenario = override(load("probe_constant"), {"timesteps": 10**9}).model_copy(update={"stop": config})
    state, reasons = StopState(), []
    for steps, mean, episodes in evaluations:
        clean = None if episodes is None else [e == "+" for e in episodes]
        state = after_evaluation(config, state, steps, clean, {"return": mean})
        stop = reason_to_stop(scenario, RunPosition(steps, state=state, mean_return=mean))
        assert stop is None or stop.kind is StopKind.RULE
        reasons.append(None if stop is None else stop.sentence)
    return reasons


def test_no_rule_never_stops():
    assert feed(StoppingConfig(), [(1, 1e9, "++++")]) == [None]


def test_the_streak_counts_episodes_across_evaluations_and_starts_again_after_an_unclean_one():
    config = StoppingConfig(zero_conflict_streak=6)
    assert feed(config, [(1, 0.0, "++++"), (2, 0.0, "++")]) == [None, "6 consecutive clean evaluation episodes"]
    assert feed(config, [(1, 0.0, "++++"), (2, 0.0, "+-+++"), (3, 0.0, "++")]) == [None, None, None]
    assert feed(config, [(1, 0.0, "-+++++"), (2, 0.0, "+")])[-1] is not None


def test_a_streak_that_broke_within_an_evaluation_does_not_count():
    # Six in a row, but the seventh was not clean: the streak is what stands at the end.
    assert feed(StoppingConfig(zero_conflict_streak=6), [(1, 0.0, "++++++-")]) == [None]


def test_clean_evaluations_count_evaluations_not_episodes():
    config = StoppingConfig(clean_evaluations=3)
    clean = [(1, 0.0, "++++++"), (2, 0.0, "+"), (3, 0.0, "++")]
    assert feed(config, clean) == [None, None, "3 consecutive evaluations with clean episodes only"]
    assert feed(config, [*clean[:2], (3, 0.0, "+++-"), *clean[:2]]) == [None] * 5
    assert feed(config, [(1, 0.0, None)] * 4) == [None] * 4


def test_the_target_return_must_be_reached():
    config = StoppingConfig(target_return=5.0)
    assert feed(config, [(1, 4.999, None)]) == [None]
    assert "5.00 reached the target 5" in str(feed(config, [(1, 5.0, None)])[0])


def plateau(rule, evaluations):
    """After which of these evaluations, (figure, share that is clean), the rule is met."""
    config, met = StoppingConfig(plateau=rule), []
    scenario = override(load("probe_constant"), {"timesteps": 10**9}).model_copy(update={"stop": config})
    state = StopState()
    for number, (value, clean) in enumerate(evaluations):
        state = after_evaluation(config, state, number, None, {"extra_distance_nm": value, "clean": clean})
        if reason_to_stop(scenario, RunPosition(number, state=state, mean_return=0.0)) is not None:
            met.append(number)
    return met


SHORTER = {"figure": "extra_distance_nm", "direction": "down", "evaluations": 3, "improvement": 0.1}


def test_a_figure_that_no_longer_gets_better_stops():
    # 4.0 is the last improvement; evaluations 2 to 4 bring less than 0.1 more.
    rule = PlateauRule(**SHORTER)
    assert plateau(rule, [(5.0, 0), (4.0, 0), (3.95, 0), (4.2, 0), (3.91, 0)]) == [4]
    assert plateau(rule, [(5.0, 0), (4.0, 0), (3.95, 0), (4.2, 0), (3.89, 0)]) == []
    up = PlateauRule(figure="extra_distance_nm", evaluations=1)
    assert plateau(up, [(5.0, 0), (6.0, 0), (6.0, 0)]) == [2]


def test_small_improvements_count_once_they_have_added_up():
    # Each is 0.06 better than the one before: every second one is more than 0.1 better than the last that counted.
    assert plateau(PlateauRule(**SHORTER), [(5.0 - 0.06 * k, 0) for k in range(20)]) == []
    assert plateau(PlateauRule(**SHORTER), [(5.0 - 0.03 * k, 0) for k in range(20)])[0] == 3


def test_a_plateau_counts_only_while_the_other_figure_holds():
    rule = PlateauRule(**SHORTER, provided="clean", at_least=0.95)
    flat = [(4.0, 0.95), (4.0, 1.0), (4.0, 1.0), (4.0, 1.0)]
    assert plateau(rule, flat) == [3]
    assert plateau(rule, [*flat[:3], (4.0, 0.9), *flat[:3]]) == []
    # What was better while it did not hold is no bar.
    assert plateau(rule, [(1.0, 0.5), *flat]) == [4]
    assert plateau(rule, [(float("nan"), 1.0), *flat]) == [4]


def test_the_steps_to_the_first_streak_are_remembered_whatever_comes_after():
    state = StopState()
    for steps, clean in (
        (10, [True] * 15 + [False]),
        (20, [True] * 12),
        (30, [True] * 8),
        (40, [False]),
        (50, [True] * 30),
    ):
        state = after_evaluation(StoppingConfig(), state, steps, clean, {})
    assert state.first_streak == 30
    assert stopping.stop_rows(state)["stop/first_streak_steps"] == 30
    assert "stop/first_streak_steps" not in stopping.stop_rows(StopState())


BANDS = StoppingConfig(bands=BandRule(band_steps=100, min_bands=3, good_bands=2, clean_episodes=4))


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


def test_every_field_of_stop_has_its_rule_and_those_that_look_at_evaluations_say_so():
    fields = {rule.field for rule in RULES} - {None}
    assert fields == set(StoppingConfig.model_fields) - {"bad_batches"}  # which gives up, and is no end
    assert set(EVALUATED_RULES) <= set(RULE_FIELDS)


def test_a_rule_that_needs_no_evaluation_is_asked_after_every_update(monkeypatch):
    monkeypatch.setattr(stopping, "RULES", (StopRule(StopKind.RULE, lambda scenario, now: "met"),))
    assert reason_to_stop(load("probe_constant"), RunPosition(1)) == Stop(StopKind.RULE, "met")


def test_rules_of_evaluations_wait_for_one_and_the_first_rule_met_counts():
    scenario = override(load("probe_constant"), {"timesteps": 100, "stop.target_return": 5.0, "stop.episodes": 3})

    def kind(**now):
        stop = reason_to_stop(scenario, RunPosition(**now))
        return None if stop is None else stop.kind

    assert kind(steps=99) is None
    assert kind(steps=99, episodes=3) is StopKind.EPISODES
    assert kind(steps=100, episodes=3, pause_at=50) is StopKind.BUDGET
    assert kind(steps=100, mean_return=5.0) is StopKind.RULE
    assert kind(steps=50, pause_at=50) is StopKind.PAUSED


def test_of_several_reasons_the_one_that_keeps_a_run_from_being_done_counts():
    stops = [Stop(kind, kind.value) for kind in StopKind]
    parked, signal, budget = Stop(StopKind.PARKED, ""), Stop(StopKind.SIGNAL, ""), Stop(StopKind.BUDGET, "")
    assert most_important(budget, signal) == signal
    assert most_important(None, signal, parked) == parked
    assert most_important(*reversed(stops)).kind is StopKind.GIVEN_UP
    assert most_important(None, None) is None
    assert [stop.kind for stop in stops if stop.kind.finishes] == [
        StopKind.RULE,
        StopKind.BUDGET,
        StopKind.EPISODES,
        StopKind.WALL_TIME,
    ]


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


QUIET_TRAFFIC = {
    **TINY,
    "timesteps": 100_000,
    "algo.minibatch_size": 8,
    "algo.learning_rate": 0.0,
    "world.time_left": False,  # with a clock, this seed's untrained policy turns a little
}


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


def test_a_run_stops_at_a_plateau(tmp_path):
    rule = {"figure": "extra_distance_nm", "direction": "down", "evaluations": 2, "improvement": 1000.0}
    changes = {**QUIET_TRAFFIC, "stop.plateau": rule}
    result = train(scenario_of("parallel", changes), out=tmp_path / "run", models=tmp_path / "models")
    assert result.reason.startswith("extra_distance_nm has not improved")
    assert result.counters.updates == 3 * 2  # the first evaluation is the bar
    assert checkpoint.load(result.checkpoint).meta["stop"]["plateau_since"] == 2


def clean_at(result):
    """Updates after which at least half of the evaluation's episodes were clean."""
    rows = read_rows(result.run / "metrics.jsonl")
    return [row["updates_total"] for row in rows if row.get("eval/clean_fraction", 0) >= 0.5]


def test_a_run_stops_with_a_certificate_and_keeps_it_in_its_ledger(tmp_path):
    asked = {"at_least": 0.5, "alpha": 0.2, "max_episodes": 200}
    changes = {**QUIET_TRAFFIC, "stop.certificate": asked}
    result = train(scenario_of("parallel", changes), out=tmp_path / "run", models=tmp_path / "models")
    attempts = read_ledger(tmp_path / "run")
    assert [one.verdict for one in attempts] == ["fail"] * (len(attempts) - 1) + ["pass"]
    last = attempts[-1]
    assert last.by == "training"
    assert last.trials >= least_trials(0.5, last.spends)
    assert last.steps == result.counters.steps
    assert result.counters.updates == clean_at(result)[-1]
    assert result.reason.startswith("certified: clean in more than 0.5")


def test_a_certificate_that_was_refused_is_not_asked_for_again_at_once(tmp_path, monkeypatch):
    asked = {"at_least": 0.5, "alpha": 0.2, "max_episodes": 40, "retry_updates": 5}
    tried = []

    def refused(folder, scenario, stand, teams, question, candidate, told=None):
        tried.append(candidate.steps // 32)
        attempt = Attempt(1, "clean", 0.5, 0.2, 0.1, candidate.steps, verdict="fail")
        return attempt, Certificate("fail", 0, 9, 0.5, 0.1, 0.0, 9.0)

    monkeypatch.setattr(certificate, "certify", refused)
    changes = {**QUIET_TRAFFIC, "stop.certificate": asked, "timesteps": 32 * 18}
    result = train(scenario_of("parallel", changes), out=tmp_path / "run", models=tmp_path / "models")
    able = clean_at(result)
    expected = [able[0]]
    while later := [update for update in able if update >= expected[-1] + 5]:
        expected.append(later[0])
    assert tried == expected
    assert 1 < len(tried) < len(able)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop.plateau": {"figure": "extra_distance"}}, ["stop.plateau.figure", "extra_distance_nm"]),
        ({"stop.plateau": {"provided": "success"}}, ["stop.plateau.provided", "clean"]),
        ({"stop.certificate": {"figure": "conflicts"}}, ["stop.certificate.figure", "clean"]),
        ({"stop.certificate": {"at_least": 0.99, "max_episodes": 10}}, ["stop.certificate.max_episodes"]),
        ({"checkpoint.best_by": ["clean", "-detour"]}, ["checkpoint.best_by.1", "extra_distance_nm"]),
    ],
)
def test_figures_that_evaluations_do_not_have_are_refused(tmp_path, changes, words):
    with pytest.raises(ScenarioError) as refused:
        train(scenario_of("parallel", {**QUIET_TRAFFIC, **changes}), out=tmp_path / "run", models=tmp_path / "models")
    assert all(word in str(refused.value) for word in words)


def test_a_world_that_knows_no_clean_episodes_reports_no_streak_of_them(tmp_path):
    result = train(scenario_of("probe_constant", TINY), out=tmp_path / "run", models=tmp_path / "models")
    keys = {key for row in read_rows(result.run / "metrics.jsonl") for key in row}
    assert not {key for key in keys if key.startswith("stop/")}
    columns = (result.run / "training_progress.csv").read_text().splitlines()[0].split(",")
    assert not {"zero_conflict_streak", "evaluation_clean_fraction"} & set(columns)


def test_a_run_begun_with_the_column_keeps_it(tmp_path):
    scenario = scenario_of("probe_constant", TINY)
    begun = train(scenario, out=tmp_path / "run", models=tmp_path / "models", pause_at=64).run
    file = begun / "training_progress.csv"
    rows = [line.split(",") for line in file.read_text().splitlines()]
    old = [[*row[:5], "zero_conflict_streak" if i == 0 else "0", *row[5:]] for i, row in enumerate(rows)]
    file.write_text("".join(",".join(row) + "\n" for row in old))
    resume(begun, models=tmp_path / "models")
    found = list(read_rows(file))
    assert {row["zero_conflict_streak"] for row in found} == {"0", ""}
    assert found[-1]["timesteps_total"] == str(scenario.timesteps)
