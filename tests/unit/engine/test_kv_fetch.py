"""The reads of one load, with a client whose reads end when a test says so."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.transport_world import LARGE, TOKENS_PER_BLOCK, descriptor
from support.waiting import soon, until
from transload_abi import Descriptor
from transload_abi.errors import Refused
from transload_abi.wire.messages import Table
from transload_connector.transports.errors import PeerFault
from transload_connector.transports.mover import Mover
from transload_connector.transports.mover_parts import CHUNK_BYTES
from transload_connector.transports.reader_requests import ReadFuture
from transload_engine.core.handoff import Handoff
from transload_engine.core.scheduler import Load
from transload_engine.server import kv_fetch
from transload_engine.server.kv_fetch import BlockReads, KvMemory, UnderWay

BLOCK_BYTES = LARGE.pools[0].block_bytes
NUM_LOADED = CHUNK_BYTES // BLOCK_BYTES + 1
"""Blocks of two chunks."""

HANDOFF = Handoff("p", "cmpl-1", "127.0.0.1", 7000, NUM_LOADED, None, "lease", "p")
BROKEN = PeerFault("p:1", "read", "a wrong checksum")


class FakeClient:
    """Reads that wait; what is cancelled ends only when a test ends it."""

    def __init__(self) -> None:
        self.reads: list[ReadFuture] = []
        self.sinks: list[Sequence[memoryview]] = []
        self.asked: list[Mapping[str, Any]] = []
        self.cancelled: list[int] = []

    def read(
        self, _handoff: object, _group: str, _blocks: object, sink: Any, **asked: Any
    ) -> ReadFuture:
        future, number = ReadFuture(), len(self.reads)
        future.on_cancel = lambda: self.cancelled.append(number)
        self.reads.append(future)
        self.sinks.append(sink)
        self.asked.append(asked)
        return future

    def end(self, number: int) -> None:
        """A read has brought ones."""
        for view in self.sinks[number]:
            view[:] = b"\1" * len(view)
        self.reads[number].set_result(1)


class World:
    """A load of the blocks behind the null block, from a holder of the same placement."""

    def __init__(self, ours: Descriptor = LARGE, holder: Descriptor = LARGE) -> None:
        self.client = FakeClient()
        self.pool = torch.zeros(ours.pools[0].num_bytes, dtype=torch.uint8)
        memory = KvMemory(ours, {"kv": self.pool})
        client: Any = self.client
        self.reads = BlockReads(client, memory, allows_lossy=False)
        self.under_way = UnderWay()
        tokens = NUM_LOADED * TOKENS_PER_BLOCK
        blocks = tuple(range(1, 1 + NUM_LOADED))
        self.load = Load("r", HANDOFF, len(blocks), 0.0, blocks, tokens, 0, ())
        self.opened: Any = SimpleNamespace(
            descriptor=holder, tables=(Table(0, NUM_LOADED),), handoff="cmpl-1"
        )

    def begin(self) -> asyncio.Task[int]:
        fetching = self.reads.fetch(self.load, self.opened, self.under_way)
        return asyncio.create_task(fetching)

    async def asked_for(self, count: int) -> None:
        await until(lambda: len(self.client.reads) == count, f"{count} reads")

    def close(self) -> None:
        """Let nobody wait."""
        for future in self.client.reads:
            if not future.done():
                future.end_cancelled()
        self.reads.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    world.close()


async def test_all_chunks_come_to_their_blocks(world: World) -> None:
    fetching = world.begin()
    await world.asked_for(2)
    for number in (1, 0):
        assert not fetching.done()
        world.client.end(number)
    assert await soon(fetching) == NUM_LOADED * BLOCK_BYTES
    end = (1 + NUM_LOADED) * BLOCK_BYTES
    filled = [bool(part.all()) for part in world.pool.tensor_split([BLOCK_BYTES, end])]
    assert filled == [False, True, False]
    assert all(each["checksums"] for each in world.client.asked)


async def test_a_failure_is_told_only_when_nothing_is_written_any_more(world: World) -> None:
    fetching = world.begin()
    await world.asked_for(2)
    world.client.reads[0].set_exception(BROKEN)
    await until(lambda: world.client.cancelled, "the other read is cancelled")
    assert world.client.cancelled == [1]
    assert not fetching.done()
    world.client.reads[1].end_cancelled()
    with pytest.raises(PeerFault, match="a wrong checksum"):
        await soon(fetching)


async def test_a_load_that_is_dropped_ends_with_its_reads(world: World) -> None:
    fetching = world.begin()
    await world.asked_for(2)
    world.under_way.drop()
    assert world.client.cancelled == [0, 1]
    for number in (0, 1):
        assert not fetching.done()
        world.client.reads[number].end_cancelled()
    with pytest.raises(CancelledError):
        await soon(fetching)


async def test_no_more_chunks_are_under_way_than_there_is_memory_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_fetch, "MAX_CHUNKS", 1)
    fetching = world.begin()
    await world.asked_for(1)
    world.client.end(0)
    await world.asked_for(2)
    world.client.end(1)
    await soon(fetching)


async def test_a_load_that_is_dropped_between_chunks_asks_for_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_fetch, "MAX_CHUNKS", 1)
    fetching = world.begin()
    await world.asked_for(1)
    world.under_way.drop()
    world.client.end(0)
    with pytest.raises(CancelledError):
        await soon(fetching)
    assert len(world.client.reads) == 1


async def test_blocks_that_do_not_convert_are_not_asked_for() -> None:
    world = World(holder=descriptor(head_dim=64))
    with pytest.raises(Refused):
        await soon(world.begin())
    assert world.client.reads == []
    world.close()


async def test_a_holders_blocks_are_compiled_for_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []
    compile_ = Mover.compile

    def count(*given: Any, **named: Any) -> Mover:
        compiled.append(given)
        return compile_(*given, **named)

    monkeypatch.setattr(Mover, "compile", count)
    for round_ in range(2):
        fetching = world.begin()
        await world.asked_for(2 * round_ + 2)
        world.client.end(2 * round_)
        world.client.end(2 * round_ + 1)
        await soon(fetching)
    assert len(compiled) == 1
