"""One model's prompts as the engine would tokenise them: template, tokenizer and caches together.

Threads may share a `Tokens`; what they share is guarded by the lock it was given. The costly parts,
rendering and encoding, run outside it.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from transload_router.core.index.keys import Identity
from transload_router.core.prompt import KnownPrefix, Prompt
from transload_router.core.tokens.encoder import Encoder, Segment
from transload_router.core.tokens.job import (
    ChatJob,
    Cut,
    Message,
    Reason,
    TextJob,
    TokenizeJob,
    Unknown,
    Unreadable,
)
from transload_router.core.tokens.lru import BytesLru
from transload_router.core.tokens.messages import as_system, converse
from transload_router.core.tokens.prefixes import Prefixes, Record
from transload_router.core.tokens.read import cut_tokens
from transload_router.core.tokens.template import Template

# What a cached segment weighs beside its text and ids: two strings, a tuple, bytes, a table entry.
_SEGMENT_BYTES = 350
_THINKING_EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(slots=True)
class Stats:
    """What was done; only ever grows.

    Attributes:
        num_prompts: Prompts tokenised.
        num_whole: Of these, tokenised whole, without any cache.
        num_tokens: Tokens of all prompts.
        num_prefix_tokens: Of these, known from an earlier prompt with the same beginning.
        num_segments: Segments looked up beyond such beginnings.
        num_segment_hits: Of these, known.
    """

    num_prompts: int = 0
    num_whole: int = 0
    num_tokens: int = 0
    num_prefix_tokens: int = 0
    num_segments: int = 0
    num_segment_hits: int = 0


class Options(msgspec.Struct, frozen=True):
    """How the engine was started, where that changes prompts.

    Attributes:
        default_arguments: `--default-chat-template-kwargs`.
        content_format: `--chat-template-content-format`: "auto", "string" or "openai".
        excludes_declined_tools: `--exclude-tools-when-tool-choice-none`.
        prefix_cache_bytes: For whole prompts, to go on from.
        segment_cache_bytes: For texts between special tokens.
    """

    default_arguments: dict[str, Any] = {}
    content_format: str = "auto"
    excludes_declined_tools: bool = False
    prefix_cache_bytes: int = 256 << 20
    segment_cache_bytes: int = 64 << 20


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


class Tokens:
    """Prompts of one model.

    Attributes:
        stats: What was done so far.
    """

    def __init__(
        self,
        encoder: Encoder,
        templates: Templates | None,
        special_tokens: Mapping[str, str],
        options: Options | None = None,
        guard: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Takes the parts.

        Args:
            encoder: The tokenizer.
            templates: None where the model's chat format is no template.
            special_tokens: Named ones ("bos_token": "<s>"), for the templates.
            options: How the engine was started.
            guard: Entered around what threads share; a lock, where there are several.
        """
        self.stats = Stats()
        self._encoder = encoder
        self._templates = templates
        self._special_tokens = dict(special_tokens)
        self._options = options or Options()
        self._guard = guard or nullcontext()
        self._prefixes = Prefixes(self._options.prefix_cache_bytes)
        self._segments: BytesLru[Segment, bytes] = BytesLru(self._options.segment_cache_bytes)
        self._disabled_effort: str | None = None

    @property
    def is_segmented(self) -> bool:
        """Whether prompts are tokenised segment by segment, so that caches help."""
        return self._encoder.is_segmented

    def prompt(self, job: TokenizeJob, identity: Identity) -> Prompt | Unknown:
        """The token ids of a job.

        May take long for long texts: some 1 us for each new character.

        Args:
            job: From `read_prompt`.
            identity: Whose tokens they are.
        """
        try:
            if isinstance(job, TextJob):
                return self._tokenized(job.text, job, identity)
            return self._tokenized(self.text(job), job, identity)
        except Unreadable as error:
            return Unknown(error.reason)
        except UnicodeEncodeError:
            return Unknown(Reason.INVALID)

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

    def _tokenized(self, text: str, job: TokenizeJob, identity: Identity) -> Prompt:
        cut, is_dressed = job.cut, job.add_special_tokens
        dressed = self._encoder.around(b"") if is_dressed else b""
        with self._guard:
            self.stats.num_prompts += 1
        if not self._encoder.is_segmented or dressed is None or cut is not None:
            tokens = self._whole(text, is_dressed=is_dressed, cut=cut)
            with self._guard:
                self.stats.num_whole += 1
                self.stats.num_tokens += len(tokens) // 4
            return Prompt(identity, tokens, job.cache_salt)
        tokens, found, added = self._joined(text)
        prefix = None
        key = identity.model, identity.lora, job.cache_salt, is_dressed
        if is_dressed:
            tokens = self._encoder.around(tokens) or b""
        if found is not None:
            num_before = self._encoder.num_before if is_dressed else 0
            num_tokens = num_before + len(found.tokens) // 4
            prefix = KnownPrefix(found.keys.get(key, {}), num_tokens)
        prompt = Prompt(identity, tokens, job.cache_salt, prefix)
        with self._guard:
            if added is not None and (added is not found or key not in added.keys):
                added.keys[key] = prompt.keys_by_block
            self.stats.num_tokens += prompt.num_tokens
            self.stats.num_prefix_tokens += prefix.num_tokens if prefix else 0
        return prompt

    def _whole(self, text: str, *, is_dressed: bool, cut: Cut | None) -> bytes:
        if cut is None:
            return self._encoder.whole(text, add_special_tokens=is_dressed)
        if cut.side is not None:
            # The engine first cuts texts that are too long for its context, whatever it is.
            if len(text) > cut.num_tokens * self._encoder.max_chars_per_token:
                raise Unreadable(Reason.TRUNCATION)
            return cut_tokens(self._encoder.whole(text, add_special_tokens=is_dressed), cut)
        tokens = self._encoder.whole(text)
        around = self._encoder.around(b"") if is_dressed else b""
        if around is None or 4 * cut.num_tokens <= len(around):
            raise Unreadable(Reason.TRUNCATION)
        kept = cut_tokens(tokens, Cut(cut.num_tokens - len(around) // 4))
        return self._encoder.around(kept) or b"" if is_dressed else kept

    def _joined(self, text: str) -> tuple[bytes, Record | None, Record | None]:
        """Packed ids; the record they go on from; the record they left."""
        encoded = text.encode()
        with self._guard:
            found = self._prefixes.find(encoded)
        parts = [found.tokens] if found else []
        start = found.start if found else 0
        last_seam = None
        for (seam, piece), begin in self._encoder.segments(text, start):
            if seam:
                last_seam = begin - len(seam), len(parts), begin
                parts.append(self._encoder.seam_ids(seam))
            if piece:
                parts.append(self._segment((seam, piece)))
        added = self._left(text, encoded, parts, last_seam, found)
        return b"".join(parts), found, added

    def _left(
        self,
        text: str,
        encoded: bytes,
        parts: list[bytes],
        last_seam: tuple[int, int, int] | None,
        found: Record | None,
    ) -> Record | None:
        if last_seam is None:
            return None
        start, num_parts, end = last_seam
        if found is not None and found.start == start:
            return found
        num_bytes = len(encoded) - len(text[end:].encode())
        record = Record(encoded[:num_bytes], start, b"".join(parts[:num_parts]))
        with self._guard:
            self._prefixes.add(record, found)
        return record

    def _segment(self, segment: Segment) -> bytes:
        with self._guard:
            tokens = self._segments.get(segment)
            self.stats.num_segments += 1
            self.stats.num_segment_hits += tokens is not None
        if tokens is not None:
            return tokens
        tokens = self._encoder.segment(segment)
        weight = _SEGMENT_BYTES + len(segment[1]) + len(tokens)
        with self._guard:
            self._segments.put(segment, tokens, weight)
        return tokens


def _systems_first(messages: list[Message]) -> list[Message]:
    """All system messages joined at the front, for a translated Messages request."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "".join(texts)}, *rest] if texts else rest
