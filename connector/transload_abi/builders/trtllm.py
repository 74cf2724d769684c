"""Descriptors of TensorRT-LLM's caches: one pool `[blocks, layers, 2, H, N, D]`.

A block has all layers, a layer K and then V, each `[H, N, D]` (`[N, H, D]` where the model's
attention asks for it). Blocks are of 32 tokens unless the engine is told otherwise. In NVFP4 the
elements' pool and the scales' have the same block ids (`kvCacheManager.cpp`, which makes a pool of
block scales beside each pool).
"""

from typing import Final

from transload_abi.builders import by_hand
from transload_abi.builders.blocks import (
    Blocks,
    Heads,
    Order,
    Scales,
    codec_of,
    described,
    scale_params,
    side,
    side_bytes,
)
from transload_abi.errors import Contradiction
from transload_abi.types import Codec, Descriptor, Model, Place, Pool, Role

NVFP4_GROUP: Final = 16
"""Elements that share a scale."""


def attention(
    model: Model, blocks: Blocks, heads: Heads, *, order: Order = "HND", scales: Scales = ()
) -> Descriptor:
    """Keys and values in one pool, `kv`.

    Args:
        model: Whose cache it is.
        blocks: The pool's blocks.
        heads: What a page holds.
        order: Of each side.
        scales: Of layers in 8-bit floats.

    Raises:
        DescriptorError: Something contradicts itself.
    """
    half = heads.num_held * blocks.tokens_per_block * heads.size
    roles = [
        side(name, heads, blocks.tokens_per_block, order, first=number * half)
        for number, name in enumerate("kv")
    ]
    pool, place = _pool("kv", blocks, 2 * side_bytes(heads, blocks.tokens_per_block))
    return described(
        "tensorrt-llm",
        model,
        blocks,
        [pool],
        [place],
        roles,
        owner=heads.owner,
        codec=codec_of(scales),
        layout=order,
    )


def nvfp4(
    model: Model, blocks: Blocks, heads: Heads, *, order: Order = "HND", scales: Scales = ()
) -> Descriptor:
    """Keys and values in a pool `data`, a scale for 16 of their elements in a pool `scales`.

    Args:
        model: Whose cache it is.
        blocks: The blocks of either pool.
        heads: What a page holds; of dtype `e2m1`.
        order: Of each side, and of its scales.
        scales: Of layers, beside those in the pool.

    Raises:
        DescriptorError: Something contradicts itself.
    """
    if heads.dtype != "e2m1" or heads.size % NVFP4_GROUP:
        raise Contradiction(
            f"{heads.size} elements of {heads.dtype} are no groups of {NVFP4_GROUP} e2m1", "heads"
        )
    tokens, size = blocks.tokens_per_block, heads.size // NVFP4_GROUP
    of_scales = heads._replace(size=size, dtype="e4m3")
    roles: list[Role] = []
    for number, name in enumerate("kv"):
        first = number * heads.num_held * tokens
        roles.append(side(name, heads, tokens, order, first=first * heads.size))
        roles.append(_scales(name, of_scales, tokens, order, first * size))
    pages = (side_bytes(heads, tokens), side_bytes(of_scales, tokens))
    found = [
        _pool(name, blocks, 2 * page) for name, page in zip(("data", "scales"), pages, strict=True)
    ]
    return described(
        "tensorrt-llm",
        model,
        blocks,
        [pool for pool, _ in found],
        [place for _, place in found],
        roles,
        owner=heads.owner,
        codec=Codec("block_scaled", scale_params(scales)),
        layout=order,
    )


def _scales(name: str, heads: Heads, tokens: int, order: Order, first: int) -> Role:
    """A side's scales: as the side, with `G` in place of `D`."""
    by_head = order == "HND"
    return by_hand.role(
        f"{name}_group_scale",
        heads.dtype,
        first=first,
        place=1,
        H=(heads.num_held, heads.size * (tokens if by_head else 1)),
        N=(tokens, heads.size * (1 if by_head else heads.num_held)),
        G=(heads.size, 1),
    )


def _pool(name: str, blocks: Blocks, page_bytes: int) -> tuple[Pool, Place]:
    return by_hand.packed_pool(
        name,
        num_layers=len(blocks.layers),
        num_blocks=blocks.num_blocks,
        page_bytes=page_bytes,
        outermost="blocks",
        memory=blocks.memory,
        align=blocks.align,
    )
