"""Every leg x fault x endpoint x mode: the client's answer, what was left, what was counted.

The first half has one engine in each pool, so a fault decides the answer. In the second a
second engine stands beside the faulty one, and the client must not notice.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from support import behaviours
from support.expect import assert_cut_stream, assert_own_error
from support.router_server import QUICK, Fleet, Metrics, serve_fleet
from support.scripted_engine import Behaviour, Leg, ScriptedEngine
from support.vllm_api import APIS, Api

# After the fault, that is: after the timeouts that make a silence one. A loaded two-core
# machine runs everything else late.
AFTER_FAULT_S = 1.0
HEADER_TIMEOUT_S = float(QUICK["response_header_timeout_s"])
NUM_EVENTS_BEFORE = 2

pytestmark = [
    pytest.mark.parametrize("api", APIS, ids=lambda api: api.name),
    pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"]),
]


@dataclass(frozen=True)
class Fault:
    """One column.

    Attributes:
        kind: In `transload_errors_total`.
        status: What the client gets where nothing else can serve.
        is_own: Whether that answer is the router's.
        delay_s: What the fault itself takes.
    """

    name: str
    kind: str
    status: int
    is_own: bool
    behaviour: Behaviour | None = None
    delay_s: float = 0.0


REFUSED = Fault("refused", "engine_unreachable", 503, True)
FAULTS = (
    REFUSED,
    Fault("400", "status_400", 400, False, behaviours.refuse(400, "too long: 漢字")),
    Fault("429", "status_429", 429, False, behaviours.refuse(429, headers=[("retry-after", "7")])),
    Fault("500", "status_500", 500, False, behaviours.refuse(500)),
    Fault("503", "status_503", 503, False, behaviours.refuse(503, headers=[("retry-after", "3")])),
    Fault("hang", "engine_timeout", 504, True, behaviours.hang, delay_s=HEADER_TIMEOUT_S),
    Fault("reset", "engine_reset", 502, True, behaviours.reset_before_header),
    Fault("close", "engine_reset", 502, True, behaviours.close_before_header),
    Fault("reset_in_body", "engine_reset", 502, True, behaviours.die_in_body(NUM_EVENTS_BEFORE)),
    Fault("close_in_body", "engine_reset", 502, True, behaviours.die_in_body(how="close")),
    Fault("stall_in_body", "engine_timeout", 504, True, behaviours.stall_in_body(), 0.4),
)


@asynccontextmanager
async def faulty_fleet(leg: Leg, fault: Fault, **settings: Any) -> AsyncIterator[Fleet]:
    """One engine a pool; the leg's becomes faulty after the router has seen it well."""
    async with serve_fleet(**settings) as fleet:
        await break_engine(fleet.p if leg is Leg.PREFILL else fleet.d, leg, fault)
        yield fleet


async def break_engine(engine: ScriptedEngine, leg: Leg, fault: Fault) -> None:
    if fault.behaviour is None:
        await engine.stop()
    else:
        engine.by_leg[leg] = fault.behaviour


async def ask(fleet: Fleet, api: Api, *, stream: bool, delay_s: float = 0.0) -> httpx.Response:
    """One request, answered in time."""
    async with asyncio.timeout(delay_s + AFTER_FAULT_S):
        return await fleet.router.client.post(
            api.path, json=api.request(stream=stream), headers={"x-transload-explain": "1"}
        )


async def moved(before: Metrics, fleet: Fleet, name: str, **labels: str) -> float:
    """How far a metric went."""
    after = await fleet.router.metrics()
    return after.value(name, **labels) - before.value(name, **labels)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_one_engine_a_pool(api: Api, stream: bool, leg: Leg, fault: Fault) -> None:
    async with faulty_fleet(leg, fault, on_empty_prefill="fail") as fleet:
        before = await fleet.router.metrics()
        answer = await ask(fleet, api, stream=stream, delay_s=fault.delay_s)

        is_cut = leg is Leg.DECODE and stream and fault.name.endswith("in_body")
        if is_cut:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert_cut_stream(api, answer.content, bytes(fleet.d.asked()[0].sent))
        else:
            assert answer.status_code == fault.status, answer.text
            if fault.is_own:
                assert answer.headers["content-type"] == "application/json"
                assert_own_error(api, fault.status, answer.content)
            else:
                faulty = fleet.p if leg is Leg.PREFILL else fleet.d
                assert answer.content == bytes(faulty.asked(leg)[0].sent)
        if fault.status == 503:
            assert answer.headers["retry-after"] == ("1" if fault.is_own else "3")
        if fault.status == 429:
            assert answer.headers["retry-after"] == "7"

        engine = f"{leg}-0"
        assert await moved(before, fleet, "transload_errors_total", leg=leg, engine=engine) == 1, (
            "one fault, one error"
        )
        assert await moved(before, fleet, "transload_errors_total", leg=leg, kind=fault.kind) == 1
        code = "200" if is_cut else str(fault.status)
        assert (
            await moved(before, fleet, "transload_requests_total", endpoint=api.name, code=code)
            == 1
        )
        if leg is Leg.PREFILL:
            assert all(not engine.asked() for engine in fleet.decode), "decode was left alone"
        if fault is REFUSED and leg is Leg.DECODE:
            # Nobody is left to release through: the lease frees it, and that is counted.
            fleet.pinned = 1
            released = await moved(
                before, fleet, "transload_handoffs_released_total", released="lease"
            )
            assert released == 1


async def test_no_prefill_engine_is_up(api: Api, stream: bool) -> None:
    """The default is to let decode read the prompt, and to say so."""
    async with faulty_fleet(Leg.PREFILL, REFUSED) as fleet:
        before = await fleet.router.metrics()
        answer = await ask(fleet, api, stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-transload-path"] == "local"
        assert answer.content == bytes(fleet.d.asked()[0].sent)
        assert fleet.d.asked()[0].request.json() == api.request(stream=stream)
        assert await moved(before, fleet, "transload_fallbacks_total", reason="empty_prefill") == 1
        assert (
            await moved(before, fleet, "transload_paths_total", endpoint=api.name, path="local")
            == 1
        )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_prefill_failed_and_decode_may_read(api: Api, stream: bool, fault: Fault) -> None:
    """`on_prefill_failure: local` mends what the client is not to blame for."""
    async with faulty_fleet(
        Leg.PREFILL, fault, on_prefill_failure="local", on_empty_prefill="fail"
    ) as fleet:
        before = await fleet.router.metrics()
        answer = await ask(fleet, api, stream=stream, delay_s=fault.delay_s)
        if fault is REFUSED:
            assert answer.status_code == 503
        elif fault.is_own or fault.status == 503:
            assert answer.status_code == 200, answer.text
            assert answer.content == bytes(fleet.d.asked()[0].sent)
            assert fleet.d.asked()[0].request.handoff is None
            reason = "prefill_failed_local"
            assert await moved(before, fleet, "transload_fallbacks_total", reason=reason) == 1
        else:
            assert answer.status_code == fault.status
            assert fleet.d.asked() == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_another_engine_stands_by(api: Api, stream: bool, leg: Leg, fault: Fault) -> None:
    """What an engine is to blame for is mended elsewhere, unless the client has a byte."""
    async with faulty_pair(leg, fault) as fleet:
        before = await fleet.router.metrics()
        answer = await ask(fleet, api, stream=stream, delay_s=fault.delay_s)
        pool = fleet.prefill if leg is Leg.PREFILL else fleet.decode
        is_cut = leg is Leg.DECODE and stream and fault.name.endswith("in_body")
        is_client_error = fault.status in (400, 429)
        # vLLM's 500 on decode is how a failed load shows, which a fresh prefill mends.
        is_passed = is_client_error or (leg is Leg.PREFILL and fault.status == 500)
        retried = await moved(before, fleet, "transload_retries_total")
        if is_cut:
            assert answer.status_code == 200
            assert retried == 0
            assert len(pool[1].asked()) == 0
        elif is_passed:
            assert answer.status_code == fault.status
            assert retried == 0
            assert pool[1].asked() == []
            assert "x-should-retry" not in answer.headers
        else:
            assert answer.status_code == 200, answer.text
            served = fleet.decode[1] if leg is Leg.DECODE else fleet.d
            assert answer.content == bytes(served.asked()[-1].sent)
            assert answer.headers["x-transload-path"] == "disaggregated"
            assert answer.headers[f"x-transload-{leg}"] == f"{leg}-1"
            # Nobody read the prompt, or the handoff is used up: prefill reads it again.
            num_prefills = sum(len(engine.asked()) for engine in fleet.prefill)
            is_refused = fault is REFUSED
            assert num_prefills == (1 if is_refused else 2)
            assert retried == (0 if is_refused and leg is Leg.PREFILL else 1)
        handoffs = [e.request.handoff for engine in fleet.decode for e in engine.asked()]
        assert len(set(handoffs)) == len(handoffs), "a handoff was presented twice"


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_both_engines_fail(api: Api, stream: bool, leg: Leg) -> None:
    """One retry, then the error, and SDKs are told that the retrying was done."""
    async with serve_fleet(num_prefill=3, num_decode=3) as fleet:
        for engine in fleet.prefill if leg is Leg.PREFILL else fleet.decode:
            engine.by_leg[leg] = behaviours.refuse(503)
        answer = await ask(fleet, api, stream=stream)
        assert answer.status_code == 503
        assert answer.headers["x-should-retry"] == "false"
        pool = fleet.prefill if leg is Leg.PREFILL else fleet.decode
        assert sum(len(engine.asked()) for engine in pool) == 2
        assert json.loads(answer.content)


@asynccontextmanager
async def faulty_pair(leg: Leg, fault: Fault) -> AsyncIterator[Fleet]:
    """Two engines in the leg's pool; the faulty one is asked first, for it has no load."""
    num = (2, 1) if leg is Leg.PREFILL else (1, 2)
    async with serve_fleet(*num) as fleet:
        pool = fleet.prefill if leg is Leg.PREFILL else fleet.decode
        await break_engine(pool[0], leg, fault)
        # Until the first request is through, the second engine looks busy.
        loads = fleet.router.app.state.router.load
        member = fleet.router.app.state.router.fleet.engine(f"{leg}-1")
        reservation = loads.reserve(member, 1000)
        try:
            yield fleet
        finally:
            reservation.release()
