"""The tokenizer beside the event loop: what runs where, how much waits, for how long."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.small_tokenizers import CHATML, byte_level, noon
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.chat import Chat, Templates
from transload_router.core.tokens.encoder import Encoder, Segment
from transload_router.core.tokens.job import ChatJob, Reason, TextJob, Unknown
from transload_router.core.tokens.template import Template
from transload_router.core.tokens.tokens import Tokens
from transload_router.io.tokenizer import LocalTokenizer

_ME = Identity("m")
_SHORT = "is it? " * 10
_LONG = "is it? " * 400


class _Watched(Encoder):
    """Tells which threads encode, and holds those that are not the loop's until let go."""

    def __init__(self) -> None:
        self.threads: list[bool] = []
        self.let_go = threading.Event()
        self.let_go.set()
        super().__init__(byte_level())

    def segment(self, segment: Segment) -> bytes:
        is_loops = threading.current_thread() is threading.main_thread()
        self.threads.append(is_loops)
        if not is_loops:
            assert self.let_go.wait(30)
        return super().segment(segment)


@pytest.fixture
def encoder() -> _Watched:
    encoder = _Watched()
    encoder.threads.clear()
    return encoder


@pytest.fixture
def local(encoder: _Watched) -> Iterator[LocalTokenizer]:
    template = Template(CHATML, noon)
    chat = Chat(Templates(plain=template, tool_use=template), {})
    tokens = Tokens(encoder, chat, threading.Lock())
    local = LocalTokenizer(tokens, num_threads=1, max_waiting=2, deadline_s=20)
    yield local
    encoder.let_go.set()
    local.close()


def _spied(plan: Callable[..., Any], on_loop: list[bool]) -> Callable[..., Any]:
    def spied(*arguments: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return plan(*arguments)

    return spied


def _job(*texts: str) -> ChatJob:
    messages = [{"role": "user", "content": text} for text in texts]
    return ChatJob(messages, None, {"add_generation_prompt": True})


async def test_short_texts_are_encoded_on_the_loop_and_long_ones_beside_it(
    local: LocalTokenizer, encoder: _Watched
) -> None:
    assert isinstance(await local.tokenize(_job(_SHORT), _ME), Prompt)
    assert set(encoder.threads) == {True}
    encoder.threads.clear()

    prompt = await local.tokenize(_job(_LONG), _ME)

    assert set(encoder.threads) == {False}
    assert isinstance(prompt, Prompt)
    assert prompt.tokens == encoder.whole(
        f"<|im_start|>user\n{_LONG}<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_long_conversation_with_little_new_text_stays_on_the_loop(
    local: LocalTokenizer, encoder: _Watched
) -> None:
    await local.tokenize(_job(_LONG), _ME)
    encoder.threads.clear()

    await local.tokenize(_job(_LONG, _SHORT), _ME)

    assert set(encoder.threads) == {True}


async def test_conversations_of_many_messages_are_rendered_beside_the_loop(
    local: LocalTokenizer, encoder: _Watched
) -> None:
    prompt = await local.tokenize(_job(*["u"] * 1001), _ME)

    assert isinstance(prompt, Prompt)
    assert set(encoder.threads) == {False}


@pytest.mark.parametrize("kind", ["text", "chat"])
async def test_so_are_very_long_texts(
    local: LocalTokenizer, encoder: _Watched, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    text = "<|im_end|>" * 420_000
    on_loop: list[bool] = []
    monkeypatch.setattr(local.tokens, "plan", _spied(local.tokens.plan, on_loop))

    prompt = await local.tokenize(TextJob(text) if kind == "text" else _job(text), _ME)

    assert isinstance(prompt, Prompt)
    assert on_loop == [False]


async def test_seams_alone_need_no_encoding(local: LocalTokenizer, encoder: _Watched) -> None:
    job = TextJob("<|im_end|>" * 420_000)

    assert isinstance(await local.tokenize(job, _ME), Prompt)
    assert encoder.threads == []  # nothing between its seams
    assert local.tokens.stats.num_tokens == 420_000


async def test_too_many_at_once_are_not_known(local: LocalTokenizer, encoder: _Watched) -> None:
    encoder.let_go.clear()
    waiting = [
        asyncio.ensure_future(local.tokenize(_job(f"{number} {_LONG}"), _ME)) for number in range(2)
    ]
    await asyncio.sleep(0)
    assert local.num_waiting == 2

    assert await local.tokenize(_job(f"2 {_LONG}"), _ME) == Unknown(Reason.BUSY)
    assert isinstance(await local.tokenize(_job(_SHORT), _ME), Prompt)

    encoder.let_go.set()
    assert all(isinstance(prompt, Prompt) for prompt in await asyncio.gather(*waiting))
    assert local.num_waiting == 0
    assert isinstance(await local.tokenize(_job(f"3 {_LONG}"), _ME), Prompt)


async def test_a_deadline_ends_the_wait_and_what_was_encoded_is_remembered(
    encoder: _Watched,
) -> None:
    template = Template(CHATML, noon)
    chat = Chat(Templates(plain=template, tool_use=template), {})
    local = LocalTokenizer(Tokens(encoder, chat, threading.Lock()), num_threads=1, deadline_s=0.01)
    encoder.let_go.clear()

    assert await local.tokenize(_job(_LONG), _ME) == Unknown(Reason.DEADLINE)

    encoder.let_go.set()
    local._threads.shutdown(wait=True)
    plan = local.tokens.plan(_job(_LONG), _ME)
    assert not isinstance(plan, Unknown)
    assert plan.num_new_characters == 0


async def test_reasons_come_through(local: LocalTokenizer) -> None:
    assert await local.tokenize(_job(), _ME) == Unknown(Reason.INVALID)
