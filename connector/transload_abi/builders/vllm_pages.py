"""What is inside of vLLM's pages: the roles of their cells, by the backend that wrote them.

**Theory.** vLLM's specification ends at the cell (`vllm_layout`): what its bytes are is the
attention backend's own affair, and even that a cell is one piece is not certain. So whoever builds
a descriptor names the *interior*:

================  ==================================================================================
`packed`          `[K V]` in each cell: FlashAttention, Triton, FlashInfer, and all MLA backends
`cpu`             for each head K transposed `[D, N]`, then V `[N, D]` (`cpu_attn.py`, isa `vec` and
                  `vec16`), in kernel blocks
`rocm_planes`     two slots: a K plane `[H, D/x, N, x]` with x = 16 bytes, a V plane `[H, D, N]`
                  (`rocm_attn.py`, `paged_attn.py:split_kv_cache`)
================  ==================================================================================

Nothing tells a wrong interior from a right one but the bytes: compare a page that the engine wrote.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from transload_abi.builders.vllm_layout import Strides, Term
from transload_abi.builders.vllm_spec import (
    QUANT_MODES,
    Attention,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    Spec,
    dtype_of,
)
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import Role

_BITS: Final = {"f32": 32, "f16": 16, "bf16": 16}
_DS_MLA_CELL_BYTES: Final = 656
_DS_MLA_LATENT: Final = 512
"""`fp8_ds_mla` (`mla/flashmla_sparse.py` @ 0.32.0): 512 e4m3, four f32 scales, 64 bf16."""


class Interior(msgspec.Struct, frozen=True):
    """What the specification does not tell.

    Attributes:
        name: Of the page's interior, see above. States of recurrent layers have only one.
        kernel_block_size: Tokens of the backend's own blocks, into which a block is cut; 0: as many
            as a block has.
        float8: What an 8-bit float cache holds; the specification says `uint8`.
        kv_lora_rank: Elements of an MLA latent; the rest of `head_size` is the rotary part.
    """

    name: Literal["packed", "cpu", "rocm_planes"] = "packed"
    kernel_block_size: int = 0
    float8: Literal["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"] = "e4m3"
    kv_lora_rank: int = 512


PACKED: Final = Interior()


class Page(NamedTuple):
    """The roles of a page; those of its second half where it is two pieces of memory.

    Attributes:
        codec: Its id.
        roles: At the page's start, or from `Role.place` 1 on at its second head slot.
    """

    codec: str
    roles: tuple[Role, ...]


def page(spec: Spec, where: Strides, interior: Interior) -> Page:
    """What a page holds.

    Raises:
        UnknownPart: A format that this version cannot describe, by its name.
        Contradiction: The cell's bytes are not what the format comes to.
    """
    if isinstance(spec, MambaSpec):
        return Page("none", _states(spec))
    _check_mode(spec)
    if isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec):
        return _latents(spec, where, interior)
    if interior.name == "rocm_planes":
        return _planes(spec, where, interior)
    if spec.num_head_slots is not None:  # even as many as heads: two may be halves of a page
        raise UnknownPart(
            f"{spec.num_head_slots} slots of their own are no {interior.name} page",
            "num_head_slots",
        )
    if interior.name == "cpu":
        return _transposed(spec, where, interior)
    if spec.kv_quant_mode.endswith("PER_TOKEN_HEAD"):
        return _scaled_cells(spec, where, interior)
    return _cells(spec, where, interior)


def _check_mode(spec: Attention) -> None:
    if spec.kv_quant_mode not in QUANT_MODES:
        raise UnknownPart(
            f"{spec.kv_quant_mode[:MAX_QUOTED_CHARS]} is a format that this version cannot "
            "describe",
            "kv_quant_mode",
        )


def _element(spec: Attention, interior: Interior) -> tuple[str, int]:
    """The dtype of an element of K or V, and its bits."""
    name = dtype_of(spec.dtype)
    if spec.kv_quant_mode == "NONE":
        if name not in _BITS:
            raise UnknownPart(f"{name} elements without a quantisation", "dtype")
        return name, _BITS[name]
    if spec.kv_quant_mode == "INT8_PER_TOKEN_HEAD":
        return _must(name == "i8", "i8", name), 8
    return _must(name in ("u8", interior.float8), interior.float8, name), 8


def _must(is_so: bool, expected: str, name: str) -> str:
    if not is_so:
        raise Contradiction(f"expected {expected} elements, got {name}", "dtype")
    return expected


def _must_fill(spec: Attention, num_bytes: int) -> None:
    if spec.cell_bytes != num_bytes:
        raise Contradiction(
            f"a cell of {spec.cell_bytes} bytes is not the {num_bytes} bytes that this format has",
            "state_content_bytes",
        )


def _codec(spec: Attention) -> str:
    return "fp8_per_tensor" if spec.kv_quant_mode == "FP8_PER_TENSOR" else "none"


def _cells(spec: Attention, where: Strides, interior: Interior) -> Page:
    dtype, bits = _element(spec, interior)
    _must_fill(spec, (spec.head_size + spec.value_size) * bits // 8)
    k = _row(spec, where, spec.head_size, bits)
    v = _row(spec, where, spec.value_size, bits)
    return Page(
        _codec(spec),
        (_role("k", dtype, bits, k, 0), _role("v", dtype, bits, v, spec.head_size * bits)),
    )


def _scaled_cells(spec: Attention, where: Strides, interior: Interior) -> Page:
    """`[K][f32][V][f32]` in each cell."""
    dtype, bits = _element(spec, interior)
    _must_fill(spec, spec.head_size + spec.value_size + 8)
    k_bits, v_start = spec.head_size * bits, spec.head_size * bits + 32
    k = _row(spec, where, spec.head_size, bits)
    v = _row(spec, where, spec.value_size, bits)
    scale = _cell_terms(spec, where)
    return Page(
        "per_token_head",
        (
            _role("k", dtype, bits, k, 0),
            _role("k_scale", "f32", 32, scale, k_bits),
            _role("v", dtype, bits, v, v_start),
            _role("v_scale", "f32", 32, scale, v_start + spec.value_size * bits),
        ),
    )


def _transposed(spec: Attention, where: Strides, interior: Interior) -> Page:
    """For each kernel block and head, K as `[D, N]` and then V as `[N, D]`."""
    dtype, bits = _element(spec, interior)
    size, states = spec.head_size, where.kernel_states
    if spec.kv_quant_mode.endswith("PER_TOKEN_HEAD"):
        raise UnknownPart(f"{spec.kv_quant_mode} in cpu pages", "kv_quant_mode")
    if spec.value_size != size or (states > 1 and where.state != spec.cell_bytes):
        raise Contradiction("cpu pages need equal K and V, and a head in one piece", "interior")
    _must_fill(spec, 2 * size * bits // 8)
    head = ("H", 1, spec.num_kv_heads, 8 * where.slot)
    k = (head, *where.states(bits), ("D", 1, size, states * bits))
    v = (head, *where.states(size * bits), ("D", 1, size, bits))
    return Page(
        _codec(spec),
        (_role("k", dtype, bits, k, 0), _role("v", dtype, bits, v, states * size * bits)),
    )


def _planes(spec: Attention, where: Strides, interior: Interior) -> Page:
    """A K plane `[H, D/x, N, x]` in the first slot, a V plane `[H, D, N]` in the second."""
    dtype, bits = _element(spec, interior)
    if spec.kv_quant_mode.endswith("PER_TOKEN_HEAD"):
        raise UnknownPart(f"{spec.kv_quant_mode} in planes", "kv_quant_mode")
    heads, size, states, x = spec.num_kv_heads, spec.head_size, where.kernel_states, 128 // bits
    _must_fill(spec, heads * size * bits // 8)
    if spec.num_slots != 2 or spec.value_size != size or size % x or where.state != spec.cell_bytes:
        raise Contradiction(
            f"planes need two slots, each in one piece, and K and V of a multiple of {x} elements",
            "interior",
        )
    head = ("H", 1, heads, size * states * bits)
    k = (head, *where.states(x * bits), ("D", 1, x, bits), ("D", x, size // x, x * states * bits))
    v = (head, *where.states(bits), ("D", 1, size, states * bits))
    v_start = 8 * where.slot if where.is_whole else 0
    place = 0 if where.is_whole else 1
    return Page(
        _codec(spec),
        (_role("k", dtype, bits, k, 0), _role("v", dtype, bits, v, v_start, place)),
    )


def _latents(
    spec: MLAAttentionSpec | SlidingWindowMLASpec, where: Strides, interior: Interior
) -> Page:
    """`[latent][rotary part]` in each cell, or the 656 bytes of `fp8_ds_mla`."""
    _check_latents(spec, interior)
    rest = spec.head_size - interior.kv_lora_rank
    if interior.kv_lora_rank < 1 or rest < 1:
        raise Contradiction(
            f"a latent of {interior.kv_lora_rank} of {spec.head_size} elements leaves no rotary "
            "part",
            "kv_lora_rank",
        )
    states = where.states(8 * where.state)
    if spec.cache_dtype_str == "fp8_ds_mla":
        _must_fill(spec, _DS_MLA_CELL_BYTES)
        if (interior.kv_lora_rank, rest) != (_DS_MLA_LATENT, 64):
            raise Contradiction("fp8_ds_mla has 512 and 64 elements", "kv_lora_rank")
        scale = (*states, ("G", 1, 4, 32))
        return Page(
            "fp8_ds_mla_656",
            (
                _role("latent", "e4m3", 8, (*states, ("D", 1, 512, 8)), 0),
                _role("latent_scale", "f32", 32, scale, 512 * 8),
                _role("rope", "bf16", 16, (*states, ("D", 1, 64, 16)), 528 * 8),
            ),
        )
    dtype, bits = _element(spec, interior)
    _must_fill(spec, spec.head_size * bits // 8)
    latent = (*states, ("D", 1, interior.kv_lora_rank, bits))
    rope = (*states, ("D", 1, rest, bits))
    return Page(
        _codec(spec),
        (
            _role("latent", dtype, bits, latent, 0),
            _role("rope", dtype, bits, rope, interior.kv_lora_rank * bits),
        ),
    )


def _check_latents(spec: MLAAttentionSpec | SlidingWindowMLASpec, interior: Interior) -> None:
    if interior.name == "rocm_planes":
        raise UnknownPart("latents in planes", "interior")
    if spec.num_slots != 1:
        raise UnknownPart(f"latents in {spec.num_slots} slots", "num_head_slots")
    if spec.model_version is not None:
        raise UnknownPart(f"the caches of {spec.model_version[:MAX_QUOTED_CHARS]}", "model_version")
    if isinstance(spec, MLAAttentionSpec) and spec.cache_role != "SPARSE":
        raise UnknownPart(f"the cache of an {spec.cache_role[:MAX_QUOTED_CHARS]}", "cache_role")
    if spec.kv_quant_mode.endswith("PER_TOKEN_HEAD"):
        raise UnknownPart(f"{spec.kv_quant_mode} latents", "kv_quant_mode")
    told = spec.cache_dtype_str or ""
    if told in ("fp8_e4m3", "fp8_e5m2") and not interior.float8.startswith(told[4:]):
        raise Contradiction(f"{told} is not {interior.float8}", "float8")


def _states(spec: MambaSpec) -> tuple[Role, ...]:
    """The convolution's state and then the recurrence's, flattened."""
    if len(spec.shapes) != 2:
        name = spec.mamba_type[:MAX_QUOTED_CHARS] or "a layer"
        raise UnknownPart(
            f"{len(spec.shapes)} states of {name}, not two",
            "shapes",
        )
    roles, start = [], 0
    for role, size, name in zip(("conv", "ssm"), spec.sizes, spec.dtypes, strict=True):
        dtype = dtype_of(name)
        if dtype not in _BITS:
            raise UnknownPart(f"{dtype} states", "dtypes")
        bits = _BITS[dtype]
        roles.append(_role(role, dtype, bits, (("N", 1, 1, bits), ("D", 1, size, bits)), start))
        start += size * bits
    return tuple(roles)


def _cell_terms(spec: Attention, where: Strides) -> tuple[Term, ...]:
    return ("H", 1, spec.num_kv_heads, 8 * where.slot), *where.states(8 * where.state)


def _row(spec: Attention, where: Strides, size: int, bits: int) -> tuple[Term, ...]:
    return *_cell_terms(spec, where), ("D", 1, size, bits)


def _role(
    name: str, dtype: str, bits: int, terms: tuple[Term, ...], base_bits: int, place: int = 0
) -> Role:
    """A role whose shape is what its digits multiply to."""
    shape: dict[str, int] = {}
    for axis, _, extent, _ in terms:
        shape[axis] = shape.get(axis, 1) * extent
    return Role(
        role=name,
        dtype=dtype,
        bits=bits,
        shape=shape,
        terms=tuple(term for term in terms if term[2] > 1),
        base_bits=base_bits,
        place=place,
    )
