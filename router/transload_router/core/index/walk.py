"""Walks over a prompt's keys: how far which owners' blocks reach, for all owners at once.

Pure functions over tables and masks. A *reach* is a list of (mask, number of blocks) with
disjoint masks: those owners' first so many blocks can be loaded. Owners in no entry have none.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from transload_router.core.index.holders import Table

Reach = list[tuple[int, int]]


def held_prefix(table: Table, keys: Sequence[int], owners: int, num_blocks: int) -> Reach:
    """How many of the first blocks each owner holds without a gap."""
    reach: Reach = []
    get = table.get
    count = 0
    for key in islice(keys, num_blocks):
        holders = get(key, 0) & owners
        if holders != owners:
            if count:
                reach.append((owners ^ holders, count))
            if not holders:
                return reach
            owners = holders
        count += 1
    if count:
        reach.append((owners, count))
    return reach


def held_onward(
    tables: Sequence[Table], keys: Sequence[int], starts: Reach, num_blocks: int
) -> Reach:
    """How far owners get from different starts, each block from any of the tables.

    Args:
        tables: Where to look.
        keys: Of the prompt's blocks.
        starts: Owners by number of blocks that they need not look for; 0 is allowed.
        num_blocks: How many of the blocks count.
    """
    masks_of = _one_table(tables[0]) if len(tables) == 1 else _any_table(tables)
    pending = sorted(starts, key=lambda entry: entry[1], reverse=True)
    reach: Reach = []
    walking = 0
    index = pending[-1][1] if pending else num_blocks
    while index < num_blocks:
        while pending and pending[-1][1] <= index:
            walking |= pending.pop()[0]
        holders = masks_of(keys[index]) & walking
        if holders != walking:
            if index:
                reach.append((walking ^ holders, index))
            walking = holders
            if not walking:
                if not pending:
                    return reach
                index = max(index + 1, pending[-1][1])
                continue
        index += 1
    for mask, count in pending:
        if count:
            reach.append((mask, count))
    if walking and num_blocks:
        reach.append((walking, num_blocks))
    return reach


def _one_table(table: Table) -> Callable[[int], int]:
    get = table.get
    return lambda key: get(key, 0)


def _any_table(tables: Sequence[Table]) -> Callable[[int], int]:
    def masks_of(key: int) -> int:
        mask = 0
        for table in tables:
            mask |= table.get(key, 0)
        return mask

    return masks_of


def loadable_ends(holders: Sequence[int], owners: int, num_needed: int | None) -> list[int]:
    """For each number of blocks, from 0 up: which owners can load a hit that ends there.

    Args:
        holders: Owners of each block.
        owners: Those in question.
        num_needed: Blocks before the end that must be there, None for all of them.
    """
    ends = [owners]
    if num_needed is None:
        for mask in holders:
            owners &= mask
            ends.append(owners)
        return ends
    # An AND over a sliding window: each window is the end of one chunk and the start of the next.
    tails = list(holders)
    for index in range(len(tails) - 2, -1, -1):
        if (index + 1) % num_needed:
            tails[index] &= tails[index + 1]
    head = owners
    for index, mask in enumerate(holders):
        head = mask & (owners if index % num_needed == 0 else head)
        first = index - num_needed + 1
        ends.append(head & (tails[first] if first > 0 else owners))
    return ends
