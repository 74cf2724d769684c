"""A request as the scheduler sees it: its tokens, their hashes, its blocks, and how far it is."""

import enum
import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from transload_engine.core.blocks import Block
from transload_engine.core.handoff import Handoff
from transload_engine.core.hashes import OWN_HASH, BlockHash
from transload_engine.core.runner import Sampling

GREEDY: Final = Sampling()


class Status(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Finish(enum.StrEnum):
    """Why a request ended, in vLLM's words."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class Ask:
    """What is wanted of an engine.

    Attributes:
        max_tokens: At least 1.
        stop_token_ids: The answer ends behind one of these.
        cache_salt: Prompts share blocks only under equal salts.
        choice: Which of several answers to one prompt; 0 is the greedy one. Of simulated tokens.
        sampling: How a model chooses tokens.
        hands_off: Whether another engine decodes: blocks stay for it, and a handoff is answered.
        num_readers: Engines that will read these blocks.
        handoff: Where the prompt's blocks are to be loaded from.
    """

    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = True
    stop_token_ids: frozenset[int] = frozenset()
    cache_salt: str | None = None
    choice: int = 0
    sampling: Sampling = GREEDY
    hands_off: bool = False
    num_readers: int = 1
    handoff: Handoff | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One request in an engine.

    Attributes:
        tokens: The prompt's and the answer's.
        contents: Hash of each full block of `tokens`, as far as they were needed.
        num_computed: Tokens whose KV is there, or will be when the batch under way is done.
        num_in_flight: Answer tokens of the batch under way, 0 or 1.
        num_stored: Blocks that were given their content.
        num_cached: Prompt tokens that were not computed here; None before the first admission.
        has_reported: Whether `num_cached` was told, which the first output does.
        has_to_load: Whether the handoff is still to be loaded; each is, once.
        block_hash: How `contents` are made.
        generator: The simulated model behind `tokens`; None until it is first asked.
    """

    request_id: str
    ask: Ask
    block_size: int
    tokens: list[int]
    status: Status = Status.WAITING
    blocks: list[Block] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    num_computed: int = 0
    num_in_flight: int = 0
    num_stored: int = 0
    num_cached: int | None = None
    num_preemptions: int = 0
    has_reported: bool = False
    has_to_load: bool = False
    block_hash: BlockHash = OWN_HASH
    generator: "Generator | None" = None

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.ask.prompt)

    @property
    def num_answer(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - len(self.ask.prompt)

    def extra_keys(self, number: int) -> tuple[str, ...] | None:
        """What besides tokens identifies the n-th block; a salt marks the first, and so all."""
        salt = self.ask.cache_salt
        return (salt,) if salt is not None and number == 0 else None

    def content(self, number: int) -> bytes:
        """Hash of the n-th block, which is full, and of all before it."""
        size = self.block_size
        for each in range(len(self.contents), number + 1):
            parent = self.contents[-1] if self.contents else self.block_hash.root
            salt = self.ask.cache_salt if each == 0 else None
            tokens = self.tokens[each * size : (each + 1) * size]
            self.contents.append(self.block_hash.of(parent, tokens, salt))
        return self.contents[number]


class Generator:
    """The model: the next token is a function of all tokens before it, and of nothing else.

    So the same text comes of a prompt wherever it is computed, and another text of other blocks.

    Args:
        tokens: As attention sees them: the prompt's, or what was loaded instead.
        choice: Distinguishes several answers to one prompt.
        vocabulary: Ids that answers are made of.
        eos: Id that ends an answer.
        mean_answer_tokens: One token in so many is `eos`; 0 for none.
    """

    __slots__ = ("_eos", "_mean", "_state", "_vocabulary")

    def __init__(
        self,
        tokens: Sequence[int],
        choice: int,
        vocabulary: Sequence[int],
        eos: int,
        mean_answer_tokens: int,
    ) -> None:
        self._state = hashlib.blake2b(array("Q", tokens).tobytes(), digest_size=8)
        if choice:
            self._state.update(b"choice %d" % choice)
        self._vocabulary = vocabulary
        self._eos = eos
        self._mean = mean_answer_tokens

    def next(self) -> int:
        """The next token, which becomes part of what the one after it depends on."""
        value = int.from_bytes(self._state.digest(), "big")
        if self._mean and value % self._mean == 0:
            token = self._eos
        else:
            token = self._vocabulary[(value >> 20) % len(self._vocabulary)]
        self._state.update(token.to_bytes(8, "little"))
        return token
