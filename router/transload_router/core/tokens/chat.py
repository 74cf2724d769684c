"""A conversation -> the prompt's text, as the engine was told to render it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from transload_router.core.tokens.job import ChatJob, Message, Reason, Unreadable
from transload_router.core.tokens.messages import as_system, converse
from transload_router.core.tokens.template import Template

_THINKING_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class ChatOptions(msgspec.Struct, frozen=True):
    """How the engine was started, where that changes the text of conversations.

    Attributes:
        default_arguments: `--default-chat-template-kwargs`.
        content_format: `--chat-template-content-format`: "auto", "string" or "openai".
        excludes_declined_tools: `--exclude-tools-when-tool-choice-none`.
    """

    default_arguments: dict[str, Any] = {}
    content_format: str = "auto"
    excludes_declined_tools: bool = False


class Templates(msgspec.Struct, frozen=True):
    """A model's chat templates.

    Attributes:
        plain: For conversations without tools, or None.
        tool_use: For those with tools; mostly the same.
        wants_systems_first: Whether either refuses a later system message, as the engine's own
            probe finds.
    """

    plain: Template | None
    tool_use: Template | None
    wants_systems_first: bool = False


class Chat:
    """Conversations of one model; threads may share it.

    Attributes:
        reads_clock: Whether a template may ask what day it is, which depends on whose clock and
            time zone is asked.
    """

    def __init__(
        self,
        templates: Templates | None,
        special_tokens: Mapping[str, str],
        options: ChatOptions | None = None,
    ) -> None:
        """Takes the parts.

        Args:
            templates: None where the model's chat format is no template.
            special_tokens: Named ones ("bos_token": "<s>"), for the templates.
            options: How the engine was started.
        """
        self._templates = templates
        self._special_tokens = dict(special_tokens)
        self._options = options or ChatOptions()
        self._disabled_effort: str | None = None
        both = (templates.plain, templates.tool_use) if templates else ()
        self.reads_clock = any(one is not None and one.reads_clock for one in both)

    def text(self, job: ChatJob) -> str:
        """A conversation's prompt as text.

        Raises:
            Unreadable: It has none that is known here.
        """
        tools = job.tools
        if job.is_tool_choice_none and self._options.excludes_declined_tools:
            tools = None
        template = self._template(tools)
        arguments = {**self._options.default_arguments, **job.arguments}
        if job.is_thinking_disabled:
            arguments.update(self._without_thinking(arguments, job))
        return self._render(template, job, tools, arguments)

    def _template(self, tools: list[dict[str, Any]] | None) -> Template:
        if self._templates is None:
            raise Unreadable(Reason.RENDERER)
        template = self._templates.plain if tools is None else self._templates.tool_use
        if template is None:
            raise Unreadable(Reason.NO_TEMPLATE)
        return template

    def _render(
        self,
        template: Template,
        job: ChatJob,
        tools: list[dict[str, Any]] | None,
        arguments: Mapping[str, Any],
    ) -> str:
        messages = job.messages
        if job.is_anthropic and self._templates and self._templates.wants_systems_first:
            messages = _systems_first(messages)
        given_format = self._options.content_format
        content_format = template.content_format if given_format == "auto" else given_format
        conversation = converse(messages, content_format, is_typed=job.is_typed)
        is_addressed = any(message["role"] == "developer" for message in conversation)
        if is_addressed and not template.knows_developers:
            conversation = as_system(conversation)
        return template.render(conversation, tools, arguments, self._special_tokens)

    def _without_thinking(self, arguments: Mapping[str, Any], job: ChatJob) -> dict[str, Any]:
        """What the engine tells the template where a Messages request disables thinking.

        "none", unless the template refuses that or renders it like an effort
        (vLLM 0.32.0, `entrypoints/anthropic/serving.py:_probe_disabled_thinking_effort`).
        """
        if self._disabled_effort is None:
            texts = {effort: self._probe(effort) for effort in ("none", *_THINKING_EFFORTS)}
            none = texts.pop("none")
            is_ignored = none is None or none in texts.values()
            self._disabled_effort = "low" if is_ignored else "none"
        effort = self._disabled_effort
        told: dict[str, Any] = {"reasoning_effort": effort}
        if not job.gives_enable_thinking:
            told["enable_thinking"] = effort != "none"
        return told

    def _probe(self, effort: str) -> str | None:
        arguments = {
            **self._options.default_arguments,
            "add_generation_prompt": True,
            "enable_thinking": effort != "none",
            "reasoning_effort": effort,
        }
        job = ChatJob([{"role": "user", "content": "Hi"}], None, {})
        try:
            return self._render(self._template(None), job, None, arguments)
        except Unreadable:
            return None


def _systems_first(messages: list[Message]) -> list[Message]:
    """All system messages joined at the front, for a translated Messages request."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "".join(texts)}, *rest] if texts else rest
