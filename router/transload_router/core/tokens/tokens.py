"""One model's prompts as the engine would tokenise them: template, tokenizer and caches together.

A prompt is made in two steps: `plan` renders and looks up what is known, `finish` encodes the
rest. Only the second takes time that grows with new text, and it leaves Python while it does.
Threads may share a `Tokens`; what they share is guarded by the lock it was given.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from transload_router.core.index.keys import Identity
from transload_router.core.prompt import KnownPrefix, Prompt
from transload_router.core.tokens.chat import Chat
from transload_router.core.tokens.encoder import Encoder, Segment
from transload_router.core.tokens.job import Cut, Reason, TextJob, TokenizeJob, Unknown, Unreadable
from transload_router.core.tokens.lru import BytesLru
from transload_router.core.tokens.prefixes import Prefixes, Record
from transload_router.core.tokens.read import cut_tokens

# What a cached segment weighs beside its text and ids: two strings, a tuple, bytes, a table entry.
_SEGMENT_BYTES = 350
PREFIX_CACHE_BYTES = 256 << 20
"""Default room for prompts to go on from; one of 32k tokens takes about 0.4 MB."""
SEGMENT_CACHE_BYTES = 64 << 20
"""Default room for texts between special tokens, such as system prompts."""


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


@dataclass(slots=True)
class Plan:
    """A prompt whose unknown parts are still to be encoded; finished once.

    Attributes:
        num_new_characters: How much text is to be encoded.
    """

    job: TokenizeJob
    identity: Identity
    text: str
    num_new_characters: int
    encoded: bytes = b""
    found: Record | None = None
    parts: list[bytes | Segment] = field(default_factory=list)
    last_seam: tuple[int, int, int] | None = None
    """Of the last seam: where it begins, how many parts stand before it, where it ends."""
    is_whole: bool = False


class Tokens:
    """Prompts of one model.

    Attributes:
        stats: What was done so far.
    """

    def __init__(
        self,
        encoder: Encoder,
        chat: Chat,
        guard: AbstractContextManager[Any] | None = None,
        *,
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
        segment_cache_bytes: int = SEGMENT_CACHE_BYTES,
    ) -> None:
        """Takes the parts.

        Args:
            encoder: The tokenizer.
            chat: What renders conversations.
            guard: Entered around what threads share; a lock, where there are several.
            prefix_cache_bytes: For whole prompts, to go on from.
            segment_cache_bytes: For texts between special tokens.
        """
        self.stats = Stats()
        self._encoder = encoder
        self._chat = chat
        self._guard = guard or nullcontext()
        self._prefixes = Prefixes(prefix_cache_bytes)
        self._segments: BytesLru[Segment, bytes] = BytesLru(segment_cache_bytes)

    @property
    def is_segmented(self) -> bool:
        """Whether prompts are tokenised segment by segment, so that caches help."""
        return self._encoder.is_segmented

    @property
    def added_tokens(self) -> tuple[str, ...]:
        """Texts of the added tokens, special ones among them."""
        return self._encoder.added_tokens

    @property
    def reads_clock(self) -> bool:
        """Whether a conversation's prompt may depend on the day."""
        return self._chat.reads_clock

    @property
    def num_cached_bytes(self) -> int:
        """What the caches hold, roughly."""
        return self._prefixes.num_bytes + self._segments.num_bytes

    def prompt(self, job: TokenizeJob, identity: Identity) -> Prompt | Unknown:
        """The token ids of a job: `plan` and `finish` at once.

        Args:
            job: From `read_prompt`.
            identity: Whose tokens they are.
        """
        plan = self.plan(job, identity)
        return plan if isinstance(plan, Unknown) else self.finish(plan)

    def plan(self, job: TokenizeJob, identity: Identity) -> Plan | Unknown:
        """Render, and look up what is known of the text.

        Args:
            job: From `read_prompt`.
            identity: Whose tokens they are.
        """
        try:
            text = job.text if isinstance(job, TextJob) else self._chat.text(job)
            encoded = text.encode()
        except Unreadable as error:
            return Unknown(error.reason)
        except UnicodeEncodeError:
            return Unknown(Reason.INVALID)
        plan = Plan(job, identity, text, len(text), encoded)
        is_bare = not job.add_special_tokens or self._encoder.around(b"") is not None
        if self._encoder.is_segmented and is_bare and job.cut is None:
            self._look_up(plan)
        else:
            plan.is_whole = True
        return plan

    def finish(self, plan: Plan) -> Prompt | Unknown:
        """Encode what is missing.

        Takes about 0.4 us for each new character.

        Args:
            plan: From `plan`.
        """
        if not plan.is_whole:
            return self._joined(plan)
        try:
            tokens = self._whole(plan.text, plan.job.cut, is_dressed=plan.job.add_special_tokens)
        except Unreadable as error:
            return Unknown(error.reason)
        self._count(len(tokens) // 4, is_whole=True)
        return Prompt(plan.identity, tokens, plan.job.cache_salt)

    def _look_up(self, plan: Plan) -> None:
        with self._guard:
            found = plan.found = self._prefixes.find(plan.encoded)
        parts = plan.parts
        if found is not None:
            parts.append(found.tokens)
        plan.num_new_characters = 0
        for (seam, text), begin in self._encoder.segments(plan.text, found.start if found else 0):
            if seam:
                plan.last_seam = begin - len(seam), len(parts), begin
                parts.append(self._encoder.seam_ids(seam))
            if text:
                parts.append(self._known((seam, text)))
                if not isinstance(parts[-1], bytes):
                    plan.num_new_characters += len(text)

    def _known(self, segment: Segment) -> bytes | Segment:
        """A segment's ids; the segment itself where they are not known."""
        with self._guard:
            tokens = self._segments.get(segment)
            self.stats.num_segments += 1
            self.stats.num_segment_hits += tokens is not None
        return segment if tokens is None else tokens

    def _joined(self, plan: Plan) -> Prompt:
        parts = [part if isinstance(part, bytes) else self._encoded(part) for part in plan.parts]
        tokens = b"".join(parts)
        is_dressed = plan.job.add_special_tokens
        num_before = 0
        if is_dressed:
            tokens = self._encoder.around(tokens) or b""
            num_before = self._encoder.num_before
        salt = plan.job.cache_salt
        key = plan.identity.model, plan.identity.lora, salt, is_dressed
        found, left = plan.found, self._leave(plan, parts)
        prefix = None
        if found is not None:
            num_tokens = num_before + len(found.tokens) // 4
            prefix = KnownPrefix(found.keys.get(key, {}), num_tokens)
        prompt = Prompt(plan.identity, tokens, salt, prefix)
        if left is not None and (left is not found or key not in left.keys):
            left.keys[key] = prompt.keys_by_block
        self._count(prompt.num_tokens, prefix.num_tokens if prefix else 0)
        return prompt

    def _encoded(self, segment: Segment) -> bytes:
        tokens = self._encoder.segment(segment)
        weight = _SEGMENT_BYTES + len(segment[1]) + len(tokens)
        with self._guard:
            self._segments.put(segment, tokens, weight)
        return tokens

    def _leave(self, plan: Plan, parts: list[bytes]) -> Record | None:
        """Leave a record for prompts that go on from this one."""
        if plan.last_seam is None:
            return None
        start, num_parts, end = plan.last_seam
        if plan.found is not None and plan.found.start == start:
            return plan.found
        num_bytes = len(plan.encoded) - len(plan.text[end:].encode())
        record = Record(plan.encoded[:num_bytes], start, b"".join(parts[:num_parts]))
        with self._guard:
            self._prefixes.add(record, plan.found)
        return record

    def _whole(self, text: str, cut: Cut | None, *, is_dressed: bool) -> bytes:
        if cut is None:
            return self._encoder.whole(text, add_special_tokens=is_dressed)
        if cut.side is not None:
            # The engine first cuts texts that are too long for its context, whatever that is.
            if len(text) > cut.num_tokens * self._encoder.max_chars_per_token:
                raise Unreadable(Reason.TRUNCATION)
            return cut_tokens(self._encoder.whole(text, add_special_tokens=is_dressed), cut)
        around = self._encoder.around(b"") if is_dressed else b""
        if around is None or 4 * cut.num_tokens <= len(around):
            raise Unreadable(Reason.TRUNCATION)
        kept = cut_tokens(self._encoder.whole(text), Cut(cut.num_tokens - len(around) // 4))
        return self._encoder.around(kept) or b"" if is_dressed else kept

    def _count(self, num_tokens: int, num_prefix: int = 0, *, is_whole: bool = False) -> None:
        with self._guard:
            self.stats.num_prompts += 1
            self.stats.num_whole += is_whole
            self.stats.num_tokens += num_tokens
            self.stats.num_prefix_tokens += num_prefix
