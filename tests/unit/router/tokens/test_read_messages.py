"""The Messages API's prompts, translated."""

import json
from typing import Any

import pytest

from transload_router.core.bodies.members import read_members
from transload_router.core.tokens.job import ChatJob, Reason, Unknown
from transload_router.core.tokens.read import read_prompt

_ASK = {"role": "user", "content": "hi"}
_USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"z": "é"}}
_THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
_HEADER = {"type": "text", "text": "x-anthropic-billing-header: a"}
_TEXT = {"type": "text", "text": "t"}


def _read(**members: Any) -> Any:
    return read_prompt("messages", read_members(json.dumps(members).encode()))


def _chat(*messages: Any, **members: Any) -> list[dict[str, Any]]:
    job = _read(messages=messages, **members)
    assert isinstance(job, ChatJob), job
    return job.messages


def _turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def test_a_plain_request() -> None:
    job = _read(messages=[_ASK], system="s", max_tokens=5, cache_salt="c")

    assert job == ChatJob(
        messages=[{"role": "system", "content": "s"}, _ASK],
        tools=None,
        arguments={"add_generation_prompt": True, "continue_final_message": False},
        cache_salt="c",
        is_anthropic=True,
    )


def test_attribution_lines_are_dropped_from_blocks_only() -> None:
    system = [_HEADER, _TEXT, {"type": "text", "text": "u"}]

    assert _chat(_ASK, system=system)[0]["content"] == "tu"
    assert _chat(_ASK, system=[_HEADER]) == [_ASK]
    assert _chat(_ASK, system=_HEADER["text"])[0]["content"] == _HEADER["text"]
    assert _chat(_turn("system", _HEADER, _TEXT), _ASK)[0]["content"] == "t"
    assert _chat({"role": "system", "content": _HEADER["text"]}, _ASK) == [_ASK]


def test_blocks_become_text_calls_and_reasoning() -> None:
    assert _chat(_ASK, _turn("assistant", _THOUGHT, _TEXT, _USE))[1] == {
        "role": "assistant",
        "reasoning": "hm",
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "function": {"name": "f", "arguments": '{"z": "\\u00e9"}'},
            }
        ],
        "content": "t",
    }


def test_several_texts_stay_parts_and_empty_ones_go() -> None:
    assert _chat(_turn("user", _TEXT, {"type": "text", "text": ""}, _TEXT)) == [
        {"role": "user", "content": [{"type": "text", "text": "t"}] * 2}
    ]
    assert _chat(_turn("user"), _ASK) == [_ASK]
    assert _chat(_turn("assistant")) == [{"role": "assistant"}]


def test_results_stand_before_what_the_user_says_with_them() -> None:
    reference = {"type": "tool_reference", "tool_name": "g"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [_TEXT, _TEXT, reference]}

    assert _chat(_turn("user", _TEXT, result, {**result, "content": "x"})) == [
        {"role": "tool", "tool_call_id": "t1", "content": "t\nt"},
        {
            "role": "tool",
            "tool_call_id": "t1",
            "content": [{"type": "tool_reference", "name": "g"}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "x"},
        {"role": "user", "content": "t"},
    ]


def test_tools_have_the_chat_apis_shape() -> None:
    tools = [{"name": "f", "input_schema": {"properties": {}}, "strict": True}]

    assert _read(messages=[_ASK], tools=tools).tools == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": None,
                "parameters": {"properties": {}, "type": "object"},
                "strict": True,
            },
        }
    ]


def test_effort_and_thinking() -> None:
    job = _read(messages=[_ASK], output_config={"effort": "low"})
    assert job.arguments["reasoning_effort"] == "low"
    assert job.arguments["enable_thinking"] is True
    assert not job.is_thinking_disabled
    job = _read(
        messages=[_ASK],
        thinking={"type": "disabled"},
        chat_template_kwargs={"enable_thinking": True},
        tool_choice={"type": "none"},
    )
    assert job.is_thinking_disabled
    assert job.gives_enable_thinking
    assert job.is_tool_choice_none


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([{"type": "image", "source": {}}], Reason.MEDIA),
        ([{"type": "document"}], Reason.ITEM),
        ([{"type": "tool_result", "content": [{"type": "image"}]}], Reason.MEDIA),
        ([{"type": "text", "text": 1}], Reason.INVALID),
        ([{**_USE, "id": None}], Reason.INVALID),
        (["text"], Reason.INVALID),
    ],
)
def test_blocks_that_are_not_followed(blocks: list[Any], reason: Reason) -> None:
    assert _read(messages=[_turn("user", *blocks)]) == Unknown(reason)


def test_requests_that_are_not_followed() -> None:
    change = _turn("system", {"type": "tool_removal", "tool": {}})
    assert _read(messages=[change]) == Unknown(Reason.ITEM)
    assert _read(messages="hi") == Unknown(Reason.INVALID)
    assert _read(messages=[{"role": "tool", "content": "x"}]) == Unknown(Reason.INVALID)
    assert _read(messages=[_ASK], tools=[{"name": "f"}]) == Unknown(Reason.INVALID)
    assert _read(messages=[_ASK], output_config={"effort": "?"}) == Unknown(Reason.INVALID)
