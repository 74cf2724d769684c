"""How large a read of one handoff is, and whether the handoff has the blocks that are asked for."""

from transload_abi.types import Descriptor
from transload_abi.wire.errors import BadRead
from transload_abi.wire.messages import Range, Read, Table
from transload_abi.wire.payload import payload_of


def size_of(holder: Descriptor, read: Read, tables: tuple[Table, ...]) -> int:
    """Bytes of a read's payload: what a holder's sessions ask as `Measure`.

    Args:
        holder: The holder's descriptor, in canonical form.
        read: As it was asked.
        tables: Of the handoff.

    Raises:
        BadRead: It asks for what the holder, or this handoff, does not have.
    """
    payload = payload_of(holder, read)
    number = next(each.table for each in holder.groups if each.id == read.group)
    check_blocks(read.blocks, number, tables, ("read.group", "read.blocks"))
    return payload.num_bytes(read.blocks)


def check_blocks(
    blocks: tuple[Range, ...], number: int, tables: tuple[Table, ...], paths: tuple[str, str]
) -> None:
    """See that positions of a table hold something.

    Args:
        blocks: Ranges of positions.
        number: Of the table.
        tables: Of the handoff.
        paths: Of the fields that say the table, and the blocks.

    Raises:
        BadRead: They are not in its list, or hold nothing.
    """
    table = next((each for each in tables if each.table == number), None)
    if table is None:
        raise BadRead(f"the handoff has no table {number}", paths[0])
    first, count = blocks[-1]
    if first + count > table.num_blocks:
        raise BadRead(f"the list has {table.num_blocks} blocks", paths[1])
    null = _first_common(blocks, table.null)
    if null is not None:
        raise BadRead(f"position {null} holds nothing", paths[1])


def _first_common(some: tuple[Range, ...], others: tuple[Range, ...]) -> int | None:
    """The first position that is in both lists of ranges; both ascend."""
    at = 0
    for first, count in some:
        while at < len(others) and others[at][0] + others[at][1] <= first:
            at += 1
        if at < len(others) and others[at][0] < first + count:
            return max(first, others[at][0])
    return None
