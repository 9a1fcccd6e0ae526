"""Frames between two processes of one machine, without a link's deadlines for the first byte, and with descriptors.

A process that waits for its next request waits as long as it takes. But once a frame has begun, its rest must come
soon: a process that was suspended in the middle of one holds nobody up.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from slipstream.runtime.frames import HEAD, MessageSet

MIDDLE_S = 10.0  # in which the rest of a frame comes

T = TypeVar("T", bound=msgspec.Struct)


def make_pair(buffer_bytes: int | None = None) -> tuple[socket.socket, socket.socket]:
    """Both ends; `buffer_bytes`: how much may be sent before the other side reads."""
    ends = socket.socketpair()
    if buffer_bytes is not None:
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return ends


def send(end: socket.socket, messages: MessageSet[T], message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
    """Send a message with copies of these descriptors; OSError where nobody is there."""
    frame = messages.frame(message)
    sent = socket.send_fds(end, [frame], list(descriptors)) if descriptors else 0
    end.sendall(frame[sent:])


def receive(end: socket.socket, messages: MessageSet[T], max_descriptors: int = 0) -> tuple[T | None, list[int]]:
    """The next message and its descriptors; None where the other side is gone.

    TimeoutError where the other side stands still in the middle of a frame, WireError for what is no frame.
    """
    descriptors: list[int] = []
    if max_descriptors:
        head, descriptors, _, _ = socket.recv_fds(end, HEAD.size, max_descriptors)
    else:
        head = end.recv(HEAD.size)
    if not head:
        return None, descriptors
    deadline = time.monotonic() + MIDDLE_S
    head += _read(end, HEAD.size - len(head), deadline)
    body = _read(end, messages.parse_head(head).body, deadline) if len(head) == HEAD.size else b""
    return (messages.parse(body) if body else None), descriptors


def _read(end: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes, or fewer where the other side is gone."""
    data = bytearray()
    while len(data) < size:
        if not select.select([end], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"the other side stands still in the middle of a message, for {MIDDLE_S:g} s")
        part = end.recv(size - len(data))
        if not part:
            return b""
        data += part
    return bytes(data)
