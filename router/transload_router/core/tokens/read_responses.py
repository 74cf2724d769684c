"""The Responses API -> a chat job, translated as vLLM 0.32.0 does.

After `entrypoints/openai/responses/utils.py:construct_input_messages` and the models of the
endpoint's protocol. Items of other kinds than messages, calls, their outputs and reasoning are not
followed. Unlike the chat endpoints, this one lets the tokenizer add its special tokens to the
rendered text (`ResponsesRequest.build_tok_params`).
"""

import json
from typing import Any

from transload_router.core.bodies.members import Members
from transload_router.core.tokens.arguments import template_arguments
from transload_router.core.tokens.job import ChatJob, Message, Reason, Unreadable
from transload_router.core.tokens.tools import function_dump
from transload_router.core.tokens.values import object_of, salt_of, text_of, value_of

_UNFINISHED = ("in_progress", "incomplete")


def read_responses(members: Members) -> ChatJob:
    """The prompt of a Responses request.

    Raises:
        Unreadable: The engine refuses it, holds a part of it, or translates it by rules not
            followed here.
    """
    for name in ("previous_response_id", "previous_input_messages"):
        if value_of(members, name) is not None:
            raise Unreadable(Reason.HISTORY)
    if text_of(members, "truncation") not in ("disabled",) and "truncation" in members:
        raise Unreadable(Reason.TRUNCATION)
    given = value_of(members, "input")
    goes_on = _goes_on(given)
    own = {
        "add_generation_prompt": not goes_on,
        "continue_final_message": goes_on,
        "reasoning_effort": (object_of(members, "reasoning") or {}).get("effort"),
    }
    return ChatJob(
        messages=_messages(text_of(members, "instructions"), given),
        tools=_tools(value_of(members, "tools")),
        arguments=template_arguments(object_of(members, "chat_template_kwargs"), own),
        add_special_tokens=True,
        cache_salt=salt_of(members),
        is_tool_choice_none=value_of(members, "tool_choice") == "none",
        is_typed=False,
    )


def _goes_on(given: Any) -> bool:
    """Whether the last item is an assistant's that was not finished."""
    last = given[-1] if isinstance(given, list) and given else None
    if not isinstance(last, dict) or last.get("type", "message") not in ("message", "reasoning"):
        return False
    return last.get("status") in _UNFINISHED


def _messages(instructions: str | None, given: Any) -> list[Message]:
    messages: list[Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
        return messages
    if not isinstance(given, list):
        raise Unreadable(Reason.INVALID)
    chat: list[Message] = []
    for item in given:
        if not isinstance(item, dict):
            raise Unreadable(Reason.INVALID)
        _add(chat, item)
    return messages + chat


def _add(chat: list[Message], item: dict[str, Any]) -> None:
    """One item: a message more, or a part of the assistant's message before it."""
    kind = item.get("type", "message")
    if kind == "function_call":
        _add_part(chat, "tool_calls", _call(item, item.get("arguments")))
    elif kind == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
        _add_part(chat, "tool_calls", _call(item, arguments))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        if not isinstance(item.get("output"), str) or not isinstance(item.get("call_id"), str):
            raise Unreadable(Reason.ITEM)
        chat.append({"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]})
    elif kind == "reasoning":
        _add_part(chat, "reasoning", _reasoning(item))
    elif kind == "message" and item.get("role") == "assistant":
        _add_part(chat, "content", _answer(item.get("content")))
    elif kind == "message" and item.get("role") in ("user", "system", "developer"):
        _check_parts(item.get("content"))
        chat.append({"role": item["role"], "content": item["content"]})
    else:
        raise Unreadable(Reason.ITEM)


def _add_part(chat: list[Message], member: str, value: Any) -> None:
    last = chat[-1] if chat and chat[-1]["role"] == "assistant" else None
    if last is None:
        last = {"role": "assistant"}
        chat.append(last)
        last[member] = [value] if member == "tool_calls" else value
    elif member == "tool_calls":
        last.setdefault(member, []).append(value)
    elif last.get(member) is None:
        last[member] = value
    else:
        chat.append({"role": "assistant", member: value})


def _call(item: dict[str, Any], arguments: Any) -> Message:
    name, call_id = item.get("name"), item.get("call_id")
    if not isinstance(name, str) or not isinstance(call_id, str) or item.get("namespace"):
        raise Unreadable(Reason.ITEM)
    return {
        "id": call_id,
        "function": {"name": name, "arguments": arguments},
        "type": "function",
    }


def _reasoning(item: dict[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise Unreadable(Reason.INVALID)
    for member in ("content", "summary"):
        parts = item.get(member)
        if isinstance(parts, list) and parts:
            return _part_text(parts[0])
    if not isinstance(item.get("summary"), list):
        raise Unreadable(Reason.INVALID)
    return ""


def _answer(content: Any) -> str:
    """An assistant's text: of several parts the engine takes the first."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Unreadable(Reason.ITEM)
    return _part_text(content[0])


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise Unreadable(Reason.ITEM)
    return text


def _check_parts(content: Any) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Unreadable(Reason.INVALID)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_image", "input_audio", "input_file"):
            raise Unreadable(Reason.MEDIA)
        if kind != "input_text":
            raise Unreadable(Reason.ITEM)


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    if not isinstance(tools, list):
        raise Unreadable(Reason.INVALID)
    dumps = []
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise Unreadable(Reason.ITEM)
        dumps.append({"type": "function", "function": function_dump(tool)})
    return dumps
