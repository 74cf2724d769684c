"""K11 in the service: whatever becomes of requests, nothing of them is left in any table."""

import asyncio
import gc
import logging
import random
from typing import Any

import pytest

from support import behaviours
from support.knowing_engine import TOKENIZER, KnownFleet, serve_known, stored
from support.raw_client import post, raw_client
from support.scripted_engine import Leg
from support.small_tokenizers import made, recorded_files
from support.vllm_api import APIS, MODEL, dump
from support.waiting import until
from support.walks import ask_and_leave, break_some
from support.zmq_publisher import CLEARED
from transload_router.app.generate import Call
from transload_router.app.learning import Learning
from transload_router.app.request import GenerateRequest
from transload_router.core.policy.registry import POLICIES
from transload_router.core.routing import Choice

ENGINES = tuple(f"{role}-{number}" for role in ("prefill", "decode") for number in range(3))
OF_A_REQUEST = (Call, Learning, GenerateRequest, Choice)


def body_of(chance: random.Random, api: Any) -> dict[str, Any]:
    """Of a few conversations, some of them long, some with what one engine must do."""
    body = dict(api.request(stream=chance.random() < 0.5))
    text = f"conversation {chance.randrange(4)} " * chance.choice((1, 30, 200))
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": text}]
    elif api.name == "completions":
        body["prompt"] = text if chance.random() < 0.5 else list(range(chance.randrange(1, 300)))
    if api.name in ("chat", "completions") and chance.random() < 0.1:
        body["n"] = 2
    if chance.random() < 0.1:
        body["model"] = "of nobody"
    return body


async def walk(known: KnownFleet, chance: random.Random) -> None:
    """Requests of all kinds that end in all ways, while caches change."""
    fleet = known.fleet
    headers = (("x-transload-explain", "1"), ("x-session-id", f"s{chance.randrange(3)}"))

    async def ask() -> None:
        api = chance.choice(APIS)
        body = body_of(chance, api)
        if chance.random() < 0.3:
            request = post(api.path, dump(body), *headers)
            await ask_and_leave(fleet.router.port, request, chance)
        else:
            await fleet.router.client.post(api.path, json=body, headers=dict(headers))

    for _ in range(5):
        break_some(fleet, chance)
        asking = [asyncio.create_task(ask()) for _ in range(16)]
        name = chance.choice(ENGINES)
        event = CLEARED if chance.random() < 0.3 else stored(list(range(96)))[0]
        await known.publish(name, event)
        await asyncio.gather(*asking)
    for engine in fleet.engines:
        engine.script.clear()


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_random_walk_leaves_nothing(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    # Records are kept for the report, with their errors, and those with the frames they came by.
    caplog.set_level(logging.CRITICAL, "transload")
    tokens = made(recorded_files())
    options: dict[str, Any] = {"policy": policy, "tokenizer": [str(TOKENIZER)]}
    ranks = {"prefill-1": 2, "decode-1": 2}
    async with serve_known(3, 3, tokens=tokens, ranks=ranks, **options) as known:
        for engine in known.fleet.engines:
            # Asked anew whenever an engine comes up; the faults are those of legs.
            engine.by_path["/tokenize"] = engine.default
        await walk(known, random.Random(11))
        router, fleet = known.router, known.fleet
        await until(lambda: fleet.router.num_legs == 0, "no reservation")
        await until(lambda: not fleet.p.ledger.pinned, "handoffs settled", 5)
        await until(lambda: router.num_background_tasks == 0, "releases done")
        await fleet.router.assert_empty()
        router.index.expire(1e18)
        assert router.index.num_predictions == 0
        assert not any(router.index._predictions.table)
        await until(lambda: not _left(), "nothing of a request")


def _left() -> list[str]:
    gc.collect()
    # By type alone: `isinstance` asks objects for their class, and torch has some that warn then.
    kinds = (type(one) for one in gc.get_objects())
    return [kind.__name__ for kind in kinds if issubclass(kind, OF_A_REQUEST)]


async def test_timers_of_answers_end_with_them() -> None:
    """Answers that are not streamed tell nobody of their first token; a timer stands for it."""
    async with serve_known(policy="least-loaded") as known:
        gate = behaviours.Gate()
        known.fleet.d.by_leg[Leg.LOCAL] = gate.before()
        body = {"model": MODEL, "prompt": "word " * 200, "n": 2}
        asking = asyncio.create_task(known.fleet.router.client.post("/v1/completions", json=body))
        await known.fleet.d.next_exchange(1, Leg.LOCAL)
        load = known.router.load.of(known.router.fleet.engine("decode-0"))
        await until(lambda: load.num_decoding == 1, "past its predicted first token")
        gate.opened.set()
        assert (await asking).status_code == 200
        await until(lambda: load.num_requests == 0, "released")
        assert (load.num_decoding, load.num_prefilling, load.num_context_tokens) == (0, 0, 0)


async def test_a_client_that_leaves_takes_its_timer_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a prompt that takes a minute: until then the timer would keep all of the request."""
    caplog.set_level(logging.CRITICAL, "transload")
    async with serve_known(policy="least-loaded") as known:
        known.fleet.d.by_leg[Leg.LOCAL] = behaviours.hang
        body = {"model": MODEL, "prompt": "word " * 500_000, "n": 2}
        async with raw_client(known.fleet.router.port) as leaving:
            await leaving.send(post("/v1/completions", dump(body)))
            await known.fleet.d.next_exchange(1, Leg.LOCAL)
            assert _left()
            await known.fleet.router.saw_leave(leaving.reset)
        await until(lambda: not _left(), "nothing of the request", 5)


@pytest.mark.parametrize("policy", POLICIES)
async def test_an_explanation_reserves_nothing_and_sends_nothing(policy: str) -> None:
    async with serve_known(2, 2, policy=policy, tokenizer=["none"]) as known:
        client, fleet = known.fleet.router.client, known.fleet
        before = await fleet.router.metrics()
        rows = []
        for _ in range(5):
            answer = await client.post(
                "/admin/explain", json={"model": MODEL, "prompt": list(range(100))}
            )
            assert answer.status_code == 200, answer.text
            chosen = [row for row in answer.json()["candidates"] if row["is_chosen"]]
            rows.append([(row["prefill"], row["decode"]) for row in chosen])
        if policy == "round-robin":
            assert rows == [rows[0]] * 5, "the turn does not pass"
        assert fleet.router.num_legs == 0
        assert known.router.index.num_predictions == 0
        assert all(not engine.asked() for engine in fleet.engines)
        after = await fleet.router.metrics()
        for name in ("transload_prompts_total", "transload_decisions_total"):
            assert after.since(before, name) == 0
