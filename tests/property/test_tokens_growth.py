"""Conversations that grow, branch and repeat: going on from what is known changes no id, no key."""

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_tokenizers import CHATML, SEGMENTED, noon
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.chat import Chat, Templates
from transload_router.core.tokens.encoder import Encoder
from transload_router.core.tokens.job import ChatJob
from transload_router.core.tokens.template import Template
from transload_router.core.tokens.tokens import Tokens

_WORDS = [
    "is",
    " ",
    "\n",
    "user",
    "block",
    "naïve ",
    "東京",
    "🙂",
    "<|im_end|>",
    "<|im_start|>",
    "<",
]
_TEXTS = st.one_of(
    st.lists(st.sampled_from(_WORDS), max_size=12).map("".join),
    # Longer than a chunk, so that records are found.
    st.lists(st.sampled_from(_WORDS), min_size=3, max_size=6).map(
        lambda words: "".join(words) * 400
    ),
    st.text(max_size=20),
)
_TURNS = st.lists(st.tuples(st.sampled_from(("user", "assistant")), _TEXTS), min_size=1, max_size=5)


@functools.cache
def _encoder(name: str) -> Encoder:
    return Encoder(SEGMENTED[name]())


@functools.cache
def _chat() -> Chat:
    template = Template(CHATML, noon)
    return Chat(Templates(plain=template, tool_use=template), {})


def _prompt(tokens: Tokens, turns: list[tuple[str, str]], *, is_dressed: bool) -> Prompt:
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    arguments = {"add_generation_prompt": True}
    job = ChatJob(messages, None, arguments, add_special_tokens=is_dressed)
    prompt = tokens.prompt(job, Identity("m"))
    assert isinstance(prompt, Prompt)
    return prompt


def _text(turns: list[tuple[str, str]]) -> str:
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return f"{said}<|im_start|>assistant\n"


@pytest.mark.parametrize("name", SEGMENTED)
@settings(max_examples=12, deadline=None)
@given(first=_TURNS, branches=st.lists(_TURNS, min_size=1, max_size=4), is_dressed=st.booleans())
def test_going_on_gives_what_starting_over_gives(
    name: str,
    first: list[tuple[str, str]],
    branches: list[list[tuple[str, str]]],
    is_dressed: bool,
) -> None:
    encoder = _encoder(name)
    tokens = Tokens(encoder, _chat())
    assert tokens.is_segmented
    turns = list(first)
    conversations = [turns]
    for number, branch in enumerate(branches):
        # Every other branch leaves the conversation where it was; the rest go on.
        conversations.append([*turns, *branch])
        turns = turns if number % 2 else conversations[-1]
    for conversation in [*conversations, *conversations]:
        prompt = _prompt(tokens, conversation, is_dressed=is_dressed)

        whole = encoder.whole(_text(conversation), add_special_tokens=is_dressed)
        assert prompt.tokens == whole
        alone = Prompt(Identity("m"), whole)
        for block_size in (16, 64):
            assert prompt.keys(block_size) == alone.keys(block_size)
    assert tokens.stats.num_whole == 0


@pytest.mark.parametrize("name", SEGMENTED)
@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            [*_WORDS, "<|im_end|>er", "<mask>", " <tail> ", "<word>", "a<word>", "<plain>", "\t\t"]
        ),
        max_size=14,
    )
)
def test_segment_by_segment_is_whole(name: str, parts: list[str]) -> None:
    encoder = _encoder(name)
    text = "".join(parts)

    assert encoder.joined(text) == encoder.whole(text)
