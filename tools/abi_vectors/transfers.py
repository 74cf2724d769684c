"""What a transfer of `convert/` is: sources, a destination, block lists and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from abi_vectors.formats import Dims
from abi_vectors.pages import Cache

Blocks = dict[int, list[int]]
"""Block ids by table; the last holds the last token."""

DIMS = Dims(blocks=6)
SMALL = Dims(layers=1, blocks=3, heads=1, tokens=2, size=16)
FOUR = DIMS._replace(heads=4)
LONG, SHORT = DIMS._replace(blocks=4, tokens=16), DIMS._replace(blocks=9, tokens=4)
LATENT = Dims(heads=1, blocks=6, tokens=4, size=24)
ROWS = Dims(layers=1, heads=1, blocks=4, tokens=4, size=512)


class Source(NamedTuple):
    """One rank that is read.

    Attributes:
        cache: Unwritten.
        blocks: What the request has there.
        verdict: On this source alone; `refused` where it has nothing that the destination takes.
    """

    cache: Cache
    blocks: Blocks
    verdict: str


class ConvertCase(NamedTuple):
    """One transfer.

    Attributes:
        name: Of its folder.
        description: For a stranger.
        sources: One, or the ranks that the destination is put together from.
        dst: Unwritten.
        dst_blocks: What the request has there.
        num_tokens: Of the request.
        first_token: That the destination wants.
        unseen_blocks: Blocks at the beginning of the destination's lists to which nothing moves.
        change: Roles whose elements are of another dtype or codec at the destination; others keep
            their bits.
        num_encoder_tokens: What groups of kind `cross` count; None: they count as all others do.
        zeros: States whose elements are all zero.
        patterns: By role, the bits of the source's elements, over and over; others have any.
        error: `plan` or `missing` where a mover refuses; empty: it moves.
    """

    name: str
    description: str
    sources: list[Source]
    dst: Cache
    dst_blocks: Blocks
    num_tokens: int
    first_token: int = 0
    unseen_blocks: int = 0
    change: tuple[str, ...] = ()
    num_encoder_tokens: int | None = None
    zeros: tuple[int, ...] = ()
    patterns: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    error: str = ""


def small(
    name: str, description: str, src: Cache, dst: Cache, verdict: str, **more: Any
) -> ConvertCase:
    """Likewise between caches of three blocks."""
    given = {"src_blocks": {0: [2, 1]}, "dst_blocks": {0: [1, 2]}} | more
    return one(name, description, src, dst, verdict, **given)


def one(
    name: str, description: str, src: Cache, dst: Cache, verdict: str, **more: Any
) -> ConvertCase:
    """Two blocks that both sides hold whole, unless told otherwise."""
    source = Source(src, more.pop("src_blocks", {0: [5, 2]}), verdict)
    group = next(iter(dst.groups.values())).document
    given = {"dst_blocks": {0: [1, 3]}, "num_tokens": 2 * group["tokens_per_block"]} | more
    return ConvertCase(name, description, [source], dst, **given)
