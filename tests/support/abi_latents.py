"""Descriptors of latents, written out by hand: one pool, blocks outermost, pads where told."""

from __future__ import annotations

from msgspec.structs import replace

from support.abi_placements import MODEL
from transload_abi.dtypes import DTYPES
from transload_abi.types import VERSION, Codec, Descriptor, Group, Place, Pool, Role

LATENT = 512
ROPE = 64


def rows(codec: str, tokens: int, dtype: str = "bf16") -> tuple[tuple[Role, ...], int]:
    """The roles of a page and its bytes: `none` has 1152-byte rows in bf16, 656 its own."""
    parts = [("latent", "D", dtype, LATENT), ("rope", "D", dtype, ROPE)]
    if codec == "fp8_ds_mla_656":
        parts = [("latent", "D", "e4m3", LATENT), ("latent_scale", "G", "f32", LATENT // 128)]
        parts.append(("rope", "D", "bf16", ROPE))
    row = sum(DTYPES[kind].bits * extent for _, _, kind, extent in parts)
    roles, base = [], 0
    for name, axis, kind, extent in parts:
        bits = DTYPES[kind].bits
        terms = (("N", 1, tokens, row), (axis, 1, extent, bits))
        kept = tuple(term for term in terms if term[2] > 1)
        roles.append(Role(name, kind, bits, {"N": tokens, axis: extent}, kept, base))
        base += bits * extent
    return tuple(roles), row * tokens // 8


def packed(
    *parts: tuple[str, int],
    tokens: int = 64,
    blocks: int = 64,
    page_pad: int = 0,
    block_pad: int = 0,
    dtype: str = "bf16",
) -> Descriptor:
    """One pool of blocks in which the pages of all layers follow each other.

    Args:
        parts: Codec and number of layers of each group, in order.
        tokens: Of a block.
        blocks: Of the pool.
        page_pad: Bytes after each page, which the page owns.
        block_pad: Bytes after the last page.
        dtype: Of codec `none`.
    """
    pages = [(count, *rows(codec, tokens, dtype)) for codec, count in parts]
    block = sum(count * (page + page_pad) for count, _, page in pages) + block_pad
    groups, offset, layer = [], 0, 0
    for (codec, count), (_, roles, page) in zip(parts, pages, strict=True):
        place = Place(("kv",), block, page + page_pad, offset, page + page_pad)
        groups.append(
            Group(
                id=f"{codec}-{layer}",
                kind="mla",
                layers=tuple(range(layer, layer + count)),
                tokens_per_block=tokens,
                places=(place,),
                roles=roles,
                codec=Codec(codec),
                null_block=0,
            )
        )
        layer += count
        offset += count * (page + page_pad)
    pool = Pool("kv", "device", block * blocks, blocks, 256, block)
    model = replace(MODEL, num_layers=layer)
    return Descriptor(VERSION, model, (pool,), tuple(groups))
