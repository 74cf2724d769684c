"""Which chunk may enter which step when: decisions over numbers, no threads and no clock.

**Rules.** A chunk passes the steps in order, and chunks pass each step in order. A step works on
one chunk at a time. A chunk enters the first step when the chunk that had its slot has left the
last one, so at most `depth` chunks are on their way. After `stop`, no chunk enters a step.
"""


class Schedule:
    """The state of one transfer.

    Args:
        num_chunks: To be passed through.
        num_steps: Each passes.
        depth: Slots: chunks on their way at most.
    """

    def __init__(self, num_chunks: int, num_steps: int, depth: int) -> None:
        self._num_chunks = num_chunks
        self._depth = depth
        self._entered = [0] * num_steps
        self._left = [0] * num_steps
        self._is_stopped = False

    def take(self, step: int) -> int | None:
        """Let the next chunk enter a step: its number, or None if it must wait or none will come.

        Who takes a chunk must call `leave` when the step's work is done.
        """
        chunk = self._entered[step]
        is_busy = chunk > self._left[step]
        may_enter = self._left[-1] + self._depth if step == 0 else self._left[step - 1]
        if self.is_over(step) or is_busy or chunk >= may_enter:
            return None
        self._entered[step] += 1
        return chunk

    def leave(self, step: int) -> None:
        """The chunk in a step is through it."""
        assert self._entered[step] == self._left[step] + 1, "no chunk is in this step"
        self._left[step] += 1

    def stop(self) -> None:
        """Let nothing enter any more; chunks within a step may leave it."""
        self._is_stopped = True

    def is_over(self, step: int) -> bool:
        """Whether no chunk will enter a step any more."""
        return self._is_stopped or self._entered[step] == self._num_chunks

    def num_done(self) -> int:
        """Chunks that have left the last step."""
        return self._left[-1]
