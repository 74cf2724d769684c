"""The transfers of `convert/`: what moves from which caches to which, and with which verdict."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from abi_vectors import formats
from abi_vectors.decode_cases import f32
from abi_vectors.formats import Dims
from abi_vectors.pages import Cache

Blocks = dict[int, list[int]]
"""Block ids by table; the last holds the last token."""

NONE: Mapping[str, str] = MappingProxyType({})

DIMS = Dims(blocks=6)
FOUR = DIMS._replace(heads=4)
LONG, SHORT = DIMS._replace(blocks=4, tokens=16), DIMS._replace(blocks=9, tokens=4)
LATENT = Dims(heads=1, blocks=6, tokens=4, size=24)
ROWS = Dims(layers=1, heads=1, blocks=4, tokens=4, size=512)


class Source(NamedTuple):
    """One rank that is read.

    Attributes:
        cache: Unwritten.
        blocks: What the request has there.
        verdict: On this source alone.
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
        change: By role, what becomes of an element: `f32` or `bf16` of its value; a role that is
            not named keeps its bits.
    """

    name: str
    description: str
    sources: list[Source]
    dst: Cache
    dst_blocks: Blocks
    num_tokens: int
    first_token: int = 0
    unseen_blocks: int = 0
    change: Mapping[str, str] = NONE


def convert_cases() -> list[ConvertCase]:
    """All of them."""
    return [*_layouts(), *_block_sizes(), *_ranks(), *_ranges(), *_tables(), *_codecs()]


def _one(
    name: str, description: str, src: Cache, dst: Cache, verdict: str, **more: Any
) -> ConvertCase:
    """Two blocks that both sides hold whole, unless told otherwise."""
    source = Source(src, more.pop("src_blocks", {0: [5, 2]}), verdict)
    group = next(iter(dst.groups.values())).document
    given = {"dst_blocks": {0: [1, 3]}, "num_tokens": 2 * group["tokens_per_block"]} | more
    return ConvertCase(name, description, [source], dst, **given)


def _layouts() -> list[ConvertCase]:
    wide = DIMS._replace(size=16)
    vllm = formats.vllm
    return [
        _one(
            "lbhnc-to-lbnhc",
            "heads outside of tokens to tokens outside of heads",
            vllm("LBHNC", DIMS),
            vllm("LBNHC", DIMS),
            "lossless",
        ),
        _one(
            "lbnhc-to-lbhnc",
            "tokens outside of heads to heads outside of tokens",
            vllm("LBNHC", DIMS),
            vllm("LBHNC", DIMS),
            "lossless",
        ),
        _one(
            "lbhnc-to-blhnc",
            "the same pages, layers inside of blocks",
            vllm("LBHNC", DIMS),
            vllm("BLHNC", DIMS),
            "identical",
        ),
        _one(
            "lbhnc-to-bhlnc",
            "whole pages to heads outside of layers",
            vllm("LBHNC", DIMS),
            vllm("BHLNC", DIMS),
            "lossless",
        ),
        _one(
            "cpu-to-packed",
            "K transposed for each head to [K V] in each cell",
            formats.vllm_cpu(DIMS),
            vllm("LBNHC", DIMS),
            "lossless",
        ),
        _one(
            "packed-to-cpu",
            "[K V] in each cell to K transposed for each head",
            vllm("LBHNC", DIMS),
            formats.vllm_cpu(DIMS),
            "lossless",
        ),
        _one(
            "rocm-to-packed",
            "x-packed K and transposed V to [K V] in each cell",
            formats.rocm(wide),
            vllm("LBHNC", wide),
            "lossless",
        ),
        _one(
            "sglang-to-blnhc",
            "separate buffers for each layer to one pool",
            formats.sglang(DIMS),
            vllm("BLNHC", DIMS),
            "lossless",
        ),
        _one(
            "trtllm-to-lbhnc",
            "planes of K and V in each block to [K V] in each cell",
            formats.trtllm(DIMS),
            vllm("LBHNC", DIMS),
            "lossless",
        ),
        _one(
            "odd-to-cpu",
            "elements of V and K alternating to K transposed",
            formats.odd(DIMS),
            formats.vllm_cpu(DIMS),
            "lossless",
        ),
        _one(
            "padded-blocks",
            "pages and blocks with pads, alike on both sides",
            formats.padded(DIMS, 64, 256),
            formats.padded(DIMS, 64, 256),
            "identical",
        ),
        _one(
            "rows-656-to-planes",
            "rows of 656 bytes to planes",
            formats.rows_656("LB", ROWS),
            formats.planes_656(ROWS),
            "lossless",
            src_blocks={0: [3, 2]},
            dst_blocks={0: [1, 3]},
        ),
        *_scaled_layouts(),
    ]


def _scaled_layouts() -> list[ConvertCase]:
    i8, e4m3 = DIMS._replace(dtype="i8"), DIMS._replace(size=26, dtype="e4m3")
    return [
        _one(
            "scaled-cells-to-planes",
            "scales in the cells to scales in a pool of their own",
            formats.scaled_cells("LBNHC", i8),
            formats.scaled_planes(i8),
            "lossless",
        ),
        _one(
            "scaled-cells-lbhnc-to-blnhc",
            "scales in the cells, at addresses that no element size divides",
            formats.scaled_cells("LBHNC", e4m3),
            formats.scaled_cells("BLNHC", e4m3),
            "lossless",
        ),
    ]


def _block_sizes() -> list[ConvertCase]:
    vllm = formats.vllm
    tiny, large = DIMS._replace(blocks=10, tokens=2), DIMS._replace(blocks=3, tokens=16)
    latent = LATENT._replace(tokens=2)
    return [
        _one(
            "blocks-16-to-4",
            "a block becomes four; the last one is not full",
            vllm("LBNHC", LONG),
            vllm("LBHNC", SHORT),
            "lossless",
            src_blocks={0: [3, 1]},
            dst_blocks={0: [6, 1, 4, 3, 7, 2]},
            num_tokens=21,
        ),
        _one(
            "blocks-4-to-16",
            "four blocks become one; the last one is not full",
            vllm("BLNHC", SHORT),
            formats.vllm_cpu(LONG),
            "lossless",
            src_blocks={0: [6, 1, 4, 3, 7, 2]},
            dst_blocks={0: [3, 1]},
            num_tokens=24,
        ),
        _one(
            "blocks-2-to-16",
            "eight blocks become one",
            vllm("LBHNC", tiny),
            vllm("LBNHC", large),
            "lossless",
            src_blocks={0: [9, 3, 4, 5, 6, 1, 2, 7]},
            dst_blocks={0: [2]},
            num_tokens=16,
        ),
        _one(
            "blocks-of-compressed-states",
            "a state for each four tokens: blocks of 16 tokens become blocks of 8",
            formats.latent("LB", LATENT, 8, tokens_per_block=16, tokens_per_state=[4, 1]),
            formats.latent("BL", latent, 8, tokens_per_block=8, tokens_per_state=[4, 1]),
            "lossless",
            src_blocks={0: [4, 2]},
            dst_blocks={0: [5, 1, 2, 3]},
            num_tokens=32,
        ),
    ]


def _rank(layout: str, dims: Dims, first: int, end: int, total: int, *replica: int) -> Cache:
    """A rank that holds heads `first` to `end` of `total`."""
    owner: dict[str, Any] = {"heads": [first, end, total]}
    if replica:
        owner["replica"] = list(replica)
    return formats.vllm(layout, dims._replace(heads=end - first), owner=owner)


def _tokens(rank: int, layout: str) -> Cache:
    """A rank of two that take turns of four tokens."""
    tokens: dict[str, Any] = {"size": 2, "interleave": 4} | ({"rank": 1} if rank else {})
    return formats.vllm(layout, DIMS, owner={"heads": [0, 2, 2], "tokens": tokens})


def _ranks() -> list[ConvertCase]:
    vllm, stage = formats.vllm, DIMS._replace(layers=4)
    blocks: list[Blocks] = [{0: [5, 2]}, {0: [3, 4]}, {0: [1, 2]}, {0: [4, 1]}]
    end: dict[str, Any] = {"dst_blocks": {0: [1, 3]}, "num_tokens": 16}
    halves = [_rank("LBNHC", FOUR, 0, 2, 4), _rank("LBHNC", FOUR, 2, 4, 4)]
    replicas = [_rank("LBHNC", DIMS, i // 2, i // 2 + 1, 2, i % 2, 2) for i in range(4)]
    stages = [vllm("LBHNC", DIMS, layers=[0, 1]), vllm("LBHNC", DIMS, layers=[2, 3])]
    return [
        _one(
            "heads-4-to-2",
            "all heads to the second of two ranks",
            vllm("LBHNC", FOUR),
            _rank("LBNHC", FOUR, 2, 4, 4),
            "lossless",
        ),
        ConvertCase(
            "heads-2-and-2-to-4",
            "two ranks of other layouts put together",
            [Source(halves[0], blocks[0], "lossless"), Source(halves[1], blocks[1], "lossless")],
            vllm("LBHNC", FOUR),
            **end,
        ),
        ConvertCase(
            "heads-of-replicas",
            "four ranks, two for each head",
            [Source(rank, ids, "lossless") for rank, ids in zip(replicas, blocks, strict=True)],
            vllm("LBHNC", DIMS),
            **end,
        ),
        _one(
            "tokens-to-half",
            "all tokens to the second of two ranks that take turns of four",
            vllm("LBNHC", DIMS),
            _tokens(1, "LBHNC"),
            "lossless",
            src_blocks={0: [5, 2, 3, 4]},
            num_tokens=32,
        ),
        ConvertCase(
            "tokens-halves-to-all",
            "two ranks that take turns of four tokens put together",
            [Source(_tokens(i, "LBNHC"), blocks[i], "lossless") for i in range(2)],
            vllm("LBHNC", DIMS),
            {0: [1, 3, 5, 2]},
            32,
        ),
        _one(
            "layers-4-to-2",
            "all layers to the second of two stages",
            vllm("LBHNC", stage),
            vllm("LBHNC", DIMS, layers=[2, 3]),
            "identical",
        ),
        ConvertCase(
            "layers-2-and-2-to-4",
            "two stages put together",
            [Source(rank, ids, "identical") for rank, ids in zip(stages, blocks[:2], strict=True)],
            vllm("BLHNC", stage),
            **end,
        ),
    ]


def _ranges() -> list[ConvertCase]:
    vllm = formats.vllm
    slide: dict[str, Any] = {"kind": "sliding_window", "window": 16}
    tail: dict[str, Any] = {
        "src_blocks": {0: [0, 0, 3, 4]},
        "dst_blocks": {0: [0, 0, 2, 5]},
        "num_tokens": 32,
    }
    return [
        _one(
            "window-with-null-blocks",
            "a window's tail: what is not held any more is the null block 0 on both sides",
            vllm("LBHNC", DIMS, **slide),
            vllm("LBNHC", DIMS, **slide),
            "lossless",
            **tail,
        ),
        _one(
            "window-that-begins-late",
            "the same with a list that begins late at the destination",
            vllm("LBHNC", DIMS, **slide),
            vllm("LBNHC", DIMS, **slide),
            "lossless",
            **(tail | {"dst_blocks": {0: [2, 5]}}),
        ),
        _one(
            "window-of-which-the-source-holds-less",
            "the destination has room for blocks that no query sees any more: it stays empty",
            vllm("LBHNC", DIMS, **slide),
            vllm("LBNHC", DIMS, **slide),
            "lossless",
            **(tail | {"dst_blocks": {0: [1, 3, 2, 5]}, "unseen_blocks": 2}),
        ),
        _one(
            "full-to-window",
            "a source that has all tokens of layers whose queries see the last 16",
            vllm("LBHNC", DIMS, window=16),
            vllm("LBNHC", DIMS, **slide),
            "lossless",
            **(tail | {"src_blocks": {0: [1, 2, 3, 4]}}),
        ),
        _one(
            "first-token",
            "the destination has the first block already",
            vllm("LBHNC", DIMS),
            vllm("LBNHC", DIMS),
            "lossless",
            src_blocks={0: [5, 2, 3]},
            dst_blocks={0: [4, 1]},
            num_tokens=24,
            first_token=8,
        ),
        _one(
            "first-token-inside-of-a-source-block",
            "the destination has five quarters of the source's blocks already",
            vllm("LBHNC", LONG),
            vllm("LBNHC", SHORT),
            "lossless",
            src_blocks={0: [3, 1]},
            dst_blocks={0: [5, 2, 3]},
            num_tokens=32,
            first_token=20,
        ),
    ]


def _tables() -> list[ConvertCase]:
    return [
        _one(
            "overlay",
            "two tables whose blocks lie in one pool",
            formats.overlay(DIMS, window=16),
            formats.overlay(DIMS, window=16),
            "identical",
            src_blocks={0: [5, 2], 1: [1, 4]},
            dst_blocks={0: [1, 3], 1: [4, 2]},
        ),
        _one(
            "recurrent",
            "the last state alone, to pages with another pad",
            formats.recurrent(Dims(tokens=16, size=40), conv=18, pad=12),
            formats.recurrent(Dims(tokens=16, size=40), conv=18, pad=0),
            "identical",
            src_blocks={0: [3]},
            dst_blocks={0: [2]},
            num_tokens=48,
        ),
    ]


def _codecs() -> list[ConvertCase]:
    vllm, powers = formats.vllm, [f32(0.125), f32(4.0)]
    params = {"scales.k": powers, "scales.v": powers[::-1]}
    per_tensor: dict[str, Any] = {"codec": {"id": "fp8_per_tensor", "params": params}}
    wide = formats.latent("BL", ROWS, 64)
    return [
        _one(
            "bf16-to-f32",
            "every value is kept",
            vllm("LBHNC", DIMS),
            vllm("LBNHC", DIMS._replace(dtype="f32")),
            "lossless",
            change={"k": "f32", "v": "f32"},
        ),
        _one(
            "e4m3-per-tensor-to-bf16",
            "scales are powers of two, so every value is kept",
            vllm("LBHNC", DIMS._replace(dtype="e4m3"), **per_tensor),
            formats.vllm_cpu(DIMS),
            "lossless",
            change={"k": "bf16", "v": "bf16"},
        ),
        _one(
            "f32-to-bf16",
            "values are rounded; every fourth lies halfway, and the even one is nearest then",
            vllm("LBNHC", DIMS._replace(dtype="f32")),
            vllm("LBNHC", DIMS),
            "lossy",
            change={"k": "bf16", "v": "bf16"},
        ),
        _one(
            "per-token-head-i8-to-f32",
            "a product is a binary32 by definition",
            formats.scaled_cells("LBNHC", DIMS._replace(dtype="i8")),
            vllm("LBHNC", DIMS._replace(dtype="f32")),
            "lossless",
            change={"k": "f32", "v": "f32"},
        ),
        _one(
            "rows-656-to-bf16",
            "products with scales are rounded to bf16; the rotary part keeps its bits",
            formats.rows_656("LB", ROWS),
            wide,
            "lossy",
            src_blocks={0: [3, 2]},
            change={"latent": "bf16"},
        ),
    ]
