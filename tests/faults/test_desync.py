"""K07: an engine that sends what nobody asked for harms no other request."""

import asyncio
from typing import Any, cast

import pytest

from support import behaviours
from support.expect import assert_own_error
from support.raw_client import raw_client
from support.router_server import Fleet
from support.scripted_engine import Exchange, Leg
from support.vllm_api import CHAT, MODEL, dump
from support.waiting import soon
from transload_router.io.upstream.connection import HIGH_WATER_BYTES, Connection

EMBEDDINGS = "/v1/embeddings"
BODIES = {CHAT.path: CHAT.request(), EMBEDDINGS: {"model": MODEL, "input": "x"}}
PATHS = pytest.mark.parametrize("path", BODIES)
OWN = b'{"own":"answer, long enough to fill a length that was announced before"}'
# Well within the four seconds after which an idle connection would be closed anyway.
CLOSED_WITHIN_S = 2.0


def whole(body: bytes, status: int = 200, more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    return head % (status, more, len(body)) + body


FIRST = whole(b'{"first":1}')
UNASKED = {
    "half-line": b"HTTP/1.1 200",
    "half-head": b"HTTP/1.1 418 X\r\nset-cookie: evil=1\r\nx: ",
    "head": b"HTTP/1.1 200 X\r\nset-cookie: evil=1\r\ncontent-length: 40\r\n\r\n",
    "second-answer": whole(b'{"second":1}', 500, b"set-cookie: evil=1\r\n"),
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "garbage": b"\x00\x01garbage",
}


async def assert_next_gets_its_own(fleet: Fleet, path: str, first: Exchange) -> None:
    """Another request, on another connection, and no byte of the first's."""
    await soon(first.lost.wait(), CLOSED_WITHIN_S)
    fleet.d.script.append(behaviours.answer(200, OWN))
    answer = await fleet.router.client.post(path, json=BODIES[path])
    assert (answer.status_code, answer.content) == (200, OWN)
    assert "set-cookie" not in answer.headers
    assert fleet.d.asked()[-1].connection is not first.connection


@pytest.mark.parametrize("name", UNASKED)
@PATHS
async def test_bytes_behind_a_whole_answer(fleet: Fleet, path: str, name: str) -> None:
    fleet.d.script.append(behaviours.raw(FIRST + UNASKED[name]))
    answer = await fleet.router.client.post(path, json=BODIES[path])
    assert (answer.status_code, answer.content) == (200, b'{"first":1}')
    assert "set-cookie" not in answer.headers
    await assert_next_gets_its_own(fleet, path, fleet.d.asked()[0])


@pytest.mark.parametrize("name", UNASKED)
async def test_bytes_on_an_idle_connection(fleet: Fleet, name: str) -> None:
    fleet.d.script.append(behaviours.raw(FIRST))
    answer = await fleet.router.client.post(EMBEDDINGS, json=BODIES[EMBEDDINGS])
    assert answer.content == b'{"first":1}'
    [first] = fleet.d.asked()
    first.connection.transport.write(UNASKED[name])
    await assert_next_gets_its_own(fleet, EMBEDDINGS, first)


@PATHS
async def test_trailers_are_no_headers(fleet: Fleet, path: str) -> None:
    fleet.d.script.append(
        behaviours.raw(
            b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
            b'\r\n7\r\n{"a":1}\r\n0\r\nset-cookie: evil=1\r\ncontent-encoding: gzip\r\n\r\n'
        )
    )
    answer = await fleet.router.client.post(path, json=BODIES[path])
    assert (answer.status_code, answer.content) == (200, b'{"a":1}')
    assert not {"set-cookie", "content-encoding"} & set(answer.headers)


UPGRADE = b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE, Leg.LOCAL])
async def test_a_protocol_switched_unasked(fleet: Fleet, leg: Leg) -> None:
    engine = fleet.p if leg is Leg.PREFILL else fleet.d
    engine.by_leg[leg] = behaviours.raw(UPGRADE, then="hang")
    path = EMBEDDINGS if leg is Leg.LOCAL else CHAT.path
    answer = await soon(fleet.router.client.post(path, json=BODIES[path]))
    assert answer.status_code == 502
    assert assert_own_error(CHAT, 502, answer.content) == "engine_bad_answer"
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_errors_total", kind="engine_bad_answer") == 1
    engine.by_leg.clear()
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert answer.status_code == 200


async def test_a_304_that_announces_a_body(fleet: Fleet) -> None:
    """The length is of what a 200 would have; the client must not wait for it."""
    fleet.d.by_path["/static/x"] = behaviours.raw(
        b'HTTP/1.1 304 X\r\netag: "a"\r\ncontent-length: 10\r\n\r\n'
    )
    async with raw_client(fleet.router.port) as client:
        for _ in range(2):
            await client.send(b"GET /static/x HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await client.read_answer()
            assert (answer.status, answer.header("etag"), answer.body) == (304, '"a"', b"")
            assert answer.header("content-length") is None


async def test_a_half_written_connection_is_not_used_again(fleet: Fleet) -> None:
    """The engine refuses at the head and reads no further; the next request must not queue."""

    def refuse_unread(connection: Any) -> None:
        connection.transport.write(whole(b'{"error":"too big"}', 413))
        connection.transport.pause_reading()
        fleet.d.on_headers = None

    fleet.d.on_headers = refuse_unread
    fleet.d.script.append(behaviours.answer(200, OWN))
    big = dump({"model": MODEL, "input": "x" * (20 << 20)})
    answer = await fleet.router.client.post(EMBEDDINGS, content=big)
    assert (answer.status_code, answer.content) == (413, b'{"error":"too big"}')
    answer = await fleet.router.client.post(EMBEDDINGS, json=BODIES[EMBEDDINGS])
    assert (answer.status_code, answer.content) == (200, OWN)


class Socket:
    """A transport's face; nothing is behind it.

    Attributes:
        num_unwritten: Bytes that the kernel has not taken.
        is_reading: Whether the connection wants bytes.
    """

    def __init__(self) -> None:
        self.num_unwritten = 0
        self.is_reading = True
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        """Take everything."""

    def get_write_buffer_size(self) -> int:
        return self.num_unwritten

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def abort(self) -> None:
        self.is_aborted = True


async def answered(data: bytes) -> tuple[Connection, Socket]:
    """A connection that has sent its request and got these bytes."""
    connection, sock = Connection("d0", asyncio.get_running_loop(), []), Socket()
    connection.connection_made(cast(asyncio.Transport, sock))
    connection.send([b"GET / HTTP/1.1\r\n\r\n"], 0.0, 1.0, is_head=False)
    connection.data_received(data)
    return connection, sock


async def test_a_connection_is_kept_only_when_nothing_is_left_on_it() -> None:
    connection, sock = await answered(whole(b"{}"))
    is_kept = [connection.can_be_kept]
    assert connection.take() == b"{}"
    is_kept.append(connection.can_be_kept)
    sock.num_unwritten = 1
    is_kept.append(connection.can_be_kept)
    assert is_kept == [False, True, False], "untaken, done, half written"


async def test_a_paused_connection_is_not_kept() -> None:
    """The last bytes of an answer came at once, more than a slow client takes."""
    connection, sock = await answered(whole(b"x" * (HIGH_WATER_BYTES + 1)))
    assert (connection.has_ended, sock.is_reading, connection.can_be_kept) == (True, False, False)
    assert len(connection.take()) == HIGH_WATER_BYTES + 1
    assert (sock.is_reading, connection.can_be_kept) == (True, True)


@pytest.mark.parametrize("name", UNASKED)
async def test_a_connection_with_bytes_behind_its_answer_is_not_kept(name: str) -> None:
    connection, _ = await answered(whole(b"{}") + UNASKED[name])
    assert (connection.status, connection.take()) == (200, b"{}")
    assert not connection.can_be_kept
    connection, sock = await answered(whole(b"{}"))
    connection.data_received(UNASKED[name])
    assert connection.take() == b"{}"
    assert (connection.can_be_kept, sock.is_aborted) == (False, True)
