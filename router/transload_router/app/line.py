"""uvicorn's HTTP protocol, with an answer's head that may wait for its body, and with bounds.

uvicorn writes head and body apart, and each write to a socket is a system call. An app that has
both says so through `scope["extensions"]["transload.cork"]`, and they leave as one.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

CORK = "transload.cork"
# Of one request's line and headers; engines' own servers take no more.
MAX_HEAD_BYTES = 64 << 10
# From a connection's first moment, or a head's first byte, to the head's end. Between requests
# uvicorn's own keep-alive time counts.
HEAD_TIMEOUT_S = 60.0
# Requests that a client may send ahead and still be seen to leave; their bodies are bounded by
# uvicorn's own limit.
MAX_PIPELINED = 8
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


class CorkedTransport:
    """A transport whose next write can be made to wait for the one after; the rest passes."""

    __slots__ = ("_held", "_is_corked", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._write = transport.write
        self._is_corked = False
        self._held = b""

    def cork(self) -> None:
        """Hold the next write until another follows, or the connection is closed."""
        self._is_corked = True

    def write(self, data: bytes) -> None:
        """See asyncio.WriteTransport."""
        if self._is_corked:
            self._is_corked = False
            self._held += data
        elif self._held:
            held, self._held = self._held, b""
            self._write(held + data)
        else:
            self._write(data)

    def close(self) -> None:
        """See asyncio.BaseTransport."""
        if self._held:
            held, self._held = self._held, b""
            self._write(held)
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Line(HttpToolsProtocol):
    """One client connection.

    Besides corking, it holds what uvicorn leaves open: a request's head has a size and a time, a
    trailer is no header, and a client that sends its next request before its answer is still seen
    to leave (uvicorn stops reading then, and tells only the newest request).
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        corked = CorkedTransport(transport)
        self._extensions = {CORK: corked.cork}
        self._has_head = False
        # Whether the newest bytes ended a head or a message, or belong to a body.
        self._has_advanced = False
        # Received since: of a head, or of trailers, which the parser gathers in the same way.
        self._num_head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._under_way: list[RequestResponseCycle] = []
        super().connection_made(cast(asyncio.Transport, corked))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._stop_waiting()
        super().connection_lost(exc)
        for cycle in self._under_way:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._has_advanced = False
        super().data_received(data)
        if 0 < len(self.pipeline) <= MAX_PIPELINED and len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()
        if self._has_advanced:
            self._num_head_bytes = 0
        else:
            self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._stop_waiting()
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()
        elif not self._has_head and self._head_timer is None:
            self._await_head()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()

    def on_message_begin(self) -> None:
        """See httptools."""
        self._has_head = False
        super().on_message_begin()
        self.scope["extensions"] = cast(Any, self._extensions)

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._has_head = True
        self._has_advanced = True
        self._stop_waiting()
        super().on_headers_complete()
        self._under_way = [c for c in self._under_way if not c.response_complete]
        self._under_way.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self._has_advanced = True
        super().on_message_complete()
