"""What a connection is still owed, sent as far as its socket takes it, without a copy."""

import socket
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from transload_abi.wire.frames import Buffer

MAX_BUFFERS: Final = 1024
"""In one call: `IOV_MAX` of Linux."""


class Outbox:
    """Buffers in order. They must not change until they are sent.

    Attributes:
        num_bytes: Left to send.
        num_sent: Since the beginning.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.num_sent = 0
        self._buffers: deque[memoryview] = deque()

    def put(self, buffers: Sequence[Buffer]) -> None:
        """Add at the end."""
        for each in buffers:
            view = memoryview(each)
            if view:
                self._buffers.append(view)
                self.num_bytes += len(view)

    def drop(self) -> None:
        """Forget what was not sent."""
        self._buffers.clear()
        self.num_bytes = 0

    def send(self, sock: socket.socket) -> bool:
        """Send what the socket takes at once.

        Returns:
            Whether nothing is left.

        Raises:
            OSError: The connection is gone.
        """
        while self._buffers:
            try:
                num_sent = sock.sendmsg(islice(self._buffers, MAX_BUFFERS), [], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            self._take(num_sent)
        return True

    def _take(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        self.num_sent += num_bytes
        while num_bytes:
            first = self._buffers[0]
            if num_bytes < len(first):
                self._buffers[0] = first[num_bytes:]
                return
            num_bytes -= len(first)
            self._buffers.popleft()
