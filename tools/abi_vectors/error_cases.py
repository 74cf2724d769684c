"""The transfers of `convert/` that a mover refuses although the pair converts."""

from __future__ import annotations

from typing import Any

from abi_vectors import formats
from abi_vectors.kind_cases import CHUNK, SLIDE
from abi_vectors.request_cases import rank_of_heads, rank_of_tokens
from abi_vectors.transfers import DIMS, FOUR, LONG, SHORT, ConvertCase, Source, one


def error_cases() -> list[ConvertCase]:
    """All of them."""
    return [*_lists(), *_missing()]


def _lists() -> list[ConvertCase]:
    vllm = formats.vllm
    cases: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        (
            "null-block",
            "a null block of the source under a block that the destination wants",
            {},
            {"src_blocks": {0: [0, 2]}},
        ),
        (
            "null-block-in-window",
            "token 30 sees 15 to 30, and the block of token 15 is the null block",
            SLIDE,
            {"src_blocks": {0: [0, 0, 3, 4]}, "dst_blocks": {0: [0, 2, 1, 5]}, "num_tokens": 31},
        ),
        (
            "null-block-in-chunk",
            "token 47 sees 32 to 47, and the block of token 32 is the null block",
            CHUNK,
            {
                "src_blocks": {0: [0, 0, 0, 0, 0, 4]},
                "dst_blocks": {0: [0, 0, 0, 0, 2, 5]},
                "num_tokens": 48,
            },
        ),
        (
            "source-that-begins-late",
            "the source's list lacks the first of two blocks",
            {},
            {"src_blocks": {0: [2]}},
        ),
        (
            "block-beyond-the-pool",
            "block 6 of a pool of six blocks",
            {},
            {"src_blocks": {0: [5, 6]}},
        ),
        ("block-given-twice", "one block twice", {}, {"dst_blocks": {0: [3, 3]}}),
        (
            "no-list-of-the-table",
            "a list of table 1 alone where the group's table is 0",
            {},
            {"src_blocks": {1: [5, 2]}},
        ),
    ]
    return [
        one(
            f"error-{name}",
            words,
            vllm("LBHNC", DIMS, **document),
            vllm("LBNHC", DIMS, **document),
            "lossless",
            error="plan",
            **given,
        )
        for name, words, document, given in cases
    ] + [
        one(
            "error-first-token-inside-of-a-block",
            "the destination's blocks hold 16 tokens, and 4 begins none of them",
            vllm("LBHNC", SHORT),
            vllm("LBHNC", LONG),
            "lossless",
            src_blocks={0: [6, 1, 4, 3]},
            dst_blocks={0: [3]},
            num_tokens=16,
            first_token=4,
            error="plan",
        )
    ]


def _missing() -> list[ConvertCase]:
    vllm = formats.vllm
    ids = {0: [5, 2]}
    more: dict[str, Any] = {"dst_blocks": {0: [1, 3]}, "num_tokens": 16, "error": "missing"}
    return [
        ConvertCase(
            "error-heads-that-no-source-has",
            "a destination of four heads, and a source with the first two",
            [Source(rank_of_heads("LBNHC", FOUR, 0, 2, 4), ids, "lossless")],
            vllm("LBHNC", FOUR),
            **more,
        ),
        ConvertCase(
            "error-layers-that-no-source-has",
            "a destination of four layers, and sources with the first and the last",
            [
                Source(vllm("LBHNC", DIMS._replace(layers=1), layers=[layer]), ids, "identical")
                for layer in (0, 3)
            ],
            vllm("LBHNC", DIMS._replace(layers=4)),
            **more,
        ),
        ConvertCase(
            "error-tokens-that-no-source-has",
            "all tokens, and a source with every second four",
            [Source(rank_of_tokens(1, "LBNHC"), {0: [5]}, "lossless")],
            vllm("LBHNC", DIMS, owner={"heads": [0, 2, 2]}),
            **more,
        ),
    ]
