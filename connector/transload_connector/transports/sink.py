"""Where the payload of a read goes: pieces of memory that it fills one after the other."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


class Sink:
    """Writable memory of one read.

    Args:
        views: In the order of the payload; contiguous bytes.

    Raises:
        ValueError: A view cannot be written, or is not contiguous.
    """

    def __init__(self, views: Sequence[memoryview]) -> None:
        for number, view in enumerate(views):
            if view.readonly or not view.c_contiguous:
                raise ValueError(f"sink[{number}]: expected writable, contiguous bytes")
        self._views = [view.cast("B") for view in views if view.nbytes]
        self._starts = [0, *accumulate(len(view) for view in self._views)]

    @property
    def num_bytes(self) -> int:
        """Of all views."""
        return self._starts[-1]

    def release(self) -> None:
        """Let the memory go."""
        self._views.clear()

    def views(self, offset: int, num_bytes: int, most: int) -> list[memoryview]:
        """Where bytes of the payload belong.

        Args:
            offset: Of the first, in the payload.
            num_bytes: How many, all within the sink.
            most: How many views at most; the rest is left out.
        """
        found: list[memoryview] = []
        at = bisect_right(self._starts, offset) - 1
        while num_bytes and len(found) < most:
            first = offset - self._starts[at]
            view = self._views[at][first : first + num_bytes]
            found.append(view)
            offset += len(view)
            num_bytes -= len(view)
            at += 1
        return found
