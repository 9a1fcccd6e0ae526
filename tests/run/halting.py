"""Workers that are suspended in the middle of a message: a fork server imports this in place of `worker_process`.

The first life of every worker sends half of its third message, and stops itself.
"""

from __future__ import annotations

import os
import signal
import socket

import msgspec

from slipstream.collect.messages import MESSAGES, Channel, Message
from slipstream.run.processes import worker_process


def main(payload: bytes, descriptors: list[int]) -> None:
    """A worker's life."""
    sent = 0
    send = Channel.send

    def send_half(channel: Channel, message: Message) -> bool:
        nonlocal sent
        sent += 1
        if sent < 3:
            return send(channel, message)
        end: socket.socket = channel._end
        frame = MESSAGES.frame(message)
        end.sendall(frame[: len(frame) // 2])
        os.kill(os.getpid(), signal.SIGSTOP)
        return False

    if msgspec.json.decode(payload, type=worker_process.WorkerJob).owner == 1:
        Channel.send = send_half  # type: ignore[method-assign]
    worker_process.main(payload, descriptors)
