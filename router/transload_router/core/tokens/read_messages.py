"""The Messages API -> a chat job, translated as vLLM 0.32.0 does.

After `entrypoints/anthropic/serving.py:to_chat_completion_request`. Where the engine looks at the
template to decide (inline system messages, disabled thinking), the job carries a flag and
`core/tokens/tokens` decides by the same probes.
"""

import json
from typing import Any

from transload_router.core.bodies.members import Members
from transload_router.core.tokens.arguments import template_arguments
from transload_router.core.tokens.job import ChatJob, Message, Reason, Unreadable
from transload_router.core.tokens.tools import function_dump
from transload_router.core.tokens.values import object_of, salt_of, value_of

_BILLING_HEADER = "x-anthropic-billing-header"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def read_messages(members: Members) -> ChatJob:
    """The prompt of a Messages request.

    Raises:
        Unreadable: The engine refuses it, or translates it by rules not followed here.
    """
    messages = value_of(members, "messages")
    if not isinstance(messages, list):
        raise Unreadable(Reason.INVALID)
    chat = _system(value_of(members, "system"))
    for message in messages:
        chat.extend(_translated(message))
    own = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "reasoning_effort": _effort(object_of(members, "output_config")),
    }
    thinking = object_of(members, "thinking")
    given = object_of(members, "chat_template_kwargs")
    return ChatJob(
        messages=chat,
        tools=_tools(value_of(members, "tools")),
        arguments=template_arguments(given, own),
        cache_salt=salt_of(members),
        is_anthropic=True,
        is_thinking_disabled=thinking is not None and thinking.get("type") == "disabled",
        gives_enable_thinking="enable_thinking" in (given or {}),
        is_tool_choice_none=(object_of(members, "tool_choice") or {}).get("type") == "none",
    )


def _effort(config: dict[str, Any] | None) -> str | None:
    effort = None if config is None else config.get("effort")
    if effort is not None and effort not in _EFFORTS:
        raise Unreadable(Reason.INVALID)
    return effort


def _system(system: Any) -> list[Message]:
    if not system:
        return []
    # A header in a plain string stays: only blocks are looked at.
    text = system if isinstance(system, str) else _system_text(system)
    return [{"role": "system", "content": text}] if text else []


def _system_text(content: Any) -> str:
    """A system message's text without the attribution line."""
    if isinstance(content, str):
        return "" if content.startswith(_BILLING_HEADER) else content
    texts = [_text(block) for block in _blocks(content) if block.get("type") == "text"]
    if any(block.get("type") in ("tool_addition", "tool_removal") for block in content):
        raise Unreadable(Reason.ITEM)
    return "".join(text for text in texts if not text.startswith(_BILLING_HEADER))


def _blocks(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise Unreadable(Reason.INVALID)
    return content


def _text(block: dict[str, Any], member: str = "text") -> str:
    """A block's text, "" where it is null or absent."""
    text = block.get(member)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise Unreadable(Reason.INVALID)
    return text


def _translated(message: Any) -> list[Message]:
    """One message as the chat API's: tool results become messages of their own, before it."""
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if role == "system":
        text = _system_text(content)
        return [{"role": "system", "content": text}] if text else []
    if role not in ("user", "assistant"):
        raise Unreadable(Reason.INVALID)
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results: list[Message] = []
    own = _from_blocks(role, _blocks(content), results)
    if role == "user" and "content" not in own:
        return results
    return [*results, own]


def _from_blocks(role: str, blocks: list[dict[str, Any]], results: list[Message]) -> Message:
    texts: list[str] = []
    calls: list[Message] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            if text := _text(block):
                texts.append(text)
        elif kind == "thinking":
            if block.get("thinking") is not None:
                thoughts.append(_text(block, "thinking"))
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            results.extend(_result(block))
        elif kind == "image":
            raise Unreadable(Reason.MEDIA)
        elif kind not in ("redacted_thinking", "tool_reference"):
            raise Unreadable(Reason.ITEM)
    own: Message = {"role": role}
    if thoughts:
        own["reasoning"] = "".join(thoughts)
    if calls:
        own["tool_calls"] = calls
    if len(texts) == 1:
        own["content"] = texts[0]
    elif texts:
        own["content"] = [{"type": "text", "text": text} for text in texts]
    return own


def _call(block: dict[str, Any]) -> Message:
    given = block.get("input") or {}
    # Without an id the engine makes one of the time.
    if not isinstance(given, dict) or not isinstance(block.get("id"), str) or not block["id"]:
        raise Unreadable(Reason.INVALID)
    function = {"name": _text(block, "name"), "arguments": json.dumps(given)}
    return {"id": block["id"], "type": "function", "function": function}


def _result(block: dict[str, Any]) -> list[Message]:
    content = block.get("content")
    call_id = _text(block, "tool_use_id")
    if content is None or isinstance(content, str):
        return [{"role": "tool", "tool_call_id": call_id, "content": content or ""}]
    texts: list[str] = []
    references: list[Message] = []
    for part in _blocks(content):
        kind = part.get("type")
        if kind == "text":
            texts.append(_text(part))
        elif kind == "tool_reference":
            name = part.get("tool_name") or part.get("name")
            if name:
                references.append({"type": "tool_reference", "name": name})
        elif kind == "image":
            raise Unreadable(Reason.MEDIA)
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)}
    ]
    if references:
        results.append({"role": "tool", "tool_call_id": call_id, "content": references})
    return results


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise Unreadable(Reason.INVALID)
    dumps = []
    for tool in tools:
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict):
            raise Unreadable(Reason.INVALID)
        parameters = schema if "type" in schema else {**schema, "type": "object"}
        function = function_dump({**tool, "parameters": parameters})
        dumps.append({"type": "function", "function": function})
    return dumps
