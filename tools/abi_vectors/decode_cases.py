"""The caches of `decode/`: one format each, two blocks of it written."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from abi_vectors import formats
from abi_vectors.formats import Dims
from abi_vectors.pages import Cache, model
from abi_vectors.several_groups import encoder_decoder, with_draft

BF16 = Dims()
LATENT = Dims(heads=1, tokens=4, size=24)
CELLS_264 = Dims(layers=1, blocks=3, tokens=4, size=128, dtype="i8")


class DecodeCase(NamedTuple):
    """A cache to fill and to read back.

    Attributes:
        name: Of its folder.
        description: For a stranger.
        cache: Unwritten.
        blocks: By group, the ids to write; a group that is not named: 3 and 1.
    """

    name: str
    description: str
    cache: Cache
    blocks: Mapping[str, list[int]] = MappingProxyType({})


def f32(value: float) -> str:
    """A binary32 as a descriptor's text."""
    return "f32:" + struct.pack(">f", value).hex()


def per_tensor(*scales: float) -> dict[str, Any]:
    """The codec of an 8-bit float; the scales of V are those of K from the last to the first."""
    texts = [f32(scale) for scale in scales]
    params = {"scales.k": texts, "scales.v": texts[::-1]}
    return {"codec": {"id": "fp8_per_tensor", "params": params}}


def decode_cases() -> list[DecodeCase]:
    """All of them."""
    return [*_vllm(), *_engines(), *_latents(), *_scaled(), *_slices(), *_shared(), *_kinds()]


def _vllm() -> list[DecodeCase]:
    layouts = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
    cases = [
        DecodeCase(
            f"vllm-{layout.lower()}-bf16",
            f"vLLM, layout {layout}: a cell is K, then V, of a head and token",
            formats.vllm(layout, BF16),
        )
        for layout in layouts
    ]
    for dtype in ("f16", "f32"):
        cache = formats.vllm("LBNHC", BF16._replace(dtype=dtype))
        cases.append(DecodeCase(f"vllm-lbnhc-{dtype}", f"vLLM, layout LBNHC, {dtype}", cache))
    different = formats.vllm("LBHNC", BF16._replace(size=24), v_size=16)
    cases.append(
        DecodeCase("vllm-lbhnc-k24-v16", "K of 24 elements and V of 16 in a cell", different)
    )
    return cases


def _engines() -> list[DecodeCase]:
    wide = BF16._replace(size=16)
    return [
        DecodeCase(
            "vllm-cpu-bf16",
            "vLLM's CPU attention: for each head K as [D, N], then V as [N, D]",
            formats.vllm_cpu(BF16),
        ),
        DecodeCase(
            "vllm-cpu-two-kernel-blocks",
            "the same where a block is two kernel blocks of 8 tokens: N has two digits",
            formats.vllm_cpu(BF16._replace(tokens=16), kernel_blocks=2),
        ),
        DecodeCase(
            "rocm-x8-bf16",
            "ROCm paged attention: K as [H, D/x, N, x] with x = 8, then V as [H, D, N]",
            formats.rocm(wide),
        ),
        DecodeCase(
            "rocm-x16-e4m3fnuz",
            "ROCm paged attention with 8-bit elements: x = 16",
            formats.rocm(Dims(size=32, dtype="e4m3fnuz"), **per_tensor(0.75, 1.0009765625)),
        ),
        DecodeCase(
            "sglang-bf16",
            "SGLang: for each layer a buffer of keys and one of values [slots, H, D]",
            formats.sglang(BF16),
        ),
        DecodeCase(
            "trtllm-bf16",
            "TensorRT-LLM: one pool [blocks, layers, 2, H, N, D]",
            formats.trtllm(BF16),
        ),
        DecodeCase(
            "odd-bf16",
            "nobody's: V before K element by element, tokens in pairs, pads everywhere",
            formats.odd(BF16),
        ),
        DecodeCase(
            "padded-pages-bf16",
            "80 bytes of pad behind each page",
            formats.padded(BF16, page_pad=80, block_pad=0),
        ),
        DecodeCase(
            "padded-blocks-bf16",
            "64 bytes of pad behind each page and 256 behind each block",
            formats.padded(BF16, page_pad=64, block_pad=256),
        ),
    ]


def _latents() -> list[DecodeCase]:
    codec = {"id": "fp8_per_tensor"}
    scales = {"scales.latent": [f32(0.0625), f32(3.0)], "scales.rope": [f32(1.0), f32(0.1)]}
    return [
        DecodeCase(
            "mla-bf16",
            "MLA: in each cell 24 elements of latent, then 8 of the rotary part",
            formats.latent("BL", LATENT, 8),
        ),
        DecodeCase(
            "mla-e4m3-per-tensor",
            "MLA in 8 bits, a scale for each role and layer outside of the cache",
            formats.latent(
                "LB", LATENT._replace(dtype="e4m3"), 8, codec=codec | {"params": scales}
            ),
        ),
        DecodeCase(
            "mla-656",
            "MLA: 512 elements of e4m3, four scales of 128 each, 64 elements of bf16",
            formats.rows_656("LB", LATENT._replace(blocks=3, tokens=4, layers=1)),
            {"attention": [2]},
        ),
        DecodeCase(
            "mla-656-planes",
            "the same elements as three planes for each page and a pad behind",
            formats.planes_656(LATENT._replace(blocks=3, tokens=4, layers=1)),
            {"attention": [2]},
        ),
        DecodeCase(
            "mla-one-state-for-four-tokens",
            "a latent for each four tokens: 16 tokens, 4 states in a block",
            formats.latent("LB", LATENT, 8, tokens_per_block=16, tokens_per_state=[4, 1]),
        ),
        DecodeCase(
            "cross-two-states-for-each-token",
            "two states for each token: 4 tokens, 8 states in a block",
            formats.vllm("LBNHC", BF16, kind="cross", tokens_per_block=4, tokens_per_state=[1, 2]),
        ),
    ]


def _scaled() -> list[DecodeCase]:
    scales = {
        "e4m3": (0.5, 0.10000000149011612),
        "e5m2": (2.0, 0.0078125),
        "e4m3fnuz": (0.03125, 1.5),
        "e5m2fnuz": (1.0, 57.25),
    }
    cases = [
        DecodeCase(
            f"vllm-lbhnc-{dtype}-per-tensor",
            f"{dtype}, a scale for each role and layer outside of the cache",
            formats.vllm("LBHNC", BF16._replace(dtype=dtype), **per_tensor(*factors)),
        )
        for dtype, factors in scales.items()
    ]
    return [
        *cases,
        DecodeCase(
            "per-token-head-i8-264",
            "a scale behind each head's K and each head's V: cells of 264 bytes",
            formats.scaled_cells("LBNHC", CELLS_264),
            {"attention": [2]},
        ),
        DecodeCase(
            "per-token-head-e4m3-unaligned",
            "halves of 26 elements: scales at multiples of 30 bytes, less 4",
            formats.scaled_cells("BLHNC", Dims(size=26, dtype="e4m3")),
        ),
        DecodeCase(
            "per-token-head-e4m3fnuz-planes",
            "elements in planes, their scales in a pool of their own",
            formats.scaled_planes(Dims(size=16, dtype="e4m3fnuz")),
        ),
    ]


def _slices() -> list[DecodeCase]:
    return [
        DecodeCase(
            "slice-of-tokens",
            "context parallelism: every second four tokens, the second rank of two",
            formats.vllm(
                "LBNHC",
                BF16,
                owner={
                    "heads": [0, 2, 2],
                    "tokens": {"rank": 1, "size": 2, "interleave": 4},
                },
            ),
        ),
        DecodeCase(
            "slice-of-heads",
            "heads 2 and 3 of 8, the second of two ranks that hold them",
            formats.vllm("BHLNC", BF16, owner={"heads": [2, 4, 8], "replica": [1, 2]}),
        ),
        DecodeCase(
            "slice-of-layers",
            "the second pipeline stage, and its layers in descending order",
            formats.vllm("LBHNC", BF16, layers=[5, 4]),
        ),
        DecodeCase(
            "one-layer-one-head",
            "one layer, one head: axes without digits",
            formats.vllm("LBHNC", BF16._replace(layers=1, heads=1)),
        ),
    ]


def _shared() -> list[DecodeCase]:
    return [
        DecodeCase(
            "overlay-full-and-window",
            "full layers and layers of a sliding window on the same bytes, told apart by block id",
            formats.overlay(BF16, window=16),
            {"full": [3, 1], "window": [2]},
        ),
        DecodeCase(
            "recurrent-conv-ssm",
            "a convolution state in bf16 and a state in f32, then 12 bytes of pad",
            formats.recurrent(Dims(tokens=16, size=40), conv=18, pad=12),
        ),
        DecodeCase(
            "encoder-decoder",
            "two tables: the decoder's tokens, and the encoder's positions in other layers",
            encoder_decoder("LBNHC", BF16),
            {"self": [3, 1], "cross": [2]},
        ),
        DecodeCase(
            "group-that-stays",
            "a group of a layer that another group has: the engine rebuilds it and it stays",
            with_draft("LBHNC", BF16, 16),
        ),
    ]


def _kinds() -> list[DecodeCase]:
    shares = formats.vllm("LBNHC", BF16)
    shares.model = model(kv_share=[[2, 0], [3, 1], [7, 0]])
    bare = formats.vllm("LBHNC", BF16._replace(layers=1, heads=1))
    del bare.groups["attention"].document["null_block"]
    bare.model = {"name": "example/bare", "num_layers": 1, "rope": {"state": "none"}}
    return [
        DecodeCase(
            "ring",
            "one block for each request: the slot of a token is its position modulo 6",
            formats.vllm("LBNHC", BF16, kind="ring", window=6),
            {"attention": [2]},
        ),
        DecodeCase(
            "chunked-local",
            "layers whose queries see the tokens of their chunk of 16",
            formats.vllm("LBHNC", BF16, kind="chunked_local", window=16),
        ),
        DecodeCase(
            "layers-that-share",
            "layers 2 and 7 read what layer 0 has, and 3 what 1 has",
            shares,
        ),
        DecodeCase(
            "bare",
            "nothing but what must be said: no null block, no rotation, no digest of the weights",
            bare,
        ),
    ]
