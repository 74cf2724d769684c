"""The transfers of `convert/` between layouts, block sizes and codecs; and all together."""

from __future__ import annotations

from typing import Any

from abi_vectors import formats
from abi_vectors.bits_cases import bits_cases
from abi_vectors.decode_cases import f32
from abi_vectors.error_cases import error_cases
from abi_vectors.format_conversions import format_conversions
from abi_vectors.format_moves import format_moves
from abi_vectors.kept_cases import kept_cases
from abi_vectors.kind_cases import kind_cases
from abi_vectors.lossy_cases import lossy_cases
from abi_vectors.meeting_cases import meeting_cases
from abi_vectors.quotient_cases import quotient_cases
from abi_vectors.request_cases import request_cases
from abi_vectors.transfers import DIMS, LATENT, LONG, ROWS, SHORT, ConvertCase, one


def convert_cases() -> list[ConvertCase]:
    """All of them."""
    return [
        *_layouts(),
        *_block_sizes(),
        *_codecs(),
        *lossy_cases(),
        *kind_cases(),
        *request_cases(),
        *error_cases(),
        *format_moves(),
        *format_conversions(),
        *kept_cases(),
        *bits_cases(),
        *quotient_cases(),
        *meeting_cases(),
    ]


def _layouts() -> list[ConvertCase]:
    wide = DIMS._replace(size=16)
    vllm = formats.vllm
    return [
        one(
            "lbhnc-to-lbnhc",
            "heads outside of tokens to tokens outside of heads",
            vllm("LBHNC", DIMS),
            vllm("LBNHC", DIMS),
            "lossless",
        ),
        one(
            "lbnhc-to-lbhnc",
            "tokens outside of heads to heads outside of tokens",
            vllm("LBNHC", DIMS),
            vllm("LBHNC", DIMS),
            "lossless",
        ),
        one(
            "lbhnc-to-blhnc",
            "the same pages, layers inside of blocks",
            vllm("LBHNC", DIMS),
            vllm("BLHNC", DIMS),
            "identical",
        ),
        one(
            "lbhnc-to-bhlnc",
            "whole pages to heads outside of layers",
            vllm("LBHNC", DIMS),
            vllm("BHLNC", DIMS),
            "lossless",
        ),
        one(
            "cpu-to-packed",
            "K transposed for each head to [K V] in each cell",
            formats.vllm_cpu(DIMS),
            vllm("LBNHC", DIMS),
            "lossless",
        ),
        one(
            "packed-to-cpu",
            "[K V] in each cell to K transposed for each head",
            vllm("LBHNC", DIMS),
            formats.vllm_cpu(DIMS),
            "lossless",
        ),
        one(
            "rocm-to-packed",
            "x-packed K and transposed V to [K V] in each cell",
            formats.rocm(wide),
            vllm("LBHNC", wide),
            "lossless",
        ),
        one(
            "sglang-to-blnhc",
            "separate buffers for each layer to one pool",
            formats.sglang(DIMS),
            vllm("BLNHC", DIMS),
            "lossless",
        ),
        one(
            "trtllm-to-lbhnc",
            "planes of K and V in each block to [K V] in each cell",
            formats.trtllm(DIMS),
            vllm("LBHNC", DIMS),
            "lossless",
        ),
        one(
            "odd-to-cpu",
            "elements of V and K alternating to K transposed",
            formats.odd(DIMS),
            formats.vllm_cpu(DIMS),
            "lossless",
        ),
        one(
            "padded-blocks",
            "pages and blocks with pads, alike on both sides",
            formats.padded(DIMS, 64, 256),
            formats.padded(DIMS, 64, 256),
            "identical",
        ),
        one(
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
        one(
            "scaled-cells-to-planes",
            "scales in the cells to scales in a pool of their own",
            formats.scaled_cells("LBNHC", i8),
            formats.scaled_planes(i8),
            "lossless",
        ),
        one(
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
        one(
            "blocks-16-to-4",
            "a block becomes four; the last one is not full",
            vllm("LBNHC", LONG),
            vllm("LBHNC", SHORT),
            "lossless",
            src_blocks={0: [3, 1]},
            dst_blocks={0: [6, 1, 4, 3, 7, 2]},
            num_tokens=21,
        ),
        one(
            "blocks-4-to-16",
            "four blocks become one; the last one is not full",
            vllm("BLNHC", SHORT),
            formats.vllm_cpu(LONG),
            "lossless",
            src_blocks={0: [6, 1, 4, 3, 7, 2]},
            dst_blocks={0: [3, 1]},
            num_tokens=24,
        ),
        one(
            "blocks-2-to-16",
            "eight blocks become one",
            vllm("LBHNC", tiny),
            vllm("LBNHC", large),
            "lossless",
            src_blocks={0: [9, 3, 4, 5, 6, 1, 2, 7]},
            dst_blocks={0: [2]},
            num_tokens=16,
        ),
        one(
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


def _codecs() -> list[ConvertCase]:
    vllm, powers = formats.vllm, [f32(0.125), f32(4.0)]
    params = {"scales.k": powers, "scales.v": powers[::-1]}
    per_tensor: dict[str, Any] = {"codec": {"id": "fp8_per_tensor", "params": params}}
    wide = formats.latent("BL", ROWS, 64)
    return [
        one(
            "bf16-to-f32",
            "every value is kept",
            vllm("LBHNC", DIMS),
            vllm("LBNHC", DIMS._replace(dtype="f32")),
            "lossless",
            change=("k", "v"),
        ),
        one(
            "e4m3-per-tensor-to-bf16",
            "scales are powers of two, so every value is kept",
            vllm("LBHNC", DIMS._replace(dtype="e4m3"), **per_tensor),
            formats.vllm_cpu(DIMS),
            "lossless",
            change=("k", "v"),
        ),
        one(
            "f32-to-bf16",
            "values are rounded; every fourth lies halfway, and the even one is nearest then",
            vllm("LBNHC", DIMS._replace(dtype="f32")),
            vllm("LBNHC", DIMS),
            "lossy",
            change=("k", "v"),
        ),
        one(
            "per-token-head-i8-to-f32",
            "a product is a binary32 by definition",
            formats.scaled_cells("LBNHC", DIMS._replace(dtype="i8")),
            vllm("LBHNC", DIMS._replace(dtype="f32")),
            "lossless",
            change=("k", "v"),
        ),
        one(
            "rows-656-to-bf16",
            "products with scales are rounded to bf16; the rotary part keeps its bits",
            formats.rows_656("LB", ROWS),
            wide,
            "lossy",
            src_blocks={0: [3, 2]},
            change=("latent",),
        ),
    ]
