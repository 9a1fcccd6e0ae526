"""`slipstream replay smoke`: workers and a service together report what they should, and what is missing is named."""

import math

import pytest

from slipstream.cli.main import main
from slipstream.cli.smoke import Expected, check_metrics


def test_workers_and_a_service_report_everything_that_is_expected(capsys):
    assert main(["replay", "smoke", "--seconds", "1", "--collect-workers", "2"]) == 0
    said = capsys.readouterr().out.splitlines()[1:]
    assert {line.split()[0] for line in said} >= {
        "collector/eps_per_min",
        "collector/latency_max_s",
        "collector/policy_lag_mean",
        "collector/worker_1/steps_per_s",
        "replay/fill",
        "replay/sample_insert_ratio",
        "replay/wait_sample_s",
        "replay/share/probe_target.42/main",
    }
    assert all(line.endswith("ok") for line in said)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([], "missing"),
        ([0.5, None], "not finite"),
        ([0.5, math.inf], "not finite"),
        ([0.5], "missing in 1 of 2 rows"),
        ([0.0, 0.0], "0, where above 0 and at most 1 is plausible"),
        ([2.0, 1.0], "1.5, where above 0 and at most 1 is plausible"),
        ([0.0, 1.0], ""),
    ],
)
def test_what_is_missing_or_not_plausible_is_named(values, problem):
    rows = [{"replay/fill": value} for value in values] + [{}] * (2 - len(values))
    (seen,) = check_metrics(rows, [Expected("replay/fill", 0.0, 1.0, above=True)])
    assert seen.problem == problem


def test_a_problem_is_printed_and_is_the_exit_code(monkeypatch, capsys):
    from slipstream.cli import smoke

    monkeypatch.setattr(smoke, "smoke", lambda seconds, workers: check_metrics([{}], [Expected("replay/fill", 0, 1)]))
    assert main(["replay", "smoke"]) == 1
    assert capsys.readouterr().err == "slipstream: replay/fill: missing\n"
