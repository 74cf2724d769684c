"""K11: what is reserved is released once, by the request that reserved it and by nothing else."""

import asyncio
import random

import pytest

from support import behaviours
from support.raw_client import post
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Leg
from support.vllm_api import APIS, CHAT, Api, dump
from support.waiting import soon, until
from support.walks import ask_and_leave, break_some


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_probes_do_not_reset_live_streams(api: Api) -> None:
    async with serve_fleet(health_interval_s=0.03, idle_timeout_s=30) as fleet:
        gate = asyncio.Event()
        fleet.d.by_leg[Leg.DECODE] = behaviours.gated_stream({1: gate})
        client = fleet.router.client
        asking = [
            asyncio.create_task(client.post(api.path, json=api.request(stream=True)))
            for _ in range(10)
        ]
        await fleet.d.next_exchange(10, Leg.DECODE)
        probes = len(fleet.d.asked(Leg.PROBE))
        await fleet.d.next_exchange(probes + 8, Leg.PROBE)
        assert fleet.router.num_legs == 10
        scrape = await fleet.router.metrics()
        labels = {"engine": "decode-0", "role": "decode"}
        assert scrape.value("transload_engine_requests_in_flight", **labels) == 10
        assert scrape.value("transload_requests_in_flight", endpoint=api.name) == 10
        gate.set()
        await asyncio.gather(*asking)


async def test_an_engine_that_flaps_counts_on() -> None:
    """Down and up again while three streams run: they stay counted, and end at zero."""
    async with serve_fleet(health_interval_s=0.03, idle_timeout_s=30) as fleet:
        gate = asyncio.Event()
        fleet.d.by_leg[Leg.DECODE] = behaviours.gated_stream({1: gate})
        client = fleet.router.client
        asking = [
            asyncio.create_task(client.post(CHAT.path, json=CHAT.request(stream=True)))
            for _ in range(3)
        ]
        await fleet.d.next_exchange(3, Leg.DECODE)

        async def health() -> str:
            report = (await client.get("/readyz")).json()
            return str(report["engines"][1]["health"])

        for status, word in ((503, "down"), (200, "up"), (500, "down"), (200, "up")):
            fleet.d.by_path["/health"] = behaviours.answer(status, b"")
            async with asyncio.timeout(5):
                while await health() != word:
                    await fleet.d.next_exchange(len(fleet.d.asked(Leg.PROBE)) + 1, Leg.PROBE)
            assert fleet.router.num_legs == 3
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


async def test_engines_that_come_back_are_used_again() -> None:
    async with serve_fleet(health_interval_s=0.05, on_empty_prefill="fail") as fleet:
        await fleet.p.stop()
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
        assert answer.status_code == 503
        await fleet.p.start()
        async with asyncio.timeout(5):
            while answer.status_code != 200:
                answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
                await asyncio.sleep(0)


async def test_a_random_walk_ends_at_zero_and_evenly_spread() -> None:
    """Whatever went wrong before, every engine still gets its share."""
    chance = random.Random(11)
    async with serve_fleet(3, 3) as fleet:
        client = fleet.router.client

        async def ask() -> None:
            api = chance.choice(APIS)
            body = api.request(stream=chance.random() < 0.5)
            if chance.random() < 0.3:
                await ask_and_leave(fleet.router.port, post(api.path, dump(body)), chance)
            else:
                await client.post(api.path, json=body)

        for _ in range(8):
            break_some(fleet, chance)
            await asyncio.gather(*(ask() for _ in range(20)))
            await until(lambda: fleet.router.num_legs == 0, "no reservation")
        await until(lambda: not fleet.p.ledger.pinned, "handoffs settled", 2)
        for engine in fleet.engines:
            engine.script.clear()
        before = [len(engine.asked()) for engine in fleet.engines]
        await asyncio.gather(*(client.post(CHAT.path, json=CHAT.request()) for _ in range(150)))
        share = [
            len(engine.asked()) - count for engine, count in zip(fleet.engines, before, strict=True)
        ]
        assert min(share) > 25, share


async def test_equal_engines_share_idle_times(fleet: Fleet) -> None:
    async with serve_fleet(2, 2) as pair:
        for _ in range(60):
            await pair.router.client.post(CHAT.path, json=CHAT.request())
        assert min(len(engine.asked()) for engine in pair.engines) > 10


async def test_the_least_loaded_engine_is_chosen() -> None:
    async with serve_fleet(1, 3, response_header_timeout_s=30) as fleet:
        gate = behaviours.Gate()
        for engine in fleet.decode:
            engine.by_leg[Leg.DECODE] = gate.before()
        client = fleet.router.client
        asking = [
            asyncio.create_task(client.post(CHAT.path, json=CHAT.request())) for _ in range(9)
        ]
        for engine in fleet.decode:
            await soon(engine.next_exchange(3, Leg.DECODE))
        gate.opened.set()
        await asyncio.gather(*asking)
        assert [len(engine.asked()) for engine in fleet.decode] == [3, 3, 3]
