"""K10: clients choose no engine and no handoff; one credential policy holds for every call."""

import json
from typing import Any

import pytest

from support import behaviours
from support.behaviours import Gate
from support.raw_client import post, raw_client
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Leg, ScriptedEngine
from support.vllm_api import APIS, CHAT, COMPLETIONS, GENERATE, MESSAGES, Api, dump
from support.vllm_behaviour import VllmBehaviour

EVIL = {"do_remote_prefill": True, "remote_host": "169.254.169.254", "remote_port": 80}
DOORS: tuple[dict[str, Any], ...] = (
    {"kv_transfer_params": EVIL},
    {"kv_transfer_params": None},
    {"kv_transfer_params": "evil 169.254.169.254"},
    {"ec_transfer_params": EVIL},
    {"vllm_xargs": {"kv_transfer_params": EVIL, "kept": 1}},
    {"vllm_xargs": {"ec_transfer_params": EVIL}},
    {
        "kv_transfer_params": EVIL,
        "ec_transfer_params": EVIL,
        "vllm_xargs": {"kv_transfer_params": 1},
    },
)


def smuggled(engine: ScriptedEngine) -> list[bytes]:
    return [e.request.body for e in engine.asked() if b"169.254" in e.request.body]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: "+".join(door))
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_clients_bring_no_handoff(fleet: Fleet, api: Api, door: dict[str, Any]) -> None:
    if api is GENERATE and "vllm_xargs" in door:
        # No member of that API; its own door is below.
        door = {name: value for name, value in door.items() if name != "vllm_xargs"}
    answer = await fleet.router.client.post(api.path, json=api.request(x_kept=1, **door))
    assert answer.status_code == 200, answer.text
    assert smuggled(fleet.p) + smuggled(fleet.d) == []
    decode = fleet.d.asked(Leg.DECODE)[0].request.json()
    assert decode["x_kept"] == 1
    assert decode["kv_transfer_params"]["remote_host"] == "127.0.0.1"
    if "kept" in door.get("vllm_xargs", {}):
        assert decode["vllm_xargs"] == {"kept": 1}


async def test_generates_own_side_door(fleet: Fleet) -> None:
    sampling = {"max_tokens": 2, "extra_args": {"kv_transfer_params": EVIL, "kept": 1}}
    body = GENERATE.request(sampling_params=sampling)
    answer = await fleet.router.client.post(GENERATE.path, json=body)
    assert answer.status_code == 200
    assert smuggled(fleet.p) + smuggled(fleet.d) == []
    decode = fleet.d.asked(Leg.DECODE)[0].request.json()
    assert decode["sampling_params"] == {"max_tokens": 2, "extra_args": {"kept": 1}}


SPELLINGS = (
    b'{"model":"tiny-model","prompt":"x","kv_transfer_params":{"remote_host":"169.254.1.1"},'
    b'"kv_transfer_params":{"remote_host":"169.254.1.2"}}',
    b'{"model":"tiny-model","prompt":"x","kv_\\u0074ransfer_params":{"remote_host":"169.254.1.1"}}',
    b'{"model":"tiny-model","prompt":"x","vllm_xargs":{},"vllm_xargs":'
    b'{"\\u006bv_transfer_params":{"remote_host":"169.254.1.1"}}}',
    b'{"model":"tiny-model","prompt":"x","nan":NaN,"kv_transfer_params":'
    b'{"remote_host":"169.254.1.1"}}',
)


@pytest.mark.parametrize("body", SPELLINGS, ids=["twice", "escaped", "door-twice", "lenient"])
async def test_spellings_open_no_door(fleet: Fleet, body: bytes) -> None:
    answer = await fleet.router.client.post(COMPLETIONS.path, content=body)
    assert answer.status_code in (200, 400), answer.text
    assert smuggled(fleet.p) + smuggled(fleet.d) == []


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/v1/chat/completions/batch"])
async def test_other_paths_open_no_door(fleet: Fleet, path: str) -> None:
    fleet.d.always = behaviours.answer(200, b"{}")
    for door in DOORS:
        await fleet.router.client.post(path, json={"model": "tiny-model", **door})
    assert smuggled(fleet.d) == []
    assert len(fleet.d.asked()) == len(DOORS)


@pytest.mark.parametrize("path", [CHAT.path + "/", "/" + CHAT.path, "/v1//chat/completions"])
async def test_other_spellings_of_paths_open_no_door(fleet: Fleet, path: str) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(post(path, dump(CHAT.request(kv_transfer_params=EVIL))))
        await client.read_answer()
    assert smuggled(fleet.p) + smuggled(fleet.d) == []


ROUTING = (
    "x-prefiller-host-port",
    "x-prefill-host-port",
    "x-data-parallel-host-port",
    "x-data-parallel-rank",
    "x-decoder-host-port",
    "x-encoder-hosts-ports",
    "x-gateway-destination-endpoint",
    "X-KV-Transfer-Params",
)


@pytest.mark.parametrize("path", [CHAT.path, "/v1/embeddings"])
async def test_routing_headers_end_here(fleet: Fleet, path: str) -> None:
    headers = dict.fromkeys(ROUTING, "169.254.169.254:80")
    kept = {"x-session-id": "s", "x-request-source": "t"}
    fleet.d.always = behaviours.answer(200, b"{}")
    answer = await fleet.router.client.post(path, json=CHAT.request(), headers={**headers, **kept})
    assert answer.status_code == 200
    for exchange in fleet.p.asked() + fleet.d.asked():
        names = {name.lower() for name, _ in exchange.request.headers}
        assert not names & {name.lower() for name in ROUTING}
        assert kept.keys() <= names
        assert not [name for name in names if name.startswith("x-transload")]


async def test_engines_cannot_speak_for_the_router(fleet: Fleet) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.answer(
        200, b"{}", [("x-transload-path", "lies"), ("X-Transload-Handoff", "missing")]
    )
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert not [name for name in answer.headers if name.startswith("x-transload")]


CLIENT = {"authorization": "Bearer client", "x-api-key": "client"}


def seen(engine: ScriptedEngine, *legs: Leg) -> set[tuple[str | None, str | None]]:
    return {
        (e.request.header("authorization"), e.request.header("x-api-key"))
        for e in engine.asked(*legs)
    }


async def provoke(fleet: Fleet) -> None:
    """Every kind of call: legs, one engine, models, probes, and a release."""
    client = fleet.router.client
    assert (await client.post(CHAT.path, json=CHAT.request(), headers=CLIENT)).status_code == 200
    assert (
        await client.post(MESSAGES.path, json=MESSAGES.request(), headers=CLIENT)
    ).status_code == 200
    await client.post("/v1/embeddings", json={}, headers=CLIENT)
    assert (await client.get("/v1/models", headers=CLIENT)).status_code == 200
    gate = Gate()
    fleet.p.by_leg[Leg.PREFILL] = gate.before()
    count = len(fleet.p.asked())
    async with raw_client(fleet.router.port) as leaving:
        await leaving.send(post(CHAT.path, dump(CHAT.request()), *CLIENT.items()))
        await fleet.p.next_exchange(count + 1)
        await fleet.router.saw_leave(leaving.close)
        gate.opened.set()
        await fleet.d.next_exchange(1, Leg.RELEASE)


LEGS = (Leg.PREFILL, Leg.DECODE, Leg.LOCAL, Leg.RELEASE)


async def test_credentials_pass() -> None:
    async with serve_fleet() as fleet:
        await provoke(fleet)
        for engine in fleet.engines:
            assert seen(engine, *LEGS) == {("Bearer client", "client")}
            assert ("Bearer client", "client") in seen(engine, Leg.PROBE), "models, for the client"
            assert (None, None) in seen(engine, Leg.PROBE)


async def test_credentials_replaced() -> None:
    keys: dict[str, Any] = {"prefill_api_key": "kp", "decode_api_key": "kd"}
    async with serve_fleet(credentials="replace", health_interval_s=0.05, **keys) as fleet:
        for engine, key in ((fleet.p, "kp"), (fleet.d, "kd")):
            assert isinstance(engine.default, VllmBehaviour)
            engine.default.api_key = key
        await provoke(fleet)
        for engine, key in ((fleet.p, "kp"), (fleet.d, "kd")):
            every = (*LEGS, Leg.PROBE)
            assert seen(engine, *every) == {(f"Bearer {key}", None)}
        report = (await fleet.router.client.get("/readyz")).json()
        assert {engine["health"] for engine in report["engines"]} == {"up"}
        text = json.dumps(report) + (await fleet.router.metrics()).text
        assert "kp" not in text.replace("kps", "")


async def test_credentials_dropped() -> None:
    async with serve_fleet(credentials="drop") as fleet:
        await provoke(fleet)
        for engine in fleet.engines:
            assert seen(engine, *LEGS, Leg.PROBE) == {(None, None)}


async def test_probe_keys_under_pass() -> None:
    """Keys of the pools are for the router's own questions; clients bring theirs."""
    keys: dict[str, Any] = {"prefill_api_key": "kp", "decode_api_key": "kd"}
    async with serve_fleet(**keys) as fleet:
        assert seen(fleet.p, Leg.PROBE) == {("Bearer kp", None)}
        await fleet.router.client.post(CHAT.path, json=CHAT.request())
        assert seen(fleet.p) == {(None, None)}
        assert seen(fleet.d) == {(None, None)}


async def test_the_handoff_probe_is_a_call_like_any_other() -> None:
    keys: dict[str, Any] = {"prefill_api_key": "kp", "decode_api_key": "kd"}
    async with serve_fleet(
        credentials="replace", handoff_probe=True, response_header_timeout_s=5, **keys
    ) as fleet:
        exchange = await fleet.d.next_exchange(1, Leg.DECODE)
        assert exchange.request.header("authorization") == "Bearer kd"
        assert seen(fleet.p) == {("Bearer kp", None)}
        await fleet.d.next_exchange(1, Leg.RELEASE)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
        b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST http://169.254.169.254/v1/completions HTTP/1.1\r\nhost: x\r\n"
        b"content-length: 2\r\n\r\n{}",
        b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["te-and-length", "two-lengths", "absolute", "connect"],
)
async def test_requests_that_mean_two_things(fleet: Fleet, head: bytes) -> None:
    async with raw_client(fleet.router.port) as client:
        await client.send(head)
        status, _ = await client.read_head()
    assert status >= 400
    for exchange in fleet.p.asked() + fleet.d.asked():
        assert exchange.request.target.startswith("/")
        assert exchange.request.header("host") == exchange.engine.url.removeprefix("http://")


@pytest.mark.parametrize("name", ["x\r\ny: z", "a b", "\u0130d"])
async def test_client_ids_split_no_headers(fleet: Fleet, name: str) -> None:
    async with raw_client(fleet.router.port) as client:
        value = name.replace("\r\n", "\x01").encode("utf-8").decode("latin-1")
        await client.send(post(CHAT.path, dump(CHAT.request()), ("x-request-id", value)))
        status, headers = await client.read_head()
    if status == 200:
        assert [v for k, v in headers if k.lower() == "x-request-id"] == [value]
    else:
        assert status == 400
