"""Caches of TensorRT-LLM, LMCache and Dynamo, against numpy's strides and against the vectors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from transload_abi import fingerprints, oracle
from transload_abi.builders import Blocks, Heads, dynamo, lmcache, trtllm
from transload_abi.errors import Contradiction, DescriptorError, MalformedDescriptor, UnknownPart
from transload_abi.types import Descriptor, Model, Rope

VECTORS = Path(__file__).parents[2] / "vectors/abi/decode"
MODEL = Model(name="tiny", num_layers=64, rope=Rope(state="applied"))
BLOCKS = Blocks((4, 9, 5), 5, 8)
HEADS = Heads((2, 4, 8), 16)
L, B, N, H, D = 3, 5, 8, 2, 16

Found = NDArray[np.uint16]


def numbered(*shape: int) -> Found:
    return np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)


def read(d: Descriptor, role: str, **pools: Found) -> NDArray[Any]:
    """`[layer, block, head, token, element]`, or without heads."""
    memory = {name: array.reshape(-1).view(np.uint8) for name, array in pools.items()}
    assert {pool.id: pool.num_bytes for pool in d.pools} == {
        name: array.nbytes for name, array in pools.items()
    }
    return oracle.read_elements(d, memory, "attention", role, range(B))


def assert_holds(d: Descriptor, k: NDArray[Any], v: NDArray[Any], **pools: Found) -> None:
    np.testing.assert_array_equal(read(d, "k", **pools), k)
    np.testing.assert_array_equal(read(d, "v", **pools), v)


@pytest.mark.parametrize("order", ["HND", "NHD"])
def test_a_trtllm_pool_is_blocks_of_layers_of_two_sides(order: Any) -> None:
    d = trtllm.attention(MODEL, BLOCKS, HEADS, order=order)
    shape, axes = ((H, N, D), "blhnd") if order == "HND" else ((N, H, D), "blnhd")
    pool = numbered(B, L, 2, *shape)
    k, v = (np.einsum(f"{axes}->lbhnd", pool[:, :, side]) for side in range(2))
    assert_holds(d, k, v, kv=pool)
    assert d.producer.layout == order


def test_a_trtllm_pool_of_floats_in_eight_bits_has_its_layers_scales() -> None:
    scales = [(0.5, 2.0), (1.0, 1.0), (0.25, 4.0)]
    d = trtllm.attention(MODEL, BLOCKS, HEADS._replace(dtype="e4m3"), scales=scales)
    assert d.groups[0].codec.id == "fp8_per_tensor"
    assert d.groups[0].codec.params["scales.v"] == [
        "f32:40000000",
        "f32:3f800000",
        "f32:40800000",
    ]
    with pytest.raises(DescriptorError, match=r"codec 'none' has .* got 'e4m3'"):
        trtllm.attention(MODEL, BLOCKS, HEADS._replace(dtype="e4m3"))
    with pytest.raises(MalformedDescriptor, match="scales"):
        trtllm.attention(MODEL, BLOCKS, HEADS._replace(dtype="e4m3"), scales=[(0.1, 1.0)] * 3)


@pytest.mark.parametrize("order", ["HND", "NHD"])
def test_trtllms_scales_are_in_a_pool_of_their_own(order: Any) -> None:
    size = 64
    d = trtllm.nvfp4(MODEL, BLOCKS, Heads((0, H, H), size, "e2m1"), order=order)
    shape, axes = ((H, N), "blhnd") if order == "HND" else ((N, H), "blnhd")
    numbers = np.random.default_rng(1).integers(0, 256, (B, L, 2, *shape, size // 2 + 4), np.uint8)
    data = np.ascontiguousarray(numbers[..., : size // 2])
    scales = np.ascontiguousarray(numbers[..., size // 2 :])
    memory = {"data": data.reshape(-1), "scales": scales.reshape(-1)}
    halves = np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], size)
    for side, name in enumerate("kv"):
        for role, array in ((name, halves), (f"{name}_group_scale", scales)):
            due = np.einsum(f"{axes}->lbhnd", array[:, :, side])
            found = oracle.read_elements(d, memory, "attention", role, range(B))
            np.testing.assert_array_equal(found, due)


@pytest.mark.parametrize(("size", "dtype"), [(24, "e2m1"), (32, "bf16")])
def test_trtllms_nvfp4_is_groups_of_sixteen(size: int, dtype: str) -> None:
    with pytest.raises(Contradiction, match="are no groups of 16 e2m1"):
        trtllm.nvfp4(MODEL, BLOCKS, Heads((0, 2, 2), size, dtype))


def test_a_chunk_of_lmcache_has_all_of_k_before_all_of_v() -> None:
    d = lmcache.attention(MODEL, BLOCKS, HEADS)
    pool = numbered(B, 2, L, N, H, D)
    k, v = (np.einsum("blnhd->lbhnd", pool[:, side]) for side in range(2))
    assert_holds(d, k, v, kv=pool)


def test_a_chunks_layer_of_lmcache_has_both_of_a_token_together() -> None:
    d = lmcache.attention(MODEL, BLOCKS, HEADS, format="KV_T2D")
    pool = numbered(L, B, N, 2, H, D)
    k, v = (np.einsum("lbnhd->lbhnd", pool[:, :, :, side]) for side in range(2))
    assert_holds(d, k, v, kv=pool)


def test_a_chunks_layer_of_lmcache_has_one_side_after_the_other() -> None:
    d = lmcache.attention(MODEL, BLOCKS, HEADS, format="KV_2TD")
    pool = numbered(L, B, 2, N, H, D)
    k, v = (np.einsum("lbnhd->lbhnd", pool[:, :, side]) for side in range(2))
    assert_holds(d, k, v, kv=pool)


@pytest.mark.parametrize("row", [0, 48])
def test_a_chunk_of_latents_has_rows_that_may_be_longer(row: int) -> None:
    d = lmcache.latent(MODEL, BLOCKS, kv_lora_rank=32, rope_size=8, row_size=row, replica=(1, 2))
    pool = numbered(B, L, N, row or 40)
    np.testing.assert_array_equal(
        read(d, "latent", kv=pool), np.einsum("blnd->lbnd", pool[..., :32])
    )
    np.testing.assert_array_equal(
        read(d, "rope", kv=pool), np.einsum("blnd->lbnd", pool[..., 32:40])
    )
    assert (d.groups[0].kind, d.groups[0].owner.replica) == ("mla", (1, 2))
    with pytest.raises(Contradiction, match="row_size: 39 elements are no row"):
        lmcache.latent(MODEL, BLOCKS, kv_lora_rank=32, rope_size=8, row_size=39)


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_a_stack_of_dynamo_has_memory_for_each_layer_and_side(order: Any) -> None:
    d = dynamo.stack(MODEL, BLOCKS, HEADS, order=order)
    shape, axes = ((H, N, D), "bhnd") if order == "HND" else ((N, H, D), "bnhd")
    pools = {
        f"{name}{layer}": numbered(B, *shape) + np.uint16(100 * layer + side)
        for side, name in enumerate("kv")
        for layer in BLOCKS.layers
    }
    k, v = (
        np.stack([np.einsum(f"{axes}->bhnd", pools[f"{side}{i}"]) for i in BLOCKS.layers])
        for side in "kv"
    )
    assert_holds(d, k, v, **pools)


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_an_operational_block_of_dynamo_is_layers_of_two_sides(order: Any) -> None:
    d = dynamo.operational(MODEL, BLOCKS, HEADS, order=order)
    shape, axes = ((H, N, D), "blhnd") if order == "HND" else ((N, H, D), "blnhd")
    pool = numbered(B, L, 2, *shape)
    k, v = (np.einsum(f"{axes}->lbhnd", pool[:, :, side]) for side in range(2))
    assert_holds(d, k, v, kv=pool)


@pytest.mark.parametrize("layers", [(4, 9, 5), (7,)])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_universal_block_of_dynamo_has_heads_outermost(
    layers: tuple[int, ...], heads: int
) -> None:
    d = dynamo.universal(MODEL, BLOCKS._replace(layers=layers), Heads((0, heads, 4), D))
    pool = numbered(B, heads, len(layers), 2, N, D)
    k, v = (np.einsum("bhlnd->lbhnd", pool[:, :, :, side]) for side in range(2))
    assert_holds(d, k, v, kv=pool)
    is_whole = 1 in (heads, len(layers))
    assert d.groups[0].places[0].page_bytes == (2 * heads * N * D * 2 if is_whole else 0)


BUILT: dict[str, Callable[[], Descriptor]] = {
    "trtllm-hnd": lambda: trtllm.attention(MODEL, Blocks((0, 1), 3, 32), Heads((0, 2, 2), 16)),
    "trtllm-bf16": lambda: trtllm.attention(MODEL, Blocks((0, 1), 4, 8), Heads((0, 2, 2), 8)),
    "trtllm-nhd": lambda: trtllm.attention(
        MODEL, Blocks((0, 1), 4, 8), Heads((0, 2, 2), 16), order="NHD"
    ),
    "trtllm-nvfp4-separate-scales": lambda: trtllm.nvfp4(
        MODEL, Blocks((0, 1), 3, 8), Heads((0, 2, 2), 32, "e2m1")
    ),
    "lmcache-2ltd": lambda: lmcache.attention(
        MODEL, Blocks((0, 1), 2, 16, "host"), Heads((0, 2, 2), 16)
    ),
    "lmcache-t2d": lambda: lmcache.attention(
        MODEL, Blocks((0, 1), 2, 16, "host"), Heads((0, 2, 2), 16), format="KV_T2D"
    ),
    "lmcache-mla": lambda: lmcache.latent(
        MODEL, Blocks((0, 1), 2, 16), kv_lora_rank=32, rope_size=8
    ),
    "dynamo-hnd": lambda: dynamo.operational(
        MODEL, Blocks((0, 1, 2), 4, 8), Heads((0, 2, 2), 8), order="HND"
    ),
    "dynamo-nhd": lambda: dynamo.operational(MODEL, Blocks((0, 1, 2), 4, 8), Heads((0, 2, 2), 8)),
    "dynamo-universal": lambda: dynamo.universal(
        MODEL, Blocks((0, 1, 2), 4, 8), Heads((0, 2, 2), 8)
    ),
}


def test_every_vector_of_these_engines_is_built() -> None:
    engines = ("trtllm", "lmcache", "dynamo")
    assert {p.name for p in VECTORS.iterdir() if p.name.startswith(engines)} == set(BUILT)


@pytest.mark.parametrize("name", BUILT)
def test_a_page_is_the_vectors(name: str) -> None:
    found = fingerprints.of_descriptor(BUILT[name]())
    due = json.loads((VECTORS / name / "case.json").read_text())
    assert found.page == due["fingerprints"]["page"]


@pytest.mark.parametrize("name", BUILT)
def test_pages_are_where_the_vectors_are(name: str) -> None:
    found = BUILT[name]()
    due = json.loads((VECTORS / name / "descriptor.json").read_text())
    places = due["groups"][0]["places"]
    for place, other in zip(found.groups[0].places, places, strict=True):
        assert place.block_stride == other["block_stride"]
        assert place.layer_stride == other.get("layer_stride", 0)
        assert place.offset == other.get("offset", 0)
    assert [(p.num_bytes, p.num_blocks, p.memory) for p in found.pools] == [
        (p["num_bytes"], p["num_blocks"], p["memory"]) for p in due["pools"]
    ]


@pytest.mark.parametrize("build", [trtllm.attention, lmcache.attention, dynamo.universal])
def test_what_cannot_be_is_refused(build: Callable[..., Descriptor]) -> None:
    with pytest.raises(UnknownPart, match="no dtype 'e3m4'"):
        build(MODEL, BLOCKS, HEADS._replace(dtype="e3m4"))
    for held in ((4, 6, 5), (4, 4, 8), (4, 2, 8)):
        with pytest.raises(DescriptorError):
            build(MODEL, BLOCKS, HEADS._replace(held=held))
    with pytest.raises(DescriptorError):
        build(MODEL, BLOCKS._replace(null_block=5), HEADS)
    with pytest.raises(Contradiction, match="no layers"):
        build(MODEL, BLOCKS._replace(layers=()), HEADS)


def test_latents_of_no_dtype_are_refused() -> None:
    with pytest.raises(UnknownPart, match="no dtype 'e3m4'"):
        lmcache.latent(MODEL, BLOCKS, dtype="e3m4")


def test_a_null_block_is_the_callers() -> None:
    d = trtllm.attention(MODEL, BLOCKS._replace(null_block=4), HEADS)
    assert d.groups[0].null_block == 4
    assert trtllm.attention(MODEL, BLOCKS, HEADS).groups[0].null_block is None
