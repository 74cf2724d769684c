"""A chat template, rendered as transformers renders it.

The environment is that of transformers 5.19 (`utils/chat_template_utils.py`): immutable sandbox,
trimmed blocks, loop controls, the `generation` tag, `tojson` that keeps letters as they are,
`raise_exception`, `strftime_now`. What a conversation can make a template do is bounded: messages
going in, pieces and characters coming out.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from transload_router.core.tokens import content_format
from transload_router.core.tokens.job import Message, Reason, Unreadable
from transload_router.core.tokens.sandbox import Sandbox

# Parameters that the engine lets pass to the template whether it names them or not; they are
# arguments of `apply_chat_template` that reach the template.
_ALWAYS_GIVEN = frozenset({"documents", "add_generation_prompt", "continue_final_message"})
# transformers' mark where a final message is to go on, with its blank.
_OPEN_END = "CONTINUE_FINAL_MESSAGE_TAG "


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's own text for training; here it only passes it on."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_pass_on"), [], [], body).set_lineno(lineno)

    def _pass_on(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class Bounds:
    """How much a conversation may make a template do.

    Attributes:
        num_messages: Messages of one conversation.
        num_characters: Length of the rendered text.
        num_pieces: Pieces of output; a loop that writes nothing is held only by the number of
            messages.
    """

    __slots__ = ("num_characters", "num_messages", "num_pieces")

    def __init__(
        self,
        num_messages: int = 10_000,
        num_characters: int = 16 << 20,
        num_pieces: int = 1_000_000,
    ) -> None:
        self.num_messages = num_messages
        self.num_characters = num_characters
        self.num_pieces = num_pieces


class Template:
    """One compiled template; threads may render at the same time.

    Attributes:
        content_format: What messages' content looks like to it.
        knows_developers: Whether it has a developer role; else developers speak as the system.
        reads_clock: Whether it may ask what day it is.
    """

    def __init__(
        self, source: str, strftime_now: Callable[[str], str], bounds: Bounds | None = None
    ) -> None:
        """Compiles.

        Args:
            source: The template's text.
            strftime_now: Formats the present, for templates that ask for the date.
            bounds: How much a conversation may make it do.

        Raises:
            jinja2.TemplateError: It is no template.
        """
        environment = Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _tojson
        tree = environment.parse(source)
        # Before the functions below are known: the engine lets arguments hide them.
        self._given = jinja2.meta.find_undeclared_variables(tree) | _ALWAYS_GIVEN
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = strftime_now
        self._source = source
        self._compiled = environment.from_string(source)
        self._bounds = bounds or Bounds()
        self.content_format = content_format.detect(tree)
        self.reads_clock = "strftime_now" in self._given
        self.knows_developers = '"developer"' in source or "'developer'" in source

    def render(
        self,
        conversation: list[Message],
        tools: list[dict[str, Any]] | None,
        arguments: Mapping[str, Any],
        special_tokens: Mapping[str, str],
    ) -> str:
        """The prompt's text.

        Args:
            conversation: What `core/tokens/messages.converse` made for `content_format`.
            tools: As the engine shows them, or None.
            arguments: The request's and the operator's; those that the template does not name
                are left out.
            special_tokens: Named special tokens, under which arguments of the same name win.

        Raises:
            Unreadable: The template refuses the conversation or fails, or it is too much.
        """
        if not conversation:
            raise Unreadable(Reason.INVALID)
        if len(conversation) > self._bounds.num_messages:
            raise Unreadable(Reason.TOO_MUCH)
        given = {k: v for k, v in arguments.items() if k in self._given}
        goes_on = given.pop("continue_final_message", False)
        context = {
            **special_tokens,
            "documents": None,
            "add_generation_prompt": False,
            **given,
            "tools": tools,
        }
        if goes_on:
            return self._render_open(conversation, context)
        return self._render({**context, "messages": conversation})

    def _render(self, context: dict[str, Any]) -> str:
        pieces: list[str] = []
        room = self._bounds.num_characters
        try:
            for piece in self._compiled.generate(context):
                pieces.append(piece)
                room -= len(piece)
                if room < 0 or len(pieces) > self._bounds.num_pieces:
                    raise Unreadable(Reason.TOO_MUCH)
        except (jinja2.TemplateError, *_FAILURES) as error:
            raise Unreadable(Reason.TEMPLATE_FAILED) from error
        return "".join(pieces)

    def _render_open(self, conversation: list[Message], context: dict[str, Any]) -> str:
        """With the final message left open: cut off behind what it says."""
        if context.get("add_generation_prompt") or "content" not in self._source:
            raise Unreadable(Reason.INVALID)
        last, said = _opened(conversation[-1])
        rendered = self._render({**context, "messages": [*conversation[:-1], last]})
        mark = _OPEN_END.strip()
        if said.strip() not in rendered or mark not in rendered:
            raise Unreadable(Reason.TEMPLATE_FAILED)
        at = rendered.rindex(mark)
        if rendered[at : at + len(_OPEN_END)] == _OPEN_END:
            return rendered[:at]
        return rendered[:at].rstrip()


# What a template's expressions raise over values they were not written for.
_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def _opened(message: Message) -> tuple[Message, str]:
    """The final message with the mark behind its last text, and that text."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _OPEN_END}, content
    for at in range(len(content or ()) - 1, -1, -1):
        part = message["content"][at]
        if "text" in part:
            opened = {**part, "text": part["text"] + _OPEN_END}
            parts = [*message["content"][:at], opened, *message["content"][at + 1 :]]
            return {**message, "content": parts}, part["text"]
    raise Unreadable(Reason.INVALID)


def wants_systems_first(source: str) -> bool:
    """Whether the engine moves inline system messages of the Messages API to the front.

    Its probe (vLLM 0.32.0, `entrypoints/anthropic/serving.py:_detect_merge_inline_system`)
    renders a later system message in a bare environment, without the functions and tags that
    templates otherwise have: whatever fails there counts.
    """
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        environment.from_string(source).render(messages=turns, add_generation_prompt=False)
    except (jinja2.TemplateError, *_FAILURES):
        return True
    return False
