"""Routes that one engine serves whole: fault x kind of request, and responses that are stored.

The answer to the client, what was counted, and that nothing was left, for each.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from support import behaviours
from support.behaviours import Gate
from support.expect import assert_own_error
from support.raw_client import RawAnswer, raw_client
from support.router_server import Fleet, Metrics, serve_fleet
from support.scripted_engine import Behaviour, Exchange, Leg, ScriptedEngine
from support.vllm_api import CHAT, RESPONSES, dump
from support.vllm_behaviour import JSON
from support.waiting import soon

BOUNDARY = "b0undary"
FORM = (
    f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="model"\r\n\r\ntiny-model\r\n'
    f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n'
    "content-type: audio/wav\r\n\r\n"
).encode() + bytes(range(256)) * 20
FORM += f"\r\n--{BOUNDARY}--\r\n".encode()
TOLD = '{"detail":"an engine in its own words: 漢字"}'.encode()
HALF = b"HTTP/1.1 200 OK\r\ncontent-type: text/x\r\ncontent-length: 20\r\n\r\n0123456789"
HALF_CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    b"transfer-encoding: chunked\r\n\r\na\r\n0123456789\r\n"
)


@dataclass(frozen=True)
class Ask:
    """One kind of request.

    Attributes:
        label: Its endpoint in metrics.
        model: Its model in metrics.
    """

    name: str
    method: str
    path: str
    label: str
    model: str
    body: bytes = b""
    kind: str = ""

    @property
    def bytes(self) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nhost: router.test\r\nx-request-id: mine\r\n"
        if self.kind:
            head += f"content-type: {self.kind}\r\ncontent-length: {len(self.body)}\r\n"
        return head.encode() + b"\r\n" + self.body


ASKS = (
    Ask("get", "GET", "/any/page?a=%20b", "other", "other"),
    Ask(
        "json",
        "POST",
        "/tokenize",
        "tokenize",
        "tiny-model",
        b'{"model": "tiny-model", "prompt": "hi"}',
        "application/json",
    ),
    Ask(
        "multipart",
        "POST",
        "/v1/audio/transcriptions",
        "audio_transcriptions",
        "tiny-model",
        FORM,
        f"multipart/form-data; boundary={BOUNDARY}",
    ),
)


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        kind: In `transload_errors_total`.
        status: What the client gets.
        own: The error's type where the answer is the router's.
        is_cut: Whether the client gets a part, and then the end of its connection.
    """

    name: str
    kind: str
    status: int
    behaviour: Behaviour | None = None
    own: str = ""
    is_cut: bool = False


def told(status: int, *headers: tuple[str, str]) -> Behaviour:
    return behaviours.answer(status, TOLD, [JSON, *headers])


FAULTS = (
    Fault("refused", "engine_unreachable", 503, None, "engine_unreachable"),
    Fault("400", "status_400", 400, told(400)),
    Fault("401", "status_401", 401, told(401, ("www-authenticate", "Bearer"))),
    Fault("404", "status_404", 404, told(404)),
    Fault("429", "status_429", 429, told(429, ("retry-after", "7"))),
    Fault("500", "status_500", 500, told(500)),
    Fault("503", "status_503", 503, told(503, ("retry-after", "3"))),
    Fault("hang", "engine_timeout", 504, behaviours.hang, "engine_timeout"),
    Fault("reset", "engine_reset", 502, behaviours.reset_before_header, "engine_reset"),
    Fault("close", "engine_reset", 502, behaviours.close_before_header, "engine_reset"),
    Fault(
        "half_head",
        "engine_reset",
        502,
        behaviours.raw(b"HTTP/1.1 200 OK\r\ncont", then="close"),
        "engine_reset",
    ),
    Fault(
        "no_http",
        "engine_bad_answer",
        502,
        behaviours.raw(b"no http\r\n\r\n", then="close"),
        "engine_bad_answer",
    ),
    Fault(
        "reset_in_body",
        "engine_reset",
        200,
        behaviours.raw(HALF, then="reset"),
        is_cut=True,
    ),
    Fault(
        "close_in_body",
        "engine_reset",
        200,
        behaviours.raw(HALF, then="close"),
        is_cut=True,
    ),
    Fault(
        "stall_in_body",
        "engine_timeout",
        200,
        behaviours.raw(HALF, then="hang"),
        is_cut=True,
    ),
    Fault(
        "reset_in_chunks",
        "engine_reset",
        200,
        behaviours.raw(HALF_CHUNKED, then="reset"),
        is_cut=True,
    ),
    Fault(
        "close_in_chunks",
        "engine_reset",
        200,
        behaviours.raw(HALF_CHUNKED, then="close"),
        is_cut=True,
    ),
)
QUIET: dict[str, Any] = {"response_header_timeout_s": 0.3, "idle_timeout_s": 0.3}


def moved(after: Metrics, before: Metrics, name: str) -> list[dict[str, str]]:
    """Labels of each series of a counter that went up, once for each count."""
    found = []
    for labels, value in after.samples(name):
        found += [labels] * int(value - before.value(name, **labels))
    return found


async def read_cut(port: int, ask: Ask) -> tuple[bytes, bytes]:
    """Everything of an answer whose connection then ends: (head, rest)."""
    async with raw_client(port) as client:
        await client.send(ask.bytes)
        head, _, rest = (await client.read_to_end()).partition(b"\r\n\r\n")
    return head, rest


async def read_whole(port: int, ask: Ask) -> RawAnswer:
    async with raw_client(port) as client:
        await client.send(ask.bytes)
        answer = await client.read_answer()
        # The connection serves on.
        await client.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.read_answer()).status == 200
    return answer


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_one_engine(ask: Ask, fault: Fault) -> None:
    async with serve_fleet(**QUIET) as fleet:
        router, port = fleet.router, fleet.router.port
        if fault.behaviour is None:
            await fleet.d.stop()
        fleet.d.always = fault.behaviour
        before = await router.metrics()
        if fault.is_cut:
            head, rest = await read_cut(port, ask)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"0123456789" in rest
            assert not rest.endswith(b"0\r\n\r\n"), "a cut answer must not look whole"
            assert (b"content-length: 20" in head.lower()) == (b"\r\n" not in rest)
        else:
            answer = await read_whole(port, ask)
            assert answer.status == fault.status
            assert answer.header("x-request-id") == "mine"
            if fault.own:
                assert assert_own_error(CHAT, fault.status, answer.body) == fault.own
                assert answer.header("retry-after") == ("1" if fault.status == 503 else None)
            else:
                assert answer.body == TOLD
                for name, value in (("429", "7"), ("503", "3")):
                    if fault.name == name:
                        assert answer.header("retry-after") == value
        after = await router.metrics()
        assert moved(after, before, "transload_errors_total") == [
            {"leg": "decode", "kind": fault.kind, "engine": "decode-0"}
        ]
        labels = {"endpoint": ask.label, "model": ask.model, "code": str(fault.status)}
        own = {"endpoint": "other", "model": "other"}
        counted = moved(after, before, "transload_requests_total")
        assert [one for one in counted if own.items() - one.items() or ask.label == "other"] == [
            labels
        ]
        if fault.behaviour is not None:
            [exchange] = fleet.d.asked()
            assert exchange.request.method == ask.method
            assert exchange.request.target == ask.path
            assert exchange.request.body == ask.body
        assert fleet.p.asked() == []


@pytest.mark.parametrize("fault", FAULTS[1:], ids=lambda fault: fault.name)
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_what_was_sent_is_sent_to_nobody_else(ask: Ask, fault: Fault) -> None:
    """Bodies of these routes are not known to be safe to repeat."""
    async with serve_fleet(1, 2, **QUIET) as fleet:
        for engine in fleet.decode:
            engine.always = fault.behaviour
        async with raw_client(fleet.router.port) as client:
            await client.send(ask.bytes)
            status, _ = await client.read_head()
        assert status == fault.status
        assert sum(len(engine.asked()) for engine in fleet.decode) == 1


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_only_what_is_safe_is_sent_again_where_a_kept_connection_dies(ask: Ask) -> None:
    """Whether the engine read it before it hung up cannot be known."""
    async with serve_fleet() as fleet:
        served = behaviours.answer(200, b"served")
        fleet.d.script.extend([served, behaviours.reset_before_header, served])
        assert (await read_whole(fleet.router.port, ASKS[0])).status == 200
        answer = await read_whole(fleet.router.port, ask)
        is_safe = ask.method == "GET"
        assert answer.status == (200 if is_safe else 502)
        first, second, *rest = fleet.d.asked()
        assert first.connection is second.connection, "the connection was used again"
        assert len(rest) == (1 if is_safe else 0)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_an_engine_that_was_not_reached_is_passed_over(ask: Ask) -> None:
    async with serve_fleet(1, 2) as fleet:
        router = fleet.router.app.state.router
        # The other looks busy, so that the dead one is chosen.
        busy = router.load.reserve(router.fleet.engine("decode-1"), 10**6)
        await fleet.d.stop()
        fleet.decode[1].always = behaviours.answer(200, b"served")
        before = await fleet.router.metrics()
        answer = await read_whole(fleet.router.port, ask)
        busy.release()
        assert (answer.status, answer.body) == (200, b"served")
        assert fleet.decode[1].asked()[0].request.body == ask.body
        after = await fleet.router.metrics()
        assert moved(after, before, "transload_errors_total") == [
            {"leg": "decode", "kind": "engine_unreachable", "engine": "decode-0"}
        ]
        assert after.value("transload_engine_up", engine="decode-0") == 0


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_nobody_is_left(ask: Ask) -> None:
    async with serve_fleet() as fleet:
        fleet.router.app.state.router.fleet.mark_down("decode-0", "x")
        before = await fleet.router.metrics()
        answer = await read_whole(fleet.router.port, ask)
        assert assert_own_error(CHAT, 503, answer.body) == "no_engine_available"
        assert answer.header("retry-after") == "1"
        after = await fleet.router.metrics()
        assert moved(after, before, "transload_errors_total") == [
            {"leg": "router", "kind": "no_engine_available", "engine": "none"}
        ]


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
@pytest.mark.parametrize("when", ["before_header", "in_body"])
async def test_a_client_that_leaves(ask: Ask, when: str) -> None:
    async with serve_fleet(response_header_timeout_s=3600.0, idle_timeout_s=3600.0) as fleet:
        in_body = behaviours.raw(HALF, then="hang")
        fleet.d.always = behaviours.hang if when == "before_header" else in_body
        async with raw_client(fleet.router.port) as client:
            await client.send(ask.bytes)
            exchange = await fleet.d.next_exchange()
            if when == "in_body":
                await client.read_head()
            await fleet.router.saw_leave(client.close)
        await soon(exchange.lost.wait())
        await fleet.router.assert_empty()
        scrape = await fleet.router.metrics()
        assert scrape.value("transload_errors_total") == 0
        codes = scrape.label_values("transload_requests_total", "code")
        assert codes == {"499"} if when == "before_header" else codes <= {"499", "200"}


# Stored responses


def store(fleet: Fleet, **held: str) -> None:
    """Decode engines hold these responses (`d0="resp_a"`) and answer 404 for each other's."""

    async def behaviour(exchange: Exchange) -> None:
        name, engine = exchange.request.path.split("/")[3], exchange.engine.name
        if held.get(engine) == name:
            await exchange.answer(200, dump({"id": name, "at": engine}))
        else:
            await exchange.answer(404, dump({"error": f"not found by {engine}"}))

    for engine in fleet.decode:
        for name in (*held.values(), "resp_unknown"):
            for tail in ("", "/cancel", "/input_items"):
                engine.by_path[f"/v1/responses/{name}{tail}"] = behaviour


def stored_asked(engine: ScriptedEngine) -> list[str]:
    return [
        f"{one.request.method} {one.request.target}"
        for one in engine.exchanges
        if one.request.path.startswith("/v1/responses/")
    ]


async def test_the_holder_is_found_by_asking_and_remembered() -> None:
    """A router that was restarted knows nobody."""
    async with serve_fleet(1, 3) as fleet:
        store(fleet, d1="resp_a")
        for _ in range(4):
            got = await fleet.router.client.get("/v1/responses/resp_a?include=x")
            assert (got.status_code, got.json()["at"]) == (200, "d1")
        assert stored_asked(fleet.decode[0]) == ["GET /v1/responses/resp_a"]
        assert stored_asked(fleet.decode[1]) == [
            "GET /v1/responses/resp_a",
            *["GET /v1/responses/resp_a?include=x"] * 4,
        ]
        assert stored_asked(fleet.decode[2]) == [], "nobody is asked behind the holder"


@pytest.mark.parametrize(
    ("method", "tail"),
    [("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")],
)
async def test_every_verb_goes_to_the_holder(method: str, tail: str) -> None:
    async with serve_fleet(1, 3) as fleet:
        store(fleet, d2="resp_a")
        got = await fleet.router.client.request(method, f"/v1/responses/resp_a{tail}")
        assert (got.status_code, got.json()["at"]) == (200, "d2")
        assert stored_asked(fleet.decode[2])[-1] == f"{method} /v1/responses/resp_a{tail}"
        for engine in fleet.decode[:2]:
            assert stored_asked(engine) == ["GET /v1/responses/resp_a"]


async def test_an_id_that_nobody_knows_has_an_engines_answer() -> None:
    async with serve_fleet(1, 2) as fleet:
        store(fleet)
        before = await fleet.router.metrics()
        got = await fleet.router.client.get("/v1/responses/resp_unknown")
        assert got.status_code == 404
        assert "not found by d" in got.text
        asked = [len(stored_asked(engine)) for engine in fleet.decode]
        assert sorted(asked) == [1, 2], "each was asked, then one answers"
        after = await fleet.router.metrics()
        [error] = moved(after, before, "transload_errors_total")
        assert error["kind"] == "status_404"
        assert len(fleet.router.app.state.router.owners) == 0


async def test_questions_carry_the_clients_credentials() -> None:
    async with serve_fleet(1, 2) as fleet:
        store(fleet, d1="resp_a")
        headers = {"authorization": "Bearer mine", "x-request-id": "mine"}
        got = await fleet.router.client.get("/v1/responses/resp_a", headers=headers)
        assert got.status_code == 200
        for engine in fleet.decode:
            for one in engine.exchanges:
                if one.request.leg is not Leg.PROBE:
                    assert one.request.header("authorization") == "Bearer mine"
                    assert one.request.header("x-request-id") != "mine"


@pytest.mark.parametrize("fault", ["refused", "hang", "reset"])
async def test_an_engine_that_cannot_be_asked_is_counted_and_passed_over(fault: str) -> None:
    kinds = {"refused": "engine_unreachable", "hang": "engine_timeout", "reset": "engine_reset"}
    async with serve_fleet(1, 2, **QUIET) as fleet:
        store(fleet, d1="resp_a")
        if fault == "refused":
            await fleet.d.stop()
        else:
            broken = behaviours.hang if fault == "hang" else behaviours.reset_before_header
            fleet.d.by_path["/v1/responses/resp_a"] = broken
        got = await fleet.router.client.get("/v1/responses/resp_a")
        assert (got.status_code, got.json()["at"]) == (200, "d1")
        scrape = await fleet.router.metrics()
        errors = {"leg": "decode", "kind": kinds[fault], "engine": "decode-0"}
        assert scrape.samples("transload_errors_total") == [(errors, 1)]


async def test_a_holder_that_is_gone_is_not_replaced() -> None:
    """Another engine does not have it: 503 says to come back, a 404 would say it is lost."""
    async with serve_fleet(1, 2) as fleet:
        store(fleet, d0="resp_a")
        assert (await fleet.router.client.get("/v1/responses/resp_a")).status_code == 200
        await fleet.d.stop()
        others = len(stored_asked(fleet.decode[1]))
        for kind in ("engine_unreachable", "no_engine_available"):
            got = await fleet.router.client.get("/v1/responses/resp_a")
            assert assert_own_error(RESPONSES, 503, got.content) == kind
        assert len(stored_asked(fleet.decode[1])) == others


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_maker_is_remembered_and_the_next_turn_goes_there(stream: bool) -> None:
    async with serve_fleet(1, 3) as fleet:
        client = fleet.router.client
        made = await client.post(RESPONSES.path, json=RESPONSES.request(stream=stream))
        [maker] = [engine for engine in fleet.decode if engine.asked()]
        [name] = fleet.router.app.state.router.owners._owners
        assert f'"{name}"' in made.text
        for number in range(3):
            body = RESPONSES.request(stream=stream, previous_response_id=name)
            assert (await client.post(RESPONSES.path, json=body)).status_code == 200
            assert len(maker.asked()) == number + 2
        assert stored_asked(maker) == [], "nobody had to be asked"


async def test_the_next_turn_of_an_unknown_response_is_for_any_engine_to_refuse() -> None:
    async with serve_fleet(1, 2) as fleet:
        store(fleet)
        for engine in fleet.decode:
            engine.always = behaviours.answer(404, b'{"error":"no such response"}')
        body = RESPONSES.request(previous_response_id="resp_unknown")
        answer = await fleet.router.client.post(RESPONSES.path, json=body)
        assert (answer.status_code, answer.text) == (404, '{"error":"no such response"}')
        assert [len(stored_asked(engine)) for engine in fleet.decode] == [1, 1]


@pytest.mark.parametrize("previous", [None, 7, ["x"], {"id": "x"}])
async def test_a_previous_id_that_is_none_asks_nobody(previous: object) -> None:
    async with serve_fleet() as fleet:
        body = RESPONSES.request(previous_response_id=previous)
        await fleet.router.client.post(RESPONSES.path, json=body)
        assert stored_asked(fleet.d) == []


async def test_odd_ids_stay_one_segment() -> None:
    """An id from a body becomes a path at engines: it must not leave its place."""
    async with serve_fleet() as fleet:
        fleet.d.always = behaviours.answer(404, b"{}")
        for name in ("../../v1/models", "a?b=c", "a b\r\nx: y", "漢"):
            body = RESPONSES.request(previous_response_id=name)
            await fleet.router.client.post(RESPONSES.path, json=body)
        assert stored_asked(fleet.d) == [
            "GET /v1/responses/..%2F..%2Fv1%2Fmodels",
            "GET /v1/responses/a%3Fb%3Dc",
            "GET /v1/responses/a%20b%0D%0Ax%3A%20y",
            "GET /v1/responses/%E6%BC%A2",
        ]


@pytest.mark.parametrize("what", ["get", "turn"])
async def test_a_client_that_leaves_while_the_holder_is_looked_for(what: str) -> None:
    async with serve_fleet(1, 2, response_header_timeout_s=3600.0) as fleet:
        gate = Gate()
        for engine in fleet.decode:
            engine.by_path["/v1/responses/resp_a"] = gate.before(behaviours.answer(404, b"{}"))
        if what == "get":
            asking = b"GET /v1/responses/resp_a HTTP/1.1\r\nhost: x\r\n\r\n"
        else:
            body = b'{"model":"tiny-model","input":"x","previous_response_id":"resp_a"}'
            asking = (
                b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
        async with raw_client(fleet.router.port) as client:
            await client.send(asking)
            await soon(gate.reached.wait())
            await fleet.router.saw_leave(client.close)
        async with asyncio.timeout(5):
            await fleet.d.connections[-1].lost.wait()
        await fleet.router.assert_empty()
        gate.opened.set()
        scrape = await fleet.router.metrics()
        assert scrape.label_values("transload_requests_total", "code") == {"499"}
        assert sum(len(stored_asked(engine)) for engine in fleet.decode) == 1
