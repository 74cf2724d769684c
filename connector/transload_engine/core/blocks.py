"""The pool of physical blocks: who uses them, what they hold, which is taken next.

After vLLM 0.32.0's `vllm/v1/core/block_pool.py`.

**Rules**

* Block 0 is the null block: never free, never held.
* A block with a hash can be hit, whether somebody uses it or not. A block that nobody uses is in
  the free queue; being hit takes it out again.
* Blocks are taken from the queue's front. Freed blocks with a hash go to its end, so the least
  recently used goes first; those without go to its front, in the order given.
* Equal content may lie in several blocks. A hit takes the one that was stored first; each copy
  has events of its own.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from transload_engine.core.events import AllBlocksCleared, BlockName, Event, removed

INT_MASK = (1 << 64) - 1


class Block:
    """One physical block.

    Attributes:
        num_users: Requests (and leases) that hold it.
        content: Hash of the tokens it holds and of all before them; None if it cannot be hit.
    """

    __slots__ = ("block_id", "content", "num_users")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.num_users = 0
        self.content: bytes | None = None


class BlockPool:
    """All blocks of one cache.

    Args:
        num_blocks: Including the null block; at least 2.
        has_int_names: Whether events name blocks by integers or by raw bytes.
        has_events: Whether events are kept for `take_events`.
    """

    def __init__(
        self, num_blocks: int, *, has_int_names: bool = True, has_events: bool = True
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"a cache needs at least 2 blocks, one of them null; got {num_blocks}")
        self.num_blocks = num_blocks
        self.has_events = has_events
        self._has_int_names = has_int_names
        self._blocks = [Block(number) for number in range(num_blocks)]
        self._free: OrderedDict[int, Block] = OrderedDict(
            (block.block_id, block) for block in self._blocks[1:]
        )
        self._by_content: dict[bytes, dict[int, Block]] = {}
        self._events: list[Event] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, those that can still be hit included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that somebody holds, 0 to 1."""
        return 1.0 - len(self._free) / (self.num_blocks - 1)

    def name(self, content: bytes) -> BlockName:
        """A hash as events carry it: its last 64 bits, or whole."""
        return int.from_bytes(content[-8:], "big") if self._has_int_names else content

    def find(self, content: bytes) -> Block | None:
        """The block that was first stored with this content, or None."""
        copies = self._by_content.get(content)
        return next(iter(copies.values())) if copies else None

    def store(self, block: Block, content: bytes) -> None:
        """A full block can be hit from now on; the caller writes the event."""
        block.content = content
        self._by_content.setdefault(content, {})[block.block_id] = block

    def note(self, event: Event) -> None:
        """Keep an event for `take_events`."""
        if self.has_events:
            self._events.append(event)

    def take(self, count: int) -> list[Block]:
        """Blocks for new content, each held once; what they held cannot be hit any more.

        Raises:
            ValueError: `count` is more than `num_free`.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = [self._free.popitem(last=False)[1] for _ in range(count)]
        for block in taken:
            self._forget(block)
            block.num_users = 1
        return taken

    def hold(self, blocks: Iterable[Block]) -> None:
        """One more user for each."""
        for block in blocks:
            if block.num_users == 0:
                del self._free[block.block_id]
            block.num_users += 1

    def release(self, blocks: Sequence[Block]) -> None:
        """One user less for each; the first of them will be taken first."""
        unnamed = []
        for block in blocks:
            block.num_users -= 1
            if block.num_users == 0:
                self._free[block.block_id] = block
                if block.content is None:
                    unnamed.append(block.block_id)
        for block_id in reversed(unnamed):
            self._free.move_to_end(block_id, last=False)

    def clear(self) -> bool:
        """Forget all content, unless a block is held; returns whether that was done."""
        if len(self._free) != self.num_blocks - 1:
            return False
        self._by_content.clear()
        for block in self._blocks:
            block.content = None
        self.note(AllBlocksCleared())
        return True

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def _forget(self, block: Block) -> None:
        content = block.content
        if content is None:
            return
        block.content = None
        copies = self._by_content[content]
        del copies[block.block_id]
        if not copies:
            del self._by_content[content]
        self.note(removed(self.name(content)))
