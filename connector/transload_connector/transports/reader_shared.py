"""A holder's blocks copied, or converted, from where they are in this host's memory to one's own.

Nothing is staged: plans are of the holder's own descriptor and block ids. May be used by several
threads at once, as a `Mover` may, and with one beside it: both divide what several sources have in
the same way.

**Rules**

1. While blocks are copied nobody keeps the holder from giving them to others: the lease may end. So
   the copy is to go where nobody uses it yet, and counts only once `ReaderClient.confirm`, asked
   behind the last step, has an answer.
2. Pools are read-only: who writes to them by mistake gets a signal, and the holder's blocks stay as
   they are.
"""

import ctypes
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Final

import numpy as np
import torch

from transload_abi.canonical import canonical
from transload_abi.dtypes import DTYPES
from transload_abi.errors import PlanError
from transload_abi.plan import Batch, Blocks, Cover, Plan, num_bytes
from transload_abi.plan.types import Sequence as Pieces
from transload_abi.types import Descriptor
from transload_connector.transports.kernel_calls import Pools
from transload_connector.transports.kernel_calls_convert import Family, carry_out, families
from transload_connector.transports.kernel_calls_scratch import check_scratch
from transload_connector.transports.mover import Request
from transload_connector.transports.reader_maps import SharedBlocks

STEP_PIECES: Final = 64
"""Moved before a step is told of: a load can be given up between steps. Of 16 tokens of 128 KiB
each they are 128 MiB, 20 to 50 ms on one thread of a busy AMD EPYC, by placement; steps of 256 and
of 1,024 took as long for all of 512 MiB."""


class SharedMover:
    """Sources in shared memory and a destination, compiled; serves any number of requests."""

    def __init__(
        self, cover: Cover, dst: Descriptor, by_source: Sequence[tuple[tuple[Family, ...], ...]]
    ) -> None:
        self._cover = cover
        self._dst_bytes = {pool.id: pool.num_bytes for pool in dst.pools}
        self._by_source = by_source

    @classmethod
    def compile(
        cls,
        sources: Descriptor | Sequence[Descriptor],
        dst: Descriptor,
        *,
        allows_lossy: bool = False,
    ) -> "SharedMover":
        """Choose who gives what, and plan the way of each.

        Args:
            sources: Holders' descriptors, checked; their order is that of `Request.sources`.
            dst: The reader's, checked.
            allows_lossy: Whether numbers may be rounded.

        Raises:
            Refused: As of `Mover.compile`.
            LimitExceeded: Likewise.
        """
        each = [sources] if isinstance(sources, Descriptor) else list(sources)
        dst = canonical(dst)
        cover = Cover.compile([canonical(one) for one in each], dst, allow_lossy=allows_lossy)
        by_source = []
        for pair in cover.pairs:
            lanes = pair.lanes if pair else ()
            by_lane = tuple(families(lane.conversions) for lane in lanes)
            for family in chain(*by_lane):
                if family.route.way != "kernel":
                    check_scratch(family.first)
            by_source.append(by_lane)
        return cls(cover, dst, by_source)

    def steps(
        self, source: int, shared: SharedBlocks, request: Request, dst_memory: Pools
    ) -> Iterator[int]:
        """Move what one source has for a request, a step with each item.

        Args:
            source: Its number.
            shared: Its blocks.
            request: Its sources' tables count for nothing here.
            dst_memory: By pool flat uint8 memory of the CPU.

        Yields:
            The number of bytes that a step has read.

        Raises:
            PlanError: Lists or counts that do not fit; or a pool is missing, too short, or of a
                device.
        """
        pair = self._cover.pairs[source]
        if pair is None:
            return
        part = self._cover.parts[source]
        plan = pair.plan(Blocks(shared.blocks, request.dst, *request[2:]), part)
        for pool in self._dst_bytes:
            self._check(dst_memory, pool)
        src = {pool: _tensor(view) for pool, view in shared.pools.items()}
        families_of = self._by_source[source]
        for step in _steps(plan):
            # Addresses are those of a plan, and lengths have been looked at.
            carry_out(step, src, dst_memory, by_batch=families_of, checked=False)
            yield num_bytes(step) + _num_converted_bytes(step)

    def _check(self, memory: Pools, pool: str) -> None:
        path, expected = f"dst_memory[{pool!r}]", self._dst_bytes[pool]
        if pool not in memory:
            raise PlanError("no memory for this pool", path)
        if memory[pool].device.type != "cpu":
            raise PlanError("expected memory of the CPU", path)
        if memory[pool].numel() < expected:
            raise PlanError(f"expected {expected} bytes, got {memory[pool].numel()}", path)


def _num_converted_bytes(plan: Plan) -> int:
    total = 0
    for batch in plan.batches:
        num_pieces = sum(each.num_pieces for each in batch.sequences)
        num_bits = sum(
            prod(operand.shape.values()) * DTYPES[operand.dtype].bits
            for conversion in batch.conversions
            for operand in conversion.src
        )
        total += num_pieces * num_bits // 8
    return total


def _steps(plan: Plan) -> Iterator[Plan]:
    """The same in parts of so many pieces, a batch after the other."""
    for number, batch in enumerate(plan.batches):
        part: list[Pieces] = []
        room = STEP_PIECES
        for src, dst, left in batch.sequences:
            while left:
                count = min(left, room)
                part.append(Pieces(src, dst, count))
                src, dst, left, room = src + count, dst + count, left - count, room - count
                if not room:
                    yield _only(plan, number, part)
                    part, room = [], STEP_PIECES
        if part:
            yield _only(plan, number, part)


def _only(plan: Plan, number: int, pieces: Sequence[Pieces]) -> Plan:
    def of(at: int, batch: Batch) -> Batch:
        return batch._replace(sequences=tuple(pieces) if at == number else ())

    return Plan(tuple(of(at, batch) for at, batch in enumerate(plan.batches)))


def _tensor(view: memoryview) -> torch.Tensor:
    """Read-only memory as a tensor, which keeps it mapped.

    Torch warns of memory that may not be written to, so it is told of the address alone.
    """
    array = np.frombuffer(view, np.uint8)
    found = (ctypes.c_uint8 * len(view)).from_address(array.ctypes.data)
    found.mapping = array  # type: ignore[attr-defined]
    return torch.frombuffer(found, dtype=torch.uint8)
