"""What a holder would send, gathered from its pools by hand; requests as its lease tells them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from transload_abi import oracle
from transload_abi.canonical import canonical
from transload_abi.types import Descriptor
from transload_abi.wire.messages import Read, Table
from transload_abi.wire.payload import payload_of
from transload_connector.transports.mover import Mover, ReadPlan, Request

Lists = Mapping[int, Sequence[int]]
"""Block ids by table."""


def tables(holder: Descriptor, lists: Lists) -> tuple[Table, ...]:
    """What a lease says of block lists."""
    nulls = {
        group.table: group.null_block for group in holder.groups if group.null_block is not None
    }
    return tuple(
        Table(
            table=table,
            num_blocks=len(ids),
            null=tuple((at, 1) for at, one in enumerate(ids) if one == nulls.get(table)),
        )
        for table, ids in sorted(lists.items())
    )


def payload(holder: Descriptor, memory: oracle.Memory, lists: Lists, read: Read) -> bytearray:
    """The bytes that a holder sends, run by run."""
    holder = canonical(holder)
    (table,) = {group.table for group in holder.groups if group.id == read.group}
    positions = [at for first, count in read.blocks for at in range(first, first + count)]
    ids = [lists[table][at] for at in positions]
    sent = bytearray()
    for pool, offset, num_bytes in payload_of(holder, read).runs_of(ids):
        sent += memory[pool][offset : offset + num_bytes].tobytes()
    return sent


def shared(memory: oracle.Memory) -> dict[str, torch.Tensor]:
    """Pools as tensors of the same memory."""
    return {pool: torch.from_numpy(bytes_) for pool, bytes_ in memory.items()}


def transfer(
    mover: Mover,
    request: Request,
    holders: Sequence[tuple[Descriptor, oracle.Memory, Lists]],
    dst: oracle.Memory,
    *,
    directly: bool = True,
) -> list[ReadPlan]:
    """Make all reads of a request, as a reader and its holders do; the plans that were carried out.

    Args:
        mover: Of the holders' descriptors.
        request: Its own.
        holders: Descriptor, pools and block lists of each.
        dst: The destination's pools.
        directly: Whether direct plans are received in place, or landed as all others are.
    """
    pools = shared(dst)
    plans = mover.reads(request)
    for number, plan in enumerate(plans, 1):
        read = plan.message(number, "handoff")
        sent = payload(*holders[plan.source], read)
        assert len(sent) == plan.num_bytes, "the length is known before"
        if plan.is_direct and directly:
            received = 0
            for sink in mover.sinks(plan, pools):
                sink[:] = sent[received : received + len(sink)]
                received += len(sink)
            assert received == plan.num_bytes
        else:
            mover.land(plan, sent, pools)
    return plans


def blank(d: Descriptor) -> oracle.Memory:
    """Pools that nobody has written, in memory that may be written to."""
    return {pool: np.array(bytes_) for pool, bytes_ in oracle.blank(d).items()}
