"""K04: the client leaves, in every phase and manner; within a second nobody works for it."""

import asyncio
from collections.abc import Callable

import pytest

from support import behaviours
from support.behaviours import Gate
from support.raw_client import RawClient, post, raw_client
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Behaviour, Exchange, Leg
from support.vllm_api import APIS, CHAT, Api, dump
from support.vllm_behaviour import SSE
from support.waiting import soon, until

# A second, and what a machine may stand still besides, with four workers on two cores.
GONE_S = 1.0 + 2.0
MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
EACH_API = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
MANNERS = pytest.mark.parametrize(
    "leave", [RawClient.close, RawClient.reset, RawClient.half_close], ids=lambda f: f.__name__
)
Leave = Callable[[RawClient], None]


def request(api: Api, *, stream: bool) -> bytes:
    return post(api.path, dump(api.request(stream=stream)))


async def assert_left(fleet: Fleet, engine_exchange: Exchange) -> None:
    """The leg's connection went within the second, and the 499 was counted."""
    await soon(engine_exchange.lost.wait(), GONE_S)
    await until(lambda: fleet.router.num_legs == 0, "no reservation", GONE_S)
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_requests_total", code="499") == 1
    assert scrape.value("transload_errors_total", leg="prefill") == 0
    assert scrape.value("transload_errors_total", leg="decode") == 0


@MANNERS
@MODES
@EACH_API
async def test_while_prefill_reads(fleet: Fleet, api: Api, stream: bool, leave: Leave) -> None:
    fleet.p.by_leg[Leg.PREFILL] = behaviours.hang
    async with raw_client(fleet.router.port) as client:
        await client.send(request(api, stream=stream))
        exchange = await fleet.p.next_exchange()
        leave(client)
        await assert_left(fleet, exchange)
    assert fleet.d.asked() == []


@MANNERS
@MODES
@EACH_API
async def test_while_decode_is_silent(fleet: Fleet, api: Api, stream: bool, leave: Leave) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.hang
    async with raw_client(fleet.router.port) as client:
        await client.send(request(api, stream=stream))
        exchange = await fleet.d.next_exchange()
        leave(client)
        await assert_left(fleet, exchange)


@MANNERS
@EACH_API
async def test_in_the_middle_of_a_stream(fleet: Fleet, api: Api, leave: Leave) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.gated_stream({2: asyncio.Event()})
    async with raw_client(fleet.router.port) as client:
        await client.send(request(api, stream=True))
        assert (await client.read_head())[0] == 200
        await client.read_chunk()
        exchange = await fleet.d.next_exchange()
        leave(client)
        await assert_left(fleet, exchange)


@EACH_API
async def test_in_the_middle_of_a_whole_answer(fleet: Fleet, api: Api) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.stall_in_body()
    async with raw_client(fleet.router.port) as client:
        await client.send(request(api, stream=False))
        exchange = await fleet.d.next_exchange()
        client.close()
        await assert_left(fleet, exchange)


@MANNERS
async def test_before_the_body_is_whole(fleet: Fleet, leave: Leave) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(request(CHAT, stream=False)[:-5])
        in_flight = "transload_requests_in_flight"
        while not (await fleet.router.metrics()).nonzero(in_flight):
            pass
        leave(client)
        while (await fleet.router.metrics()).nonzero(in_flight):
            pass
    assert fleet.p.asked() + fleet.d.asked() == []


def late(left: asyncio.Event, pieces: int) -> Behaviour:
    """Prefill has its handoff ready, some of it sent, when the client leaves; then the rest."""

    async def behaviour(exchange: Exchange) -> None:
        handoff = exchange.engine.ledger.new("p")
        exchange.engine.ledger.issued.append(handoff)
        body = b'{"id":"x","kv_transfer_params":' + handoff + b"}"
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        whole = head + body
        cut = {0: 0, 1: 9, 2: len(head), 3: len(whole) - 1}[pieces]
        if cut:
            await exchange.write(whole[:cut])
        left.set()
        exchange.connection.transport.write(whole[cut:])
        await exchange.connection.can_write.wait()

    return behaviour


@pytest.mark.parametrize("pieces", [0, 1, 2, 3])
@EACH_API
async def test_prefill_answers_in_the_moment_the_client_leaves(
    fleet: Fleet, api: Api, pieces: int
) -> None:
    """Whether decode was asked or not: the handoff is used or released, once."""
    left = asyncio.Event()
    fleet.p.by_leg[Leg.PREFILL] = late(left, pieces)
    async with raw_client(fleet.router.port) as client:
        await client.send(request(api, stream=False))
        await left.wait()
        client.close()
    await until(lambda: not fleet.p.ledger.pinned, "handoff used or released", GONE_S)


async def test_a_hundred_leave_between_the_legs(fleet: Fleet) -> None:
    """Prefill has answered, decode hangs in its connection's first byte or not at all."""
    fleet.d.by_leg[Leg.DECODE] = behaviours.hang

    async def come_and_go() -> None:
        left = asyncio.Event()
        fleet.p.script.append(late(left, 3))
        async with raw_client(fleet.router.port) as client:
            await client.send(request(CHAT, stream=True))
            await left.wait()

    for _ in range(10):
        await asyncio.gather(*(come_and_go() for _ in range(10)))
    await until(lambda: fleet.router.num_legs == 0, "no reservation", GONE_S)
    await until(lambda: not fleet.p.ledger.pinned, "all handoffs settled", GONE_S)
    assert len(fleet.p.ledger.issued) == 100
    assert fleet.p.ledger.faults() == []


async def test_a_release_is_shaped_to_be_rejected_and_counted(fleet: Fleet) -> None:
    """The client leaves while prefill's answer is half there; no decode engine was asked."""
    half_sent, rest = asyncio.Event(), asyncio.Event()

    async def halves(exchange: Exchange) -> None:
        handoff = exchange.engine.ledger.new("p")
        body = b'{"kv_transfer_params":' + handoff + b"}"
        exchange.engine.ledger.issued.append(handoff)
        await exchange.head(200, [("content-length", str(len(body)))])
        await exchange.write(body[:20])
        half_sent.set()
        await rest.wait()
        await exchange.write(body[20:])

    fleet.p.by_leg[Leg.PREFILL] = halves
    async with raw_client(fleet.router.port) as client:
        await client.send(request(CHAT, stream=True))
        await half_sent.wait()
        await fleet.router.saw_leave(client.close)
    rest.set()
    release = (await fleet.d.next_exchange(1, Leg.RELEASE)).request
    assert release.path == "/v1/completions"
    sent = release.json()
    assert (sent["stream"], sent["use_beam_search"], sent["max_tokens"]) == (True, True, 1)
    assert (sent["model"], release.handoff) == ("tiny-model", fleet.p.ledger.issued[0])
    assert fleet.d.asked() == []
    await until(lambda: fleet.d.is_idle, "release answered")
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_handoffs_released_total", released="request") == 1


async def test_a_reader_that_stops_reading() -> None:
    """The stall timeout frees the engine from a client that takes nothing any more."""
    async with serve_fleet(client_stall_timeout_s=0.3, idle_timeout_s=30) as fleet:

        async def flood(exchange: Exchange) -> None:
            await exchange.head(200, [SSE, ("transfer-encoding", "chunked")])
            while True:
                await exchange.chunk(b"data: " + b"x" * 65536 + b"\n\n")

        fleet.d.by_leg[Leg.DECODE] = flood
        async with raw_client(fleet.router.port, receive_buffer=4096) as client:
            await client.send(request(CHAT, stream=True))
            exchange = await fleet.d.next_exchange()
            # The kernel looks at a stalled peer when a probe of its window is due.
            await soon(exchange.lost.wait(), 8)
        # Two sockets' buffers and two high-water marks, not the stream.
        assert len(exchange.sent) < 24 << 20


async def test_a_slow_reader_holds_the_engine_back_but_gets_everything() -> None:
    async with serve_fleet(client_stall_timeout_s=30, idle_timeout_s=0.5) as fleet:
        event = b"data: " + b"y" * 65528 + b"\n\n"
        num_events = 400
        fleet.d.by_leg[Leg.DECODE] = behaviours.stream([event] * num_events)
        async with raw_client(fleet.router.port, receive_buffer=65536) as client:
            await client.send(request(CHAT, stream=True))
            exchange = await fleet.d.next_exchange()
            assert (await client.read_head())[0] == 200
            size = -1
            while size != len(exchange.sent):
                # Until the engine is held back: a whole idle timeout without progress.
                size = len(exchange.sent)
                await asyncio.sleep(0.7)
            assert not exchange.ended.is_set()
            assert len(exchange.sent) < 24 << 20
            total = 0
            while chunk := await client.read_chunk():
                total += len(chunk)
            assert total == len(event) * num_events


async def test_ids_can_be_used_again_after_a_cancel(fleet: Fleet) -> None:
    gate = Gate()
    fleet.d.script.append(gate.before())
    async with raw_client(fleet.router.port) as client:
        await client.send(post(CHAT.path, dump(CHAT.request()), ("x-request-id", "mine")))
        await gate.reached.wait()
        client.reset()
    answer = await fleet.router.client.post(
        CHAT.path, json=CHAT.request(), headers={"x-request-id": "mine"}
    )
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "mine"
    exchanges = fleet.p.asked() + fleet.d.asked()
    ids = [exchange.request.header("x-request-id") for exchange in exchanges]
    assert len(set(ids)) == len(ids) == 4
    assert "mine" not in ids


async def test_a_middleware_does_not_hide_the_client() -> None:
    """The receive channel is wrapped, as body-reading middlewares do."""
    async with serve_fleet() as fleet:
        app = fleet.router.app
        inner = app.__class__.__call__

        async def wrapped(self: object, scope: object, receive: object, send: object) -> None:
            async def relayed() -> object:
                return await receive()  # type: ignore[operator]

            await inner(self, scope, relayed, send)

        fleet.d.by_leg[Leg.DECODE] = behaviours.hang
        app.__class__.__call__ = wrapped
        try:
            async with raw_client(fleet.router.port) as client:
                await client.send(request(CHAT, stream=False))
                exchange = await fleet.d.next_exchange()
                client.close()
                await soon(exchange.lost.wait(), GONE_S)
        finally:
            app.__class__.__call__ = inner
