"""One connection: bytes in, an answer out, and an end to every wait."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from support.wire import REQUEST, Wire, asked
from transload_router.errors import EngineBadAnswer, EngineError, EngineReset, EngineTimeout
from transload_router.io.upstream.connection import (
    HIGH_WATER_BYTES,
    MAX_HEADER_BYTES,
    Connection,
)

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"content-length: 2\r\n\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
ENDLESS = OK + b"content-type: text/plain\r\n\r\n"


async def whole_body(wire: Wire) -> bytes:
    parts = []
    while chunk := await wire.connection.read_chunk():
        parts.append(chunk)
    return b"".join(parts)


async def whole_answer(wire: Wire) -> bytes:
    await wire.connection.read_head()
    return await whole_body(wire)


async def waiting(wait: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
    """A wait that has begun and not ended."""
    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    assert not task.done()
    return task


# What an answer is.


async def test_status_headers_body() -> None:
    wire = asked()
    wire.receive(b"HTTP/1.1 429 Slow Down\r\nContent-Length: 2\r\nX-A: 1\r\nx-a: 2\r\n\r\nno")
    await wire.connection.read_head()
    assert wire.transport.written == [REQUEST]
    assert wire.connection.status == 429
    assert wire.connection.headers == [(b"content-length", b"2"), (b"x-a", b"1"), (b"x-a", b"2")]
    assert await whole_body(wire) == b"no"
    assert wire.connection.can_be_kept
    assert wire.transport.calls == ["write"]


@pytest.mark.parametrize(
    "answer", [TWO + b"ok", CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n"], ids=["length", "chunked"]
)
async def test_any_cut(answer: bytes) -> None:
    for cut in range(1, len(answer)):
        wire = asked()
        wire.receive(answer[:cut])
        assert not wire.connection.has_ended
        wire.receive(answer[cut:])
        assert await whole_body(wire) == b"ok"
        assert wire.connection.can_be_kept


async def test_any_cut_then_the_end_is_a_reset() -> None:
    for answer in (TWO + b"ok", CHUNKED + b"2\r\nok\r\n0\r\n\r\n"):
        for cut in range(len(answer)):
            wire = asked()
            wire.receive(*filter(None, [answer[:cut]]))
            wire.lose()
            with pytest.raises(EngineReset):
                await whole_answer(wire)
            assert not wire.connection.has_ended


async def test_the_parts_of_a_large_request_go_in_one_call() -> None:
    wire = Wire()
    wire.connection.send([b"head", b"body"], 130.0, 5.0, is_head=False)
    assert wire.transport.calls == ["writelines"]
    assert wire.transport.written == [b"head", b"body"]


async def test_interim_answers_are_passed_over() -> None:
    wire = asked()
    wire.receive(b"HTTP/1.1 100 Continue\r\nx-interim: 1\r\n\r\n")
    reading = await waiting(wire.connection.read_head)
    wire.receive(b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + TWO + b"ok")
    await reading
    assert wire.connection.status == 200
    assert wire.connection.headers == [(b"content-length", b"2")]
    assert await whole_body(wire) == b"ok"
    assert wire.connection.can_be_kept


async def test_interim_answers_give_no_more_time() -> None:
    wire = asked()
    wire.loop.now += 10.0
    wire.receive(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert wire.connection.deadline == 130.0


async def test_an_upgrade_that_nobody_asked_for() -> None:
    wire = asked()
    wire.receive(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n\x01\x02")
    with pytest.raises(EngineBadAnswer):
        await wire.connection.read_head()
    assert wire.transport.calls == ["write", "abort"]


async def test_head_has_a_length_and_no_body() -> None:
    wire = asked(is_head=True)
    wire.receive(OK + b"content-length: 5\r\n\r\n")
    await wire.connection.read_head()
    assert wire.connection.headers == [(b"content-length", b"5")]
    assert await whole_body(wire) == b""
    assert not wire.connection.can_be_kept, "the parser waits for the body"


async def test_a_body_after_head_is_not_given() -> None:
    wire = asked(is_head=True)
    wire.receive(TWO + b"ok")
    assert await whole_body(wire) == b""
    assert not wire.connection.can_be_kept


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_statuses_without_a_body(status: bytes) -> None:
    wire = asked()
    wire.receive(b"HTTP/1.1 " + status + b"\r\n\r\n")
    assert await whole_body(wire) == b""
    assert wire.connection.can_be_kept


async def test_without_a_length_it_ends_with_the_connection() -> None:
    wire = asked()
    wire.receive(ENDLESS + b"some", b" more")
    assert not wire.connection.has_ended
    wire.lose()
    assert await whole_body(wire) == b"some more"
    assert not wire.connection.can_be_kept


async def test_without_a_length_an_error_is_no_end() -> None:
    wire = asked()
    wire.receive(ENDLESS + b"some")
    wire.lose(ConnectionResetError("reset by peer"))
    assert await wire.connection.read_chunk() == b"some"
    with pytest.raises(EngineReset) as raised:
        await wire.connection.read_chunk()
    assert str(raised.value) == (
        "engine e: connection closed while reading the body: reset by peer"
    )


async def test_before_its_header_the_end_is_a_reset() -> None:
    wire = asked()
    wire.lose()
    with pytest.raises(EngineReset) as raised:
        await wire.connection.read_head()
    assert str(raised.value) == "engine e: connection closed while waiting for the header"


async def test_a_short_body_is_given_before_the_reset() -> None:
    wire = asked()
    wire.receive(OK + b"content-length: 9\r\n\r\nhalf")
    wire.lose()
    assert await wire.connection.read_chunk() == b"half"
    for _ in range(2):
        with pytest.raises(EngineReset):
            await wire.connection.read_chunk()


async def test_a_bad_chunk_is_told_behind_the_good() -> None:
    wire = asked()
    wire.receive(CHUNKED + b"2\r\nok\r\n", b"zz\r\n")
    assert wire.transport.is_closing()
    wire.lose()
    assert await wire.connection.read_chunk() == b"ok"
    with pytest.raises(EngineBadAnswer, match=r"^engine e: not HTTP/1\.1: "):
        await wire.connection.read_chunk()


async def test_close_is_kept_to() -> None:
    wire = asked()
    wire.receive(OK + b"connection: close\r\ncontent-length: 2\r\n\r\nok")
    assert await whole_body(wire) == b"ok"
    assert not wire.connection.can_be_kept


@pytest.mark.parametrize("junk", [b"SSH-2.0-x\r\n", b"HTTP/9.9 200 OK\r\n\r\n", b"\x00" * 9])
async def test_not_http(junk: bytes) -> None:
    wire = asked()
    wire.receive(junk)
    assert wire.transport.is_closing()
    with pytest.raises(EngineBadAnswer):
        await wire.connection.read_head()


async def test_trailers_are_no_headers() -> None:
    wire = asked()
    wire.receive(CHUNKED + b"2\r\nok\r\n0\r\nx-a: 1\r\n\r\n")
    assert await whole_body(wire) == b"ok"
    assert wire.connection.headers == [(b"transfer-encoding", b"chunked")]
    assert wire.connection.can_be_kept


# Floods.


async def test_too_many_headers() -> None:
    wire = asked()
    wire.receive(OK + b"x: abcd\r\n" * (MAX_HEADER_BYTES // 5 + 1) + b"\r\n")
    with pytest.raises(EngineBadAnswer):
        await wire.connection.read_head()
    assert wire.transport.is_closing()


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"HTTP/1.1 200 ", id="reason"),
        pytest.param(OK + b"x: ", id="header"),
        pytest.param(CHUNKED + b"2\r\nok\r\n0\r\nx: ", id="trailer"),
        pytest.param(CHUNKED + b"2;", id="chunk extension"),
    ],
)
async def test_a_line_that_never_ends(start: bytes) -> None:
    wire = asked()
    wire.receive(start, *[b"a" * 1024] * (MAX_HEADER_BYTES // 1024 - 1))
    assert not wire.transport.is_closing()
    wire.receive(b"a" * 1025)
    assert wire.transport.is_closing()
    with pytest.raises(EngineBadAnswer, match="headers too large"):
        await whole_answer(wire)


async def test_interim_answers_without_end() -> None:
    wire = asked()
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    for _ in range(MAX_HEADER_BYTES // len(interim)):
        wire.receive(interim)
    assert not wire.transport.is_closing()
    wire.receive(interim)
    assert wire.transport.is_closing()


async def test_a_long_body_is_no_flood() -> None:
    wire = asked()
    num_bytes = 4 * MAX_HEADER_BYTES
    wire.receive(OK + b"content-length: %d\r\n\r\n" % num_bytes)
    for _ in range(num_bytes // 1024):
        wire.receive(b"a" * 1024)
        wire.connection.take()
    assert wire.connection.can_be_kept


# Bytes behind a whole answer.


@pytest.mark.parametrize(
    "more",
    [
        b"junk",
        b"HTTP/1.1 5",
        b"HTTP/1.1 500 No\r\nx-a: 1\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\nx-a: 1\r\ncontent-length: 4\r\n\r\nevil",
    ],
)
async def test_bytes_in_the_same_read_spoil_the_connection(more: bytes) -> None:
    wire = asked()
    wire.receive(TWO + b"ok" + more)
    await wire.connection.read_head()
    assert wire.connection.status == 200
    assert wire.connection.headers == [(b"content-length", b"2")]
    assert await whole_body(wire) == b"ok"
    assert not wire.connection.can_be_kept


@pytest.mark.parametrize("more", [b"\r\n", b"HTTP/1.1 500 No\r\n\r\n"])
async def test_bytes_in_a_later_read_end_it(more: bytes) -> None:
    wire = asked()
    wire.receive(TWO + b"ok", more)
    assert wire.transport.calls == ["write", "abort"]
    assert await whole_body(wire) == b"ok"
    assert wire.connection.status == 200


async def test_bytes_before_any_request_end_it() -> None:
    wire = Wire()
    wire.receive(TWO + b"ok")
    assert wire.transport.calls == ["abort"]


async def test_the_next_answer_begins_anew() -> None:
    wire = asked()
    wire.receive(OK + b"x-first: 1\r\ncontent-length: 2\r\n\r\nok")
    assert await whole_body(wire) == b"ok"
    reused = [wire.connection.is_reused]
    wire.loop.now += 1.0
    wire.send()
    reused.append(wire.connection.is_reused)
    assert reused == [False, True]
    assert wire.connection.sent_at == 101.0
    assert not wire.connection.has_answer_byte
    assert not wire.connection.has_ended
    wire.receive(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
    await wire.connection.read_head()
    assert wire.connection.status == 404
    assert wire.connection.headers == [(b"content-length", b"0")]
    assert await whole_body(wire) == b""


# Every wait ends.

Ending = Callable[[Wire], None]


def _abort(wire: Wire) -> None:
    wire.connection.abort()
    wire.lose()


def _expire(wire: Wire) -> None:
    wire.connection.expire()
    # The transport tells of its end later; nobody waits for that.


def _lose(wire: Wire) -> None:
    wire.lose()


def _break(wire: Wire) -> None:
    wire.receive(b"zz\r\n")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (_abort, EngineReset),
        (_expire, EngineTimeout),
        (_lose, EngineReset),
        (_break, EngineBadAnswer),
    ],
)
@pytest.mark.parametrize("wait", ["read_head", "read_chunk", "await_body"])
async def test_every_wait_ends(wait: str, end: Ending, error: type[EngineError]) -> None:
    wire = asked()
    if wait != "read_head":
        wire.receive(CHUNKED)
    task = await waiting(getattr(wire.connection, wait))
    end(wire)
    with pytest.raises(error):
        await asyncio.wait_for(task, 1)
    assert not wire.connection.has_ended
    assert wire.connection.deadline == 0.0


async def test_a_wait_ends_with_bytes() -> None:
    wire = asked()
    head = await waiting(wire.connection.read_head)
    wire.receive(CHUNKED)
    await asyncio.wait_for(head, 1)
    body = await waiting(wire.connection.await_body)
    chunk = await waiting(wire.connection.read_chunk)
    body.cancel()
    wire.receive(b"2\r\nok\r\n")
    assert await asyncio.wait_for(chunk, 1) == b"ok"
    end = await waiting(wire.connection.read_chunk)
    wire.receive(b"0\r\n\r\n")
    assert await asyncio.wait_for(end, 1) == b""


async def test_a_cancelled_wait_loses_nothing() -> None:
    wire = asked()
    wire.receive(CHUNKED)
    task = await waiting(wire.connection.read_chunk)
    task.cancel()
    wire.receive(b"2\r\nok\r\n0\r\n\r\n")
    assert await whole_body(wire) == b"ok"


async def test_an_end_before_the_wait_ends_it_too() -> None:
    wire = asked()
    wire.connection.abort()
    with pytest.raises(EngineReset) as raised:
        await wire.connection.read_head()
    assert str(raised.value) == "engine e: closed by the router"


async def test_a_lost_connection_is_not_open() -> None:
    wire = Wire()
    is_open = [wire.connection.is_open]
    wire.lose()
    is_open.append(wire.connection.is_open)
    assert is_open == [True, False]


# Our own end.


async def test_our_own_abort_makes_no_answer_whole() -> None:
    wire = asked()
    wire.receive(ENDLESS + b"some")
    wire.connection.abort()
    wire.lose()
    assert wire.connection.was_hung_up
    assert await wire.connection.read_chunk() == b"some"
    with pytest.raises(EngineReset):
        await wire.connection.read_chunk()


async def test_an_abort_behind_a_whole_answer_leaves_it_whole() -> None:
    wire = asked()
    wire.receive(TWO + b"ok")
    wire.connection.abort()
    wire.lose()
    assert not wire.connection.was_hung_up
    assert await whole_body(wire) == b"ok"


async def test_the_first_error_stands() -> None:
    wire = asked()
    wire.connection.expire()
    wire.connection.abort()
    wire.lose()
    assert not wire.connection.was_hung_up
    with pytest.raises(EngineTimeout) as raised:
        await wire.connection.read_head()
    assert str(raised.value) == "engine e: no response header in time"


async def test_expiry_while_the_reader_is_busy_waits_for_it() -> None:
    wire = asked()
    wire.receive(ENDLESS + b"some")
    wire.connection.expire()
    wire.lose()
    assert wire.connection.take() == b"some"
    with pytest.raises(EngineTimeout) as raised:
        wire.connection.take()
    assert str(raised.value) == "engine e: went silent"


async def test_hanging_up_is_told_anew_for_each_request() -> None:
    wire = asked()
    wire.receive(ENDLESS)
    wire.connection.abort()
    hung_up = [wire.connection.was_hung_up]
    wire.send()
    hung_up.append(wire.connection.was_hung_up)
    assert hung_up == [True, False]


# Back-pressure.


async def test_the_socket_pauses_above_high_water() -> None:
    wire = asked()
    wire.receive(ENDLESS + b"a" * HIGH_WATER_BYTES)
    assert wire.transport.calls == ["write"]
    wire.receive(b"b")
    assert wire.transport.calls == ["write", "pause_reading"]
    wire.receive(b"c")  # Was read already.
    assert wire.transport.calls == ["write", "pause_reading"]
    assert await wire.connection.read_chunk() == b"a" * HIGH_WATER_BYTES + b"bc"
    assert wire.transport.calls == ["write", "pause_reading", "resume_reading"]
    wire.receive(b"d" * HIGH_WATER_BYTES)
    assert wire.transport.is_reading()
    wire.receive(b"e")
    assert not wire.transport.is_reading()


async def test_what_was_not_taken_keeps_a_connection_from_its_pool() -> None:
    for num_bytes in (1, HIGH_WATER_BYTES + 1):
        wire = asked()
        wire.receive(OK + b"content-length: %d\r\n\r\n" % num_bytes + b"a" * num_bytes)
        assert wire.connection.has_ended
        can_be_kept = [wire.connection.can_be_kept]
        wire.connection.take()
        can_be_kept.append(wire.connection.can_be_kept)
        assert can_be_kept == [False, True]
        assert wire.transport.is_reading()


async def test_what_was_not_written_keeps_a_connection_from_its_pool() -> None:
    wire = asked()
    wire.transport.num_unwritten_bytes = 1
    wire.receive(b"HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n")
    assert wire.connection.has_ended
    assert not wire.connection.can_be_kept


async def test_a_paused_answer_that_broke_off_is_still_given() -> None:
    wire = asked()
    body = b"a" * (HIGH_WATER_BYTES + 1)
    wire.receive(CHUNKED + b"%x\r\n" % len(body) + body)
    wire.lose()
    assert wire.connection.take() == body
    assert wire.transport.calls == ["write", "pause_reading"]
    with pytest.raises(EngineReset):
        wire.connection.take()


async def test_num_unwritten_bytes() -> None:
    wire = asked()
    wire.transport.num_unwritten_bytes = 70
    assert wire.connection.num_unwritten_bytes == 70
    wire.lose()
    assert wire.connection.num_unwritten_bytes == 0
    assert Connection("e", asyncio.get_running_loop(), []).num_unwritten_bytes == 0


# Deadlines.


async def test_the_deadline_moves_with_the_answer() -> None:
    wire = asked()
    connection = wire.connection
    deadlines = [connection.deadline]
    wire.loop.now = 110.0
    wire.receive(OK)
    deadlines.append(connection.deadline)
    wire.receive(b"content-length: 2\r\n\r\n")
    deadlines.append(connection.deadline)
    wire.loop.now = 112.0
    wire.receive(b"o")
    deadlines.append(connection.deadline)
    wire.receive(b"k")
    deadlines.append(connection.deadline)
    assert deadlines == [130.0, 130.0, 115.0, 117.0, 0.0]


async def test_a_paused_socket_has_no_deadline() -> None:
    wire = asked()
    wire.receive(ENDLESS + b"a" * (HIGH_WATER_BYTES + 1))
    assert wire.connection.deadline == 0.0
    wire.loop.now = 900.0
    wire.connection.take()
    assert wire.connection.deadline == 905.0


async def test_taking_what_did_not_pause_gives_no_more_time() -> None:
    wire = asked()
    wire.receive(ENDLESS + b"some")
    wire.loop.now = 104.0
    wire.connection.take()
    assert wire.connection.deadline == 105.0


async def test_a_whole_answer_has_no_deadline_when_it_is_taken() -> None:
    wire = asked()
    size = HIGH_WATER_BYTES + 1
    wire.receive(OK + b"content-length: %d\r\n\r\n" % size + b"a" * size)
    wire.connection.take()
    assert wire.connection.deadline == 0.0


# The sink.


async def test_a_sink_hears_of_everything() -> None:
    wire = asked()
    wire.receive(CHUNKED)
    heard: list[bytes | EngineError] = []

    def sink() -> None:
        try:
            heard.append(wire.connection.take())
        except EngineError as error:
            heard.append(error)

    wire.connection.set_sink(sink)
    wire.receive(b"2\r\nok\r\n", b"1\r\n!\r\n")
    wire.connection.expire()
    assert heard[:2] == [b"ok", b"!"]
    assert isinstance(heard[2], EngineTimeout)
    wire.connection.set_sink(None)
    wire.lose()
    assert len(heard) == 3


async def test_the_next_request_has_no_sink() -> None:
    wire = asked()
    wire.receive(TWO + b"ok")
    wire.connection.take()
    heard: list[None] = []
    wire.connection.set_sink(lambda: heard.append(None))
    wire.send()
    head = await waiting(wire.connection.read_head)
    wire.receive(TWO)
    await asyncio.wait_for(head, 1)
    assert heard == []


async def test_without_a_socket_nothing_is_quiet() -> None:
    wire = Wire()
    assert wire.connection.is_open
    assert not wire.connection.is_quiet()
    assert not Connection("e", asyncio.get_running_loop(), []).is_quiet()
    wire.connection.close()
    assert wire.transport.calls == ["close"]
