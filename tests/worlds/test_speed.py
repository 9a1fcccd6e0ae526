"""What speeds say together: ratios within one round, against one world and against one thread."""

import io

import pytest
from rich.console import Console

from slipstream.cli.bench import forms
from slipstream.cli.tables import show
from slipstream.worlds.speed import MeasuredSpeed, SpeedSetting, Taken, compare, take_turns


def rounds(*rates, frames=1):
    """A second each, at so many steps per second."""
    return [Taken(rate, rate * frames, 1.0, 1.0) for rate in rates]


def test_speed_up_is_over_one_world_and_efficiency_is_its_share_of_each_world():
    found = compare({SpeedSetting(1): rounds(100, 100, 100), SpeedSetting(4): rounds(300, 300, 300)}, agents=2)
    assert [(row.speedup, row.efficiency) for row in found] == [(1.0, 1.0), (3.0, 0.75)]
    assert (found[1].steps_per_s, found[1].agent_steps_per_s) == (300.0, 600.0)


def test_threads_and_workers_are_compared_with_as_many_worlds_on_one_thread():
    taken = {
        SpeedSetting(1): rounds(100),
        SpeedSetting(8): rounds(400),
        SpeedSetting(8, 2): rounds(600),
        SpeedSetting(8, 1, 4): rounds(800),
    }
    _, one, threads, workers = compare(taken, agents=1)
    assert (one.beside_one, one.per_processor) == (1.0, 1.0)
    assert (threads.beside_one, threads.per_processor) == (1.5, 0.75)
    assert (workers.beside_one, workers.per_processor, workers.workers) == (2.0, 0.5, 4)


def test_a_machine_that_is_slow_for_a_round_is_slow_for_all_and_changes_no_ratio():
    taken = {
        SpeedSetting(1): rounds(100, 10, 100),
        SpeedSetting(2): rounds(180, 18, 18),
    }  # the last stall falls on one of them
    assert compare(taken, agents=1)[1].speedup == pytest.approx(1.8)


def test_speeds_are_compared_by_frames_where_decisions_last():
    found = compare({SpeedSetting(1): rounds(100, frames=60), SpeedSetting(2): rounds(100, frames=90)}, agents=1)
    assert (found[1].frames_per_s, found[1].steps_per_s, found[1].speedup) == (9000.0, 100.0, 1.5)


def test_what_was_not_measured_is_not_said():
    (row,) = compare({SpeedSetting(8, 2): rounds(100)}, agents=1)
    assert (row.speedup, row.efficiency, row.beside_one, row.per_processor) == (None,) * 4


class Noted:
    """Notes when it was timed, and for how long."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def take(self, seconds):
        self.notes.append((self.name, seconds))
        return Taken(1, 1, 1.0, 1.0)

    def close(self):
        """Nothing to give up."""


def test_settings_are_timed_in_turn():
    notes = []
    taken = take_turns({SpeedSetting(1): Noted("a", notes), SpeedSetting(2): Noted("b", notes)}, rounds=2, seconds=3.0)
    assert notes == [("a", 1.5), ("b", 1.5), ("a", 1.5), ("b", 1.5)]
    assert [len(found) for found in taken.values()] == [2, 2]


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits_its_terminal_with_rates_speed_up_and_efficiency(width):
    row = MeasuredSpeed(
        4096, 2, 10**9, 5.0, 9.9, 8_123_456.0, 16_246_912.0, 123_456_789.0, 0, 1234.5, 0.3014, 1.91, 0.955
    )
    out = io.StringIO()
    show("title", forms([row], "threads", lambda one: str(one.threads)), Console(file=out, width=width))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for figure in ("4,096", "8,123,456", "123,456,789", "1,234.5 ×", "30%"):
        assert figure in text
    assert ("16,246,912" in text) == (width == 160)
