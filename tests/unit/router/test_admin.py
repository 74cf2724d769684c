"""`/admin`: who passes, and what an explanation says of any body, policy and fleet."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from support.vllm_api import APIS, MODEL, Api, dump
from transload_router.app import create_app
from transload_router.app.admin import check_operator, show_place
from transload_router.app.asgi import TransloadApp
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.membership import Health
from transload_router.core.policy.registry import POLICIES
from transload_router.core.prompt import Prompt, pack_tokens
from transload_router.errors import Forbidden
from transload_router.settings import Settings

KEY = "s3cret"
SHOWN = {"authorization": f"Bearer {KEY}"}


def settings(**more: Any) -> Settings:
    return Settings(prefill=["p:1", "p:2"], decode=["d:1", "d:2"], **more)


@contextlib.asynccontextmanager
async def serve(
    *, peer: str = "127.0.0.1", **more: Any
) -> AsyncIterator[tuple[TransloadApp, httpx.AsyncClient]]:
    """The application without its background work, and a client at some address."""
    app = create_app(settings(**more))
    for engine_id in app.state.router.fleet.members:
        app.state.router.fleet.mark_up(engine_id, {MODEL: None})
    transport = httpx.ASGITransport(app, client=(peer, 4711))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", verify=False, trust_env=False
    ) as client:
        yield app, client


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_this_host_passes_without_a_key(host: str) -> None:
    check_operator(settings(), {}, host)


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "::2", "::ffff:10.0.0.1", "fe80::1%eth0", "", "localhost", "x", None]
)
def test_others_do_not(host: str | None) -> None:
    with pytest.raises(Forbidden, match="admin_api_key"):
        check_operator(settings(), {}, host)


@pytest.mark.parametrize(
    "name", ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "origin"]
)
def test_a_proxy_or_a_page_on_this_host_is_nobody(name: str) -> None:
    with pytest.raises(Forbidden, match="admin_api_key"):
        check_operator(settings(), {name: "anything"}, "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("localhost:8000", True),
        ("127.0.0.1", True),
        ("[::1]:8000", True),
        ("evil.example:8000", False),
        ("10.0.0.1", False),
        ("", False),
        ("[::1", False),
        ("localhost.evil.example", False),
    ],
)
def test_a_name_that_was_bent_to_this_host_is_nobody(name: str, passes: bool) -> None:
    if passes:
        check_operator(settings(), {"host": name}, "127.0.0.1")
        return
    with pytest.raises(Forbidden, match="admin_api_key"):
        check_operator(settings(), {"host": name}, "127.0.0.1")


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", None])
def test_with_a_key_the_key_alone_counts(host: str | None) -> None:
    keyed = settings(admin_api_key=KEY)
    check_operator(keyed, {**SHOWN, "via": "1.1 proxy"}, host)
    for wrong in ("", KEY, "bearer " + KEY, "Bearer ", f"Bearer {KEY}x", "Bearer \xfc"):
        with pytest.raises(Forbidden, match="operator's key"):
            check_operator(keyed, {"authorization": wrong}, host)
    with pytest.raises(Forbidden):
        check_operator(keyed, {}, host)


PATHS = [
    ("POST", "/admin/explain"),
    ("GET", "/admin/index"),
    ("GET", "/admin/index/snapshot"),
    ("POST", "/admin/reset_prefix_cache"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_every_path_is_the_operators(method: str, path: str) -> None:
    async with serve(peer="10.1.1.1") as (_, client):
        answer = await client.request(method, path)
        assert answer.status_code == 403
        assert answer.json()["error"]["type"] == "forbidden"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_explanations(api: Api, policy: str) -> None:
    async with serve(policy=policy) as (_, client):
        answer = await client.post("/admin/explain", params={"path": api.path}, json=api.request())
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["policy"], told["endpoint"], told["model"]) == (policy, api.name, MODEL)
        assert told["one_engine_because"] is None
        rows = told["candidates"]
        assert [row["is_chosen"] for row in rows].count(True) == 1
        named = {row["decode"] for row in rows} | {row["prefill"] for row in rows}
        assert named >= {"prefill-0", "prefill-1", "decode-0", "decode-1"}
        assert all(row["terms"]["total_s"] >= 0 for row in rows)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_the_endpoint_is_guessed_by_the_prompt(api: Api) -> None:
    async with serve() as (_, client):
        told = (await client.post("/admin/explain", json=api.request())).json()
        # Messages and chats look alike.
        assert told["endpoint"] == ("chat" if api.name == "messages" else api.name)


async def test_what_one_engine_must_do_is_said() -> None:
    async with serve() as (_, client):
        body = {"model": MODEL, "prompt": "x", "n": 2}
        told = (await client.post("/admin/explain", json=body)).json()
        assert told["one_engine_because"] == "several_choices"
        assert {row["prefill"] for row in told["candidates"]} == {None}


async def test_a_response_that_goes_on_goes_where_it_began() -> None:
    async with serve() as (app, client):
        app.state.router.owners.remember("resp_1", "decode-1")
        body = {"model": MODEL, "input": "x", "previous_response_id": "resp_1"}
        told = (await client.post("/admin/explain", json=body)).json()
        assert {row["decode"] for row in told["candidates"]} == {"decode-1"}
        body["previous_response_id"] = "resp_2"
        told = (await client.post("/admin/explain", json=body)).json()
        assert len({row["decode"] for row in told["candidates"]}) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'"prompt"', 400),
        (b"{}", 400),
        (b'{"other":1}', 400),
        (b"\xff\xfe{\x00}\x00", 400),
        (b'{"prompt":"' + b"x" * 2000 + b'"}', 413),
    ],
)
async def test_bodies_that_are_none(body: bytes, status: int) -> None:
    async with serve(max_body_bytes=1000) as (_, client):
        for params in ({}, {"path": "/v1/completions"}):
            if params and body in (b"{}", b'{"other":1}'):
                continue
            answer = await client.post("/admin/explain", params=params, content=body)
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["message"]


async def test_paths_and_encodings_that_are_none() -> None:
    async with serve() as (_, client):
        answer = await client.post("/admin/explain", params={"path": "/v1/x"}, content=b"{}")
        assert answer.status_code == 400
        assert "/v1/chat/completions" in answer.json()["error"]["message"]
        answer = await client.post(
            "/admin/explain", content=dump({"prompt": "x"}), headers={"content-encoding": "gzip"}
        )
        assert answer.status_code == 415
        assert (await client.get("/admin/explain")).status_code == 405
        assert (await client.get("/admin/other")).status_code == 404


@pytest.mark.parametrize("policy", POLICIES)
async def test_who_is_down_is_no_candidate(policy: str) -> None:
    async with serve(policy=policy) as (app, client):
        members = app.state.router.fleet.members
        members["prefill-0"].health = members["decode-0"].health = Health.DOWN
        body = {"model": MODEL, "prompt": list(range(100))}
        rows = (await client.post("/admin/explain", json=body)).json()["candidates"]
        assert {row["decode"] for row in rows} == {"decode-1"}
        assert {row["prefill"] for row in rows} <= {None, "prefill-1"}
        members["decode-1"].health = Health.DOWN
        answer = await client.post("/admin/explain", json=body)
        assert (answer.status_code, answer.json()["candidates"]) == (200, [])


async def test_caches_are_told_by_place() -> None:
    async with serve(policy="prefix") as (app, client):
        router = app.state.router
        ids = list(range(100))
        router.index.add_owner(("prefill-1", 0), MODEL, 0)
        router.set_stream(("prefill-1", 0), StreamState.EXACT)
        prompt = Prompt(Identity(MODEL), pack_tokens(ids))
        router.index.predict(("prefill-1", 0), prompt, 0.0, 1e9)
        body = {"model": MODEL, "prompt": ids}
        told = (await client.post("/admin/explain", json=body)).json()
        assert told["caches"] == {
            "prefill-1/0": {"num_tokens": 96, "is_predicted": True, "is_followed": True}
        }
        (chosen,) = [row for row in told["candidates"] if row["is_chosen"]]
        assert chosen["prefill"] == "prefill-1"
        assert chosen["terms"]["num_cached_tokens"] == 96
        index = (await client.get("/admin/index")).json()
        assert index["caches"]["prefill-1/0"]["stream"] == "exact"
        assert index["num_late_events"] == 0


async def test_an_index_of_nobody() -> None:
    async with serve() as (_, client):
        told = (await client.get("/admin/index")).json()
        assert (told["num_blocks"], told["caches"]) == (0, {})
        assert told["first_tokens"]["num_measured"] == 0
        assert json.dumps(told)


def test_places() -> None:
    assert show_place(("prefill-0", 3)) == "prefill-0/3"
