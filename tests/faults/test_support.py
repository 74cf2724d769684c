"""The instruments themselves: a scripted engine that lies would pass anything."""

import asyncio
from typing import Any

import httpx
import pytest

from support import behaviours, vllm_api
from support.ledger import Ledger
from support.raw_client import post, raw_client
from support.scripted_engine import Leg, ScriptedEngine, blackhole_url, refused_url, running
from support.vllm_api import APIS, CHAT, Api, dump
from support.vllm_behaviour import VllmBehaviour
from support.waiting import soon, until

ASK = {"do_remote_decode": True, "do_remote_prefill": False}


def engine(name: str, ledger: Ledger) -> ScriptedEngine:
    return ScriptedEngine(name, ledger, VllmBehaviour())


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_one_handoff_from_prefill_to_decode(api: Api) -> None:
    ledger = Ledger()
    async with (
        running(engine("p", ledger)) as p,
        running(engine("d", ledger)) as d,
        httpx.AsyncClient() as client,
    ):
        ask = api.request(length=1, kv_transfer_params=ASK)
        answer = await client.post(p.url + api.path, json=ask)
        [handoff] = ledger.pinned
        assert handoff in answer.content
        body = dump(api.request(stream=True))[:-1] + b',"kv_transfer_params":' + handoff + b"}"
        whole = await client.post(d.url + api.path, content=body)
        assert whole.headers["content-type"].startswith("text/event-stream")
        assert api.done in whole.content
        assert whole.content == bytes(d.exchanges[0].sent)
        assert [one.request.leg for one in p.asked() + d.asked()] == [Leg.PREFILL, Leg.DECODE]
        assert (ledger.pinned, ledger.faults()) == ([], [])


async def test_the_ledger_sees_twice_and_never_issued() -> None:
    ledger = Ledger()
    one = ledger.new("p")
    ledger.issued.append(one)
    ledger.present(one)
    ledger.release(one)
    ledger.present(b"{}")
    assert len(ledger.faults()) == 2


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (CHAT, {"stream_options": {"include_usage": True}}),
        (CHAT, {"min_tokens": 5, "max_tokens": 1}),
        (CHAT, {"max_tokens": 0}),
        (CHAT, {"top_logprobs": 2}),
        (CHAT, {"messages": None}),
        (vllm_api.MESSAGES, {"max_tokens": None}),
        (vllm_api.GENERATE, {"sampling_params": {"min_tokens": 2, "max_tokens": 1}}),
    ],
)
async def test_what_vllm_refuses(api: Api, fields: dict[str, Any]) -> None:
    async with running(engine("p", Ledger())) as p, httpx.AsyncClient() as client:
        answer = await client.post(p.url + api.path, json=api.request(**fields))
        assert answer.status_code == 400


async def test_reset_reaches_the_client_as_a_reset() -> None:
    async with running(engine("p", Ledger())) as p, raw_client(p.port) as client:
        p.script.append(behaviours.reset_before_header)
        await client.send(post(CHAT.path, b"{}"))
        with pytest.raises(ConnectionResetError):
            await client.read_to_end()
        assert p.exchanges[0].lost.is_set()


async def test_a_stream_waits_at_its_gate_and_notices_that_the_client_left() -> None:
    gate = asyncio.Event()
    async with running(engine("d", Ledger())) as d:
        d.script.append(behaviours.gated_stream({1: gate}))
        async with raw_client(d.port) as client:
            await client.send(post(CHAT.path, dump(CHAT.request(stream=True))))
            assert (await client.read_head())[0] == 200
            assert b"assistant" in await client.read_chunk()
            assert not d.is_idle
        await soon(d.exchanges[0].lost.wait())
        await until(lambda: d.is_idle, "idle")
        assert not d.exchanges[0].was_answered


async def test_addresses_that_refuse_or_never_accept() -> None:
    with refused_url() as refused, blackhole_url() as blackhole:
        async with httpx.AsyncClient(timeout=0.2) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(refused)
            with pytest.raises(httpx.ConnectTimeout):
                await client.get(blackhole)
