"""uvicorn's HTTP protocol with one thing more: an answer's head may wait for its body.

uvicorn writes head and body apart, and a write to a socket costs more than everything else that
is done for a short answer (30 of about 300 microseconds on one EPYC core). An app that has both
says so through `scope["extensions"]["transload.cork"]`, and they leave as one.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CORK = "transload.cork"


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
            self._held = data
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
    """One client connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        corked = CorkedTransport(transport)
        self._extensions = {CORK: corked.cork}
        super().connection_made(cast(asyncio.Transport, corked))

    def on_message_begin(self) -> None:
        """See httptools."""
        super().on_message_begin()
        self.scope["extensions"] = cast(Any, self._extensions)
