"""Questions to an engine's `/tokenize`."""

import json
from typing import Any

import pytest

from transload_router.core.tokens.asking import read_answer, tokenize_body
from transload_router.core.tokens.job import ChatJob, Cut, Reason, TextJob, Unreadable

_USER = {"role": "user", "content": "u"}


def _job(*messages: Any, tools: Any = None, **fields: Any) -> ChatJob:
    arguments = {"add_generation_prompt": False, "continue_final_message": True, "mode": 1}
    return ChatJob(list(messages) or [_USER], tools, arguments, **fields)


def test_a_text() -> None:
    assert tokenize_body(TextJob("é"), "m") == (
        '{"add_special_tokens":true,"model":"m","prompt":"é"}'.encode()
    )


def test_a_conversation() -> None:
    said = {"role": "assistant", "content": "x", "reasoning_content": "r"}

    assert json.loads(tokenize_body(_job(_USER, said, tools=[{"type": "function"}]))) == {
        "add_special_tokens": False,
        "messages": [_USER, {"role": "assistant", "content": "x", "reasoning": "r"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "tools": [{"type": "function"}],
        "chat_template_kwargs": {"mode": 1},
    }


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (TextJob("a", cut=Cut(3)), Reason.TRUNCATION),
        (TextJob("\ud800"), Reason.INVALID),
        (_job(is_thinking_disabled=True), Reason.TEMPLATE_ARGUMENT),
        (_job(tools=[{}], is_tool_choice_none=True), Reason.TEMPLATE_ARGUMENT),
        (_job(_USER, {"role": "system", "content": "s"}, is_anthropic=True), Reason.ITEM),
        (_job({"role": "assistant", "tool_calls": []}, is_typed=False), Reason.ITEM),
    ],
)
def test_what_cannot_be_asked(job: Any, reason: Reason) -> None:
    with pytest.raises(Unreadable) as caught:
        tokenize_body(job)
    assert caught.value.reason == reason


def test_an_answer() -> None:
    body = b'{"count":2,"max_model_len":2048,"tokens":[1,2],"token_strs":null}'

    assert read_answer(body) == b"\x01\0\0\0\x02\0\0\0"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"tokens":["a"]}', b'{"tokens":[-1]}'])
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(ValueError, match="expected an answer of /tokenize"):
        read_answer(body)
