"""The router's own tokenizer beside the event loop.

Small work is done where it is asked for: a thread costs about as much as 200 characters, and one
that runs Python takes the loop's interpreter for up to 5 ms at a time. What is encoded in a
thread leaves the interpreter to the loop.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.job import ChatJob, Reason, TokenizeJob, Unknown
from transload_router.core.tokens.tokens import Plan, Tokens

# Text that is encoded on the loop, in at most 1 ms (0.4 us per character; bench/tokens.py).
_INLINE_CHARACTERS = 2048
# Conversations that are rendered on the loop, in at most 5 ms (5 us per message and a template of
# Llama's or Qwen's kind; bench/tokens.py): behind that a thread is no worse for the loop.
_INLINE_MESSAGES = 1000
_INLINE_TEXT_CHARACTERS = 4 << 20


class PromptTokenizer(Protocol):
    """Whatever turns jobs into prompts."""

    async def tokenize(
        self, job: TokenizeJob, identity: Identity, *, is_heavy: bool = False
    ) -> Prompt | Unknown:
        """The token ids of a job, or why they are not known; may be cancelled.

        Args:
            job: What to render and tokenise.
            identity: Whose tokens they are.
            is_heavy: Whether the loop is to be spared all of it.
        """


class LocalTokenizer:
    """`Tokens` for one event loop. Close it when done.

    Attributes:
        tokens: What it runs; for its statistics.
        num_waiting: Jobs with its threads, running or not.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        num_threads: int = 2,
        max_waiting: int = 64,
        deadline_s: float = 2.0,
    ) -> None:
        """Starts no thread yet.

        Args:
            tokens: Guarded by a lock.
            num_threads: For long texts; each takes a core while it encodes.
            max_waiting: Jobs with the threads; more are unknown at once.
            deadline_s: How long a job may take there.
        """
        self.tokens = tokens
        self.num_waiting = 0
        self._max_waiting = max_waiting
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")

    def close(self) -> None:
        """End the threads, after what they are doing; what waits is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def tokenize(
        self, job: TokenizeJob, identity: Identity, *, is_heavy: bool = False
    ) -> Prompt | Unknown:
        """The token ids of a job.

        Unknown where too many others wait, or its deadline passed; a thread that encodes goes on
        to the end then, and its work is remembered.
        """
        if is_heavy or _is_long(job):
            return await self._in_thread(job, identity)
        plan = self.tokens.plan(job, identity)
        if isinstance(plan, Unknown):
            return plan
        if plan.num_new_characters <= _INLINE_CHARACTERS:
            return self.tokens.finish(plan)
        return await self._in_thread(plan, identity)

    async def _in_thread(self, work: TokenizeJob | Plan, identity: Identity) -> Prompt | Unknown:
        if self.num_waiting >= self._max_waiting:
            return Unknown(Reason.BUSY)
        loop = asyncio.get_running_loop()
        if isinstance(work, Plan):
            future = loop.run_in_executor(self._threads, self.tokens.finish, work)
        else:
            future = loop.run_in_executor(self._threads, self.tokens.prompt, work, identity)
        self.num_waiting += 1
        future.add_done_callback(self._left)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await future
        except TimeoutError:
            return Unknown(Reason.DEADLINE)

    def _left(self, _: "asyncio.Future[Prompt | Unknown]") -> None:
        self.num_waiting -= 1


def _is_long(job: TokenizeJob) -> bool:
    if not isinstance(job, ChatJob):
        return len(job.text) > _INLINE_TEXT_CHARACTERS
    if len(job.messages) > _INLINE_MESSAGES:
        return True
    contents = (m.get("content") for m in job.messages if isinstance(m, dict))
    return sum(len(c) for c in contents if isinstance(c, str)) > _INLINE_TEXT_CHARACTERS
