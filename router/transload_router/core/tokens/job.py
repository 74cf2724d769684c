"""What a request's prompt is, as plain values, before any template or tokenizer has seen it."""

import enum
from typing import Any

import msgspec

Message = dict[str, Any]


class Reason(enum.StrEnum):
    """Why the token ids of a prompt are not known; a metric label."""

    ENDPOINT = "endpoint"
    """The endpoint's prompt is not read here."""

    INVALID = "invalid"
    """The engine refuses such a request, or reads it by rules that are not followed here."""

    SEVERAL_PROMPTS = "several_prompts"
    MEDIA = "media"
    EMBEDS = "embeds"
    SUFFIX = "suffix"
    HISTORY = "history"
    """The prompt goes on from a response that one engine holds."""

    ITEM = "item"
    """An item or block of a kind whose translation is not followed here."""

    TRUNCATION = "truncation"
    """What is cut depends on the engine's context length."""

    TEMPLATE_IN_BODY = "template_in_body"
    TEMPLATE_ARGUMENT = "template_argument"
    """A template argument that steers the engine's renderer rather than the template."""

    NO_TEMPLATE = "no_template"
    RENDERER = "renderer"
    """The model's chat format is not a template."""

    TEMPLATE_FAILED = "template_failed"
    TOO_MUCH = "too_much"
    """More messages, text or template work than the settings allow."""

    NOT_READ = "not_read"
    """Too long to be looked at here, or too many others wait: there may be media in it, too."""

    NO_TOKENIZER = "no_tokenizer"
    BUSY = "busy"
    DEADLINE = "deadline"
    ENGINE = "engine"
    """The engine was asked and gave no ids."""


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The router does not know this prompt's token ids, and says why."""

    reason: Reason


class Cut(msgspec.Struct, frozen=True, gc=False):
    """`truncate_prompt_tokens`.

    Attributes:
        num_tokens: How many to keep, at least 1.
        side: Which end is cut off, "left" or "right"; None where the client left it to the
            engine.
    """

    num_tokens: int
    side: str | None = None


class KnownTokens(msgspec.Struct, frozen=True, gc=False):
    """The client sent the token ids themselves.

    Attributes:
        tokens: Token ids, 4 bytes little-endian each, as the engine will use them.
        cache_salt: The client's, or None.
    """

    tokens: bytes
    cache_salt: str | None = None


class TextJob(msgspec.Struct, frozen=True):
    """A text to tokenise as it is.

    Attributes:
        text: The prompt.
        add_special_tokens: Whether the tokenizer adds what it puts around a text.
        cut: What to keep of the ids, or None.
        cache_salt: The client's, or None.
    """

    text: str
    add_special_tokens: bool = True
    cut: Cut | None = None
    cache_salt: str | None = None


class ChatJob(msgspec.Struct, frozen=True):
    """A conversation to render and tokenise.

    Attributes:
        messages: As the engine's validation leaves them; shared with nobody, not to be changed.
        tools: As the engine shows them to the template, or None.
        arguments: For the template: the client's `chat_template_kwargs` under the request's own
            fields, unset ones left out.
        add_special_tokens: Whether the tokenizer adds what it puts around a text.
        cut: What to keep of the ids, or None.
        cache_salt: The client's, or None.
        is_anthropic: Whether the messages are translated from the Messages API, where a
            template may want inline system messages at the front.
        is_thinking_disabled: Whether thinking was switched off, in the Messages API; what the
            template is told then depends on the template.
        gives_enable_thinking: Whether the client set that argument itself.
        is_tool_choice_none: Whether the client declined the tools it sent.
        is_typed: Whether the engine takes the messages through the chat API's types, which put
            members of tool calls in their own order.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    arguments: dict[str, Any]
    add_special_tokens: bool = False
    cut: Cut | None = None
    cache_salt: str | None = None
    is_anthropic: bool = False
    is_thinking_disabled: bool = False
    gives_enable_thinking: bool = False
    is_tool_choice_none: bool = False
    is_typed: bool = True


TokenizeJob = TextJob | ChatJob


class Unreadable(Exception):
    """Ends the reading of a prompt; `read_prompt` turns it into `Unknown`."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason
