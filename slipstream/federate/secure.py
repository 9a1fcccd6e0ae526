"""Secure aggregation: a server that adds up clients' vectors and never sees one (Bonawitz et al. 2017, CCS).

Every pair of clients agrees on a mask that one adds and the other takes off, so that masks vanish from the sum; and
every client adds a mask of its own. Secret shares of both go to the others beforehand. When some clients do not answer,
the rest give the server shares of the *keys* of those who are missing, which takes their pair masks out, and shares of
the *seeds* of those who are there, which takes their own masks out: for any client one kind, never both. A client whose
vector comes late is one whose key is known by then, and its own mask still hides it.

    client: SecureClient(terms, id) -> keys           server: receive, then list_keys  -> KeyList to all
    client: share(KeyList)         -> Boxes           server: receive, then deliver    -> an Inbox to each
    client: mask(Inbox, vector)    -> Masked          server: receive, then survivors  -> Survivors to all
    client: unmask(Survivors)      -> Unmask          server: receive, then open_sum   -> the sum

Neither side does any input or output, waits, or writes to disk: a transport carries the frozen messages (`encode`,
`decode`), and ends a step at its deadline. Secrets live only in a `Client`, for one sum; if it dies, it has dropped
out.

Keys, masks and numbers are in secure_keys.py. What this does not defend against is in docs/privacy.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from os import urandom
from typing import Literal, NamedTuple, NoReturn, TypeVar

import msgspec
import numpy as np

from slipstream.errors import FederationError
from slipstream.federate import secure_keys as crypto
from slipstream.federate.secure_keys import KEY_BYTES, SECRET_BYTES, SHARE_BYTES
from slipstream.federate.secure_keys import pack as pack
from slipstream.federate.secure_keys import unpack as unpack
from slipstream.federate.update import check_id
from slipstream.runtime.frames import MAGIC, MAX_BODY, MessageProtocol, MessageSet, WireError
from slipstream.types import F64

T = TypeVar("T")

TAG_BYTES = 16  # that a box is longer than what is in it
BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES


# --- messages ---


class SumTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all agree on before a sum."""

    session: str  # names one policy in one round of one run
    threshold: int  # fewest clients of a sum; more than half of those who send keys
    length: int  # numbers in a vector


class SumMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said for one sum."""

    session: str


class Keys(SumMessage, frozen=True, tag="keys"):
    """Public keys of one client: for boxes and for masks."""

    client: str
    box_key: bytes
    mask_key: bytes


class KeyList(SumMessage, frozen=True, tag="key_list"):
    """Everyone's keys, in the order of ids."""

    keys: tuple[Keys, ...]


class Boxes(SumMessage, frozen=True, tag="boxes"):
    """One client's shares, locked, for each of the others; and the hash of its seed, so that a wrong one is noticed."""

    client: str
    seed_hash: bytes
    boxes: dict[str, bytes]  # by receiver


class Inbox(SumMessage, frozen=True, tag="inbox"):
    """What the others sent to one client."""

    boxes: dict[str, bytes]  # by sender


class Masked(SumMessage, frozen=True, tag="masked"):
    """One client's vector under its masks."""

    client: str
    vector: bytes  # little-endian uint64


class Survivors(SumMessage, frozen=True, tag="survivors"):
    """Whose vectors are in the sum."""

    clients: tuple[str, ...]


class Unmask(SumMessage, frozen=True, tag="unmask"):
    """One client's shares: of the seeds of those in the sum, and of the keys of those who are not."""

    client: str
    seed_shares: dict[str, bytes]
    key_shares: dict[str, bytes]


FromClient = Keys | Boxes | Masked | Unmask
Message = FromClient | KeyList | Inbox | Survivors

MESSAGES: MessageSet[Message] = MessageSet(MessageProtocol.SECURE_SUM, MAX_BODY, msgspec.msgpack.Decoder(Message))


def encode(message: Message) -> bytes:
    """A message as bytes: a frame without data."""
    return MESSAGES.frame(message)


def decode(data: bytes) -> Message:
    """A message of bytes that came from outside."""
    return parse_file(data, MESSAGES)


def parse_file(data: bytes, messages: MessageSet[T]) -> T:
    """What a file says that others have written; FederationError for whatever is no message."""
    try:
        # Rounds that were begun before frames had a head are read as well.
        return messages.parse_whole(data) if data.startswith(MAGIC) else messages.parse(data)
    except WireError as error:
        raise FederationError(f"secure aggregation: {len(data)} bytes are no message: {error}") from None


# --- client ---


class SecureClient:
    """One client's side of one sum. A message that is refused changes nothing; each step is taken once."""

    def __init__(self, terms: SumTerms, client: str) -> None:
        if terms.threshold < 2 or terms.length < 1:
            raise FederationError(
                f"secure aggregation: a threshold of {terms.threshold} over {terms.length} numbers hides nothing; the "
                "threshold is at least 2"
            )
        self.terms = terms
        self.client = check_id(client, "client")
        self._step: Literal["keys", "shared", "masked", "answered"] = "keys"
        self._box_key, self._mask_key = (
            crypto.private_key(urandom(KEY_BYTES)),
            crypto.private_key(urandom(KEY_BYTES)),
        )
        self._listed: dict[str, Keys] = {}
        self._context = b""
        self._seed = b""
        self._shares: dict[str, tuple[bytes, bytes]] = {}  # of key and seed, by whose they are
        self._answer: tuple[Survivors, Unmask] | None = None

    @property
    def keys(self) -> Keys:
        """What the client sends first."""
        return Keys(self.terms.session, self.client, crypto.public(self._box_key), crypto.public(self._mask_key))

    def share(self, listed: KeyList) -> Boxes:
        """Shares of the client's key and seed, locked for each of the others."""
        self._expect("keys", listed.session)
        keys = {check_id(key.client, "client"): key for key in listed.keys}
        if len(keys) != len(listed.keys) or list(keys) != sorted(keys) or keys.get(self.client) != self.keys:
            self._refuse("the list of keys names a client twice, is not in order, or has not the keys it sent")
        public = [key for each in listed.keys for key in (each.box_key, each.mask_key)]
        if len(set(public)) != len(public) or any(len(key) != KEY_BYTES for key in public):
            self._refuse("the list of keys has one twice, or of another size than 32 bytes")
        if not self.terms.threshold <= len(keys) < 2 * self.terms.threshold:
            self._refuse(
                f"{len(keys)} clients and a threshold of {self.terms.threshold}: it must be more than half of them, or "
                "a server could have one part tell the seed and another the key of the same client"
            )
        context = _context(self.terms, listed.keys)
        seed, mask_secret = urandom(SECRET_BYTES), self._mask_key.private_bytes_raw()
        cut = [crypto.split_secret(secret, self.terms.threshold, len(keys)) for secret in (mask_secret, seed)]
        shares = dict(zip(keys, zip(*cut, strict=True), strict=True))
        boxes = {}
        for name in [name for name in keys if name != self.client]:
            key = crypto.derive(self._box_key, keys[name].box_key, context, "box", self.client, name)
            boxes[name] = crypto.lock(key, *shares[name])
        self._listed, self._context, self._seed = keys, context, seed
        self._shares = {self.client: shares[self.client]}
        self._step = "shared"
        return Boxes(self.terms.session, self.client, hashlib.sha256(seed).digest(), boxes)

    def mask(self, inbox: Inbox, vector: F64) -> Masked:
        """The vector under the client's own mask and one for each of those who sent a box."""
        self._expect("shared", inbox.session)
        if not inbox.boxes.keys() <= self._listed.keys() - {self.client}:
            strangers = inbox.boxes.keys() - (self._listed.keys() - {self.client})
            self._refuse(f"the box of {_names(strangers)} came, and the others in the list are {_names(self._listed)}")
        if len(inbox.boxes) + 1 < self.terms.threshold:
            self._refuse(f"{len(inbox.boxes) + 1} clients shared keys, fewer than the {self.terms.threshold} of a sum")
        if vector.shape != (self.terms.length,):
            self._refuse(f"a vector of shape {vector.shape} was to be added, but the terms say {self.terms.length}")
        opened = {}
        for sender, box in inbox.boxes.items():
            theirs = self._listed[sender].box_key
            key = crypto.derive(self._box_key, theirs, self._context, "box", sender, self.client)
            opened[sender] = crypto.unlock(key, box, sender)
        total = crypto.to_fixed(vector, len(self._listed))
        crypto.add_stream(total, crypto.own_stream(self._seed, self._context, self.client), add=True)
        for other in opened:
            stream = crypto.pair_stream(self._mask_key, self._listed[other].mask_key, self._context, self.client, other)
            crypto.add_stream(total, stream, add=self.client < other)
        self._shares |= opened
        self._step = "masked"
        return Masked(self.terms.session, self.client, total.astype("<u8", copy=False).tobytes())

    def unmask(self, survivors: Survivors) -> Unmask:
        """Shares of the seeds of those in the sum and of the keys of the others; the same again if asked again."""
        if self._answer is not None and survivors == self._answer[0]:
            return self._answer[1]
        if self._step == "answered":
            told, asked = _names(self._answer[0].clients) if self._answer else "", _names(survivors.clients)
            self._refuse(f"it answered for {told}, is asked for {asked}, and never tells both seed and key of a client")
        self._expect("masked", survivors.session)
        there = set(survivors.clients)
        if list(survivors.clients) != sorted(there) or not there <= self._shares.keys() or self.client not in there:
            self._refuse(
                f"{', '.join(survivors.clients):.200}: the clients in the sum must be in order, each have sent boxes, "
                "and it must be one of them"
            )
        if len(there) < self.terms.threshold:
            self._refuse(
                f"a sum of {len(there)} would be opened, and fewer than {self.terms.threshold} hide too little of each"
            )
        answer = Unmask(
            self.terms.session,
            self.client,
            seed_shares={name: seed for name, (_, seed) in self._shares.items() if name in there},
            key_shares={name: key for name, (key, _) in self._shares.items() if name not in there},
        )
        self._answer, self._step = (survivors, answer), "answered"
        self._shares, self._seed = {}, b""
        return answer

    def _expect(self, step: str, session: str) -> None:
        if session != self.terms.session:
            self._refuse(f"the message is of {session!r:.80}, and this sum is {self.terms.session!r}")
        if step != self._step:
            self._refuse(f"the message is for step '{step}', and the client is at '{self._step}'")

    def _refuse(self, why: str) -> NoReturn:
        raise FederationError(f"secure aggregation: client {self.client} refuses: {why}")


# --- server ---


class OpenedSum(NamedTuple):
    """What a server learns."""

    total: F64  # [length]
    clients: tuple[str, ...]  # whose vectors are in it


class Server:
    """The server's side of one sum. Whoever carries the messages decides when a step ends."""

    def __init__(self, terms: SumTerms) -> None:
        self.terms = terms
        self._step: Literal["keys", "boxes", "masked", "unmask", "closed"] = "keys"
        self._keys: dict[str, Keys] = {}
        self._boxes: dict[str, Boxes] = {}
        self._total = np.zeros(terms.length, np.uint64)  # of what has come: exact in any order
        self._there: set[str] = set()  # whose vectors are in it
        self._answers: dict[str, Unmask] = {}
        self._context = b""

    def receive(self, message: Message) -> None:
        """Take one client's message of the current step; anything else is refused and changes nothing."""
        match message:
            case Keys():
                self._expect("keys", message, self._keys)
                self._take_keys(message)
            case Boxes():
                self._expect("boxes", message, self._boxes, self._keys)
                if message.boxes.keys() != self._keys.keys() - {message.client}:
                    others = self._keys.keys() - {message.client}
                    self._refuse(message, f"its boxes are for {_names(message.boxes)}, and due are {_names(others)}")
                if len(message.seed_hash) != 32 or any(len(box) != BOX_BYTES for box in message.boxes.values()):
                    sizes = [len(message.seed_hash), *(len(box) for box in message.boxes.values())]
                    self._refuse(message, f"hash and boxes have {sizes} bytes; a hash has 32, a box {BOX_BYTES}")
                self._boxes[message.client] = message
            case Masked():
                self._expect("masked", message, self._there, self._boxes)
                if len(message.vector) != 8 * self.terms.length:
                    self._refuse(message, f"{len(message.vector)} bytes are not {self.terms.length} numbers")
                self._total += np.frombuffer(message.vector, "<u8")
                self._there.add(message.client)
            case Unmask():
                self._expect("unmask", message, self._answers, self._there)
                # Both kinds for one client would open its vector: a server that means well will not even hold them.
                missing = self._boxes.keys() - self._there
                if message.seed_shares.keys() != self._there or message.key_shares.keys() != missing:
                    seeds, keys = _names(message.seed_shares), _names(message.key_shares)
                    due = f"due are seeds of {_names(self._there)} and keys of {_names(missing)}"
                    self._refuse(message, f"it has seeds of {seeds} and keys of {keys}; {due}")
                shares = (*message.seed_shares.values(), *message.key_shares.values())
                if any(len(share) != SHARE_BYTES for share in shares):
                    sizes = sorted({len(share) for share in shares})
                    self._refuse(message, f"its shares have {sizes} bytes; a share has {SHARE_BYTES}")
                self._answers[message.client] = message
            case _:
                kind = type(message).__name__.lower()
                raise FederationError(f"secure aggregation: the server refuses '{kind}', which only it sends")

    def list_keys(self) -> KeyList:
        """End the step of keys; the list goes to all who sent theirs."""
        self._close("keys", len(self._keys), "sent keys")
        if (came := len(self._keys)) >= 2 * self.terms.threshold:
            self._fail(f"{came} clients came; a threshold of {self.terms.threshold} must be more than half of them")
        self._step = "boxes"
        keys = tuple(self._keys[name] for name in sorted(self._keys))
        self._context = _context(self.terms, keys)
        return KeyList(self.terms.session, keys)

    def deliver(self) -> dict[str, Inbox]:
        """End the step of shares; an inbox for each who took part in it."""
        self._close("boxes", len(self._boxes), "shared their keys")
        self._step = "masked"
        return {
            name: Inbox(
                self.terms.session,
                {sender: self._boxes[sender].boxes[name] for sender in sorted(self._boxes) if sender != name},
            )
            for name in sorted(self._boxes)
        }

    def survivors(self) -> Survivors:
        """End the step of vectors: those that have come are in the sum, and later ones stay out of it for good."""
        self._close("masked", len(self._there), "sent vectors")
        self._step = "unmask"
        return Survivors(self.terms.session, tuple(sorted(self._there)))

    def open_sum(self) -> OpenedSum:
        """End the last step: the masks come off the sum."""
        self._close("unmask", len(self._answers), "helped to unmask")
        self._step = "closed"
        helpers = sorted(self._answers)[: self.terms.threshold]
        number = {name: i for i, name in enumerate(sorted(self._keys), 1)}  # of everyone's shares
        there = sorted(self._there)
        for name in there:
            seed = self._recover("seed", name, {number[h]: self._answers[h].seed_shares[name] for h in helpers})
            if hashlib.sha256(seed).digest() != self._boxes[name].seed_hash:
                self._fail(f"seed of {name}: the shares of {', '.join(helpers)} do not give it back")
            crypto.add_stream(self._total, crypto.own_stream(seed, self._context, name), add=False)
        for name in sorted(self._boxes.keys() - self._there):
            secret = self._recover("key", name, {number[h]: self._answers[h].key_shares[name] for h in helpers})
            key = crypto.private_key(secret)
            if crypto.public(key) != self._keys[name].mask_key:
                self._fail(f"key of {name}: the shares of {', '.join(helpers)} do not give it back")
            for other in there:
                stream = crypto.pair_stream(key, self._keys[other].mask_key, self._context, name, other)
                crypto.add_stream(self._total, stream, add=name < other)  # what `other` took off for it, or the reverse
        return OpenedSum(crypto.from_fixed(self._total), tuple(there))

    def _expect(self, step: str, message: FromClient, came: Iterable[str], before: Iterable[str] | None = None) -> None:
        """Refuse a message of another sum or step, a second one, and one of who was not in the step before."""
        if message.session != self.terms.session:
            self._refuse(message, f"it is of {message.session!r:.80}, and this sum is {self.terms.session!r}")
        if step != self._step:
            self._refuse(message, f"it is for step '{step}', and this is '{self._step}'")
        if message.client in came:
            self._refuse(message, "2 of them came, and 1 counts")
        if before is not None and message.client not in before:
            self._refuse(message, f"the client was not in the step before, where {_names(before)} were")

    def _take_keys(self, message: Keys) -> None:
        check_id(message.client, "client")
        known = {key for each in self._keys.values() for key in (each.box_key, each.mask_key)}
        new = (message.box_key, message.mask_key)
        if any(len(key) != KEY_BYTES or key in known for key in new) or new[0] == new[1]:
            self._refuse(message, "a key has the wrong size, or is someone else's")
        self._keys[message.client] = message

    def _recover(self, kind: str, name: str, shares: Mapping[int, bytes]) -> bytes:
        try:
            return crypto.join_shares(shares)
        except FederationError as error:
            self._fail(f"{kind} of {name}: {error}")

    def _close(self, step: str, count: int, what: str) -> None:
        if step != self._step:
            raise FederationError(f"secure aggregation: step '{step}' cannot end; this is '{self._step}'")
        if count < self.terms.threshold:
            self._fail(
                f"{count} clients {what}, and a sum needs {self.terms.threshold}; nothing was opened, try another round"
            )

    def _fail(self, why: str) -> NoReturn:
        self._step = "closed"
        raise FederationError(f"secure aggregation of {self.terms.session}: {why}")

    def _refuse(self, message: FromClient, why: str) -> NoReturn:
        kind = type(message).__name__.lower()
        raise FederationError(f"secure aggregation: '{kind}' of client {message.client!r:.80} is refused: {why}")


def _names(clients: Iterable[str]) -> str:
    """Names for a message; cut, since they may come from outside."""
    return f"{', '.join(sorted(clients)) or 'nobody':.200}"


def _context(terms: SumTerms, keys: Sequence[Keys]) -> bytes:
    """Hash of all that is public when shares are made: keys derived from it belong to this sum and this list only."""
    return hashlib.sha256(msgspec.msgpack.encode((terms, keys))).digest()
