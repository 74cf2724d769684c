"""What an engine has to do: one leg of a request, and runs of steps that are alike."""

import math
from collections.abc import Sequence

from simulation.trace import BLOCK_TOKENS


class Job:
    """One leg on one engine.

    Attributes:
        num_answer_tokens: To be written here; 1 on a prefill leg.
        is_loaded: Whether the prompt's KV is loaded from another engine.
        num_cached_blocks: Found in the cache when the job started.
        first_token_s: When the engine had its first token.
    """

    __slots__ = (
        "finish_step",
        "first_token_s",
        "held",
        "is_loaded",
        "keys",
        "most_cached",
        "num_answer_tokens",
        "num_cached_blocks",
        "num_computed",
        "num_named",
        "num_plain",
        "num_prompt_tokens",
        "owner",
        "queued_s",
    )

    def __init__(
        self,
        owner: object,
        keys: Sequence[int],
        num_prompt_tokens: int,
        num_answer_tokens: int,
        *,
        is_loaded: bool = False,
    ) -> None:
        self.owner = owner
        self.keys = keys
        self.num_prompt_tokens = num_prompt_tokens
        self.num_answer_tokens = num_answer_tokens
        self.is_loaded = is_loaded
        self.most_cached = (num_prompt_tokens - 1) // BLOCK_TOKENS
        self.num_cached_blocks = 0
        self.num_computed = 0
        self.num_named = 0
        self.num_plain = 0
        self.held: list[int] = []
        self.finish_step = 0
        self.first_token_s = 0.0
        self.queued_s = 0.0

    @property
    def num_blocks(self) -> int:
        """Blocks of prompt and answer."""
        return -(-(self.num_prompt_tokens + self.num_answer_tokens) // BLOCK_TOKENS)


class Run:
    """Decode steps in a row: the first takes `first_s`, each further one `growth_s` more."""

    __slots__ = ("end_s", "first_s", "growth_s", "num_steps", "start_s")

    def __init__(self, start_s: float, first_s: float, growth_s: float, num_steps: int) -> None:
        self.start_s = start_s
        self.first_s = first_s
        self.growth_s = growth_s
        self.num_steps = num_steps
        self.end_s = start_s + self._length_s(num_steps)

    def cut(self, now_s: float) -> None:
        """End with the step that `now_s` falls into."""
        elapsed_s = now_s - self.start_s
        b = self.first_s - self.growth_s / 2
        if self.growth_s > 0:
            root = math.sqrt(b * b + 2 * self.growth_s * elapsed_s)
            count = 2 * elapsed_s / (b + root)
        else:
            count = elapsed_s / self.first_s
        self.num_steps = max(1, min(self.num_steps, math.ceil(count - 1e-9)))
        self.end_s = max(now_s, self.start_s + self._length_s(self.num_steps))

    def _length_s(self, num_steps: int) -> float:
        return num_steps * self.first_s + self.growth_s * num_steps * (num_steps - 1) / 2
