"""The transfers of `convert/` between ranks, of parts of a request, and of several tables."""

from __future__ import annotations

from typing import Any

from abi_vectors import formats
from abi_vectors.formats import Dims
from abi_vectors.pages import Cache
from abi_vectors.transfers import DIMS, FOUR, LONG, SHORT, Blocks, ConvertCase, Source, one


def request_cases() -> list[ConvertCase]:
    """All of them."""
    return [*_ranks(), *_turns(), *_choices(), *_ranges(), *_tables()]


def rank_of_heads(
    layout: str, dims: Dims, first: int, end: int, total: int, *replica: int
) -> Cache:
    """A rank that holds heads `first` to `end` of `total`."""
    owner: dict[str, Any] = {"heads": [first, end, total]}
    if replica:
        owner["replica"] = list(replica)
    return formats.vllm(layout, dims._replace(heads=end - first), owner=owner)


def rank_of_tokens(rank: int, layout: str, run: int = 4) -> Cache:
    """A rank of two that take turns of `run` tokens."""
    tokens: dict[str, Any] = {"size": 2, "interleave": run} | ({"rank": 1} if rank else {})
    return formats.vllm(layout, DIMS, owner={"heads": [0, 2, 2], "tokens": tokens})


def _ranks() -> list[ConvertCase]:
    vllm, stage = formats.vllm, DIMS._replace(layers=4)
    blocks: list[Blocks] = [{0: [5, 2]}, {0: [3, 4]}, {0: [1, 2]}, {0: [4, 1]}]
    end: dict[str, Any] = {"dst_blocks": {0: [1, 3]}, "num_tokens": 16}
    halves = [rank_of_heads("LBNHC", FOUR, 0, 2, 4), rank_of_heads("LBHNC", FOUR, 2, 4, 4)]
    replicas = [rank_of_heads("LBHNC", DIMS, i // 2, i // 2 + 1, 2, i % 2, 2) for i in range(4)]
    stages = [vllm("LBHNC", DIMS, layers=[0, 1]), vllm("LBHNC", DIMS, layers=[2, 3])]
    return [
        one(
            "heads-4-to-2",
            "all heads to the second of two ranks",
            vllm("LBHNC", FOUR),
            rank_of_heads("LBNHC", FOUR, 2, 4, 4),
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
        ConvertCase(
            "heads-that-two-sources-hold",
            "a rank with all heads and another with half of them",
            [
                Source(vllm("LBNHC", FOUR), blocks[0], "lossless"),
                Source(rank_of_heads("BLNHC", FOUR, 0, 2, 4), blocks[1], "lossless"),
            ],
            vllm("LBHNC", FOUR),
            **end,
        ),
        one(
            "tokens-to-half",
            "all tokens to the second of two ranks that take turns of four",
            vllm("LBNHC", DIMS),
            rank_of_tokens(1, "LBHNC"),
            "lossless",
            src_blocks={0: [5, 2, 3, 4]},
            num_tokens=32,
        ),
        ConvertCase(
            "tokens-halves-to-all",
            "two ranks that take turns of four tokens put together",
            [Source(rank_of_tokens(i, "LBNHC"), blocks[i], "lossless") for i in range(2)],
            vllm("LBHNC", DIMS),
            {0: [1, 3, 5, 2]},
            32,
        ),
        one(
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


def _turns() -> list[ConvertCase]:
    vllm = formats.vllm
    end: dict[str, Any] = {"num_tokens": 36, "src_blocks": {0: [5, 2, 3, 4, 1]}}
    halves = [Source(rank_of_tokens(i, "LBHNC"), {0: [4, 5, 3 - i]}, "lossless") for i in range(2)]
    long_runs = [
        Source(rank_of_tokens(0, "LBNHC", 16), {0: [5, 2, 4]}, "lossless"),
        Source(rank_of_tokens(1, "LBNHC", 16), {0: [3, 1]}, "lossless"),
    ]
    return [
        one(
            "tokens-to-half-with-an-empty-end",
            "36 tokens to the second of two ranks: the shared list's last block has none of its",
            vllm("LBNHC", DIMS),
            rank_of_tokens(1, "LBHNC"),
            "lossless",
            dst_blocks={0: [1, 3, 2]},
            **end,
        ),
        one(
            "tokens-to-half-from-a-first-token",
            "the second of two ranks has the first 16 tokens, 8 of its own, already",
            vllm("LBNHC", DIMS),
            rank_of_tokens(1, "LBHNC"),
            "lossless",
            dst_blocks={0: [4, 3, 2]},
            **(end | {"num_tokens": 40, "first_token": 16}),
        ),
        ConvertCase(
            "tokens-in-runs-of-two-blocks-to-all",
            "ranks that take turns of 16 tokens with blocks of 8: lists of three and of two",
            long_runs,
            vllm("LBHNC", DIMS),
            {0: [1, 3, 5, 2, 4]},
            40,
        ),
        one(
            "tokens-to-runs-of-two-blocks",
            "all tokens to the second of two ranks that take turns of 16 with blocks of 8",
            vllm("LBNHC", DIMS),
            rank_of_tokens(1, "LBHNC", 16),
            "lossless",
            dst_blocks={0: [1, 3]},
            **(end | {"num_tokens": 40}),
        ),
        ConvertCase(
            "tokens-of-other-turns",
            "two ranks that take turns of 4 to the first of two that take turns of 8",
            halves,
            rank_of_tokens(0, "LBNHC", 8),
            {0: [2, 1, 3]},
            44,
        ),
    ]


def _choices() -> list[ConvertCase]:
    vllm = formats.vllm
    end: dict[str, Any] = {"dst_blocks": {0: [1, 3]}, "num_tokens": 16}
    blocks: list[Blocks] = [{0: [5, 2]}, {0: [3, 4]}, {0: [1, 2]}]
    spans = ((1, 3), (0, 2), (2, 4))
    middle = [rank_of_heads("LBNHC", FOUR, *span, 4) for span in spans]
    return [
        ConvertCase(
            "heads-that-overlap",
            "heads 1 and 2, 0 and 1, 2 and 3: some are at two sources",
            [Source(rank, ids, "lossless") for rank, ids in zip(middle, blocks, strict=True)],
            vllm("LBHNC", FOUR),
            **end,
        ),
        ConvertCase(
            "a-source-of-other-layers",
            "a source has nothing that the destination takes, and another has all of it",
            [
                Source(vllm("LBHNC", DIMS, layers=[2, 3]), blocks[0], "refused"),
                Source(vllm("LBHNC", DIMS), blocks[1], "lossless"),
            ],
            vllm("LBNHC", DIMS),
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
        one(
            "window-with-null-blocks",
            "a window's tail: what is not held any more is the null block 0 on both sides",
            vllm("LBHNC", DIMS, **slide),
            vllm("LBNHC", DIMS, **slide),
            "lossless",
            **tail,
        ),
        one(
            "window-that-begins-late",
            "the same with a list that begins late at the destination",
            vllm("LBHNC", DIMS, **slide),
            vllm("LBNHC", DIMS, **slide),
            "lossless",
            **(tail | {"dst_blocks": {0: [2, 5]}}),
        ),
        one(
            "window-of-which-the-source-holds-less",
            "the destination has room for blocks that no query sees any more: it stays empty",
            vllm("LBHNC", DIMS, **slide),
            vllm("LBNHC", DIMS, **slide),
            "lossless",
            **(tail | {"dst_blocks": {0: [1, 3, 2, 5]}, "unseen_blocks": 2}),
        ),
        one(
            "full-to-window",
            "a source that has all tokens of layers whose queries see the last 16",
            vllm("LBHNC", DIMS, window=16),
            vllm("LBNHC", DIMS, **slide),
            "lossless",
            **(tail | {"src_blocks": {0: [1, 2, 3, 4]}}),
        ),
        one(
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
        one(
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
        one(
            "overlay",
            "two tables whose blocks lie in one pool",
            formats.overlay(DIMS, window=16),
            formats.overlay(DIMS, window=16),
            "identical",
            src_blocks={0: [5, 2], 1: [1, 4]},
            dst_blocks={0: [1, 3], 1: [4, 2]},
        ),
        one(
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
