"""The model as a runner: what `core.runner.Runner` asks for, computed with torch."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from transload_engine.core.runner import Chosen, Chunk
from transload_engine.model.batch import Batch
from transload_engine.model.kv_cache import PagedCache
from transload_engine.model.llama import Llama
from transload_engine.model.sampling import Draws, choose


class TorchRunner:
    """See `core.runner.Runner`. Holds nothing of a request but what is in the cache.

    Args:
        model: With its weights.
        cache: For all of its layers and heads.
        seed: Of the draws of requests that have none; None: of no known seed.
    """

    def __init__(self, model: Llama, cache: PagedCache, seed: int | None = None) -> None:
        self.model = model
        self.cache = cache
        self._draws = Draws(seed)

    def run(self, chunks: Sequence[Chunk]) -> list[Chosen | None]:
        """Compute one step.

        Raises:
            ValueError: A chunk is empty, or its blocks do not reach to its end.
        """
        if not chunks:
            return []
        with torch.inference_mode():
            batch = Batch.of(chunks, self.cache.block_size)
            rows = iter(self.model.logits(batch, self.cache))
            return [self._choose(chunk, rows) for chunk in chunks]

    def _choose(self, chunk: Chunk, rows: Iterator[Tensor]) -> Chosen | None:
        if chunk.sampling is None:
            return None
        prompt = chunk.token_ids[: chunk.num_prompt]
        answer = chunk.token_ids[chunk.num_prompt : chunk.end]
        draw = self._draws.next(chunk.sampling.seed, chunk.num_drawn)
        return choose(next(rows), chunk.sampling, prompt, answer, draw)
