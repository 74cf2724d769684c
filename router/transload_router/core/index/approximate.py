"""Which destination probably holds which text, from where prompts were sent; no events, no tokens.

For engines that publish no events and prompts whose tokens are unknown. Text is cut into chunks,
chained like blocks; each destination remembers the chunks sent to it, the ones asked for longest
ago going first. Engines forget by rules of their own, so hits are estimates.
"""

from collections import OrderedDict

import xxhash

from transload_router.core.index.hits import Hit, Match
from transload_router.core.index.holders import Holders, Slot
from transload_router.core.index.keys import Identity, root_key
from transload_router.core.index.walk import held_prefix
from transload_router.core.types import DestinationKey

# Bytes of a chunk: about four blocks of 16 tokens of English. Finer costs memory, coarser loses
# up to a chunk of each hit.
CHUNK_BYTES = 256
# English and code in current vocabularies; corrected by what engines report.
_FIRST_BYTES_PER_TOKEN = 4.0
# Prompts after which the first guess, or what came before, weighs half.
_HALF_LIFE_PROMPTS = 100
_PLACE = ("TEXT", 0)
_SWEEP = 512


class Text:
    """A prompt's text, with the names of its chunks.

    Attributes:
        num_bytes: Of the text.
        keys: Of its whole chunks.
    """

    __slots__ = ("keys", "num_bytes")

    def __init__(self, identity: Identity, text: bytes, cache_salt: str | None = None) -> None:
        self.num_bytes = len(text)
        key = root_key(identity)
        if cache_salt is not None:
            key = xxhash.xxh3_64_intdigest(cache_salt.encode("utf-8", "surrogatepass"), key)
        view = memoryview(text)
        self.keys: list[int] = []
        for start in range(0, len(text) - CHUNK_BYTES + 1, CHUNK_BYTES):
            key = xxhash.xxh3_64_intdigest(view[start : start + CHUNK_BYTES], key)
            self.keys.append(key)


class _Sent:
    """Chunks sent to one destination, by when they were last; each is its own name."""

    __slots__ = ("chunks", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.chunks: OrderedDict[int | bytes, int] = OrderedDict()


class ApproximateIndex:
    """The index of what was sent where.

    Attributes:
        bytes_per_token: Of prompts so far; what chunks are turned into tokens with.
    """

    def __init__(self, max_chunks: int = 1_000_000) -> None:
        self._max_chunks = max_chunks
        self._holders = Holders()
        self._sent: dict[DestinationKey, _Sent] = {}
        self._by_bit: dict[int, DestinationKey] = {}
        self.bytes_per_token = _FIRST_BYTES_PER_TOKEN

    @property
    def num_chunks(self) -> int:
        """Chunks remembered, over all destinations."""
        return self._holders.num_blocks

    def observe_length(self, num_bytes: int, num_tokens: int) -> None:
        """An engine told how many tokens a text is."""
        if num_bytes > 0 and num_tokens > 0:
            ratio = num_bytes / num_tokens
            self.bytes_per_token += (ratio - self.bytes_per_token) / _HALF_LIFE_PROMPTS

    def match(self, text: Text) -> Match:
        """What each destination probably need not compute; at most all tokens but one."""
        table = self._holders.tables.get(_PLACE)
        if table is None:
            return {}
        most = max(int(text.num_bytes / self.bytes_per_token) - 1, 0)
        owners = 0
        for sent in self._sent.values():
            owners |= sent.slot.bit
        match: Match = {}
        for mask, count in held_prefix(table, text.keys, owners, len(text.keys)):
            num_tokens = min(int(count * CHUNK_BYTES / self.bytes_per_token), most)
            left = mask
            while left:
                bit = left & -left
                left ^= bit
                match[self._by_bit[bit]] = Hit(num_tokens, num_tokens, is_exact=False)
        return match

    def predict(self, dest_key: DestinationKey, text: Text) -> None:
        """A prompt was sent there."""
        sent = self._sent.get(dest_key)
        if sent is None:
            sent = self._sent[dest_key] = _Sent(self._holders.take_slot())
            self._by_bit[sent.slot.bit] = dest_key
            self._holders.open(_PLACE)
        chunks = sent.chunks
        new = [key for key in text.keys if key not in chunks]
        # The last chunk first, so that a prompt's start outlives its end.
        for key in reversed(text.keys):
            chunks[key] = key
            chunks.move_to_end(key)
        self._holders.join(self._holders.tables[_PLACE], new, sent.slot)
        self._holders.num_blocks += len(new)
        self._holders.sweep(_SWEEP + len(new))
        while self._holders.num_blocks > self._max_chunks:
            if self._holders.sweep(_SWEEP):
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        sent = max(self._sent.values(), key=lambda one: len(one.chunks))
        for _ in range(max(1, len(sent.chunks) // 64)):
            key = sent.chunks.popitem(last=False)[1]
            self._holders.leave(self._holders.tables[_PLACE], key, sent.slot.bit)
            self._holders.num_blocks -= 1

    def remove_engine(self, engine_id: str) -> None:
        """Forget what was sent to all ranks of an engine; also to be called when it restarted."""
        for key in [key for key in self._sent if key[0] == engine_id]:
            sent = self._sent.pop(key)
            del self._by_bit[sent.slot.bit]
            self._holders.retire(sent.slot, [(_PLACE, sent.chunks)])
