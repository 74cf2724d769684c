"""A stream of `connector/WIRE.md` over a socket: frames in, frames out, with deadlines."""

import contextlib
import select
import socket
import threading
import time
from typing import Any, Final

from conformance.wire_from_the_document_frames import (
    MAX_UNPROVEN_BYTES,
    MESSAGE,
    Frame,
    FrameReader,
    write_frame,
)
from conformance.wire_from_the_document_messages import decode_message, encode_message

LINGER_S: Final = 0.5  # 6: for a peer to read the last words


class ClosedError(Exception):
    """The stream has ended, or what it was waited for has not come in time."""


class WrongError(Exception):
    """The peer broke a rule: a code of section 10, and why."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def message_frame(sender: str, kind: str, **fields: Any) -> bytes:
    return write_frame(MESSAGE, encode_message({"type": kind, **fields}, sender))


class Stream:
    """One connection. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.frames = FrameReader(max_message_bytes=MAX_UNPROVEN_BYTES)
        self._sending = threading.Lock()

    def send(self, frame: bytes) -> None:
        with self._sending:
            try:
                self.socket.sendall(frame)
            except OSError as error:
                raise ClosedError(str(error)) from error

    def say(self, sender: str, kind: str, **fields: Any) -> None:
        self.send(message_frame(sender, kind, **fields))

    def fill(self) -> None:
        """Take what has come; blocks if that is nothing."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError as error:
            raise ClosedError(str(error)) from error
        if not data:
            raise ClosedError("the peer has closed")
        self.frames.feed(data)

    def has_come(self, timeout_s: float | None) -> bool:
        """Whether bytes, or the end, came within the time."""
        try:
            return bool(select.select([self.socket], [], [], timeout_s)[0])
        except (OSError, ValueError) as error:
            raise ClosedError("this side has closed") from error

    def receive(self, deadline: float | None = None) -> Frame:
        while (frame := self.frames.next()) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.has_come(left):
                raise ClosedError("nothing came in time")
            self.fill()
        return frame

    def hear(self, sender: str, deadline: float | None = None) -> dict[str, Any]:
        return decode_message(self.receive(deadline).body, sender)

    def close(self) -> None:
        """Wake whoever waits here, and close."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def close_after(self, last: bytes = b"") -> None:
        """Say the last of all and close such that it arrives: unread bytes would reset the peer."""
        deadline = time.monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            with self._sending:
                self.socket.sendall(last)
                self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(LINGER_S)
            while self.socket.recv(1 << 16) and time.monotonic() < deadline:
                pass
        self.close()
