"""An engine's tokenizer instead of the router's: asked for each prompt, answers remembered."""

import asyncio
from collections.abc import Awaitable, Callable

import xxhash

from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.asking import read_answer, tokenize_body
from transload_router.core.tokens.job import Reason, TokenizeJob, Unknown, Unreadable
from transload_router.core.tokens.lru import BytesLru
from transload_router.errors import EngineError

Ask = Callable[[bytes], Awaitable[bytes | None]]
"""Posts a body to some engine's `/tokenize`: the body of its 200, None where it refuses (4xx).

Raises `EngineError` for everything else.
"""

# What a remembered answer weighs beside its ids.
_ANSWER_BYTES = 300


class EngineTokenizer:
    """Asks; for one event loop.

    Attributes:
        num_asked: Questions so far.
        num_remembered: Prompts whose answer was remembered.
        num_failed: Questions that engines did not answer, or not in time.
    """

    def __init__(
        self,
        ask: Ask,
        model: str | None = None,
        *,
        max_in_flight: int = 32,
        deadline_s: float = 2.0,
        cache_bytes: int = 64 << 20,
    ) -> None:
        """Asks nothing yet.

        Args:
            ask: To an engine of the model.
            model: A name that the engine serves; None for its first.
            max_in_flight: Questions at a time; more are unknown at once.
            deadline_s: For one answer.
            cache_bytes: Room for answers.
        """
        self.num_asked = self.num_remembered = self.num_failed = 0
        self._ask = ask
        self._model = model
        self._max_in_flight = max_in_flight
        self._num_in_flight = 0
        self._deadline_s = deadline_s
        self._answers: BytesLru[int, bytes] = BytesLru(cache_bytes)

    async def tokenize(
        self, job: TokenizeJob, identity: Identity, *, is_heavy: bool = False
    ) -> Prompt | Unknown:
        """The token ids of a job, as the engine says; heavy ones are not asked for."""
        if is_heavy:
            # Writing the question would take the loop as long as reading the request did.
            return Unknown(Reason.TOO_MUCH)
        try:
            body = tokenize_body(job, self._model)
        except Unreadable as error:
            return Unknown(error.reason)
        key = xxhash.xxh3_128_intdigest(body)
        tokens = self._answers.get(key)
        if tokens is not None:
            self.num_remembered += 1
            return Prompt(identity, tokens, job.cache_salt)
        if self._num_in_flight >= self._max_in_flight:
            return Unknown(Reason.BUSY)
        answer = await self._asked(body)
        if isinstance(answer, Unknown):
            return answer
        self._answers.put(key, answer, _ANSWER_BYTES + len(answer))
        return Prompt(identity, answer, job.cache_salt)

    async def _asked(self, body: bytes) -> bytes | Unknown:
        self.num_asked += 1
        self._num_in_flight += 1
        try:
            async with asyncio.timeout(self._deadline_s):
                answer = await self._ask(body)
            return Unknown(Reason.INVALID) if answer is None else read_answer(answer)
        except TimeoutError:
            self.num_failed += 1
            return Unknown(Reason.DEADLINE)
        except (EngineError, ValueError):
            self.num_failed += 1
            return Unknown(Reason.ENGINE)
        finally:
            self._num_in_flight -= 1
