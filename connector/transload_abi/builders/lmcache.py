"""Descriptors of LMCache's chunks, in a pool of chunks one after the other.

By format (`lmcache/v1/memory_management.py:MemoryFormat`):

=============  ==========================================================================
`KV_2LTD`      a chunk `[2, layers, tokens, heads * size]`: all of K, then all of V
`KV_T2D`       a chunk's layer `[tokens, 2, heads * size]`; the chunks of a layer together
`KV_2TD`       a chunk's layer `[2, tokens, heads * size]`; likewise
`KV_MLA_FMT`   a chunk `[1, layers, tokens, row]`: latents
=============  ==========================================================================
"""

from typing import Final, Literal

from transload_abi.builders import by_hand
from transload_abi.builders.blocks import (
    Blocks,
    Heads,
    Scales,
    codec_of,
    described,
    side,
    side_bytes,
)
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import Descriptor, Model, Owner, Place, Pool, Role

Format = Literal["KV_2LTD", "KV_T2D", "KV_2TD"]

_SIDES: Final = ((0, "k"), (1, "v"))


def attention(
    model: Model, chunks: Blocks, heads: Heads, *, format: Format = "KV_2LTD", scales: Scales = ()
) -> Descriptor:
    """Keys and values; the pool is `kv`.

    Args:
        model: Whose cache it is.
        chunks: They are the descriptor's blocks.
        heads: What a layer of a chunk holds.
        format: Of chunks, see above.
        scales: Of layers in 8-bit floats.

    Raises:
        DescriptorError: Something contradicts itself.
    """
    tokens, num_layers = chunks.tokens_per_block, len(chunks.layers)
    half = side_bytes(heads, tokens)
    by_chunk = 2 * num_layers * half
    pool = Pool(
        id="kv",
        memory=chunks.memory,
        num_bytes=by_chunk * chunks.num_blocks,
        num_blocks=chunks.num_blocks,
        align=chunks.align,
        block_bytes=by_chunk if format == "KV_2LTD" or num_layers == 1 else 0,
    )
    return described(
        "lmcache",
        model,
        chunks,
        [pool],
        _places(chunks, half, format),
        _sides(heads, tokens, format),
        owner=heads.owner,
        codec=codec_of(scales),
        layout=format,
    )


def latent(
    model: Model,
    chunks: Blocks,
    *,
    kv_lora_rank: int = 512,
    rope_size: int = 64,
    row_size: int = 0,
    dtype: str = "bf16",
    replica: tuple[int, int] = (0, 1),
) -> Descriptor:
    """Latents and rotary parts; the pool is `kv`.

    Args:
        model: Whose cache it is.
        chunks: They are the descriptor's blocks.
        kv_lora_rank: Elements of the latent.
        rope_size: Elements of the rotary part.
        row_size: Elements of a row where it is longer than both; 0: it is not.
        dtype: `f32`, `f16` or `bf16`.
        replica: Ordinal and number of ranks with the same latents.

    Raises:
        DescriptorError: Something contradicts itself.
    """
    if dtype not in DTYPES:
        raise UnknownPart(f"no dtype {dtype[:MAX_QUOTED_CHARS]!r}", "dtype")
    tokens, row = chunks.tokens_per_block, row_size or kv_lora_rank + rope_size
    if row < kv_lora_rank + rope_size:
        raise Contradiction(f"{row} elements are no row of both parts", "row_size")
    pool, place = by_hand.packed_pool(
        "kv",
        num_layers=len(chunks.layers),
        num_blocks=chunks.num_blocks,
        page_bytes=tokens * row * DTYPES[dtype].bits // 8,
        outermost="blocks",
        memory=chunks.memory,
        align=chunks.align,
    )
    roles = [
        by_hand.role("latent", dtype, N=(tokens, row), D=(kv_lora_rank, 1)),
        by_hand.role("rope", dtype, first=kv_lora_rank, N=(tokens, row), D=(rope_size, 1)),
    ]
    owner = Owner(replica=replica)
    return described(
        "lmcache", model, chunks, [pool], [place], roles, kind="mla", owner=owner, layout="KV_MLA"
    )


def _places(chunks: Blocks, half: int, format: Format) -> list[Place]:
    """Of both sides of a layer together, or of each; a side of a layer has `half` bytes."""
    num_layers = len(chunks.layers)
    if format != "KV_2LTD":
        layer_stride = 2 * half * chunks.num_blocks if num_layers > 1 else 0
        return [Place(("kv",), 2 * half, layer_stride, page_bytes=2 * half)]
    layer_stride = half if num_layers > 1 else 0
    return [
        Place(("kv",), 2 * num_layers * half, layer_stride, number * num_layers * half, half)
        for number in range(2)
    ]


def _sides(heads: Heads, tokens: int, format: Format) -> list[Role]:
    if format == "KV_2LTD":
        return [side(name, heads, tokens, "NHD", place=i) for i, name in _SIDES]
    row = heads.num_held * heads.size
    if format == "KV_2TD":
        return [side(name, heads, tokens, "NHD", first=i * tokens * row) for i, name in _SIDES]
    return [
        by_hand.role(
            name,
            heads.dtype,
            first=number * row,
            H=(heads.num_held, heads.size),
            N=(tokens, 2 * row),
            D=(heads.size, 1),
        )
        for number, name in _SIDES
    ]
