"""The caches of `decode/` of mixed dtypes, of the codec that says most, and of shared layers."""

from typing import Any

from abi_vectors import quantized
from abi_vectors.decode_cases import DecodeCase, f32
from abi_vectors.formats import Dims
from abi_vectors.latent_cases import rows_of
from abi_vectors.meeting_cases import (
    opaque_rank,
    three_sorts,
    two_compressors,
    two_latents,
    two_writers,
)
from abi_vectors.regions import Field, Region, regions

LAST = {"attention": [1]}
DIMS = Dims(layers=1, blocks=2, heads=1, tokens=2, size=16)
PAIRS = {"a": [2], "b": [1]}


def sorts_cases() -> list[DecodeCase]:
    """All of them."""
    return [*_mixed(), *_latents(), *_shared()]


def _mixed() -> list[DecodeCase]:
    row = [
        Field("k", "e4m3", 16, "HND"),
        Field("k_group_scale", "e4m3", 2, "HNG"),
        Field("v", "e2m1", 32, "HND"),
        Field("v_group_scale", "ue8m0", 1, "HNG"),
    ]
    cell = [Field("k", "bf16", 16, "HND"), Field("v", "f32", 8, "HND")]
    heads, codec = DIMS._replace(heads=2), {"id": "block_scaled"}
    return [
        DecodeCase(
            "keys-of-8-bits-values-of-4",
            "K of 16 e4m3 under two e4m3, V of 32 e2m1 under one power of two",
            quantized.cells("LBNHC", heads, row, 1, codec=codec),
            LAST,
        ),
        DecodeCase(
            "keys-bf16-values-f32",
            "K of 16 bf16 and V of 8 f32",
            quantized.cells("LBHNC", heads, cell),
            LAST,
        ),
    ]


def _latents() -> list[DecodeCase]:
    """Like the rows of 656 bytes, and with what these cannot say."""
    params: list[tuple[str, str, int, dict[str, Any]]] = [
        ("rotated", "elements are rotated", 128, {"rotation.latent": quantized.TABLE}),
        ("of-a-scale", "a scale of the layer besides", 128, {"scales.latent": [f32(0.3)]}),
        ("of-64", "a scale for each 64 elements", 64, {}),
    ]
    return [
        DecodeCase(
            f"rows-like-656-{name}",
            f"e4m3 under f32, and a rotary part in bf16: {words}",
            regions(
                "LB",
                DIMS,
                [_row(256 // run)],
                codec={"id": "block_scaled"} | ({"params": given} if given else {}),
            ),
            LAST,
        )
        for name, words, run, given in params
    ]


def _row(count: int) -> Region:
    return [
        Field("latent", "e4m3", 256),
        Field("latent_scale", "f32", count, "NG"),
        Field("rope", "bf16", 8),
    ]


def _shared() -> list[DecodeCase]:
    slide: dict[str, Any] = {"kind": "sliding_window", "window": 8}
    index: Region = [field._replace(role=f"index_{field.role}") for field in rows_of(32)[0]]
    return [
        DecodeCase(
            "dsv4-indexer-compressor",
            "a window of 8 tokens, 32 values and 32 scores in f32 each, of index keys to come",
            regions("BL", DIMS._replace(layers=2, tokens=4), [index], 1056, **slide),
            LAST,
        ),
        DecodeCase(
            "two-compressors-of-one-layer",
            "rows of the latents' compressor and of the index keys' one",
            two_compressors(("a", "b"), is_apart=False),
            PAIRS,
        ),
        DecodeCase(
            "latents-of-a-window-beside-others",
            "compressed latents of all tokens and those of a window of 4, on one layer",
            two_latents(("a", "b")),
            PAIRS,
        ),
        DecodeCase(
            "pages-of-two-writers",
            "pages of two writers on one layer",
            two_writers(("a", "b")),
            PAIRS,
        ),
        DecodeCase(
            "one-role-of-three-sorts",
            "keys and values of all tokens, of a ring and of the encoder's positions on one layer",
            three_sorts("LBNHC", ("a", "b", "c")),
            PAIRS | {"c": [2, 1]},
        ),
        DecodeCase(
            "opaque-page-of-a-rank",
            "pages of which nobody says what is in them, of every second token",
            opaque_rank(1),
            LAST,
        ),
    ]
