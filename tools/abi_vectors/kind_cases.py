"""The transfers of `convert/` of kinds that count or hold tokens in their own ways."""

from __future__ import annotations

from typing import Any

from abi_vectors import formats
from abi_vectors.formats import Dims
from abi_vectors.pages import Cache, model
from abi_vectors.several_groups import encoder_decoder, hybrid, with_draft
from abi_vectors.transfers import DIMS, LATENT, ConvertCase, one

CHUNK: dict[str, Any] = {"kind": "chunked_local", "window": 16}
SLIDE: dict[str, Any] = {"kind": "sliding_window", "window": 16}


def kind_cases() -> list[ConvertCase]:
    """All of them."""
    return [*_encoders(), *_one_block(), *_windows(), *_states(), *_meetings()]


def _encoders() -> list[ConvertCase]:
    return [
        one(
            "cross-counts-the-encoder",
            "11 positions of the encoder, from 0, beside 16 of 24 tokens of the decoder",
            encoder_decoder("LBHNC", DIMS),
            encoder_decoder("LBNHC", DIMS),
            "lossless",
            src_blocks={0: [5, 2, 1], 1: [3, 4]},
            dst_blocks={0: [4, 1], 1: [2, 5]},
            num_tokens=24,
            first_token=8,
            num_encoder_tokens=11,
        ),
        one(
            "cross-without-a-count-of-its-own",
            "positions of the encoder as many as tokens, where nobody gives their number",
            encoder_decoder("LBHNC", DIMS),
            encoder_decoder("LBNHC", DIMS),
            "lossless",
            src_blocks={0: [5, 2], 1: [3, 4]},
            dst_blocks={0: [1], 1: [5]},
            num_tokens=16,
            first_token=8,
        ),
    ]


def _one_block() -> list[ConvertCase]:
    ring: dict[str, Any] = {"kind": "ring", "window": 6}
    dims = Dims(tokens=16, size=40)
    return [
        one(
            "ring",
            "one block whose six slots hold the last six of 21 tokens",
            formats.vllm("LBHNC", DIMS, **ring),
            formats.vllm("LBNHC", DIMS, **ring),
            "lossless",
            src_blocks={0: [4]},
            dst_blocks={0: [2]},
            num_tokens=21,
            first_token=16,
        ),
        one(
            "recurrent-last-of-several",
            "states at the end of each of three blocks, of which the last one moves",
            formats.recurrent(dims, conv=18, pad=12),
            formats.recurrent(dims, conv=18, pad=0),
            "identical",
            src_blocks={0: [3, 1, 2]},
            dst_blocks={0: [1, 2, 3]},
            num_tokens=41,
        ),
    ]


def _windows() -> list[ConvertCase]:
    vllm = formats.vllm
    late: dict[str, Any] = {"src_blocks": {0: [0, 0, 0, 0, 3, 4]}}
    late |= {"dst_blocks": {0: [0, 0, 1, 3, 2, 5]}, "unseen_blocks": 4}
    return [
        one(
            "chunk-with-null-blocks",
            "the chunk of token 43 begins at 32: what was before is the null block at the source",
            vllm("LBHNC", DIMS, **CHUNK),
            vllm("LBNHC", DIMS, **CHUNK),
            "lossless",
            num_tokens=44,
            **late,
        ),
        one(
            "chunk-that-ends-with-the-request",
            "the chunk of token 47 is the one from 32 to 48, and not the empty one from 48",
            vllm("LBHNC", DIMS, **CHUNK),
            vllm("LBNHC", DIMS, **CHUNK),
            "lossless",
            num_tokens=48,
            **late,
        ),
        one(
            "window-that-ends-with-a-block",
            "token 32 sees 17 to 32, so the block of token 16 moves, and that of token 15 does not",
            vllm("LBHNC", DIMS, **SLIDE),
            vllm("LBNHC", DIMS, **SLIDE),
            "lossless",
            src_blocks={0: [0, 0, 2, 3, 4]},
            dst_blocks={0: [1, 2, 3, 4, 5]},
            unseen_blocks=2,
            num_tokens=33,
        ),
    ]


def _states() -> list[ConvertCase]:
    twice: dict[str, Any] = {"kind": "cross", "tokens_per_state": [1, 2]}
    latent = LATENT._replace(tokens=2)
    return [
        one(
            "compressed-states-of-a-part",
            "a state for each four tokens, and 26 tokens: the seventh state has two of them",
            formats.latent("LB", LATENT, 8, tokens_per_block=16, tokens_per_state=[4, 1]),
            formats.latent("BL", latent, 8, tokens_per_block=8, tokens_per_state=[4, 1]),
            "lossless",
            src_blocks={0: [4, 2]},
            dst_blocks={0: [5, 1, 2, 3]},
            num_tokens=26,
        ),
        one(
            "two-states-for-each-token",
            "blocks of 4 tokens and 8 states become blocks of 2 tokens and 4 states",
            formats.vllm("LBNHC", DIMS, tokens_per_block=4, **twice),
            formats.vllm("LBHNC", DIMS._replace(tokens=4), tokens_per_block=2, **twice),
            "lossless",
            src_blocks={0: [5, 2]},
            dst_blocks={0: [1, 3, 4]},
            num_tokens=6,
        ),
    ]


def _meetings() -> list[ConvertCase]:
    return [
        one(
            "groups-that-meet-by-content",
            "layers with attention and a state; ids and tables are other ones at the destination",
            hybrid("LBHNC", DIMS, ("a", "b")),
            hybrid("LBNHC", DIMS, ("b", "a"), is_state_first=True),
            "lossless",
            src_blocks={0: [5, 2], 1: [3]},
            dst_blocks={0: [1], 1: [4, 2]},
        ),
        one(
            "groups-that-stay",
            "a group beside it that each side rebuilds by itself, of other heads on either",
            with_draft("LBHNC", DIMS, 8),
            with_draft("LBNHC", DIMS, 16),
            "lossless",
        ),
        *(
            one(
                f"rope-parameter-equal-by-value-{name}",
                f"a parameter that is 8 on one side and {value} on the other",
                _scaled_rope(8),
                _scaled_rope(value),
                "identical",
            )
            for name, value in {"f64": "f64:4020000000000000", "f32": "f32:41000000"}.items()
        ),
    ]


def _scaled_rope(factor: int | str) -> Cache:
    cache = formats.vllm("LBHNC", DIMS)
    params = {"factor": factor, "short_factor": [1, factor]}
    cache.model = model(rope={"state": "applied", "params": params})
    return cache
