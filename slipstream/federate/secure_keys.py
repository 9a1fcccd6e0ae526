"""Keys, boxes, streams, shared secrets and numbers of secure aggregation (secure.py), by the package `cryptography`.

A secret is shared as by Shamir (1979): it is the value at 0 of a polynomial of degree threshold - 1 whose other
coefficients are drawn at random, in the field of integers modulo the prime 2^521 - 1. Share i is the value at i. Any
`threshold` shares restore the secret, and fewer reveal nothing.

Numbers are fixed-point, in units of 2^-32, in the ring of 64-bit integers, where sums are exact in any order: a sum of
n vectors is off by at most n · 2^-33. A number beyond ± 2^30 / n is refused before it is masked: a sum cannot wrap.

Keys are X25519, streams AES-256 in counter mode, boxes ChaCha20-Poly1305, all under HKDF-SHA256 of the shared secret,
what it is for, and the hash of the terms and the list of keys: clients that were shown different lists cannot open
each other's boxes.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import urandom
from typing import TYPE_CHECKING

import numpy as np

from slipstream.errors import FederationError
from slipstream.types import F64, U64, Arrays

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY_BYTES = 32
UNIT = 2.0**-32  # of the fixed-point numbers
LARGEST = 2.0**30  # of any sum: a factor of two below where the ring wraps
STREAM_BYTES = 1 << 17  # a mask is made and added in pieces of this size, which stay in the cache
PRIME = 2**521 - 1
SHARE_BYTES = 66  # holds any number below the prime
SECRET_BYTES = 32  # seeds and X25519 keys


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares 1..count of a secret of 32 bytes."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count:
        raise ValueError(
            f"{len(secret)} bytes, {threshold} of {count}: secrets have 32, and a threshold is within 1..n"
        )
    # 16 bytes more than the field needs: what is left of them modulo the prime is uniform to within 2^-120.
    drawn = [int.from_bytes(urandom(SHARE_BYTES + 16)) % PRIME for _ in range(threshold - 1)]
    coefficients = [int.from_bytes(secret), *drawn]
    shares = []
    for at in range(1, count + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * at + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES))
    return shares


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret of exactly as many shares as the threshold was, by their numbers.

    With fewer, or with one that was changed, what comes out is not the secret; most often it is not even small enough
    to be one, and that is refused. Whoever must be sure compares what comes out with a hash or a public key.
    """
    total = 0
    for at, share in shares.items():
        above = below = 1
        for other in shares:
            if other != at:
                above = above * other % PRIME
                below = below * (other - at) % PRIME
        total += int.from_bytes(share) * above * pow(below, -1, PRIME)
    secret = total % PRIME
    if secret.bit_length() > 8 * SECRET_BYTES:
        numbers = ", ".join(map(str, shares))
        raise FederationError(
            f"{len(shares)} shares ({numbers}) do not belong together: one of them was changed, or there are too few"
        )
    return secret.to_bytes(SECRET_BYTES)


# --- keys, boxes and streams ---


def private_key(secret: bytes) -> X25519PrivateKey:
    """The key of this secret."""
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError:
        raise FederationError("secure aggregation needs cryptography: pip install 'slipstream[privacy]'") from None
    return X25519PrivateKey.from_private_bytes(secret)


def public(key: X25519PrivateKey) -> bytes:
    """What others may know of a key."""
    return key.public_key().public_bytes_raw()


def derive(own: X25519PrivateKey, other: bytes, context: bytes, use: str, first: str, second: str) -> bytes:
    """A key of 32 bytes that two clients share, for one use between them."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of small order would make the secret known to all
        raise FederationError(f"secure aggregation: the keys of {first} and {second} give no secret") from None
    return stretch(shared, context, use, first, second)


def stretch(secret: bytes, context: bytes, *use: str) -> bytes:
    """A key for one use, from a secret."""

    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    # Ids hold no zero byte, so the parts of `use` cannot run into each other.
    return HKDF(SHA256(), KEY_BYTES, salt=context, info="\0".join(use).encode()).derive(secret)


def pair_stream(own: X25519PrivateKey, other_key: bytes, context: bytes, client: str, other: str) -> bytes:
    """The key of the mask between two clients: the same whichever of them asks."""
    return derive(own, other_key, context, "mask", *sorted((client, other)))


def own_stream(seed: bytes, context: bytes, client: str) -> bytes:
    """The key of a client's own mask."""
    return stretch(seed, context, "own", client)


def lock(key: bytes, *shares: bytes) -> bytes:
    """Shares in a box that this key alone opens."""

    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), b"".join(shares), None)  # the key locks this one box


def unlock(key: bytes, box: bytes, sender: str) -> tuple[bytes, bytes]:
    """The two shares in a box; one that does not open is refused."""

    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        opened = ChaCha20Poly1305(key).decrypt(bytes(12), box, None)
    except InvalidTag:
        opened = b""
    if len(opened) != 2 * SHARE_BYTES:
        raise FederationError(
            f"secure aggregation: the box of {sender} does not open; it was changed on the way, or made for another sum"
        )
    return opened[:SHARE_BYTES], opened[SHARE_BYTES:]


def add_stream(total: U64, key: bytes, add: bool) -> None:
    """Add the stream of a key to a vector in place, or take it off."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()  # the key is used for this one stream
    size = STREAM_BYTES // 8
    drawn = np.empty(size + 2, "<u8")  # room for one block more, which update_into insists on
    zeros = bytes(min(STREAM_BYTES, 8 * total.size))
    change = np.add if add else np.subtract
    for at in range(0, total.size, size):
        piece = total[at : at + size]
        stream.update_into(memoryview(zeros)[: 8 * piece.size], drawn.view(np.uint8).data)
        change(piece, drawn[: piece.size], out=piece)


# --- vectors of fixed-point numbers ---


def pack(arrays: Arrays, weight: float = 1.0) -> F64:
    """The weight and the weighted arrays as one vector, in the order of their names."""
    if not (np.isfinite(weight) and weight > 0):
        raise FederationError(f"secure aggregation: weight {weight} is not a number above 0")
    return np.concatenate(
        [np.array([weight]), *(arrays[name].astype(np.float64).ravel() * weight for name in sorted(arrays))]
    )


def unpack(total: F64, like: Arrays) -> tuple[dict[str, F64], float]:
    """The weighted mean of what was packed, named and shaped as `like`, and the sum of the weights."""
    due = 1 + sum(array.size for array in like.values())
    if total.size != due or not total[0] > 0:
        raise FederationError(
            f"secure aggregation: the sum has {total.size} numbers and a weight of {total[:1]}; its arrays and their "
            f"weight are {due} numbers, and a weight is above 0"
        )
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
