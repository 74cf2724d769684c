"""Walks over a prompt's keys: how far which owners' blocks reach, for all owners at once.

Pure functions over tables and masks. A *reach* is a list of (mask, number of blocks) with
disjoint masks: those owners' first so many blocks can be loaded. Owners in no entry have none.
"""

from collections.abc import Sequence
from itertools import islice

from transload_router.core.index.table import PART_SHIFT, Table

Reach = list[tuple[int, int]]


def held_prefix(table: Table, keys: Sequence[int], owners: int, num_blocks: int) -> Reach:
    """How many of the first blocks each owner holds without a gap."""
    reach: Reach = []
    last = None
    count = 0
    for key in islice(keys, num_blocks):
        mask = table[key >> PART_SHIFT].get(key, 0)
        # Equal masks are mostly one object; what follows has been done for that.
        if mask is not last:
            last = mask
            holders = mask & owners
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
    first, others = tables[0], tables[1:]
    pending = sorted(starts, key=lambda entry: entry[1], reverse=True)
    reach: Reach = []
    walking = 0
    index = pending[-1][1] if pending else num_blocks
    while index < num_blocks:
        while pending and pending[-1][1] <= index:
            walking |= pending.pop()[0]
        key = keys[index]
        part = key >> PART_SHIFT
        holders = first[part].get(key, 0)
        for other in others:
            holders |= other[part].get(key, 0)
        holders &= walking
        if holders != walking:
            if index:
                reach.append((walking ^ holders, index))
            walking = holders
            if not walking:
                if not pending:
                    return reach
                index = pending[-1][1]
                continue
        index += 1
    reach.extend(entry for entry in pending if entry[1])
    if walking and num_blocks:
        reach.append((walking, num_blocks))
    return reach


def claimed_onward(claimed: Table, keys: Sequence[int], starts: Reach, num_blocks: int) -> Reach:
    """How far claims reach beyond different starts, found by halving.

    A claim is on a prompt's first keys without a gap, so where it stands on one key it stands on
    those before, or events have told of them.
    """
    reach: Reach = []
    # Owners that claim the block at `low - 1`, or need not, and not the one at `high`.
    ranges = []
    for mask, start in starts:
        ahead = 0
        if start < num_blocks:
            ahead = claimed[keys[start] >> PART_SHIFT].get(keys[start], 0) & mask
        if ahead:
            ranges.append((ahead, start + 1, num_blocks))
        if mask ^ ahead and start:
            reach.append((mask ^ ahead, start))
    while ranges:
        mask, low, high = ranges.pop()
        if low == high:
            reach.append((mask, low))
            continue
        middle = (low + high) // 2
        ahead = claimed[keys[middle] >> PART_SHIFT].get(keys[middle], 0) & mask
        if ahead:
            ranges.append((ahead, middle + 1, high))
        if mask ^ ahead:
            ranges.append((mask ^ ahead, low, middle))
    return reach


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
