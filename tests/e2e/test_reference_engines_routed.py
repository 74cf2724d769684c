"""The router in front of reference engines of different placements: the tokens of one alone."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.reference_engines import (
    COMPLETIONS,
    MODEL,
    Asked,
    serve_reference,
    settle,
    write_model,
)
from support.reference_oracle import Oracle
from support.router_server import QUICK, RunningRouter, serve_router
from support.tiny_models import some_tokens
from support.waiting import until
from transload_router.core.membership import Health
from transload_router.settings import Settings

COUNT = 8
PREFILL = (("k-transposed", "16"), ("separate", "8"))
DECODE = (("BHLNC", "8"), ("x-packed", "32"))


@dataclass
class World:
    """A router and the engines behind it."""

    router: RunningRouter
    prefill: list[Asked]
    decode: list[Asked]

    async def complete(self, prompt: list[int], **more: Any) -> httpx.Response:
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": COUNT,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }
        return await self.router.client.post(COMPLETIONS, json=body)

    async def sum_of(self, engines: list[Asked], name: str, **labels: str) -> float:
        return sum([(await each.metrics()).value(name, **labels) for each in engines])

    async def assert_at_rest(self) -> None:
        """No block is held, no load has failed, no lease has run out."""
        await settle(*self.prefill, *self.decode)
        await self.router.assert_empty()
        for each in self.decode:
            assert await each.failures() == {}
        ends = [
            await self.sum_of(self.prefill, "transload_kv_handoffs_ended_total", end=end)
            for end in ("expired", "forgone")
        ]
        assert ends == [0, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                serve_reference(folder, "--kv-layout", layout, "--block-size", block_size)
            )
            for layout, block_size in (*PREFILL, *DECODE)
        ]
        prefill, decode = engines[: len(PREFILL)], engines[len(PREFILL) :]
        values: dict[str, Any] = {
            **QUICK,
            "prefill": [each.url for each in prefill],
            "decode": [each.url for each in decode],
            "response_header_timeout_s": 30,
            "idle_timeout_s": 30,
        }
        router = await stack.enter_async_context(serve_router(Settings(**values)))
        members = router.app.state.router.fleet.members.values()
        await until(lambda: all(each.health is Health.UP for each in members), "all are up")
        yield World(router, prefill, decode)


def tokens(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return list(response.json()["choices"][0]["token_ids"])


async def test_one_after_the_other(world: World, oracle: Oracle) -> None:
    lengths = (1, 16, 31, 100)
    for length in lengths:
        prompt = some_tokens(length, length)
        assert tokens(await world.complete(prompt)) == oracle.alone(prompt, COUNT)
    assert await world.sum_of(world.decode, "transload_kv_loaded_tokens_total") == sum(lengths)
    assert await world.sum_of(world.prefill, "transload_kv_handoffs_total") == len(lengths)
    await world.assert_at_rest()


async def test_many_at_once(world: World, oracle: Oracle) -> None:
    prompts = [some_tokens(10 + 3 * number, number) for number in range(24)]
    answers = await asyncio.gather(*(world.complete(prompt) for prompt in prompts))
    assert list(map(tokens, answers)) == [oracle.alone(prompt, COUNT) for prompt in prompts]
    total = sum(map(len, prompts))
    assert await world.sum_of(world.decode, "transload_kv_loaded_tokens_total") == total
    assert await world.sum_of(world.decode, "vllm:external_prefix_cache_hits_total") == total
    await world.assert_at_rest()


async def test_a_conversation_is_streamed(world: World, oracle: Oracle) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "w9 w17 w30"}],
        "max_tokens": COUNT,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = await world.router.client.post("/v1/chat/completions", json=body)
    *events, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert done == "[DONE]"
    told = [json.loads(event) for event in events]
    text = "".join(
        choice["delta"].get("content", "") for event in told for choice in event["choices"]
    )
    assert text == " ".join(f"w{token}" for token in oracle.alone([9, 17, 30, 5], COUNT))
    assert told[-1]["usage"]["prompt_tokens"] == 4
    assert await world.sum_of(world.decode, "transload_kv_loaded_tokens_total") == 4
    await world.assert_at_rest()


async def test_clients_that_leave_take_their_blocks_along(world: World) -> None:
    body = {"model": MODEL, "prompt": some_tokens(60), "max_tokens": 400, "ignore_eos": True}
    for _ in range(3):
        async with world.router.client.stream(
            "POST", COMPLETIONS, json={**body, "stream": True}
        ) as answer:
            async for _ in answer.aiter_bytes():
                break
    await settle(*world.prefill, *world.decode)
    await world.router.assert_empty()
