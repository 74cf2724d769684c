"""Reference engines as processes that are killed and stopped, before and while blocks are read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from support.reference_engines import Asked, Handoff, serve_reference, settle, write_model
from support.reference_oracle import Oracle
from support.reference_process import EngineProcess, engine_processes
from support.reference_proxy import Proxy, proxy
from support.tiny_models import some_tokens
from support.waiting import soon
from transload_abi.wire.deadlines import ReaderDeadlines

COUNT = 8
PROMPT = some_tokens(300)
LEASE_S = 1.0
TCP = ("--kv-transport", "tcp")
PREFILL = (*TCP, "--kv-layout", "k-transposed", "--kv-lease-duration", str(LEASE_S))
DECODE = (*TCP, "--kv-layout", "separate", "--block-size", "8", "--no-enable-prefix-caching")
QUICK = ReaderDeadlines(opening_s=0.5, answer_s=0.5, stall_s=0.5, read_s=5.0)
# Python with torch took 2-6 s to start on 2 shared cores; three start at once.
START_S = 50.0

pytestmark = pytest.mark.timeout(START_S + 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


@pytest.fixture(scope="module")
def processes(folder: Path) -> Iterator[list[EngineProcess]]:
    """Two that read prompts and one that answers; the first two tests that want one, end it."""
    prefill, decode = (folder, PREFILL), (folder, DECODE)
    with engine_processes(prefill, prefill, decode) as found:
        yield found


@contextlib.asynccontextmanager
async def through(where: Handoff) -> AsyncIterator[Proxy]:
    """A proxy to the engine of a handoff."""
    async with proxy(where["remote_host"], where["remote_port"]) as between:
        yield between


async def load_size(p: Asked, d: Asked, between: Proxy) -> int:
    """Bytes that come with one load, in a session that there is already."""
    for _ in range(2):
        before = between.num_bytes
        handoff = {**await p.prefill(PROMPT), "remote_port": between.port}
        await d.tokens(PROMPT, kv_transfer_params=handoff)
        await settle(p, d)
    return between.num_bytes - before


async def test_prefill_stops_and_is_killed_before_its_blocks_are_read(
    folder: Path, oracle: Oracle, processes: list[EngineProcess]
) -> None:
    process = processes[0]
    async with (
        process.asked() as p,
        serve_reference(folder, *DECODE, deadlines=QUICK) as d,
        serve_reference(folder, *DECODE, "--kv-load-failure-policy", "fail") as strict,
    ):
        handoffs = [await p.prefill(PROMPT) for _ in range(3)]
        process.stop()
        asked = d.tokens(PROMPT, kv_transfer_params=handoffs[0])
        assert await soon(asked) == oracle.alone(PROMPT, COUNT)
        assert await d.failures() == {("timeout", ""): 1}
        process.go_on()
        await settle(p)
        process.kill()
        asked = d.tokens(PROMPT, kv_transfer_params=handoffs[1])
        assert await soon(asked) == oracle.alone(PROMPT, COUNT)
        assert await d.failures() == {("timeout", ""): 1, ("unreachable", ""): 1}
        refused = await soon(strict.complete(PROMPT, kv_transfer_params=handoffs[2]))
        assert refused.status_code == 500
        await settle(d, strict)


async def test_prefill_is_killed_while_its_blocks_are_read(
    folder: Path, oracle: Oracle, processes: list[EngineProcess]
) -> None:
    process = processes[1]
    async with (
        process.asked() as p,
        serve_reference(folder, *DECODE) as d,
        through(await p.prefill([7])) as between,
    ):
        num_bytes = await load_size(p, d, between)
        between.hold_after(num_bytes // 2)
        handoff = {**await p.prefill(PROMPT), "remote_port": between.port}
        asked = asyncio.create_task(d.tokens(PROMPT, kv_transfer_params=handoff))
        await soon(between.is_holding.wait())
        process.kill()
        between.cut()
        assert await soon(asked) == oracle.alone(PROMPT, COUNT)
        assert await d.failures() == {("unreachable", ""): 1}
        await settle(d)


async def test_decode_is_killed_while_it_reads(
    folder: Path, oracle: Oracle, processes: list[EngineProcess]
) -> None:
    process = processes[2]
    async with (
        serve_reference(folder, *PREFILL) as p,
        process.asked() as d,
        through(await p.prefill([7])) as between,
    ):
        num_bytes = await load_size(p, d, between)
        between.hold_after(num_bytes // 2)
        handoff = {**await p.prefill(PROMPT), "remote_port": between.port}
        asked = asyncio.create_task(d.complete(PROMPT, kv_transfer_params=handoff))
        await soon(between.is_holding.wait())
        process.kill()
        with pytest.raises(httpx.TransportError):
            await soon(asked)
        await settle(p)
        ends = (await p.metrics()).value("transload_kv_handoffs_ended_total", end="expired")
        assert ends == 2
        assert await p.tokens(PROMPT) == oracle.alone(PROMPT, COUNT)
