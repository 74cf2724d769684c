"""The transfers of `convert/` in which bits move: of formats of few bits, of states, of pools."""

from typing import Any

from abi_vectors import formats, quantized, state_formats
from abi_vectors.decode_cases import f32
from abi_vectors.formats import Dims
from abi_vectors.latent_cases import KEYS, rows_of
from abi_vectors.pages import Cache
from abi_vectors.regions import Field, Region, by_order, regions, shuffled
from abi_vectors.transfers import DIMS, LATENT, Blocks, ConvertCase, Source, one

NVFP4 = DIMS._replace(layers=1, size=64)
ROW: Region = [Field("latent", "e4m3", 56), Field("rope", "bf16", 8)]
SCALES: Region = [Field("latent_scale", "ue8m0", 7, "NG"), Field("", size=1)]
SCALED: dict[str, Any] = {"codec": {"id": "block_scaled"}}
STATES = Dims(tokens=16, blocks=4)
LAST_STATE: dict[str, Any] = {"num_tokens": 41, "src_blocks": {0: [3]}, "dst_blocks": {0: [2]}}


def format_moves() -> list[ConvertCase]:
    """All of them."""
    return [*_four_bits(), *_regions(), *_pools(), *_states(), *_undescribed()]


def _four_bits() -> list[ConvertCase]:
    params = {"scales.k": [f32(0.75)], "scales.v": [f32(1.5)]}
    factors: dict[str, Any] = {"codec": {"id": "block_scaled", "params": params}}
    nvfp4, wide = quantized.nvfp4, NVFP4._replace(size=128)
    long, short = DIMS._replace(tokens=16, blocks=4), DIMS._replace(tokens=4, blocks=9)
    again: dict[str, Any] = {"src_blocks": {0: [3, 1]}, "dst_blocks": {0: [6, 1, 4, 3, 7, 2]}}
    return [
        one(
            "nvfp4-swizzled-to-linear",
            "V's scales out of their tiles",
            nvfp4("LB", wide, is_swizzled=True),
            nvfp4("BL", wide, is_swizzled=False),
            "lossless",
        ),
        one(
            "nvfp4-linear-to-swizzled",
            "V's scales into their tiles, under scales of the layer that both sides have",
            nvfp4("BL", wide, is_swizzled=False, **factors),
            nvfp4("LB", wide, is_swizzled=True, **factors),
            "lossless",
        ),
        one(
            "nvfp4-flashinfer-to-msa",
            "planes of a page to planes of each head",
            nvfp4("LB", NVFP4, is_swizzled=True),
            quantized.nvfp4_of_heads(NVFP4),
            "lossless",
        ),
        one(
            "nvfp4-separate-scales-to-planes",
            "scales from a pool of their own",
            quantized.nvfp4_trtllm(NVFP4),
            nvfp4("LB", NVFP4, is_swizzled=False),
            "lossless",
        ),
        one(
            "nvfp4-swizzled-blocks-16-to-4",
            "a block becomes four; the last one is not full",
            nvfp4("LB", long._replace(size=64), is_swizzled=True),
            nvfp4("LB", short._replace(size=64), is_swizzled=True),
            "lossless",
            num_tokens=21,
            **again,
        ),
        one(
            "int4-blocks-16-to-4",
            "a block becomes four, and tokens come to lie outside of heads",
            quantized.int4_cells("LBHNC", long),
            quantized.int4_cells("LBNHC", short),
            "lossless",
            num_tokens=21,
            **again,
        ),
        one(
            "ultraquant-lbhnc-to-blnhc",
            "powers of two and rotated elements as they are",
            quantized.ultraquant("LBHNC", NVFP4),
            quantized.ultraquant("BLNHC", NVFP4),
            "lossless",
        ),
        one(
            "turboquant-lbhnc-to-lbnhc",
            "codes and what belongs to them",
            quantized.turboquant("LBHNC", DIMS._replace(size=24), 3, 3),
            quantized.turboquant("LBNHC", DIMS._replace(size=24), 3, 3),
            "lossless",
        ),
        one(
            "turboquant-to-other-blocks",
            "the same pages, layers inside of blocks",
            quantized.turboquant("LBHNC", DIMS, 8, 4),
            quantized.turboquant("BLHNC", DIMS, 8, 4),
            "identical",
        ),
    ]


def _regions() -> list[ConvertCase]:
    dims, permuted = LATENT, Field("latent_scale", "e4m3", 32, "NG", turned=4)
    straight = permuted._replace(turned=1)
    nvfp4: Region = [Field("latent", "e2m1", 512), Field("rope", "e4m3", 64)]
    keys = [Field("index_k", "e4m3", 16), Field("index_k_scale", "f32", 1, "NG")]
    index: dict[str, Any] = {"kind": "full"} | SCALED
    return [
        one(
            "rows-584-scales-behind-to-beside",
            "scales behind all rows come to lie in each row",
            regions("BL", dims, [ROW, SCALES], **SCALED),
            regions("LB", dims, [[*ROW, *SCALES]], **SCALED),
            "lossless",
        ),
        one(
            "rows-584-beside-to-behind-padded",
            "scales in each row come to lie behind all rows, and a pad behind the page",
            regions("LB", dims, [[*ROW, *SCALES]], **SCALED),
            regions("BL", dims, [ROW, SCALES], 576, **SCALED),
            "lossless",
        ),
        one(
            "rows-352-to-planes",
            "scales in their permuted order to scales in order behind all rows",
            regions("LB", dims, [[*nvfp4, permuted]], **SCALED),
            regions("LB", dims, [nvfp4, [straight]], **SCALED),
            "lossless",
        ),
        one(
            "indexer-132-to-rows",
            "scales behind all keys come to lie beside each",
            regions("BL", dims, [keys[:1], keys[1:]], **index),
            regions("LB", dims, [keys], **index),
            "lossless",
        ),
        one(
            "indexer-padded",
            "keys in pages with another pad",
            regions("BL", dims, [keys[:1], keys[1:]], 96, **index),
            regions("BL", dims, [keys[:1], keys[1:]], 128, **index),
            "identical",
        ),
        *_rings(),
    ]


def _rings() -> list[ConvertCase]:
    dims = LATENT
    ring: dict[str, Any] = {"kind": "ring", "window": 4}
    end: dict[str, Any] = {"num_tokens": 14, "src_blocks": {0: [4]}, "dst_blocks": {0: [2]}}
    position = Field("position", "i64", 3)
    row = rows_of(12)[0]
    slide: dict[str, Any] = {"kind": "sliding_window", "window": 8}
    return [
        one(
            "ring-of-keys-and-positions",
            "a ring's positions come to lie behind all keys",
            regions("BL", dims, [[*KEYS, position]], **ring),
            regions("BL", dims, [KEYS, [position]], **ring),
            "lossless",
            **end,
        ),
        one(
            "ring-of-rows-to-compress",
            "values and scores of each row come to lie apart",
            regions("LB", dims, [row], **ring),
            regions("BL", dims, [row[:1], row[1:]], **ring),
            "lossless",
            **end,
        ),
        one(
            "window-of-rows-to-compress",
            "the last 8 tokens' rows: what was before is the null block at the source",
            regions("LB", dims, [row], **slide),
            regions("BL", dims, [row], 512, **slide),
            "identical",
            src_blocks={0: [0, 0, 3, 4]},
            dst_blocks={0: [0, 0, 2, 5]},
            num_tokens=16,
        ),
    ]


def _pools() -> list[ConvertCase]:
    vllm, dims = formats.vllm, DIMS._replace(size=16)
    tiles = dims._replace(tokens=16, blocks=4)
    poolings: list[Cache] = [
        vllm(
            "LBNHC",
            DIMS._replace(tokens=4 * tokens),
            tokens_per_block=tokens,
            tokens_per_state=[1, 4],
        )
        for tokens in (4, 2)
    ]
    orders = {
        "sglang-page-first": "SBNLHD",
        "sglang-page-head": "SBHNLD",
        "lmcache-2ltd": "BSLNHD",
        "dynamo-universal": "BHLSND",
    }
    return [
        *(
            one(
                f"{name}-to-lbnhc",
                "to [K V] in each cell",
                by_order(order, dims, "host"),
                vllm("LBNHC", dims),
                "lossless",
            )
            for name, order in orders.items()
        ),
        one(
            "lbnhc-to-dynamo-universal",
            "[K V] in each cell to [H, L, 2, N, D] in each block",
            vllm("LBNHC", dims),
            by_order("BHLSND", dims),
            "lossless",
        ),
        one(
            "b12x-to-aiter-shuffle",
            "planes to tiles",
            by_order("LBSNHD", tiles),
            shuffled("LSB", tiles),
            "lossless",
            src_blocks={0: [3, 2]},
        ),
        one(
            "whisper-pooling",
            "four states for each token: blocks of 4 tokens become blocks of 2",
            poolings[0],
            poolings[1],
            "lossless",
            src_blocks={0: [4, 2]},
            dst_blocks={0: [5, 1, 3]},
            num_tokens=6,
        ),
    ]


def _states() -> list[ConvertCase]:
    mamba = state_formats.mamba
    second: dict[str, Any] = {"heads": [4, 8, 8], "groups": [1, 2, 2]}
    ids: list[Blocks] = [{0: [3]}, {0: [1]}]
    halves = [
        mamba("LB", STATES, (4, 1), heads=[0, 4, 8], groups=[0, 1, 2]),
        mamba("BL", STATES, (4, 1), pad=8, **second),
    ]
    thirds = [
        state_formats.delta_net(
            "LB", STATES, (1, 2), heads=[2 * n, 2 * n + 2, 6], key_heads=[n, n + 1, 3]
        )
        for n in range(3)
    ]
    return [
        one(
            "mamba-heads-8-to-4",
            "all heads and groups to the second of two ranks",
            mamba("LB", STATES, (8, 2)),
            mamba("LB", STATES, (4, 1), **second),
            "lossless",
            **LAST_STATE,
        ),
        ConvertCase(
            "mamba-heads-4-and-4-to-8",
            "two ranks put together, each with its group of B and C",
            [Source(half, blocks, "lossless") for half, blocks in zip(halves, ids, strict=True)],
            mamba("BL", STATES, (8, 2)),
            {0: [2]},
            41,
        ),
        ConvertCase(
            "gdn-heads-of-three-ranks",
            "three ranks put together, each with one head of keys and two of values",
            [Source(third, {0: [n + 1]}, "lossless") for n, third in enumerate(thirds)],
            state_formats.delta_net("LB", STATES, (3, 6)),
            {0: [2]},
            41,
        ),
        one(
            "kda-heads-4-to-2",
            "all parts in one group, the first two of four heads",
            state_formats.delta_net("LB", STATES, (4, 4)),
            state_formats.delta_net("BL", STATES, (2, 2), heads=[0, 2, 4]),
            "lossless",
            **LAST_STATE,
        ),
    ]


def _undescribed() -> list[ConvertCase]:
    pages, text = state_formats.opaque_pages, "example/1.0 backend=of-its-own"
    return [
        one(
            "opaque-page",
            "pages of which nobody says what is in them, between those who write the same",
            pages(DIMS, 264),
            pages(DIMS._replace(blocks=4), 264),
            "identical",
        ),
        one(
            "opaque-packed",
            "pages that are said to be packed, which nobody has shown, as they are",
            formats.vllm("LBNHC", DIMS, opaque=text),
            formats.vllm("BLNHC", DIMS, opaque=text),
            "identical",
        ),
    ]
