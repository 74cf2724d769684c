"""Messages of the chat API -> the conversation that a chat template sees.

Follows what vLLM 0.32.0 does between the body and the template: the types of
`entrypoints/openai/chat_completion/protocol.py`, then
`renderers/chat_utils.py:_parse_chat_message_content` and `_postprocess_messages`. What the engine
refuses, or what carries media, ends the reading.
"""

import json
from typing import Any

from transload_router.core.tokens.job import Message, Reason, Unreadable

STRING = "string"
OPENAI = "openai"
"""Content formats of a template: texts joined, or a list of parts."""

_TEXT_MEMBERS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_SKIPPED_WHERE_NULL = ("text", "refusal")
# Part types and, where a part has no type, members that mean media.
_MEDIA = frozenset(
    {
        "image_url",
        "input_image",
        "image_embeds",
        "image_pil",
        "audio_url",
        "input_audio",
        "audio_embeds",
        "video_url",
        "video_embeds",
        "prompt_embeds",
        "file",
    }
)
# Of a text part, members that the engine knows are not passed on to the template; others are
# (`_KNOWN_CONTENT_PART_FIELDS`).
_KNOWN_PART_MEMBERS = _MEDIA - {"input_image", "prompt_embeds"} | {
    "closed",
    "data",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
}
_BILLING_HEADER = "x-anthropic-billing-header"
# Roles whose typed shapes in the engine require a content member to be text or a list where it is
# present; only assistants may say null.
_NULL_CONTENT_ROLES = ("assistant", "function")


def converse(messages: list[Any], content_format: str, *, is_typed: bool = True) -> list[Message]:
    """The conversation as the template sees it.

    Args:
        messages: Decoded `messages`; not changed.
        content_format: `STRING` or `OPENAI`.
        is_typed: Whether they pass the chat API's types, and tool calls take their order.

    Raises:
        Unreadable: The engine refuses a message, or its ids depend on more than text.
    """
    return [_message(message, content_format, is_typed) for message in messages]


def _message(message: Any, content_format: str, is_typed: bool) -> Message:
    if type(message) is not dict:
        raise Unreadable(Reason.INVALID)
    role = message.get("role")
    if type(role) is not str:
        raise Unreadable(Reason.INVALID)
    content = message.get("content")
    if type(content) is str:
        # By far the most common shape.
        is_stripped = role == "system" and content.startswith(_BILLING_HEADER)
        if content_format == STRING and not is_stripped:
            result: Message = {"role": role, "content": content}
        else:
            result = {"role": role, "content": _content(role, [content], content_format)}
    else:
        result = {"role": role, "content": _content(role, _parts(message), content_format)}
    if role == "assistant":
        _add_assistant(result, message, is_typed)
    elif role == "tool":
        _add_tool(result, message)
    return _add_names(result, message, role)


def _add_names(result: Message, message: Message, role: str) -> Message:
    if "name" in message:
        if type(message["name"]) is not str:
            raise Unreadable(Reason.INVALID)
        result["name"] = message["name"]
    if type(message.get("task")) is str:
        result["task"] = message["task"]
    if role == "developer":
        if message.get("tools") is not None:
            raise Unreadable(Reason.ITEM)
        result["tools"] = None
    return result


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    if type(content) is list:
        return content
    if content is None and ("content" not in message or message["role"] in _NULL_CONTENT_ROLES):
        return []
    raise Unreadable(Reason.INVALID)


def _content(role: str, parts: list[Any], content_format: str) -> str | list[Message]:
    if role == "system":
        parts = _without_billing_header(parts)
    if content_format == STRING:
        texts = (_part_text(part) for part in parts)
        return "\n".join(text for text in texts if text)
    wrapped = [_wrapped(part) for part in parts]
    return [part for part in wrapped if part]


def _without_billing_header(parts: list[Any]) -> list[Any]:
    """Without the attribution line, whose value differs in every request."""
    kept: list[Any] = []
    for part in parts:
        is_text = type(part) is dict and part.get("type") == "text"
        text = part.get("text") if is_text else part
        if not (type(text) is str and text.startswith(_BILLING_HEADER)):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append({**part, "text": rest} if is_text else rest)
    return kept


def _part_text(part: Any) -> str | None:
    """A part's text; None where the part is skipped."""
    if type(part) is str:
        return part
    if type(part) is not dict:
        raise Unreadable(Reason.INVALID)
    kind = part.get("type")
    if type(kind) is not str or part.get("uuid") is not None:
        raise Unreadable(Reason.INVALID if _MEDIA.isdisjoint(part) else Reason.MEDIA)
    member = _TEXT_MEMBERS.get(kind)
    if member is not None:
        text = part.get(member)
        if type(text) is str:
            return text
        if text is None and kind in _SKIPPED_WHERE_NULL:
            return None
        raise Unreadable(Reason.INVALID)
    if kind == "tool_reference" and type(part.get("name")) is str:
        return str(part["name"])
    raise Unreadable(Reason.MEDIA if kind in _MEDIA else Reason.INVALID)


def _wrapped(part: Any) -> Message | None:
    text = _part_text(part)
    if text is None:
        return None
    if type(part) is str:
        return {"type": "text", "text": text}
    if part["type"] == "tool_reference":
        return {"type": "tool_reference", "name": text}
    wrapped = {"type": "text", "text": text}
    if len(part) > 2:
        wrapped.update((k, v) for k, v in part.items() if k not in _KNOWN_PART_MEMBERS)
    return wrapped


def _add_assistant(result: Message, message: Message, is_typed: bool) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if type(calls) is not list:
            raise Unreadable(Reason.INVALID)
        if calls:
            result["tool_calls"] = [_call(call, is_typed) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        if type(reasoning) is not str:
            raise Unreadable(Reason.INVALID)
        result["reasoning"] = reasoning
        result["reasoning_content"] = reasoning


def _add_tool(result: Message, message: Message) -> None:
    if "tool_call_id" in message:
        call_id = message["tool_call_id"]
        if call_id is not None and type(call_id) is not str:
            raise Unreadable(Reason.INVALID)
        result["tool_call_id"] = call_id
    content = result["content"]
    # Templates expect a tool's answer to be text; references stay apart, to be expanded.
    if type(content) is list and all(part["type"] == "text" for part in content):
        result["content"] = "\n".join(part["text"] for part in content)


def _call(call: Any, is_typed: bool) -> Message:
    """One tool call, arguments as an object."""
    function = call.get("function") if type(call) is dict else None
    if type(function) is not dict or call.get("type") != "function":
        raise Unreadable(Reason.INVALID)
    for text in (call.get("id"), function.get("arguments"), function.get("name")):
        if type(text) is not str:
            raise Unreadable(Reason.INVALID)
    arguments = _arguments(function["arguments"])
    if not is_typed:
        return {**call, "function": {**function, "arguments": arguments}}
    return {
        "id": call["id"],
        "function": {
            "arguments": arguments,
            "name": function["name"],
            **{k: v for k, v in function.items() if k not in ("arguments", "name")},
        },
        "type": "function",
        **{k: v for k, v in call.items() if k not in ("id", "function", "type")},
    }


def _arguments(text: str) -> Any:
    """Arguments as an object; what is none becomes an empty one, as in the engine."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    except RecursionError:
        raise Unreadable(Reason.INVALID) from None
    return value if isinstance(value, dict) else {}


def as_system(conversation: list[Message]) -> list[Message]:
    """The conversation for a template that knows no developers: they speak as the system.

    All system messages then become one, at the front (`renderers/hf.py`).
    """
    renamed = [_renamed(message) for message in conversation]
    systems = [at for at, message in enumerate(renamed) if message["role"] == "system"]
    if systems == [0]:
        return renamed
    contents = (_joined(renamed[at].get("content", "")) for at in systems)
    merged = {"role": "system", "content": "\n\n".join(text for text in contents if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _renamed(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {k: "system" if k == "role" else v for k, v in message.items() if k != "tools"}


def _joined(content: str | list[Message]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
