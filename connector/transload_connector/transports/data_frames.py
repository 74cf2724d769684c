"""A read's payload cut into data frames whose bytes stay where they are until they are sent.

Knows no sockets and no leases: who asks for a frame has found out that it may be sent.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from transload_abi.wire.frames import Buffer, checksum_of, data_header
from transload_abi.wire.payload import Run

FRAME_BYTES: Final = 1 << 20
"""Of the data in a frame. A frame is what one session gets before the next has its turn, and what
blocks are pinned for when a lease ends: 1 MiB is 1 ms at 10 Gbit/s. On loopback 256 KiB cost 0.65
CPU seconds a GB, 1 MiB 0.48, 4 MiB 0.45 (`bench/transports.py`, two vCPUs of an AMD EPYC)."""

GATHERED_BYTES: Final = 2048
"""Shorter runs are copied together first. On the same machine the sender's CPU time a GB, in place
and copied: 5.2 and 3.9 s at 256 bytes a run, 1.1 and 1.0 at 1024, 0.61 and 0.66 at 2048, 0.34 and
0.41 at 4096 (section `runs`)."""


MAX_RUNS: Final = 4096
"""Of one frame, which is shorter then: so many take the sender 5 ms, and others wait for it."""


class DataFrames:
    """The frames of one read, one after the other.

    Args:
        memory: Of the pools.
        runs: Where the payload is.
        read: Its id.
        max_data_bytes: Of a frame.
        checksums: Whether each frame has one.
    """

    def __init__(
        self,
        memory: Mapping[str, memoryview],
        runs: Iterator[Run],
        read: int,
        max_data_bytes: int,
        checksums: bool,
    ) -> None:
        self.read = read
        self._memory = memory
        self._runs = runs
        self._max_bytes = max_data_bytes
        self._checksums = checksums
        self._offset = 0
        self._rest: Run | None = None

    def next_frame(self) -> tuple[int, list[Buffer]]:
        """How many bytes of data, and headers and data to send; empty behind the last."""
        num_bytes = 0
        pieces: list[memoryview] = []
        while num_bytes < self._max_bytes and len(pieces) < MAX_RUNS:
            run = self._rest or next(self._runs, None)
            if run is None:
                break
            taken = min(run.num_bytes, self._max_bytes - num_bytes)
            pieces.append(self._memory[run.pool][run.offset : run.offset + taken])
            num_bytes += taken
            left = run.num_bytes - taken
            self._rest = Run(run.pool, run.offset + taken, left) if left else None
        if not num_bytes:
            return 0, []
        buffers = _gathered(pieces)
        header = data_header(self.read, self._offset, num_bytes, self._checksum(buffers))
        self._offset += num_bytes
        return num_bytes, [header, *buffers]

    def _checksum(self, buffers: list[Buffer]) -> int | None:
        if not self._checksums:
            return None
        so_far = 0
        for each in buffers:
            so_far = checksum_of(each, so_far)
        return so_far


def _gathered(pieces: list[memoryview]) -> list[Buffer]:
    """The same bytes in fewer pieces: short ones that follow each other are copied into one."""
    buffers: list[Buffer] = []
    short: list[memoryview] = []
    for piece in pieces:
        if len(piece) < GATHERED_BYTES:
            short.append(piece)
            continue
        if short:
            buffers.append(b"".join(short))
            short = []
        buffers.append(piece)
    if short:
        buffers.append(b"".join(short))
    return buffers
