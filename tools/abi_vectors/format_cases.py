"""The remaining caches of `decode/`: of few bits, compressed, of states, apart, or undescribed.

Pages are as long as the engine's own where that is little; heads, and some blocks, are fewer.
"""

from abi_vectors import formats, quantized, regions, state_formats
from abi_vectors.decode_cases import DecodeCase, f32, per_tensor
from abi_vectors.formats import Dims
from abi_vectors.latent_cases import latent_cases
from abi_vectors.regions import by_order

WIDE = Dims(layers=1, blocks=2, heads=2, tokens=16, size=128)
PAIR = Dims(layers=1, blocks=2, heads=1, tokens=16, size=128)
FACTORS = {"scales.k": [f32(0.0123), f32(0.5)], "scales.v": [f32(0.25), f32(0.007)]}
LAST = {"attention": [1]}


def format_cases() -> list[DecodeCase]:
    """All of them."""
    return [*_four_bits(), *_codes(), *latent_cases(), *_states(), *_engines(), *_apart()]


def _four_bits() -> list[DecodeCase]:
    two = WIDE._replace(layers=2)
    factors = {"codec": {"id": "block_scaled", "params": FACTORS}}
    return [
        DecodeCase(
            "nvfp4-flashinfer-linear",
            "planes of K, its scales, V and its scales; a scale of each layer outside of the cache",
            quantized.nvfp4("LB", two, is_swizzled=False, **factors),
            LAST,
        ),
        DecodeCase(
            "nvfp4-flashinfer-swizzled",
            "the same, with V's scales of four tokens side by side and of columns in four rows",
            quantized.nvfp4("BL", two, is_swizzled=True, **factors),
            LAST,
        ),
        DecodeCase(
            "nvfp4-msa",
            "for each head K and then V as data and scales behind them",
            quantized.nvfp4_of_heads(WIDE),
            LAST,
        ),
        DecodeCase(
            "trtllm-nvfp4-separate-scales",
            "TensorRT-LLM: data [blocks, layers, 2, H, N, D/2], scales in a pool of their own",
            quantized.nvfp4_trtllm(Dims(blocks=3, size=32)),
            LAST,
        ),
        DecodeCase(
            "int4-token-head",
            "cells of 136 bytes: a scale for each head and token, a zero point in its lowest bits",
            quantized.int4_cells("LBNHC", WIDE),
            LAST,
        ),
        DecodeCase(
            "ultraquant",
            "cells of 136 bytes: a power of two for each 32 elements, and K rotated",
            quantized.ultraquant("LBHNC", WIDE),
            LAST,
        ),
        DecodeCase(
            "group-scaled-e5m2-f32",
            "8-bit elements under a scale in f32 for each 4, and one of each layer",
            quantized.group_scaled_cells(
                "LBNHC",
                Dims(dtype="e5m2"),
                4,
                "f32",
                codec={"id": "block_scaled", "params": FACTORS},
            ),
            LAST,
        ),
        DecodeCase(
            "group-scaled-e4m3fnuz-ue8m0",
            "8-bit elements of the other bias under a power of two for each 4",
            quantized.group_scaled_cells("BHLNC", Dims(dtype="e4m3fnuz"), 4, "ue8m0"),
            LAST,
        ),
    ]


def _codes() -> list[DecodeCase]:
    presets = {"k8v4": (8, 4), "4bit": (4, 4), "k3v4": (3, 4), "3bit": (3, 3)}
    cells = {"k8v4": 196, "4bit": 134, "k3v4": 118, "3bit": 102}
    return [
        *(
            DecodeCase(
                f"turboquant-{name}",
                f"cells of {cells[name]} bytes: codes of {bits[0]} and {bits[1]} bits, not decoded",
                quantized.turboquant("LBHNC", WIDE, *bits),
                LAST,
            )
            for name, bits in presets.items()
        ),
        DecodeCase(
            "turboquant-rounded-up",
            "24 elements in codes of 8 and 3 bits: 37 bytes of a cell of 38",
            quantized.turboquant("LBHNC", Dims(size=24), 8, 3),
            LAST,
        ),
    ]


def _states() -> list[DecodeCase]:
    dims = Dims(tokens=16, blocks=3)
    one = {name: [2, 1] for name in ("heads", "groups", "key_heads")}
    return [
        DecodeCase(
            "mamba-by-head",
            "Mamba: the input's columns and the state by heads, B's and C's by groups, one table",
            state_formats.mamba("LB", dims, (4, 2)),
            one,
        ),
        DecodeCase(
            "mamba-slice-by-head",
            "the second of two ranks: heads 4 to 8 of 8, and group 1 of 2",
            state_formats.mamba("BL", dims, (4, 1), pad=8, heads=[4, 8, 8], groups=[1, 2, 2]),
            one,
        ),
        DecodeCase(
            "gdn-by-head",
            "a gated delta net with 2 heads of queries and keys, and 4 of values",
            state_formats.delta_net("LB", dims, (2, 4)),
            one,
        ),
        DecodeCase(
            "kda-by-head",
            "as many heads of keys as of values: one group",
            state_formats.delta_net("BL", dims, (3, 3)),
            one,
        ),
        DecodeCase(
            "mamba-padded",
            "flattened states in pages that are padded to those of attention, on the same bytes",
            state_formats.padded_to_attention(Dims(), conv=18, size=40),
            {"attention": [3, 1], "states": [2]},
        ),
    ]


def _engines() -> list[DecodeCase]:
    small = Dims(size=16)
    fp8 = Dims(tokens=32, size=32, dtype="e4m3fnuz", blocks=3)
    return [
        DecodeCase(
            "aiter-shuffle",
            "AITER: K as [H, D/x, N, x] and V as [H, N/x, D, x] with x = 8; K of all blocks first",
            regions.shuffled("LSB", Dims(tokens=16, size=16, blocks=3)),
            LAST,
        ),
        DecodeCase(
            "aiter-shuffle-e4m3fnuz",
            "the same with 8-bit elements, x = 16, K and V block by block",
            regions.shuffled("LBS", fp8, **per_tensor(0.75, 1.0009765625)),
            LAST,
        ),
        DecodeCase(
            "b12x-planes",
            "K [N, H, D] and V [N, H, D] behind one another in each page",
            by_order("LBSNHD", Dims()),
        ),
        DecodeCase(
            "diffkv",
            "cells of 640 bytes: K of 192 elements and V of 128",
            formats.vllm("LBNHC", PAIR._replace(size=192), v_size=128),
            LAST,
        ),
        DecodeCase(
            "minimax-m3-main",
            "cells of 512 bytes, heads outside of blocks",
            formats.vllm("LHBNC", PAIR),
            LAST,
        ),
        DecodeCase(
            "sglang-layer-first",
            "SGLang's host pool [2, L, slots, H, D]",
            by_order("SLBNHD", small, "host"),
        ),
        DecodeCase(
            "sglang-page-first",
            "SGLang's host pool [2, slots, L, H, D]: layers inside of tokens",
            by_order("SBNLHD", small, "host"),
        ),
        DecodeCase(
            "sglang-page-first-direct",
            "SGLang's host pool [2, pages, L, N, H, D]",
            by_order("SBLNHD", small, "host"),
        ),
        DecodeCase(
            "sglang-page-head",
            "SGLang's host pool [2, pages, H, N, L, D]: layers inside of heads and tokens",
            by_order("SBHNLD", small, "host"),
        ),
        DecodeCase(
            "trtllm-hnd",
            "TensorRT-LLM's default: [blocks, layers, 2, H, N, D] with blocks of 32 tokens",
            by_order("BLSHND", small._replace(tokens=32, blocks=3)),
            LAST,
        ),
        DecodeCase(
            "trtllm-nhd",
            "TensorRT-LLM: [blocks, layers, 2, N, H, D]",
            by_order("BLSNHD", small),
        ),
        DecodeCase(
            "lmcache-2ltd",
            "LMCache: a chunk is [2, L, T, H*D]",
            by_order("BSLNHD", small._replace(tokens=16, blocks=2), "host"),
            {"attention": [1, 0]},
        ),
        DecodeCase(
            "lmcache-t2d",
            "LMCache: a chunk of each layer is [T, 2, H*D]",
            by_order("LBNSHD", small._replace(tokens=16, blocks=2), "host"),
            {"attention": [1, 0]},
        ),
        DecodeCase(
            "dynamo-nhd",
            "Dynamo, operational: a block is [L, 2, N, H, D]",
            by_order("BLSNHD", Dims(layers=3)),
        ),
        DecodeCase(
            "dynamo-hnd",
            "Dynamo, operational: a block is [L, 2, H, N, D]",
            by_order("BLSHND", Dims(layers=3)),
        ),
        DecodeCase(
            "dynamo-universal",
            "Dynamo, universal: a block is [H, L, 2, N, D]",
            by_order("BHLSND", Dims(layers=3)),
        ),
    ]


def _apart() -> list[DecodeCase]:
    pooling = formats.vllm("LBNHC", Dims(tokens=16), tokens_per_block=4, tokens_per_state=[1, 4])
    return [
        DecodeCase(
            "whisper-pooling",
            "four states for each token: blocks of 4 tokens and 16 states",
            pooling,
        ),
        DecodeCase(
            "hisparse-host",
            "latents of all tokens in the host's memory, and copies that the device keeps",
            state_formats.host_and_device(Dims(heads=1, tokens=4, blocks=3, size=16), 6),
            {"source": [5, 2], "hot": [1]},
        ),
        DecodeCase(
            "opaque-page",
            "pages of 1040 bytes of which nobody says what is in them",
            state_formats.opaque_pages(Dims(heads=4), 1040),
            {"attention": [3, 1]},
        ),
        DecodeCase(
            "opaque-packed",
            "keys and values are said to be there, and nobody has shown it",
            formats.vllm("LBNHC", Dims(), opaque="example/1.0 backend=of-its-own"),
        ),
    ]
