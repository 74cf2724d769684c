"""Connections that break while their own side is busy with them: all others go on."""

import errno
import socket
from typing import Any, ClassVar

import pytest

from support.transport_proxy import Proxy
from support.transport_world import (
    GROUP,
    LARGE,
    Holder,
    client,
    open_,
    pair,
    shrink_buffers,
    soon,
    until,
)
from transload_connector.transports import holder_connection, holder_server, reader_stream, sockets
from transload_connector.transports.errors import PeerUnreachable
from transload_connector.transports.outbox import Outbox

BLOCK_BYTES = LARGE.pools[0].block_bytes
MAX_MESSAGES_BYTES = 4096
"""Of those that are owed here; what is left of a data frame is far more."""


class BreakingOutbox(Outbox):
    """Finds its connection broken when messages are to be sent, from a moment on."""

    is_broken: ClassVar[bool] = False

    def send(self, sock: socket.socket) -> bool:
        if self.is_broken and 0 < self.num_bytes < MAX_MESSAGES_BYTES:
            raise ConnectionResetError(errno.ECONNRESET, "it broke")
        return super().send(sock)


def test_a_session_that_breaks_as_its_reader_asks_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_stream, "Outbox", BreakingOutbox)
    with pair(num_streams=0) as (holder, reader), (other := Holder()).server:
        holder.grant("h", [1])
        other.grant("o", [1])
        handoff, safe = open_(reader, holder, "h"), open_(reader, other, "o")
        monkeypatch.setattr(BreakingOutbox, "is_broken", True)
        with pytest.raises(PeerUnreachable, match="it broke"):
            soon(reader.confirm(handoff))
        monkeypatch.setattr(BreakingOutbox, "is_broken", False)
        assert soon(reader.done(safe)) == 0


def test_a_control_stream_that_breaks_as_its_session_ends_keeps_no_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A data stream is closed in the middle of a frame first, and the reader is to be told so."""
    shrink_buffers(monkeypatch)
    monkeypatch.setattr(holder_connection, "Outbox", BreakingOutbox)
    with pair(LARGE, num_streams=1) as (holder, reader), Proxy(holder.address) as proxy:
        holder.grant("h", range(64))
        handoff = soon(reader.open(proxy.address, "h", "l-h", "r"))
        sink = memoryview(bytearray(63 * BLOCK_BYTES))
        soon(reader.read(handoff, GROUP, [(1, 1)], [sink[:BLOCK_BYTES]], form="block"))
        proxy.pause()
        reading = reader.read(handoff, GROUP, [(1, 63)], [sink], form="block")
        until(lambda: holder.server.stats().num_copied, "a frame is under way")
        monkeypatch.setattr(BreakingOutbox, "is_broken", True)
        holder.server.close()
        assert [each.handoff for each in holder.freed] == ["h"]
        proxy.resume()
        with pytest.raises(PeerUnreachable):
            soon(reading)


class Listener(socket.socket):
    """Whose first connection is lost before it is accepted."""

    has_failed = False

    def accept(self) -> Any:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EHOSTUNREACH, "no route to host")
        return super().accept()


def test_a_connection_that_is_lost_before_it_is_accepted_harms_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def listen(host: str, port: int) -> Listener:
        listener = Listener(fileno=sockets.listen(host, port).detach())
        listener.setblocking(False)
        return listener

    monkeypatch.setattr(holder_server, "listen", listen)
    holder = Holder()
    with holder.server, client() as reader:
        holder.grant("h", [1])
        assert soon(reader.done(open_(reader, holder, "h"))) == 0
