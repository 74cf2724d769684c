"""Which bytes of a read have come: ranges that never overlap, few at a time."""

from bisect import bisect_left
from typing import Final

MAX_SPANS: Final = 64
"""Apart from each other in one read (`WIRE.md`, section 9). A holder that sends in order needs one,
and one whose copies end in any order as many as it has under way."""


class Spans:
    """Ranges of one read, neighbours joined.

    Attributes:
        num_bytes: In all of them.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def overlaps(self, first: int, end: int) -> bool:
        """Whether any byte of a range, not empty, is among them."""
        at = bisect_left(self._ends, first + 1)
        return at < len(self._ends) and self._firsts[at] < end

    def len_with(self, first: int, end: int) -> int:
        """How many there would be with one more range, not empty, that does not overlap."""
        at = bisect_left(self._firsts, first)
        joins_left = at > 0 and self._ends[at - 1] == first
        joins_right = at < len(self._firsts) and self._firsts[at] == end
        return len(self) + 1 - joins_left - joins_right

    def add(self, first: int, end: int) -> None:
        """Take a range in that is not empty and does not overlap."""
        self.num_bytes += end - first
        at = bisect_left(self._firsts, first)
        joins_left = at > 0 and self._ends[at - 1] == first
        joins_right = at < len(self._firsts) and self._firsts[at] == end
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            del self._firsts[at]
        elif joins_left:
            self._ends[at - 1] = end
        elif joins_right:
            self._firsts[at] = first
        else:
            self._firsts.insert(at, first)
            self._ends.insert(at, end)
