"""Descriptors of one small attention cache in many placements, written out by hand.

They are what builders are compared with, and what planners and oracles are tried on: nothing here
uses a builder. All hold layers 0..L-1, heads 0..H-1 of H, bf16 unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from transload_abi.dtypes import DTYPES
from transload_abi.types import (
    VERSION,
    Descriptor,
    Group,
    Model,
    Owner,
    Place,
    Pool,
    Role,
    Rope,
)

MODEL = Model(name="tiny", num_layers=64, rope=Rope(state="applied"), weights="sha256:" + "0" * 64)


class Shape(NamedTuple):
    """Layers, blocks, heads, tokens in a block, elements in a head."""

    layers: int = 2
    blocks: int = 5
    heads: int = 4
    tokens: int = 8
    size: int = 16
    dtype: str = "bf16"

    @property
    def bits(self) -> int:
        return DTYPES[self.dtype].bits


SHAPE = Shape()


def vllm(layout: str, shape: Shape = SHAPE) -> Descriptor:
    """One of vLLM's six layouts, `[K V]` packed in each cell; `layout` as `LBHNC`."""
    num_layers, num_blocks, heads, tokens, size, _ = shape
    cell = 2 * size * shape.bits // 8
    extent = {"L": num_layers, "B": num_blocks, "H": heads, "N": tokens, "C": cell}
    stride, step = {}, 1
    for axis in reversed(layout):
        stride[axis] = step
        step *= extent[axis]
    terms = (
        ("H", 1, heads, 8 * stride["H"]),
        ("N", 1, tokens, 8 * stride["N"]),
        ("D", 1, size, shape.bits),
    )
    is_page_whole = set(layout[:2]) == {"L", "B"}
    place = Place(
        pools=("kv",),
        block_stride=stride["B"],
        layer_stride=stride["L"] if num_layers > 1 else 0,
        page_bytes=heads * tokens * cell if is_page_whole else 0,
    )
    pool = Pool(
        id="kv",
        memory="device",
        num_bytes=step,
        num_blocks=num_blocks,
        align=256,
        block_bytes=stride["B"] if layout[0] == "B" else 0,
    )
    return _one_group(shape, (pool,), (place,), [("k", terms, 0, 0), ("v", terms, cell * 4, 0)])


def vllm_cpu(shape: Shape = SHAPE) -> Descriptor:
    """CPU attention of vLLM: for each head K transposed `[D, N]`, then V `[N, D]`."""
    _, _, heads, tokens, size, _ = shape
    half = tokens * size * shape.bits
    k = (
        ("H", 1, heads, 2 * half),
        ("N", 1, tokens, shape.bits),
        ("D", 1, size, tokens * shape.bits),
    )
    v = (("H", 1, heads, 2 * half), ("N", 1, tokens, size * shape.bits), ("D", 1, size, shape.bits))
    return _layer_compact(shape, [("k", k, 0, 0), ("v", v, half, 0)])


def rocm(shape: Shape = SHAPE) -> Descriptor:
    """ROCm paged attention: a K plane `[H, D/x, N, x]` with x = 16 bytes, a V plane `[H, D, N]`."""
    _, _, heads, tokens, size, _ = shape
    bits, x = shape.bits, min(128 // shape.bits, shape.size)
    plane = heads * tokens * size * bits
    k = (
        ("H", 1, heads, tokens * size * bits),
        ("N", 1, tokens, x * bits),
        ("D", 1, x, bits),
        ("D", x, size // x, tokens * x * bits),
    )
    v = (
        ("H", 1, heads, tokens * size * bits),
        ("N", 1, tokens, bits),
        ("D", 1, size, tokens * bits),
    )
    return _layer_compact(shape, [("k", k, 0, 0), ("v", v, plane, 0)])


def sglang(shape: Shape = SHAPE) -> Descriptor:
    """SGLang: for each layer a K buffer and a V buffer `[slots, H, D]`, each its own memory."""
    num_layers, num_blocks, heads, tokens, size, _ = shape
    bits = shape.bits
    page = tokens * heads * size * bits // 8
    terms = (
        ("H", 1, heads, size * bits),
        ("N", 1, tokens, heads * size * bits),
        ("D", 1, size, bits),
    )
    pools = tuple(
        Pool(
            id=f"{side}{layer}",
            memory="device",
            num_bytes=page * num_blocks,
            num_blocks=num_blocks,
            align=256,
            block_bytes=page,
        )
        for side in "kv"
        for layer in range(num_layers)
    )
    places = tuple(
        Place(
            pools=tuple(f"{side}{layer}" for layer in range(num_layers)),
            block_stride=page,
            page_bytes=page,
        )
        for side in "kv"
    )
    return _one_group(shape, pools, places, [("k", terms, 0, 0), ("v", terms, 0, 1)])


def odd(shape: Shape = SHAPE) -> Descriptor:
    """Nobody's: V before K, tokens split into pairs, elements interleaved, pads at all ends."""
    num_layers, num_blocks, heads, tokens, size, _ = shape
    bits = shape.bits
    row = 2 * size * bits + 64
    pair = 2 if tokens % 2 == 0 else 1
    n = (("N", 1, pair, heads * row), ("N", pair, tokens // pair, pair * heads * row + 128))
    page_bits = tokens // pair * (pair * heads * row + 128)
    k = (("H", 1, heads, row), *n, ("D", 1, size, 2 * bits))
    page = page_bits // 8 + 24
    block = num_layers * page + 40
    pool = Pool(
        id="odd",
        memory="host",
        num_bytes=16 + block * num_blocks,
        num_blocks=num_blocks,
        align=8,
    )
    place = Place(pools=("odd",), offset=16, block_stride=block, layer_stride=page, page_bytes=page)
    return _one_group(shape, (pool,), (place,), [("k", k, bits, 0), ("v", k, 0, 0)])


def trtllm(shape: Shape = SHAPE) -> Descriptor:
    """TensorRT-LLM: one pool `[blocks, layers, 2, H, N, D]`."""
    num_layers, num_blocks, heads, tokens, size, _ = shape
    bits = shape.bits
    half = heads * tokens * size * bits
    terms = (
        ("H", 1, heads, tokens * size * bits),
        ("N", 1, tokens, size * bits),
        ("D", 1, size, bits),
    )
    page = half // 4
    pool = Pool(
        id="kv",
        memory="device",
        num_bytes=page * num_layers * num_blocks,
        num_blocks=num_blocks,
        align=256,
        block_bytes=page * num_layers,
    )
    place = Place(pools=("kv",), block_stride=page * num_layers, layer_stride=page, page_bytes=page)
    return _one_group(shape, (pool,), (place,), [("k", terms, 0, 0), ("v", terms, half, 0)])


LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


def _vllm(layout: str) -> Callable[[Shape], Descriptor]:
    return lambda shape: vllm(layout, shape)


PLACEMENTS: dict[str, Callable[[Shape], Descriptor]] = {
    **{layout: _vllm(layout) for layout in LAYOUTS},
    "vllm_cpu": vllm_cpu,
    "rocm": rocm,
    "sglang": sglang,
    "trtllm": trtllm,
    "odd": odd,
}
"""By name: a function from a shape to a descriptor; each with K and V of all heads."""


def _layer_compact(shape: Shape, roles: list[_RoleText]) -> Descriptor:
    page = 2 * shape.heads * shape.tokens * shape.size * shape.bits // 8
    pool = Pool(
        id="kv",
        memory="host",
        num_bytes=page * shape.blocks * shape.layers,
        num_blocks=shape.blocks,
        align=64,
        block_bytes=page if shape.layers == 1 else 0,
    )
    place = Place(
        pools=("kv",),
        block_stride=page,
        layer_stride=page * shape.blocks if shape.layers > 1 else 0,
        page_bytes=page,
    )
    return _one_group(shape, (pool,), (place,), roles)


_RoleText = tuple[str, tuple[tuple[str, int, int, int], ...], int, int]
"""Role, terms, base bits, place."""


def _one_group(
    shape: Shape, pools: tuple[Pool, ...], places: tuple[Place, ...], roles: list[_RoleText]
) -> Descriptor:
    group = Group(
        id="attention",
        kind="full",
        layers=tuple(range(shape.layers)),
        tokens_per_block=shape.tokens,
        places=places,
        roles=tuple(
            Role(
                role=role,
                dtype=shape.dtype,
                bits=shape.bits,
                shape={"H": shape.heads, "N": shape.tokens, "D": shape.size},
                terms=tuple(term for term in terms if term[2] > 1),
                base_bits=base,
                place=place,
            )
            for role, terms, base, place in roles
        ),
        null_block=0,
        owner=Owner(heads=(0, shape.heads, shape.heads)),
    )
    return Descriptor(abi=VERSION, model=MODEL, pools=pools, groups=(group,))
