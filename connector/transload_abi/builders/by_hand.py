"""Small pieces for whoever writes a descriptor of their own cache."""

from __future__ import annotations

from typing import Literal

from transload_abi.dtypes import DTYPES
from transload_abi.errors import UnknownPart
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import Memory, Place, Pool, Role

Digits = tuple[int, int] | list[tuple[int, int]]
"""An axis: its extent and its stride in elements; or a list of digits, innermost first."""


def terms(
    element_bits: int,
    *,
    H: Digits = (1, 0),
    N: Digits = (1, 0),
    D: Digits = (1, 0),
    G: Digits = (1, 0),
) -> tuple[tuple[str, int, int, int], ...]:
    """The terms of a role whose strides are counted in its own elements.

    ``terms(16, H=(8, 2048), N=(16, 128), D=(128, 1))`` is a page `[H, N, D]` in 16-bit elements;
    ``D=[(8, 1), (16, 128)]`` cuts 128 elements into pieces of 8 that lie 128 apart.
    """
    found = []
    for axis, digits in (("H", H), ("N", N), ("D", D), ("G", G)):
        div = 1
        for extent, stride in [digits] if isinstance(digits, tuple) else digits:
            if extent > 1:
                found.append((axis, div, extent, stride * element_bits))
            div *= extent
    return tuple(found)


def role(
    name: str,
    dtype: str,
    *,
    first: int = 0,
    place: int = 0,
    **axes: Digits,
) -> Role:
    """A role by its axes, as `terms` takes them.

    Args:
        name: Of `roles.ROLES`.
        dtype: Of `dtypes.DTYPES`.
        first: Elements from the page's start to the one at index 0.
        place: Index into the group's places.
        axes: `H`, `N`, `D`, `G`: those that the role has, extents of 1 as well.

    Raises:
        UnknownPart: There is no such dtype.
    """
    if dtype not in DTYPES:
        raise UnknownPart(f"no dtype {dtype[:MAX_QUOTED_CHARS]!r}", "dtype")
    bits = DTYPES[dtype].bits
    shape: dict[str, int] = {}
    for axis, digits in axes.items():
        for extent, _ in [digits] if isinstance(digits, tuple) else digits:
            shape[axis] = shape.get(axis, 1) * extent
    return Role(
        role=name,
        dtype=dtype,
        bits=bits,
        shape=shape,
        terms=terms(bits, **axes),
        base_bits=first * bits,
        place=place,
    )


def packed_pool(
    pool: str,
    *,
    num_layers: int,
    num_blocks: int,
    page_bytes: int,
    outermost: Literal["layers", "blocks"] = "layers",
    memory: Memory = "device",
    align: int = 256,
) -> tuple[Pool, Place]:
    """A pool of pages without gaps, and the place of its layers.

    Args:
        pool: Its id.
        num_layers: Pages of a block.
        num_blocks: Blocks.
        page_bytes: Bytes of a page.
        outermost: `layers`: all blocks of a layer together. `blocks`: all layers of a block.
        memory: Where it is.
        align: Bytes that its start is aligned to.
    """
    is_by_layer = outermost == "layers"
    block_stride = page_bytes if is_by_layer else page_bytes * num_layers
    layer_stride = page_bytes * num_blocks if is_by_layer else page_bytes
    return (
        Pool(
            id=pool,
            memory=memory,
            num_bytes=page_bytes * num_layers * num_blocks,
            num_blocks=num_blocks,
            align=align,
            block_bytes=0 if is_by_layer else block_stride,
        ),
        Place(
            pools=(pool,),
            block_stride=block_stride,
            layer_stride=layer_stride if num_layers > 1 else 0,
            page_bytes=page_bytes,
        ),
    )
