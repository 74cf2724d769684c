"""The forward pass of the Llama family over a batch, with keys and values in a paged cache.

In each layer the whole batch's keys and values are written before any are read: a chunk may read
blocks that another chunk of the same step fills. Numbers are f32 throughout.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from transload_engine.model.batch import Batch
from transload_engine.model.checkpoint import LayerWeights, Weights, load_weights
from transload_engine.model.config import ModelConfig, read_config
from transload_engine.model.kv_cache import PagedCache
from transload_engine.model.rope import Rotation, Turn


class Llama:
    """A model with its weights; holds nothing of any request."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self._rotation = Rotation(config.rope, config.head_dim)

    @classmethod
    def load(cls, folder: Path) -> "Llama":
        """The model of a checkpoint's folder.

        Raises:
            UnusableModel: The checkpoint is not one that this engine can run.
            OSError: A file cannot be read.
        """
        config = read_config(folder)
        return cls(config, load_weights(folder, config))

    def logits(self, batch: Batch, cache: PagedCache) -> Tensor:
        """Compute a batch and write its keys and values.

        Returns:
            `[chunks that want a token, vocab_size]`, f32: of the token behind each of them.
        """
        turn = self._rotation.turn(batch.positions)
        hidden = embedding(batch.token_ids, self.weights.embedding)
        for number, layer in enumerate(self.weights.layers):
            rows = self._norm(hidden, layer.attention_norm)
            hidden = hidden + self._attention(number, rows, turn, batch, cache)
            hidden = hidden + _mlp(layer, self._norm(hidden, layer.mlp_norm))
        hidden = self._norm(hidden[batch.sampled_rows], self.weights.norm)
        return linear(hidden, self.weights.head)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(rows, weight.shape, weight, self.config.rms_norm_eps)

    def _attention(
        self, number: int, rows: Tensor, turn: Turn, batch: Batch, cache: PagedCache
    ) -> Tensor:
        layer = self.weights.layers[number]
        split = (len(rows), -1, self.config.head_dim)
        queries = layer.queries.apply(rows).view(split)
        keys = layer.keys.apply(rows).view(split)
        values = layer.values.apply(rows).view(split)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = self._norm(queries, layer.query_norm), self._norm(keys, layer.key_norm)
        queries, keys = turn.apply(queries), turn.apply(keys)
        cache.write(number, batch.slots, keys, values)
        attended = torch.empty_like(queries)
        for span in batch.spans:
            held = cache.read(number, span.block_ids, span.end)
            window = self.config.windows[number]
            attended[span.rows] = attend(queries[span.rows], *held, span.first, window)
        return layer.output.apply(attended.flatten(1))


def attend(queries: Tensor, keys: Tensor, values: Tensor, first: int, window: int) -> Tensor:
    """Causal attention of one request's newest tokens to all of its tokens.

    Args:
        queries: `[new tokens, heads, head_dim]`.
        keys: `[tokens, KV heads, head_dim]`; each serves as many neighbouring heads of queries.
        values: Likewise.
        first: Position of the first query; the keys begin at position 0.
        window: Tokens that a query looks back to, its own included; 0 for all.

    Returns:
        As `queries`.
    """
    distance = torch.arange(first, first + len(queries))[:, None] - torch.arange(len(keys))
    seen = (distance >= 0) & (distance < (window or len(keys)))
    attended = scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=seen,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


def _mlp(layer: LayerWeights, rows: Tensor) -> Tensor:
    return layer.down.apply(silu(layer.gate.apply(rows)) * layer.up.apply(rows))
