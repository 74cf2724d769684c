"""Every leg x fault x endpoint x mode: the client's answer, what was left, what was counted.

The first half has one engine in each pool, so a fault decides the answer. In the second a
second engine stands beside the faulty one, and the client must not notice.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support import behaviours
from support.expect import assert_cut_stream, assert_own_error
from support.leaks import new_tcp_sockets, other_tasks, sockets
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Behaviour, Leg, ScriptedEngine
from support.vllm_api import APIS, Api
from support.waiting import until

# A second after the fault, that is, after the timeouts that make a silence one; and what a machine
# may stand still besides, with four workers on two cores.
AFTER_FAULT_S = 1.0 + 2.0
SILENCE_S = 0.2
TIMEOUTS: dict[str, Any] = {"response_header_timeout_s": SILENCE_S, "idle_timeout_s": SILENCE_S}
NUM_EVENTS_BEFORE = 2

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
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
    Fault("hang", "engine_timeout", 504, True, behaviours.hang, delay_s=SILENCE_S),
    Fault("reset", "engine_reset", 502, True, behaviours.reset_before_header),
    Fault("close", "engine_reset", 502, True, behaviours.close_before_header),
    Fault("reset_in_body", "engine_reset", 502, True, behaviours.die_in_body(NUM_EVENTS_BEFORE)),
    Fault("close_in_body", "engine_reset", 502, True, behaviours.die_in_body(how="close")),
    Fault("stall_in_body", "engine_timeout", 504, True, behaviours.stall_in_body(), SILENCE_S),
)

# Where the answer is mended the ways of dying no longer differ.
MENDED = tuple(
    fault
    for fault in FAULTS
    if fault.name not in ("429", "close", "close_in_body", "stall_in_body")
)


class Fleets:
    """Fleets by their settings, started once."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._fleets: dict[str, Fleet] = {}

    @asynccontextmanager
    async def row(self, num_engines: int = 1, **settings: Any) -> AsyncIterator[Fleet]:
        """A fleet as good as new for one row, and everything settled behind it."""
        key = f"{num_engines} {settings}"
        if key not in self._fleets:
            opened = serve_fleet(num_engines, num_engines, **TIMEOUTS, **settings)
            self._fleets[key] = await self._stack.enter_async_context(opened)
        fleet = self._fleets[key]
        await fleet.renew()
        before = other_tasks()
        yield fleet
        await fleet.assert_settled()
        await until(lambda: not other_tasks() - before, "tasks of the row ended")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleets() -> AsyncIterator[Fleets]:
    """The module's fleets; each starts when a row first asks for it."""
    before = sockets()
    async with AsyncExitStack() as stack:
        yield Fleets(stack)
    assert new_tcp_sockets(before) == {}, "sockets leaked"


async def break_engine(engine: ScriptedEngine, leg: Leg, fault: Fault) -> None:
    if fault.behaviour is None:
        await engine.stop()
    else:
        engine.by_leg[leg] = fault.behaviour


@asynccontextmanager
async def asking_first(fleet: Fleet, *engines: str) -> AsyncIterator[None]:
    """Within the block, all other engines look busy."""
    state = fleet.router.app.state.router
    reservations = [
        state.load.reserve(member.engine, 1000)
        for name, member in state.fleet.members.items()
        if name not in engines
    ]
    try:
        yield
    finally:
        for reservation in reservations:
            reservation.release()


async def ask(fleet: Fleet, api: Api, *, stream: bool, delay_s: float = 0.0) -> httpx.Response:
    """One request, answered in time."""
    async with asyncio.timeout(delay_s + AFTER_FAULT_S):
        return await fleet.router.client.post(
            api.path, json=api.request(stream=stream), headers={"x-transload-explain": "1"}
        )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_one_engine_a_pool(
    fleets: Fleets, api: Api, stream: bool, leg: Leg, fault: Fault
) -> None:
    async with fleets.row(on_empty_prefill="fail") as fleet:
        await break_engine(fleet.p if leg is Leg.PREFILL else fleet.d, leg, fault)
        before = await fleet.router.metrics()
        answer = await ask(fleet, api, stream=stream, delay_s=fault.delay_s)
        after = await fleet.router.metrics()

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
        assert after.since(before, "transload_errors_total", leg=leg, engine=engine) == 1, (
            "one fault, one error"
        )
        assert after.since(before, "transload_errors_total", leg=leg, kind=fault.kind) == 1
        code = "200" if is_cut else str(fault.status)
        assert after.since(before, "transload_requests_total", endpoint=api.name, code=code) == 1
        if leg is Leg.PREFILL:
            assert all(not engine.asked() for engine in fleet.decode), "decode was left alone"
        if fault is REFUSED and leg is Leg.DECODE:
            # Nobody is left to release through: the lease frees it, and that is counted.
            fleet.pinned = 1
            released = after.since(before, "transload_handoffs_released_total", released="lease")
            assert released == 1


async def test_no_prefill_engine_is_up(fleets: Fleets, api: Api, stream: bool) -> None:
    """The default is to let decode read the prompt, and to say so."""
    async with fleets.row() as fleet:
        await break_engine(fleet.p, Leg.PREFILL, REFUSED)
        before = await fleet.router.metrics()
        answer = await ask(fleet, api, stream=stream)
        after = await fleet.router.metrics()
        assert answer.status_code == 200
        assert answer.headers["x-transload-path"] == "local"
        assert answer.content == bytes(fleet.d.asked()[0].sent)
        assert fleet.d.asked()[0].request.json() == api.request(stream=stream)
        assert after.since(before, "transload_fallbacks_total", reason="empty_prefill") == 1
        assert after.since(before, "transload_paths_total", endpoint=api.name, path="local") == 1


@pytest.mark.parametrize("fault", MENDED, ids=lambda fault: fault.name)
async def test_prefill_failed_and_decode_may_read(
    fleets: Fleets, api: Api, stream: bool, fault: Fault
) -> None:
    """`on_prefill_failure: local` mends what the client is not to blame for."""
    async with fleets.row(on_prefill_failure="local", on_empty_prefill="fail") as fleet:
        await break_engine(fleet.p, Leg.PREFILL, fault)
        before = await fleet.router.metrics()
        answer = await ask(fleet, api, stream=stream, delay_s=fault.delay_s)
        after = await fleet.router.metrics()
        if fault is REFUSED:
            assert answer.status_code == 503
        elif fault.is_own or fault.status == 503:
            assert answer.status_code == 200, answer.text
            assert answer.content == bytes(fleet.d.asked()[0].sent)
            assert fleet.d.asked()[0].request.handoff is None
            reason = "prefill_failed_local"
            assert after.since(before, "transload_fallbacks_total", reason=reason) == 1
        else:
            assert answer.status_code == fault.status
            assert fleet.d.asked() == []


@pytest.mark.parametrize("fault", MENDED, ids=lambda fault: fault.name)
@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_another_engine_stands_by(
    fleets: Fleets, api: Api, stream: bool, leg: Leg, fault: Fault
) -> None:
    """What an engine is to blame for is mended elsewhere, unless the client has a byte."""
    async with fleets.row(2) as fleet, asking_first(fleet, "prefill-0", "decode-0"):
        pool = fleet.prefill if leg is Leg.PREFILL else fleet.decode
        await break_engine(pool[0], leg, fault)
        before = await fleet.router.metrics()
        answer = await ask(fleet, api, stream=stream, delay_s=fault.delay_s)
        after = await fleet.router.metrics()
        is_cut = leg is Leg.DECODE and stream and fault.name.endswith("in_body")
        is_client_error = fault.status in (400, 429)
        # vLLM's 500 on decode is how a failed load shows, which a fresh prefill mends.
        is_passed = is_client_error or (leg is Leg.PREFILL and fault.status == 500)
        retried = after.since(before, "transload_retries_total")
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
async def test_both_engines_fail(fleets: Fleets, api: Api, stream: bool, leg: Leg) -> None:
    """One retry, then the error, and SDKs are told that the retrying was done."""
    async with fleets.row(3) as fleet:
        for engine in fleet.prefill if leg is Leg.PREFILL else fleet.decode:
            engine.by_leg[leg] = behaviours.refuse(503)
        answer = await ask(fleet, api, stream=stream)
        assert answer.status_code == 503
        assert answer.headers["x-should-retry"] == "false"
        pool = fleet.prefill if leg is Leg.PREFILL else fleet.decode
        assert sum(len(engine.asked()) for engine in pool) == 2
        assert json.loads(answer.content)
