"""Routing by what engines hold, in front of simulated engines with caches of their own."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from support.router_server import QUICK, RunningRouter, serve_router
from support.small_tokenizers import VECTORS
from support.waiting import until
from transload_engine.core.settings import CoreSettings
from transload_engine.core.timing import Profile
from transload_engine.server.engine import EngineSpec, SimulatedEngine
from transload_engine.server.fleet import SimulatedFleet
from transload_router.core.kv_events.messages import StreamState
from transload_router.settings import Settings

MODEL = "simulated"
BLOCK = 16
# Few blocks, so that a handful of prompts evicts the others.
CORE = CoreSettings(num_blocks=65, max_model_tokens=1024, profile=Profile.instant())
LARGE = replace(CORE, num_blocks=513)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
POLICIES = pytest.mark.parametrize("policy", ["cost", "prefix"])


@dataclass
class Told:
    """What one answer says of its prompt's cache, and who read it."""

    predicted: int
    reported: int
    prefill: str | None
    decode: str
    source: str

    @property
    def place(self) -> str:
        return self.prefill or self.decode


@dataclass
class World:
    """A router and its engines, by the router's names for them."""

    router: RunningRouter
    engines: dict[str, SimulatedEngine]

    @property
    def tables(self) -> Any:
        return self.router.app.state.router

    async def ask(self, path: str, *, stream: bool = False, **body: Any) -> Told:
        """One request, when all is known of those before."""
        await self.caught_up()
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = await self.router.client.post(
            path,
            json={"model": MODEL, "max_tokens": 4, **more, **body},
            headers={"x-transload-explain": "1"},
        )
        assert answer.status_code == 200, answer.text
        text = answer.text
        reported = int(text.rpartition('"cached_tokens":')[2].partition(",")[0].strip("} "))
        told = answer.headers
        return Told(
            int(told["x-transload-predicted-cached-tokens"]),
            reported,
            told.get("x-transload-prefill"),
            told["x-transload-decode"],
            told["x-transload-prompt"],
        )

    async def caught_up(self) -> None:
        """The router has all that engines have published."""

        def is_behind() -> bool:
            positions = self.tables.stream_positions()
            for name, engine in self.engines.items():
                for rank in engine.ranks:
                    assert rank.publisher is not None
                    place = positions.get((name, rank.number))
                    if (place.seq if place else -1) < rank.publisher._number - 1:
                        return True
            return False

        await until(lambda: not is_behind(), "all events followed")

    async def followed(self) -> None:
        """Every stream is exact."""
        keys = {(n, rank.number) for n, engine in self.engines.items() for rank in engine.ranks}
        await until(
            lambda: all(self.tables.streams.get(key) is StreamState.EXACT for key in keys), "exact"
        )


@contextlib.asynccontextmanager
async def serve(
    policy: str, num_prefill: int = 2, num_decode: int = 1, **spec: Any
) -> AsyncIterator[World]:
    base = EngineSpec(model=MODEL, **{"core": CORE, **spec})
    async with (
        SimulatedFleet.of(base, prefill=num_prefill, decode=num_decode) as fleet,
        serve_also(fleet, policy) as world,
    ):
        yield world


@contextlib.asynccontextmanager
async def serve_also(fleet: SimulatedFleet, policy: str, **more: Any) -> AsyncIterator[World]:
    """A router in front of engines that run already."""
    values: dict[str, Any] = {
        **QUICK,
        "policy": policy,
        "response_header_timeout_s": 30,
        "health_interval_s": 0.1,
        **more,
    }
    for role in ("prefill", "decode"):
        values[role] = [each.url for each in fleet.named(role)]
    async with serve_router(Settings(**values)) as router:
        world = World(router, {each.spec.name: each for each in fleet.engines})
        await world.followed()
        yield world


def prompt(number: int, length: int) -> list[int]:
    return [300 + (number * 7919 + place * 31) % 30000 for place in range(length)]


@POLICIES
async def test_predictions_are_what_engines_report(policy: str) -> None:
    """Hits, evictions, cuts at a block's end and beside it, streams and whole answers."""
    chance = random.Random(3)
    async with serve(policy) as world:
        errors = []
        for step in range(120):
            length = chance.choice((BLOCK - 1, BLOCK, BLOCK + 1, 160, 161, 333, 640))
            body = {"prompt": prompt(chance.randrange(5), length)}
            told = await world.ask(COMPLETIONS, stream=chance.random() < 0.4, **body)
            if told.predicted != told.reported:
                errors.append((step, length, told))
        assert errors == []
        scrape = await world.router.metrics()
        name = "transload_cache_predictions_total"
        assert scrape.value(name, outcome="exact") == 120
        assert scrape.value("transload_cached_tokens_total", said="predicted") > 2000


@POLICIES
async def test_conversations_stay_with_their_prefix(policy: str) -> None:
    """By tokens that an engine makes: what simulated engines render is not all that vLLM does."""
    folder = VECTORS / "tokenizer"
    base = EngineSpec(model=MODEL, core=LARGE, tokenizer_path=folder)
    async with (
        SimulatedFleet.of(base, prefill=3, decode=2) as fleet,
        serve_also(fleet, policy, tokenizer=[str(folder)]) as world,
    ):
        await until(lambda: "sent to engines" in world.tables.tokenizers.get(MODEL, ""), "compared")
        place: dict[int, str] = {}
        talks: dict[int, list[dict[str, str]]] = {number: [] for number in range(3)}
        for turn in range(3):
            for number, talk in talks.items():
                talk.append({"role": "user", "content": f"{number} asks {turn}, " * 20})
                told = await world.ask(CHAT, messages=talk)
                assert told.source == "engine"
                assert told.predicted == told.reported
                assert (told.reported > 0) is (turn > 0)
                assert place.setdefault(number, told.place) == told.place
                talk.append({"role": "assistant", "content": f"answer {turn}"})


@POLICIES
async def test_ranks_have_caches_of_their_own(policy: str) -> None:
    async with serve(policy, 1, 1, core=LARGE, num_ranks=2) as world:
        for number in range(12):
            for count in range(2):
                told = await world.ask(COMPLETIONS, prompt=prompt(number, 200))
                assert told.predicted == told.reported == 192 * count
        loads = {key: load.num_requests for key, load in world.tables.load.items()}
        assert set(loads.values()) == {0}


@POLICIES
async def test_a_new_router_starts_with_the_old_ones_index(policy: str) -> None:
    base = EngineSpec(model=MODEL, core=LARGE)
    async with (
        SimulatedFleet.of(base, prefill=3, decode=2) as fleet,
        serve_also(fleet, policy) as old,
    ):
        first = [await old.ask(COMPLETIONS, prompt=prompt(number, 300)) for number in range(6)]
        await old.caught_up()
        url = old.router.url
        async with serve_also(fleet, policy, index_snapshot_from=url) as new:
            for number, told in enumerate(first):
                again = await new.ask(COMPLETIONS, prompt=prompt(number, 300))
                assert again.predicted == again.reported == 288
                assert again.place == told.place


@POLICIES
async def test_a_new_process_has_an_empty_cache(policy: str) -> None:
    async with serve(policy, 1, 1, core=LARGE) as world:
        before = await world.ask(COMPLETIONS, prompt=prompt(1, 300))
        hit = await world.ask(COMPLETIONS, prompt=prompt(1, 300))
        assert (hit.predicted, hit.place) == (288, before.place)
        for engine in world.engines.values():
            await engine.stop()
            await engine.start()
        members = world.tables.fleet.members.values()
        await until(
            lambda: (
                not any(hit for hit in _blocks(world))
                and all(member.health.value == "up" for member in members)
            ),
            "all forgotten",
        )
        await world.followed()
        told = await world.ask(COMPLETIONS, prompt=prompt(1, 300))
        assert told.predicted == told.reported == 0


def _blocks(world: World) -> list[int]:
    index = world.tables.index
    return [sum(index.stats(key).num_blocks.values()) for key in index.owners()]


@POLICIES
async def test_a_reset_is_known_at_once(policy: str) -> None:
    async with serve(policy, core=LARGE) as world:
        for _ in range(2):
            await world.ask(COMPLETIONS, prompt=prompt(1, 300))
        answer = await world.router.client.post("/admin/reset_prefix_cache")
        assert set(answer.json().values()) == {True}
        told = await world.ask(COMPLETIONS, prompt=prompt(1, 300))
        assert told.predicted == told.reported == 0


@POLICIES
async def test_many_at_once_leave_nothing_reserved(policy: str) -> None:
    async with serve(policy, 2, 2, core=LARGE) as world:
        client = world.router.client

        async def ask(number: int) -> int:
            body = {"model": MODEL, "prompt": prompt(number % 4, 200), "max_tokens": 8}
            answer = await client.post(COMPLETIONS, json={**body, "stream": number % 2 == 0})
            return answer.status_code

        assert set(await asyncio.gather(*map(ask, range(60)))) == {200}
        await world.router.assert_empty()
        scrape = await world.router.metrics()
        assert scrape.value("transload_decisions_total") == 60
