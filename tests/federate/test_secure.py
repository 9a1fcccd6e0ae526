"""Secure aggregation: the sum is right, nothing else can be opened, and no message is taken on trust."""

from __future__ import annotations

import copy
import itertools
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slipstream.errors import FederationError
from slipstream.federate import secure, secure_keys
from slipstream.federate.secure import (
    Boxes,
    Inbox,
    KeyList,
    Keys,
    Masked,
    OpenedSum,
    SecureClient,
    Server,
    SumTerms,
    Survivors,
    Unmask,
    decode,
    encode,
    pack,
    unpack,
)
from slipstream.federate.secure_keys import from_fixed, to_fixed

STEPS = ("keys", "boxes", "masked", "unmask")
FIVE = tuple("abcde")


@pytest.fixture(autouse=True)
def same_draws(monkeypatch):
    """Keys and seeds from a fixed stream, so that what is tested for uniformity is the same every time."""
    stream = np.random.default_rng(7)
    for module in (secure, secure_keys):
        monkeypatch.setattr(module, "urandom", stream.bytes)


class Sum:
    """One sum among clients, of which some stop answering before a step; every message goes through bytes."""

    def __init__(self, names=FIVE, threshold=3, length=40, drops=None, vectors=None, session="run/7/policy"):
        self.terms = SumTerms(session, threshold, length)
        self.drops = drops or {}  # client -> the first step it is silent in
        self.server = Server(self.terms)
        self.clients = {name: SecureClient(self.terms, name) for name in names}
        rng = np.random.default_rng(1)
        self.vectors = vectors or {name: rng.normal(size=length) for name in names}
        self.sent: dict[str, dict[str, bytes]] = {step: {} for step in STEPS}

    def answering(self, step):
        def silent(name):
            return name in self.drops and STEPS.index(self.drops[name]) <= STEPS.index(step)

        return {name: client for name, client in self.clients.items() if not silent(name)}

    def send(self, step, name, message):
        self.sent[step][name] = encode(message)
        self.server.receive(decode(encode(message)))

    def keys(self) -> KeyList:
        for name, client in self.answering("keys").items():
            self.send("keys", name, client.keys)
        self.listed = over_the_wire(self.server.list_keys())
        return self.listed

    def boxes(self) -> dict[str, Inbox]:
        for name, client in self.answering("boxes").items():
            self.send("boxes", name, client.share(self.listed))
        self.inboxes = {name: over_the_wire(inbox) for name, inbox in self.server.deliver().items()}
        return self.inboxes

    def masked(self) -> Survivors:
        for name, client in self.answering("masked").items():
            self.send("masked", name, client.mask(self.inboxes[name], self.vectors[name]))
        self.there = over_the_wire(self.server.survivors())
        return self.there

    def unmask(self) -> OpenedSum:
        for name, client in self.answering("unmask").items():
            if name in self.there.clients:
                self.send("unmask", name, client.unmask(self.there))
        return self.server.open_sum()

    def until(self, last):
        for step in STEPS[: STEPS.index(last)]:
            getattr(self, step)()
        return self

    def run(self) -> OpenedSum:
        return self.until("unmask").unmask()


def over_the_wire(message):
    return decode(encode(message))


def plain_sum(vectors, names):
    return np.sum([vectors[name] for name in names], axis=0)


def looks_uniform(vector: np.ndarray) -> bool:
    """Chi-square of all bytes of 64-bit numbers, and of each of their eight places."""
    places = vector.view(np.uint8).reshape(-1, 8)
    p = [stats.chisquare(np.bincount(place, minlength=256)).pvalue for place in (places.ravel(), *places.T)]
    return min(p) > 1e-3


# --- the sum ---


@pytest.mark.parametrize("step", [None, *STEPS])
def test_the_sum_is_the_plain_sum_whoever_drops_out_in_whichever_step(step):
    for lost in FIVE if step else ("a",):
        round_ = Sum(drops={lost: step} if step else {})
        opened = round_.run()
        kept = [name for name in FIVE if not (name == lost and step in ("keys", "boxes", "masked"))]
        assert opened.clients == tuple(kept)
        np.testing.assert_allclose(opened.total, plain_sum(round_.vectors, kept), atol=1e-6, rtol=0)


def test_two_of_five_may_drop_out_in_different_steps():
    round_ = Sum(drops={"b": "masked", "d": "unmask"})
    opened = round_.run()
    np.testing.assert_allclose(opened.total, plain_sum(round_.vectors, "acde"), atol=1e-6, rtol=0)


@given(
    count=st.integers(2, 6),
    data=st.data(),
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_any_clients_drops_and_shapes_give_the_weighted_mean_or_a_clear_refusal(count, data, shapes):
    names = [f"client-{i}" for i in range(count)]
    threshold = data.draw(st.integers(max(2, count // 2 + 1), count))
    drops = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(STEPS), max_size=count))
    rng = np.random.default_rng(count)
    arrays = {n: {f"w{i}": rng.normal(size=shape) for i, shape in enumerate(shapes)} for n in names}
    weights = {n: float(w) for n, w in zip(names, rng.uniform(0.1, 100.0, count), strict=True)}
    vectors = {n: pack(arrays[n], weights[n]) for n in names}
    round_ = Sum(names, threshold, len(vectors[names[0]]), drops, vectors)
    lost_before = [sum(STEPS.index(p) <= i for p in drops.values()) for i in range(4)]
    if any(count - lost < threshold for lost in lost_before):
        few = next(count - lost for lost in lost_before if count - lost < threshold)
        with pytest.raises(FederationError, match=f": {few} clients .* {threshold};"):
            round_.run()
        return
    kept = [n for n in names if drops.get(n, "unmask") == "unmask"]
    mean, weight = unpack(round_.run().total, arrays[names[0]])
    assert weight == pytest.approx(sum(weights[n] for n in kept), abs=1e-6)
    for i, shape in enumerate(shapes):
        expected = sum(weights[n] * arrays[n][f"w{i}"] for n in kept) / sum(weights[n] for n in kept)
        assert mean[f"w{i}"].shape == shape
        np.testing.assert_allclose(mean[f"w{i}"], expected, atol=1e-6, rtol=0)


def test_the_order_in_which_messages_come_changes_no_bit():
    totals = []
    for names in (FIVE, FIVE[::-1]):
        vectors = {name: np.random.default_rng(ord(name)).normal(size=40) for name in names}
        totals.append(Sum(names, vectors=vectors).run().total.tobytes())
    assert totals[0] == totals[1]


# --- what stays hidden ---


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5])
def test_a_masked_vector_alone_is_uniform_whatever_it_holds(value):
    round_ = Sum(length=20_000, vectors={name: np.full(20_000, value) for name in FIVE}).until("masked")
    round_.masked()
    for sent in round_.sent["masked"].values():
        assert looks_uniform(np.frombuffer(decode(sent).vector, np.uint64))
    assert not looks_uniform(to_fixed(np.full(20_000, value), 5))  # the test can tell


def test_a_late_clients_vector_stays_hidden_though_its_key_is_known():
    """The server has all that honest clients give: with the key it takes the pair masks off what came late."""
    length = 20_000
    round_ = Sum(length=length, drops={"c": "masked"}, vectors={n: np.full(length, 2.0) for n in FIVE})
    opened = round_.until("unmask").unmask()
    np.testing.assert_allclose(opened.total, np.full(length, 8.0), atol=1e-6)

    late = round_.clients["c"].mask(round_.inboxes["c"], round_.vectors["c"])
    with pytest.raises(FederationError, match=r"'masked' of client 'c' .*'masked'.*'closed'"):
        round_.server.receive(late)

    left = np.frombuffer(late.vector, np.uint64).copy()
    answers = {name: decode(sent) for name, sent in round_.sent["unmask"].items()}
    numbers = {name: i for i, name in enumerate(FIVE, 1)}
    key = secure_keys.private_key(secure_keys.join_shares({numbers[n]: answers[n].key_shares["c"] for n in "abd"}))
    for other in "abde":
        public = next(keys.mask_key for keys in round_.listed.keys if keys.client == other)
        stream = secure_keys.pair_stream(key, public, round_.server._context, "c", other)
        secure_keys.add_stream(left, stream, add=other < "c")
    assert looks_uniform(left)

    for name in "abde":  # and nobody gives the seed, which is all that is missing
        assert "c" not in answers[name].seed_shares
        with pytest.raises(FederationError, match=f"client {name} .*a, b, d, e.*a, b, c, d, e"):
            round_.clients[name].unmask(Survivors(round_.terms.session, FIVE))
    # With the seed it would be open: what is hidden is hidden by that mask alone.
    secure_keys.add_stream(
        left, secure_keys.own_stream(round_.clients["c"]._seed, round_.server._context, "c"), add=False
    )
    np.testing.assert_allclose(from_fixed(left), 2.0, atol=1e-6)


def test_every_honest_client_refuses_to_tell_both_seed_and_key_of_a_client():
    round_ = Sum().until("unmask")
    for name, client in round_.clients.items():
        first = client.unmask(round_.there)
        victim = "a" if name != "a" else "b"
        others = tuple(n for n in FIVE if n != victim)
        with pytest.raises(FederationError, match=f"client {name} .*a, b, c, d, e.* {', '.join(others)},"):
            client.unmask(Survivors(round_.terms.session, others))
        assert not first.seed_shares.keys() & first.key_shares.keys()
        assert client.unmask(round_.there) == first  # a question that was lost on the way may be asked again


def test_a_server_that_tells_clients_different_things_gets_too_few_shares_of_one_kind():
    round_ = Sum().until("unmask")
    without = Survivors(round_.terms.session, ("a", "b", "d", "e"))
    for told in itertools.product((round_.there, without), repeat=4):
        answers = [client_like(round_, name).unmask(ask) for name, ask in zip("abde", told, strict=True)]
        seeds = sum("c" in answer.seed_shares for answer in answers)
        keys = sum("c" in answer.key_shares for answer in answers)
        assert min(seeds + 1, keys) < round_.terms.threshold  # + 1: c's own, of its seed


def client_like(round_, name):
    """The client as it is before it answers."""
    client = copy.copy(round_.clients[name])
    assert client._step == "masked"
    return client


def test_a_server_that_means_well_will_not_hold_both_kinds():
    round_ = Sum(drops={"e": "masked"}).until("unmask")
    honest = round_.clients["a"].unmask(round_.there)
    for both in (
        msgspec.structs.replace(honest, key_shares={**honest.key_shares, "b": honest.seed_shares["b"]}),
        msgspec.structs.replace(honest, seed_shares={**honest.seed_shares, "e": honest.key_shares["e"]}),
        msgspec.structs.replace(honest, seed_shares={}),
    ):
        with pytest.raises(FederationError, match=r"'unmask' of client 'a' .* a, b, c, d .* e$"):
            round_.server.receive(both)
    round_.server.receive(honest)


@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_it_fails_in_a_sentence_and_nothing_can_be_opened(step):
    length = 4000
    lost = dict.fromkeys("abc", step)
    round_ = Sum(drops=lost, length=length, vectors={name: np.ones(length) for name in FIVE}).until(step)
    with pytest.raises(FederationError, match=r"run/7/policy: 2 clients .* 3;"):
        getattr(round_, step)()
    for ended, close in zip(STEPS, ("list_keys", "deliver", "survivors", "open_sum"), strict=True):
        with pytest.raises(FederationError, match=f"'{ended}' .*'closed'"):
            getattr(round_.server, close)()
    total = round_.server._total
    assert not total.any() if step in ("keys", "boxes") else looks_uniform(total)
    if step == "unmask":  # two shares of three give back nothing of what they are shares of
        answers = [decode(sent) for sent in round_.sent["unmask"].values()]
        for name in FIVE:
            shares = dict(zip((4, 5), (answer.seed_shares[name] for answer in answers), strict=True))
            with pytest.raises(FederationError, match=r"2 shares \(4, 5\)"):
                secure_keys.join_shares(shares)


@pytest.mark.parametrize("there", [("a", "b"), ("b", "c", "d"), ("a", "b", "x"), ("b", "a", "c"), ("a", "a", "b", "c")])
def test_a_client_opens_no_sum_that_is_too_small_or_of_strangers_or_without_it(there):
    round_ = Sum().until("unmask")
    said = " 2 .* 3 " if len(there) == 2 else f" {', '.join(there)}:"
    with pytest.raises(FederationError, match=f"client a .*:.*{said}"):
        round_.clients["a"].unmask(Survivors(round_.terms.session, there))
    assert round_.clients["a"].unmask(round_.there).seed_shares.keys() == set(FIVE)  # a refusal changes nothing


def test_a_threshold_of_half_is_refused_by_clients_and_server_since_it_could_be_played_two_ways():
    round_ = Sum(names="abcd", threshold=2)
    for client in round_.clients.values():
        round_.server.receive(client.keys)
    listed = KeyList(round_.terms.session, tuple(client.keys for client in round_.clients.values()))
    with pytest.raises(FederationError, match=r"client a .*: 4 clients .*threshold of 2"):
        round_.clients["a"].share(listed)
    with pytest.raises(FederationError, match=r"run/7/policy: 4 clients .*threshold of 2"):
        round_.server.list_keys()
    with pytest.raises(FederationError, match=r"threshold of 1 .*4 .* 2$"):
        SecureClient(SumTerms("s", 1, 4), "a")


# --- tampered, replayed and malformed ---


def test_a_list_of_keys_that_was_tampered_with_is_refused():
    round_ = Sum()
    listed, client = round_.keys(), round_.clients["a"]
    a, b, *rest = listed.keys
    stranger = SecureClient(round_.terms, "a").keys

    def with_keys(*keys):
        return msgspec.structs.replace(listed, keys=keys)

    for wrong in (
        with_keys(stranger, b, *rest),  # another's key in its name
        with_keys(b, *rest),  # itself left out
        with_keys(a, b, b, *rest),
        with_keys(b, a, *rest),
        with_keys(a, b),  # too few
        with_keys(a, msgspec.structs.replace(b, mask_key=b.box_key), *rest),
        with_keys(a, msgspec.structs.replace(b, mask_key=a.mask_key), *rest),
        with_keys(a, msgspec.structs.replace(b, box_key=b"short"), *rest),
        with_keys(a, msgspec.structs.replace(b, client="../b"), *rest),
        with_keys(a, msgspec.structs.replace(b, box_key=bytes(32)), *rest),  # of small order: no secret
        msgspec.structs.replace(listed, session="run/6/policy"),
    ):
        with pytest.raises(FederationError):
            client.share(wrong)
    client.share(listed)


def test_a_box_that_was_changed_swapped_or_made_for_another_sum_does_not_open():
    round_, other = Sum().until("masked"), Sum().until("masked")
    client, inbox, vector = round_.clients["a"], round_.inboxes["a"], round_.vectors["a"]
    flipped = bytes([inbox.boxes["b"][0] ^ 1]) + inbox.boxes["b"][1:]
    for wrong in (
        {"b": flipped},
        {"b": inbox.boxes["c"]},
        {"b": other.inboxes["a"].boxes["b"]},
        {"b": inbox.boxes["b"][:-1]},
        {"b": b""},
        {"x": inbox.boxes["b"]},
    ):
        with pytest.raises(FederationError, match=f"box of {next(iter(wrong))} "):
            client.mask(Inbox(inbox.session, {**inbox.boxes, **wrong}), vector)
    with pytest.raises(FederationError, match=r"client a .*: 2 clients .* 3 "):
        client.mask(Inbox(inbox.session, {"b": inbox.boxes["b"]}), vector)
    with pytest.raises(FederationError, match=r"client a .*\(39,\).* 40$"):
        client.mask(inbox, vector[:-1])
    round_.server.receive(client.mask(inbox, vector))


def test_clients_that_were_shown_different_lists_cannot_open_each_others_boxes():
    round_ = Sum()
    listed = round_.keys()
    fake = SecureClient(round_.terms, "e").keys
    other = msgspec.structs.replace(listed, keys=(*listed.keys[:-1], fake))
    boxes = {name: round_.clients[name].share(listed if name in "ab" else other) for name in "abcd"}
    inbox = Inbox(listed.session, {name: boxes[name].boxes["a"] for name in "bcd"})
    with pytest.raises(FederationError, match="box of c "):
        round_.clients["a"].mask(inbox, round_.vectors["a"])


@pytest.mark.parametrize("step", STEPS)
def test_a_message_counts_once_in_its_own_step_and_sum(step):
    round_, older = Sum(), Sum(session="run/6/policy")
    getattr(older.until(step), step)()
    round_.until(step)
    clients, server = round_.clients, round_.server
    make = {
        "keys": lambda: clients["a"].keys,
        "boxes": lambda: clients["a"].share(round_.listed),
        "masked": lambda: clients["a"].mask(round_.inboxes["a"], round_.vectors["a"]),
        "unmask": lambda: clients["a"].unmask(round_.there),
    }
    message = make[step]()
    with pytest.raises(FederationError, match=f"'{step}' of client 'a' .*'run/6/policy'.*'run/7/policy'"):
        server.receive(decode(older.sent[step]["a"]))
    server.receive(message)
    before = server._total.tobytes()
    with pytest.raises(FederationError, match=f"'{step}' of client 'a' .*: 2 .* 1 "):
        server.receive(message)
    if step != "keys":
        stranger = msgspec.structs.replace(message, client="x")
        with pytest.raises(FederationError, match=f"'{step}' of client 'x' .* a, b, c, d, e "):
            server.receive(stranger)
    for other in STEPS:
        if other != step and other in older.sent and older.sent[other]:
            early_or_late = msgspec.structs.replace(decode(older.sent[other]["a"]), session=round_.terms.session)
            with pytest.raises(FederationError, match=f"'{other}' of client 'a' .*'{other}'.*'{step}'"):
                server.receive(early_or_late)
    assert server._total.tobytes() == before


def test_a_client_goes_through_each_step_once():
    round_ = Sum().until("unmask")
    client = round_.clients["a"]
    with pytest.raises(FederationError, match=r"client a .*'keys'.*'masked'"):
        client.share(round_.listed)
    with pytest.raises(FederationError, match=r"client a .*'shared'.*'masked'"):
        client.mask(
            round_.inboxes["a"], round_.vectors["b"]
        )  # the same masks on two vectors would tell their difference
    with pytest.raises(FederationError, match=r"client a .*'masked'.*'keys'"):
        SecureClient(round_.terms, "a").unmask(round_.there)
    with pytest.raises(FederationError, match=r"client a .*'other'.*'run/7/policy'"):
        client.unmask(msgspec.structs.replace(round_.there, session="other"))


def test_messages_of_the_wrong_size_are_refused():
    round_ = Sum()
    keys = round_.clients["a"].keys
    for wrong in (
        msgspec.structs.replace(keys, box_key=b"1"),
        msgspec.structs.replace(keys, box_key=keys.mask_key),
        msgspec.structs.replace(keys, client="../../a"),
    ):
        with pytest.raises(FederationError):
            round_.server.receive(wrong)
    with pytest.raises(FederationError, match="'survivors'"):
        round_.server.receive(Survivors(round_.terms.session, FIVE))
    round_.keys()
    copied = msgspec.structs.replace(round_.clients["a"].keys, client="f")
    with pytest.raises(FederationError):
        round_.server.receive(copied)
    boxes = round_.clients["a"].share(round_.listed)
    size = len(boxes.boxes["b"])
    for wrong, said in (
        ({"boxes": {}}, "nobody, .* b, c, d, e$"),
        ({"boxes": {**boxes.boxes, "b": b"?"}}, rf"\[32, 1, {size}, {size}, {size}\] .*32, .* {size}$"),
        ({"seed_hash": b"?"}, rf"\[1, {size}, .*32, .* {size}$"),
        ({"boxes": {**boxes.boxes, "x": boxes.boxes["b"]}}, "b, c, d, e, x, .* b, c, d, e$"),
    ):
        with pytest.raises(FederationError, match=f"'boxes' of client 'a' .*{said}"):
            round_.server.receive(msgspec.structs.replace(boxes, **wrong))
    round_.clients["a"] = SecureClient(round_.terms, "a")
    for name in "bcde":
        round_.send("boxes", name, round_.clients[name].share(round_.listed))
    inboxes = round_.server.deliver()
    masked = round_.clients["b"].mask(inboxes["b"], round_.vectors["b"])
    for vector in (masked.vector[:-1], masked.vector + bytes(8), b""):
        with pytest.raises(FederationError, match=f"'masked' of client 'b' .* {len(vector)} bytes .* 40 "):
            round_.server.receive(msgspec.structs.replace(masked, vector=vector))


@pytest.mark.parametrize("kind", ["seed_shares", "key_shares"])
def test_a_share_that_was_changed_is_noticed_and_the_sum_stays_closed(kind):
    round_ = Sum(drops={"e": "masked"}).until("unmask")
    for name in "abcd":
        answer = round_.clients[name].unmask(round_.there)
        if name == "b":
            shares = dict(getattr(answer, kind))
            victim = next(iter(shares))
            number = (int.from_bytes(shares[victim]) + 1) % secure_keys.PRIME
            answer = msgspec.structs.replace(answer, **{kind: {**shares, victim: number.to_bytes(66)}})
            with pytest.raises(FederationError, match=r"'unmask' of client 'b' .*\[0, 66\] .* 66$"):
                round_.server.receive(msgspec.structs.replace(answer, **{kind: dict.fromkeys(shares, b"")}))
        round_.server.receive(answer)
    with pytest.raises(FederationError, match=f"run/7/policy: {kind.removesuffix('_shares')} of {victim}: "):
        round_.server.open_sum()
    with pytest.raises(FederationError, match=r"'unmask' .*'closed'"):
        round_.server.open_sum()


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(FederationError, match=f": {len(data)} bytes "):
        decode(data)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_message_with_changed_bytes_is_refused_or_still_a_message(data):
    """Whatever comes out has the types that were promised, so that nothing later trips over it."""
    name = st.sampled_from("abc")
    share = st.binary(min_size=66, max_size=66)
    message = data.draw(
        st.one_of(
            st.builds(Keys, st.just("s"), name, st.binary(max_size=40), st.binary(max_size=40)),
            st.builds(Boxes, st.just("s"), name, st.binary(max_size=40), st.dictionaries(name, st.binary(max_size=9))),
            st.builds(Masked, st.just("s"), name, st.binary(max_size=40)),
            st.builds(Unmask, st.just("s"), name, st.dictionaries(name, share), st.dictionaries(name, share)),
        )
    )
    encoded = bytearray(encode(message))
    assert decode(bytes(encoded)) == message
    for _ in range(3):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    server = Server(SumTerms("s", 2, 5))
    try:
        server.receive(decode(bytes(encoded)))
    except FederationError:
        return
    assert isinstance(message, Keys)  # nothing else is for the first step


# --- numbers ---


@given(st.lists(st.floats(-1e8, 1e8), min_size=1, max_size=20))
@settings(deadline=None)
def test_fixed_point_numbers_are_off_by_half_a_unit_at_most(values):
    vector = np.array(values)
    assert np.abs(from_fixed(to_fixed(vector, 8)) - vector).max() <= 2.0**-33


def test_a_number_that_could_wrap_a_sum_is_refused_before_it_is_masked():
    largest = 2.0**30 / 5
    everyone = [to_fixed(np.array([sign * largest]), 5) for sign in (1, -1) for _ in range(5)]
    assert from_fixed(np.sum(everyone[:5], axis=0))[0] == pytest.approx(2.0**30)
    assert from_fixed(np.sum(everyone[5:], axis=0))[0] == pytest.approx(-(2.0**30))
    most = re.escape(f"{largest:g}")
    for wrong in (np.nextafter(largest, np.inf), -1e300, np.nan, np.inf):
        with pytest.raises(FederationError, match=rf" {re.escape(f'{abs(wrong):g}')} .*± {most}, .* 5 clients"):
            to_fixed(np.array([0.0, wrong]), 5)
    round_ = Sum().until("masked")
    with pytest.raises(FederationError, match=rf" 1e\+09 .*± {most}, .* 5 clients"):
        round_.clients["a"].mask(round_.inboxes["a"], np.full(40, 1e9))


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_is_a_number_above_zero(weight):
    with pytest.raises(FederationError, match=f"weight {weight} "):
        pack({"w": np.zeros(2)}, weight)


def test_a_sum_that_does_not_fit_its_arrays_is_refused():
    with pytest.raises(FederationError, match=r" 4 numbers .*\[1\.\].* 3 numbers"):
        unpack(np.ones(4), {"w": np.zeros(2)})


# --- shares ---


def test_any_of_the_shares_that_reach_the_threshold_give_the_secret_back():
    secret = bytes(range(32))
    shares = dict(enumerate(secure_keys.split_secret(secret, 3, 5), 1))
    for chosen in itertools.combinations(shares, 3):
        assert secure_keys.join_shares({number: shares[number] for number in chosen}) == secret
    for chosen in itertools.combinations(shares, 2):
        with pytest.raises(FederationError, match=rf"2 shares \({chosen[0]}, {chosen[1]}\)"):
            secure_keys.join_shares({number: shares[number] for number in chosen})


def test_fewer_shares_than_the_threshold_are_uniform_whatever_the_secret():
    """First and second share of three, of one secret cut 1,500 times: bytes that depend on nothing."""
    for secret in (bytes(32), b"\xff" * 32):
        cuts = [secure_keys.split_secret(secret, 3, 5)[:2] for _ in range(1500)]
        seen = np.frombuffer(b"".join(b"".join(share[2:] for share in pair) for pair in cuts), np.uint8)
        assert stats.chisquare(np.bincount(seen, minlength=256)).pvalue > 1e-3


@pytest.mark.parametrize(("size", "threshold", "count"), [(31, 2, 3), (32, 4, 3), (32, 0, 3)])
def test_what_cannot_be_cut_is_refused(size, threshold, count):
    with pytest.raises(ValueError, match=f"{size} bytes, {threshold} of {count}: "):
        secure_keys.split_secret(bytes(size), threshold, count)
