"""What computes tokens: the seam between scheduling and a model, real or simulated.

Knows no clock, no queue and no other engine. A runner is called by one thread at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

GREEDY_BELOW: Final = 1e-5
"""Temperature (`_SAMPLING_EPS` of vLLM's `v1/sample/sampler.py` @ 0.32.0): those below choose the
likeliest token."""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen, with the names and the meanings of the OpenAI and vLLM API.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_k: Of the likeliest tokens so many; 0 for all.
        top_p: The likeliest tokens that together have at least this probability.
        min_p: Tokens at least so probable as this share of the likeliest.
        seed: Of this request's draws; None draws from the engine's own generator.
        num_logprobs: Alternatives that are reported with each token; None reports nothing, 0 the
            chosen token alone.
        logit_bias: Added to the logits, by token.
        stop_ids: Tokens that end the answer; not chosen while `min_tokens` is not reached.
        min_tokens: Of the answer.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    num_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0


class Chunk(NamedTuple):
    """One request's share of a step: tokens whose KV is computed and written.

    Attributes:
        request_id: Same for all chunks of a request.
        token_ids: All tokens of the request so far, prompt and answer; not to be changed.
        num_prompt: Tokens of the prompt, the first of `token_ids`.
        first: Position of the first token to compute; the KV of all before it is in the blocks.
        end: Position behind the last.
        block_ids: Blocks that hold positions 0 to `end`, in order.
        sampling: How to choose the token behind the chunk; None where the prompt goes on.
        num_drawn: Tokens that were chosen for this request before.
    """

    request_id: str
    token_ids: Sequence[int]
    num_prompt: int
    first: int
    end: int
    block_ids: Sequence[int]
    sampling: Sampling | None
    num_drawn: int = 0


class Chosen(NamedTuple):
    """A token, and how probable the model found it.

    Attributes:
        token_id: The token.
        logprob: Natural logarithm of its probability; None where nobody asked.
        rank: 1 for the likeliest; None where nobody asked.
        alternatives: The likeliest tokens and their logprobs, likeliest first.
    """

    token_id: int
    logprob: float | None = None
    rank: int | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


class Runner(Protocol):
    """A model and its paged cache."""

    def run(self, chunks: Sequence[Chunk]) -> list[Chosen | None]:
        """Compute one step.

        Args:
            chunks: Of different requests.

        Returns:
            One for each chunk: the token behind it, None where none was asked for.
        """
        ...
