"""A runner whose tokens are a plain function of those before them, and which keeps its chunks."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transload_engine.core.runner import Chosen, Chunk
from transload_engine.server.tokens import ByteTokenizer

VOCABULARY = 300
FIRST_LETTER = ord("a") + ByteTokenizer.FIRST_BYTE


def follower(tokens: Sequence[int]) -> int:
    """The token behind these, of all of them and their order: a letter to `ByteTokenizer`."""
    value = 7
    for token in tokens:
        value = (value * 31 + token) % 1_000_003
    return FIRST_LETTER + value % 26


def answer(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens behind a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(follower(tokens))
    return tokens[len(prompt) :]


@dataclass
class RecordingRunner:
    """See the module.

    What is written to a block is remembered, and what a chunk takes for written must be there: a
    step that would attend to other tokens' KV fails.

    Attributes:
        block_size: Tokens of a block.
        steps: Chunks of each step, their tokens as they were.
        gate: A step waits for it before it ends.
        entered: Set when a step has begun.
        chooses: From the tokens and the chunk, what is chosen.
    """

    block_size: int = 4
    steps: list[list[Chunk]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    chooses: Callable[[Chunk], Chosen] = lambda chunk: Chosen(follower(chunk.token_ids))
    slots: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """No step waits until the gate is shut."""
        self.gate.set()

    def run(self, chunks: Sequence[Chunk]) -> list[Chosen | None]:
        """See `Runner`."""
        self.steps.append([each._replace(token_ids=list(each.token_ids)) for each in chunks])
        self.entered.set()
        assert self.gate.wait(10), "the gate stayed shut"
        return [self._computed(chunk) for chunk in chunks]

    def _computed(self, chunk: Chunk) -> Chosen | None:
        tokens = tuple(chunk.token_ids)
        assert len(set(chunk.block_ids)) == len(chunk.block_ids) == -(-chunk.end // self.block_size)
        assert 0 not in chunk.block_ids, "the null block is nobody's"
        for position in range(chunk.end):
            slot = (chunk.block_ids[position // self.block_size], position % self.block_size)
            if position >= chunk.first:
                self.slots[slot] = tokens[: position + 1]
            assert self.slots[slot] == tokens[: position + 1], f"other KV at position {position}"
        if chunk.sampling is None:
            return None
        assert chunk.end == len(tokens)
        return self.chooses(chunk)
