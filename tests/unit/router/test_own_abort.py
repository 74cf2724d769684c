"""An answer that the router itself cut is never taken for whole."""

import asyncio
from typing import cast

import pytest

from transload_router.errors import EngineReset, EngineTimeout
from transload_router.io.upstream.connection import HIGH_WATER_BYTES, Connection
from transload_router.io.upstream.exchange import Exchange

# Without a length: it ends with its connection.
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"


class Wire:
    """A transport that remembers what was done to it."""

    def __init__(self) -> None:
        self.is_reading = True
        self.is_gone = False

    def write(self, data: bytes) -> None:
        """Nobody listens."""

    def is_closing(self) -> bool:
        return self.is_gone

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def abort(self) -> None:
        self.is_gone = True

    close = abort


def asked() -> tuple[Connection, Wire]:
    """A connection whose request was sent."""
    wire = Wire()
    connection = Connection("d0", asyncio.get_running_loop(), [])
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.send([b"GET / HTTP/1.1\r\n\r\n"], 10.0, 5.0, is_head=False)
    return connection, wire


async def test_the_engines_own_close_ends_it() -> None:
    connection, _ = asked()
    connection.data_received(HEAD + b"all")
    connection.connection_lost(None)
    assert await connection.read_chunk() == b"all"
    assert await connection.read_chunk() == b""


async def test_our_abort_does_not() -> None:
    connection, _ = asked()
    connection.data_received(HEAD + b"some")
    connection.abort()
    connection.connection_lost(None)
    assert await connection.read_chunk() == b"some"
    with pytest.raises(EngineReset):
        await connection.read_chunk()
    assert not connection.has_ended


async def test_nor_does_a_deadline() -> None:
    connection, _ = asked()
    connection.data_received(HEAD + b"some")
    connection.expire()
    connection.connection_lost(None)
    assert await connection.read_chunk() == b"some"
    with pytest.raises(EngineTimeout):
        await connection.read_chunk()


async def test_a_paused_connection_is_not_kept() -> None:
    connection, wire = asked()
    body = b"x" * (HIGH_WATER_BYTES + 1)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    states = [(connection.has_ended, wire.is_reading, connection.can_be_kept)]
    assert await connection.read_chunk() == body
    states.append((connection.has_ended, wire.is_reading, connection.can_be_kept))
    assert states == [(True, False, False), (True, True, True)]
    assert connection.deadline == 0.0, "a whole answer waits for nothing"


async def test_an_ended_exchange_touches_its_connection_no_more() -> None:
    connection, wire = asked()
    connection.data_received(b"HTTP/1.1 204 No Content\r\n\r\n")
    given_back: list[Connection] = []
    exchange = Exchange(connection, given_back.append)
    exchange.release()
    exchange.release()
    exchange.abort()
    assert given_back == [connection]
    assert not wire.is_gone
