"""What one owner, an engine's rank, holds: its names for blocks, by tier, group and block size.

An engine's hash names a prefix (its tokens and whose they are), the same in every tier and, for
one block size, in every group. So a name learned in one pool is good in all pools of that size,
and for a while after the block is gone.
"""

from dataclasses import dataclass

from transload_router.core.index.holders import Holders, Place, Slot
from transload_router.core.index.keys import Identity, root_key
from transload_router.core.index.table import Table
from transload_router.core.kv_events.events import GPU, BlockHash, Stored
from transload_router.core.kv_events.messages import SnapshotLoaded
from transload_router.core.types import DestinationKey

# Names of gone blocks kept per owner and block size, twice this at most. A lower tier announces a
# block by its name alone, up to a transfer after the GPU gave it away: some seconds at a few
# thousand evictions a second.
MAX_GHOSTS = 8192
# Parents that blocks wait for, per owner. They come within the same batch, or never.
MAX_WAITING_PARENTS = 64
# Pools of one owner: tiers x groups x block sizes. Engines have a handful of each.
MAX_POOLS = 64
# Adapters whose root keys and ids are remembered at a time.
MAX_ADAPTERS = 1024

Names = dict[BlockHash, int]


class Pool:
    """The blocks of one tier, group and block size.

    Attributes:
        names: Engine's hash to key of the blocks it holds, oldest first.
        copies: Further physical copies, of those hashes that have any.
        adapters: Adapter of the hashes that belong to one.
    """

    __slots__ = ("adapters", "block_size", "copies", "names", "place", "table")

    def __init__(self, place: Place, block_size: int, table: Table) -> None:
        self.place = place
        self.block_size = block_size
        self.table = table
        self.names: Names = {}
        self.copies: dict[BlockHash, int] = {}
        self.adapters: dict[BlockHash, str] = {}


class Ghosts:
    """Names of blocks that are gone: the last ones, in two generations, so that each is O(1)."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: Names = {}
        self._old: Names = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, name: BlockHash, key: int) -> None:
        """Remember a name."""
        if len(self._young) >= MAX_GHOSTS:
            self._old = self._young
            self._young = {}
        self._young[name] = key

    def add_all(self, names: Names) -> None:
        """Remember names."""
        if len(self._young) + len(names) <= MAX_GHOSTS:
            self._young.update(names)
            return
        for name, key in names.items():
            self.add(name, key)

    def find(self, name: BlockHash) -> int | None:
        """The key of a name that is still remembered."""
        key = self._young.get(name)
        return self._old.get(name) if key is None else key


class Awaited:
    """Announcements that name blocks of which nothing is known yet.

    Groups that skip blocks announce names alone, or begin behind blocks that they never
    announced; and they may do so before the group that has all blocks announces those with their
    tokens, in the same batch.
    """

    __slots__ = ("_children", "_old", "_young")

    def __init__(self) -> None:
        # Names alone, once for each copy; in two generations, like ghosts.
        self._young: dict[BlockHash, list[Stored]] = {}
        self._old: dict[BlockHash, list[Stored]] = {}
        # Blocks with tokens, by the parent that is not known.
        self._children: dict[BlockHash, list[Stored]] = {}

    def __bool__(self) -> bool:
        return bool(self._young or self._old or self._children)

    @property
    def num_children(self) -> int:
        """Blocks that wait for a parent."""
        return sum(len(one.block_hashes) for waiting in self._children.values() for one in waiting)

    def add(self, name: BlockHash, event: Stored) -> None:
        """Let one of an event's names wait for its tokens."""
        if len(self._young) >= MAX_GHOSTS:
            self._old = self._young
            self._young = {}
        self._young.setdefault(name, []).append(event)

    def add_child(self, event: Stored) -> int:
        """Let an event wait for its parent.

        Returns:
            Number of blocks that wait no longer, for want of room.
        """
        assert event.parent_block_hash is not None
        dropped: list[Stored] = []
        if len(self._children) >= MAX_WAITING_PARENTS:
            dropped = self._children.pop(next(iter(self._children)))
        self._children.setdefault(event.parent_block_hash, []).append(event)
        return sum(len(one.block_hashes) for one in dropped)

    def take(self, name: BlockHash, block_size: int) -> list[Stored]:
        """What waited for a name in the chain of a block size; it waits no longer."""
        taken = []
        for waiting in (self._young, self._old, self._children):
            events = waiting.get(name)
            if events is not None:
                taken += [event for event in events if event.block_size == block_size]
                _keep(waiting, name, [event for event in events if event.block_size != block_size])
        return taken

    def cancel(self, name: BlockHash, place: Place) -> bool:
        """One copy of a block was removed; what it belongs to waits no longer.

        Returns:
            Whether it was waited for.
        """
        for waiting in (self._old, self._young):
            for at, event in enumerate(waiting.get(name, ())):
                if (event.medium, event.group_idx) == place:
                    _keep(waiting, name, waiting[name][:at] + waiting[name][at + 1 :])
                    return True
        for parent, events in self._children.items():
            for at, event in enumerate(events):
                if (event.medium, event.group_idx) == place and name in event.block_hashes:
                    _keep(self._children, parent, events[:at] + events[at + 1 :])
                    return True
        return False


def _keep(waiting: dict[BlockHash, list[Stored]], name: BlockHash, events: list[Stored]) -> None:
    if events:
        waiting[name] = events
    else:
        del waiting[name]


@dataclass(frozen=True, slots=True)
class Group:
    """What a hit needs of one cache group.

    Attributes:
        num_needed_blocks: Of the last blocks before a hit's end; None for all of them (full
            attention).
    """

    group_idx: int
    block_size: int
    num_needed_blocks: int | None


# GPU groups in order, and (place, block size) of the pools below: owners of one layout are
# matched by one walk.
Layout = tuple[tuple[Group, ...], tuple[tuple[Place, int], ...]]


@dataclass(slots=True)
class Counts:
    """What an owner's events did; only grows."""

    num_stored: int = 0
    num_removed: int = 0
    num_cleared: int = 0
    num_orphaned: int = 0
    num_unknown_removed: int = 0
    num_awaited: int = 0
    num_refused: int = 0
    num_dropped: int = 0


class Owner:
    """One destination's knowledge.

    Attributes:
        generation: Of the engine whose events count.
        position: Where its stream stands, if the caller said so.
        groups: GPU groups that it has shown, with what a hit needs of them.
        layout: Of its pools; None until the first GPU block.
        unplaced: GPU groups that were announced by names alone, none of which could be placed;
            while there are any, hits are not exact.
    """

    __slots__ = (
        "adapter_ids", "awaited", "by_place", "by_size", "counts", "generation", "ghosts",
        "groups", "key", "layout", "model", "pools", "position", "roots", "shown", "slot",
        "unplaced",
    )  # fmt: skip

    def __init__(self, key: DestinationKey, model: str, generation: int, slot: Slot) -> None:
        self.key = key
        self.model = model
        self.generation = generation
        self.slot = slot
        self.position: SnapshotLoaded | None = None
        self.counts = Counts()
        self.groups: dict[int, Group] = {}
        self.shown: set[int] = set()
        self.unplaced: set[int] = set()
        self.layout: Layout | None = None
        self.roots: dict[str | None, int] = {}
        self.adapter_ids: dict[str, int] = {}
        self.forget_blocks(slot)

    def forget_blocks(self, slot: Slot) -> None:
        """Hold nothing, under a fresh slot; what the model's groups are stays known."""
        self.slot = slot
        self.pools: dict[tuple[Place, int], Pool] = {}
        self.by_place: dict[Place, list[Pool]] = {}
        self.by_size: dict[int, list[Pool]] = {}
        self.ghosts: dict[int, Ghosts] = {}
        self.awaited = Awaited()
        self.shown.clear()

    def root(self, adapter: str | None) -> int:
        """The key before a prompt's first block."""
        root = self.roots.get(adapter)
        if root is None:
            if len(self.roots) >= MAX_ADAPTERS:
                self.roots.clear()
            root = self.roots[adapter] = root_key(Identity(self.model, adapter))
        return root

    def pool(self, holders: Holders, place: Place, block_size: int) -> Pool | None:
        """The pool of a place and size, opened if need be; None if there are too many."""
        pool = self.pools.get((place, block_size))
        if pool is None and len(self.pools) < MAX_POOLS:
            pool = Pool(place, block_size, holders.open(place))
            self.pools[place, block_size] = pool
            self.by_place.setdefault(place, []).append(pool)
            self.by_size.setdefault(block_size, []).append(pool)
        return pool

    def find(self, name: BlockHash, block_size: int) -> int | None:
        """The key of a name, held or gone, in the chain of a block size."""
        for pool in self.by_size.get(block_size, ()):
            key = pool.names.get(name)
            if key is not None:
                return key
        ghosts = self.ghosts.get(block_size)
        return None if ghosts is None else ghosts.find(name)

    def size_of(self, name: BlockHash, group_idx: int) -> int | None:
        """The block size under which a name is known, the GPU's of its group first."""
        group = self.groups.get(group_idx)
        sizes = list(dict.fromkeys([*self.by_size, *self.ghosts]))
        if group is not None:
            sizes.insert(0, group.block_size)
        return next((size for size in sizes if self.find(name, size) is not None), None)

    def show_group(
        self, group_idx: int, block_size: int, window: int | None, kind: str | None
    ) -> bool:
        """Learn of a GPU group; its largest blocks since the last clear are its own.

        Smaller ones are entries inside a block (`cache_partial_block`, vLLM 0.32), which only
        some models reuse; what they add is left out.

        Returns:
            Whether the layout is another one now.
        """
        known = self.groups.get(group_idx)
        if known is not None and group_idx in self.shown and known.block_size >= block_size:
            return False
        self.shown.add(group_idx)
        self.unplaced.discard(group_idx)
        group = Group(group_idx, block_size, _num_needed_blocks(block_size, window, kind))
        if group == known:
            return False
        self.groups[group_idx] = group
        return True

    def lay_out(self) -> None:
        """Bring the layout up to date with groups and pools."""
        if not self.groups:
            return
        lower: dict[Place, int] = {}
        for place, block_size in self.pools:
            if place[0] != GPU:
                lower[place] = max(block_size, lower.get(place, 0))
        groups = tuple(self.groups[idx] for idx in sorted(self.groups))
        self.layout = (groups, tuple(sorted(lower.items())))


def _num_needed_blocks(block_size: int, window: int | None, kind: str | None) -> int | None:
    # SlidingWindowManager._contiguous_blocks_for_hit and MambaManager.find_longest_cache_hit,
    # v1/core/single_type_kv_cache_manager.py @ vLLM 0.32.0.
    if kind == "mamba":
        return 1
    if window is not None and (kind is None or kind.startswith("sliding_window")):
        return max(1, -(-(window - 1) // block_size))
    return None
