"""Which texts were tokenised, and how far a new one goes along with one of them.

A record is a text up to its last seam, its ids and the block keys that were made of them. It is
found by hashes of the text, chunk by chunk, each over all before it: the longest run of chunks
that some record shares is looked up first, and the record is then compared in full. So the next
turn of a conversation finds its last one whatever stands in front of both.
"""

from collections.abc import Iterator

import xxhash

from transload_router.core.prompt import KeysByBlock
from transload_router.core.tokens.lru import BytesLru

# Text between two points where a record can be found. A turn costs one hash per chunk (about
# 0.3 us each, as much again for the lookup); a record's rest behind its last chunk is searched for
# seams again.
_CHUNK_BYTES = 4096
# What a record weighs beside its bytes: objects, the table's entry, keys of 64 bits for blocks of
# 16 tokens and twice that for the integers that hold them.
_RECORD_BYTES = 600
_KEYS_BYTES_PER_TOKEN = 3

SaltedKeys = dict[tuple[str, str | None, str | None, bool], KeysByBlock]
"""Block keys by model, adapter, salt, and whether special tokens stand around the text."""


class Record:
    """A tokenised text.

    Attributes:
        text: UTF-8, up to the end of its last seam.
        start: Where that seam begins, in characters.
        tokens: Packed ids of the text up to `start`.
        keys: Block keys of prompts that began with these tokens.
        key: Where it is found; its parent's and its own are all that one conversation holds.
    """

    __slots__ = ("key", "keys", "parent_key", "start", "text", "tokens")

    def __init__(self, text: bytes, start: int, tokens: bytes) -> None:
        self.text = text
        self.start = start
        self.tokens = tokens
        self.keys: SaltedKeys = {}
        self.key: int | None = None
        self.parent_key: int | None = None

    @property
    def weight_bytes(self) -> int:
        """Roughly what it holds."""
        num_tokens = len(self.tokens) // 4
        return _RECORD_BYTES + len(self.text) + (4 + _KEYS_BYTES_PER_TOKEN) * num_tokens


class Prefixes:
    """Records of recent texts, bounded by bytes; one thread at a time."""

    def __init__(self, max_bytes: int) -> None:
        self._records: BytesLru[int, Record] = BytesLru(max_bytes)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_bytes(self) -> int:
        """What the records hold, roughly."""
        return self._records.num_bytes

    def find(self, text: bytes) -> Record | None:
        """The longest record that a text begins with."""
        for key in reversed(list(_chunk_keys(text))):
            record = self._records.get(key)
            if record is not None and text.startswith(record.text):
                return record
        return None

    def add(self, record: Record, parent: Record | None) -> None:
        """Keep a record.

        Its parent stays for siblings that branch off there; the parent's own parent goes.

        Args:
            record: Shorter than a chunk, it is not kept.
            parent: What `find` gave for its text.
        """
        for key in _chunk_keys(record.text):
            record.key = key
        if record.key is None:
            return
        if parent is not None and parent.key != record.key:
            record.parent_key = parent.key
            if parent.parent_key is not None:
                self._records.drop(parent.parent_key)
        elif parent is not None:
            record.parent_key = parent.parent_key
        self._records.put(record.key, record, record.weight_bytes)


def _chunk_keys(text: bytes) -> Iterator[int]:
    """One key for each whole chunk, over all up to its end."""
    key = 0
    view = memoryview(text)
    for start in range(0, len(text) - _CHUNK_BYTES + 1, _CHUNK_BYTES):
        key = xxhash.xxh3_64_intdigest(view[start : start + _CHUNK_BYTES], key)
        yield key
