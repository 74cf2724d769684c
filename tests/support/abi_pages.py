"""Pages written out by hand: cells and regions of fields, and a descriptor around them."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from support.abi_placements import MODEL
from transload_abi.dtypes import DTYPES
from transload_abi.types import VERSION, Codec, Descriptor, Group, Kind, Owner, Place, Pool, Role

PLAIN: Final = Codec()


class Shape(NamedTuple):
    """Heads, tokens of a block, elements of a head; layers and blocks of the pool."""

    heads: int = 8
    tokens: int = 16
    size: int = 128
    layers: int = 1
    blocks: int = 2


class Field(NamedTuple):
    """Elements of a role that lie together in a cell; `axis` is empty where it is one."""

    role: str
    dtype: str
    axis: str = ""
    extent: int = 1

    @property
    def bits(self) -> int:
        return DTYPES[self.dtype].bits * self.extent


def role_of(field: Field, extents: Sequence[tuple[str, int, int]], base: int) -> Role:
    """A role: extent and stride of each outer axis, and the field's elements in a row."""
    bits = DTYPES[field.dtype].bits
    terms = [(axis, 1, extent, stride) for axis, extent, stride in extents]
    if field.axis:
        terms.append((field.axis, 1, field.extent, bits))
    shape = {axis: extent for axis, _, extent, _ in terms}
    kept = tuple(term for term in terms if term[2] > 1)
    return Role(field.role, field.dtype, bits, shape, kept, base)


def cells(fields: Sequence[Field], axes: Sequence[tuple[str, int]], base: int = 0) -> list[Role]:
    """Fields one after the other in a cell, and cells by the axes, outermost first."""
    stride, outer = sum(field.bits for field in fields), []
    for axis, extent in reversed(axes):
        outer.append((axis, extent, stride))
        stride *= extent
    roles = []
    for field in fields:
        roles.append(role_of(field, outer[::-1], base))
        base += field.bits
    return roles


def regions(fields: Sequence[Sequence[Field]], axes: Sequence[tuple[str, int]]) -> list[Role]:
    """Regions of cells one after the other."""
    roles, base, count = [], 0, 1
    for _, extent in axes:
        count *= extent
    for cell in fields:
        roles += cells(cell, axes, base)
        base += count * sum(field.bits for field in cell)
    return roles


def described(
    kind: Kind, roles: Sequence[Role], page: int, shape: Shape, codec: Codec, **fields: Any
) -> Descriptor:
    """A descriptor of pages of so many bytes, pads included."""
    has_heads = any("H" in role.shape or role.role == "page" for role in roles)
    group = Group(
        id="group",
        kind=kind,
        layers=tuple(range(shape.layers)),
        tokens_per_block=shape.tokens,
        places=(
            Place(("kv",), page * shape.layers, page if shape.layers > 1 else 0, page_bytes=page),
        ),
        roles=tuple(roles),
        codec=codec,
        null_block=0,
        owner=Owner((0, shape.heads, shape.heads) if has_heads else (0, 1, 1)),
    )
    block = page * shape.layers
    pool = Pool("kv", "device", block * shape.blocks, shape.blocks, 256, block)
    return Descriptor(VERSION, MODEL, (pool,), (replace(group, **fields),))


def page_bytes(roles: Sequence[Role], align: int = 1) -> int:
    """Of a page without pads, rounded up."""
    ends = (
        role.base_bits + role.bits + sum((extent - 1) * stride for *_, extent, stride in role.terms)
        for role in roles
    )
    return -(-max(ends) // (8 * align)) * align
