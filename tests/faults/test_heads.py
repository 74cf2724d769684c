"""K04, K07: heads and bodies that never end, and clients that send their next request early."""

import asyncio
from collections.abc import Callable

import pytest

from support import behaviours
from support.behaviours import Gate
from support.expect import assert_own_error
from support.raw_client import RawClient, post, raw_client
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Leg
from support.vllm_api import CHAT, COMPLETIONS, dump
from support.waiting import soon, until
from transload_router.app import client as client_side
from transload_router.app import line

CHAT_POST = post(CHAT.path, dump(CHAT.request()))
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
SHORT_S = 0.2


# Pipelining.


async def test_pipelined_requests_are_all_answered_in_turn(fleet: Fleet) -> None:
    """All are there before the first has its answer."""
    gate = Gate()
    fleet.p.by_leg[Leg.PREFILL] = gate.before()
    num_requests = line.MAX_PIPELINED + 3
    async with raw_client(fleet.router.port) as client:
        for number in range(num_requests):
            body = dump(CHAT.request(user=str(number)))
            await client.send(post(CHAT.path, body, ("x-request-id", str(number))))
        await gate.reached.wait()
        gate.opened.set()
        for number in range(num_requests):
            answer = await client.read_answer()
            assert (answer.status, answer.header("x-request-id")) == (200, str(number))
    assert [e.request.json()["user"] for e in fleet.d.asked()] == [
        str(number) for number in range(num_requests)
    ]


@pytest.mark.parametrize("leave", [RawClient.reset, RawClient.close], ids=["reset", "close"])
@pytest.mark.parametrize("num_behind", [1, line.MAX_PIPELINED])
@pytest.mark.parametrize("num_at_once", [0, 1], ids=["later", "at-once"])
async def test_a_client_that_sent_more_is_seen_to_leave(
    num_at_once: int, num_behind: int, leave: Callable[[RawClient], None]
) -> None:
    """The first request hangs, the rest waits behind it: the engine is hung up on at once."""
    async with serve_fleet(response_header_timeout_s=60) as fleet:
        fleet.p.by_leg[Leg.PREFILL] = behaviours.hang
        async with raw_client(fleet.router.port) as client:
            await client.send(CHAT_POST * (1 + num_at_once))
            exchange = await fleet.p.next_exchange(1, Leg.PREFILL)
            await client.send(CHAT_POST * (num_behind - num_at_once))
            connections = fleet.router.server.server_state.connections
            await until(
                lambda: any(len(getattr(c, "pipeline", ())) == num_behind for c in connections),
                "all were read",
            )
            await fleet.router.saw_leave(lambda: leave(client))
            await soon(exchange.lost.wait())
        await until(lambda: fleet.router.num_legs == 0, "nothing reserved")
        assert len(fleet.p.asked()) == 1, "what waited behind is not begun"
        scrape = await fleet.router.metrics()
        assert scrape.value("transload_requests_total", code="499") == 1


async def test_large_pipelined_bodies_are_no_large_heads(fleet: Fleet) -> None:
    """A body's end and the next head come in one piece."""
    one = post(COMPLETIONS.path, dump(COMPLETIONS.request(prompt="p" * 150_000)))
    async with raw_client(fleet.router.port) as client:
        await client.send(one + one[:20])
        assert (await client.read_answer()).status == 200
        await client.send(one[20:] + one)
        for _ in range(2):
            assert (await client.read_answer()).status == 200


# Size.

ENDLESS = {
    "headers": b"".join(b"x-%d: %b\r\n" % (number, b"y" * 100) for number in range(800)),
    "value": b"x: " + b"y" * 80_000,
    "name": b"x" * 80_000,
}


async def send_just_over(client: RawClient, data: bytes) -> None:
    """No more than that: a connection closed over unread bytes loses its last words."""
    await client.send(data[: line.MAX_HEAD_BYTES])
    await client.send(data[line.MAX_HEAD_BYTES : line.MAX_HEAD_BYTES + 1])


async def assert_too_large(client: RawClient) -> None:
    status, headers = await client.read_head()
    assert status == 431
    assert ("connection", "close") in headers
    assert await client.read_to_end() == b""


@pytest.mark.parametrize("num_before", [0, 1])
@pytest.mark.parametrize("name", ENDLESS)
async def test_a_head_without_end(fleet: Fleet, name: str, num_before: int) -> None:
    """On a new connection, and on one that served before; no engine hears of it."""
    async with raw_client(fleet.router.port) as client:
        for _ in range(num_before):
            await client.send(HEALTH + b"\r\n")
            assert (await client.read_answer()).status == 200
        data = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + ENDLESS[name]
        await send_just_over(client, data)
        await assert_too_large(client)
    assert fleet.p.asked() + fleet.d.asked() == []


async def test_trailers_without_end(fleet: Fleet) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            b"1\r\n{\r\n0\r\n"
        )
        await until(lambda: fleet.router.server.server_state.tasks, "the request began")
        await send_just_over(client, ENDLESS["value"])
        await assert_too_large(client)
    assert fleet.p.asked() + fleet.d.asked() == []


async def test_a_head_just_below_the_limit(fleet: Fleet) -> None:
    value = b"y" * (line.MAX_HEAD_BYTES - len(HEALTH) - 10)
    async with raw_client(fleet.router.port) as client:
        for _ in range(2):
            head = HEALTH + b"x: " + value + b"\r\n\r\n"
            assert len(head) <= line.MAX_HEAD_BYTES
            await client.send(head[:40_000])
            await client.send(head[40_000:])
            assert (await client.read_answer()).status == 200


# Time.


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are waited for a moment only."""
    monkeypatch.setattr(line, "HEAD_TIMEOUT_S", SHORT_S)
    monkeypatch.setattr(client_side, "BODY_STALL_S", SHORT_S)


# Uvicorn's own keep-alive, which would end an idle connection, is 5 s.
ENDED_WITHIN_S = 3.0


@pytest.mark.parametrize("begun", [b"", b"P", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"])
@pytest.mark.usefixtures("short_waits")
async def test_a_head_that_does_not_come(fleet: Fleet, begun: bytes) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(begun)
        assert await soon(client.reader.read(), ENDED_WITHIN_S) == b""


@pytest.mark.usefixtures("short_waits")
async def test_a_second_head_that_does_not_come(fleet: Fleet) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(HEALTH + b"\r\n")
        assert (await client.read_answer()).status == 200
        await client.send(HEALTH)
        assert await soon(client.reader.read(), ENDED_WITHIN_S) == b""


@pytest.mark.parametrize("begun", [b"", b'{"model":'], ids=["nothing", "half"])
@pytest.mark.parametrize("path", [CHAT.path, "/v1/embeddings"])
@pytest.mark.usefixtures("short_waits")
async def test_a_body_that_stops(fleet: Fleet, path: str, begun: bytes) -> None:
    async with raw_client(fleet.router.port) as client:
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n" % path.encode()
        await client.send(head + begun)
        answer = await soon(client.read_answer(), ENDED_WITHIN_S)
        assert answer.status == 408
        kind = assert_own_error(CHAT, 408, answer.body)
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_errors_total", leg="router", kind=kind) == 1
    assert fleet.p.asked() + fleet.d.asked() == []


@pytest.mark.usefixtures("short_waits")
async def test_a_long_answer_is_not_cut_by_them(fleet: Fleet) -> None:
    """Longer than both together; the client has nothing more to send, and need not."""
    async with serve_fleet(response_header_timeout_s=30, idle_timeout_s=30) as fleet:
        gate = Gate()
        fleet.p.by_leg[Leg.PREFILL] = gate.before()
        async with raw_client(fleet.router.port) as client:
            await client.send(CHAT_POST)
            await gate.reached.wait()
            asyncio.get_running_loop().call_later(3 * SHORT_S, gate.opened.set)
            assert (await client.read_answer()).status == 200
