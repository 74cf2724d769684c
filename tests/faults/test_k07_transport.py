"""K07: connections that die idle, hang, or are many; bodies of every size; odd answers."""

import asyncio
import gzip
import json
import time

import httpx
import pytest

from support import behaviours
from support.behaviours import Gate
from support.expect import assert_own_error
from support.raw_client import post, raw_client
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Exchange, Leg, blackhole_url
from support.vllm_api import APIS, CHAT, COMPLETIONS, Api, dump
from support.vllm_behaviour import JSON, SSE
from support.waiting import soon, until

MIB = 1 << 20


def drop_idle(fleet: Fleet, how: str) -> None:
    """Engines close every connection that waits for a request."""
    for engine in fleet.engines:
        for connection in engine.connections:
            if connection.is_idle and not connection.lost.is_set():
                getattr(connection.transport, how)()


@pytest.mark.parametrize("how", ["close", "abort"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_engines_close_idle_connections(fleet: Fleet, api: Api, how: str) -> None:
    """The close is on its way, or there, when the next request comes: nobody notices."""
    for number in range(50):
        answer = await fleet.router.client.post(api.path, json=api.request())
        assert answer.status_code == 200, (number, answer.text)
        drop_idle(fleet, how)
    assert len(fleet.d.asked(Leg.DECODE)) == 50


async def test_connections_are_used_again_but_not_when_old(fleet: Fleet) -> None:
    """Uvicorn closes at 5 s; a connection of that age must be gone before."""
    before = len(fleet.d.connections)
    for _ in range(5):
        await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert len(fleet.d.connections) == before + 1
    [connection] = [c for c in fleet.d.connections[before:] if not c.lost.is_set()]
    began = asyncio.get_running_loop().time()
    await soon(connection.lost.wait(), 8)
    assert asyncio.get_running_loop().time() - began < 4.9


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_an_engine_says_connection_close(fleet: Fleet, leg: Leg) -> None:
    engine = fleet.p if leg is Leg.PREFILL else fleet.d

    async def once(exchange: Exchange) -> None:
        handoff = exchange.engine.ledger.new("p")
        if leg is Leg.PREFILL:
            exchange.engine.ledger.issued.append(handoff)
        body = b'{"kv_transfer_params":' + (handoff if leg is Leg.PREFILL else b"null") + b"}"
        await exchange.answer(200, body, [JSON, ("Connection", "close")])
        exchange.close()

    engine.by_leg[leg] = once
    for _ in range(5):
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
        assert answer.status_code == 200
        assert answer.headers.get("connection") != "close"


async def test_three_hundred_streams_at_once() -> None:
    async with serve_fleet(response_header_timeout_s=30, idle_timeout_s=30) as fleet:
        gate = asyncio.Event()
        fleet.d.by_leg[Leg.DECODE] = behaviours.gated_stream({1: gate})

        async def ask() -> bytes:
            answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
            return answer.content

        asking = [asyncio.create_task(ask()) for _ in range(300)]
        await soon(fleet.d.next_exchange(300, Leg.DECODE), 30)
        assert fleet.router.num_legs == 300
        gate.set()
        assert all(CHAT.done in body for body in await asyncio.gather(*asking))


async def test_a_hung_engine_delays_nobody_else() -> None:
    async with serve_fleet(1, 2, response_header_timeout_s=30) as fleet:
        fleet.decode[0].by_leg[Leg.DECODE] = behaviours.hang
        asking = []
        while not fleet.decode[0].asked():
            asking.append(
                asyncio.create_task(fleet.router.client.post(CHAT.path, json=CHAT.request()))
            )
            await asyncio.wait(asking[-1:], timeout=0.2)
        for _ in range(50):
            answer = await soon(fleet.router.client.post(CHAT.path, json=CHAT.request()))
            assert answer.status_code == 200
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_connecting_takes_no_longer_than_allowed() -> None:
    async with serve_fleet(connect_timeout_s=0.2) as fleet:
        await fleet.d.stop()
        # Nobody is left to release through.
        fleet.pinned = 1
        with blackhole_url(fleet.d.port):
            answer = await soon(fleet.router.client.post(CHAT.path, json=CHAT.request()))
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"


async def test_half_open_connections_are_not_waited_for() -> None:
    """A kept connection whose engine is gone without a word, as a crashed host leaves it."""
    async with serve_fleet() as fleet:
        await fleet.router.client.post(CHAT.path, json=CHAT.request())
        for connection in fleet.d.connections:
            connection.transport.pause_reading()
        # Sent, never read: as with any lost engine, its partner's lease frees the blocks.
        fleet.pinned = 1
        began = time.monotonic()
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
        assert answer.status_code == 504
        assert time.monotonic() - began < 5
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
        assert answer.status_code == 200, "the next request takes a fresh connection"


SIZES = (0, 1, 1000, 16 * 1024 - 1, 16 * 1024, 65536, MIB, 20 * MIB)


@pytest.mark.parametrize("size", SIZES)
async def test_bodies_of_every_size(fleet: Fleet, size: int) -> None:
    body = dump(COMPLETIONS.request(prompt="p" * size or "x"))
    answer = await fleet.router.client.post(COMPLETIONS.path, content=body)
    assert answer.status_code == 200
    sent = fleet.d.asked(Leg.DECODE)[0].request
    assert sent.body.startswith(body[:-1])
    assert sent.header("content-length") == str(len(sent.body))


def padded(size: int) -> bytes:
    empty = dump(COMPLETIONS.request(prompt=""))
    return empty.replace(b'"prompt":""', b'"prompt":"' + b"p" * (size - len(empty)) + b'"')


async def test_the_cap_to_the_byte() -> None:
    """64 MiB pass by default, whatever an image in base64 needs."""
    async with serve_fleet(response_header_timeout_s=30) as fleet:
        cap = 64 * MIB
        answer = await fleet.router.client.post(COMPLETIONS.path, content=padded(cap))
        assert answer.status_code == 200
        assert len(fleet.d.asked(Leg.DECODE)[0].request.body) > cap


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("path", [*(api.path for api in APIS), "/v1/embeddings", "/any/thing"])
async def test_over_the_cap(path: str, chunked: bool) -> None:
    async with serve_fleet(max_body_bytes=10_000) as fleet:
        api = next((api for api in APIS if api.path == path), CHAT)
        for size, status in ((10_000, 200), (10_001, 413), (500_000, 413)):
            body = padded(size)

            async def pieces(body: bytes = body):  # type: ignore[no-untyped-def]
                for start in range(0, len(body), 4096):
                    yield body[start : start + 4096]

            answer = await fleet.router.client.post(path, content=pieces() if chunked else body)
            if status == 413:
                assert answer.status_code == 413
                assert assert_own_error(api, 413, answer.content) == "request_too_large"
            else:
                assert answer.status_code != 413
        assert all(len(e.request.body) < 11_000 for e in fleet.p.asked() + fleet.d.asked())


async def test_an_announced_excess_is_refused_unread(fleet: Fleet) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999999\r\n\r\n{"
        )
        answer = await soon(client.read_answer())
        assert answer.status == 413
        assert answer.header("connection") == "close"


async def test_a_hundred_slow_uploads(fleet: Fleet) -> None:
    """Large bodies in small chunks, all interleaved: each leg gets its own, whole."""

    async def upload(number: int) -> None:
        body = dump(COMPLETIONS.request(prompt=f"{number:03d}" * 4000))
        async with raw_client(fleet.router.port) as client:
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for start in range(0, len(body), 1500):
                piece = body[start : start + 1500]
                await client.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                await asyncio.sleep(0)
            await client.send(b"0\r\n\r\n")
            assert (await client.read_answer()).status == 200

    await asyncio.gather(*(upload(number) for number in range(100)))
    for leg, engine in ((Leg.PREFILL, fleet.p), (Leg.DECODE, fleet.d)):
        prompts = {e.request.json()["prompt"] for e in engine.asked(leg)}
        assert prompts == {f"{number:03d}" * 4000 for number in range(100)}


async def test_expect_continue(fleet: Fleet) -> None:
    body = dump(CHAT.request())
    async with raw_client(fleet.router.port) as client:
        await client.send(post(CHAT.path, body, ("expect", "100-continue"))[: -len(body)])
        assert (await client.read_head())[0] == 100
        await client.send(body)
        assert (await client.read_answer()).status == 200
    assert fleet.p.asked()[0].request.header("expect") is None


async def test_a_compressing_engine(fleet: Fleet) -> None:
    """The legs ask for no compression; what comes compressed all the same stays whole."""

    async def compress(exchange: Exchange) -> None:
        body, headers = behaviours.gzipped(exchange)
        await exchange.answer(200, body, headers)

    fleet.d.by_leg[Leg.DECODE] = compress
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["object"] == "chat.completion"
    for engine in (fleet.p, fleet.d):
        assert engine.asked()[0].request.header("accept-encoding") in (None, "identity")


async def test_a_compressed_stream(fleet: Fleet) -> None:
    whole = b"data: 1\n\ndata: [DONE]\n\n"
    packed = gzip.compress(whole)
    fleet.d.by_leg[Leg.DECODE] = behaviours.stream(
        [packed[:10], packed[10:]], headers=[SSE, ("content-encoding", "gzip")]
    )
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert answer.content == whole


HOP = {
    "connection": "x-private, keep-alive",
    "x-private": "1",
    "keep-alive": "timeout=9",
    "te": "trailers",
    "trailer": "x-t",
    "upgrade": "h2c",
    "proxy-authorization": "Basic eA==",
    "proxy-connection": "keep-alive",
}


@pytest.mark.parametrize("path", [CHAT.path, "/v1/embeddings"])
async def test_hop_by_hop_headers_stay_on_their_hop(fleet: Fleet, path: str) -> None:
    fleet.d.always = fleet.d.by_leg[Leg.DECODE] = behaviours.answer(
        200,
        b"{}",
        [
            JSON,
            ("Connection", "X-Engine-Private"),
            ("X-Engine-Private", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Authenticate", "Basic"),
            ("X-Kept", "yes"),
        ],
    )
    answer = await fleet.router.client.post(path, json=CHAT.request(), headers=HOP)
    assert answer.status_code == 200
    for exchange in fleet.p.asked() + fleet.d.asked():
        names = {name.lower() for name, _ in exchange.request.headers}
        assert not names & (HOP.keys() - {"connection"}), names
        assert exchange.request.header("connection") in (None, "keep-alive")
        assert exchange.request.header("host") == exchange.engine.url.removeprefix("http://")
        assert exchange.request.header("transfer-encoding") is None
    told = {name.lower() for name in answer.headers}
    assert "x-kept" in told
    assert not told & {"x-engine-private", "keep-alive", "proxy-authenticate"}


ODD_ANSWERS = {
    "close-delimited": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}", "close"),
    "http-1.0": (b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}", "close"),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "keep",
    ),
    "bare-lf": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-folded: a\r\n\r\n{}", "keep"),
    "lower-case-chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
        b"1;ext=1\r\n{\r\n1\r\n}\r\n0\r\nt: 1\r\n\r\n",
        "keep",
    ),
    "no-reason": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\n{}", "keep"),
    "more-than-promised": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}garbage", "keep"),
}


@pytest.mark.parametrize("path", [CHAT.path, "/v1/embeddings"])
@pytest.mark.parametrize("name", ODD_ANSWERS)
async def test_odd_but_readable_answers(fleet: Fleet, path: str, name: str) -> None:
    data, then = ODD_ANSWERS[name]
    odd = behaviours.raw(data, then=then)  # type: ignore[arg-type]
    fleet.d.always = odd
    fleet.d.by_leg[Leg.DECODE] = odd
    for _ in range(2):
        answer = await soon(fleet.router.client.post(path, json=CHAT.request()))
        assert (answer.status_code, answer.content) == (200, b"{}")


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("path", [CHAT.path, "/v1/embeddings"])
async def test_answers_without_a_body(fleet: Fleet, path: str, status: int) -> None:
    odd = behaviours.raw(b"HTTP/1.1 %d X\r\nx-a: 1\r\n\r\n" % status)
    fleet.d.always = odd
    fleet.d.by_leg[Leg.DECODE] = odd
    async with raw_client(fleet.router.port) as client:
        for _ in range(2):
            await client.send(post(path, dump(CHAT.request())))
            answer = await client.read_answer()
            assert (answer.status, answer.body) == (status, b"")
            assert answer.header("transfer-encoding") is None


async def test_duplicate_answer_headers_and_spellings(fleet: Fleet) -> None:
    headers = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("X-Latin", "\xe9"), ("Vary", "x")]
    fleet.d.always = fleet.d.by_leg[Leg.DECODE] = behaviours.answer(200, b"{}", headers)
    for path in (CHAT.path, "/v1/embeddings"):
        answer = await fleet.router.client.post(path, json=CHAT.request())
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert answer.headers.raw.count((b"x-latin", b"\xe9")) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_larger_than_may_be_held(stream: bool) -> None:
    """Relayed as it comes, with the engine held back to the client's pace."""
    async with serve_fleet(max_answer_bytes=MIB) as fleet:
        body = b'{"embedding":"' + b"e" * (5 * MIB) + b'"}'
        fleet.d.by_leg[Leg.DECODE] = behaviours.answer(200, body)
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=stream))
        assert answer.content == body


async def test_an_answer_larger_than_may_be_held_breaks_off(fleet: Fleet) -> None:
    """Its form has no way to say so; the connection does."""
    async with serve_fleet(max_answer_bytes=MIB) as fleet:

        async def cut(exchange: Exchange) -> None:
            await exchange.head(200, [JSON, ("content-length", str(8 * MIB))])
            await exchange.write(b"x" * (4 * MIB))
            exchange.reset()

        fleet.d.by_leg[Leg.DECODE] = cut
        with pytest.raises(httpx.RemoteProtocolError):
            await fleet.router.client.post(CHAT.path, json=CHAT.request())


async def test_a_long_prefill_is_waited_for(fleet: Fleet) -> None:
    """Header timeouts are settings: a prefill of most of the time allowed passes."""
    gate = Gate()
    fleet.p.by_leg[Leg.PREFILL] = gate.before()
    asking = asyncio.create_task(fleet.router.client.post(CHAT.path, json=CHAT.request()))
    await gate.reached.wait()
    asyncio.get_running_loop().call_later(0.25, gate.opened.set)
    assert (await asking).status_code == 200


async def test_pipelined_and_kept_connections_of_clients(fleet: Fleet) -> None:
    body = dump(CHAT.request())
    async with raw_client(fleet.router.port) as client:
        await client.send(post(CHAT.path, body) * 3)
        for _ in range(3):
            answer = await client.read_answer()
            assert answer.status == 200
            assert json.loads(answer.body)["object"] == "chat.completion"
    await until(lambda: fleet.router.num_legs == 0, "empty")
