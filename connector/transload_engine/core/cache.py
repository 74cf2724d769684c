"""One engine's prefix cache: requests' blocks, hits, and when blocks become hittable.

After vLLM 0.32.0's `kv_cache_manager.py` and `single_type_kv_cache_manager.py`, for a model whose
every layer attends to everything.

**Rules**

* A hit is of whole blocks and leaves at least the last token to compute.
* A block can be hit from the step that computes its last token, not from when that step is done.
* A request's blocks are released from the last to the first, so that prefixes live longest.
"""

from transload_engine.core.blocks import Block, BlockPool
from transload_engine.core.events import stored
from transload_engine.core.request import Request


class PrefixCache:
    """The blocks of one engine and which request has them.

    Args:
        pool: The blocks.
        block_size: Tokens in a block.
        is_enabled: Whether blocks can be hit at all.
    """

    def __init__(self, pool: BlockPool, block_size: int, *, is_enabled: bool = True) -> None:
        self.pool = pool
        self.block_size = block_size
        self._is_enabled = is_enabled

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-num_tokens // self.block_size)

    def match(self, request: Request) -> list[Block]:
        """The blocks that hold the request's first tokens; they are not held for it yet."""
        hits: list[Block] = []
        if not self._is_enabled:
            return hits
        for number in range((len(request.tokens) - 1) // self.block_size):
            block = self.pool.find(request.content(number))
            if block is None:
                break
            hits.append(block)
        return hits

    def admit(self, request: Request, hits: list[Block], num_needed: int) -> bool:
        """Give a request without blocks its hits, and new ones for so many tokens in all.

        Admission is of the whole request or of nothing: its tokens so far must fit at once, even
        where only a part of them is computed first.

        Args:
            request: It holds no block.
            hits: As `match` found them.
            num_needed: Tokens to have slots for now, those in `hits` included.

        Returns:
            Whether there was room; if not, nothing has changed.
        """
        num_unused_hits = sum(1 for block in hits if block.num_users == 0)
        room = self.pool.num_free - num_unused_hits
        if self.blocks_for(len(request.tokens)) - len(hits) > room:
            return False
        num_new = self.blocks_for(num_needed) - len(hits)
        self.pool.hold(hits)
        request.blocks = [*hits, *self.pool.take(num_new)]
        request.num_stored = len(hits)
        return True

    def extend(self, request: Request, num_needed: int) -> bool:
        """Slots for so many tokens of a request that has blocks; False if there is no room."""
        num_new = self.blocks_for(num_needed) - len(request.blocks)
        if num_new <= 0:
            return True
        if num_new > self.pool.num_free:
            return False
        request.blocks += self.pool.take(num_new)
        return True

    def store(self, request: Request, num_tokens: int) -> None:
        """Let every full block of the first tokens be hit."""
        first, end = request.num_stored, num_tokens // self.block_size
        if not self._is_enabled or first >= end:
            return
        contents = [request.content(number) for number in range(first, end)]
        for block, content in zip(request.blocks[first:end], contents, strict=True):
            self.pool.store(block, content)
        request.num_stored = end
        if not self.pool.has_events:
            return
        self.pool.note(
            stored(
                [self.pool.name(content) for content in contents],
                self.pool.name(request.content(first - 1)) if first else None,
                request.tokens[first * self.block_size : end * self.block_size],
                self.block_size,
                [request.extra_keys(number) for number in range(first, end)],
            )
        )

    def release(self, request: Request) -> None:
        """Take a request's blocks from it."""
        self.pool.release(request.blocks[::-1])
        self.forget(request)

    @staticmethod
    def forget(request: Request) -> list[Block]:
        """The blocks that a request holds, which from now on the caller does."""
        blocks, request.blocks, request.num_stored = request.blocks, [], 0
        return blocks
