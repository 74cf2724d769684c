"""K08: nothing is modelled that need not be: unknown members, paths, methods and forms pass."""

import json
from typing import Any

import pytest

from support import behaviours
from support.expect import assert_own_error
from support.raw_client import post, raw_client
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Leg
from support.vllm_api import APIS, CHAT, Api, dump
from support.vllm_behaviour import JSON, VllmBehaviour, model_card

UNKNOWN: dict[str, Any] = {
    "return_token_ids": True,
    "x_unknown": {"deep": [1, None, {"漢": "🚚"}]},
    "priority": -3,
    "cache_salt": "s",
    "lora_request": {"name": "a"},
    "documents": [{"text": "t"}],
    "metadata": {"k": "v"},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_unknown_members_reach_decode(fleet: Fleet, api: Api, stream: bool) -> None:
    body = api.request(stream=stream, **UNKNOWN)
    answer = await fleet.router.client.post(api.path, json=body)
    assert answer.status_code == 200
    sent = fleet.d.asked(Leg.DECODE)[0].request.json()
    del sent["kv_transfer_params"]
    assert sent == body
    leg = fleet.p.asked(Leg.PREFILL)[0].request.json()
    kept = UNKNOWN.keys() - {"return_token_ids"}
    assert {name: leg[name] for name in kept} == {name: UNKNOWN[name] for name in kept}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_queries_and_own_headers_reach_both_legs(fleet: Fleet, api: Api) -> None:
    headers = {
        "x-session-id": "s-1",
        "X_Under_Score": "u",
        "anthropic-version": "2023-06-01",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "user-agent": "odd/1",
    }
    answer = await fleet.router.client.post(
        api.path + "?a=1&b=%2F%20&c", json=api.request(), headers=headers
    )
    assert answer.status_code == 200
    for exchange in (fleet.p.asked(Leg.PREFILL)[0], fleet.d.asked(Leg.DECODE)[0]):
        assert exchange.request.target == api.path + "?a=1&b=%2F%20&c"
        for name, value in headers.items():
            assert exchange.request.header(name) == value


CARDS = [model_card("tiny-model"), {**model_card("adapter"), "parent": "tiny-model", "x": 1.5}]


async def test_models_are_the_union_with_all_fields() -> None:
    async with serve_fleet(2, 2) as fleet:
        big = {**model_card("big"), "max_model_len": 2**53 + 1, "extra": [None, {"a": 1}]}
        for engine, cards in zip(fleet.engines, (CARDS, CARDS[:1], [big], []), strict=True):
            assert isinstance(engine.default, VllmBehaviour)
            engine.default.models = cards
        answer = await fleet.router.client.get("/v1/models")
        listed = answer.json()
        assert listed["object"] == "list"
        found = sorted(listed["data"], key=lambda card: str(card["id"]))
        assert found == sorted([*CARDS, big], key=lambda card: str(card["id"]))
        one = await fleet.router.client.get("/v1/models/big")
        assert one.json() == big
        assert (await fleet.router.client.get("/v1/models/none")).status_code == 404


async def test_models_without_the_engine_that_is_down() -> None:
    async with serve_fleet() as fleet:
        await fleet.p.stop()
        answer = await fleet.router.client.get("/v1/models")
        assert [card["id"] for card in answer.json()["data"]] == ["tiny-model"]
        await fleet.d.stop()
        answer = await fleet.router.client.get("/v1/models")
        assert answer.status_code == 503
        assert_own_error(CHAT, 503, answer.content)


async def test_aliases_are_listed_and_served() -> None:
    async with serve_fleet(model_name=["nick", "other=tiny-model"]) as fleet:
        answer = await fleet.router.client.get("/v1/models")
        ids = {card["id"]: card for card in answer.json()["data"]}
        assert set(ids) == {"tiny-model", "nick", "other"}
        assert ids["nick"]["max_model_len"] == 4096
        for alias in ("nick", "other"):
            body = CHAT.request(model=alias)
            assert (await fleet.router.client.post(CHAT.path, json=body)).status_code == 200
        legs = fleet.p.asked() + fleet.d.asked()
        assert {leg.request.json()["model"] for leg in legs} == {"tiny-model"}


BYTES = {"content-type": "application/octet-stream"}
METHODS = ("GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH", "POST")


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_passes(fleet: Fleet, method: str) -> None:
    fleet.d.always = behaviours.answer(200, b"" if method == "HEAD" else b"body", [JSON])
    content = b"\x00\xff" if method in ("PUT", "PATCH", "POST", "DELETE") else b""
    answer = await fleet.router.client.request(
        method, "/v9/any%2Fthing?x=%20", content=content, headers=BYTES
    )
    assert answer.status_code == 200
    [exchange] = fleet.d.asked()
    assert exchange.request.method == method
    assert exchange.request.target == "/v9/any%2Fthing?x=%20"
    assert exchange.request.body == content
    if method == "HEAD":
        assert answer.content == b""
    else:
        assert answer.content == b"body"


async def test_head_keeps_the_length_of_what_it_does_not_send(fleet: Fleet) -> None:
    fleet.d.always = behaviours.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 12345\r\n\r\n")
    async with raw_client(fleet.router.port) as client:
        for _ in range(2):
            await client.send(b"HEAD /file HTTP/1.1\r\nhost: x\r\n\r\n")
            status, headers = await client.read_head()
            assert status == 200
            assert ("content-length", "12345") in [(k.lower(), v) for k, v in headers]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/pooling",
        "/classify",
        "/tokenize",
        "/detokenize",
        "/v2/embed",
        "/v1/chat/completions/render",
    ],
)
async def test_one_engine_endpoints(fleet: Fleet, path: str) -> None:
    fleet.d.always = behaviours.answer(201, '{"漢" :1.0e2}'.encode(), [JSON, ("x-a", "b")])
    body = b' {"model":"tiny-model", "input":[1,2.50], "unknown": true} '
    answer = await fleet.router.client.post(path, content=body)
    assert (answer.status_code, answer.content) == (201, '{"漢" :1.0e2}'.encode())
    assert answer.headers["x-a"] == "b"
    assert fleet.d.asked()[0].request.body == body
    assert fleet.p.asked() == []


async def test_multipart_passes_byte_for_byte() -> None:
    async with serve_fleet(credentials="replace", prefill_api_key="p", decode_api_key="d") as fleet:
        audio = bytes(range(256)) * 400
        fleet.d.always = behaviours.answer(200, b'{"text":"hi"}')
        request = fleet.router.client.build_request(
            "POST",
            "/v1/audio/transcriptions",
            files={"file": ("a.wav", audio, "audio/wav")},
            data={"model": "tiny-model", "temperature": "0"},
            headers={"authorization": "Bearer client"},
        )
        body = await request.aread()
        answer = await fleet.router.client.send(request)
        assert answer.json() == {"text": "hi"}
        seen = fleet.d.asked()[0].request
        assert seen.header("content-type") == request.headers["content-type"]
        assert seen.body == body
        assert audio in body
        assert seen.header("authorization") == "Bearer d"


async def test_streams_of_other_paths(fleet: Fleet) -> None:
    fleet.d.always = behaviours.stream([b"data: 1\n\n", b"data: [DO", b"NE]\n\n"])
    answer = await fleet.router.client.post("/v1/audio/speech", json={"stream": True})
    assert answer.content == b"data: 1\n\ndata: [DONE]\n\n"
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_unknown_paths_have_the_engines_404(fleet: Fleet) -> None:
    answer = await fleet.router.client.get("/no/such")
    assert (answer.status_code, answer.content) == (404, b'{"detail":"Not Found"}')


@pytest.mark.parametrize(
    "path", ["/sleep", "/v1/load_lora_adapter", "//sleep", "/sleep/", "/%73leep", "/abort_requests"]
)
async def test_operators_paths_are_not_for_clients(fleet: Fleet, path: str) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(post(path, b"{}"))
        answer = await client.read_answer()
    assert answer.status == 403
    assert json.loads(answer.body)["error"]["type"] == "forbidden"
    assert fleet.d.asked() + fleet.p.asked() == []


async def test_own_paths_are_not_the_engines(fleet: Fleet) -> None:
    before = len(fleet.d.exchanges)
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await fleet.router.client.get(path)).status_code == 200
    assert len(fleet.d.exchanges) == before


async def test_a_response_is_asked_for_where_it_lives() -> None:
    """GET, cancel and the next turn of a stored response go to the engine that holds it."""
    async with serve_fleet(1, 3) as fleet:
        body = {"model": "tiny-model", "input": "hi", "background": True, "store": True}
        made = await fleet.router.client.post("/v1/responses", json=body)
        assert made.status_code == 200
        holder = next(engine for engine in fleet.decode if engine.asked())
        name = made.json()["id"]
        for engine in fleet.decode:
            engine.by_path[f"/v1/responses/{name}"] = behaviours.answer(
                200 if engine is holder else 404, b'{"id":"x"}'
            )
        for _ in range(6):
            got = await fleet.router.client.get(f"/v1/responses/{name}")
            assert got.status_code == 200
        turn = {"model": "tiny-model", "input": "more", "previous_response_id": name}
        for _ in range(4):
            answer = await fleet.router.client.post("/v1/responses", json=turn)
            assert answer.status_code == 200
        assert all(engine is holder or not engine.asked() for engine in fleet.decode)
        assert fleet.p.asked() == []


async def test_an_unread_form_of_body_passes(fleet: Fleet) -> None:
    fleet.d.always = behaviours.answer(200, b"ok")
    for body in (b"", b"{", b"[1]", b"\xff\xfe", dump({"a": 1})[:-1]):
        answer = await fleet.router.client.post("/v1/embeddings", content=body, headers=BYTES)
        assert answer.content == b"ok"
        assert fleet.d.asked()[-1].request.body == body
