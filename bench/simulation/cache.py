"""The truth about one engine's paged cache: blocks by key, least recently used evicted first.

Rules, as vLLM's block pool has them (`v1/core/block_pool.py @ 0.32.0`):

* A block that a request holds is never evicted; one that nobody holds stays until its room is
  needed, the longest unheld one going first.
* A request's blocks are given back last to first, so that a prefix outlives its continuations.
* Room that holds nothing of use is taken before anything is evicted.

Simplified: a block that is computed twice at the same time counts as cached once; the second copy
is room without a key.
"""

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """Blocks of one engine.

    Attributes:
        capacity: Blocks in all.
        holders: For every key the numbers of the engines that hold it, shared by a fleet's caches.
    """

    def __init__(self, number: int, capacity: int, holders: dict[int, set[int]]) -> None:
        self.number = number
        self.capacity = capacity
        self.holders = holders
        self._num_held: dict[int, int] = {}
        self._unheld: OrderedDict[int, None] = OrderedDict()
        self._num_plain = 0

    def __contains__(self, key: int) -> bool:
        return key in self._num_held

    @property
    def num_keys(self) -> int:
        """Blocks that could be hit."""
        return len(self._num_held)

    @property
    def num_free(self) -> int:
        """Blocks that a new request could get, evicting where needed."""
        return self.capacity - len(self._num_held) - self._num_plain + len(self._unheld)

    def match(self, keys: Sequence[int]) -> int:
        """Blocks of the prefix that is held."""
        held = self._num_held
        for count, key in enumerate(keys):
            if key not in held:
                return count
        return len(keys)

    def has_room(self, matched: Sequence[int], num_blocks: int) -> bool:
        """Whether `take` of so many blocks would be covered behind `hold` of what was matched."""
        free = self.num_free
        if free - len(matched) >= num_blocks:
            return True
        return free - sum(key in self._unheld for key in matched) >= num_blocks

    def hold(self, keys: Sequence[int]) -> None:
        """Hold blocks that `match` found, so that they stay."""
        for key in keys:
            if self._num_held[key] == 0:
                del self._unheld[key]
            self._num_held[key] += 1

    def take(self, num_blocks: int) -> list[int]:
        """Take room without a key; `num_free` must cover it.

        Returns:
            Keys that were evicted for it.
        """
        assert num_blocks <= self.num_free, "the caller looks at num_free first"
        evicted = []
        room = self.capacity - len(self._num_held) - self._num_plain
        for _ in range(num_blocks - room):
            key, _ = self._unheld.popitem(last=False)
            del self._num_held[key]
            self._forget(key)
            evicted.append(key)
        self._num_plain += num_blocks
        return evicted

    def name(self, keys: Sequence[int]) -> list[int]:
        """Give room that was taken its keys; the caller holds these blocks.

        Returns:
            Keys that are new here. The others were held already: their room stays without a key,
            and the caller does not hold them.
        """
        new = [key for key in keys if key not in self._num_held]
        for key in new:
            self._num_held[key] = 1
            self.holders.setdefault(key, set()).add(self.number)
        self._num_plain -= len(new)
        return new

    def give_back(self, keys: Sequence[int], num_plain: int) -> None:
        """End holding `keys` (first to last) and room without keys."""
        self._num_plain -= num_plain
        for key in reversed(keys):
            self._num_held[key] -= 1
            if self._num_held[key] == 0:
                self._unheld[key] = None

    def _forget(self, key: int) -> None:
        holders = self.holders[key]
        holders.discard(self.number)
        if not holders:
            del self.holders[key]


def match_all(holders: dict[int, set[int]], keys: Sequence[int]) -> dict[int, int]:
    """Blocks of the held prefix, by engine number; engines that hold none are left out."""
    matched: dict[int, int] = {}
    alive: set[int] | None = None
    for count, key in enumerate(keys):
        here = holders.get(key)
        if alive is None:
            alive = set(here) if here else set()
        else:
            staying = alive & here if here else set()
            for number in alive - staying:
                matched[number] = count
            alive = staying
        if not alive:
            return matched
    for number in alive or ():
        matched[number] = len(keys)
    return matched
