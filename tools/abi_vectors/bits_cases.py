"""The transfers of `convert/` in which some roles move as bits, and of pages that look alike."""

from typing import Any

from abi_vectors import formats, quantized
from abi_vectors.kept_cases import KV
from abi_vectors.pages import Cache
from abi_vectors.regions import Field
from abi_vectors.transfers import LATENT, SMALL, ConvertCase, Source, small

# NaN of several kinds, infinities, both zeros, subnormals: bits that a conversion might not keep.
ODD_BF16 = (0x7F81, 0xFFC1, 0x7FC0, 0xFFFF, 0x7F80, 0xFF80, 0x8000, 1, 0x8001, 0x7F7F, 0x3F81)


def bits_cases() -> list[ConvertCase]:
    """All of them."""
    return [*_roles(), *_alike(), *_slices()]


def _mixed(k: str, k_scale: str, v: str, v_scale: str) -> Cache:
    """Keys and values of their own dtypes, a scale for each eight elements."""
    row = [
        Field("k", k, 16, "HND"),
        Field("k_group_scale", k_scale, 2, "HNG"),
        Field("v", v, 16, "HND"),
        Field("v_group_scale", v_scale, 2, "HNG"),
    ]
    return quantized.cells("LBNHC", SMALL, row, codec={"id": "block_scaled"})


def _roles() -> list[ConvertCase]:
    wide = [Field("k", "bf16", 16, "HND"), Field("v", "f32", 16, "HND")]
    return [
        small(
            "keys-as-bits-values-to-f32",
            "keys keep even the bits of what is no number; values are converted",
            formats.vllm("LBNHC", SMALL),
            quantized.cells("LBNHC", SMALL, wide),
            "lossless",
            change=("v",),
            patterns={"k": ODD_BF16},
        ),
        small(
            "keys-as-bits-values-under-other-scales",
            "keys with their scales as they are; values under scales of another dtype",
            _mixed("e4m3", "e4m3", "e2m1", "e4m3"),
            _mixed("e4m3", "e4m3", "e2m1", "ue8m0"),
            "lossy",
            change=("v",),
        ),
        small(
            "scales-of-another-dtype",
            "powers of two become scales of e4m3",
            _mixed("e2m1", "ue8m0", "e2m1", "ue8m0"),
            _mixed("e2m1", "e4m3", "e2m1", "e4m3"),
            "lossy",
            change=KV,
        ),
        small(
            "elements-of-another-dtype",
            "scales of one dtype, under which elements of another need others",
            _mixed("e4m3", "ue8m0", "e4m3", "ue8m0"),
            _mixed("e5m2", "ue8m0", "e5m2", "ue8m0"),
            "lossy",
            change=KV,
        ),
        small(
            "one-scale-of-another-codec",
            "a scale of a head and token, and one of the only group of its elements",
            formats.scaled_cells("LBNHC", SMALL._replace(dtype="e4m3")),
            quantized.group_scaled_cells("LBNHC", SMALL._replace(dtype="e4m3"), 16, "f32"),
            "lossy",
            change=KV,
        ),
    ]


def _alike() -> list[ConvertCase]:
    slide: dict[str, Any] = {"kind": "sliding_window", "window": 16}
    two = SMALL._replace(heads=2)
    return [
        small(
            "full-to-window-of-the-same-pages",
            "all tokens of layers whose queries see the last 16: pages are the same",
            formats.vllm("LBNHC", SMALL, window=16),
            formats.vllm("LBNHC", SMALL, **slide),
            "identical",
        ),
        small(
            "replicas-and-other-null-blocks",
            "the first and the second rank with one slice; another null block, another table",
            formats.vllm("LBNHC", two, owner={"heads": [0, 2, 4], "replica": [0, 2]}),
            formats.vllm(
                "BLNHC",
                two,
                owner={"heads": [0, 2, 4], "replica": [1, 2]},
                null_block=2,
                table=1,
            ),
            "identical",
            dst_blocks={1: [1, 0]},
        ),
    ]


def _slices() -> list[ConvertCase]:
    """Pages are the same, and what is in them is not."""
    two = SMALL._replace(heads=2)
    ids: list[dict[int, list[int]]] = [{0: [2, 1]}, {0: [1, 2]}]
    halves = [formats.vllm("LBHNC", two, owner={"heads": [n, n + 2, 4]}) for n in (0, 2)]
    turns = [_turns(rank) for rank in range(2)]
    dims = LATENT._replace(layers=1, blocks=5)
    return [
        ConvertCase(
            "pages-of-other-heads",
            "heads 0 and 1, and 2 and 3, to a rank with 1 and 2, in pages of one layout",
            [Source(half, blocks, "lossless") for half, blocks in zip(halves, ids, strict=True)],
            formats.vllm("LBHNC", two, owner={"heads": [1, 3, 4]}),
            {0: [1, 2]},
            4,
        ),
        ConvertCase(
            "latents-of-two-ranks-to-all",
            "latents of two ranks that take turns of two tokens, in pages like those of all tokens",
            [Source(turn, blocks, "lossless") for turn, blocks in zip(turns, ids, strict=True)],
            formats.latent("LB", dims, 8),
            {0: [1, 3, 4, 2]},
            16,
        ),
        small(
            "latents-of-all-to-a-rank",
            "the reverse, for the second of two",
            formats.latent("LB", dims, 8),
            _turns(1),
            "lossless",
            src_blocks={0: [4, 1, 3, 2]},
            dst_blocks={0: [1, 2]},
            num_tokens=16,
        ),
        small(
            "latents-of-one-rank",
            "the second rank of two to the same of others: the pages are the same",
            _turns(1),
            _turns(1),
            "identical",
            num_tokens=16,
        ),
    ]


def _turns(rank: int) -> Cache:
    tokens = {"size": 2, "interleave": 2} | ({"rank": rank} if rank else {})
    dims = LATENT._replace(layers=1, blocks=3)
    return formats.latent("LB", dims, 8, owner={"tokens": tokens})
