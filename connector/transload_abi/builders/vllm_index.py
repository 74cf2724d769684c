"""vLLM's caches beside keys and values: keys that choose tokens, and rows yet to be compressed.

Sources, of vLLM 0.32.0: `deepseek_v2.py:DeepseekV32IndexerCache`, `deepseek_v4/attention.py`,
`deepseek_v4/common/ops/save_partial_states.py`, `deepseek_v41/compressor.py`,
`minimax_m3/common/indexer.py`, `qwen4_exp/common/qsa_cache.py`, `glm5next/common/attention.py`.
"""

from typing import Final

from transload_abi.builders.vllm_interior import Interior
from transload_abi.builders.vllm_layout import Strides
from transload_abi.builders.vllm_roles import FLOATS, Page, must_fill, role
from transload_abi.builders.vllm_spec import Attention, dtype_of
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.types import Role

INDEX_ELEMENTS: Final = 128
"""Of a quantised key: `quant_block_size` of fp8, four times `MXFP4_BLOCK_SIZE` (32) of mxfp4."""

INDEX_ROWS: Final = {132: ("", "f32", 1), 68: ("e2m1", "ue8m0", 4)}
"""By the bytes of a key and its scales: dtype of an element (empty: the cache's 8-bit float), dtype
of a scale, and how many scales."""

NUM_POSITIONS: Final = 3
POSITION_ALIGN: Final = 4
"""Elements of 16 bits in an i64 (`QSAKeyStateCache` @ 0.32.0)."""


def indexer(spec: Attention, where: Strides, interior: Interior) -> Page:
    """Keys `[N, D]`; quantised ones, and then all their scales."""
    _one_slot(spec)
    dtype = dtype_of(spec.dtype)
    if dtype in FLOATS:
        bits = DTYPES[dtype].bits
        must_fill(spec, spec.head_size * bits // 8)
        terms = (*where.states(8 * where.state), ("D", 1, spec.head_size, bits))
        return Page("none", (role("index_k", dtype, terms),))
    if dtype != "u8" or spec.cell_bytes not in INDEX_ROWS:
        raise UnknownPart(f"index keys of {spec.cell_bytes} bytes in {dtype}", "head_size")
    name, scale, num_scales = INDEX_ROWS[spec.cell_bytes]
    name = name or interior.float8
    row, scale_row = INDEX_ELEMENTS * DTYPES[name].bits, num_scales * DTYPES[scale].bits
    keys = (*where.states(row), ("D", 1, INDEX_ELEMENTS, DTYPES[name].bits))
    scales = (*where.states(scale_row), ("G", 1, num_scales, DTYPES[scale].bits))
    return Page(
        "block_scaled",
        (
            role("index_k", name, keys),
            role("index_k_scale", scale, scales, where.kernel_states * row),
        ),
    )


def compressor(spec: Attention, where: Strides, interior: Interior) -> Page:
    """`[row][scores]` in each cell, or in two slots."""
    dtype, bits = _float(spec)
    prefix = "index_" if interior.name == "index_compressor" else ""
    states = where.states(8 * where.state)
    if spec.num_slots == 2:
        size, base, place = spec.head_size, 8 * where.slot, 0
        if not where.is_whole:
            base, place = 0, 1
    else:
        _one_slot(spec)
        size, rest = divmod(spec.head_size, 2)
        if rest:
            raise Contradiction(f"{spec.head_size} elements are no two halves", "head_size")
        base, place = size * bits, 0
    must_fill(spec, (spec.head_size + spec.value_size) * bits // 8)
    if spec.value_size:
        raise Contradiction("rows that are yet to be compressed have no values", "head_size_v")
    terms = (*states, ("D", 1, size, bits))
    return Page(
        "none",
        (
            role(f"{prefix}state_kv", dtype, terms),
            role(f"{prefix}state_score", dtype, terms, base, place),
        ),
    )


def key_ring(spec: Attention, where: Strides, interior: Interior) -> Page:
    """`[key][pad][three positions]` in each cell; positions where told."""
    _one_slot(spec)
    dtype, bits = _float(spec)
    must_fill(spec, spec.head_size * bits // 8)
    states = where.states(8 * where.state)
    size = interior.position_elements or spec.head_size
    roles: list[Role] = [role("index_k", dtype, (*states, ("D", 1, size, bits)))]
    if interior.position_elements:
        start = -(-size // POSITION_ALIGN) * POSITION_ALIGN
        if bits != 16 or spec.head_size != start + NUM_POSITIONS * POSITION_ALIGN:
            raise Contradiction(
                f"{size} elements and three positions are not {spec.head_size} of {bits} bits",
                "position_elements",
            )
        terms = (*states, ("D", 1, NUM_POSITIONS, 64))
        roles.append(role("position", "i64", terms, start * bits))
    return Page("none", tuple(roles))


def _float(spec: Attention) -> tuple[str, int]:
    dtype = dtype_of(spec.dtype)
    if dtype not in FLOATS:
        raise UnknownPart(f"{dtype} rows", "dtype")
    return dtype, DTYPES[dtype].bits


def _one_slot(spec: Attention) -> None:
    if spec.num_slots != 1:
        raise UnknownPart(f"keys or rows in {spec.num_slots} slots", "num_head_slots")
