"""The engine's own tokenizer, asked: `POST /tokenize` for a job, and what it answered.

`/tokenize` knows fewer members than the endpoints (vLLM 0.32.0,
`entrypoints/serve/tokenize/protocol.py`); what it lacks goes to the template as an argument. Where
an endpoint treats a prompt in a way that `/tokenize` cannot be told, it is not asked.
"""

from typing import Any

import msgspec

from transload_router.core.prompt import pack_tokens
from transload_router.core.tokens.job import (
    ChatJob,
    Message,
    Reason,
    TextJob,
    TokenizeJob,
    Unreadable,
)

TOKENIZE_PATH = "/tokenize"

_ENCODER = msgspec.json.Encoder()


class _Answer(msgspec.Struct):
    tokens: list[int]


_DECODER = msgspec.json.Decoder(_Answer)


def tokenize_body(job: TokenizeJob, model: str | None = None) -> bytes:
    """The body of a question that a job's ids answer.

    Args:
        job: From `read_prompt`.
        model: A name that the engine serves; None for its first.

    Raises:
        Unreadable: No question has these ids for its answer.
    """
    if job.cut is not None:
        raise Unreadable(Reason.TRUNCATION)
    body: dict[str, Any] = {"add_special_tokens": job.add_special_tokens}
    if model is not None:
        body["model"] = model
    if isinstance(job, TextJob):
        body["prompt"] = job.text
    else:
        body.update(_chat(job))
    try:
        return _ENCODER.encode(body)
    except UnicodeEncodeError:
        raise Unreadable(Reason.INVALID) from None


def is_askable(job: ChatJob) -> bool:
    """Whether `/tokenize` can be told what the endpoint makes of a conversation's arguments.

    Whether declined tools are shown (`--exclude-tools-when-tool-choice-none`) it cannot.
    """
    return not (job.is_thinking_disabled or (job.is_tool_choice_none and job.tools))


def _chat(job: ChatJob) -> dict[str, Any]:
    has_late_system = any(message.get("role") == "system" for message in job.messages[1:])
    if not is_askable(job):
        raise Unreadable(Reason.TEMPLATE_ARGUMENT)
    if job.is_anthropic and has_late_system:
        raise Unreadable(Reason.ITEM)
    if not job.is_typed and any("tool_calls" in message for message in job.messages):
        raise Unreadable(Reason.ITEM)
    arguments = dict(job.arguments)
    body: dict[str, Any] = {
        "messages": [_message(message) for message in job.messages],
        "add_generation_prompt": arguments.pop("add_generation_prompt", True),
        "continue_final_message": arguments.pop("continue_final_message", False),
    }
    if job.tools is not None:
        body["tools"] = job.tools
    if arguments:
        body["chat_template_kwargs"] = arguments
    return body


def _message(message: Message) -> Message:
    """A message under the one name that `/tokenize` knows for reasoning."""
    if not isinstance(message, dict) or message.get("reasoning_content") is None:
        return message
    renamed = {k: v for k, v in message.items() if k != "reasoning_content"}
    if renamed.get("reasoning") is None:
        renamed["reasoning"] = message["reasoning_content"]
    return renamed


def read_answer(body: bytes) -> bytes:
    """Packed ids of an engine's answer.

    Raises:
        ValueError: It holds none.
    """
    try:
        return pack_tokens(_DECODER.decode(body).tokens)
    except (msgspec.MsgspecError, OverflowError) as error:
        raise ValueError(f"expected an answer of /tokenize, got {body[:200]!r}") from error
