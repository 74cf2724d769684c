"""The router under test: the real application on the real server, in this process."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from support.ledger import Ledger
from support.scripted_engine import Behaviour, ScriptedEngine, running
from support.vllm_behaviour import VllmBehaviour
from support.waiting import until
from transload_router.app import create_app
from transload_router.app.line import Line
from transload_router.core.membership import Health
from transload_router.io.tcp import watch_peer
from transload_router.settings import Settings

# Faults become visible after these; everything else is a matter of milliseconds.
QUICK = {
    "connect_timeout_s": 3.0,
    "response_header_timeout_s": 0.4,
    "idle_timeout_s": 0.4,
    "client_stall_timeout_s": 0.5,
    "health_interval_s": 3600.0,
    "handoff_probe": False,
    # Splits whatever may be split; by cost the short prompts of tests would be decode's alone.
    "policy": "least-loaded",
}


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """One scrape of `/metrics`; lines are read only when asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """(labels, value) of each sample of exactly that name."""
        found = []
        for line in self.text.splitlines():
            if line.startswith((name + "{", name + " ")):
                labels, _, value = line[len(name) :].rpartition(" ")
                found.append((dict(_LABEL.findall(labels)), float(value)))
        return found

    def value(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name that carry these labels."""
        return sum(v for own, v in self.samples(name) if labels.items() <= own.items())

    def since(self, before: "Metrics", name: str, **labels: str) -> float:
        """How far that sum went between two scrapes."""
        return self.value(name, **labels) - before.value(name, **labels)

    def label_values(self, name: str, label: str) -> set[str]:
        """Every value that a label has."""
        return {own[label] for own, _ in self.samples(name)}

    def nonzero(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Samples of that name that are not zero."""
        return [sample for sample in self.samples(name) if sample[1]]


class _Server(uvicorn.Server):
    """A server that leaves the process's signals alone and ends without polling."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        state = self.server_state
        with contextlib.suppress(AssertionError):
            await until(lambda: not state.connections and not state.tasks, "all served", 1)
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await self.lifespan.shutdown()


@dataclass(eq=False)
class RunningRouter:
    """A router that listens.

    Attributes:
        url: Base URL.
        app: The application; `app.state.router` holds its tables.
        client: For requests that need no care about bytes.
    """

    url: str
    port: int
    app: Any
    client: httpx.AsyncClient
    server: uvicorn.Server

    async def metrics(self) -> Metrics:
        """Scrape."""
        answer = await self.client.get("/metrics")
        assert answer.status_code == 200, answer.text
        return Metrics(answer.text)

    @property
    def num_legs(self) -> int:
        """Legs that hold a reservation."""
        return int(self.app.state.router.load.num_requests())

    async def saw_leave(self, leave: Callable[[], None]) -> None:
        """Have a client leave, and wait until the router was told."""
        connections = self.server.server_state.connections
        num_before = len(connections)
        leave()
        await until(lambda: len(connections) < num_before, "the client's connection lost")
        # The server's message reaches the request's task with the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    async def assert_empty(self) -> None:
        """Every table is empty and every gauge zero, now or in a moment."""
        await until(lambda: self.num_legs == 0, "no reservation left")
        for load in _loads(self.app):
            assert (load.num_requests, load.num_tokens) == (0, 0)
            assert (load.num_prefilling, load.num_prefill_tokens, load.queue) == (0, 0, {})
            assert (load.num_decoding, load.num_context_tokens) == (0, 0)
        scrape = await self.metrics()
        for gauge in ("transload_requests_in_flight", "transload_engine_requests_in_flight"):
            assert scrape.nonzero(gauge) == [], gauge


def _loads(app: Any) -> list[Any]:
    return [load for _, load in app.state.router.load.items()]


@dataclass(eq=False)
class Fleet:
    """A router and the engines behind it, for one test.

    Attributes:
        pinned: Handoffs that rightly wait for their lease when the test ends.
    """

    router: RunningRouter
    prefill: list[ScriptedEngine]
    decode: list[ScriptedEngine]
    pinned: int = 0
    engines: list[ScriptedEngine] = field(init=False)

    def __post_init__(self) -> None:
        self.engines = [*self.prefill, *self.decode]

    @property
    def p(self) -> ScriptedEngine:
        """The first prefill engine."""
        return self.prefill[0]

    @property
    def d(self) -> ScriptedEngine:
        """The first decode engine."""
        return self.decode[0]

    async def renew(self) -> None:
        """For tests that share a fleet: stopped engines are back, scripts and records empty."""
        for engine in self.engines:
            engine.clear()
            if not engine.is_listening:
                await engine.start()
        self.engines[0].ledger.clear()
        self.pinned = 0
        for member in self.router.app.state.router.fleet.members.values():
            member.health = Health.UP

    async def assert_settled(self) -> None:
        """Engines idle, tables empty, each handoff back exactly once."""
        await until(
            lambda: all(engine.is_idle for engine in self.engines),
            f"engines idle; still playing {[e.busy for e in self.engines]}",
            within_s=5,
        )
        await self.router.assert_empty()
        ledger = self.engines[0].ledger
        with contextlib.suppress(AssertionError):
            await until(lambda: len(ledger.pinned) == self.pinned, "handoffs settled", within_s=5)
        assert len(ledger.pinned) == self.pinned, ledger.pinned
        assert ledger.faults() == []
        for engine in self.engines:
            assert engine.protocol_errors == [], engine.name
            assert engine.behaviour_errors == [], engine.name


@contextlib.asynccontextmanager
async def serve_router(settings: Settings) -> AsyncIterator[RunningRouter]:
    """A router that listens within the block, on a free port."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=Line,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
    )
    server = _Server(config)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    watch_peer(sock, settings.client_stall_timeout_s)
    sock.listen(2048)
    sock.setblocking(False)
    port = sock.getsockname()[1]
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await until(lambda: server.started or serving.done(), "the router listens")
        if serving.done():
            serving.result()
            raise AssertionError("the router ended before it served")
        url = f"http://127.0.0.1:{port}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx.AsyncClient(
            base_url=url, timeout=20, limits=limits, trust_env=False, verify=False
        ) as client:
            yield RunningRouter(url, port, app, client, server)
    finally:
        server.ending.set()
        await serving
        sock.close()


@contextlib.asynccontextmanager
async def serve_fleet(
    num_prefill: int = 1,
    num_decode: int = 1,
    *,
    prefill_urls: Sequence[str] = (),
    decode_urls: Sequence[str] = (),
    behave: Callable[[str], Behaviour] = lambda _name: VllmBehaviour(),
    **settings: Any,
) -> AsyncIterator[Fleet]:
    """A router in front of vLLM-like engines; checked to be settled when the block ends well.

    Args:
        num_prefill: Scripted engines in the pool.
        num_decode: Scripted engines in the pool.
        prefill_urls: Further addresses in the pool, behind the scripted ones.
        decode_urls: Further addresses in the pool, behind the scripted ones.
        behave: What an engine does by default, by its name (p0, d0).
        **settings: Over `QUICK`.
    """
    ledger = Ledger()
    prefill = [ScriptedEngine(f"p{i}", ledger, behave(f"p{i}")) for i in range(num_prefill)]
    decode = [ScriptedEngine(f"d{i}", ledger, behave(f"d{i}")) for i in range(num_decode)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in (*prefill, *decode):
            await stack.enter_async_context(running(engine))
        values = {
            **QUICK,
            "prefill": [*(engine.url for engine in prefill), *prefill_urls],
            "decode": [*(engine.url for engine in decode), *decode_urls],
            **settings,
        }
        router = await stack.enter_async_context(serve_router(Settings(**values)))
        members = router.app.state.router.fleet.members.values()
        await until(
            lambda: all(m.health is not Health.JOINING for m in members), "each engine was probed"
        )
        fleet = Fleet(router, prefill, decode)
        yield fleet
        await fleet.assert_settled()
