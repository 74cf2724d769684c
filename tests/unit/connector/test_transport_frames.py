"""Payloads cut into frames, and where what comes of them belongs; no sockets."""

import itertools
import zlib

import pytest

from support.transport_world import content, descriptor
from transload_abi.wire import frames, messages
from transload_abi.wire.payload import Run
from transload_connector.transports.block_lists import BlockLists
from transload_connector.transports.data_frames import GATHERED_BYTES, MAX_RUNS, DataFrames
from transload_connector.transports.sink import Sink

MEMORY = {"a": memoryview(content(100_000)), "b": memoryview(content(50_000)[::-1])}
LONG = GATHERED_BYTES


def made(runs: list[Run], max_bytes: int, checksums: bool = False) -> list[tuple[int, bytes, int]]:
    """Offset, data and number of buffers of each frame."""
    source = DataFrames(MEMORY, iter(runs), 7, max_bytes, checksums)
    found: list[tuple[int, bytes, int]] = []
    while True:
        num_bytes, buffers = source.next_frame()
        if not num_bytes:
            assert buffers == []
            return found
        decoder = frames.FrameDecoder(max_data_bytes=1 << 20)
        begin, data = decoder.feed(b"".join(bytes(each) for each in buffers))
        assert isinstance(begin, frames.DataBegin)
        assert isinstance(data, frames.DataBytes)
        assert (begin.read, begin.num_bytes) == (7, num_bytes)
        assert begin.checksum == (zlib.crc32(data.data) if checksums else None)
        assert decoder.is_between_frames
        found.append((begin.offset, bytes(data.data), len(buffers)))


RUNS = [
    Run("a", 5, 3),
    Run("a", 100, LONG),
    Run("b", 7, LONG - 1),
    Run("b", 9000, 10),
    Run("a", 20_000, 3 * LONG),
    Run("a", 60_000, 1),
]


@pytest.mark.parametrize("max_bytes", [1000, LONG, LONG + 3, 4 * LONG, 1 << 20])
@pytest.mark.parametrize("checksums", [False, True])
def test_frames_hold_the_runs_in_order_and_each_byte_once(max_bytes: int, checksums: bool) -> None:
    payload = b"".join(bytes(MEMORY[run.pool][run.offset :][: run.num_bytes]) for run in RUNS)
    found = made(RUNS, max_bytes, checksums)
    assert b"".join(data for _, data, _ in found) == payload
    assert all(len(data) <= max_bytes for _, data, _ in found)
    lengths = [0, *itertools.accumulate(len(data) for _, data, _ in found)]
    assert [offset for offset, _, _ in found] == lengths[:-1]


def test_short_runs_travel_in_one_buffer_and_long_ones_stay_where_they_are() -> None:
    ((_, _, num_buffers),) = made(RUNS, 1 << 20)
    # A header, and: short; long; two short ones; long; short.
    assert num_buffers == 6
    source = DataFrames(MEMORY, iter(RUNS[1:2]), 7, 1 << 20, checksums=False)
    _, (_, buffer) = source.next_frame()
    assert isinstance(buffer, memoryview)
    assert buffer.obj is MEMORY["a"].obj


def test_a_frame_of_many_runs_is_shorter() -> None:
    runs = [Run("a", 2 * number, 1) for number in range(MAX_RUNS + 5)]
    assert [len(data) for _, data, _ in made(runs, 1 << 20)] == [MAX_RUNS, 5]


def test_a_sink_is_filled_in_order_whatever_its_pieces() -> None:
    memory = bytearray(30)
    whole = memoryview(memory)
    sink = Sink([whole[20:30], whole[0:0], whole[:4], whole[4:20]])
    assert sink.num_bytes == 30
    for first, count in ((0, 3), (3, 8), (11, 4), (15, 15)):
        data = bytes(range(first, first + count))
        for view in sink.views(first, count, 10):
            view[:], data = data[: len(view)], data[len(view) :]
    assert memory == bytes([*range(10, 30), *range(10)])
    assert [len(view) for view in sink.views(8, 10, 2)] == [2, 4]


@pytest.mark.parametrize("view", [memoryview(b"fixed"), memoryview(bytearray(8))[::2]])
def test_a_sink_takes_nothing_that_cannot_be_filled(view: memoryview) -> None:
    with pytest.raises(ValueError, match=r"sink\[0\]: expected writable, contiguous bytes"):
        Sink([view])


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        ({}, "tables"),
        ({0: [1], 1: [1]}, "tables"),
        ({0: [1, 64]}, "below 64, got 64"),
        ({0: [-1]}, "got -1"),
    ],
)
def test_blocks_that_the_descriptor_does_not_have_are_not_granted(
    blocks: dict[int, list[int]], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        BlockLists(descriptor()).tables_of(blocks)


def test_tables_say_where_the_null_block_is() -> None:
    lists = BlockLists(descriptor())
    assert lists.tables_of({0: [0, 0, 5, 0, 7, 0]}) == (
        messages.Table(0, 6, ((0, 2), (3, 1), (5, 1))),
    )
    assert lists.tables_of({0: []}) == (messages.Table(0, 0),)
