"""The router in front of simulated engines: one text wherever it is computed, no block left."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from support.router_server import QUICK, RunningRouter, serve_router
from support.waiting import until
from transload_engine.core.settings import CoreSettings
from transload_engine.core.timing import Profile
from transload_engine.server.engine import EngineSpec, SimulatedEngine
from transload_engine.server.fleet import SimulatedFleet
from transload_router.core.membership import Health
from transload_router.settings import Settings

MODEL = "simulated"
CORE = CoreSettings(num_blocks=512, max_model_tokens=4096, profile=Profile.instant())


@dataclass
class World:
    """A router, the engines behind it, and one that it does not know."""

    router: RunningRouter
    prefill: list[SimulatedEngine]
    decode: list[SimulatedEngine]
    local: SimulatedEngine

    async def ask(self, url: str, path: str, **body: Any) -> httpx.Response:
        return await self.router.client.post(f"{url}{path}", json={"model": MODEL, **body})

    def loaded_tokens(self) -> int:
        counters = (core.counters for each in self.decode for core in each.cores)
        return sum(each.external_prefix_cache_hits for each in counters)

    async def assert_at_rest(self) -> None:
        """No block is held, nothing failed, nothing was read twice or late."""
        engines = [*self.prefill, *self.decode]
        await until(
            lambda: all(core.usage == 0 for each in engines for core in each.cores),
            "no block is held",
        )
        for engine in engines:
            for core in engine.cores:
                assert core.num_running == core.num_waiting == 0
                assert core.leases.num_late == core.leases.num_expired == 0
                assert core.counters.num_failed_loads == 0


@contextlib.asynccontextmanager
async def serve(core: CoreSettings = CORE, num_prefill: int = 2) -> AsyncIterator[World]:
    spec = EngineSpec(model=MODEL, core=core)
    fleet = SimulatedFleet.of(spec, prefill=num_prefill, decode=2, local=1)
    async with fleet:
        # A policy that never finds a prompt too short to be worth two engines.
        values: dict[str, Any] = {
            **QUICK,
            "policy": "least-loaded",
            "response_header_timeout_s": 30,
        }
        for role in ("prefill", "decode"):
            values[role] = [each.url for each in fleet.named(role)]
        async with serve_router(Settings(**values)) as router:
            members = router.app.state.router.fleet.members.values()
            await until(
                lambda: all(each.health is not Health.JOINING for each in members), "all probed"
            )
            (local,) = fleet.named("local")
            yield World(router, fleet.named("prefill"), fleet.named("decode"), local)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serve() as world:
        yield world


def _prompt(number: int, length: int) -> list[int]:
    return [300 + (number * 7919 + place * 31) % 30000 for place in range(length)]


def _chat(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"question {number} " * 10}], "max_tokens": 12}


async def test_a_split_completion_has_the_tokens_of_one_engine(world: World) -> None:
    for length in (1, 15, 16, 17, 100):
        body = {"prompt": _prompt(length, length), "max_tokens": 9, "return_token_ids": True}
        split = (await world.ask("", "/v1/completions", **body)).json()
        alone = (await world.ask(world.local.url, "/v1/completions", **body)).json()
        assert split["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]
        assert len(split["choices"][0]["token_ids"]) == 9
    assert world.loaded_tokens() == 1 + 15 + 16 + 17 + 100
    await world.assert_at_rest()


async def test_a_split_stream_has_the_text_and_usage_of_one_engine(world: World) -> None:
    body = {**_chat(1), "stream": True, "stream_options": {"include_usage": True}}
    split = await world.ask("", "/v1/chat/completions", **body)
    alone = await world.ask(world.local.url, "/v1/chat/completions", **body)
    assert _text(split.text) == _text(alone.text) != ""
    assert _usage(split.text) == _usage(alone.text)
    assert world.loaded_tokens() == _usage(split.text)["prompt_tokens"]
    await world.assert_at_rest()


async def test_prefills_hits_are_the_usage_of_a_split_request() -> None:
    body = {"prompt": _prompt(3, 100), "max_tokens": 2}
    async with serve(num_prefill=1) as world:
        for cached in (0, 96, 96):
            answer = (await world.ask("", "/v1/completions", **body)).json()
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        await world.assert_at_rest()


async def test_many_at_once_leave_nothing_held() -> None:
    small = CoreSettings(num_blocks=64, max_model_tokens=512, profile=Profile.instant())
    async with serve(small) as world:
        asked = [
            world.ask("", "/v1/chat/completions", **_chat(number), stream=number % 2 == 0)
            if number % 3
            else world.ask("", "/v1/completions", prompt=_prompt(number % 5, 200), max_tokens=40)
            for number in range(60)
        ]
        answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {200}
        assert all("error" not in answer.text for answer in answers)
        assert world.loaded_tokens() > 0
        await world.assert_at_rest()


async def test_a_client_that_leaves_takes_its_blocks_along(world: World) -> None:
    body = {"model": MODEL, **_chat(5), "max_tokens": 3000, "stream": True}
    async with world.router.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for _ in answer.aiter_bytes():
            break
    await world.assert_at_rest()


async def test_a_handoff_that_is_used_twice_is_noticed_by_both(world: World) -> None:
    prompt = _prompt(9, 40)
    prefill, decode = world.prefill[0], world.decode[0]
    first = await world.ask(
        prefill.url,
        "/v1/completions",
        prompt=prompt,
        max_tokens=1,
        kv_transfer_params={"do_remote_decode": True},
    )
    handoff = first.json()["kv_transfer_params"]
    uses = [
        await world.ask(
            decode.url, "/v1/completions", prompt=prompt, max_tokens=3, kv_transfer_params=handoff
        )
        for _ in range(2)
    ]
    assert [use.status_code for use in uses] == [200, 500]
    assert decode.cores[0].counters.num_failed_loads == 1
    assert prefill.cores[0].leases.num_late == 1
    assert prefill.cores[0].usage == decode.cores[0].usage == 0


async def test_another_prompts_handoff_gives_another_text(world: World) -> None:
    ours, other = _prompt(11, 40), _prompt(12, 40)
    prefill, decode = world.prefill[0], world.decode[0]
    first = await world.ask(
        prefill.url,
        "/v1/completions",
        prompt=other,
        max_tokens=1,
        kv_transfer_params={"do_remote_decode": True},
    )
    wrong = await world.ask(
        decode.url,
        "/v1/completions",
        prompt=ours,
        max_tokens=8,
        kv_transfer_params=first.json()["kv_transfer_params"],
    )
    right = await world.ask(world.local.url, "/v1/completions", prompt=ours, max_tokens=8)
    assert wrong.status_code == 200
    assert wrong.json()["choices"][0]["text"] != right.json()["choices"][0]["text"]


def _data(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _text(text: str) -> str:
    deltas = [each["choices"][0]["delta"] for each in _data(text) if each["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


def _usage(text: str) -> dict[str, Any]:
    (usage,) = (each["usage"] for each in _data(text) if not each["choices"])
    return dict(usage)
