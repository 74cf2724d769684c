"""What a request tells the chat template besides messages and tools."""

from typing import Any

from transload_router.core.tokens.job import Reason, Unreadable

# Arguments of the function that applies a template, which are none of the template's
# (transformers, `apply_chat_template`).
_NOT_FOR_TEMPLATES = frozenset(
    {
        "chat_template",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


def template_arguments(given: dict[str, Any] | None, own: dict[str, Any]) -> dict[str, Any]:
    """The client's `chat_template_kwargs` under the request's own fields.

    Null and "auto" mean unset (`renderers/params.py:merge_kwargs`).

    Raises:
        Unreadable: An argument steers the engine rather than the template.
    """
    given = given or {}
    if not _NOT_FOR_TEMPLATES.isdisjoint(given):
        raise Unreadable(Reason.TEMPLATE_ARGUMENT)
    effort = own.get("reasoning_effort")
    if effort is not None and "enable_thinking" not in given:
        own = {**own, "enable_thinking": effort != "none"}
    merged = {**given, **{k: v for k, v in own.items() if v is not None}}
    return {k: v for k, v in merged.items() if v is not None and v != "auto"}
