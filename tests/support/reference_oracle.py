"""What a prompt's answer is when its blocks are moved by hand, without descriptors' plans or wires.

The prompt is computed with one cache, its keys and values are read as numbers and written to the
other cache, and the answer is computed with that: numbers are rounded as each cache rounds them.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from support.tiny_models import generate
from transload_engine.model.batch import Slots
from transload_engine.model.kv_cache import PagedCache
from transload_engine.model.llama import Llama
from transload_engine.model.placements import KvSettings, ModelName, make_descriptor
from transload_engine.model.runner import TorchRunner

BLOCK = 16


class Oracle:
    """Of one checkpoint; what was asked before is not computed again.

    Args:
        folder: Of a model.
    """

    def __init__(self, folder: Path) -> None:
        self._model = Llama.load(folder)
        self._known: dict[tuple[tuple[int, ...], int, str, str], list[int]] = {}

    def alone(self, prompt: Sequence[int], count: int, dtype: str = "f32") -> list[int]:
        """The answer of one engine with a cache of this dtype."""
        return self.moved(prompt, count, dtype, dtype)

    def moved(self, prompt: Sequence[int], count: int, src: str, dst: str) -> list[int]:
        """The answer behind blocks that were computed with one cache and moved to another.

        Args:
            prompt: Its last token is computed again.
            count: Tokens of the answer.
            src: Dtype of the cache that computes the prompt.
            dst: Of the other.
        """
        asked = (tuple(prompt), count, src, dst)
        if asked not in self._known:
            self._known[asked] = self._moved(*asked)
        return self._known[asked]

    def _moved(self, prompt: Sequence[int], count: int, src: str, dst: str) -> list[int]:
        num_blocks = 1 + -(-(len(prompt) + count) // BLOCK)
        ids = torch.arange(1, num_blocks)
        caches = [self._cache(dtype, num_blocks) for dtype in (src, dst)]
        generate(TorchRunner(self._model, caches[0]), prompt, 1, ids.tolist())
        positions = torch.arange(len(prompt))
        slots = Slots(ids[positions // BLOCK], positions % BLOCK)
        for layer in range(self._model.config.num_layers):
            caches[1].write(layer, slots, *caches[0].read(layer, ids, len(prompt)))
        runner = TorchRunner(self._model, caches[1])
        return generate(runner, prompt, count, ids.tolist(), first=len(prompt) - 1)

    def _cache(self, dtype: str, num_blocks: int) -> PagedCache:
        settings = KvSettings("LBHNC", BLOCK, num_blocks, dtype)
        return PagedCache(make_descriptor(self._model.config, settings, ModelName("oracle")))
