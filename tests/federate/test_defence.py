"""What is refused, shortened or let through before aggregation, against numbers worked out by hand."""

import numpy as np
import pytest

from slipstream.errors import FederationError
from slipstream.federate.defence import (
    ArrayChecks,
    Defence,
    ExcludedClient,
    excluded_clients,
    layout_fault,
    reference_of,
    screen,
    with_scaled_change,
)
from slipstream.federate.update import ClientUpdate

ZERO = {"w": np.zeros(4, np.float32), "n": np.array([3])}


def sent(client: str, weights, **more) -> ClientUpdate:
    return ClientUpdate(client, 1, "", client, {"w": np.asarray(weights, np.float32), "n": np.array([3]), **more})


def verdicts(updates, defence=None, names=ArrayChecks(), reference=ZERO):  # noqa: B008
    return {verdict.client: verdict for verdict in screen(updates, reference, defence or Defence(), names)}


HONEST = [sent("a", [1, 1, 0, 0]), sent("b", [1, 0.9, 0.1, 0]), sent("c", [0.9, 1, 0, 0.1])]


def test_honest_updates_pass_unchanged_with_their_lengths_and_directions():
    found = verdicts(HONEST)
    assert {verdict.fault for verdict in found.values()} == {""}
    assert {verdict.scale for verdict in found.values()} == {1.0}
    # The median of the three changes is [1, 1, 0, 0], which is a's own.
    assert found["a"].norm == pytest.approx(np.sqrt(2))
    assert found["a"].cosine == pytest.approx(1.0)
    b = np.array([1, 0.9, 0.1, 0])
    assert found["b"].cosine == pytest.approx(b @ [1, 1, 0, 0] / (np.linalg.norm(b) * np.sqrt(2)), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_and_does_not_spoil_the_others(bad):
    found = verdicts([*HONEST, sent("liar", [bad, 0, 0, 0])])
    assert found["liar"].fault == "not_finite"
    assert "'w'" in found["liar"].reason
    assert found["a"] == verdicts(HONEST)["a"]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"w": np.zeros(4, np.float32)}, "'n'"),
        ({**ZERO, "extra": np.zeros(1)}, "'extra'"),
        ({**ZERO, "server.steps": np.array(1)}, "'server.steps'"),
        ({**ZERO, "w": np.zeros(5, np.float32)}, "float32[5]"),
        ({**ZERO, "w": np.zeros((4, 1), np.float32)}, "float32[4, 1]"),
        ({**ZERO, "w": np.zeros(4)}, "float64[4]"),
        ({**ZERO, "n": np.array([3], np.int32)}, "int32[1]"),
    ],
)
def test_other_names_shapes_and_types_are_refused_in_a_sentence(arrays, said):
    found = verdicts([*HONEST, ClientUpdate("liar", 1, "", "x", arrays)])
    assert found["liar"].fault == "layout"
    assert said in found["liar"].reason


def test_optional_arrays_may_be_absent_on_either_side_but_not_of_another_shape():
    names = ArrayChecks(optional=lambda name: name == "m")
    assert layout_fault({**ZERO, "m": np.zeros(2)}, ZERO, names) == ""
    assert layout_fault(ZERO, {**ZERO, "m": np.zeros(2)}, names) == ""
    assert "'m'" in layout_fault({**ZERO, "m": np.zeros(3)}, {**ZERO, "m": np.zeros(2)}, names)


def test_a_long_change_is_shortened_to_the_limit_and_an_absurd_one_refused():
    usual = float(np.median([np.linalg.norm(update.arrays["w"]) for update in [*HONEST, HONEST[0], HONEST[0]]]))
    found = verdicts([*HONEST, sent("long", [4, 4, 0, 0]), sent("absurd", [1e6, 1e6, 0, 0])])
    assert found["absurd"].fault == "norm"
    assert f"{Defence().max_norm:g}" in found["absurd"].reason
    assert found["long"].fault == ""
    assert found["long"].scale == pytest.approx(3.0 * usual / np.linalg.norm([4, 4]), rel=1e-6)
    shorter = with_scaled_change(sent("long", [4, 4, 0, 0]), ZERO, found["long"].scale)
    assert np.linalg.norm(shorter.arrays["w"]) == pytest.approx(3.0 * usual, rel=1e-6)
    assert shorter.arrays["n"] is not None
    np.testing.assert_array_equal(shorter.arrays["n"], [3])


def test_a_flipped_sign_is_refused_by_its_direction():
    found = verdicts([*HONEST, sent("liar", [-1, -1, 0, 0])])
    assert found["liar"].fault == "cosine"
    assert found["liar"].cosine == pytest.approx(-1.0, abs=0.01)
    assert not any(found[client].fault for client in "abc")


def test_a_length_beyond_float64_is_refused():
    huge = {"w": np.full(4, 1e200), "n": np.array([3])}
    alike = {"w": np.zeros(4), "n": np.array([3])}
    found = verdicts([ClientUpdate("liar", 1, "", "x", huge)], reference=alike)
    assert found["liar"].fault == "norm"


def test_two_clients_are_not_held_against_each_other():
    strict = Defence(clip_norm=1.0, max_norm=1.5, min_cosine=0.9)
    found = verdicts([sent("a", [1, 0, 0, 0]), sent("b", [-1e6, 0, 0, 0])], strict)
    assert [verdict.fault for verdict in found.values()] == ["", ""]
    assert found["b"].scale == 1.0


@pytest.mark.parametrize(
    ("off", "client"),
    [({"max_norm": None}, "absurd"), ({"min_cosine": None}, "flipped"), ({"clip_norm": None}, "long")],
)
def test_every_check_can_be_switched_off_by_itself(off, client):
    updates = [*HONEST, sent("absurd", [1e6, 1e6, 0, 0]), sent("flipped", [-1, -1, 0, 0]), sent("long", [4, 4, 0, 0])]
    on, without = verdicts(updates), verdicts(updates, Defence(**off))
    differ = {one for one in on if (on[one].fault, on[one].scale) != (without[one].fault, without[one].scale)}
    assert differ == {client}


def test_only_judged_arrays_are_measured_and_shortened():
    names = ArrayChecks(judged=frozenset({"w"}))
    updates = [sent(c, [1, 0, 0, 0], mean=np.full(2, value)) for c, value in (("a", 0.0), ("b", 1e9), ("c", 5.0))]
    reference = {**ZERO, "mean": np.zeros(2)}
    found = verdicts(updates, names=names, reference=reference)
    assert {(verdict.fault, verdict.norm) for verdict in found.values()} == {("", 1.0)}
    assert verdicts(updates, reference=reference)["b"].fault == "norm"
    np.testing.assert_array_equal(with_scaled_change(updates[1], reference, 0.5, names).arrays["mean"], np.full(2, 1e9))


def test_before_the_first_aggregate_the_commonest_layout_is_the_model_and_its_median_the_reference():
    odd = ClientUpdate("z", 1, "", "z", {"other": np.zeros(3)})
    reference = reference_of([*HONEST, odd, sent("bad", [np.nan] * 4)], None)
    assert sorted(reference) == ["n", "w"]
    np.testing.assert_allclose(reference["w"], [1, 1, 0, 0])
    assert reference["n"].dtype == np.int64
    assert verdicts([*HONEST, odd], reference=reference)["z"].fault == "layout"


def test_a_servers_own_state_is_no_part_of_what_clients_send():
    reference = reference_of(HONEST, {**ZERO, "server.steps": np.array(4)})
    assert sorted(reference) == ["n", "w"]


def test_exclusion_ends_with_its_last_round():
    entry = ExcludedClient("x", "NaN", since=3, until=6)
    assert [bool(excluded_clients([entry], number)) for number in (4, 5, 6)] == [True, True, False]


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0.0}, {"max_norm": -1.0}, {"min_cosine": 1.0}, {"quarantine_rounds": -1}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(FederationError, match=f"{key}={value}[,)]"):
        Defence(**wrong)


def test_verdicts_do_not_depend_on_the_order_in_which_updates_came():
    updates = [*HONEST, sent("d", [4, 4, 0, 0]), sent("e", [-1, -1, 0, 0])]
    assert verdicts(updates) == verdicts(updates[::-1])
