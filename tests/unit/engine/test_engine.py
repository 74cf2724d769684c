"""Engines as they are served: ranks, choices, refusals, leases in time, faults."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from support.waiting import PATIENCE_S, soon, until
from transload_engine.core.settings import CoreSettings
from transload_engine.core.timing import Profile
from transload_engine.server.engine import EngineSpec, SimulatedEngine
from transload_engine.server.faults import Faults
from transload_engine.server.fleet import SimulatedFleet

CORE = CoreSettings(num_blocks=256, max_model_tokens=2048, profile=Profile.instant())
PROMPT = [300 + place for place in range(40)]


@contextlib.asynccontextmanager
async def serve(**options: Any) -> AsyncIterator["World"]:
    spec = EngineSpec(**{"core": CORE, **options})
    async with SimulatedFleet.of(spec, prefill=1, decode=1) as fleet, _client() as client:
        yield World(client, *fleet.engines)


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=10)


class World:
    """A prefill and a decode engine, and somebody who asks them."""

    def __init__(
        self, client: httpx.AsyncClient, prefill: SimulatedEngine, decode: SimulatedEngine
    ) -> None:
        self.client = client
        self.prefill = prefill
        self.decode = decode

    async def complete(
        self, engine: SimulatedEngine, headers: dict[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        asked = {"model": "simulated", "prompt": PROMPT, "max_tokens": 4, **body}
        url = f"{engine.url}/v1/completions"
        return await self.client.post(url, json=asked, headers=headers)

    async def hand_off(self, **body: Any) -> dict[str, Any]:
        params = {"do_remote_decode": True}
        answer = await self.complete(self.prefill, max_tokens=1, kv_transfer_params=params, **body)
        handoff: dict[str, Any] = answer.json()["kv_transfer_params"]
        return handoff

    async def answers(self, engine: SimulatedEngine) -> None:
        """It does so soon, though it did not."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await self.client.get(f"{engine.url}/health")
                    return

    async def fault(self, engine: SimulatedEngine, **faults: Any) -> None:
        answer = await self.client.post(f"{engine.url}/simulate/fault", json=faults)
        assert answer.status_code == 200


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serve() as world:
        yield world


def _texts(answer: httpx.Response) -> list[str]:
    return [choice["text"] for choice in answer.json()["choices"]]


async def test_a_header_names_the_rank() -> None:
    async with serve(num_ranks=3) as world:
        for rank in ("2", "2", "0"):
            await world.complete(world.decode, {"x-data-parallel-rank": rank})
        queries = [core.counters.prefix_cache_queries for core in world.decode.cores]
        assert queries == [40, 0, 80]
        assert world.decode.cores[2].counters.prefix_cache_hits == 32


async def test_without_a_header_ranks_take_turns() -> None:
    async with serve(num_ranks=2) as world:
        for header in (None, {"x-data-parallel-rank": "no number"}):
            for _ in range(2):
                await world.complete(world.decode, header)
        assert [core.counters.prompt_tokens for core in world.decode.cores] == [80, 80]


async def test_each_rank_publishes_for_itself() -> None:
    async with serve(num_ranks=2) as world:
        sources = (await world.client.get(f"{world.decode.url}/kv_event_sources")).json()
        assert list(sources) == ["0", "1"]
        assert sources["0"]["endpoint"] != sources["1"]["endpoint"]


async def test_a_rank_that_is_not_there_is_refused_and_the_handoff_ended(world: World) -> None:
    handoff = await world.hand_off()
    answer = await world.complete(
        world.decode, {"x-data-parallel-rank": "1"}, kv_transfer_params=handoff
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "data_parallel_rank 1 is out of range [0, 1)."
    await until(lambda: world.prefill.cores[0].usage == 0, "the blocks are free")


async def test_choices_differ_and_prompts_are_answered_in_turn(world: World) -> None:
    two = await world.complete(world.decode, n=2)
    assert len(set(_texts(two))) == 2
    assert two.json()["usage"]["completion_tokens"] == 8
    several = await world.complete(world.decode, prompt=[PROMPT, PROMPT[:20]])
    first = await world.complete(world.decode)
    second = await world.complete(world.decode, prompt=PROMPT[:20])
    assert _texts(several) == [*_texts(first), *_texts(second)]
    assert several.json()["usage"]["prompt_tokens"] == 60


async def test_an_answer_is_cut_at_its_stop_string(world: World) -> None:
    (whole,) = _texts(await world.complete(world.decode, max_tokens=12))
    stop = whole[4:6]
    at = whole.index(stop)
    cut = await world.complete(world.decode, max_tokens=12, stop=stop)
    assert _texts(cut) == [whole[:at]]
    choice = cut.json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    kept = await world.complete(
        world.decode, max_tokens=12, stop=[stop], include_stop_str_in_output=True
    )
    assert _texts(kept) == [whole[: at + 2]]
    assert world.decode.cores[0].usage == 0


async def test_tokens_that_were_made_elsewhere_are_not_made_again(world: World) -> None:
    expected = await world.complete(world.decode)
    forwarded = {"prompt_token_ids": PROMPT}
    answer = await world.complete(world.decode, prompt="ignored", kv_transfer_params=forwarded)
    assert _texts(answer) == _texts(expected)
    messages = [{"role": "user", "content": "ignored"}]
    asked = {"model": "simulated", "messages": messages, "max_tokens": 4}
    url = f"{world.decode.url}/v1/chat/completions"
    chat = await world.client.post(url, json={**asked, "kv_transfer_params": forwarded})
    assert chat.json()["usage"]["prompt_tokens"] == 40
    none = await world.client.post(
        url, json={**asked, "kv_transfer_params": {"prompt_token_ids": ["x"]}}
    )
    assert none.json()["error"]["param"] == "kv_transfer_params.prompt_token_ids"


@pytest.mark.parametrize(
    ("body", "status", "is_ended"),
    [
        ({"model": "other"}, 404, True),
        ({"stream": True, "use_beam_search": True}, 400, True),
        ({"max_tokens": 0}, 400, True),
        ({"max_tokens": "x"}, 400, False),
        ({"stream_options": {"include_usage": True}}, 400, False),
    ],
)
async def test_only_what_was_looked_at_ends_its_handoff(
    world: World, body: dict[str, Any], status: int, is_ended: bool
) -> None:
    handoff = await world.hand_off()
    answer = await world.complete(world.decode, **{**body, "kv_transfer_params": handoff})
    assert answer.status_code == status
    if is_ended:
        await until(lambda: world.prefill.cores[0].usage == 0, "the blocks are free")
    assert len(world.prefill.cores[0].leases.held) == (0 if is_ended else 1)
    assert world.prefill.cores[0].leases.num_late == 0


async def test_blocks_that_nobody_reads_are_freed_in_time() -> None:
    async with serve(speed=200) as world:
        handoff = await world.hand_off()
        prefill = world.prefill.cores[0]
        await until(lambda: prefill.leases.num_expired == 1, "the lease has run out")
        assert prefill.usage == 0
        late = await world.complete(world.decode, kv_transfer_params=handoff)
        assert late.status_code == 500
        assert prefill.leases.num_late == 1


async def test_who_waits_at_decode_keeps_its_lease_alive() -> None:
    async with serve(speed=60) as world:
        handoff = await world.hand_off()
        await world.fault(world.decode, stalls=True)
        waiting = asyncio.create_task(world.complete(world.decode, kv_transfer_params=handoff))
        rank = world.prefill.ranks[0]
        until_s = rank.now + 3 * 30
        await until(lambda: rank.now > until_s, "three leases have passed")
        await world.fault(world.decode)
        assert (await soon(waiting)).status_code == 200
        assert rank.core.leases.num_expired == 0


async def test_two_answers_cannot_share_a_handoff(world: World) -> None:
    handoff = await world.hand_off()
    answer = await world.complete(world.decode, n=2, kv_transfer_params=handoff)
    assert answer.status_code == 500
    decode, prefill = world.decode.cores[0], world.prefill.cores[0]
    assert (decode.counters.num_loads, decode.counters.num_failed_loads) == (1, 1)
    assert prefill.leases.num_late == 1
    assert decode.usage == prefill.usage == 0


async def test_a_failed_load_breaks_a_stream_with_an_error(world: World) -> None:
    handoff = await world.hand_off()
    await world.complete(world.decode, kv_transfer_params=handoff)
    answer = await world.complete(world.decode, stream=True, kv_transfer_params=handoff)
    assert answer.status_code == 200
    error = {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    first, done, end = answer.text.split("\n\n")
    assert json.loads(first.removeprefix("data: ")) == {"error": error}
    assert (done, end) == ("data: [DONE]", "")


async def test_a_dead_prefill_can_be_computed_for() -> None:
    core = CoreSettings(
        num_blocks=256, max_model_tokens=2048, fails_with_load=False, profile=Profile.instant()
    )
    async with serve(core=core) as world:
        handoff = await world.hand_off()
        await world.prefill.stop()
        answer = await world.complete(world.decode, kv_transfer_params=handoff)
        alone = await world.complete(world.decode)
        assert _texts(answer) == _texts(alone)
        assert world.decode.cores[0].counters.num_failed_loads == 1


async def test_an_engine_that_refuses_is_as_one_whose_core_is_dead(world: World) -> None:
    await world.fault(world.decode, refuses=True)
    assert (await world.client.get(f"{world.decode.url}/health")).status_code == 503
    assert (await world.complete(world.decode)).status_code == 503
    await world.fault(world.decode)
    assert (await world.complete(world.decode)).status_code == 200


async def test_an_engine_that_hangs_answers_nothing_but_its_control(world: World) -> None:
    await world.fault(world.decode, hangs=True)
    with pytest.raises(httpx.ReadTimeout):
        await world.client.get(f"{world.decode.url}/health", timeout=0.1)
    await world.fault(world.decode)
    assert (await world.client.get(f"{world.decode.url}/health")).status_code == 200


async def test_an_engine_that_stalls_still_answers_what_needs_no_step(world: World) -> None:
    await world.fault(world.decode, stalls=True)
    waiting = asyncio.create_task(world.complete(world.decode))
    await until(lambda: world.decode.cores[0].num_waiting == 1, "the request waits")
    assert (await world.client.get(f"{world.decode.url}/health")).status_code == 200
    assert not waiting.done()
    await world.fault(world.decode)
    assert (await soon(waiting)).status_code == 200


async def test_an_unknown_fault_is_refused(world: World) -> None:
    answer = await world.client.post(f"{world.decode.url}/simulate/fault", json={"explodes": True})
    assert answer.status_code == 400
    assert "explodes" in answer.json()["error"]["message"]


async def test_a_slow_engine_takes_longer() -> None:
    slow = Profile(decode_base_s=0.002)
    core = CoreSettings(num_blocks=256, max_model_tokens=2048, profile=slow)
    async with serve(core=core) as world:
        world.decode.set_faults(Faults(slow_factor=50))
        began_s = world.decode.ranks[0].now
        await world.complete(world.decode, max_tokens=4)
        assert world.decode.ranks[0].now - began_s > 3 * 50 * 0.002


async def test_an_engine_that_dies_comes_back_empty_at_its_address(world: World) -> None:
    await world.complete(world.decode)
    before = world.decode.cores[0].origin.engine_id
    asked = asyncio.create_task(world.complete(world.decode, max_tokens=2000))
    await until(lambda: world.decode.cores[0].num_running == 1, "it runs")
    await world.client.post(f"{world.decode.url}/simulate/die", json={"for_s": 0.05})
    with pytest.raises(httpx.TransportError):
        await soon(asked)
    await world.answers(world.decode)
    answer = await world.complete(world.decode)
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert world.decode.cores[0].origin.engine_id != before


async def test_a_reset_is_refused_while_blocks_are_held(world: World) -> None:
    url = f"{world.prefill.url}/reset_prefix_cache"
    handoff = await world.hand_off()
    assert (await world.client.post(url)).json() == {"success": False}
    await world.complete(world.decode, kv_transfer_params=handoff)
    await until(lambda: world.prefill.cores[0].usage == 0, "the blocks are free")
    assert (await world.client.post(url)).json() == {"success": True}


async def test_ports_that_are_named_follow_each_other() -> None:
    fleet = SimulatedFleet.of(EngineSpec(port=4000, side_channel_port=5000, num_ranks=2), a=2, b=1)
    assert [(each.name, each.port, each.side_channel_port) for each in fleet.specs] == [
        ("a-0", 4000, 5000),
        ("a-1", 4001, 5002),
        ("b-0", 4002, 5004),
    ]
