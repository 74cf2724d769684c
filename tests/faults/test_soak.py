"""Many streams at once, and many requests in a row: the router as a process that others watch.

Engines and clients live in the test's process, so that the router's memory is its own.
"""

import asyncio
import os
import random
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from support import behaviours, health_watch
from support.command import Command, address, command
from support.ledger import Ledger
from support.raw_client import post, raw_client
from support.router_server import Metrics
from support.scripted_engine import Behaviour, Leg, ScriptedEngine, running
from support.vllm_api import APIS, CHAT, dump
from support.vllm_behaviour import VllmBehaviour
from support.waiting import soon, until

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
NUM_ROUNDS = 5
# Streams that begin at the same instant.
BURST = 150
# What an allocator may keep of a load's peak; a leak of 1 kB a request is 20 MB.
MAX_GROWTH_BYTES = 12 << 20


class Soaked:
    """The process under load."""

    def __init__(self, it: Command, url: str, p: ScriptedEngine, d: ScriptedEngine) -> None:
        self.it = it
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.p = p
        self.d = d

    @property
    def resident_bytes(self) -> int:
        fields = Path(f"/proc/{self.it.process.pid}/statm").read_text().split()
        return int(fields[1]) * PAGE_BYTES

    @property
    def num_open_files(self) -> int:
        return len(list(Path(f"/proc/{self.it.process.pid}/fd").iterdir()))

    async def assert_empty(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=10) as client:
            async with asyncio.timeout(10):
                while True:
                    scrape = Metrics((await client.get("/metrics")).text)
                    left = [
                        *scrape.nonzero("transload_engine_requests_in_flight"),
                        *scrape.nonzero("transload_engine_reserved_tokens"),
                        *scrape.nonzero("transload_requests_in_flight"),
                    ]
                    if not left:
                        break
        await until(lambda: self.p.is_idle and self.d.is_idle, "engines idle")
        await until(lambda: not self.p.ledger.pinned, "handoffs settled")
        assert self.p.ledger.faults() == []


@asynccontextmanager
async def soaked() -> AsyncIterator[Soaked]:
    """A router process between two engines of this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16_384)), hard))
    ledger = Ledger()
    async with (
        running(ScriptedEngine("p", ledger, VllmBehaviour())) as p,
        running(ScriptedEngine("d", ledger, VllmBehaviour())) as d,
        command(
            *("serve", "--port", "0", "--no-handoff-probe", "--policy", "least-loaded"),
            *("--prefill", p.url, "--decode", d.url, "--health-interval-s", "3600"),
        ) as it,
    ):
        # What the load makes it say is read, so that it never waits for us.
        url = address(await it.line_with("listens on"))
        reading = asyncio.create_task(_drain(it))
        try:
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                async with asyncio.timeout(30):
                    while (await client.get("/readyz")).status_code != 200:
                        pass
            yield Soaked(it, url, p, d)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _drain(it: Command) -> None:
    assert it.process.stderr is not None
    while await it.process.stderr.read(1 << 16):
        pass


@asynccontextmanager
async def watched_health(s: Soaked) -> AsyncIterator[list[float]]:
    """Ask for health from another process within the block; the slowest answer, behind it."""
    watch = await asyncio.create_subprocess_exec(
        sys.executable,
        health_watch.__file__,
        *("127.0.0.1", str(s.port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    slowest_s: list[float] = []
    try:
        yield slowest_s
    finally:
        # Its input ends here: that is its sign to stop.
        out, _ = await watch.communicate(b"")
    slowest_s.append(float(out))


async def many_streams(num_streams: int, health_within_s: float) -> None:
    """All open at once, each event of all before the next of any; somebody asks for health."""
    async with soaked() as s:
        gates = {number: asyncio.Event() for number in range(NUM_ROUNDS)}
        s.d.by_leg[Leg.DECODE] = behaviours.gated_stream(gates)
        request = post(CHAT.path, dump(CHAT.request(stream=True)))
        num_seen = 0

        async def client() -> bytes:
            nonlocal num_seen
            async with raw_client(s.port) as raw:
                await raw.send(request)
                assert (await soon(raw.reader.readuntil(b"\r\n\r\n"), 120))[9:12] == b"200"
                body = b""
                while chunk := await read_chunk(raw.reader):
                    body += chunk
                    num_seen += 1
                return body

        async def all_see(num_events: int) -> None:
            await until(lambda: num_seen >= num_events, f"{num_events} events", 60)

        async with watched_health(s) as slowest_s:
            clients: list[asyncio.Task[bytes]] = []
            while len(clients) < num_streams:
                clients += [asyncio.create_task(client()) for _ in range(BURST)]
                await soon(s.d.next_exchange(len(clients), Leg.DECODE), 60)
            for number, gate in gates.items():
                gate.set()
                await all_see(num_streams * (number + 1))
            bodies = await soon(asyncio.gather(*clients), 120)
        assert all(CHAT.done in body for body in bodies)
        assert len({body.split(b'"id":"')[1][:20] for body in bodies}) == num_streams
        assert slowest_s[0] < health_within_s
        await s.assert_empty()


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await soon(reader.readline(), 120), 16)
    return (await reader.readexactly(size + 2))[:-2]


FAULTS: tuple[tuple[Leg, Behaviour], ...] = (
    (Leg.PREFILL, behaviours.refuse(400)),
    (Leg.PREFILL, behaviours.refuse(503)),
    (Leg.PREFILL, behaviours.reset_before_header),
    (Leg.DECODE, behaviours.refuse(500)),
    (Leg.DECODE, behaviours.close_before_header),
    (Leg.DECODE, behaviours.die_in_body(3)),
)


async def many_requests(num_requests: int, num_at_once: int = 16) -> None:
    """Good, failed and abandoned ones, all endpoints: memory stays, tables end empty."""
    chance = random.Random(20)
    async with soaked() as s, httpx.AsyncClient(base_url=s.url, timeout=30) as client:

        async def ask() -> None:
            api = chance.choice(APIS)
            body = dump(api.request(stream=chance.random() < 0.5))
            dice = chance.random()
            if dice < 0.2:
                leg, fault = chance.choice(FAULTS)
                (s.p if leg is Leg.PREFILL else s.d).script.append(fault)
            if dice > 0.8:
                async with raw_client(s.port) as raw:
                    await raw.send(post(api.path, body))
                    if chance.random() < 0.7:
                        await s.p.next_exchange(max(1, len(s.p.asked()) + chance.randrange(2)))
                    raw.reset()
            else:
                await client.post(api.path, content=body)

        async def run(count: int) -> None:
            left = iter(range(count))

            async def worker() -> None:
                for _ in left:
                    await ask()

            await asyncio.gather(*(worker() for _ in range(num_at_once)))
            for engine in (s.p, s.d):
                engine.script.clear()
            await s.assert_empty()
            for engine in (s.p, s.d):
                engine.clear()
            s.p.ledger.clear()

        sizes = []
        for _ in range(5):
            await run(num_requests // 5)
            sizes.append(s.resident_bytes)
        # The first fifth fills caches and pools; from then on nothing may grow with requests.
        assert max(sizes[1:]) - sizes[0] < MAX_GROWTH_BYTES, sizes
        await client.aclose()
        assert s.num_open_files < 100


@pytest.mark.timeout(120)
async def test_a_hundred_and_fifty_streams() -> None:
    # Beside three other workers; the full size holds the second.
    await many_streams(150, health_within_s=3.0)


@pytest.mark.timeout(120)
async def test_a_thousand_requests() -> None:
    await many_requests(1_000)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_fifteen_hundred_streams() -> None:
    await many_streams(1_500, health_within_s=1.0)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
async def test_twenty_thousand_requests() -> None:
    await many_requests(20_000)
