"""A cache bounded by the bytes it holds; the least recently used goes first."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BytesLru(Generic[K, V]):
    """Not for several threads at once: who shares it, guards it.

    Attributes:
        num_bytes: What the entries weigh together, as their owners said.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The entry, now the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, weight_bytes: int) -> None:
        """Keep an entry, if it fits at all; others go until it does.

        Args:
            key: Replaces what was there.
            value: The entry.
            weight_bytes: What it weighs, key and all.
        """
        self.drop(key)
        if weight_bytes > self._max_bytes:
            return
        self._entries[key] = value, weight_bytes
        self.num_bytes += weight_bytes
        while self.num_bytes > self._max_bytes:
            _, (_, weight) = self._entries.popitem(last=False)
            self.num_bytes -= weight

    def drop(self, key: K) -> None:
        """Forget an entry, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry[1]
