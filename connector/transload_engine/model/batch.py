"""One step's chunks as tensors: the tokens of all of them, one behind the other.

Knows no model: only which token is at which position of which request, and its slot in the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from transload_engine.core.runner import Chunk


class Slots(NamedTuple):
    """Places of tokens in the cache: block ids and offsets in the block, `[tokens]` each."""

    block_ids: Tensor
    offsets: Tensor


class Span(NamedTuple):
    """One chunk's share of the batch.

    Attributes:
        rows: Of the batch.
        first: Position of the first of its tokens.
        end: Position behind the last.
        block_ids: Of positions 0 to `end`.
    """

    rows: slice
    first: int
    end: int
    block_ids: Tensor


@dataclass(frozen=True)
class Batch:
    """See the module.

    Attributes:
        token_ids, positions: `[tokens]`, int64.
        slots: Where their keys and values belong.
        spans: By chunk.
        sampled_rows: The last row of each chunk that wants a token.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Slots
    spans: tuple[Span, ...]
    sampled_rows: Tensor

    @classmethod
    def of(cls, chunks: Sequence[Chunk], block_size: int) -> "Batch":
        """The batch of a step.

        Raises:
            ValueError: A chunk is empty, or its blocks do not reach to its end.
        """
        spans: list[Span] = []
        row = 0
        for chunk in chunks:
            num_blocks = -(-chunk.end // block_size)
            if not 0 <= chunk.first < chunk.end <= len(chunk.token_ids):
                raise ValueError(
                    f"{chunk.request_id}: no tokens {chunk.first} to {chunk.end} "
                    f"of {len(chunk.token_ids)}"
                )
            if len(chunk.block_ids) < num_blocks:
                raise ValueError(
                    f"{chunk.request_id}: {len(chunk.block_ids)} blocks of {block_size} for "
                    f"{chunk.end} tokens"
                )
            rows = slice(row, row + chunk.end - chunk.first)
            block_ids = torch.tensor(chunk.block_ids[:num_blocks])
            spans.append(Span(rows, chunk.first, chunk.end, block_ids))
            row = rows.stop
        return cls._filled(chunks, spans, block_size)

    @classmethod
    def _filled(cls, chunks: Sequence[Chunk], spans: list[Span], block_size: int) -> "Batch":
        token_ids = [
            token for chunk in chunks for token in chunk.token_ids[chunk.first : chunk.end]
        ]
        by_span = [torch.arange(span.first, span.end) for span in spans]
        block_ids = [
            span.block_ids[positions // block_size]
            for span, positions in zip(spans, by_span, strict=True)
        ]
        positions = torch.cat(by_span)
        wanted = [
            span.rows.stop - 1
            for chunk, span in zip(chunks, spans, strict=True)
            if chunk.sampling is not None
        ]
        return cls(
            token_ids=torch.tensor(token_ids),
            positions=positions,
            slots=Slots(torch.cat(block_ids), positions % block_size),
            spans=tuple(spans),
            sampled_rows=torch.tensor(wanted, dtype=torch.int64),
        )
