"""A TCP proxy that can be stopped, cut, and made to spoil a byte."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

_BUFFER_BYTES = 1 << 16


class Proxy:
    """Between readers and a holder.

    Attributes:
        address: Where readers connect.
        num_bytes: That have come from the holder.
    """

    def __init__(self, holder: tuple[str, int]) -> None:
        self.num_bytes = 0
        self._holder = holder
        self._spoil_at: int | None = None
        self._gate = threading.Event()
        self._gate.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def pause(self) -> None:
        """Let nothing from the holder through."""
        self._gate.clear()

    def resume(self) -> None:
        """Let it through again."""
        self._gate.set()

    def spoil(self, after_bytes: int) -> None:
        """Flip a bit of the byte that comes from the holder after so many more."""
        self._spoil_at = self.num_bytes + after_bytes

    def cut(self, connection: int) -> None:
        """End a connection, counted from 0."""
        for sock in self._sockets[2 * connection : 2 * connection + 2]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gate.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for number in range(len(self._sockets)):
            self.cut(number)
        for each in self._threads:
            each.join(10)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
                self._sockets += [near, far]
                far.connect(self._holder)
                for target, ends in ((self._up, (near, far)), (self._down, (far, near))):
                    thread = threading.Thread(target=target, args=ends)
                    self._threads.append(thread)
                    thread.start()

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(_BUFFER_BYTES):
                far.sendall(data)
        self._end(near, far)

    def _down(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(_BUFFER_BYTES):
                first, self.num_bytes = self.num_bytes, self.num_bytes + len(data)
                if self._spoil_at is not None and first <= self._spoil_at < self.num_bytes:
                    spoiled = bytearray(data)
                    spoiled[self._spoil_at - first] ^= 1
                    data = bytes(spoiled)
                self._gate.wait(30)
                near.sendall(data)
        self._end(near, far)

    def _end(self, *ends: socket.socket) -> None:
        for sock in ends:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
