"""Formats of vLLM with a latent for each state: MLA, and the rows of DeepSeek V4 and V4.1.

Sources, of vLLM 0.32.0: `mla/flashmla_sparse.py` (rows of 656, 584, 528, 352 and 288 bytes),
`deepseek_v4/common/ops/cache_utils.py`, `deepseek_v41/attention.py`, `mla/sparse_swa.py`.
"""

from typing import Final, NamedTuple

from transload_abi.builders.vllm_interior import Interior
from transload_abi.builders.vllm_layout import Strides
from transload_abi.builders.vllm_roles import Page, element, must_be_bytes, must_fill, role
from transload_abi.builders.vllm_spec import MLAAttentionSpec, SlidingWindowMLASpec
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.limits import MAX_QUOTED_CHARS

Latents = MLAAttentionSpec | SlidingWindowMLASpec

ROPE: Final = 64
"""Elements of the rotary part, in all packed rows that have one and in DeepSeek's models to V4."""


class Row(NamedTuple):
    """A packed row whose scales lie behind all rows of the page.

    Attributes:
        latent: Elements, with the rotary part where that has no role of its own.
        dtype: Of an element; empty: the cache's 8-bit float.
        scale: Dtype of a scale.
        group: Elements that share one.
        rope: Whether a rotary part in bf16 follows the latent.
        scale_row: Bytes of a state's scales, pads included.
    """

    latent: int
    dtype: str
    scale: str
    group: int
    rope: bool
    scale_row: int


V4_ROWS: Final = {
    584: Row(448, "", "ue8m0", 64, True, 8),
    528: Row(512, "", "ue8m0", 32, False, 16),
    288: Row(512, "e2m1", "e4m3", 16, False, 32),
}
"""By the bytes of a state, scales included."""


def latents(spec: Latents, where: Strides, interior: Interior) -> Page:
    """`[latent][rotary part]` in each cell, or what a packed cache has.

    Raises:
        UnknownPart: A format that this version cannot describe, by its name.
        Contradiction: The cell's bytes are not what the format comes to.
    """
    _check(spec, interior)
    told = spec.cache_dtype_str or ""
    if spec.model_version == "deepseek_v4" and told.endswith("_ds_mla"):
        return _regions(spec, where, interior)
    if told == "fp8_ds_mla":
        return _rows_of_656(spec, where, interior)
    if told == "nvfp4_ds_mla":
        return _rows_of_352(spec, where, interior)
    return _plain(spec, where, interior)


def _plain(spec: Latents, where: Strides, interior: Interior) -> Page:
    dtype = element(spec, interior)
    bits = DTYPES[dtype].bits
    must_fill(spec, spec.head_size * bits // 8)
    size = interior.kv_lora_rank or spec.head_size - ROPE
    rest = spec.head_size - size
    if size < 1 or rest < 0:
        raise Contradiction(
            f"a latent of {size} of {spec.head_size} elements is none", "kv_lora_rank"
        )
    states = where.states(8 * where.state)
    roles = [role("latent", dtype, (*states, ("D", 1, size, bits)))]
    if rest:
        roles.append(role("rope", dtype, (*states, ("D", 1, rest, bits)), size * bits))
    if spec.kv_quant_mode == "NONE":
        return Page("none", tuple(roles))
    if not rest:
        raise UnknownPart("8-bit latents without a rotary part", "kv_lora_rank")
    return Page("fp8_per_tensor", tuple(roles), scaled=("latent", "rope"))


def _rows_of_656(spec: Latents, where: Strides, interior: Interior) -> Page:
    """512 e4m3, four f32, 64 bf16."""
    _must_be_576(spec, interior, 656)
    states = where.states(8 * where.state)
    return Page(
        "fp8_ds_mla_656",
        (
            role("latent", "e4m3", (*states, ("D", 1, 512, 8))),
            role("latent_scale", "f32", (*states, ("G", 1, 4, 32)), 512 * 8),
            role("rope", "bf16", (*states, ("D", 1, ROPE, 16)), 528 * 8),
        ),
    )


def _rows_of_352(spec: Latents, where: Strides, interior: Interior) -> Page:
    """512 e2m1, 64 e4m3 of the rotary part, 32 e4m3: scale `s` at byte `8 * (s % 4) + s // 4`."""
    _must_be_576(spec, interior, 352)
    states = where.states(8 * where.state)
    scales = (("G", 1, 4, 64), ("G", 4, 8, 8))
    return Page(
        "block_scaled",
        (
            role("latent", "e2m1", (*states, ("D", 1, 512, 4))),
            role("rope", "e4m3", (*states, ("D", 1, ROPE, 8)), 256 * 8),
            role("latent_scale", "e4m3", (*states, *scales), 320 * 8),
        ),
    )


def _regions(spec: Latents, where: Strides, interior: Interior) -> Page:
    """All rows of a page, then the scales of all."""
    must_be_bytes(spec)
    row = V4_ROWS.get(spec.cell_bytes)
    if row is None:
        known = ", ".join(map(str, V4_ROWS))
        raise UnknownPart(
            f"rows of {spec.cell_bytes} bytes are none of {known}", "state_content_bytes"
        )
    _must_be_of(spec, interior, row.latent, ROPE * row.rope)
    dtype = row.dtype or interior.float8
    bits = DTYPES[dtype].bits
    row_bits = row.latent * bits + row.rope * ROPE * 16
    states = where.states(row_bits)
    scales = (*where.states(8 * row.scale_row), ("G", 1, row.latent // row.group, 8))
    roles = [
        role("latent", dtype, (*states, ("D", 1, row.latent, bits))),
        role("latent_scale", row.scale, scales, where.kernel_states * row_bits),
    ]
    if row.rope:
        roles.append(role("rope", "bf16", (*states, ("D", 1, ROPE, 16)), row.latent * bits))
    return Page("block_scaled", tuple(roles))


def _must_be_576(spec: Latents, interior: Interior, num_bytes: int) -> None:
    must_be_bytes(spec)
    must_fill(spec, num_bytes)
    _must_be_of(spec, interior, 512, ROPE)


def _must_be_of(spec: Latents, interior: Interior, latent: int, rope: int) -> None:
    """The row's own sizes, where anybody says others."""
    message = f"a row of {spec.cell_bytes} bytes has {latent} and {rope} elements"
    if spec.head_size != latent + rope:
        raise Contradiction(message, "head_size")
    if interior.kv_lora_rank not in (0, latent):
        raise Contradiction(message, "kv_lora_rank")


def _check(spec: Latents, interior: Interior) -> None:
    if interior.name != "packed":
        raise UnknownPart(f"latents in {interior.name} pages", "interior")
    if spec.num_slots != 1:
        raise UnknownPart(f"latents in {spec.num_slots} slots", "num_head_slots")
    if spec.model_version not in (None, "deepseek_v4"):
        raise UnknownPart(f"the caches of {spec.model_version[:MAX_QUOTED_CHARS]}", "model_version")
    if spec.kv_quant_mode not in ("NONE", "FP8_PER_TENSOR", "NVFP4_DS_MLA"):
        raise UnknownPart(f"{spec.kv_quant_mode} latents", "kv_quant_mode")
    told = spec.cache_dtype_str or ""
    if told in ("fp8_e4m3", "fp8_e5m2") and not interior.float8.startswith(told[4:]):
        raise Contradiction(f"{told} is not {interior.float8}", "float8")
    is_packed_as_told = told == "nvfp4_ds_mla" or spec.kv_quant_mode != "NVFP4_DS_MLA"
    if not is_packed_as_told:
        raise Contradiction(f"{spec.kv_quant_mode} of {told!r}", "cache_dtype_str")
