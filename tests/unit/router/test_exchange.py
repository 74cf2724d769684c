"""One request and its answer: read in pieces, ended once."""

import asyncio

import pytest

from support.wire import Wire, asked
from transload_router.errors import EngineReset
from transload_router.io.upstream.connection import Connection
from transload_router.io.upstream.exchange import Exchange

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TWO = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def exchange_on(wire: Wire) -> tuple[Exchange, list[Connection]]:
    given_back: list[Connection] = []
    return Exchange(wire.connection, given_back.append), given_back


async def test_status_and_headers() -> None:
    wire = asked()
    wire.receive(b"HTTP/1.1 429 Slow\r\nRetry-After: 1\r\ncontent-length: 0\r\n\r\n")
    exchange, _ = exchange_on(wire)
    assert exchange.status == 429
    assert exchange.headers == [(b"retry-after", b"1"), (b"content-length", b"0")]
    assert exchange.connection is wire.connection
    assert await exchange.read_all(10) == (b"", True)


async def test_read_chunk_gives_what_has_come() -> None:
    wire = asked()
    wire.receive(TWO)
    exchange, _ = exchange_on(wire)
    assert [await exchange.read_chunk(), await exchange.read_chunk()] == [b"ok", b""]


async def test_read_all_can_be_cancelled_anywhere() -> None:
    wire = asked()
    wire.receive(CHUNKED)
    exchange, _ = exchange_on(wire)
    for letter in (b"a", b"b", b"c"):
        reading = asyncio.ensure_future(exchange.read_all(10))
        await asyncio.sleep(0)
        wire.receive(b"1\r\n" + letter + b"\r\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    wire.receive(b"1\r\nd\r\n0\r\n\r\n")
    assert await exchange.read_all(10) == (b"abcd", True)
    assert await exchange.read_all(10) == (b"abcd", True)


async def test_cancelled_when_its_bytes_are_there() -> None:
    """The bytes came and woke the reader, and then it was cancelled."""
    wire = asked()
    wire.receive(CHUNKED)
    exchange, _ = exchange_on(wire)
    reading = asyncio.ensure_future(exchange.read_all(10))
    await asyncio.sleep(0)
    wire.receive(b"1\r\na\r\n")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    wire.receive(b"0\r\n\r\n")
    assert await exchange.read_all(10) == (b"a", True)


@pytest.mark.parametrize(("limit", "is_whole"), [(4, True), (3, False), (0, False)])
async def test_limit(limit: int, is_whole: bool) -> None:
    wire = asked()
    wire.receive(CHUNKED + b"4\r\nabcd\r\n0\r\n\r\n")
    exchange, _ = exchange_on(wire)
    assert await exchange.read_all(limit) == (b"abcd", is_whole)


async def test_over_the_limit_the_rest_can_be_read_on() -> None:
    wire = asked()
    wire.receive(CHUNKED + b"2\r\nab\r\n")
    exchange, _ = exchange_on(wire)
    reading = asyncio.ensure_future(exchange.read_all(3))
    await asyncio.sleep(0)
    wire.receive(b"2\r\ncd\r\n")
    assert await reading == (b"abcd", False)
    wire.receive(b"2\r\nef\r\n0\r\n\r\n")
    assert await exchange.read_chunk() == b"ef"
    assert await exchange.read_chunk() == b""


async def test_what_came_before_a_break_is_not_taken_for_all() -> None:
    wire = asked()
    wire.receive(CHUNKED + b"2\r\nab\r\n")
    wire.lose()
    exchange, _ = exchange_on(wire)
    with pytest.raises(EngineReset):
        await exchange.read_all(10)


async def test_what_is_taken_is_given_back() -> None:
    wire = asked()
    wire.receive(TWO)
    exchange, given = exchange_on(wire)
    assert await exchange.take_all(10) == (b"ok", True)
    assert given == [wire.connection]


async def test_what_cannot_be_taken_is_given_back() -> None:
    """An answer that breaks off, and one that nobody waits for any more."""
    for ends in (True, False):
        wire = asked()
        wire.receive(CHUNKED)
        exchange, given = exchange_on(wire)
        taking = asyncio.ensure_future(exchange.take_all(10))
        await asyncio.sleep(0)
        assert given == []
        if ends:
            wire.lose()
        else:
            taking.cancel()
        with pytest.raises(EngineReset if ends else asyncio.CancelledError):
            await taking
        assert given == [wire.connection]


async def test_it_is_given_back_once() -> None:
    wire = asked()
    wire.receive(TWO)
    exchange, given_back = exchange_on(wire)
    exchange.release()
    exchange.release()
    exchange.abort()
    assert given_back == [wire.connection]
    assert wire.transport.calls == ["write"]


async def test_abort_hangs_up_once() -> None:
    wire = asked()
    wire.receive(CHUNKED)
    exchange, given_back = exchange_on(wire)
    exchange.abort()
    exchange.abort()
    exchange.release()
    assert given_back == [wire.connection]
    assert wire.transport.calls == ["write", "abort"]


async def test_an_ended_exchange_leaves_the_next_one_alone() -> None:
    wire = asked()
    wire.receive(TWO)
    first, given_back = exchange_on(wire)
    assert await first.read_all(10) == (b"ok", True)
    first.release()
    wire.send()
    wire.receive(CHUNKED + b"1\r\na\r\n")
    second, _ = exchange_on(wire)
    first.abort()
    first.release()
    assert given_back == [wire.connection]
    assert not wire.transport.is_closing()
    wire.receive(b"1\r\nb\r\n0\r\n\r\n")
    assert await second.read_all(10) == (b"ab", True)
    assert first.headers == [(b"content-length", b"2")], "the first answer's, still"
