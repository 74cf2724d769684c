"""Which owners hold a key: one table per tier and cache group, key to a bit mask of owner slots.

Rules:
    - A bit stands in a table for exactly those keys that a pool of its owner names.
    - A bit that was given up stays taken until its keys are swept, so no key of an old owner is
      ever read as a new owner's.
    - Tables live as long as pools use them.

Theory of operation:
    One walk over a prompt's keys answers for all owners at once (`mask &= table[key]`), whatever
    their number. Giving up an owner costs nothing at once: its slot is retired with the pools'
    own lists of keys, and `sweep` takes the bit out of those keys in slices. Masks above 30 bits
    are objects; equal ones are shared, through one memo per slot of the masks it was added to.
"""

import heapq
from collections import deque
from collections.abc import Iterable

from transload_router.core.index.table import PART_SHIFT, Table, new_table

# Medium (upper case) and cache group.
Place = tuple[str, int]

# Memo entries of masks, per slot and for removals: distinct masks that are live together are
# mostly few (one holder, or the holders of one prefix); a full memo is begun anew.
_MAX_MEMO = 4096


class Slot:
    """One owner's bit in every table, until it is retired.

    Attributes:
        bit: A power of two.
        joined: Memo: mask without the bit to the shared mask with it.
    """

    __slots__ = ("bit", "joined")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.joined: dict[int, int] = {}


class Holders:
    """All tables, the slots in use, and the slots being swept.

    Attributes:
        num_blocks: Entries of all pools, those still to be swept included.
    """

    __slots__ = (
        "_free_bits",
        "_left",
        "_memo",
        "_num_bits",
        "_retired",
        "_users",
        "num_blocks",
        "tables",
    )

    def __init__(self) -> None:
        self.tables: dict[Place, Table] = {}
        self.num_blocks = 0
        self._users: dict[Place, int] = {}
        self._free_bits: list[int] = []
        self._num_bits = 0
        self._memo: dict[int, int] = {}
        # Place, names and bit of what is to be swept, oldest first.
        self._retired: deque[tuple[Place, dict[int | bytes, int], int]] = deque()
        # Pools left to sweep by bit.
        self._left: dict[int, int] = {}

    @property
    def num_retired(self) -> int:
        """Entries still to be swept."""
        return sum(len(names) for _, names, _ in self._retired)

    @property
    def num_bits(self) -> int:
        """Width of the masks."""
        return self._num_bits

    def take_slot(self) -> Slot:
        """A slot whose bit stands in no table."""
        if self._free_bits:
            return Slot(heapq.heappop(self._free_bits))
        self._num_bits += 1
        return Slot(1 << (self._num_bits - 1))

    def open(self, place: Place) -> Table:
        """The table of a place, for one more pool."""
        self._users[place] = self._users.get(place, 0) + 1
        table = self.tables.get(place)
        if table is None:
            table = self.tables[place] = new_table()
        return table

    def join(self, table: Table, keys: list[int], slot: Slot) -> None:
        """Set the slot's bit on keys that do not have it."""
        bit, joined = slot.bit, slot.joined
        for key in keys:
            part = table[key >> PART_SHIFT]
            mask = part.get(key)
            if mask is None:
                part[key] = bit
                continue
            wider = joined.get(mask)
            if wider is None:
                if len(joined) >= _MAX_MEMO:
                    joined.clear()
                wider = self._shared(mask | bit)
                joined[mask] = wider
            part[key] = wider

    def leave(self, table: Table, key: int, bit: int) -> None:
        """Clear a bit on a key; one that is not set is no fault (two names, one key)."""
        part = table[key >> PART_SHIFT]
        mask = part.get(key, 0)
        if mask == bit:
            del part[key]
        elif mask & bit:
            part[key] = self._shared(mask ^ bit)

    def leave_all(self, table: Table, keys: Iterable[int], bit: int) -> None:
        """Clear a bit on keys; see `leave`."""
        for key in keys:
            part = table[key >> PART_SHIFT]
            mask = part.get(key, 0)
            if mask == bit:
                del part[key]
            elif mask & bit:
                part[key] = self._shared(mask ^ bit)

    def retire(self, slot: Slot, pools: list[tuple[Place, dict[int | bytes, int]]]) -> None:
        """Give a slot up with the names of all its pools, which belong to the sweep from now on."""
        if not pools:
            heapq.heappush(self._free_bits, slot.bit)
            return
        self._left[slot.bit] = len(pools)
        self._retired.extend((place, names, slot.bit) for place, names in pools)

    def sweep(self, budget: int) -> int:
        """Clear retired bits from at most so many keys.

        Returns:
            What is left of the budget.
        """
        while self._retired and budget > 0:
            place, names, bit = self._retired[0]
            budget -= self._sweep_pool(self.tables[place], names, bit, budget)
            if not names:
                self._retired.popleft()
                self._close(place, bit)
        return budget

    def _sweep_pool(
        self, table: Table, names: dict[int | bytes, int], bit: int, budget: int
    ) -> int:
        count = min(budget, len(names))
        for _ in range(count):
            self.leave(table, names.popitem()[1], bit)
        self.num_blocks -= count
        return max(count, 1)

    def _close(self, place: Place, bit: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place], self.tables[place]
        self._left[bit] -= 1
        if not self._left[bit]:
            del self._left[bit]
            heapq.heappush(self._free_bits, bit)

    def _shared(self, mask: int) -> int:
        memo = self._memo
        shared = memo.get(mask)
        if shared is None:
            if len(memo) >= _MAX_MEMO:
                memo.clear()
            memo[mask] = shared = mask
        return shared
