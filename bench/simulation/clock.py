"""Simulated time: callbacks in the order of their moments."""

import heapq
from collections.abc import Callable

Callback = Callable[[float], None]


class Clock:
    """Runs callbacks; those of one moment in the order they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_run = 0
        self._queue: list[tuple[float, int, Callback]] = []
        self._count = 0

    def at(self, moment_s: float, callback: Callback) -> None:
        """Call back at a moment, which is passed on; never before now."""
        self._count += 1
        heapq.heappush(self._queue, (max(moment_s, self.now_s), self._count, callback))

    def run(self) -> None:
        """Until nothing is left to do."""
        queue = self._queue
        while queue:
            self.now_s, _, callback = heapq.heappop(queue)
            self.num_run += 1
            callback(self.now_s)
