"""Descriptors of the blocks that Dynamo's block manager keeps (KVBM).

Three forms (`lib/kvbm-kernels/README.md`) of `nl` layers, `no` (2) of K and V, `nt` tokens, `nh`
heads and `hd` elements:

=============  ============================================================================
stack          memory of its own for each layer and side, blocks `[nt, nh, hd]` (`NHD`) or
               `[nh, nt, hd]` (`HND`)
operational    a block `[nl, no, inner]`, `inner` being either of these
universal      a block `[nh, nl, no, nt, hd]`, from which a rank's heads are cut in one piece
=============  ============================================================================
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
    side,
    side_bytes,
)
from transload_abi.types import Descriptor, Model, Place, Pool

ENGINE: Final = "dynamo"


def stack(
    model: Model, blocks: Blocks, heads: Heads, *, order: Order = "NHD", scales: Scales = ()
) -> Descriptor:
    """Memory for each layer and side; the pools are `k0`, `k1`, ... and `v0`, `v1`, ... by layer.

    Raises:
        DescriptorError: Something contradicts itself.
    """
    tokens = blocks.tokens_per_block
    page = side_bytes(heads, tokens)
    pools = [
        Pool(
            id=f"{name}{layer}",
            memory=blocks.memory,
            num_bytes=page * blocks.num_blocks,
            num_blocks=blocks.num_blocks,
            align=blocks.align,
            block_bytes=page,
        )
        for name in "kv"
        for layer in blocks.layers
    ]
    places = [
        Place(tuple(f"{name}{layer}" for layer in blocks.layers), page, page_bytes=page)
        for name in "kv"
    ]
    roles = [side(name, heads, tokens, order, place=place) for place, name in enumerate("kv")]
    owner, codec = heads.owner, codec_of(scales)
    return described(
        ENGINE, model, blocks, pools, places, roles, owner=owner, codec=codec, layout=order
    )


def operational(
    model: Model, blocks: Blocks, heads: Heads, *, order: Order = "NHD", scales: Scales = ()
) -> Descriptor:
    """One pool, `kv`, of blocks `[nl, no, inner]`; `order` is what is inside.

    Raises:
        DescriptorError: Something contradicts itself.
    """
    tokens = blocks.tokens_per_block
    half = heads.num_held * tokens * heads.size
    roles = [
        side(name, heads, tokens, order, first=number * half) for number, name in enumerate("kv")
    ]
    pool, place = by_hand.packed_pool(
        "kv",
        num_layers=len(blocks.layers),
        num_blocks=blocks.num_blocks,
        page_bytes=2 * side_bytes(heads, tokens),
        outermost="blocks",
        memory=blocks.memory,
        align=blocks.align,
    )
    owner, codec = heads.owner, codec_of(scales)
    return described(
        ENGINE, model, blocks, [pool], [place], roles, owner=owner, codec=codec, layout=order
    )


def universal(model: Model, blocks: Blocks, heads: Heads, *, scales: Scales = ()) -> Descriptor:
    """One pool, `kv`, of blocks `[nh, nl, no, nt, hd]`.

    Raises:
        DescriptorError: Something contradicts itself.
    """
    tokens, num_layers = blocks.tokens_per_block, len(blocks.layers)
    row = tokens * heads.size
    roles = [
        by_hand.role(
            name,
            heads.dtype,
            first=number * row,
            H=(heads.num_held, 2 * num_layers * row),
            N=(tokens, heads.size),
            D=(heads.size, 1),
        )
        for number, name in enumerate("kv")
    ]
    block = 2 * num_layers * side_bytes(heads, tokens)
    of_one_head = side_bytes(heads._replace(held=(0, 1, 1)), tokens)
    layer_stride = 2 * of_one_head if num_layers > 1 else 0
    pool = Pool(
        id="kv",
        memory=blocks.memory,
        num_bytes=block * blocks.num_blocks,
        num_blocks=blocks.num_blocks,
        align=blocks.align,
        block_bytes=block,
    )
    is_whole = num_layers == 1 or heads.num_held == 1
    page = block // num_layers if is_whole else 0
    place = Place(("kv",), block, layer_stride, page_bytes=page)
    owner, codec = heads.owner, codec_of(scales)
    return described(
        ENGINE, model, blocks, [pool], [place], roles, owner=owner, codec=codec, layout="universal"
    )
