"""The Responses API's prompts, translated."""

import json
from typing import Any

import pytest

from transload_router.core.bodies.members import read_members
from transload_router.core.tokens.job import ChatJob, Reason, Unknown
from transload_router.core.tokens.read import read_prompt

_ASK = {"role": "user", "content": "hi"}
_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
_SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]}
_THOUGHT = {"type": "reasoning", "summary": [], "content": [{"text": "hm"}]}


def _read(given: Any, **members: Any) -> Any:
    return read_prompt("responses", read_members(json.dumps({"input": given, **members}).encode()))


def _chat(*items: Any) -> list[dict[str, Any]]:
    job = _read(list(items))
    assert isinstance(job, ChatJob), job
    return job.messages


def test_a_text_and_instructions() -> None:
    assert _read("hi", instructions="s", reasoning={"effort": "low"}, cache_salt="c") == ChatJob(
        messages=[{"role": "system", "content": "s"}, _ASK],
        tools=None,
        arguments={
            "add_generation_prompt": True,
            "continue_final_message": False,
            "reasoning_effort": "low",
            "enable_thinking": True,
        },
        add_special_tokens=True,
        cache_salt="c",
        is_typed=False,
    )


def test_reasoning_text_and_calls_gather_in_one_turn() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}, "type": "function"}

    assert _chat(_ASK, _THOUGHT, _SAID, _CALL, _CALL) == [
        _ASK,
        {"role": "assistant", "reasoning": "hm", "content": "t", "tool_calls": [call, call]},
    ]
    assert _chat(_SAID, _SAID) == [{"role": "assistant", "content": "t"}] * 2


def test_outputs_are_the_tools_turns() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}

    assert _chat(_CALL, output)[1] == {"role": "tool", "content": "x", "tool_call_id": "c"}


def test_a_custom_call_carries_its_text_as_an_argument() -> None:
    item = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "é"}

    assert _chat(item)[0]["tool_calls"][0]["function"]["arguments"] == '{"input": "é"}'


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_an_unfinished_turn_is_gone_on_with(status: str) -> None:
    job = _read([_ASK, {**_SAID, "status": status}])

    assert job.arguments == {"add_generation_prompt": False, "continue_final_message": True}
    assert _read([_ASK, {**_SAID, "status": "completed"}]).arguments["add_generation_prompt"]


def test_tools_are_dumped_as_the_chat_apis() -> None:
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": False}

    assert _read("hi", tools=[tool]).tools == [
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": {}, "strict": False},
        }
    ]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"previous_response_id": "r"}, Reason.HISTORY),
        ({"previous_input_messages": []}, Reason.HISTORY),
        ({"truncation": "auto"}, Reason.TRUNCATION),
        ({"truncation": None}, Reason.TRUNCATION),
        ({"tools": [{"type": "web_search"}]}, Reason.ITEM),
        ({"tools": {"a": 1}}, Reason.INVALID),
        ({"input": 5}, Reason.INVALID),
        ({"input": [5]}, Reason.INVALID),
        ({"input": [{"type": "item_reference", "id": "x"}]}, Reason.ITEM),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, Reason.MEDIA),
        ({"input": [{"role": "user", "content": [{"type": "text"}]}]}, Reason.ITEM),
        ({"input": [{"role": "user", "content": 1}]}, Reason.INVALID),
        ({"input": [{**_CALL, "namespace": "n"}]}, Reason.ITEM),
        ({"input": [{**_SAID, "content": []}]}, Reason.ITEM),
        ({"input": [{"type": "function_call_output", "output": []}]}, Reason.ITEM),
        ({"input": [{**_THOUGHT, "encrypted_content": "x"}]}, Reason.INVALID),
        ({"input": [{"type": "reasoning"}]}, Reason.INVALID),
    ],
)
def test_what_is_not_followed(members: dict[str, Any], reason: Reason) -> None:
    body = {"input": "hi", **members}

    assert _read(body.pop("input"), **body) == Unknown(reason)


def test_a_summary_stands_for_missing_reasoning() -> None:
    assert _chat({"type": "reasoning", "summary": [{"text": "s"}]})[0]["reasoning"] == "s"
    assert _chat({"type": "reasoning", "summary": []})[0]["reasoning"] == ""
