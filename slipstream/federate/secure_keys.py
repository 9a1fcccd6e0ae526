"""Keys, boxes and streams of secure aggregation, by the package `cryptography` (see secure.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.shamir import SHARE_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

U64 = NDArray[np.uint64]

KEY_BYTES = 32
STREAM_BYTES = 1 << 17  # a mask is made and added in pieces of this size, which stay in the cache


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
