"""A request's members -> what its prompt is, or why that is not known.

One reader per endpoint of `core/bodies/endpoints`, each after vLLM 0.32.0's own: which members
change the prompt, and what they are where the client left them out.
"""

from collections.abc import Callable
from typing import Any

from transload_router.core.bodies.members import Members
from transload_router.core.prompt import pack_tokens
from transload_router.core.tokens.arguments import template_arguments
from transload_router.core.tokens.job import (
    ChatJob,
    Cut,
    KnownTokens,
    Reason,
    TextJob,
    TokenizeJob,
    Unknown,
    Unreadable,
)
from transload_router.core.tokens.read_messages import read_messages
from transload_router.core.tokens.read_responses import read_responses
from transload_router.core.tokens.tools import chat_tools
from transload_router.core.tokens.values import (
    cut_of,
    flag_of,
    object_of,
    salt_of,
    text_of,
    value_of,
)

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def read_prompt(endpoint: str, members: Members) -> TokenizeJob | KnownTokens | Unknown:
    """What the prompt of a request is.

    Args:
        endpoint: Name of its row in `core/bodies/endpoints`.
        members: The request's members, raw.

    Returns:
        A job for a tokenizer, the ids that the client sent, or why neither is known. A job may
        still turn out unknown once its messages are read.
    """
    reader = _READERS.get(endpoint)
    if reader is None:
        return Unknown(Reason.ENDPOINT)
    try:
        return reader(members)
    except Unreadable as error:
        return Unknown(error.reason)


def _chat(members: Members) -> ChatJob:
    if text_of(members, "chat_template") is not None:
        raise Unreadable(Reason.TEMPLATE_IN_BODY)
    messages = value_of(members, "messages")
    if not isinstance(messages, list) or not messages:
        raise Unreadable(Reason.INVALID)
    effort = value_of(members, "reasoning_effort")
    if effort is not None and effort not in _EFFORTS:
        raise Unreadable(Reason.INVALID)
    goes_on = flag_of(members, "continue_final_message", False)
    own = {
        "add_generation_prompt": flag_of(members, "add_generation_prompt", True),
        "continue_final_message": goes_on,
        "documents": _documents(members),
        "reasoning_effort": effort,
    }
    if goes_on and own["add_generation_prompt"]:
        raise Unreadable(Reason.INVALID)
    return ChatJob(
        messages=messages,
        tools=chat_tools(value_of(members, "tools")),
        arguments=template_arguments(object_of(members, "chat_template_kwargs"), own),
        add_special_tokens=flag_of(members, "add_special_tokens", False),
        cut=cut_of(members),
        cache_salt=salt_of(members),
        is_tool_choice_none=value_of(members, "tool_choice") == "none",
    )


def _documents(members: Members) -> list[Any] | None:
    documents = value_of(members, "documents")
    if documents is None:
        return None
    if not isinstance(documents, list):
        raise Unreadable(Reason.INVALID)
    for document in documents:
        if not isinstance(document, dict) or not all(
            isinstance(text, str) for text in document.values()
        ):
            raise Unreadable(Reason.INVALID)
    return documents


def _completions(members: Members) -> TextJob | KnownTokens:
    if value_of(members, "prompt_embeds") is not None:
        raise Unreadable(Reason.EMBEDS)
    if text_of(members, "suffix") is not None:
        raise Unreadable(Reason.SUFFIX)
    prompt = value_of(members, "prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise Unreadable(Reason.SEVERAL_PROMPTS)
        prompt = prompt[0]
    cut, salt = cut_of(members), salt_of(members)
    if isinstance(prompt, list):
        return KnownTokens(_cut_ids(_packed(prompt), cut), salt)
    if not isinstance(prompt, str) or not prompt:
        raise Unreadable(Reason.INVALID)
    return TextJob(prompt, flag_of(members, "add_special_tokens", True), cut, salt)


def _generate(members: Members) -> KnownTokens:
    for name in ("features", "content_parts"):
        if value_of(members, name) is not None:
            raise Unreadable(Reason.MEDIA)
    ids = value_of(members, "token_ids")
    if not isinstance(ids, list):
        raise Unreadable(Reason.INVALID)
    return KnownTokens(_packed(ids), salt_of(members))


def _packed(ids: list[Any]) -> bytes:
    if not ids or any(type(number) is not int for number in ids):
        raise Unreadable(Reason.INVALID)
    try:
        return pack_tokens(ids)
    except OverflowError:
        raise Unreadable(Reason.INVALID) from None


def _cut_ids(tokens: bytes, cut: Cut | None) -> bytes:
    return tokens if cut is None else cut_tokens(tokens, cut)


def cut_tokens(tokens: bytes, cut: Cut) -> bytes:
    """What is left of packed ids; engines that generate cut on the left unless told otherwise."""
    if cut.side == "right":
        return tokens[: 4 * cut.num_tokens]
    return tokens[-4 * cut.num_tokens :]


_READERS: dict[str, Callable[[Members], TokenizeJob | KnownTokens]] = {
    "chat": _chat,
    "completions": _completions,
    "responses": read_responses,
    "messages": read_messages,
    "generate": _generate,
}
