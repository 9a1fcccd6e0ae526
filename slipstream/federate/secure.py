"""Secure aggregation: a server that adds up clients' vectors and never sees one (Bonawitz et al. 2017, CCS).

Every pair of clients agrees on a mask that one adds and the other takes off, so that masks vanish from the sum; and
every client adds a mask of its own. Secret shares of both go to the others beforehand. When some clients do not answer,
the rest give the server shares of the *keys* of those who are missing, which takes their pair masks out, and shares of
the *seeds* of those who are there, which takes their own masks out: for any client one kind, never both. A client whose
vector comes late is one whose key is known by then, and its own mask still hides it.

    client: Client(terms, id)      -> keys            server: receive, then list_keys  -> KeyList to all
    client: share(KeyList)         -> Boxes           server: receive, then deliver    -> an Inbox to each
    client: mask(Inbox, vector)    -> Masked          server: receive, then survivors  -> Survivors to all
    client: unmask(Survivors)      -> Unmask          server: receive, then open_sum   -> the sum

Neither side does any input or output, waits, or writes to disk: a transport carries the frozen messages (`encode`,
`decode`), and closes a phase at its deadline. Secrets live only in a `Client`, for one sum; if it dies, it has dropped
out.

Numbers are fixed-point, in units of 2^-32, in the ring of 64-bit integers, where sums are exact in any order: a sum of
n vectors is off by at most n · 2^-33. A number beyond ± 2^30 / n is refused before it is masked: a sum cannot wrap.

Keys are X25519, streams AES-256 in counter mode, boxes ChaCha20-Poly1305, all under HKDF-SHA256 of the shared secret,
what it is for, and the hash of the terms and the list of keys: clients that were shown different lists cannot open
each other's boxes. What this does not defend against is in docs/privacy.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from os import urandom
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.secure_keys import (
    KEY_BYTES,
    add_stream,
    derive,
    lock,
    own_stream,
    pair_stream,
    private_key,
    public,
    unlock,
)
from slipstream.federate.shamir import SECRET_BYTES, SHARE_BYTES, join, split
from slipstream.federate.update import Arrays, check_id

if TYPE_CHECKING:
    pass

F64 = NDArray[np.float64]
U64 = NDArray[np.uint64]

UNIT = 2.0**-32  # of the fixed-point numbers
LARGEST = 2.0**30  # of any sum: a factor of two below where the ring wraps
TAG_BYTES = 16  # that a box is longer than what is in it
BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES


# --- messages ---


class SumTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all agree on before a sum."""

    session: str  # names one policy in one round of one run
    threshold: int  # fewest clients of a sum; more than half of those who send keys
    length: int  # numbers in a vector


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="keys"):
    """Public keys of one client: for boxes and for masks."""

    session: str
    client: str
    box_key: bytes
    mask_key: bytes


class KeyList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="key_list"):
    """Everyone's keys, in the order of ids."""

    session: str
    keys: tuple[Keys, ...]


class Boxes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="boxes"):
    """One client's shares, locked, for each of the others; and the hash of its seed, so that a wrong one is noticed."""

    session: str
    client: str
    seed_hash: bytes
    boxes: dict[str, bytes]  # by receiver


class Inbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="inbox"):
    """What the others sent to one client."""

    session: str
    boxes: dict[str, bytes]  # by sender


class Masked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="masked"):
    """One client's vector under its masks."""

    session: str
    client: str
    vector: bytes  # little-endian uint64


class Survivors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="survivors"):
    """Whose vectors are in the sum."""

    session: str
    clients: tuple[str, ...]


class Unmask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="unmask"):
    """One client's shares: of the seeds of those in the sum, and of the keys of those who are not."""

    session: str
    client: str
    seed_shares: dict[str, bytes]
    key_shares: dict[str, bytes]


FromClient = Keys | Boxes | Masked | Unmask
Message = FromClient | KeyList | Inbox | Survivors

_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A message as bytes."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> Message:
    """A message of bytes that came from outside; whatever is not one is refused."""
    try:
        message: Message = _decoder.decode(data)
        return message
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise FederationError(f"secure aggregation: {len(data)} bytes are no message: {error}") from None


# --- vectors ---


def pack(arrays: Arrays, weight: float = 1.0) -> F64:
    """The weight and the weighted arrays as one vector, in the order of their names."""
    if not (np.isfinite(weight) and weight > 0):
        raise FederationError(f"secure aggregation: weight {weight} is not a number above 0")
    return np.concatenate(
        [np.array([weight]), *(arrays[name].astype(np.float64).ravel() * weight for name in sorted(arrays))]
    )


def unpack(total: F64, like: Arrays) -> tuple[dict[str, F64], float]:
    """The weighted mean of what was packed, named and shaped as `like`, and the sum of the weights."""
    if total.size != 1 + sum(array.size for array in like.values()) or not total[0] > 0:
        raise FederationError("secure aggregation: the sum does not fit the arrays it should be of")
    weight, at, mean = float(total[0]), 1, {}
    for name in sorted(like):
        size = like[name].size
        mean[name] = (total[at : at + size] / weight).reshape(like[name].shape)
        at += size
    return mean, weight


def to_fixed(vector: F64, clients: int) -> U64:
    """The vector in the ring, rounded to units of 2^-32; refused where a sum of so many could wrap."""
    vector = vector.astype(np.float64, copy=False)
    largest = float(np.maximum(vector.max(initial=0.0), -vector.min(initial=0.0)))
    if not largest <= LARGEST / clients:  # also where it is NaN
        raise FederationError(
            f"secure aggregation: {largest:g} is beyond ± {LARGEST / clients:g}, the most that {clients} clients may "
            "each add without a sum that wraps; send changes instead of values, or smaller weights"
        )
    scaled = vector * (1.0 / UNIT)
    return np.rint(scaled, out=scaled).astype(np.int64).view(np.uint64)


def from_fixed(total: U64) -> F64:
    """A sum in the ring as floats."""
    return total.view(np.int64).astype(np.float64) * UNIT


# --- client ---


class SecureClient:
    """One client's side of one sum. A message that is refused changes nothing; each phase is gone through once."""

    def __init__(self, terms: SumTerms, client: str) -> None:
        if terms.threshold < 2 or terms.length < 1:
            raise FederationError(
                f"secure aggregation: a threshold of {terms.threshold} over {terms.length} numbers hides nothing; the "
                "threshold is at least 2"
            )
        self.terms = terms
        self.client = check_id(client, "client")
        self._phase: Literal["keys", "shared", "masked", "answered"] = "keys"
        self._box_key, self._mask_key = private_key(urandom(KEY_BYTES)), private_key(urandom(KEY_BYTES))
        self._listed: dict[str, Keys] = {}
        self._context = b""
        self._seed = b""
        self._shares: dict[str, tuple[bytes, bytes]] = {}  # of key and seed, by whose they are
        self._answer: tuple[Survivors, Unmask] | None = None

    @property
    def keys(self) -> Keys:
        """What the client sends first."""
        return Keys(self.terms.session, self.client, public(self._box_key), public(self._mask_key))

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
        pairs = zip(
            split(mask_secret, self.terms.threshold, len(keys)),
            split(seed, self.terms.threshold, len(keys)),
            strict=True,
        )
        shares = dict(zip(keys, pairs, strict=True))
        boxes = {
            name: lock(derive(self._box_key, keys[name].box_key, context, "box", self.client, name), *shares[name])
            for name in keys
            if name != self.client
        }
        self._listed, self._context, self._seed = keys, context, seed
        self._shares = {self.client: shares[self.client]}
        self._phase = "shared"
        return Boxes(self.terms.session, self.client, hashlib.sha256(seed).digest(), boxes)

    def mask(self, inbox: Inbox, vector: F64) -> Masked:
        """The vector under the client's own mask and one for each of those who sent a box."""
        self._expect("shared", inbox.session)
        if not inbox.boxes.keys() <= self._listed.keys() - {self.client}:
            self._refuse("the inbox has a box of someone who is not in the list of keys")
        if len(inbox.boxes) + 1 < self.terms.threshold:
            self._refuse(f"{len(inbox.boxes) + 1} clients shared keys, fewer than the {self.terms.threshold} of a sum")
        if vector.shape != (self.terms.length,):
            self._refuse(f"a vector of shape {vector.shape} was to be added, but the terms say {self.terms.length}")
        opened = {
            sender: unlock(
                derive(self._box_key, self._listed[sender].box_key, self._context, "box", sender, self.client),
                box,
                sender,
            )
            for sender, box in inbox.boxes.items()
        }
        total = to_fixed(vector, len(self._listed))
        add_stream(total, own_stream(self._seed, self._context, self.client), add=True)
        for other in opened:
            stream = pair_stream(self._mask_key, self._listed[other].mask_key, self._context, self.client, other)
            add_stream(total, stream, add=self.client < other)
        self._shares |= opened
        self._phase = "masked"
        return Masked(self.terms.session, self.client, total.astype("<u8", copy=False).tobytes())

    def unmask(self, survivors: Survivors) -> Unmask:
        """Shares of the seeds of those in the sum and of the keys of the others; the same again if asked again."""
        if self._answer is not None and survivors == self._answer[0]:
            return self._answer[1]
        if self._phase == "answered":
            self._refuse("it has answered for other clients in the sum, and never tells both seed and key of a client")
        self._expect("masked", survivors.session)
        there = set(survivors.clients)
        if list(survivors.clients) != sorted(there) or not there <= self._shares.keys() or self.client not in there:
            self._refuse("the clients in the sum must be in order, each have sent boxes, and it must be one of them")
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
        self._answer, self._phase = (survivors, answer), "answered"
        self._shares, self._seed = {}, b""
        return answer

    def _expect(self, phase: str, session: str) -> None:
        if session != self.terms.session:
            self._refuse(f"the message is of {session!r:.80}, and this sum is {self.terms.session!r}")
        if phase != self._phase:
            self._refuse(f"the message is for phase '{phase}', and the client is in '{self._phase}'")

    def _refuse(self, why: str) -> NoReturn:
        raise FederationError(f"secure aggregation: client {self.client} refuses: {why}")


# --- server ---


class OpenedSum(NamedTuple):
    """What a server learns."""

    total: F64  # [length]
    clients: tuple[str, ...]  # whose vectors are in it


class Server:
    """The server's side of one sum. Whoever carries the messages decides when to close a phase."""

    def __init__(self, terms: SumTerms) -> None:
        self.terms = terms
        self._phase: Literal["keys", "boxes", "masked", "unmask", "closed"] = "keys"
        self._keys: dict[str, Keys] = {}
        self._boxes: dict[str, Boxes] = {}
        self._total = np.zeros(terms.length, np.uint64)  # of what has come: exact in any order
        self._there: set[str] = set()  # whose vectors are in it
        self._answers: dict[str, Unmask] = {}
        self._context = b""

    def receive(self, message: Message) -> None:
        """Take one client's message of the phase that is open; anything else is refused and changes nothing."""
        if not isinstance(message, FromClient):
            raise FederationError("secure aggregation: the server refuses a message that only it sends")
        phase, known, expected = self._before(message)
        if message.session != self.terms.session:
            self._refuse(message, f"it is of {message.session!r:.80}, and this sum is {self.terms.session!r}")
        if phase != self._phase:
            self._refuse(message, f"it is for phase '{phase}', and '{self._phase}' is open")
        if message.client in known:
            self._refuse(message, "it came before, and counts once")
        if expected is not None and message.client not in expected:
            self._refuse(message, "the client was not in the phase before")
        match message:
            case Keys():
                self._take_keys(message)
            case Boxes():
                if message.boxes.keys() != self._keys.keys() - {message.client}:
                    self._refuse(message, "there must be one box for each of the others")
                if len(message.seed_hash) != 32 or any(len(box) != BOX_BYTES for box in message.boxes.values()):
                    self._refuse(message, "a box or hash has the wrong size")
                self._boxes[message.client] = message
            case Masked():
                if len(message.vector) != 8 * self.terms.length:
                    self._refuse(message, f"{len(message.vector)} bytes are not {self.terms.length} numbers")
                self._total += np.frombuffer(message.vector, "<u8")
                self._there.add(message.client)
            case Unmask():
                # Both kinds for one client would open its vector: a server that means well will not even hold them.
                missing = self._boxes.keys() - self._there
                if message.seed_shares.keys() != self._there or message.key_shares.keys() != missing:
                    self._refuse(message, "it must have seeds of those in the sum, keys of the others, and no more")
                shares = (*message.seed_shares.values(), *message.key_shares.values())
                if any(len(share) != SHARE_BYTES for share in shares):
                    self._refuse(message, "a share has the wrong size")
                self._answers[message.client] = message

    def list_keys(self) -> KeyList:
        """Close the phase of keys; the list goes to all who sent theirs."""
        self._close("keys", len(self._keys), "sent keys")
        if len(self._keys) >= 2 * self.terms.threshold:
            self._fail(
                f"{len(self._keys)} clients came; a threshold of {self.terms.threshold} must be more than half of them"
            )
        self._phase = "boxes"
        keys = tuple(self._keys[name] for name in sorted(self._keys))
        self._context = _context(self.terms, keys)
        return KeyList(self.terms.session, keys)

    def deliver(self) -> dict[str, Inbox]:
        """Close the phase of shares; an inbox for each who took part in it."""
        self._close("boxes", len(self._boxes), "shared their keys")
        self._phase = "masked"
        return {
            name: Inbox(
                self.terms.session,
                {sender: self._boxes[sender].boxes[name] for sender in sorted(self._boxes) if sender != name},
            )
            for name in sorted(self._boxes)
        }

    def survivors(self) -> Survivors:
        """Close the phase of vectors: those that have come are in the sum, and later ones stay out of it for good."""
        self._close("masked", len(self._there), "sent vectors")
        self._phase = "unmask"
        return Survivors(self.terms.session, tuple(sorted(self._there)))

    def open_sum(self) -> OpenedSum:
        """Close the last phase: the masks come off the sum."""
        self._close("unmask", len(self._answers), "helped to unmask")
        self._phase = "closed"
        helpers = sorted(self._answers)[: self.terms.threshold]
        number = {name: i for i, name in enumerate(sorted(self._keys), 1)}  # of everyone's shares
        there = sorted(self._there)
        for name in there:
            seed = self._recover(name, {number[h]: self._answers[h].seed_shares[name] for h in helpers})
            if hashlib.sha256(seed).digest() != self._boxes[name].seed_hash:
                self._fail(f"the shares of {name}'s seed, from {', '.join(helpers)}, do not give it back")
            add_stream(self._total, own_stream(seed, self._context, name), add=False)
        for name in sorted(self._boxes.keys() - self._there):
            secret = self._recover(name, {number[h]: self._answers[h].key_shares[name] for h in helpers})
            key = private_key(secret)
            if public(key) != self._keys[name].mask_key:
                self._fail(f"the shares of {name}'s key, from {', '.join(helpers)}, do not give it back")
            for other in there:
                stream = pair_stream(key, self._keys[other].mask_key, self._context, name, other)
                add_stream(self._total, stream, add=name < other)  # what `other` took off for it, or the reverse
        return OpenedSum(from_fixed(self._total), tuple(there))

    def _before(self, message: FromClient) -> tuple[str, Iterable[str], Iterable[str] | None]:
        """The phase a message is for, who has sent one already, and who may."""
        match message:
            case Keys():
                return "keys", self._keys, None
            case Boxes():
                return "boxes", self._boxes, self._keys
            case Masked():
                return "masked", self._there, self._boxes
            case Unmask():
                return "unmask", self._answers, self._there

    def _take_keys(self, message: Keys) -> None:
        check_id(message.client, "client")
        known = {key for each in self._keys.values() for key in (each.box_key, each.mask_key)}
        new = (message.box_key, message.mask_key)
        if any(len(key) != KEY_BYTES or key in known for key in new) or new[0] == new[1]:
            self._refuse(message, "a key has the wrong size, or is someone else's")
        self._keys[message.client] = message

    def _recover(self, name: str, shares: Mapping[int, bytes]) -> bytes:
        try:
            return join(shares)
        except FederationError as error:
            self._fail(f"{name}: {error}")

    def _close(self, phase: str, count: int, what: str) -> None:
        if phase != self._phase:
            raise FederationError(f"secure aggregation: phase '{phase}' cannot be closed; '{self._phase}' is open")
        if count < self.terms.threshold:
            self._fail(
                f"{count} clients {what}, and a sum needs {self.terms.threshold}; nothing was opened, try another round"
            )

    def _fail(self, why: str) -> NoReturn:
        self._phase = "closed"
        raise FederationError(f"secure aggregation of {self.terms.session}: {why}")

    def _refuse(self, message: FromClient, why: str) -> NoReturn:
        kind = type(message).__name__.lower()
        raise FederationError(f"secure aggregation: '{kind}' of client {message.client!r:.80} is refused: {why}")


def _context(terms: SumTerms, keys: Sequence[Keys]) -> bytes:
    """Hash of all that is public when shares are made: keys derived from it belong to this sum and this list only."""
    return hashlib.sha256(msgspec.msgpack.encode((terms, keys))).digest()
