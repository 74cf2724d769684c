"""A release is read by one engine, once; what is not known to be freed is the lease's."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import pytest

from support import behaviours
from support.behaviours import Gate
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Behaviour, Exchange, Leg
from support.vllm_api import CHAT, dump
from support.waiting import PATIENCE_S, soon, until
from transload_router.app import release, state
from transload_router.app.release import release_handoff
from transload_router.app.request import GenerateRequest, read_request
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import ENDPOINTS
from transload_router.core.membership import Verdict
from transload_router.core.types import Headers

CLIENT: Headers = [
    (b"authorization", b"Bearer client"),
    (b"content-type", b"application/json; odd"),
    (b"accept", b"text/event-stream"),
    (b"x-request-id", b"the client's"),
]


@dataclass(eq=False)
class Scene:
    """A handoff that prefill issued and nobody was shown, and the router that holds it."""

    fleet: Fleet
    router: Router
    request: GenerateRequest
    handoff: bytes

    async def release(self, preferred: str | None = "decode-0") -> None:
        await release_handoff(self.router, self.request, self.handoff, preferred)

    @property
    def num_sent(self) -> list[int]:
        """Releases that each decode engine read."""
        return [len(engine.asked(Leg.RELEASE)) for engine in self.fleet.decode]

    def assert_counted(self, released: str) -> None:
        counted = self.router.metrics.released
        assert {name: counted.value(name) for name in ("request", "lease")} == {
            "request": int(released == "request"),
            "lease": int(released == "lease"),
        }


@asynccontextmanager
async def scene(num_decode: int = 2, **settings: Any) -> AsyncIterator[Scene]:
    async with serve_fleet(1, num_decode, **settings) as fleet:
        router: Router = fleet.router.app.state.router
        handoff = fleet.p.ledger.new("p0")
        fleet.p.ledger.issued.append(handoff)
        request = read_request(
            router,
            ENDPOINTS[CHAT.path],
            CHAT.path,
            CLIENT,
            dump(CHAT.request()),
            perf_counter(),
            lambda: None,
        )
        yield Scene(fleet, router, request, handoff)
        for engine in fleet.decode:
            await until(lambda engine=engine: engine.is_idle, "hung up on")  # type: ignore[misc]


async def test_the_engine_that_was_chosen_releases() -> None:
    async with scene(3) as s:
        await s.release("decode-1")
        assert s.num_sent == [0, 1, 0]
        s.assert_counted("request")


async def test_what_is_sent() -> None:
    """The client's credentials, one content type, an id of its own, the handoff to the byte."""
    async with scene(1) as s:
        await s.release()
        sent = s.fleet.d.asked(Leg.RELEASE)[0].request
        assert (sent.method, sent.target) == ("POST", "/v1/completions")
        assert sent.handoff == s.handoff
        assert sent.json()["model"] == "tiny-model"
        assert sent.header("authorization") == "Bearer client"
        assert sent.header("content-type") == "application/json"
        assert sent.header("accept") is None
        own_id = sent.header("x-request-id")
        assert own_id is not None
        assert "client" not in own_id


@pytest.mark.parametrize(
    ("status", "released"),
    [
        (400, "request"),
        (404, "request"),
        (200, "lease"),
        (401, "lease"),
        (403, "lease"),
        (422, "lease"),
        (429, "lease"),
        (500, "lease"),
        (503, "lease"),
    ],
)
async def test_only_a_rejection_is_a_release(status: int, released: str) -> None:
    """And an answer of any kind is the last: another engine would release a second time."""
    async with scene() as s:
        s.fleet.d.by_leg[Leg.RELEASE] = behaviours.answer(status, b"{}")
        await s.release()
        assert s.num_sent == [1, 0]
        s.assert_counted(released)


async def reset_in_head(exchange: Exchange) -> None:
    await exchange.write(b"HTTP/1.1 400 X\r\ncontent-le")
    exchange.reset()


@pytest.mark.parametrize(
    "fault",
    [
        behaviours.hang,
        behaviours.reset_before_header,
        behaviours.close_before_header,
        reset_in_head,
        behaviours.raw(b"HTTP/1.1 400 X\r\ncontent-length: 9\r\n\r\n{", then="close"),
        behaviours.raw(b"HTTP/1.1 400 X\r\ncontent-length: 9\r\n\r\n{", then="hang"),
        behaviours.raw(b"no http\r\n\r\n", then="close"),
    ],
    ids=["hang", "reset", "close", "half_head", "half_body", "stalls_in_body", "no_http"],
)
@pytest.mark.parametrize("is_kept", [False, True], ids=["fresh", "kept"])
async def test_sent_and_unanswered_goes_once(fault: Behaviour, is_kept: bool) -> None:
    """On a kept connection, too, where the death of an idle one would look the same."""
    async with scene() as s:
        if is_kept:
            await warm(s, "decode-0")
        num_connections = len(s.fleet.d.connections) + (not is_kept)
        s.fleet.d.by_leg[Leg.RELEASE] = fault
        await s.release()
        assert s.num_sent == [1, 0]
        s.assert_counted("lease")
        assert len(s.fleet.d.connections) == num_connections


async def warm(s: Scene, engine_id: str) -> None:
    """Leave an idle connection to an engine."""
    engine = s.router.fleet.engine(engine_id)
    exchange = await s.router.upstream.send(engine, "GET", "/version", b"", b"")
    await exchange.read_all(1000)
    exchange.release()


async def test_silence_has_an_end_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the operator allows generations."""
    monkeypatch.setattr(release, "RELEASE_TIMEOUT_S", 0.1)
    async with scene(response_header_timeout_s=3600.0, idle_timeout_s=3600.0) as s:
        s.fleet.d.by_leg[Leg.RELEASE] = behaviours.hang
        await soon(s.release())
        assert s.num_sent == [1, 0]
        s.assert_counted("lease")


async def test_an_engine_that_was_not_reached_saw_nothing() -> None:
    async with scene() as s:
        await s.fleet.d.stop()
        await s.release()
        assert s.num_sent == [0, 1]
        s.assert_counted("request")


async def test_after_two_that_were_not_reached_the_lease_frees_it() -> None:
    async with scene(3) as s:
        await s.fleet.decode[0].stop()
        await s.fleet.decode[1].stop()
        # Candidates stand in the order of the pool.
        await s.release()
        assert s.num_sent == [0, 0, 0]
        s.assert_counted("lease")
        s.fleet.pinned = 1


async def test_unreached_then_silent_ends_there() -> None:
    async with scene(3) as s:
        await s.fleet.d.stop()
        s.fleet.decode[1].by_leg[Leg.RELEASE] = behaviours.reset_before_header
        await s.release()
        assert s.num_sent == [0, 1, 0]
        s.assert_counted("lease")


async def test_engines_known_to_be_down_are_not_asked() -> None:
    async with scene() as s:
        s.router.fleet.mark_down("decode-0", "x")
        await s.release()
        assert s.num_sent == [0, 1]
        s.assert_counted("request")


async def test_nobody_is_up() -> None:
    async with scene(1) as s:
        s.router.fleet.mark_down("decode-0", "x")
        await s.release()
        assert s.num_sent == [0]
        s.assert_counted("lease")
        s.fleet.pinned = 1


@pytest.mark.parametrize(
    ("verdict", "released"),
    [(Verdict.UNKNOWN, "request"), (Verdict.WORKS, "request"), (Verdict.MISSING, "lease")],
)
async def test_a_release_that_was_seen_to_free_nothing(verdict: Verdict, released: str) -> None:
    async with scene(1) as s:
        s.router.fleet.judge_release("decode-0", verdict)
        await s.release()
        assert s.num_sent == [1]
        s.assert_counted(released)


# At the end


async def test_stop_waits_for_releases() -> None:
    async with scene() as s:
        gate = Gate()
        s.fleet.d.by_leg[Leg.RELEASE] = gate.before()
        s.router.spawn(s.release())
        await soon(gate.reached.wait())
        stopping = asyncio.create_task(s.router.stop())
        done, _ = await asyncio.wait([stopping], timeout=0.05)
        assert not done
        gate.opened.set()
        await soon(stopping)
        s.assert_counted("request")
        assert s.router.num_background_tasks == 0
        assert s.router.defects == []


async def test_stop_waits_only_so_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A release cut off is the lease's, and no defect."""
    caplog.set_level(logging.WARNING, "transload")
    monkeypatch.setattr(state, "STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr(release, "RELEASE_TIMEOUT_S", 1.5 * PATIENCE_S)
    async with scene(response_header_timeout_s=3600.0) as s:
        s.fleet.d.by_leg[Leg.RELEASE] = behaviours.hang
        s.router.spawn(s.release())
        await s.fleet.d.next_exchange(1, Leg.RELEASE)
        await soon(s.router.stop())
        s.assert_counted("lease")
        assert s.num_sent == [1, 0]
        assert s.router.num_background_tasks == 0
        assert s.router.defects == []
        assert "prefill frees its blocks by lease" in caplog.text
