"""K05: an engine's error reaches the client as the engine wrote it; ours say who is wrong."""

import asyncio
import json
import resource

import pytest

from support import behaviours
from support.expect import assert_own_error
from support.raw_client import post, raw_client
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Exchange, Leg
from support.vllm_api import APIS, CHAT, COMPLETIONS, MESSAGES, Api
from support.waiting import soon

# Statuses that another engine could mend are tried elsewhere, but there is none here.
STATUSES = (*range(400, 452), 499, *range(500, 512), 529, 599)
BODIES = (
    ("application/json", '{"error" : {"message":"漢字 \\u00fc","code": 400.0}}\n'.encode()),
    ("text/plain; charset=latin-1", b"\xe9chec\x00\xff"),
    ("text/html", b"<html>502</html>"),
)


@pytest.fixture(params=[Leg.PREFILL, Leg.DECODE])
def leg(request: pytest.FixtureRequest) -> Leg:
    return Leg(request.param)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", [CHAT, MESSAGES], ids=lambda api: api.name)
async def test_every_status_with_its_bytes(fleet: Fleet, api: Api, stream: bool, leg: Leg) -> None:
    engine = fleet.p if leg is Leg.PREFILL else fleet.d
    for index, status in enumerate(STATUSES):
        kind, body = BODIES[index % len(BODIES)]
        engine.by_leg[leg] = behaviours.answer(
            status,
            body,
            [("Content-Type", kind), ("Retry-After", "13"), ("X-Odd", "1"), ("X-Odd", "2")],
        )
        answer = await fleet.router.client.post(api.path, json=api.request(stream=stream))
        assert (answer.status_code, answer.content) == (status, body)
        assert answer.headers["content-type"] == kind
        assert answer.headers["retry-after"] == "13"
        assert answer.headers.get_list("x-odd") == ["1", "2"]
    scrape = await fleet.router.metrics()
    for status in STATUSES:
        labels = {"leg": leg, "kind": f"status_{status}"}
        assert scrape.value("transload_errors_total", **labels) == 1
    if leg is Leg.PREFILL:
        assert fleet.d.asked() == []


async def test_an_error_without_a_body(fleet: Fleet, leg: Leg) -> None:
    engine = fleet.p if leg is Leg.PREFILL else fleet.d
    engine.by_leg[leg] = behaviours.answer(503, b"", [])
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert (answer.status_code, answer.content) == (503, b"")


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_a_hundred_megabytes_of_error(fleet: Fleet, leg: Leg, chunked: bool) -> None:
    """An engine that echoes its input: everything passes, nothing is held."""
    engine = fleet.p if leg is Leg.PREFILL else fleet.d
    block, count = b"z" * (1 << 20), 100

    async def echo(exchange: Exchange) -> None:
        if chunked:
            await exchange.head(400, [("transfer-encoding", "chunked")])
        else:
            await exchange.head(400, [("content-length", str(len(block) * count))])
        for _ in range(count):
            await (exchange.chunk if chunked else exchange.write)(block)
            exchange.sent.clear()
        if chunked:
            await exchange.end_chunks()

    engine.by_leg[leg] = echo
    size = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with fleet.router.client.stream("POST", CHAT.path, json=CHAT.request()) as answer:
        assert answer.status_code == 400
        async for part in answer.aiter_raw():
            size += len(part)
    assert size == len(block) * count
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 40 << 10


MALFORMED: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b"1",
    b"{} {}",
    b'{"a":1,}',
    b'{"a"}',
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b"model=x&prompt=y",
    b"[" * 100_000,
    b'{"a":' * 100_000,
)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_bodies_that_are_no_object(fleet: Fleet, api: Api) -> None:
    for body in MALFORMED:
        answer = await fleet.router.client.post(api.path, content=body)
        assert answer.status_code == 400, body[:40]
        assert assert_own_error(api, 400, answer.content) == "invalid_request_error"
        assert len(answer.content) < 1000, "the input is not echoed"
        assert "retry-after" not in answer.headers
    assert fleet.p.asked() + fleet.d.asked() == []
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_requests_total", endpoint=api.name, code="400") == len(MALFORMED)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"tiny-model","prompt":"x","nan":NaN,"inf":-Infinity}',
        b'{"model":"tiny-model","prompt":"x","half":"\\ud83d"}',
        b'\r\n\t {"model":"tiny-model","prompt":"x"} \n',
    ],
)
async def test_what_engines_read_is_not_refused(fleet: Fleet, body: bytes) -> None:
    """Python's json takes more than the standard, and so do vLLM's clients."""
    answer = await fleet.router.client.post(COMPLETIONS.path, content=body)
    assert answer.status_code == 200, answer.text


async def test_text_that_is_no_utf8_is_the_engines_to_refuse(fleet: Fleet) -> None:
    answer = await fleet.router.client.post(
        COMPLETIONS.path, content=b'{"model":"tiny-model","prompt":"\xff"}'
    )
    assert answer.status_code == 400
    assert json.loads(answer.content)["error"]["message"]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_compressed_bodies_are_refused_by_name(fleet: Fleet, api: Api) -> None:
    answer = await fleet.router.client.post(
        api.path, content=b"\x1f\x8b\x08", headers={"content-encoding": "gzip"}
    )
    assert answer.status_code == 415
    assert_own_error(api, 415, answer.content)


async def test_who_is_wrong() -> None:
    """Unknown model: the engine says so. Nobody there: 503. Broken: 502. Silent: 504."""
    async with serve_fleet(on_empty_prefill="fail") as fleet:
        client = fleet.router.client
        unknown = behaviours.refuse(404, "The model `x` does not exist.")
        fleet.p.script.append(unknown)
        answer = await client.post(CHAT.path, json=CHAT.request(model="x"))
        assert answer.status_code == 404
        assert b"does not exist" in answer.content
        fleet.d.script.append(behaviours.hang)
        assert (await client.post(CHAT.path, json=CHAT.request())).status_code == 504
        fleet.d.script.append(behaviours.raw(b"SSH-2.0-OpenSSH_9.6\r\n", then="hang"))
        answer = await client.post(CHAT.path, json=CHAT.request())
        assert answer.status_code == 502
        assert assert_own_error(CHAT, 502, answer.content) == "engine_bad_answer"
        for engine in fleet.engines:
            await engine.stop()
        for _ in range(2):
            answer = await client.post(CHAT.path, json=CHAT.request())
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
        scrape = await fleet.router.metrics()
        assert scrape.value("transload_errors_total", kind="engine_unreachable") >= 1
        assert scrape.value("transload_errors_total", kind="no_engine_available") == 1


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_own_errors_name_no_address(api: Api) -> None:
    async with serve_fleet(on_empty_prefill="fail") as fleet:
        port = str(fleet.p.port)
        await fleet.p.stop()
        answer = await fleet.router.client.post(api.path, json=api.request())
        assert answer.status_code == 503
        text = answer.text + str(answer.headers)
        assert port not in text
        assert "127.0.0.1" not in text


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
    ],
    ids=["two-lengths", "bad-chunk", "negative", "no-status", "tls", "endless", "no-colon"],
)
async def test_bytes_that_are_not_http(fleet: Fleet, leg: Leg, answer: bytes) -> None:
    engine = fleet.p if leg is Leg.PREFILL else fleet.d
    engine.by_leg[leg] = behaviours.raw(answer, then="hang")
    told = await soon(fleet.router.client.post(CHAT.path, json=CHAT.request()))
    assert told.status_code == 502
    assert assert_own_error(CHAT, 502, told.content) == "engine_bad_answer"
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_errors_total", leg=leg, kind="engine_bad_answer") == 1


async def test_a_prefill_answer_without_end(fleet: Fleet) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.head(200, [("transfer-encoding", "chunked")])
        while True:
            await exchange.chunk(b" " * 65536)
            exchange.sent.clear()

    fleet.p.by_leg[Leg.PREFILL] = endless
    told = await soon(fleet.router.client.post(CHAT.path, json=CHAT.request()), 5)
    assert told.status_code == 502


@pytest.mark.parametrize("retry_header", [None, "true"])
async def test_sdks_are_told_only_after_a_retry(retry_header: str | None) -> None:
    """An engine's own word on retrying stands."""
    own = [("x-should-retry", retry_header)] if retry_header else []
    async with serve_fleet(1, 2) as fleet:
        for engine in fleet.decode:
            engine.by_leg[Leg.DECODE] = behaviours.refuse(503, headers=own)
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
        assert answer.status_code == 503
        assert answer.headers.get_list("x-should-retry") == [retry_header or "false"]
        assert [len(engine.asked()) for engine in fleet.decode] == [1, 1]


async def test_retries_send_the_same_bytes() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    body = json.dumps(CHAT.request(messages=[{"role": "user", "content": parts}])).encode()
    async with serve_fleet(2, 2) as fleet:
        for pool in (fleet.prefill, fleet.decode):
            failed: list[int] = []

            async def once(exchange: Exchange, failed: list[int] = failed) -> None:
                failed.append(1)
                again = behaviours.refuse(503) if len(failed) == 1 else exchange.engine.default
                await again(exchange)

            for engine in pool:
                engine.always = once
        answer = await fleet.router.client.post(CHAT.path, content=body)
        # One retry a request, whichever leg needed it.
        assert answer.status_code == 503
        sent = [e.request.body for engine in fleet.prefill for e in engine.asked()]
        assert len(sent) == 2
        assert sent[0] == sent[1]


async def test_the_body_of_an_error_may_come_late(fleet: Fleet) -> None:
    """Header first, body behind: the client waits for both and gets both."""
    gate = asyncio.Event()

    async def late(exchange: Exchange) -> None:
        await exchange.head(422, [("content-length", "4")])
        await gate.wait()
        await exchange.write(b"late")

    fleet.d.by_leg[Leg.DECODE] = late
    asking = asyncio.create_task(fleet.router.client.post(CHAT.path, json=CHAT.request()))
    await fleet.d.next_exchange()
    gate.set()
    answer = await asking
    assert (answer.status_code, answer.content) == (422, b"late")


async def test_bad_requests_on_a_kept_connection_do_no_harm(fleet: Fleet) -> None:
    async with raw_client(fleet.router.port) as client:
        for body in (b"{", b"[]"):
            await client.send(post(CHAT.path, body))
            assert (await client.read_answer()).status == 400
        good = json.dumps(CHAT.request()).encode()
        await client.send(post(CHAT.path, good))
        assert (await client.read_answer()).status == 200
