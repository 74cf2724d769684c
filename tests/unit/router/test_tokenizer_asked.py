"""An engine's tokenizer, asked per prompt."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.job import Cut, Reason, TextJob, Unknown
from transload_router.errors import EngineReset
from transload_router.io.tokenizer import EngineTokenizer

_ME = Identity("m")


class _Engine:
    """Answers with the length of what it was asked, until told otherwise."""

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes | None]] | None = None) -> None:
        self.asked: list[bytes] = []
        self._answer = answer

    async def __call__(self, body: bytes) -> bytes | None:
        self.asked.append(body)
        if self._answer is not None:
            return await self._answer(body)
        return b'{"count":1,"tokens":[%d]}' % len(body)


async def _refuse(_: bytes) -> bytes | None:
    return None


async def _babble(_: bytes) -> bytes | None:
    return b"{}"


async def _break(_: bytes) -> bytes | None:
    raise EngineReset("prefill-0", "gone")


async def _stall(_: bytes) -> bytes | None:
    await asyncio.get_running_loop().create_future()
    return None


async def test_an_answer_is_remembered() -> None:
    engine = _Engine()
    tokenizer = EngineTokenizer(engine, "m")

    first = await tokenizer.tokenize(TextJob("a", cache_salt="s"), _ME)
    again = await tokenizer.tokenize(TextJob("a", cache_salt="t"), _ME)

    assert engine.asked == [b'{"add_special_tokens":true,"model":"m","prompt":"a"}']
    for prompt, salt in ((first, "s"), (again, "t")):
        assert isinstance(prompt, Prompt)
        assert (prompt.tokens, prompt.cache_salt) == (b"\x34\0\0\0", salt)
    assert (tokenizer.num_asked, tokenizer.num_remembered, tokenizer.num_failed) == (1, 1, 0)


async def test_answers_are_forgotten_in_time() -> None:
    engine = _Engine()
    tokenizer = EngineTokenizer(engine, cache_bytes=700)
    for text in "abca":
        await tokenizer.tokenize(TextJob(text), _ME)

    assert tokenizer.num_asked == 4


@pytest.mark.parametrize(
    ("answer", "reason", "num_failed"),
    [
        (_refuse, Reason.INVALID, 0),
        (_babble, Reason.ENGINE, 1),
        (_break, Reason.ENGINE, 1),
        (_stall, Reason.DEADLINE, 1),
    ],
)
async def test_what_is_no_answer(
    answer: Callable[[bytes], Awaitable[bytes | None]], reason: Reason, num_failed: int
) -> None:
    tokenizer = EngineTokenizer(_Engine(answer), deadline_s=0.05)

    assert await tokenizer.tokenize(TextJob("a"), _ME) == Unknown(reason)
    assert tokenizer.num_failed == num_failed
    # Nothing of it stays: the next one is asked again.
    await tokenizer.tokenize(TextJob("a"), _ME)
    assert tokenizer.num_asked == 2


async def test_what_cannot_be_asked_is_not() -> None:
    engine = _Engine()

    answer = await EngineTokenizer(engine).tokenize(TextJob("a", cut=Cut(3)), _ME)

    assert answer == Unknown(Reason.TRUNCATION)
    assert engine.asked == []


async def test_questions_at_a_time_are_bounded() -> None:
    engine = _Engine(_stall)
    tokenizer = EngineTokenizer(engine, max_in_flight=1, deadline_s=20)
    first = asyncio.ensure_future(tokenizer.tokenize(TextJob("a"), _ME))
    await asyncio.sleep(0)
    assert len(engine.asked) == 1

    assert await tokenizer.tokenize(TextJob("b"), _ME) == Unknown(Reason.BUSY)

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(tokenizer.tokenize(TextJob("b"), _ME))
    await asyncio.sleep(0)
    assert len(engine.asked) == 2
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
