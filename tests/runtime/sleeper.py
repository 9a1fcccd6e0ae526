"""What a worker does in tests of the fork server: wait until its end of a pipe is closed, or end as it is told."""

from __future__ import annotations

import os
import sys

from slipstream.runtime.process import announce


def main(payload: bytes, descriptors: list[int]) -> None:
    """Say that it lives, then sleep."""
    if payload == b"say":
        print("said", os.environ["WORD"])
        announce(os.environ["WORD"])
        return
    os.write(descriptors[0], payload)
    if payload == b"leave":
        sys.exit(3)
    if payload == b"raise":
        raise OSError("no simulator")
    os.read(descriptors[1], 1)
