"""Pieces that all of vLLM's page formats are made of. Knows no format."""

from typing import Final, NamedTuple

from transload_abi.builders.vllm_interior import Interior
from transload_abi.builders.vllm_layout import Strides, Term
from transload_abi.builders.vllm_spec import Attention, dtype_of
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.types import Param, Role

FLOATS: Final = ("f32", "f16", "bf16")


class Page(NamedTuple):
    """What a page holds of one owner's slice.

    Attributes:
        codec: Its id.
        roles: At the page's start, or from `Role.place` 1 on at its second head slot.
        params: Of the codec, but for scales of layers.
        scaled: Roles that have a scale for each layer outside of the pages; those of K first.
        heads: Of a recurrent state by head: how many the rank holds, and the model has.
    """

    codec: str
    roles: tuple[Role, ...]
    params: tuple[tuple[str, Param], ...] = ()
    scaled: tuple[str, ...] = ()
    heads: tuple[int, int] = (0, 0)


def role(
    name: str, dtype: str, terms: tuple[Term, ...], base_bits: int = 0, place: int = 0
) -> Role:
    """A role whose shape is what its digits multiply to."""
    shape: dict[str, int] = {}
    for axis, _, extent, _ in terms:
        shape[axis] = shape.get(axis, 1) * extent
    return Role(
        role=name,
        dtype=dtype,
        bits=DTYPES[dtype].bits,
        shape=shape,
        terms=tuple(term for term in terms if term[2] > 1),
        base_bits=base_bits,
        place=place,
    )


def element(spec: Attention, interior: Interior) -> str:
    """The dtype of an element of K, V or a latent."""
    name = dtype_of(spec.dtype)
    if spec.kv_quant_mode == "NONE":
        if name not in FLOATS:
            raise UnknownPart(f"{name} elements without a quantisation", "dtype")
        return name
    if spec.kv_quant_mode == "INT8_PER_TOKEN_HEAD":
        return _must_be(name, "i8", ("i8",))
    return _must_be(name, interior.float8, ("u8", interior.float8))


def must_be_bytes(spec: Attention) -> None:
    """Packed formats are caches of bytes."""
    _must_be(dtype_of(spec.dtype), "u8", ("u8",))


def _must_be(name: str, expected: str, allowed: tuple[str, ...]) -> str:
    if name not in allowed:
        raise Contradiction(f"expected {expected} elements, got {name}", "dtype")
    return expected


def must_fill(spec: Attention, num_bytes: int) -> None:
    """The cell has exactly as many bytes as the format."""
    if spec.cell_bytes != num_bytes:
        raise Contradiction(
            f"a cell of {spec.cell_bytes} bytes is not the {num_bytes} bytes that this format has",
            "state_content_bytes",
        )


def must_divide(spec: Attention, size: int) -> None:
    """Groups of a head are whole."""
    for name, elements in (("head_size", spec.head_size), ("head_size_v", spec.value_size)):
        if elements % size:
            raise Contradiction(f"{elements} elements are no groups of {size}", name)


def must_have_own_slots(spec: Attention) -> None:
    """A slot for each head, and none besides; even as many as heads may be halves of a page."""
    if spec.num_head_slots is not None:
        raise UnknownPart(
            f"{spec.num_head_slots} slots of their own are no page of cells", "num_head_slots"
        )


def must_be_in_one_piece(spec: Attention, where: Strides, name: str) -> None:
    """A slot's states follow each other, and slots do."""
    if not where.is_whole or (where.kernel_states > 1 and where.state != spec.cell_bytes):
        raise Contradiction(f"{name} pages need a slot in one piece, and slots together", "layout")


def cell_terms(spec: Attention, where: Strides) -> tuple[Term, ...]:
    """Heads and states of vLLM's cells."""
    return ("H", 1, spec.num_kv_heads, 8 * where.slot), *where.states(8 * where.state)
