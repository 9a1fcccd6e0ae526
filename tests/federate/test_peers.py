"""What peers agree on without talking: schedules, weights, layouts; and how frames are read."""

import itertools
import socket
import time

import numpy as np
import pytest
from peer_group import some_arrays

from slipstream.errors import FederationError, ScenarioError
from slipstream.federate import peers
from slipstream.federate.peer_links import MESSAGES, PeerLink, receive_data
from slipstream.federate.peers import Schedule
from slipstream.runtime.frames import HEAD, MAGIC, VERSION, FieldRecord, MessageProtocol, WireError
from slipstream.runtime.link import pauses

IDS = [f"c{index}" for index in range(7)]
SCHEDULES = [Schedule("ring"), Schedule("matching", seed=3), Schedule("all")]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_meetings_are_mutual_and_the_same_for_all_who_ask(schedule, count):
    for number in range(5):
        met = peers.partners(schedule, IDS[:count], number)
        assert met == peers.partners(schedule, IDS[:count][::-1], number)
        assert all(me in met[other] and other != me for me in met for other in met[me])


def test_a_ring_has_two_neighbours_all_means_all_and_a_matching_one_partner():
    assert peers.partners(Schedule("ring"), IDS[:5], 1)["c0"] == ("c1", "c4")
    assert peers.partners(Schedule("ring"), IDS[:2], 1) == {"c0": ("c1",), "c1": ("c0",)}
    assert peers.partners(Schedule("all"), IDS[:4], 1)["c2"] == ("c0", "c1", "c3")
    met = peers.partners(Schedule("matching"), IDS, 1)
    assert sorted(len(others) for others in met.values()) == [0, 1, 1, 1, 1, 1, 1]


def test_matchings_are_drawn_evenly_and_by_the_seed():
    """Each of the fifteen pairs of six peers should be met in a fifth of all rounds."""
    rounds = 1500
    counts = dict.fromkeys(itertools.combinations(IDS[:6], 2), 0)
    for number in range(rounds):
        for me, others in peers.partners(Schedule("matching", seed=11), IDS[:6], number).items():
            for other in others:
                if me < other:
                    counts[me, other] += 1
    spread = 4 * np.sqrt(rounds * 0.2 * 0.8)
    assert all(abs(count - rounds / 5) < spread for count in counts.values())
    assert peers.partners(Schedule("matching", seed=1), IDS, 5) != peers.partners(Schedule("matching", seed=2), IDS, 5)
    # Peers of different machines and versions must draw the same: this draw may never change.
    assert peers.partners(Schedule("matching", seed=1), IDS[:4], 5)["c0"] == ("c3",)


def mixing_matrix(met, absent=()):
    names = sorted(met)
    matrix = np.zeros((len(names), len(names)))
    for row, me in enumerate(names):
        there = [other for other in met[me] if other not in absent and me not in absent]
        for other, weight in peers.mixing_weights(me, met[me], there).items():
            matrix[row, names.index(other)] = weight
    return matrix


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize("absent", [(), ("c2",), ("c0", "c4")])
def test_mixing_keeps_the_mean_whoever_is_absent(schedule, absent):
    for number in range(4):
        matrix = mixing_matrix(peers.partners(schedule, IDS, number), absent)
        assert np.array_equal(matrix, matrix.T)
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-15)
        assert (matrix >= 0).all()


def test_all_pairs_give_everybody_exactly_the_same_share():
    matrix = mixing_matrix(peers.partners(Schedule("all"), IDS, 1))
    assert np.array_equal(matrix, np.full((7, 7), 1 / 7))


def test_patience_halves_with_every_miss_and_returns_at_once():
    assert [peers.patience_s(8.0, misses) for misses in range(7)] == [8.0, 4.0, 2.0, 1.0, 0.5, 0.5, 0.5]
    assert peers.patience_s(0.1, 3) == 0.1
    misses = peers.count_misses({"a": 3, "b": 1, "z": 4}, ["a", "b", "c"], ["a"])
    assert misses == {"a": 0, "b": 2, "c": 1, "z": 4}


def test_pauses_grow_up_to_a_longest():
    first = list(itertools.islice(pauses(1.0), 10))
    assert first[:3] == [0.02, 0.04, 0.08]
    assert first[-1] == 1.0


def test_members_are_in_the_order_of_ids_and_have_addresses_of_their_own():
    members = peers.parse_members({"b": "tcp://127.0.0.1:2", "a": "tcp://127.0.0.1:1"}, "a")
    assert [member.id for member in members] == ["a", "b"]
    with pytest.raises(FederationError, match=r"'x'.* a$"):
        peers.parse_members({"a": "tcp://127.0.0.1:1"}, "x")
    with pytest.raises(FederationError, match=r"peers a, b: tcp://127.0.0.1:1 "):
        peers.parse_members({"a": "tcp://127.0.0.1:1", "b": "tcp://127.0.0.1:1"}, "a")
    with pytest.raises(FederationError, match=r"peer '../a'"):
        peers.parse_members({"../a": "tcp://127.0.0.1:1"}, "../a")
    with pytest.raises(ScenarioError, match=r"127.0.0.1: .*tcp://HOST:PORT"):
        peers.parse_members({"a": "127.0.0.1"}, "a")


def test_arrays_survive_their_way_as_bytes():
    arrays = some_arrays(3) | {"odd": np.arange(3, dtype=np.int8), "empty": np.zeros((0, 4), np.float32)}
    back = peers.unpack(peers.pack(arrays), peers.describe(arrays))
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert np.array_equal(back[name], array)
    assert peers.digest(back) == peers.digest(arrays)
    changed = {**arrays, "scalar": arrays["scalar"].reshape(1)}
    assert peers.digest(changed) != peers.digest(arrays)


def test_arrays_that_cannot_be_merged_are_named():
    with pytest.raises(FederationError, match="label is bool"):
        peers.describe({"label": np.array([True])})


def test_a_difference_of_layouts_is_a_sentence():
    ours = (FieldRecord("a", "float32", (2, 3)), FieldRecord("b", "int64", (1,)))
    assert peers.why_differ(ours, ours) is None
    other = (FieldRecord("a", "float32", (2, 4)), ours[1])
    assert peers.why_differ(ours, other) == "'a' is float32[2, 3] here and float32[2, 4] there"
    assert peers.why_differ(ours, ours[:1]) == "'b' is int64[1] here and nothing there"
    assert peers.why_differ(ours, ours[::-1]) == "the arrays come in another order, or twice"


def head(body, data=0, protocol=MessageProtocol.PEERS, version=VERSION):
    return HEAD.pack(MAGIC, version, protocol, body, data)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (head(4, protocol=MessageProtocol.REPLAY) + b"abcd", "protocol replay"),
        (head(4, version=9) + b"abcd", "version 9"),
        (head(1 << 31), " 2,147,483,648 .* 1,048,576 "),
        (head(4) + b"abcd", "cannot be read"),
        (head(1) + b"\x80", "cannot be read"),
    ],
)
def test_frames_that_no_peer_sends_are_refused_before_they_take_memory(sent, reason):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        with pytest.raises(WireError, match=reason):
            PeerLink(ours, MESSAGES).receive(time.monotonic() + 5)


def test_data_of_another_size_than_both_hold_are_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(WireError, match="99,999,999,999 bytes"):
        receive_data(PeerLink(ours, MESSAGES), 99_999_999_999, 100, time.monotonic() + 5)


def test_a_frame_that_trickles_ends_by_the_deadline():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(head(100)[:7])
        link = PeerLink(ours, MESSAGES)
        with pytest.raises(TimeoutError):
            link.receive(time.monotonic() + 0.1)
        theirs.close()
        with pytest.raises(ConnectionResetError):
            link.receive(time.monotonic() + 5)
