"""The transfers of `convert/` that write 8-bit codecs or round in other ways."""

from __future__ import annotations

from typing import Any

from abi_vectors import formats
from abi_vectors.decode_cases import per_tensor
from abi_vectors.transfers import DIMS, ROWS, ConvertCase, one

_KV = ("k", "v")


def lossy_cases() -> list[ConvertCase]:
    """All of them, and the lossless ones that are near."""
    return [*_per_tensor(), *_inline(), *_half()]


def _per_tensor() -> list[ConvertCase]:
    vllm = formats.vllm
    return [
        one(
            f"bf16-to-{dtype}-per-tensor",
            "quotients by the layer's scale are rounded; beyond the range the outermost is meant",
            vllm("LBHNC", DIMS),
            vllm("LBNHC", DIMS._replace(dtype=dtype), **per_tensor(0.5, 3.0)),
            "lossy",
            change=_KV,
            zeros=(5,),
        )
        for dtype in ("e4m3", "e5m2fnuz")
    ] + [
        one(
            "e4m3-per-tensor-to-other-scales",
            "products with the source's scale, divided by the destination's",
            vllm("LBNHC", DIMS._replace(dtype="e4m3"), **per_tensor(0.5, 0.75)),
            vllm("LBNHC", DIMS._replace(dtype="e4m3"), **per_tensor(1.25, 0.1)),
            "lossy",
            change=_KV,
        )
    ]


def _inline() -> list[ConvertCase]:
    # States whose elements are all zero have the scale 1.
    zeros: dict[str, Any] = {"change": _KV, "zeros": (3, 9)}
    rows = {"src_blocks": {0: [3, 2]}, "dst_blocks": {0: [1, 3]}}
    return [
        one(
            "bf16-to-per-token-head-i8",
            "a scale for each head and token: the largest magnitude becomes 127",
            formats.vllm("LBHNC", DIMS),
            formats.scaled_cells("LBNHC", DIMS._replace(dtype="i8")),
            "lossy",
            **zeros,
        ),
        one(
            "bf16-to-per-token-head-e4m3",
            "a scale for each head and token: the largest magnitude becomes 448",
            formats.vllm_cpu(DIMS),
            formats.scaled_planes(DIMS._replace(dtype="e4m3")),
            "lossy",
            **zeros,
        ),
        one(
            "f32-to-rows-656",
            "a scale for each 128 elements of the latent; the rotary part becomes bf16",
            formats.latent("LB", ROWS._replace(dtype="f32"), 64),
            formats.rows_656("LB", ROWS),
            "lossy",
            change=("latent", "rope"),
            zeros=(2,),
            **rows,
        ),
    ]


def _half() -> list[ConvertCase]:
    e4m3, f16 = DIMS._replace(dtype="e4m3"), DIMS._replace(dtype="f16")
    return [
        one(
            "e4m3-quarters-to-f16",
            "with the scale 0.25 every value lies in the range of f16",
            formats.vllm("LBNHC", e4m3, **per_tensor(0.25, 0.25)),
            formats.vllm("LBHNC", f16),
            "lossless",
            change=_KV,
        ),
        one(
            "e4m3-large-to-f16",
            "with the scale 256 the largest values become infinities",
            formats.vllm("LBNHC", e4m3, **per_tensor(256.0, 256.0)),
            formats.vllm("LBHNC", f16),
            "lossy",
            change=_KV,
        ),
    ]
