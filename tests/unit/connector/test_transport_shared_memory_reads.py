"""Blocks read where their holder has them: what counts, what does not, and what is read instead."""

import gc
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from support.abi_placements import PLACEMENTS, Shape
from support.transport_world import (
    GROUP,
    HOLDER_WAITS,
    OVERWRITTEN,
    TERMS,
    client,
    content,
    descriptor,
    open_,
    pair,
    soon,
    until,
)
from support.wire_payloads import blank, shared, tables, transfer
from transload_abi import Descriptor, PlanError
from transload_abi.wire import messages
from transload_abi.wire.ledger import Freed
from transload_connector.transports import reader_link, reader_maps, reader_shared
from transload_connector.transports.errors import LeaseGone, NotShared, PeerFault
from transload_connector.transports.holder_server import HolderServer
from transload_connector.transports.mover import Mover, Request
from transload_connector.transports.reader_client import ReaderClient
from transload_connector.transports.reader_maps import Locating, SharedBlocks
from transload_connector.transports.reader_requests import OpenHandoff
from transload_connector.transports.reader_shared import SharedMover
from transload_connector.transports.shared_memory import FOLDER, SharedPool, create_pool, map_pool

OURS = descriptor()
BLOCK_BYTES = OURS.pools[0].block_bytes
IDS = [9, 3, 4, 0, 40]
"""Of a handoff; 0 holds nothing."""

INTO = [5, 6, 7, 8, 9]


class SharedHolder:
    """A server whose pools are in shared memory, and what it overwrites when blocks are free."""

    def __init__(self, described: Descriptor, **options: Any) -> None:
        self.descriptor = described
        engine = f"tests {secrets.token_hex(8)}"
        self.pools: dict[str, SharedPool] = {}
        for pool in described.pools:
            self.pools[pool.id] = create_pool(engine, "g1", pool.id, pool.num_bytes)
            self.pools[pool.id].memory[:] = content(pool.num_bytes)
        options = {"name": "P", "generation": "g1", "deadlines": HOLDER_WAITS, **options}
        options = {"terms": TERMS, "on_freed": self._on_freed, **options}
        self.server = HolderServer(described, self.pools, **options)

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address

    def grant(self, handoff: str, blocks: Sequence[int]) -> None:
        """Under the lease `l-` and the handoff's name."""
        self.server.grant(handoff, f"l-{handoff}", {0: blocks}, len(blocks) * 4)

    def close(self) -> None:
        self.server.close()
        for pool in self.pools.values():
            pool.close()

    def _on_freed(self, _freed: Freed) -> None:
        for pool in self.pools.values():
            pool.memory[:] = OVERWRITTEN * len(pool.memory)


@contextmanager
def shared_pair(
    described: Descriptor = OURS, **options: Any
) -> Iterator[tuple[SharedHolder, ReaderClient]]:
    """A holder whose memory is shared, and a reader."""
    holder = SharedHolder(described)
    try:
        with client(described, **options) as reader:
            yield holder, reader
    finally:
        holder.close()


def opened(holder: Any, reader: ReaderClient, ids: Sequence[int] = IDS) -> OpenHandoff:
    holder.grant("h", ids)
    return open_(reader, holder, "h")


def request(ids: Sequence[int], into: Sequence[int]) -> Request:
    return Request((), {0: into}, len(ids) * 4, first_token=0)


def moved(shared: SharedBlocks, ids: Sequence[int], into: Sequence[int]) -> torch.Tensor:
    """A pool like the holder's with what was moved to it; tokens of the null block are not."""
    memory = {"kv": torch.zeros(OURS.pools[0].num_bytes, dtype=torch.uint8)}
    mover = SharedMover.compile(OURS, OURS)
    assert sum(mover.steps(0, shared, request(ids, into), memory)) > 0
    return memory["kv"]


def block(memory: torch.Tensor, number: int) -> bytes:
    return bytes(memory[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES].numpy())


def test_blocks_are_copied_from_where_they_are_and_confirmed() -> None:
    ids, into = [9, 3, 4, 40], [5, 6, 7, 8]
    with shared_pair() as (holder, reader):
        handoff = opened(holder, reader, ids)
        shared = soon(reader.locate(handoff, len(ids)))
        memory = moved(shared, ids, into)
        assert soon(reader.confirm(handoff)) > 0
        for theirs, ours in zip(ids, into, strict=True):
            start = theirs * BLOCK_BYTES
            expected = bytes(holder.pools["kv"].memory[start : start + BLOCK_BYTES])
            assert block(memory, ours) == expected
        stats = holder.server.stats()
        assert (stats.num_bytes_sent, stats.num_mapped) == (0, 1)
        assert (reader.stats().num_located, reader.stats().num_not_shared) == (1, 0)


def test_lists_are_the_holders_with_their_null_blocks() -> None:
    with shared_pair() as (holder, reader):
        shared = soon(reader.locate(opened(holder, reader), len(IDS)))
        assert shared.blocks == {0: IDS}
        assert shared.pools["kv"].readonly


def test_what_was_copied_while_the_lease_ended_is_worthless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_shared, "STEP_PIECES", 2)
    ids, into = [9, 3, 4, 40], [5, 6, 7, 8]
    with shared_pair() as (holder, reader):
        handoff = opened(holder, reader, ids)
        shared = soon(reader.locate(handoff, len(ids)))
        memory = {"kv": torch.zeros(OURS.pools[0].num_bytes, dtype=torch.uint8)}
        steps = SharedMover.compile(OURS, OURS).steps(0, shared, request(ids, into), memory)
        next(steps)
        before = block(memory["kv"], 5)
        holder.server.forgo("h", "l-h")
        # The holder's memory is overwritten as soon as the lease has ended.
        until(lambda: shared.pools["kv"][-1:] == OVERWRITTEN, "overwritten")
        assert len(list(steps)) == 1
        assert before != block(memory["kv"], 7) == OVERWRITTEN * BLOCK_BYTES
        with pytest.raises(LeaseGone, match="ended"):
            soon(reader.confirm(handoff))


def test_a_lease_that_has_ended_says_nothing_of_its_blocks() -> None:
    with shared_pair() as (holder, reader):
        handoff = opened(holder, reader)
        holder.server.forgo("h", "l-h")
        with pytest.raises(LeaseGone):
            soon(reader.locate(handoff, len(IDS)))
        assert reader.stats().num_not_shared == 0


def test_lists_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_maps, "MAX_ASKED", 3)
    with shared_pair() as (holder, reader):
        ids = [1, 0, 0, 63, 5, 7, 9, 0, 11, 12, 13]
        shared = soon(reader.locate(opened(holder, reader, ids), len(ids)))
        assert shared.blocks == {0: ids}
        assert holder.server.stats().num_mapped == 3


def test_a_handoff_that_holds_nothing_needs_no_answer() -> None:
    with shared_pair() as (holder, reader):
        assert soon(reader.locate(opened(holder, reader, [0, 0]), 2)).blocks == {0: [0, 0]}
        assert holder.server.stats().num_mapped == 0


def _unlink(holder: SharedHolder) -> None:
    (FOLDER / holder.pools["kv"].name).unlink()


def _open_to_others(holder: SharedHolder) -> None:
    (FOLDER / holder.pools["kv"].name).chmod(0o644)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(_unlink, "No such file"), (_open_to_others, "expected -rw-------")],
)
def test_files_that_cannot_be_mapped_are_read_by_frames(
    spoil: Callable[[SharedHolder], None], why: str
) -> None:
    with shared_pair() as (holder, reader):
        handoff = opened(holder, reader)
        spoil(holder)
        with pytest.raises(NotShared, match=why):
            soon(reader.locate(handoff, len(IDS)))
        assert (reader.stats().num_located, reader.stats().num_not_shared) == (0, 1)
        sink = bytearray(2 * BLOCK_BYTES)
        assert soon(reader.read(handoff, GROUP, [(1, 2)], [memoryview(sink)], form="block"))
        assert sink == holder.pools["kv"].memory[3 * BLOCK_BYTES : 5 * BLOCK_BYTES]


def test_a_reader_that_does_not_want_it_never_asks() -> None:
    with shared_pair(has_shm=False) as (holder, reader):
        handoff = opened(holder, reader)
        assert not handoff.is_shared
        with pytest.raises(NotShared, match="without shared memory"):
            soon(reader.locate(handoff, len(IDS)))


def test_a_holder_without_shared_memory_is_not_asked() -> None:
    with pair() as (holder, reader):
        handoff = opened(holder, reader)
        with pytest.raises(NotShared, match="without shared memory"):
            soon(reader.locate(handoff, len(IDS)))
        assert reader.stats().num_not_shared == 1


def test_a_refusal_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transload_abi.wire.pool_files._ranges", lambda _ids: iter([(1, 1)] * 4097))
    with shared_pair() as (holder, reader), pytest.raises(NotShared, match="too_many"):
        soon(reader.locate(opened(holder, reader), len(IDS)))


def test_pools_are_mapped_once_and_let_go_with_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mapped: list[str] = []

    def counting(name: str, num_bytes: int) -> memoryview:
        mapped.append(name)
        return map_pool(name, num_bytes)

    monkeypatch.setattr(reader_link, "map_pool", counting)
    with shared_pair() as (holder, reader):
        name = holder.pools["kv"].name
        handoff = opened(holder, reader)
        for _ in range(2):
            soon(reader.locate(handoff, len(IDS)))
        assert mapped == [name]
        assert _num_maps(name) == 2, "the holder's own, and the reader's"
        reader.close()
        gc.collect()
        assert _num_maps(name) == 1


def _num_maps(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


def test_a_tensor_keeps_its_memory_mapped() -> None:
    with shared_pair() as (holder, reader):
        name = holder.pools["kv"].name
        shared = soon(reader.locate(opened(holder, reader), len(IDS)))
        tensor = reader_shared._tensor(shared.pools["kv"])
        reader.close()
        del shared
        gc.collect()
        assert _num_maps(name) == 2
        assert bytes(tensor.numpy()[:251]) == bytes(range(251))
        del tensor
        gc.collect()
        assert _num_maps(name) == 1


def test_a_file_of_another_length_is_not_offered() -> None:
    small = descriptor(num_blocks=8)
    names: dict[str, Any] = {"name": "P", "generation": "g1"}
    with (
        create_pool(f"tests {secrets.token_hex(8)}", "g1", "kv", 1 << 20) as pool,
        pytest.raises(ValueError, match="expected a file of 16384 bytes"),
    ):
        HolderServer(small, {"kv": pool}, on_freed=lambda _: None, **names)


def test_memory_that_is_shared_in_part_is_not_offered() -> None:
    source = PLACEMENTS["sglang"](Shape(layers=1, blocks=4, heads=1, tokens=4, size=16))
    first, *others = source.pools
    memory: dict[str, Any] = {pool.id: bytearray(pool.num_bytes) for pool in others}
    assert memory
    names: dict[str, Any] = {"name": "P", "generation": "g1"}
    engine = f"tests {secrets.token_hex(8)}"
    with create_pool(engine, "g1", first.id, first.num_bytes) as pool:
        memory[first.id] = pool
        server = HolderServer(source, memory, on_freed=lambda _: None, **names)
        with server, client(source) as reader:
            server.grant("h", "l-h", {0: [1, 2]}, 8)
            assert not soon(reader.open(server.address, "h", "l-h", "r")).is_shared


# --- holders that are at fault


class FakeHandoff(SimpleNamespace):
    """Of five blocks, with a session whose files can be mapped whatever they are."""

    def __init__(self, tables: tuple[messages.Table, ...] = (messages.Table(0, 5),)) -> None:
        super().__init__(handoff="h", peer="p:1", tables=tables, descriptor=OURS, link=self)

    def mapping_of(self, file: messages.PoolFile) -> memoryview:
        return memoryview(bytes(file.num_bytes))


FILE = messages.PoolFile("kv", "transload-kv", OURS.pools[0].num_bytes)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (messages.Mapped(1, (replace(FILE, pool="kw"),), ((1, 5),)), "not those of the table"),
        (messages.Mapped(1, (replace(FILE, num_bytes=1),), ((1, 5),)), "not as long"),
        (messages.Mapped(1, (FILE,), ((60, 5),)), "expected ids below 64"),
    ],
)
def test_an_answer_that_is_not_of_the_descriptor_is_a_fault(
    answer: messages.Mapped, why: str
) -> None:
    told: Future[messages.Mapped] = Future()
    told.set_result(answer)
    handoff: Any = FakeHandoff()
    locating = Locating(handoff, 5, lambda *_: told)
    locating.begin()
    with pytest.raises(PeerFault, match=why):
        locating.future.result(0)


def test_no_list_is_made_that_is_longer_than_the_request() -> None:
    handoff: Any = FakeHandoff((messages.Table(0, 1 << 32),))
    locating = Locating(handoff, 5, lambda *_: Future())
    locating.begin()
    with pytest.raises(PeerFault, match="4294967296 blocks, where 5 may be"):
        locating.future.result(0)


# --- moves


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("src", "dst"), [("LBHNC", "BLHNC"), ("sglang", "LHBNC")])
def test_it_moves_what_a_mover_moves_of_a_payload(
    src: str, dst: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_shared, "STEP_PIECES", 3)
    shape = Shape(layers=2, blocks=14, heads=4, tokens=4, size=16)
    source = PLACEMENTS[src](shape)
    into = PLACEMENTS[dst](shape._replace(tokens=8, dtype=dtype))
    generator = torch.Generator().manual_seed(1)
    holder = {
        pool.id: torch.randint(
            0, 120, (pool.num_bytes,), dtype=torch.uint8, generator=generator
        ).numpy()
        for pool in source.pools
    }
    lists = {0: [9, 3, 4, 12, 7, 1, 2]}
    asked = Request([tables(source, lists)], {0: [5, 2, 11, 8]}, 27, first_token=8)
    expected, found = blank(into), blank(into)
    transfer(Mover.compile(source, into), asked, [(source, holder, lists)], expected)
    there = SharedBlocks({pool: memoryview(memory) for pool, memory in holder.items()}, lists)
    steps = SharedMover.compile(source, into).steps(0, there, asked, shared(found))
    assert len(list(steps)) > 1
    for pool, memory in expected.items():
        assert (found[pool] == memory).all()


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ({}, "no memory"),
        ({"kv": torch.zeros(1, dtype=torch.uint8)}, "expected 131072 bytes, got 1"),
        ({"kv": torch.zeros(1, dtype=torch.uint8, device="meta")}, "memory of the CPU"),
    ],
)
def test_memory_that_is_not_the_destinations_is_refused(
    memory: dict[str, torch.Tensor], why: str
) -> None:
    there = SharedBlocks({"kv": memoryview(bytes(OURS.pools[0].num_bytes))}, {0: [1]})
    with pytest.raises(PlanError, match=why):
        list(SharedMover.compile(OURS, OURS).steps(0, there, request([1], [2]), memory))
