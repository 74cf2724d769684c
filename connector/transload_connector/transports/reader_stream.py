"""One connection of a reader's session, from its making to its loss."""

import selectors
import socket
from typing import Final, Protocol

from transload_abi.wire.frames import Buffer
from transload_connector.transports.io_thread import IoThread
from transload_connector.transports.outbox import Outbox
from transload_connector.transports.sockets import SocketAddress, begin_connect, connect_failure

RECEIVED_BYTES: Final = 1 << 22
"""At one time, before other connections have their turn."""


class StreamOwner(Protocol):
    """The session of a stream."""

    def connected(self, stream: "ReaderStream") -> None:
        """The connection stands."""

    def receive(self, stream: "ReaderStream", sock: socket.socket) -> int:
        """Take some bytes; how many, 0 at the end. Raises `OSError`."""

    def lost(self, stream: "ReaderStream", reason: str) -> None:
        """The connection failed, or has ended; it is closed."""


class ReaderStream:
    """A connection.

    Args:
        number: 0 for the control stream.
        owner: Its session.
        thread: Where it is watched.
        addresses: To try, one after the other.

    Attributes:
        num_due: Bytes of reads that are to come on it.
        address: The one that is tried, or stands.
    """

    def __init__(
        self, number: int, owner: StreamOwner, thread: IoThread, addresses: list[SocketAddress]
    ) -> None:
        self.number = number
        self.num_due = 0
        self.address = addresses[0]
        self._owner = owner
        self._thread = thread
        self._addresses = list(addresses)
        self._outbox = Outbox()
        self._is_connected = False
        self._sock: socket.socket | None = None

    def connect(self) -> None:
        """Begin, with the next address."""
        reason = "no address"
        while self._addresses:
            self.address = self._addresses.pop(0)
            try:
                self._sock = begin_connect(self.address)
            except OSError as error:
                reason = str(error.strerror or error)
                continue
            self._thread.watch(self._sock, selectors.EVENT_WRITE, self)
            return
        self._owner.lost(self, reason)

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""
        if not self._is_connected:
            self._finish_connect()
            return
        if mask & selectors.EVENT_READ:
            self._receive()
        self.flush()

    def send(self, data: Buffer) -> None:
        """Send, now or when it can be."""
        self._outbox.put([data])
        if self._is_connected:
            self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        if self._sock is None:
            return
        try:
            is_empty = self._outbox.send(self._sock)
        except OSError as error:
            self._lose(str(error))
            return
        mask = selectors.EVENT_READ | (0 if is_empty else selectors.EVENT_WRITE)
        self._thread.watch(self._sock, mask, self)

    def close(self) -> None:
        """Close it; nobody is told."""
        if self._sock is not None:
            self._thread.forget(self._sock)
            self._sock = None
        self._is_connected = False
        self._addresses.clear()

    def _finish_connect(self) -> None:
        assert self._sock is not None
        reason = connect_failure(self._sock)
        if not reason:
            self._is_connected = True
            self._owner.connected(self)
            self.flush()
            return
        self._thread.forget(self._sock)
        self._sock = None
        if self._addresses:
            self.connect()
        else:
            self._owner.lost(self, reason)

    def _receive(self) -> None:
        left = RECEIVED_BYTES
        while left > 0 and self._sock is not None:
            try:
                num_bytes = self._owner.receive(self, self._sock)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(str(error))
                return
            if num_bytes == 0:
                self._lose("its connection has ended")
            left -= num_bytes

    def _lose(self, reason: str) -> None:
        if self._sock is not None:
            self.close()
            self._owner.lost(self, reason)
