"""What do reads over TCP cost beside a plain socket that carries the same bytes?

Two processes on loopback: a holder with 256 MiB of blocks in random order, and a reader. `plain` is
`sendall` of pieces of 1 MiB and `recv_into` of whatever has come, in the same two processes. In
each repeat all contenders take turns; a ratio is of one repeat. CPU time is that of both processes.

    python bench/transports.py                     all sections
    python bench/transports.py --sections runs     one of pages, runs
"""

import argparse
import contextlib
import datetime
import functools
import multiprocessing
import os
import pathlib
import platform
import random
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from cputime import cpu_s
from transload_abi.builders.by_hand import packed_pool, role
from transload_abi.types import Descriptor, Group, Model, Owner, Rope
from transload_abi.wire.payload import Run
from transload_connector.transports import data_frames
from transload_connector.transports.data_frames import FRAME_BYTES, DataFrames
from transload_connector.transports.holder_server import HolderServer
from transload_connector.transports.outbox import Outbox
from transload_connector.transports.reader_client import ReaderClient
from transload_connector.transports.reader_requests import OpenHandoff

BENCH = pathlib.Path(__file__).parent
PAYLOAD_BYTES = 256 << 20
PAGE_BYTES = (64 << 10, 256 << 10, 1 << 20, 2 << 20)
NUM_STREAMS = (1, 2, 4)
RUN_BYTES = (256, 1024, 2048, 4096, 8192, 16384)
RUNS_PAYLOAD_BYTES = 32 << 20
LONGEST_WAIT_S: Final = 120.0
"""For a transfer, or a process's end: far more than either takes, so who waits longer has hung."""

PLAIN = -1


class Sample(msgspec.Struct, frozen=True):
    """One transfer of the payload: GB/s of wall time, CPU seconds a GB."""

    rate: float
    cpu_s_per_gb: float


class Row(msgspec.Struct, frozen=True):
    """One contender on pages of one size, medians.

    Attributes:
        ratio: Its rate to `plain`'s, least and most of the repeats behind it.
    """

    page_bytes: int
    contender: str
    rate: float
    cpu_s_per_gb: float
    ratio: tuple[float, float, float]


class RunsRow(msgspec.Struct, frozen=True):
    """CPU seconds a GB of the sending thread, by what is done with runs of such a length."""

    run_bytes: int
    in_place: float
    gathered: float


class Results(msgspec.Struct, frozen=True):
    """All rows, and where they were measured."""

    date: str
    machine: str
    load_average: float
    repeats: int
    pages: list[Row]
    runs: list[RunsRow]


def descriptor(page_bytes: int) -> Descriptor:
    """One layer; a block is a page."""
    num_heads, num_tokens = 8, 16
    head_dim = page_bytes // (2 * 2 * num_heads * num_tokens)
    cell = num_heads * head_dim
    pool, place = packed_pool(
        "kv",
        num_layers=1,
        num_blocks=PAYLOAD_BYTES // page_bytes,
        page_bytes=page_bytes,
        outermost="blocks",
        memory="host",
    )
    roles = tuple(
        role(
            name,
            "bf16",
            first=first,
            N=(num_tokens, cell),
            H=(num_heads, head_dim),
            D=(head_dim, 1),
        )
        for name, first in (("k", 0), ("v", num_tokens * cell))
    )
    group = Group(
        "attention",
        "full",
        (0,),
        num_tokens,
        (place,),
        roles,
        owner=Owner(heads=(0, num_heads, num_heads)),
    )
    return Descriptor("kvabi/1", Model("bench", 1, Rope("none"), revision="1"), (pool,), (group,))


def hold(pipe: Connection) -> None:
    """The other process: it serves pages of the size that it is told, and sends plainly."""
    memory = bytearray(os.urandom(1 << 20)) * (PAYLOAD_BYTES >> 20)
    view = memoryview(memory)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname())
        plain, _ = listener.accept()
    server: HolderServer | None = None
    with plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (page_bytes := pipe.recv()) is not None:
            if page_bytes == PLAIN:
                for first in range(0, PAYLOAD_BYTES, FRAME_BYTES):
                    plain.sendall(view[first : first + FRAME_BYTES])
                continue
            if server is not None:
                server.close()
            server = serve(memory, page_bytes)
            pipe.send(server.address)
    if server is not None:
        server.close()


def serve(memory: bytearray, page_bytes: int) -> HolderServer:
    """A holder whose handoff is all blocks, in random order, for all contenders."""
    described = descriptor(page_bytes)
    server = HolderServer(
        described, {"kv": memory}, name="P", generation="1", on_freed=lambda freed: None
    )
    ids = list(range(described.pools[0].num_blocks))
    random.Random(page_bytes).shuffle(ids)
    server.grant("h", "l", {0: ids}, 16 * len(ids), readers=len(NUM_STREAMS))
    return server


class Peer:
    """The other process, and the connection for `plain`."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=hold, args=(theirs,), daemon=True)
        self.process.start()
        self.plain = socket.create_connection(self.pipe.recv())
        self.sink = memoryview(bytearray(PAYLOAD_BYTES))

    def spent(self) -> float:
        """CPU seconds of both, so far."""
        assert self.process.pid is not None
        return time.process_time() + cpu_s(self.process.pid)

    def close(self) -> None:
        """End it."""
        self.pipe.send(None)
        self.plain.close()
        self.process.join(LONGEST_WAIT_S)


def timed(peer: Peer, transfer: Callable[[], None]) -> Sample:
    """One transfer."""
    cpu, wall = peer.spent(), time.perf_counter()
    transfer()
    wall, cpu = time.perf_counter() - wall, peer.spent() - cpu
    return Sample(PAYLOAD_BYTES / wall / 1e9, cpu / PAYLOAD_BYTES * 1e9)


def plainly(peer: Peer) -> None:
    """The same bytes, without anything."""
    peer.pipe.send(PLAIN)
    at = 0
    while at < PAYLOAD_BYTES:
        at += peer.plain.recv_into(peer.sink[at:])


def reads(reader: ReaderClient, handoff: OpenHandoff, sink: memoryview, num_parts: int) -> None:
    """All blocks, in as many reads as there are streams."""
    num_blocks = handoff.tables[0].num_blocks
    block_bytes = PAYLOAD_BYTES // num_blocks
    part = num_blocks // num_parts
    futures = [
        reader.read(
            handoff,
            "attention",
            [(number * part, part)],
            [sink[number * part * block_bytes : (number + 1) * part * block_bytes]],
            form="block",
        )
        for number in range(num_parts)
    ]
    for each in futures:
        each.result(LONGEST_WAIT_S)


def pages(peer: Peer, page_bytes: int, repeats: int) -> Iterator[Row]:
    """All contenders on pages of one size."""
    peer.pipe.send(page_bytes)
    address = peer.pipe.recv()
    described = descriptor(page_bytes)
    contenders: dict[str, Callable[[], None]] = {"plain": lambda: plainly(peer)}
    with contextlib.ExitStack() as clients:
        for number in NUM_STREAMS:
            reader = clients.enter_context(
                ReaderClient(described, name="D", generation="1", num_streams=number)
            )
            share = reader.open(address, "h", "l", f"r{number}").result(LONGEST_WAIT_S)
            contenders[f"{number} streams"] = functools.partial(
                reads, reader, share, peer.sink, number
            )
        samples: dict[str, list[Sample]] = {name: [] for name in contenders}
        for repeat in range(-1, repeats):
            for name, transfer in contenders.items():
                sample = timed(peer, transfer)
                if repeat >= 0:  # The first is for memory that nobody has touched.
                    samples[name].append(sample)
    for name, found in samples.items():
        ratios = [
            ours.rate / plain.rate for ours, plain in zip(found, samples["plain"], strict=True)
        ]
        yield Row(
            page_bytes,
            name,
            statistics.median(each.rate for each in found),
            statistics.median(each.cpu_s_per_gb for each in found),
            (statistics.median(ratios), min(ratios), max(ratios)),
        )


def drain(pipe: Connection) -> None:
    """A process that takes whatever is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname())
        sock, _ = listener.accept()
    sink = bytearray(1 << 20)
    with sock:
        while sock.recv_into(sink):
            pass


def runs(sock: socket.socket, run_bytes: int, repeats: int) -> RunsRow:
    """The same runs, each with bytes between it and the next, sent in place and copied first."""
    memory = {"kv": memoryview(bytearray(2 * RUNS_PAYLOAD_BYTES))}
    found: dict[bool, list[float]] = {False: [], True: []}
    constant = data_frames.GATHERED_BYTES
    for _ in range(repeats):
        for is_gathered, times in found.items():
            data_frames.GATHERED_BYTES = run_bytes + 1 if is_gathered else 0  # type: ignore[misc]
            starts = range(0, 2 * RUNS_PAYLOAD_BYTES, 2 * run_bytes)
            pieces = (Run("kv", first, run_bytes) for first in starts)
            frames = DataFrames(memory, pieces, 1, FRAME_BYTES, checksums=False)
            outbox = Outbox()
            start = time.thread_time()
            while buffers := frames.next_frame()[1]:
                outbox.put(buffers)
                outbox.send(sock)
            times.append((time.thread_time() - start) / RUNS_PAYLOAD_BYTES * 1e9)
    data_frames.GATHERED_BYTES = constant  # type: ignore[misc]
    return RunsRow(run_bytes, statistics.median(found[False]), statistics.median(found[True]))


def all_runs(repeats: int) -> list[RunsRow]:
    """All lengths."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=drain, args=(theirs,), daemon=True)
    process.start()
    print("CPU s per GB of the sending thread: bytes of a run, in place, copied first")
    rows = []
    with socket.create_connection(pipe.recv()) as sock:
        for run_bytes in RUN_BYTES:
            rows.append(runs(sock, run_bytes, repeats))
            print(f"{run_bytes:>8} {rows[-1].in_place:8.3f} {rows[-1].gathered:8.3f}", flush=True)
    process.join(LONGEST_WAIT_S)
    return rows


def all_pages(repeats: int) -> list[Row]:
    """All sizes."""
    peer = Peer()
    print("KiB of a page, contender, GB/s, CPU s per GB, ratio to plain (least-most)")
    rows = []
    for page_bytes in PAGE_BYTES:
        for row in pages(peer, page_bytes, repeats):
            rows.append(row)
            median, lowest, highest = row.ratio
            print(
                f"{page_bytes >> 10:>6} {row.contender:<10} {row.rate:6.2f} "
                f"{row.cpu_s_per_gb:7.3f}  {median:.2f} ({lowest:.2f}-{highest:.2f})",
                flush=True,
            )
    peer.close()
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="of each case, at least 5")
    parser.add_argument("--sections", default="pages,runs", help="by commas")
    parser.add_argument("--out", type=pathlib.Path, default=BENCH / "results/transports.json")
    arguments = parser.parse_args()
    sections = arguments.sections.split(",")
    load_average = os.getloadavg()[0]
    results = Results(
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine(),
        load_average,
        arguments.repeats,
        all_pages(arguments.repeats) if "pages" in sections else [],
        all_runs(arguments.repeats) if "runs" in sections else [],
    )
    arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def machine() -> str:
    """The processor, as the kernel names it."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(named)} x {named[0]}" if named else platform.machine()


if __name__ == "__main__":
    main()
