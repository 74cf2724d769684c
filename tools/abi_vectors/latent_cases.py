"""The caches of `decode/` that hold latents, an indexer's keys, and rows yet to be compressed."""

from typing import Any

from abi_vectors.decode_cases import DecodeCase
from abi_vectors.formats import Dims
from abi_vectors.regions import Field, Region, regions

LAST = {"attention": [1]}
ONE = Dims(layers=1, blocks=2, heads=1, tokens=64)
COMPRESSED: dict[str, Any] = {"tokens_per_block": 256, "tokens_per_state": [4, 1]}
BLOCK_SCALED: dict[str, Any] = {"codec": {"id": "block_scaled"}}

ROWS_584: list[Region] = [
    [Field("latent", "e4m3", 448), Field("rope", "bf16", 64)],
    [Field("latent_scale", "ue8m0", 7, "NG"), Field("", size=1)],
]
ROWS_BF16: list[Region] = [[Field("latent", "bf16", 448), Field("rope", "bf16", 64)]]
ROWS_528: list[Region] = [
    [Field("latent", "e4m3", 512)],
    [Field("latent_scale", "ue8m0", 16, "NG")],
]
ROWS_288: list[Region] = [
    [Field("latent", "e2m1", 512)],
    [Field("latent_scale", "e4m3", 32, "NG")],
]
ROWS_352: list[Region] = [
    [
        Field("latent", "e2m1", 512),
        Field("rope", "e4m3", 64),
        Field("latent_scale", "e4m3", 32, "NG", turned=4),
    ]
]
ROWS_132: list[Region] = [
    [Field("index_k", "e4m3", 128)],
    [Field("index_k_scale", "f32", 1, "NG")],
]
ROWS_68: list[Region] = [
    [Field("index_k", "e2m1", 128)],
    [Field("index_k_scale", "ue8m0", 4, "NG")],
]
KEYS: Region = [Field("index_k", "bf16", 128)]


def rows_of(size: int) -> list[Region]:
    """Rows that a compressor has yet to compress, and their scores."""
    return [[Field("state_kv", "f32", size), Field("state_score", "f32", size)]]


def latent_cases() -> list[DecodeCase]:
    """All of them."""
    return [*_latents(), *_keys(), *_rows()]


def _latents() -> list[DecodeCase]:
    slide = {"kind": "sliding_window_mla", "window": 128}
    cases: list[tuple[str, str, Dims, list[Region], int, dict[str, Any]]] = [
        (
            "dsv4-584",
            "64 rows of 448 e4m3 and 64 bf16, then 64 of 7 powers of two and a pad: 37440 bytes",
            ONE,
            ROWS_584,
            37440,
            BLOCK_SCALED | COMPRESSED,
        ),
        (
            "dsv4-c128-584-padded",
            "a state for 128 tokens: two rows of 584 bytes in a page of 1728",
            ONE._replace(layers=2, tokens=2, blocks=3),
            ROWS_584,
            1728,
            BLOCK_SCALED | {"tokens_per_block": 256, "tokens_per_state": [128, 1]},
        ),
        (
            "dsv4-swa",
            "the same rows for each token of a window of 128",
            ONE._replace(tokens=8),
            ROWS_584,
            9 * 576,
            BLOCK_SCALED | slide,
        ),
        (
            "dsv4-bf16",
            "a state for four tokens, rows of 448 and 64 bf16",
            ONE._replace(tokens=8),
            ROWS_BF16,
            0,
            {"tokens_per_block": 32, "tokens_per_state": [4, 1]},
        ),
        (
            "dsv41-mxfp8-528",
            "32 rows of 512 e4m3, then 32 of 16 powers of two: 16896 bytes",
            ONE._replace(tokens=32),
            ROWS_528,
            0,
            BLOCK_SCALED | {"tokens_per_block": 128, "tokens_per_state": [4, 1]},
        ),
        (
            "dsv41-nvfp4-288",
            "32 rows of 512 e2m1, then 32 of 32 e4m3: 9216 bytes",
            ONE._replace(tokens=32),
            ROWS_288,
            0,
            BLOCK_SCALED | {"tokens_per_block": 128, "tokens_per_state": [4, 1]},
        ),
        (
            "nvfp4-ds-mla-352",
            "rows of 512 e2m1, 64 e4m3 of the rotary part and 32 scales, every eighth beside it",
            ONE._replace(tokens=16),
            ROWS_352,
            0,
            BLOCK_SCALED,
        ),
        (
            "lmcache-mla",
            "LMCache: a chunk is [1, L, T, C], latent and rotary part in bf16",
            ONE._replace(layers=2, tokens=16),
            [[Field("latent", "bf16", 32), Field("rope", "bf16", 8)]],
            0,
            {},
        ),
        (
            "latent-alone",
            "latents without a rotary part",
            ONE._replace(layers=2, tokens=4),
            [[Field("latent", "f16", 24)]],
            0,
            {},
        ),
    ]
    return [
        DecodeCase(name, words, regions("BL", dims, parts, page, **given), LAST)
        for name, words, dims, parts, page, given in cases
    ]


def _keys() -> list[DecodeCase]:
    full: dict[str, Any] = {"kind": "full"}
    scaled = full | BLOCK_SCALED
    pooled = full | {"tokens_per_block": 64, "tokens_per_state": [4, 1]}
    cases: list[tuple[str, str, Dims, list[Region], int, dict[str, Any]]] = [
        (
            "dsa-indexer-132",
            "64 rows of 128 e4m3, then 64 scales in f32: 8448 bytes",
            ONE,
            ROWS_132,
            0,
            scaled,
        ),
        (
            "dsv4-indexer-fp8",
            "the same for a state of four tokens, padded to 8640 bytes",
            ONE,
            ROWS_132,
            8640,
            scaled | COMPRESSED,
        ),
        (
            "dsv4-indexer-mxfp4",
            "64 rows of 128 e2m1, then 64 of 4 powers of two, padded to 4608 bytes",
            ONE,
            ROWS_68,
            4608,
            scaled | COMPRESSED,
        ),
        (
            "minimax-m3-indexer",
            "keys of 128 bf16 for each token",
            ONE._replace(tokens=32),
            [KEYS],
            0,
            full,
        ),
        (
            "qsa-compressed",
            "a key for each four tokens",
            ONE._replace(tokens=16),
            [KEYS],
            0,
            pooled,
        ),
    ]
    return [
        DecodeCase(name, words, regions("BL", dims, parts, page, **given), LAST)
        for name, words, dims, parts, page, given in cases
    ]


def _rows() -> list[DecodeCase]:
    ring: dict[str, Any] = {"kind": "ring", "window": 8}
    slide: dict[str, Any] = {"kind": "sliding_window"}
    return [
        DecodeCase(
            "dsv4-compressor-c4",
            "a window of 8 tokens, 1024 values and 1024 scores in f32 each, padded to 32832 bytes",
            regions("BL", ONE._replace(tokens=4), rows_of(1024), 32832, **slide, window=8),
            LAST,
        ),
        DecodeCase(
            "dsv4-compressor-c128",
            "a window of 128 tokens, 512 values and 512 scores in f32 each, padded to 32832 bytes",
            regions("BL", ONE._replace(tokens=8), rows_of(512), 32832, **slide, window=128),
            LAST,
        ),
        DecodeCase(
            "dsv4-compressor-ring",
            "a ring of 8 rows of 32 values and 32 scores in f32",
            regions("BL", ONE._replace(layers=2, tokens=8), rows_of(32), **ring),
            LAST,
        ),
        DecodeCase(
            "qsa-ring",
            "a ring of 8 keys of 128 bf16, and three positions behind each",
            regions(
                "BL",
                ONE._replace(layers=2, tokens=8),
                [[*KEYS, Field("position", "i64", 3)]],
                **ring,
            ),
            LAST,
        ),
    ]
