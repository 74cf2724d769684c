"""K09: ids are unique per leg; cached tokens are prefill's, in both modes, never both legs'."""

import asyncio
import json
from typing import Any

import pytest

from support import behaviours
from support.expect import split_stream
from support.router_server import Fleet
from support.scripted_engine import Exchange, Leg
from support.vllm_api import APIS, CHAT, COMPLETIONS, GENERATE, MESSAGES, PROMPT_TOKENS, Api, dump
from support.vllm_behaviour import VllmBehaviour

WITH_USAGE = pytest.mark.parametrize(
    "api", [api for api in APIS if api is not GENERATE], ids=lambda api: api.name
)


def usages(answer: Any) -> list[dict[str, Any]]:
    """Every usage block in a JSON value."""
    if isinstance(answer, dict):
        own = [answer["usage"]] if isinstance(answer.get("usage"), dict) else []
        return own + [u for key, value in answer.items() if key != "usage" for u in usages(value)]
    if isinstance(answer, list):
        return [u for value in answer for u in usages(value)]
    return []


def cached(api: Api, usage: dict[str, Any]) -> int:
    if api is MESSAGES:
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == PROMPT_TOKENS
        return int(usage["cache_read_input_tokens"])
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    return int(details["cached_tokens"])


@pytest.mark.parametrize("found", [0, 4, PROMPT_TOKENS])
@pytest.mark.parametrize("tells", [True, False], ids=["0.32", "0.28"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@WITH_USAGE
async def test_cached_tokens_are_prefills(
    fleet: Fleet, api: Api, stream: bool, tells: bool, found: int
) -> None:
    assert isinstance(fleet.p.default, VllmBehaviour)
    fleet.p.default.tells_cached = tells
    fleet.p.default.cached_tokens = found
    body = api.request(stream=stream)
    if stream and api in (CHAT, COMPLETIONS):
        body["stream_options"] = {"include_usage": True}
    answer = await fleet.router.client.post(api.path, json=body)
    events = [data for _, data in split_stream(answer.content)] if stream else [answer.json()]
    blocks = usages(events)
    assert blocks
    assert {cached(api, block) for block in blocks} == {found}
    if tells:
        assert answer.content == bytes(fleet.d.asked()[0].sent), "nothing to mend, nothing touched"


@pytest.mark.parametrize(
    "details", [b"", b',"prompt_tokens_details":null', b',"prompt_tokens_details":{}'], ids=str
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_cold_prompt_on_older_engines(fleet: Fleet, stream: bool, details: bytes) -> None:
    """They leave the details out where nothing was cached; decode says all of it was."""

    async def cold(exchange: Exchange) -> None:
        handoff = exchange.engine.ledger.new("p", None)
        exchange.engine.ledger.issued.append(handoff)
        usage = b'{"prompt_tokens":%d%b}' % (PROMPT_TOKENS, details)
        await exchange.answer(200, b'{"usage":%b,"kv_transfer_params":%b}' % (usage, handoff))

    fleet.p.by_leg[Leg.PREFILL] = cold
    body = CHAT.request(stream=stream)
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = await fleet.router.client.post(CHAT.path, json=body)
    events = [data for _, data in split_stream(answer.content)] if stream else [answer.json()]
    blocks = usages(events)
    assert blocks
    assert {cached(CHAT, block) for block in blocks} == {0}


@pytest.mark.parametrize("details", [None, {}, {"other": 1}], ids=str)
async def test_absent_counts_stay_absent(fleet: Fleet, details: object) -> None:
    assert isinstance(fleet.p.default, VllmBehaviour)
    fleet.p.default.tells_cached = False
    body = dump({"id": "x", "usage": {"prompt_tokens": 7, "prompt_tokens_details": details}})
    fleet.d.by_leg[Leg.DECODE] = behaviours.answer(200, body)
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert answer.json() == json.loads(body)


async def test_prefill_that_says_nothing_changes_nothing(fleet: Fleet) -> None:
    async def silent(exchange: Exchange) -> None:
        handoff = exchange.engine.ledger.new("p", None)
        exchange.engine.ledger.issued.append(handoff)
        await exchange.answer(200, b'{"kv_transfer_params":' + handoff + b',"usage":null}')

    fleet.p.by_leg[Leg.PREFILL] = silent
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert answer.content == bytes(fleet.d.asked()[0].sent)


async def test_text_that_talks_of_cached_tokens_is_text(fleet: Fleet) -> None:
    assert isinstance(fleet.p.default, VllmBehaviour)
    fleet.p.default.tells_cached = False
    talk = {"choices": [{"message": {"content": '{"usage":{"cached_tokens":9}}'}}], "usage": None}
    fleet.d.by_leg[Leg.DECODE] = behaviours.answer(200, dump(talk))
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert answer.json() == talk


async def test_one_id_many_times(fleet: Fleet) -> None:
    """Concurrent and in turn; engines see an id of its own on each leg, clients theirs."""

    async def ask(name: str) -> None:
        answer = await fleet.router.client.post(
            CHAT.path, json=CHAT.request(), headers={"x-request-id": name}
        )
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == name

    await asyncio.gather(*(ask("same") for _ in range(10)))
    await ask("same")
    exchanges = fleet.p.asked() + fleet.d.asked()
    ids = {exchange.request.header("x-request-id") for exchange in exchanges}
    assert len(ids) == len(exchanges) == 22
    assert "same" not in ids


async def test_engines_ids_are_not_the_clients(fleet: Fleet) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.answer(
        200, b"{}", [("content-type", "application/json"), ("x-request-id", "engine's")]
    )
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert "x-request-id" not in answer.headers
