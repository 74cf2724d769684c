"""K03: both legs share one fate, and what prefill pinned is let go."""

import asyncio

import pytest

from support import behaviours
from support.behaviours import Gate
from support.raw_client import post, raw_client
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Exchange, Leg
from support.vllm_api import APIS, CHAT, COMPLETIONS, Api, dump
from support.waiting import soon, until
from transload_router.io.upstream import client as upstream_client


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_prefill_refuses_and_decode_is_never_asked(fleet: Fleet, api: Api) -> None:
    fleet.p.by_leg[Leg.PREFILL] = behaviours.refuse(400, "over the context")
    fleet.d.always = behaviours.hang
    for _ in range(50):
        answer = await soon(fleet.router.client.post(api.path, json=api.request()))
        assert answer.status_code == 400
        assert b"over the context" in answer.content
    assert fleet.d.exchanges == [e for e in fleet.d.exchanges if e.request.leg is Leg.PROBE]


async def test_ten_client_errors_leave_the_engine_in_its_pool(fleet: Fleet) -> None:
    for leg, engine in ((Leg.PREFILL, fleet.p), (Leg.DECODE, fleet.d)):
        engine.by_leg[leg] = behaviours.refuse(400)
        for _ in range(10):
            answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
            assert answer.status_code == 400
        del engine.by_leg[leg]
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
        assert answer.status_code == 200
    report = (await fleet.router.client.get("/readyz")).json()
    assert {engine["health"] for engine in report["engines"]} == {"up"}


@pytest.mark.parametrize("code", [400, 404, 422, 429, 500, 503])
async def test_a_decode_refusal_uses_the_handoff_up(fleet: Fleet, code: int) -> None:
    """The engine that refused has told prefill; presenting it again could free read blocks."""
    fleet.d.by_leg[Leg.DECODE] = behaviours.refuse(code)
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert answer.status_code == code
    [handoff] = fleet.p.ledger.issued
    assert (fleet.p.ledger.presented[handoff], fleet.p.ledger.released[handoff]) == (1, 0)


UNREAD = b'{"error":{"message":"x","type":"Bad Request","param":null,"code":400}}'


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_a_refusal_that_never_saw_the_handoff_is_followed_by_a_release(
    fleet: Fleet, api: Api
) -> None:
    """Validation errors leave prefill's blocks pinned, so the router frees them, once."""
    fleet.d.by_leg[Leg.DECODE] = behaviours.answer(400, UNREAD)
    answer = await fleet.router.client.post(api.path, json=api.request())
    assert (answer.status_code, answer.content) == (400, UNREAD)
    await fleet.d.next_exchange(1, Leg.RELEASE)
    assert len(fleet.d.asked(Leg.RELEASE)) == 1


async def test_no_decode_engine_was_reached_so_another_releases() -> None:
    """Every decode engine that could be chosen refuses connections; one is up for releases."""
    async with serve_fleet(1, 4) as fleet:
        gate = Gate()
        fleet.p.by_leg[Leg.PREFILL] = gate.before()
        asking = asyncio.create_task(fleet.router.client.post(CHAT.path, json=CHAT.request()))
        await gate.reached.wait()
        for engine in fleet.decode:
            await engine.stop()
        fleet.pinned = 1
        gate.opened.set()
        answer = await soon(asking)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        scrape = await fleet.router.metrics()
        assert scrape.value("transload_handoffs_released_total", released="lease") == 1


async def test_an_unsent_handoff_goes_to_the_next_engine() -> None:
    async with serve_fleet(1, 2) as fleet:
        gate = Gate()
        fleet.p.by_leg[Leg.PREFILL] = gate.before()
        explain = {"x-transload-explain": "1"}
        client = fleet.router.client
        asking = asyncio.create_task(client.post(CHAT.path, json=CHAT.request(), headers=explain))
        await gate.reached.wait()
        chosen = next(load for load in fleet.router.app.state.router.fleet.members.values())
        assert chosen is not None
        gauges = (await fleet.router.metrics()).nonzero("transload_engine_requests_in_flight")
        busy = {labels["engine"] for labels, _ in gauges if labels["role"] == "decode"}
        [name] = busy
        await fleet.decode[int(name.removeprefix("decode-"))].stop()
        gate.opened.set()
        answer = await soon(asking)
        assert answer.status_code == 200
        assert answer.headers["x-transload-decode"] != name
        assert len(fleet.p.asked()) == 1, "no second prefill: the handoff was never sent"


async def test_a_storm_of_failing_prefills_leaves_decode_free(fleet: Fleet) -> None:
    fleet.p.by_leg[Leg.PREFILL] = behaviours.reset_before_header

    async def ask() -> int:
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
        return answer.status_code

    codes = await asyncio.gather(*(ask() for _ in range(200)))
    assert set(codes) == {502}
    assert fleet.d.asked() == []
    assert fleet.router.num_legs == 0


async def test_a_client_that_leaves_ends_both_kinds_of_wait(fleet: Fleet) -> None:
    """200 clients leave while prefill reads; every slot on both sides is free within a second."""
    fleet.p.by_leg[Leg.PREFILL] = behaviours.hang
    request = post(COMPLETIONS.path, dump(COMPLETIONS.request()))

    async def come_and_go(number: int) -> None:
        async with raw_client(fleet.router.port) as client:
            await client.send(request)
            await fleet.p.next_exchange(number + 1)

    await asyncio.gather(*(come_and_go(199) for _ in range(200)))
    await until(lambda: fleet.p.is_idle and fleet.router.num_legs == 0, "all free", within_s=2)
    assert fleet.d.asked() == []


async def test_decode_answers_after_prefill_died_late() -> None:
    """The prefill engine goes away after its handoff: decode alone decides."""
    async with serve_fleet() as fleet:
        stopped = asyncio.Event()

        async def last_words(exchange: Exchange) -> None:
            await exchange.engine.default(exchange)
            stopped.set()

        fleet.p.by_leg[Leg.PREFILL] = last_words
        gate = Gate()
        fleet.d.by_leg[Leg.DECODE] = gate.before(behaviours.refuse(500, "load failed"))
        asking = asyncio.create_task(fleet.router.client.post(CHAT.path, json=CHAT.request()))
        await gate.reached.wait()
        await stopped.wait()
        await fleet.p.stop()
        gate.opened.set()
        answer = await soon(asking, 2)
        assert answer.status_code == 500
        assert b"load failed" in answer.content


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE, Leg.LOCAL])
async def test_a_prompt_that_kills_engines_kills_two_at_most(
    monkeypatch: pytest.MonkeyPatch, leg: Leg
) -> None:
    """Every death comes later than that of a connection which was just being closed."""
    monkeypatch.setattr(upstream_client, "STALE_WITHIN_S", 0.0)
    request = CHAT.request() if leg is not Leg.LOCAL else CHAT.request(n=2)
    async with serve_fleet(3, 3) as fleet:
        # Each engine has a connection that waits, as in a fleet at work.
        for _ in range(6):
            answer = await fleet.router.client.post(CHAT.path, json=request)
            assert answer.status_code == 200
        engines = fleet.prefill if leg is Leg.PREFILL else fleet.decode
        for engine in engines:
            engine.exchanges.clear()
            engine.by_leg[leg] = behaviours.reset_before_header
        answer = await fleet.router.client.post(CHAT.path, json=request)
        assert answer.status_code == 502
        assert 1 <= sum(len(engine.asked(leg)) for engine in engines) <= 2
        scrape = await fleet.router.metrics()
        assert scrape.value("transload_errors_total", kind="engine_reset") >= 1
