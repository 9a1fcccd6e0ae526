"""A coordinator and its clients over sockets: the same rounds, and nobody is hurt by what a stranger sends."""

import contextlib
import hashlib
import os
import random
import re
import socket
import threading
import time
from dataclasses import replace

import msgspec
import numpy as np
import psutil
import pytest
from rounds_harness import faults as f
from rounds_harness import quick_folder, with_c_excluded

from slipstream.data.arrays_file import content_hash
from slipstream.errors import FederationError, ScenarioError
from slipstream.federate import closing, folder, rounds
from slipstream.federate.coordinator import Coordinator
from slipstream.federate.coordinator_client import CoordinatorLink, CoordinatorTransport
from slipstream.federate.messages import (
    ANSWERS,
    REQUESTS,
    Await,
    CatchUp,
    CoordinatorRefusal,
    EnterFederation,
    RoundEnded,
    Send,
    Stands,
    Submit,
    Welcome,
)
from slipstream.federate.rounds import never
from slipstream.federate.update import update_chunks
from slipstream.runtime.address import Address, connect, listen, parse_address
from slipstream.runtime.frames import HEAD, MAGIC, VERSION, MessageProtocol, WireError
from slipstream.runtime.link import FramedLink
from slipstream.runtime.server import ServerLimits

TOKEN = "a token"


class Served:
    """A coordinator in a thread, and a folder."""

    def __init__(self, folder, limits=ServerLimits(), address="tcp://127.0.0.1:0", **rules):  # noqa: B008
        self.made = f.federation(folder, **rules)
        server, self.address = listen(parse_address(address), TOKEN)
        self.said: list[str] = []
        self.coordinator = Coordinator(server, self.made, TOKEN, limits, log=self.said.append)
        self.thread = threading.Thread(target=self.coordinator.run)
        self.thread.start()

    def client(self, name, token=TOKEN):
        return CoordinatorTransport(self.address, name, token, self.made.limits)

    def exchange(self, number, base, clients="abc"):
        return f.all_exchange(lambda name: self.client(name).exchange(f.update_of(name, number, base)), clients)

    def stop(self):
        self.coordinator.stopping = True
        self.thread.join()


@pytest.fixture
def serve():
    running = []
    with quick_folder() as folder:

        def start(name="one", **more):
            running.append(Served(folder / name, **more))
            return running[-1]

        yield start
        for served in running:
            served.stop()


def test_rounds_over_sockets_have_the_bits_of_rounds_in_a_folder(serve):
    served = serve()
    base = ""
    for number in (1, 2, 3):
        outcomes = served.exchange(number, base)
        assert {(one.state, one.took_part, one.round) for one in outcomes.values()} == {("closed", True, number)}
        base = outcomes["a"].model.base
        assert base == f.expected(number, "abc")
        assert {content_hash(one.model.arrays) for one in outcomes.values()} == {base}
        assert outcomes["c"].record == folder.read_record(served.made, number)


def test_at_the_deadline_a_quorum_is_enough_and_below_it_nothing_changes(serve):
    served = serve(timeout_s=0.1, quorum=1)
    base = served.client("a").exchange(f.update_of("a", 1)).model.base
    assert base == f.expected(1, "a")
    late = served.client("c").exchange(f.update_of("c", 2))
    assert (late.state, content_hash(late.model.arrays)) == ("refused", base)
    assert " 1 round" in late.reason
    strict = serve("two", timeout_s=0.1, quorum=2)
    alone = strict.client("a").exchange(f.update_of("a", 1))
    assert (alone.state, alone.took_part, alone.model) == ("failed", False, rounds.Model(2, "", None))


def test_a_client_that_joins_later_catches_up(serve):
    served = serve()
    assert served.client("z").catch_up("") == rounds.Model(1, "", None)
    base = served.exchange(1, "")["a"].model.base
    newest = served.client("z").catch_up("")
    assert (newest.round, newest.base, content_hash(newest.arrays)) == (2, base, base)
    assert served.client("z").catch_up(base).arrays is None


def test_who_does_not_wait_or_leaves_does_not_hold_the_others_up(serve):
    served = serve()
    assert served.client("a").exchange(f.update_of("a", 1), patient=never) is None
    served.client("c").leave("c")
    assert served.client("b").exchange(f.update_of("b", 1)).state == "closed"
    back = served.client("a").exchange(f.update_of("a", 1))
    assert (back.took_part, back.model.base) == (True, f.expected(1, "ab"))


def test_the_others_do_not_wait_for_an_excluded_client_whose_update_is_refused_when_it_comes(serve):
    served = serve(timeout_s=20.0)
    outcomes = with_c_excluded(lambda update: served.client(update.client).exchange(update))
    assert outcomes["c"].state == "refused"
    assert "NaN" in outcomes["c"].reason
    assert outcomes["a"].model.base == f.expected(3, "ab")
    assert outcomes["a"].record.duration_s < served.made.limits.timeout_s / 2


def test_a_round_that_could_not_be_closed_is_tried_again_as_what_it_was(serve, monkeypatch):
    served, overdue, advance = serve(), [], closing.advance
    monkeypatch.setattr("slipstream.federate.coordinator.RETRY_S", 0.01)

    def full_at_first(made, number, **more):
        overdue.append(more["overdue"])
        if len(overdue) < 3:
            raise OSError("no space left on device")
        return advance(made, number, **more)

    monkeypatch.setattr("slipstream.federate.coordinator.closing.advance", full_at_first)
    assert {one.model.base for one in served.exchange(1, "").values()} == {f.expected(1, "abc")}
    assert overdue == [False, False, False]  # nobody's deadline has passed


def test_nobody_listens_on_tcp_without_a_token_and_a_wrong_one_is_told(serve):
    with pytest.raises(ScenarioError, match="token"):
        listen(Address(None, "127.0.0.1", 0), "")
    served = serve()
    assert served.address.host == "127.0.0.1"
    with pytest.raises(FederationError, match=f"{served.address}.* token "):
        served.client("a", token="another").catch_up("")
    assert served.client("a", token="another").exchange(f.update_of("a", 1)).state == "undecided"
    assert folder.not_waited_for(served.made, 1) == frozenset()


def test_a_coordinator_that_is_away_costs_a_round_and_not_the_run():
    free, address = listen(Address(None, "127.0.0.1", 0), TOKEN)
    free.close()
    rules = rounds.RoundLimits(clients=2, quorum=1, timeout_s=0.1, closing_s=0.1)
    client = CoordinatorTransport(address, "a", TOKEN, rules)
    outcome = client.exchange(f.update_of("a", 5, "0" * 64))
    assert (outcome.state, outcome.model) == ("undecided", rounds.Model(5, "0" * 64, None))
    assert f"{address}" in outcome.reason
    with pytest.raises(FederationError, match=f"{address}.*Connection refused"):
        client.catch_up("")


def test_a_coordinator_that_was_started_again_knows_what_it_was_sent(serve):
    served = serve()
    assert served.client("a").exchange(f.update_of("a", 1), patient=never) is None
    served.stop()
    again = serve()  # the same folder
    with connect(again.address, 5.0) as link:
        talk = CoordinatorLink(FramedLink(link, ANSWERS), again.client("a"), time.monotonic() + 5.0)
        answer, _ = talk.call(Await("a-1", "", patient=False))
        assert not isinstance(answer, Send)
        answer, _ = talk.call(Await("a-2", "", patient=False))
        assert not isinstance(answer, Send)  # another update of the same client would not be taken
    assert {one.model.base for one in again.exchange(1, "").values()} == {f.expected(1, "abc")}


def test_a_coordinator_finishes_what_one_before_it_decided(serve):
    served = serve()
    served.stop()
    for name in "ab":
        f.file_now(served.made, f.update_of(name, 1))
    with pytest.raises(f.Stopped):
        f.close_now(replace(served.made, aggregate=f.stop))
    again = serve()
    f.wait_for(lambda: folder.read_record(again.made, 1) is not None)
    assert again.client("a").exchange(f.update_of("a", 1)).model.base == f.expected(1, "ab")


def test_two_coordinators_do_not_share_a_folder(serve):
    served = serve()
    assert served.client("a").catch_up("").round == 1
    server, _ = listen(Address(None, "127.0.0.1", 0), TOKEN)
    second = Coordinator(server, served.made, TOKEN)
    with pytest.raises(FederationError, match=re.escape(f"{served.made.folder / folder.LOCK}: ")):
        second.run()
    server.close()


def test_messages_keep_their_words_whatever_the_code_calls_them(serve):
    served = serve()
    record = served.exchange(1, "")["a"].record
    said = {type(one): msgspec.to_builtins(one) for one in (Welcome(served.made.limits), RoundEnded(record, 2, "b"))}
    assert said[Welcome]["rules"]["discount"] == 0.0
    assert said[RoundEnded].keys() == {"say", "record", "round", "base"}
    assert msgspec.to_builtins(Stands(2, "b")) == {"say": "stands", "round": 2, "base": "b"}
    assert msgspec.to_builtins(Await("n", "b")) == {"ask": "await", "nonce": "n", "base": "b", "patient": True}
    assert msgspec.to_builtins(Submit("n", "b", 1)).keys() == {"ask", "nonce", "base", "round", "patient"}


# --- strangers ---


def entered(served, name="liar"):
    link = connect(served.address, 5.0)
    return link, CoordinatorLink(FramedLink(link, ANSWERS), served.client(name), time.monotonic() + 20.0)


def answer_to(link: socket.socket, data: bytes):
    """What the coordinator says to these bytes; None if it hangs up, and an error if it does neither."""
    link.settimeout(20.0)
    got = b""
    try:
        link.sendall(data)
        while len(got) < HEAD.size or len(got) < HEAD.size + ANSWERS.parse_head(got, 1 << 30).body:
            part = link.recv(65536)
            if not part:
                return None
            got += part
    except ConnectionError:
        return None
    return ANSWERS.parse(got[HEAD.size : HEAD.size + ANSWERS.parse_head(got, 1 << 30).body])


HERE = (MAGIC, VERSION, MessageProtocol.COORDINATOR)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD.pack(*HERE, 2**32 - 1, 0),
        HEAD.pack(*HERE, 10, 2**32 - 1),
        HEAD.pack(MAGIC, 9, *HERE[2:], 10, 0),
        REQUESTS.frame(CatchUp("")),  # before it has entered
        REQUESTS.frame(EnterFederation("../../etc", TOKEN)),
        REQUESTS.frame(EnterFederation("a", TOKEN), 100) + b"x" * 100,
        HEAD.pack(*HERE, 4, 0) + b"\xc1\xc1\xc1\xc1",
        HEAD.pack(*HERE, 3000, 0) + b"\x91" * 3000,
    ],
    ids=["http", "large body", "large data", "version", "not entered", "id", "data", "no msgpack", "nested"],
)
def test_nonsense_is_hung_up_on_and_the_others_do_not_notice(serve, data):
    served = serve()
    link = connect(served.address, 5.0)
    said = answer_to(link, data)
    assert said is None or isinstance(said, CoordinatorRefusal)
    assert link.recv(1) == b"" if said is not None else True
    link.close()
    assert {one.state for one in served.exchange(1, "").values()} == {"closed"}


def test_malformed_and_foreign_updates_are_refused_with_a_reason_and_counted(serve):
    served = serve()
    good = f.update_of("liar", 1)
    whole = b"".join(update_chunks(good))
    cases = {
        "impossible": b"\x80\x04" + b"x" * 100,
        "truncated": whole[:-3],
        "another's": b"".join(update_chunks(replace(good, client="a"))),
        "announced": b"".join(update_chunks(replace(good, update_id="x"))),
    }
    link, talk = entered(served)
    with link:
        for wanted, body in cases.items():
            answer, _ = talk.call(Submit(good.update_id, "", 1), body)
            assert isinstance(answer, CoordinatorRefusal), wanted
            assert wanted in answer.reason
    record = served.exchange(1, "")["a"].record
    assert record.refused == {"malformed": 4}
    assert record.aggregate == f.expected(1, "abc")


def test_an_update_whose_round_ended_while_it_was_on_its_way_is_asked_for_again(serve):
    served = serve()
    base = served.exchange(1, "")["a"].model.base
    late = f.update_of("d", 1, base)
    link, talk = entered(served, "d")
    with link:
        answer, _ = talk.call(Submit(late.update_id, base, 1), b"".join(update_chunks(late)))
    assert answer == Send(2)


def test_an_update_larger_than_the_model_is_refused_by_its_length_alone(serve):
    served = serve()
    base = served.exchange(1, "")["a"].model.base
    link, talk = entered(served)
    with link, contextlib.suppress(WireError, ConnectionError):  # the refusal may be lost with what was not read
        assert isinstance(talk.call(Submit("n", base, 2), b"x" * (3 << 20))[0], CoordinatorRefusal)
    assert {one.state for one in served.exchange(2, base).values()} == {"closed"}


def test_slow_and_silent_connections_are_dropped_while_clients_are_served(serve):
    served = serve(limits=ServerLimits(enter_s=0.5, frame_s=0.5))
    silent = [connect(served.address, 5.0) for _ in range(20)]
    half, _ = entered(served)
    half.sendall(REQUESTS.frame(Submit("n", "", 1), 1000)[:-1])
    assert {one.state for one in served.exchange(1, "").values()} == {"closed"}
    for link in (*silent, half):
        link.settimeout(20.0)
        assert link.recv(1) == b""
        link.close()
    f.wait_for(lambda: any("half done" in text for text in served.said))


def test_strangers_who_take_all_connections_are_dropped_for_clients(serve):
    served = serve(limits=ServerLimits(max_connections=8, enter_s=60.0))
    strangers = [connect(served.address, 5.0) for _ in range(30)]
    assert {one.state for one in served.exchange(1, "").values()} == {"closed"}
    for link in strangers:
        link.close()


def test_random_bytes_take_no_memory_and_hurt_nobody(serve):
    served = serve()
    rng = random.Random(5)
    before = psutil.Process().memory_info().rss
    good = b"".join(
        [REQUESTS.frame(EnterFederation("x", TOKEN)), REQUESTS.frame(Submit("n", "", 1), 500), rng.randbytes(500)]
    )
    for _ in range(150):
        link = connect(served.address, 5.0)
        data = bytearray(good if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 5000)))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        link.sendall(data)
        link.close()
    assert {one.state for one in served.exchange(1, "").values()} == {"closed"}
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it_and_holds_nobody_up(serve):
    served = serve(clients=2, quorum=2)
    big = {"w": np.arange(1 << 20, dtype=np.float32)}  # more than sockets keep
    for name in "ab":
        sent = replace(f.update_of(name, 1), arrays=big)
        served.client(name).exchange(sent, patient=never)
    base = served.client("c").catch_up("").base
    slow, _ = entered(served, "slow")
    slow.sendall(REQUESTS.frame(CatchUp("")))
    assert served.client("d").catch_up("").base == base
    time.sleep(0.05)
    until = time.monotonic() + 20.0
    with FramedLink(slow, ANSWERS) as link:
        _, size = link.receive(until, 1 << 30)
        got = link.read(size, until)
    assert hashlib.sha256(got).hexdigest() == base
    assert size > 4 << 20


def test_a_coordinator_ends_with_what_it_watches():
    with quick_folder() as folder:
        made = f.federation(folder)
        server, _ = listen(Address(None, "127.0.0.1", 0), TOKEN)
        theirs, ours = os.pipe()
        thread = threading.Thread(target=Coordinator(server, made, TOKEN, watch=theirs).run)
        thread.start()
        os.close(ours)
        thread.join(timeout=10)
        assert not thread.is_alive()
        os.close(theirs)
