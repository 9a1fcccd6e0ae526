"""The socket server and the framed link: order, parking, back-pressure, turns, deadlines, and who is turned away."""

import socket
import struct
import threading
import time
from dataclasses import dataclass

import msgspec
import pytest

from slipstream.runtime.address import connect, listen, parse_address
from slipstream.runtime.frames import HEAD, MessageProtocol, MessageSet, WireError
from slipstream.runtime.link import FramedLink, ImpatientError
from slipstream.runtime.server import TURN, Connection, ServerLimits, SocketServer


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="ask", tag="ask"):
    what: str
    size: int = 0


class Tell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag="tell"):
    what: str


REQUESTS = MessageSet(MessageProtocol.REPLAY, 1 << 10, msgspec.msgpack.Decoder(Ask))
ANSWERS = MessageSet(MessageProtocol.REPLAY, 1 << 10, msgspec.msgpack.Decoder(Tell))


@dataclass(eq=False)
class Guest(Connection):
    waits: bool = False


class Echo:
    """Tells what it was asked; `wait` is answered when somebody says `go`, `give` with so many bytes."""

    def __init__(self, limits):
        listener, self.address = listen(parse_address("tcp://127.0.0.1:0"), "token")
        self.stopping, self.log, self.most, self.goes = False, [], 0, False
        self.server = SocketServer(listener, REQUESTS, self, limits)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        self.server.serve()
        self.server.close()

    def link(self):
        return FramedLink(connect(self.address, 5.0), ANSWERS)

    def connected(self, link, now, is_local):
        return Guest(link, now, is_local)

    def max_data(self, guest):
        return 1 << 10

    def turns(self, ready):
        return sorted(ready, key=lambda guest: guest.name)

    def take(self, guest, message, data):
        self.most = max(self.most, len(guest.inbox))
        return message

    def do(self, guest, request):
        self.log.append((guest.name, request.what))
        if request.what == "bad":
            raise WireError("that is not done here")
        if request.what == "defect":
            raise ZeroDivisionError
        if request.what == "wait":
            guest.waits = guest.is_deferred = True
            return TURN
        guest.name = guest.name or request.what
        self.goes |= request.what == "go"
        self.server.answer(guest, Tell(request.what), bytes(request.size))
        return TURN

    def refusal(self, guest, error):
        return Tell(f"refused: {error}")

    def between(self):
        if self.goes:
            self.goes = False
            for guest in self.server.connections:
                if guest.waits:
                    self.server.answer_deferred(guest, self.wake)

    def wake(self, guest):
        guest.waits = False
        self.server.answer(guest, Tell("at last"))

    def pause_s(self):
        return 0.05

    def ended(self, guest, why):
        self.log.append((guest.name, f"ended: {why}"))


@pytest.fixture
def echo():
    running = []

    def start(**limits):
        running.append(Echo(ServerLimits(**limits)))
        return running[-1]

    yield start
    for each in running:
        each.stopping = True
        each.thread.join()


def soon():
    return time.monotonic() + 10.0


def told(link, max_data=0):
    message, size = link.receive(soon(), max_data)
    link.read(size, soon())
    return message.what


def test_requests_sent_at_once_are_answered_in_order(echo):
    with echo().link() as link:
        words = [f"word {n}" for n in range(50)]
        for word in words:
            link.send(Ask(word), soon(), later=True)
        link.flush(soon())
        assert [told(link) for _ in words] == words


def test_a_deferred_request_is_answered_later_and_what_came_after_it_then(echo):
    served = echo()
    with served.link() as waits, served.link() as goes:
        for word in ("a", "wait", "after"):
            waits.send(Ask(word), soon())
        assert told(waits) == "a"
        waits.patient = lambda: False
        with pytest.raises(ImpatientError):
            waits.receive(soon())
        waits.patient = None
        goes.send(Ask("go"), soon())
        assert told(goes) == "go"
        assert [told(waits), told(waits)] == ["at last", "after"]


def test_who_does_not_take_its_answers_is_not_served_on_and_loses_none(echo):
    served = echo()
    with served.link() as slow, served.link() as other:
        for _ in range(64):
            slow.send(Ask("give", 1 << 20), soon(), later=True)
        slow.flush(soon())
        other.send(Ask("hello"), soon())
        assert told(other) == "hello"  # nobody else notices
        assert len([1 for _, what in served.log if what == "give"]) < 32
        assert [told(slow, 1 << 20) for _ in range(64)] == ["give"] * 64
    assert served.most <= HEAD.size + (1 << 11)


def test_nonsense_and_defects_end_one_connection(echo, capfd):
    served = echo()
    with served.link() as honest, served.link() as bad, served.link() as defect, served.link() as foreign:
        bad.send(Ask("bad"), soon())
        assert told(bad) == "refused: that is not done here"
        defect.send(Ask("defect"), soon())
        foreign._socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert "older" in told(foreign)
        for link in (bad, defect, foreign):
            with pytest.raises(ConnectionResetError):
                link.receive(soon())
        honest.send(Ask("still here"), soon())
        assert told(honest) == "still here"
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_silent_and_half_said_connections_end_by_their_deadlines_and_deferred_ones_do_not(echo):
    served = echo(enter_s=0.2, frame_s=0.2)
    with served.link() as silent, served.link() as half, served.link() as waits, served.link() as goes:
        half.send(Ask("half"), soon())
        assert told(half) == "half"
        half._socket.sendall(REQUESTS.frame(Ask("never whole"))[:-1])
        for word in ("w", "wait"):
            waits.send(Ask(word), soon())
        assert told(waits) == "w"
        for link in (silent, half):
            with pytest.raises(ConnectionResetError):
                link.receive(soon())
        goes.close()
        with served.link() as again:
            again.send(Ask("go"), soon())
            assert told(waits) == "at last"


def test_strangers_make_room_for_those_who_say_who_they_are(echo):
    served = echo(max_connections=3, enter_s=60.0)
    strangers = [connect(served.address, 5.0) for _ in range(9)]
    with served.link() as link:
        link.send(Ask("me"), soon())
        assert told(link) == "me"
    for stranger in strangers:
        stranger.close()


def test_a_link_reads_data_to_their_place_and_notices_a_cut(echo):
    ours, theirs = socket.socketpair()
    with FramedLink(ours, ANSWERS, read_ahead=1 << 14) as link, theirs:
        theirs.sendall(ANSWERS.frame(Tell("one"), 4) + b"data" + ANSWERS.frame(Tell("two")) + b"SL")
        place = bytearray(6)
        message, size = link.receive(soon(), 4)
        link.read_into(memoryview(place)[1 : 1 + size], soon())
        assert (message.what, bytes(place)) == ("one", b"\0data\0")
        assert link.is_readable()
        assert told(link) == "two"
        with pytest.raises(TimeoutError):
            link.receive(time.monotonic() + 0.05)
        theirs.close()
        with pytest.raises(ConnectionResetError, match=f" 2 of {HEAD.size} bytes"):
            link.receive(soon())


@pytest.mark.parametrize(
    "data", [b"", b"SL", ANSWERS.frame(Tell("x"))[:-1], ANSWERS.frame(Tell("x")) + b"x", ANSWERS.frame(Tell("x"), 1)]
)
def test_a_whole_frame_is_one_message_and_nothing_else(data):
    assert ANSWERS.parse_whole(ANSWERS.frame(Tell("x"))) == Tell("x")
    with pytest.raises(WireError):
        ANSWERS.parse_whole(data)
    assert HEAD.size == struct.calcsize("<2sBBIQ")
