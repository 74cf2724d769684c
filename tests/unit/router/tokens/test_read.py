"""What each endpoint's prompt is, member by member."""

import json
from typing import Any

import pytest

from transload_router.core.bodies.members import read_members
from transload_router.core.tokens.job import (
    ChatJob,
    Cut,
    KnownTokens,
    Reason,
    TextJob,
    Unknown,
)
from transload_router.core.tokens.read import cut_tokens, read_prompt

_HI = [{"role": "user", "content": "hi"}]
_ONE_TWO = b"\x01\x00\x00\x00\x02\x00\x00\x00"


def _read(endpoint: str, body: Any) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_prompt(endpoint, read_members(raw))


def _reason(endpoint: str, body: Any) -> Reason:
    answer = _read(endpoint, body)
    assert isinstance(answer, Unknown), answer
    return answer.reason


def test_a_chat_is_its_messages_and_what_the_template_is_told() -> None:
    job = _read("chat", {"messages": _HI, "cache_salt": "s", "temperature": 0.5, "stream": True})

    assert job == ChatJob(
        messages=_HI,
        tools=None,
        arguments={"add_generation_prompt": True, "continue_final_message": False},
        cache_salt="s",
    )


def test_fields_of_a_chat_win_over_its_template_arguments_and_unset_ones_are_left_out() -> None:
    job = _read(
        "chat",
        {
            "messages": _HI,
            "chat_template_kwargs": {
                "add_generation_prompt": False,
                "documents": [1],
                "nothing": None,
                "chosen": "auto",
                "mine": [1, 2],
            },
            "reasoning_effort": "none",
        },
    )

    assert job.arguments == {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "documents": [1],
        "mine": [1, 2],
        "reasoning_effort": "none",
        "enable_thinking": False,
    }


def test_an_effort_leaves_thinking_to_who_sets_it() -> None:
    given = {"enable_thinking": False}

    job = _read(
        "chat", {"messages": _HI, "chat_template_kwargs": given, "reasoning_effort": "high"}
    )

    assert job.arguments["enable_thinking"] is False


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, Reason.INVALID),
        ({"messages": "hi"}, Reason.INVALID),
        ({"messages": []}, Reason.INVALID),
        ({"messages": _HI, "chat_template": "{{ 1 }}"}, Reason.TEMPLATE_IN_BODY),
        ({"messages": _HI, "chat_template_kwargs": {"tools": []}}, Reason.TEMPLATE_ARGUMENT),
        ({"messages": _HI, "chat_template_kwargs": {"tokenize": True}}, Reason.TEMPLATE_ARGUMENT),
        ({"messages": _HI, "chat_template_kwargs": [1]}, Reason.INVALID),
        ({"messages": _HI, "add_generation_prompt": 1}, Reason.INVALID),
        ({"messages": _HI, "continue_final_message": True}, Reason.INVALID),
        ({"messages": _HI, "reasoning_effort": "huge"}, Reason.INVALID),
        ({"messages": _HI, "documents": [{"title": 1}]}, Reason.INVALID),
        ({"messages": _HI, "documents": {}}, Reason.INVALID),
        ({"messages": _HI, "tools": []}, Reason.INVALID),
        ({"messages": _HI, "cache_salt": ""}, Reason.INVALID),
        ({"messages": _HI, "truncate_prompt_tokens": -1}, Reason.TRUNCATION),
        ({"messages": _HI, "truncate_prompt_tokens": 0}, Reason.TRUNCATION),
        ({"messages": _HI, "truncate_prompt_tokens": True}, Reason.INVALID),
        ({"messages": _HI, "truncation_side": "middle"}, Reason.INVALID),
    ],
)
def test_what_is_not_known_of_a_chat(body: dict[str, Any], reason: Reason) -> None:
    assert _reason("chat", body) == reason


def test_a_text_has_special_tokens_added_unless_it_says_otherwise() -> None:
    assert _read("completions", {"prompt": "a"}) == TextJob("a")
    assert _read("completions", {"prompt": ["a"]}) == TextJob("a")
    assert _read(
        "completions",
        {
            "prompt": "a",
            "add_special_tokens": False,
            "truncate_prompt_tokens": 3,
            "truncation_side": "right",
            "cache_salt": "s",
        },
    ) == TextJob("a", add_special_tokens=False, cut=Cut(3, "right"), cache_salt="s")


def test_ids_need_no_tokenizer() -> None:
    assert _read("completions", {"prompt": [1, 2]}) == KnownTokens(_ONE_TWO)
    assert _read("completions", {"prompt": [[1, 2]], "cache_salt": "s"}) == KnownTokens(
        _ONE_TWO, "s"
    )
    assert _read("generate", {"token_ids": [1, 2], "sampling_params": {}}) == KnownTokens(_ONE_TWO)


def test_ids_are_cut_on_the_left_unless_told_otherwise() -> None:
    cut = {"prompt": [7, 1, 2], "truncate_prompt_tokens": 2}

    assert _read("completions", cut) == KnownTokens(_ONE_TWO)
    assert _read("completions", {**cut, "prompt": [1, 2, 7], "truncation_side": "right"}) == (
        KnownTokens(_ONE_TWO)
    )
    assert cut_tokens(_ONE_TWO, Cut(5)) == _ONE_TWO


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, Reason.INVALID),
        ({"prompt": ""}, Reason.INVALID),
        ({"prompt": []}, Reason.INVALID),
        ({"prompt": [True]}, Reason.INVALID),
        ({"prompt": [1.5]}, Reason.INVALID),
        ({"prompt": [-1]}, Reason.INVALID),
        ({"prompt": [1 << 40]}, Reason.INVALID),
        ({"prompt": ["a", "b"]}, Reason.SEVERAL_PROMPTS),
        ({"prompt": [[1], [2]]}, Reason.SEVERAL_PROMPTS),
        ({"prompt": "a", "suffix": "b"}, Reason.SUFFIX),
        ({"prompt": "a", "prompt_embeds": "aGk="}, Reason.EMBEDS),
    ],
)
def test_what_is_not_known_of_a_completion(body: dict[str, Any], reason: Reason) -> None:
    assert _reason("completions", body) == reason


def test_media_and_foreign_endpoints_are_not_known() -> None:
    assert _reason("generate", {"token_ids": [1], "features": {}}) == Reason.MEDIA
    assert _reason("generate", {}) == Reason.INVALID
    assert _reason("embeddings", {"input": "a"}) == Reason.ENDPOINT


def test_numbers_and_half_characters_are_read_as_pythons_json_reads_them() -> None:
    messages = b'[{"role": "user", "content": "\\ud800"}]'
    body = b'{"messages": %b, "chat_template_kwargs": {"n": NaN}}' % messages

    job = _read("chat", body)

    assert job.messages == [{"role": "user", "content": "\ud800"}]
    assert str(job.arguments["n"]) == "nan"
