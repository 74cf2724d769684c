"""Steps in threads of their own, each working on another chunk; nothing is left running."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from transload_kernels.errors import BadArgument
from transload_kernels.pipeline.chunks import Chunk
from transload_kernels.pipeline.schedule import Schedule

Step = Callable[[Chunk], object]
"""Does a step's work on one chunk, and returns when its slot may go on to the next step."""


class Cancelled(Exception):
    """`Pipeline.cancel` was called; some chunks may have passed, in order from the first."""


class Pipeline:
    """One transfer: chunks through named steps, say gather and send, or receive and scatter.

    Step functions are called from threads of the pipeline's own, each step always from the same
    thread, and never two chunks at once in one step. `depth` slots bound what is on its way.

    Args:
        chunks: As planned.
        steps: (name, function) in order, one or more.
        depth: The plan's.

    Raises:
        BadArgument: No steps, or chunks of the plan would share a slot at this depth.
    """

    def __init__(
        self, chunks: Sequence[Chunk], steps: Sequence[tuple[str, Step]], depth: int
    ) -> None:
        if not steps:
            raise BadArgument("steps: expected one or more")
        if depth < 1 or len({chunk.slot for chunk in chunks}) < min(depth, len(chunks)):
            raise BadArgument(f"depth: {depth} is not that of the chunks' plan")
        self._chunks = chunks
        self._steps = steps
        self._schedule = Schedule(len(chunks), len(steps), depth)
        self._turn = threading.Condition()
        self._is_started = False
        self._is_cancelled = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Pass all chunks, once; returns when the last is through, and no thread is left.

        Raises:
            Cancelled: By `cancel`; steps that were at work were waited for.
            BaseException: What a step raised first, with a note of step and chunk; other steps
                finish the chunk that they are at, and no chunk enters a step after that.
        """
        if self._is_started:
            raise BadArgument("pipeline: has been run; make one for each transfer")
        self._is_started = True
        with ThreadPoolExecutor(len(self._steps), "transload-step") as threads:
            # Also of a thread that cannot be started, which others would wait for.
            try:
                futures = [threads.submit(self._work, step) for step in range(len(self._steps))]
                wait(futures)
            except BaseException as interruption:
                self._stop(interruption)
                raise
        if self._failure is not None:
            raise self._failure
        for future in futures:
            future.result()
        if self._is_cancelled and self._schedule.num_done() < len(self._chunks):
            raise Cancelled(f"after {self._schedule.num_done()} of {len(self._chunks)} chunks")

    def cancel(self) -> None:
        """Let no further chunk enter a step. From any thread, any number of times; no waiting."""
        with self._turn:
            self._is_cancelled = True
            self._schedule.stop()
            self._turn.notify_all()

    def _work(self, step: int) -> None:
        name, work = self._steps[step]
        while (number := self._take(step)) is not None:
            try:
                work(self._chunks[number])
            except BaseException as error:
                error.add_note(f"in step {name!r}, chunk {number} of {len(self._chunks)}")
                self._stop(error)
                raise
            self._leave(step)

    def _take(self, step: int) -> int | None:
        with self._turn:
            while not self._schedule.is_over(step):
                number = self._schedule.take(step)
                if number is not None:
                    return number
                self._turn.wait()
            return None

    def _leave(self, step: int) -> None:
        with self._turn:
            self._schedule.leave(step)
            self._turn.notify_all()

    def _stop(self, failure: BaseException) -> None:
        with self._turn:
            self._failure = self._failure or failure
            self._schedule.stop()
            self._turn.notify_all()
