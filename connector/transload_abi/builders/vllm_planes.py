"""Formats of vLLM in which K and V of a page are apart: transposed, in planes, in regions.

Sources, of vLLM 0.32.0: `cpu_attn.py`, `rocm_attn.py`, `paged_attn.py`,
`rocm_aiter_fa.py:reshape_and_cache_shuffle_kernel`, `b12x.py:_kv_cache_views`,
`torch_utils.py:nvfp4_split_data_scale`, `minimax_m3/nvidia/msa_cutlass_sparse_decode.py`,
`turboquant_soa/triton_turboquant_store.py`.
"""

from typing import Final

from transload_abi.builders.vllm_cells import turboquant_fields
from transload_abi.builders.vllm_interior import Interior
from transload_abi.builders.vllm_layout import Strides, Term
from transload_abi.builders.vllm_roles import (
    Page,
    element,
    must_be_bytes,
    must_be_in_one_piece,
    must_divide,
    must_fill,
    must_have_own_slots,
    role,
)
from transload_abi.builders.vllm_spec import Attention
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction
from transload_abi.types import Role

NVFP4_GROUP: Final = 16
"""Elements that share a scale (`torch_utils.py:nvfp4_kv_cache_full_dim` @ 0.32.0)."""

SWIZZLED_TOKENS: Final = 4
"""Tokens of a tile of V's scales: scale `s` of token `t`, of `S` for each token, is at byte
`t // 4 * 4 * S + 4 * s + t % 4` of a head (FlashInfer's `trtllm-gen` kernels)."""


def transposed(spec: Attention, where: Strides, interior: Interior) -> Page:
    """For each kernel block and head, K as `[D, N]` and then V as `[N, D]`."""
    dtype, bits = _element(spec, interior)
    size, states = spec.head_size, where.kernel_states
    must_have_own_slots(spec)
    if spec.value_size != size or (states > 1 and where.state != spec.cell_bytes):
        raise Contradiction("cpu pages need equal K and V, and a head in one piece", "interior")
    must_fill(spec, 2 * size * bits // 8)
    head = ("H", 1, spec.num_kv_heads, 8 * where.slot)
    k = role("k", dtype, (head, *where.states(bits), ("D", 1, size, states * bits)))
    v_terms = (head, *where.states(size * bits), ("D", 1, size, bits))
    return _unscaled(spec, k, role("v", dtype, v_terms, states * size * bits))


def rocm_planes(spec: Attention, where: Strides, interior: Interior) -> Page:
    """K `[H, D/x, N, x]` in the first slot, V `[H, D, N]` in the second."""
    dtype, bits = _element(spec, interior)
    place, base = _second_slot(spec, where, bits, 128 // bits)
    head = ("H", 1, spec.num_kv_heads, spec.head_size * where.kernel_states * bits)
    v = (head, *where.states(bits), ("D", 1, spec.head_size, where.kernel_states * bits))
    k = role("k", dtype, _rows_of_x(spec, where, head, bits))
    return _unscaled(spec, k, role("v", dtype, v, base, place))


def aiter_tiles(spec: Attention, where: Strides, interior: Interior) -> Page:
    """K as ROCm's, V `[H, N/x, D, x]`."""
    dtype, bits = _element(spec, interior)
    x, states = 128 // bits, where.kernel_states
    place, base = _second_slot(spec, where, bits, x)
    if states % x:
        raise Contradiction(f"{states} states are no rows of {x}", "block_size")
    head = ("H", 1, spec.num_kv_heads, spec.head_size * states * bits)
    tile = (("N", 1, x, bits), ("N", x, states // x, spec.head_size * x * bits))
    *_, blocks = where.states(bits)
    v = (head, *tile, blocks, ("D", 1, spec.head_size, x * bits))
    k = role("k", dtype, _rows_of_x(spec, where, head, bits))
    return _unscaled(spec, k, role("v", dtype, v, base, place))


def planes(spec: Attention, where: Strides, interior: Interior) -> Page:
    """K `[N, H, D]` in the first slot, V in the second."""
    dtype, bits = _element(spec, interior)
    place, base = _second_slot(spec, where, bits, 1)
    head = ("H", 1, spec.num_kv_heads, spec.head_size * bits)
    terms = (head, *where.states(8 * where.state), ("D", 1, spec.head_size, bits))
    return _unscaled(spec, role("k", dtype, terms), role("v", dtype, terms, base, place))


def nvfp4_regions(spec: Attention, where: Strides, interior: Interior) -> Page:
    """All of K, its scales, all of V, its scales, each `[H, N, ...]`."""
    num_groups = _nvfp4_groups(spec, where)
    heads, states = spec.num_kv_heads, where.kernel_states
    row, scale_row = 4 * spec.head_size, 8 * num_groups
    roles: list[Role] = []
    for number, side in enumerate("kv"):
        base = number * heads * states * (row + scale_row)
        head = ("H", 1, heads, states * row)
        terms = (head, *where.states(row), ("D", 1, spec.head_size, 4))
        roles.append(role(side, "e2m1", terms, base))
        group = (*where.states(scale_row), ("G", 1, num_groups, 8))
        if side == "v" and interior.name == "nvfp4_trtllm_gen":
            group = _swizzled(where, num_groups)
        terms = (("H", 1, heads, states * scale_row), *group)
        roles.append(role(f"{side}_group_scale", "e4m3", terms, base + heads * states * row))
    return Page("block_scaled", tuple(roles), scaled=("k", "v"))


def nvfp4_slots(spec: Attention, where: Strides, _: Interior) -> Page:
    """For each head a slot of K and one of V, each elements and then scales."""
    num_groups = _nvfp4_groups(spec, where)
    slot, row, scale_row = 8 * where.slot, 4 * spec.head_size, 8 * num_groups
    head = ("H", 1, spec.num_kv_heads, 2 * slot)
    roles = []
    for number, side in enumerate("kv"):
        terms = (head, *where.states(row), ("D", 1, spec.head_size, 4))
        roles.append(role(side, "e2m1", terms, number * slot))
        terms = (head, *where.states(scale_row), ("G", 1, num_groups, 8))
        base = number * slot + where.kernel_states * row
        roles.append(role(f"{side}_group_scale", "e4m3", terms, base))
    return Page("block_scaled", tuple(roles), scaled=("k", "v"))


def turboquant_regions(spec: Attention, where: Strides, interior: Interior) -> Page:
    """Codes `[N, H, (K V)]`, then for each head the norms, scales and zeros of all tokens."""
    codes, params = turboquant_fields(spec, interior)
    must_have_own_slots(spec)
    heads, states = spec.num_kv_heads, where.kernel_states
    fields = ("v_scale", "v_zero") if not codes.norm else ("k_norm", "v_scale", "v_zero")
    row = codes.key.bits + codes.value.bits
    must_fill(spec, row // 8 + 2 * len(fields))
    if not where.is_whole or (heads > 1 and where.slot != spec.cell_bytes):
        raise Contradiction("turboquant_regions need heads inside of tokens", "layout")
    outer = (("H", 1, heads, row), *where.states(heads * row))
    roles = []
    for field, base in ((codes.key, 0), (codes.value, codes.key.bits)):
        roles.append(role(field.role, "u8", (*outer, ("D", 1, field.extent, 8)), base))
    strip = (("H", 1, heads, len(fields) * states * 16), *where.states(16))
    start = states * heads * row
    roles += [role(name, "f16", strip, start + i * states * 16) for i, name in enumerate(fields)]
    return Page("turboquant", tuple(roles), params)


def _element(spec: Attention, interior: Interior) -> tuple[str, int]:
    dtype = element(spec, interior)
    return dtype, DTYPES[dtype].bits


def _unscaled(spec: Attention, k: Role, v: Role) -> Page:
    if spec.kv_quant_mode == "FP8_PER_TENSOR":
        return Page("fp8_per_tensor", (k, v), scaled=("k", "v"))
    return Page("none", (k, v))


def _rows_of_x(spec: Attention, where: Strides, head: Term, bits: int) -> tuple[Term, ...]:
    x = 128 // bits
    outer = ("D", x, spec.head_size // x, x * where.kernel_states * bits)
    return head, *where.states(x * bits), ("D", 1, x, bits), outer


def _second_slot(spec: Attention, where: Strides, bits: int, x: int) -> tuple[int, int]:
    """Where V's slot starts: its place, and its base in bits.

    Args:
        spec: A page of two slots.
        where: Of its cells.
        bits: Of an element.
        x: Elements that lie together; above 1, a slot has to be in one piece.
    """
    must_fill(spec, spec.num_kv_heads * spec.head_size * bits // 8)
    is_torn = x > 1 and where.state != spec.cell_bytes
    if (
        is_torn
        or spec.num_head_slots != 2
        or spec.value_size != spec.head_size
        or spec.head_size % x
    ):
        raise Contradiction(
            f"planes need two slots, each in one piece, and K and V of a multiple of {x} elements",
            "interior",
        )
    return (0, 8 * where.slot) if where.is_whole else (1, 0)


def _swizzled(where: Strides, num_groups: int) -> tuple[Term, ...]:
    """V's scales in tiles of four tokens."""
    states = where.kernel_states
    if states % SWIZZLED_TOKENS:
        raise Contradiction(f"{states} states are no tiles of {SWIZZLED_TOKENS}", "block_size")
    *_, blocks = where.states(8)
    return (
        ("N", 1, SWIZZLED_TOKENS, 8),
        ("N", SWIZZLED_TOKENS, states // SWIZZLED_TOKENS, 8 * SWIZZLED_TOKENS * num_groups),
        blocks,
        ("G", 1, num_groups, 8 * SWIZZLED_TOKENS),
    )


def _nvfp4_groups(spec: Attention, where: Strides) -> int:
    """Scales of a head and token."""
    must_be_bytes(spec)
    must_divide(spec, NVFP4_GROUP)
    if spec.value_size != spec.head_size or spec.num_slots != 2 * spec.num_kv_heads:
        raise Contradiction("NVFP4 needs two slots for each head, and equal K and V", "interior")
    num_groups = spec.head_size // NVFP4_GROUP
    must_fill(spec, spec.head_size // 2 + num_groups)
    must_be_in_one_piece(spec, where, "NVFP4")
    return num_groups
