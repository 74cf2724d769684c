"""K10: no spelling of a request gets past the router to an engine that reads it otherwise."""

import re
from collections.abc import Iterator

import pytest

from support import behaviours
from support.expect import assert_own_error
from support.raw_client import post, raw_client
from support.router_server import Fleet
from support.scripted_engine import Leg
from support.vllm_api import CHAT, GENERATE, MODEL, RESPONSES, dump
from transload_router.app import forward

EVIL = {"do_remote_prefill": True, "remote_host": "evil"}
JSON = {"content-type": "application/json"}
ONE_ENGINE = pytest.mark.parametrize("path", ["/invocations", "/v1/embeddings"])


def reached(fleet: Fleet) -> list[bytes]:
    """Bodies that any engine was asked with."""
    return [e.request.body for engine in fleet.engines for e in engine.asked()]


async def assert_refused(fleet: Fleet, kind: str, status: int = 400) -> None:
    """No engine was asked, and the refusal was counted."""
    assert reached(fleet) == []
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_errors_total", kind=kind) == 1
    assert scrape.value("transload_requests_total", code=str(status)) == 1


@pytest.mark.parametrize("encoding", ["gzip", "x", "identity, gzip"])
@ONE_ENGINE
async def test_an_encoding_hides_no_json(fleet: Fleet, path: str, encoding: str) -> None:
    """Engines ignore the header and would read the bytes."""
    fleet.d.always = behaviours.answer(200, b"{}")
    body = dump({"model": MODEL, "prompt": "x", "kv_transfer_params": EVIL})
    headers = {**JSON, "content-encoding": encoding}
    answer = await fleet.router.client.post(path, content=body, headers=headers)
    assert answer.status_code == 415
    kind = assert_own_error(CHAT, 415, answer.content)
    await assert_refused(fleet, kind, 415)


@pytest.mark.parametrize(
    "headers",
    [
        {**JSON, "content-encoding": "identity"},
        {**JSON, "content-encoding": "Identity"},
        {"content-type": "text/plain"},
        {"content-type": "text/plain", "content-encoding": "gzip"},
        {},
    ],
    ids=str,
)
@ONE_ENGINE
async def test_transfer_members_are_taken_out(
    fleet: Fleet, path: str, headers: dict[str, str]
) -> None:
    fleet.d.always = behaviours.answer(200, b"{}")
    body = dump({"model": MODEL, "prompt": "x", "kv_transfer_params": EVIL})
    answer = await fleet.router.client.post(path, content=body, headers=headers)
    assert answer.status_code == 200
    assert reached(fleet) == [dump({"model": MODEL, "prompt": "x"})]


HALVES = pytest.mark.parametrize("half", [b"\\ud800", b"\xed\xa0\x80"], ids=["escaped", "raw"])
# Per API: an object behind whose unreadable member something would be overlooked.
HIDING = {
    "generate-door": (
        GENERATE.path,
        b'{"token_ids":[1],"sampling_params":{"%b":1,"extra_args":{"kv_transfer_params":{}}}}',
    ),
    "generate-n": (GENERATE.path, b'{"token_ids":[1],"sampling_params":{"%b":1,"n":3}}'),
    "chat-door": (CHAT.path, b'{"messages":[],"vllm_xargs":{"%b":1,"kv_transfer_params":{}}}'),
    "chat-top": (CHAT.path, b'{"messages":[],"%b":1,"kv_transfer_params":{}}'),
    "forward-door": ("/invocations", b'{"vllm_xargs":{"%b":1,"kv_transfer_params":{}}}'),
    "forward-top": ("/invocations", b'{"%b":1,"kv_transfer_params":{}}'),
}


@pytest.mark.parametrize("name", HIDING)
@HALVES
async def test_half_a_character_hides_nothing(fleet: Fleet, half: bytes, name: str) -> None:
    """Python's json reads such names, a stricter reader does not: no engine may see them."""
    path, template = HIDING[name]
    answer = await fleet.router.client.post(path, content=template % half, headers=JSON)
    assert answer.status_code == 400
    kind = assert_own_error(CHAT, 400, answer.content)
    await assert_refused(fleet, kind)


async def test_half_a_character_hides_no_tool_of_the_server(fleet: Fleet) -> None:
    """Tools that cannot be told apart may be the engine's own, and those run on one engine."""
    body = b'{"input":"x","tools":[{"\\ud800":1,"type":"web_search_preview"}]}'
    await fleet.router.client.post(RESPONSES.path, content=body, headers=JSON)
    assert [e.request.leg for e in fleet.p.asked() + fleet.d.asked()] == [Leg.LOCAL]
    assert fleet.d.asked()[0].request.body == body


async def test_half_a_character_is_no_defect_of_ours(fleet: Fleet) -> None:
    """As an id or a model's name it means nothing here, and the engine refuses it."""
    fleet.p.always = fleet.d.always = behaviours.answer(404)
    for body in (
        b'{"model":"%b","input":"x","previous_response_id":"\\ud800"}' % MODEL.encode(),
        b'{"model":"\\ud800","input":"x"}',
    ):
        answer = await fleet.router.client.post(RESPONSES.path, content=body, headers=JSON)
        assert answer.status_code != 500
    async with raw_client(fleet.router.port) as client:
        await client.send(b"GET /v1/responses/%ED%A0%80 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.read_answer()).status != 500
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_requests_total", code="500") == 0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("path", [CHAT.path, "/invocations", "/v1/embeddings"])
async def test_other_encodings_of_unicode(fleet: Fleet, path: str, encoding: str) -> None:
    """Python's json takes all of them from bytes."""
    body = dump({"model": MODEL, "kv_transfer_params": EVIL}).decode().encode(encoding)
    answer = await fleet.router.client.post(path, content=body, headers=JSON)
    assert answer.status_code == 400
    kind = assert_own_error(CHAT, 400, answer.content)
    await assert_refused(fleet, kind)


@pytest.mark.parametrize("query", ["", "?a=1&b=%2F"])
async def test_a_slash_too_many_means_the_same(fleet: Fleet, query: str) -> None:
    """Engines would redirect, past the router."""
    body = CHAT.request(kv_transfer_params=EVIL)
    answer = await fleet.router.client.post(f"{CHAT.path}/{query}", json=body)
    assert answer.status_code == 200
    [prefill], [decode] = fleet.p.asked(), fleet.d.asked()
    assert (prefill.request.leg, decode.request.leg) == (Leg.PREFILL, Leg.DECODE)
    assert decode.request.target == CHAT.path + query
    assert b"evil" not in prefill.request.body + decode.request.body


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../sleep",
        "/./sleep",
        "/v1/%2e%2e/sleep",
        "/v1/.%2E/sleep",
        "/%252e%252e/sleep",
        "/..%2fsleep",
        "/v1/chat/completions/../../../sleep",
        "/v1/chat/completions/..",
        "/any/.",
    ],
)
async def test_dot_segments_are_refused(fleet: Fleet, target: str) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(post(target, b"{}"))
        answer = await client.read_answer()
    assert answer.status == 400
    kind = assert_own_error(CHAT, 400, answer.body)
    await assert_refused(fleet, kind)


@pytest.mark.parametrize("target", ["/...", "/a.b/c", "/.well-known/x"])
async def test_other_dots_pass(fleet: Fleet, target: str) -> None:
    fleet.d.always = behaviours.answer(200, b"{}")
    async with raw_client(fleet.router.port) as client:
        await client.send(post(target, b"{}"))
        assert (await client.read_answer()).status == 200
    assert fleet.d.asked()[0].request.target == target


LOCATIONS = {
    "http://{engine}/x?y=1#z": "/x?y=1#z",
    "HTTP://{engine}/x": "/x",
    "https://{engine}/x": "/x",
    "//{engine}/x": "/x",
    "http://{engine}": "/",
    "http://{engine}?x": "?x",
    "/x?y=1": "/x?y=1",
    "http://elsewhere.test/x": "http://elsewhere.test/x",
    "http://{engine}0/x": "http://{engine}0/x",
    "/login?next=http://{engine}/x": "/login?next=http://{engine}/x",
}


@pytest.mark.parametrize("location", LOCATIONS)
async def test_redirects_name_no_engine(fleet: Fleet, location: str) -> None:
    engine = fleet.d.url.removeprefix("http://")
    given, expected = location.format(engine=engine), LOCATIONS[location].format(engine=engine)
    fleet.d.always = behaviours.answer(307, b"", [("Location", given)])
    answer = await fleet.router.client.post("/any/thing", json={})
    assert (answer.status_code, answer.headers["location"]) == (307, expected)


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_a_legs_redirect_names_no_engine(fleet: Fleet, leg: Leg) -> None:
    engine = fleet.p if leg is Leg.PREFILL else fleet.d
    headers = [
        ("Location", f"{engine.url}/x"),
        ("Content-Location", f"{engine.url}/x"),
        ("Alt-Svc", f'h2=":{engine.port}"'),
    ]
    engine.by_leg[leg] = behaviours.answer(307, b"", headers)
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert (answer.status_code, answer.headers["location"]) == (307, "/x")
    assert str(engine.port) not in str(answer.headers)
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_requests_total", code="307") == 1


class CountingPattern:
    """A pattern that counts the matches taken from it, and what it was shown.

    Attributes:
        num_matches: Taken so far.
        window_bytes: Length of the text searched.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.num_matches = 0
        self.window_bytes = 0

    def finditer(self, text: bytes) -> Iterator[re.Match[bytes]]:
        self.window_bytes += len(text)
        for match in self._pattern.finditer(text):
            self.num_matches += 1
            yield match


FORM = {"content-type": "multipart/form-data; boundary=x"}
PART = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n'


async def test_a_forms_model_is_looked_for_within_bounds(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the number of fields nor the form's size makes more work."""
    counting = CountingPattern(forward._MULTIPART_MODEL)
    monkeypatch.setattr(forward, "_MULTIPART_MODEL", counting)
    fleet.d.always = behaviours.answer(200, b"{}")
    body = b'name="model"\r\n' * 100_000
    answer = await fleet.router.client.post("/any/form", content=body, headers=FORM)
    assert answer.status_code == 200
    assert reached(fleet) == [body]
    assert 1 <= counting.num_matches <= 8
    assert counting.window_bytes <= 128 << 10


@pytest.mark.parametrize("place", ["before", "behind"])
async def test_a_forms_model_is_found(fleet: Fleet, place: str) -> None:
    fleet.d.always = behaviours.answer(200, b"{}")
    file = b'--x\r\ncontent-disposition: form-data; name="file"\r\n\r\n' + b"\0" * 300_000 + b"\r\n"
    model = PART % MODEL.encode()
    body = (model + file if place == "before" else file + model) + b"--x--\r\n"
    answer = await fleet.router.client.post("/any/form", content=body, headers=FORM)
    assert answer.status_code == 200
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_requests_total", model=MODEL) == 1


@pytest.mark.parametrize("path", [CHAT.path, "/v1/embeddings"])
async def test_clients_trailers_are_no_headers(fleet: Fleet, path: str) -> None:
    fleet.d.by_leg[Leg.LOCAL] = behaviours.answer(200, b"{}")
    body = dump(CHAT.request())
    async with raw_client(fleet.router.port) as client:
        for _ in range(2):
            await client.send(
                b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nx-kept: 1\r\n\r\n"
                b"%x\r\n%b\r\n0\r\nx-late: 1\r\nauthorization: Bearer evil\r\n\r\n"
                % (path.encode(), len(body), body)
            )
            assert (await client.read_answer()).status == 200
    for exchange in fleet.p.asked() + fleet.d.asked():
        assert exchange.request.header("x-kept") == "1"
        assert exchange.request.header("x-late") is None
        assert exchange.request.header("authorization") is None
