"""The transfers of `convert/` that make numbers of few bits from others, or others from them."""

from typing import Any

from abi_vectors import formats, quantized
from abi_vectors.decode_cases import f32, per_tensor
from abi_vectors.formats import Dims
from abi_vectors.pages import Cache
from abi_vectors.regions import Field, Region, regions
from abi_vectors.transfers import DIMS, LATENT, ConvertCase, one

KV = ("k", "v")
SCALED: dict[str, Any] = {"codec": {"id": "block_scaled"}}
SMALL = DIMS._replace(layers=1, size=64)
# States whose elements are all zero have the scale 1.
ZEROS: dict[str, Any] = {"change": KV, "zeros": (3, 9)}


def format_conversions() -> list[ConvertCase]:
    """All of them."""
    return [*_from_latents(), *_from_heads(), *_to_latents(), *_to_heads(), *_between()]


def _params(*scales: float) -> dict[str, Any]:
    params = {"scales.k": [f32(scales[0])], "scales.v": [f32(scales[1])]}
    return {"codec": {"id": "block_scaled", "params": params}}


def _int4(layout: str, dims: Dims) -> Cache:
    """Without a rotation."""
    return quantized.int4_cells(layout, dims, codec={"id": "int4_zero_point"})


def _mx(layout: str, scale: str, dtype: str = "e2m1", run: int = 32, **document: Any) -> Cache:
    dims = SMALL._replace(dtype=dtype)
    return quantized.group_scaled_cells(layout, dims, run, scale, **document)


def _latents(dtype: str, scale: str, count: int, rope: str = "bf16", size: int = 56) -> Cache:
    """Rows of elements and a rotary part of 8, then rows of scales; no rope: none of it."""
    row: Region = [Field("latent", dtype, size)]
    row += [Field("rope", rope, 8)] if rope else []
    scales: list[Region] = [[Field("latent_scale", scale, count, "NG")]] if scale else []
    return regions("LB", LATENT, [row, *scales], **(SCALED if scale else {}))


def _keys(*fields: Field) -> Cache:
    given = SCALED if len(fields) > 1 else {}
    return regions("LB", LATENT, [[field] for field in fields], kind="full", **given)


def _from_latents() -> list[ConvertCase]:
    latent, both = ("latent",), ("latent", "rope")
    keys = Field("index_k", "e4m3", 64), Field("index_k_scale", "f32", 1, "NG")
    plain_keys = Field("index_k", "bf16", 64)
    few_bits = Field("index_k", "e2m1", 64), Field("index_k_scale", "ue8m0", 2, "NG")
    return [
        one(
            "rows-584-to-bf16",
            "powers of two keep every value; the rotary part keeps its bits",
            _latents("e4m3", "ue8m0", 7),
            _latents("bf16", "", 0),
            "lossless",
            change=latent,
        ),
        one(
            "rows-584-to-f16",
            "powers of two may lie beyond the range of f16; the rotary part is rounded",
            _latents("e4m3", "ue8m0", 7),
            _latents("f16", "", 0, "f16"),
            "lossy",
            change=both,
        ),
        one(
            "rows-528-to-bf16",
            "powers of two for each 32 elements",
            _latents("e4m3", "ue8m0", 2, "", 64),
            _latents("bf16", "", 0, "", 64),
            "lossless",
            change=latent,
        ),
        one(
            "rows-288-to-bf16",
            "two significant bits under scales of four are six",
            _latents("e2m1", "e4m3", 4, "", 64),
            _latents("bf16", "", 0, "", 64),
            "lossless",
            change=latent,
        ),
        one(
            "rope-e4m3-to-bf16",
            "a rotary part alone is converted: the latent moves as bits, with its scales",
            _latents("e2m1", "e4m3", 4, "e4m3", 64),
            _latents("e2m1", "e4m3", 4, "bf16", 64),
            "lossless",
            change=("rope",),
        ),
        one(
            "indexer-132-to-bf16",
            "products with scales in f32 are rounded",
            _keys(*keys),
            _keys(plain_keys),
            "lossy",
            change=("index_k",),
        ),
        one(
            "indexer-132-to-f32",
            "a product is a binary32 by definition",
            _keys(*keys),
            _keys(plain_keys._replace(dtype="f32")),
            "lossless",
            change=("index_k",),
        ),
        one(
            "indexer-bf16-to-132",
            "a scale in f32 for each key",
            _keys(plain_keys),
            _keys(*keys),
            "lossy",
            change=("index_k",),
            zeros=(2,),
        ),
        one(
            "indexer-bf16-to-mxfp4",
            "a power of two for each 32 elements, of which the largest is at most 6",
            _keys(plain_keys),
            _keys(*few_bits),
            "lossy",
            change=("index_k",),
            zeros=(2,),
        ),
        one(
            "indexer-mxfp4-to-bf16",
            "powers of two keep every value",
            _keys(*few_bits),
            _keys(plain_keys),
            "lossless",
            change=("index_k",),
        ),
    ]


def _from_heads() -> list[ConvertCase]:
    vllm, nvfp4, small = formats.vllm, quantized.nvfp4, SMALL
    wide = small._replace(dtype="f32")
    return [
        one(
            "nvfp4-to-bf16",
            "six significant bits at most",
            nvfp4("LB", small, is_swizzled=True),
            vllm("LBNHC", small),
            "lossless",
            change=KV,
        ),
        one(
            "nvfp4-of-powers-of-two-to-bf16",
            "scales of the layer that are powers of two",
            nvfp4("LB", small, is_swizzled=False, **_params(0.25, 8.0)),
            vllm("LBNHC", small),
            "lossless",
            change=KV,
        ),
        one(
            "nvfp4-of-odd-scales-to-bf16",
            "scales of the layer that are none",
            nvfp4("LB", small, is_swizzled=False, **_params(0.25, 0.3)),
            vllm("LBNHC", small),
            "lossy",
            change=KV,
        ),
        one(
            "mxfp4-to-bf16",
            "powers of two for each 32 elements of four bits",
            _mx("LBHNC", "ue8m0"),
            formats.vllm_cpu(small),
            "lossless",
            change=KV,
        ),
        one(
            "int4-to-bf16",
            "zero points and scales in f32",
            _int4("LBHNC", small),
            vllm("LBNHC", small),
            "lossy",
            change=KV,
        ),
        one(
            "int4-to-f32",
            "differences and products are binary32 by definition",
            _int4("LBNHC", small),
            vllm("LBNHC", wide),
            "lossless",
            change=KV,
        ),
        one(
            "e4m3-per-tensor-of-odd-scales-to-bf16",
            "scales that are no powers of two",
            vllm("LBNHC", DIMS._replace(dtype="e4m3"), **per_tensor(0.3, 1.7)),
            vllm("LBHNC", DIMS),
            "lossy",
            change=KV,
        ),
        one(
            "e4m3-to-e4m3fnuz-of-twice-the-scale",
            "the same bytes are worth half, and all values of the one are values of the other",
            vllm("LBNHC", DIMS._replace(dtype="e4m3"), **per_tensor(0.5, 4.0)),
            vllm("LBHNC", DIMS._replace(dtype="e4m3fnuz"), **per_tensor(1.0, 8.0)),
            "lossless",
            change=KV,
        ),
        one(
            "e4m3-to-e4m3fnuz-of-the-same-scale",
            "the largest values are beyond the range",
            vllm("LBNHC", DIMS._replace(dtype="e4m3"), **per_tensor(0.5, 4.0)),
            vllm("LBHNC", DIMS._replace(dtype="e4m3fnuz"), **per_tensor(0.5, 4.0)),
            "lossy",
            change=KV,
        ),
    ]


def _to_latents() -> list[ConvertCase]:
    both: dict[str, Any] = {"change": ("latent", "rope"), "zeros": (2,)}
    one_role: dict[str, Any] = {"change": ("latent",), "zeros": (2,)}
    return [
        one(
            "bf16-to-rows-584",
            "the least power of two under which the largest magnitude is at most 448",
            _latents("bf16", "", 0),
            _latents("e4m3", "ue8m0", 7),
            "lossy",
            **one_role,
        ),
        one(
            "bf16-to-rows-528",
            "the same for each 32 elements",
            _latents("bf16", "", 0, "", 64),
            _latents("e4m3", "ue8m0", 2, "", 64),
            "lossy",
            **one_role,
        ),
        one(
            "bf16-to-rows-352",
            "elements of four bits under scales of eight; the rotary part becomes e4m3 as it is",
            _latents("bf16", "", 0, "bf16", 64),
            _latents("e2m1", "e4m3", 4, "e4m3", 64),
            "lossy",
            **both,
        ),
    ]


def _to_heads() -> list[ConvertCase]:
    vllm, small = formats.vllm, SMALL
    return [
        one(
            "bf16-to-nvfp4",
            "a scale in e4m3 for each 16 elements, rounded before elements are divided by it",
            vllm("LBNHC", small),
            quantized.nvfp4("LB", small, is_swizzled=True),
            "lossy",
            **ZEROS,
        ),
        one(
            "bf16-to-nvfp4-of-a-scale",
            "under a scale of the layer; some of the scales in the page are the least there is",
            vllm("LBNHC", small),
            quantized.nvfp4("BL", small, is_swizzled=False, **_params(0.0123, 3000.0)),
            "lossy",
            **ZEROS,
        ),
        one(
            "bf16-to-mxfp4",
            "a power of two for each 32 elements",
            formats.vllm_cpu(small),
            _mx("LBNHC", "ue8m0"),
            "lossy",
            **ZEROS,
        ),
        one(
            "f32-to-e5m2-under-f32",
            "a scale in f32 for each 16 elements and one of the layer",
            vllm("LBNHC", small._replace(dtype="f32")),
            _mx("LBNHC", "f32", "e5m2", 16, **_params(0.3, 7.0)),
            "lossy",
            **ZEROS,
        ),
        one(
            "bf16-to-int4",
            "the least and the largest value under a scale become 0 and 15",
            vllm("LBHNC", small),
            _int4("LBNHC", small),
            "lossy",
            **ZEROS,
        ),
    ]


def _between() -> list[ConvertCase]:
    return [
        one(
            "nvfp4-to-int4",
            "scales of 16 elements to one of each head and token",
            quantized.nvfp4("LB", SMALL, is_swizzled=True),
            _int4("LBNHC", SMALL),
            "lossy",
            change=KV,
        ),
        one(
            "mxfp4-of-32-to-16",
            "the same elements under scales of fewer",
            _mx("LBNHC", "ue8m0"),
            _mx("LBNHC", "ue8m0", run=16),
            "lossy",
            change=KV,
        ),
        one(
            "nvfp4-to-other-scales-of-the-layer",
            "K under another scale of the layer, and V under the same: it moves as bits",
            quantized.nvfp4("LB", SMALL, is_swizzled=True, **_params(0.5, 0.3)),
            quantized.nvfp4("LB", SMALL, is_swizzled=False, **_params(0.75, 0.3)),
            "lossy",
            change=("k",),
        ),
    ]
