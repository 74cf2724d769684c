"""Reading what a request's prompt is, beside the event loop where that takes long.

A body of many small values costs more than a text of the same length: some 25 ms a megabyte to
decode, in one go, and as much again to look through. So it is weighed first.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from transload_router.core.bodies.members import Members
from transload_router.core.tokens.job import KnownTokens, Reason, TokenizeJob, Unknown
from transload_router.core.tokens.read import read_prompt

# Decoding keeps the interpreter to itself: 300,000 strings with their names, 600,000 quotes, took
# 120 ms of an AMD EPYC core, so these take 50 ms at the most and 2 ms on the loop.
_MAX_MARKS = 250_000
_MAX_INLINE_MARKS = 10_000
# A million token ids as JSON; of texts, more than is tokenised within any deadline.
_MAX_BYTES = 8 << 20
_MAX_INLINE_BYTES = 1 << 20
# Shorter bodies need no weighing.
_LIGHT_BYTES = 64 << 10
_MAX_WAITING = 16

Read = TokenizeJob | KnownTokens | Unknown


class PromptReader:
    """Reads prompts, for one event loop. Close it when done."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._num_waiting = 0

    def close(self) -> None:
        """End the thread, after what it is doing."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def read(self, endpoint: str, members: Members, body: bytes) -> tuple[Read, bool]:
        """What a request's prompt is, or why that is not known.

        Args:
            endpoint: Name of its row in `core/bodies/endpoints`.
            members: The body's members.
            body: All of it, to be weighed.

        Returns:
            The prompt, and whether it is one to be rendered beside the loop, too.
        """
        if len(body) <= _LIGHT_BYTES:
            return read_prompt(endpoint, members), False
        if len(body) > _MAX_BYTES:
            return Unknown(Reason.NOT_READ), True
        num_marks = sum(map(body.count, (b'"', b"{", b"[")))
        if num_marks > _MAX_MARKS:
            return Unknown(Reason.NOT_READ), True
        if len(body) <= _MAX_INLINE_BYTES and num_marks <= _MAX_INLINE_MARKS:
            return read_prompt(endpoint, members), False
        if self._num_waiting >= _MAX_WAITING:
            return Unknown(Reason.NOT_READ), True
        future = asyncio.get_running_loop().run_in_executor(
            self._thread, read_prompt, endpoint, members
        )
        self._num_waiting += 1
        future.add_done_callback(self._left)
        return await future, True

    def _left(self, _: "asyncio.Future[Read]") -> None:
        self._num_waiting -= 1
