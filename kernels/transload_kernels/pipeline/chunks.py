"""How a transfer is cut: whole items into chunks that fit a slot of the stage. Numbers only."""

from collections.abc import Iterable
from typing import NamedTuple

from transload_kernels.errors import BadArgument


class Chunk(NamedTuple):
    """Consecutive items that travel together.

    Attributes:
        number: From 0, in order of the items.
        first_item: The first of them.
        num_items: How many.
        num_bytes: Of all of them: what the slot holds.
        slot: Of the stage, that the chunk passes through.
    """

    number: int
    first_item: int
    num_items: int
    num_bytes: int
    slot: int


def slot_bytes(budget_bytes: int, depth: int) -> int:
    """Bytes of each of `depth` slots, a multiple of 256, within a budget for all."""
    size = budget_bytes // depth // 256 * 256 if depth > 0 else 0
    if size <= 0:
        raise BadArgument(f"budget_bytes: {budget_bytes} is less than {depth} slots of 256 bytes")
    return size


def plan_chunks(item_bytes: Iterable[int], budget_bytes: int, depth: int = 3) -> tuple[Chunk, ...]:
    """Cut items, in order, into the fewest chunks that fit.

    Args:
        item_bytes: Of each item (a block, say), above 0. Items are not cut.
        budget_bytes: Of the stage, shared by all slots.
        depth: Slots, and so chunks that are on their way at most: one is filled while another is
            drained; a third evens out their times.

    Raises:
        BadArgument: An item does not fit a slot, or the budget is too small for the depth.
    """
    size = slot_bytes(budget_bytes, depth)
    chunks: list[Chunk] = []
    first, filled, total = 0, 0, 0
    for item, num_bytes in enumerate(item_bytes):
        if not 0 < num_bytes <= size:
            raise BadArgument(
                f"item_bytes[{item}]: {num_bytes}, a slot has 1..{size}"
                f" ({budget_bytes} bytes in {depth} slots)"
            )
        if filled + num_bytes > size:
            chunks.append(Chunk(len(chunks), first, item - first, filled, len(chunks) % depth))
            first, filled = item, 0
        filled += num_bytes
        total = item + 1
    if filled:
        chunks.append(Chunk(len(chunks), first, total - first, filled, len(chunks) % depth))
    return tuple(chunks)
