"""Secret sharing (Shamir 1979): any `threshold` shares restore a secret, and fewer reveal nothing.

The secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients are drawn at random; share
i is its value at i, in the field of integers modulo the prime 2^521 - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import urandom

from slipstream.errors import FederationError

PRIME = 2**521 - 1
SHARE_BYTES = 66  # holds any number below the prime
SECRET_BYTES = 32  # seeds and X25519 keys


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
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


def join(shares: Mapping[int, bytes]) -> bytes:
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
        raise FederationError("shares do not belong together: one of them was changed, or there are too few")
    return secret.to_bytes(SECRET_BYTES)
