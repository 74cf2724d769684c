"""Formats of vLLM in which a cell holds one head and token: K, V, and what belongs to them.

Sources, of vLLM 0.32.0: `triton_attn.py:customize_spec`, `int4_per_token_head.py`,
`ultraquant/format.py`, `quantization/turboquant/config.py`.
"""

from typing import Final, NamedTuple

from transload_abi.builders.vllm_interior import Interior
from transload_abi.builders.vllm_layout import Strides
from transload_abi.builders.vllm_roles import (
    Page,
    cell_terms,
    element,
    must_be_bytes,
    must_divide,
    must_fill,
    must_have_own_slots,
    role,
)
from transload_abi.builders.vllm_spec import Attention
from transload_abi.codecs import rotation_param
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction
from transload_abi.types import Param, Role

ULTRAQUANT_GROUP: Final = 32
"""`GROUP_SIZE` in `ultraquant/format.py` @ 0.32.0."""

HADAMARD: Final = "hadamard, orthonormal, natural order"
"""UltraQuant's rotation of keys, the same for each head: Sylvester's matrix over the root of its
size (`ultraquant/triton_store.py:_get_hadamard` @ 0.32.0)."""


class CodeBits(NamedTuple):
    """Bits of TurboQuant's codes; keys of eight are floats and have no norm."""

    key: int
    value: int


TURBOQUANT: Final = {
    "TURBOQUANT_K8V4": CodeBits(8, 4),
    "TURBOQUANT_4BIT_NC": CodeBits(4, 4),
    "TURBOQUANT_K3V4_NC": CodeBits(3, 4),
    "TURBOQUANT_3BIT_NC": CodeBits(3, 3),
}
"""`TQ_PRESETS` in `quantization/turboquant/config.py` @ 0.32.0."""


class Field(NamedTuple):
    """Elements of a role that follow each other; `axis` is empty where it is one."""

    role: str
    dtype: str
    axis: str = ""
    extent: int = 1

    @property
    def bits(self) -> int:
        """Of all of them."""
        return DTYPES[self.dtype].bits * self.extent


def cells(spec: Attention, where: Strides, interior: Interior) -> Page:
    """`[K][V]`."""
    dtype = element(spec, interior)
    fields = [Field("k", dtype, "D", spec.head_size), Field("v", dtype, "D", spec.value_size)]
    scaled = ("k", "v") if spec.kv_quant_mode == "FP8_PER_TENSOR" else ()
    codec = "fp8_per_tensor" if scaled else "none"
    return Page(codec, _packed(spec, where, fields), scaled=scaled)


def scaled_cells(spec: Attention, where: Strides, interior: Interior) -> Page:
    """`[K][f32][V][f32]`."""
    dtype = element(spec, interior)
    return Page("per_token_head", _packed(spec, where, _with_scales(spec, dtype)))


def int4_cells(spec: Attention, where: Strides, interior: Interior) -> Page:
    """The same in four bits, the lower half of a byte first; both sides are rotated."""
    must_be_bytes(spec)
    must_divide(spec, 2)
    if spec.value_size != spec.head_size:
        raise Contradiction("one rotation for K and V of different sizes", "head_size_v")
    rotation = _told(interior.rotation, "rotation")
    params = tuple((rotation_param(side), rotation) for side in "kv")
    return Page("int4_zero_point", _packed(spec, where, _with_scales(spec, "u4")), params)


def ultraquant_cells(spec: Attention, where: Strides, _: Interior) -> Page:
    """`[K e2m1][ue8m0][V e2m1][ue8m0]`; keys are rotated."""
    must_be_bytes(spec)
    must_divide(spec, ULTRAQUANT_GROUP)
    fields = [
        field
        for side, size in (("k", spec.head_size), ("v", spec.value_size))
        for field in (
            Field(side, "e2m1", "D", size),
            Field(f"{side}_group_scale", "ue8m0", "G", size // ULTRAQUANT_GROUP),
        )
    ]
    params = ((rotation_param("k"), HADAMARD),)
    return Page("block_scaled", _packed(spec, where, fields), params)


def turboquant_cells(spec: Attention, where: Strides, interior: Interior) -> Page:
    """`[codes of K][f16 norm][codes of V][f16 scale][f16 zero]`, rounded up to two bytes."""
    codes, params = turboquant_fields(spec, interior)
    must_have_own_slots(spec)
    norm, rest = codes.norm, [Field("v_scale", "f16"), Field("v_zero", "f16")]
    fields = [codes.key, *norm, codes.value, *rest]
    return Page("turboquant", _packed(spec, where, fields, align=2), params)


class Codes(NamedTuple):
    """TurboQuant's codes of a head and token; `norm` is empty where keys are floats."""

    key: Field
    norm: tuple[Field, ...]
    value: Field


def turboquant_fields(
    spec: Attention, interior: Interior
) -> tuple[Codes, tuple[tuple[str, Param], ...]]:
    """The codes, and the codec's parameters."""
    must_be_bytes(spec)
    bits = TURBOQUANT[spec.kv_quant_mode]
    params: tuple[tuple[str, Param], ...] = (
        ("key_bits", bits.key),
        ("value_bits", bits.value),
        ("tables", _told(interior.tables, "tables")),
    )
    codes = Codes(
        Field("k_code", "u8", "D", -(-spec.head_size * bits.key // 8)),
        () if bits.key == 8 else (Field("k_norm", "f16"),),
        Field("v_code", "u8", "D", -(-spec.value_size * bits.value // 8)),
    )
    return codes, params


def _with_scales(spec: Attention, dtype: str) -> list[Field]:
    return [
        Field("k", dtype, "D", spec.head_size),
        Field("k_scale", "f32"),
        Field("v", dtype, "D", spec.value_size),
        Field("v_scale", "f32"),
    ]


def _packed(
    spec: Attention, where: Strides, fields: list[Field], align: int = 1
) -> tuple[Role, ...]:
    """Fields one after the other, which fill the cell."""
    must_have_own_slots(spec)
    num_bytes = sum(field.bits for field in fields) // 8
    must_fill(spec, -(-num_bytes // align) * align)
    outer, base, roles = cell_terms(spec, where), 0, []
    for field in fields:
        inner = ((field.axis, 1, field.extent, DTYPES[field.dtype].bits),) if field.axis else ()
        roles.append(role(field.role, field.dtype, (*outer, *inner), base))
        base += field.bits
    return tuple(roles)


def _told(text: str, name: str) -> str:
    if not text:
        raise Contradiction("the format has one, and nobody says which", f"interior.{name}")
    return text
