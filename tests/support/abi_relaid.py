"""The same elements in other pages: for each format that engines write two layouts or more."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from support import abi_formats as formats
from support.abi_pages import Field, Shape, cells, page_bytes, regions
from transload_abi.types import Descriptor, Role

HEADS: Final = Shape(heads=2, tokens=8, size=64, layers=2, blocks=9)
ROWS: Final = Shape(heads=1, tokens=4, size=512, layers=2, blocks=9)
STATES: Final = ROWS._replace(tokens=16)
"""Four states to a block where one is for four tokens."""


def with_roles(d: Descriptor, roles: Sequence[Role]) -> Descriptor:
    """The only group with these roles in its pages, which end with the last element."""
    (group,), (pool,) = d.groups, d.pools
    page = page_bytes(roles)
    layers = len(group.layers)
    place = replace(
        group.places[0],
        block_stride=page * layers,
        layer_stride=page if layers > 1 else 0,
        page_bytes=page,
    )
    block = page * layers
    pool = replace(pool, num_bytes=block * pool.num_blocks, block_bytes=block)
    group = replace(group, roles=tuple(roles), places=(place,))
    return replace(d, pools=(pool,), groups=(group,))


def _fields(d: Descriptor) -> list[Field]:
    """The roles as fields of a cell."""
    found = []
    for role in d.groups[0].roles:
        inner = [axis for axis in role.shape if axis not in "HN"]
        axis = inner[0] if inner else ""
        found.append(Field(role.role, role.dtype, axis, role.shape.get(axis, 1)))
    return found


def _axes(d: Descriptor, order: str) -> list[tuple[str, int]]:
    (group,) = d.groups
    extents = {"H": group.num_heads, "N": group.states_per_block}
    has_heads = "H" in group.roles[0].shape
    return [(axis, extents[axis]) for axis in order if axis == "N" or has_heads]


def in_cells(d: Descriptor, order: str = "HN") -> Descriptor:
    """All roles of a head and state together."""
    return with_roles(d, cells(_fields(d), _axes(d, order)))


def in_regions(d: Descriptor, order: str = "NH") -> Descriptor:
    """Each role by itself, the last one first."""
    fields = [[field] for field in reversed(_fields(d))]
    return with_roles(d, regions(fields, _axes(d, order)))


def linear(d: Descriptor, name: str) -> Descriptor:
    """One role's elements as they are counted, and not permuted."""
    (group,) = d.groups
    roles = []
    for role in group.roles:
        if role.role == name:
            (g,) = (extent for axis, extent in role.shape.items() if axis == "G")
            rest = tuple(term for term in role.terms if term[0] != "G")
            role = replace(role, terms=(*rest, ("G", 1, g, role.bits)))
        roles.append(role)
    return replace(d, groups=(replace(group, roles=tuple(roles)),))


def _all(d: Descriptor) -> list[Descriptor]:
    return [d, in_cells(d, "NH"), in_regions(d)]


LAYOUTS: Final[dict[str, Callable[[], list[Descriptor]]]] = {
    "per_token_head": lambda: _all(formats.per_token_head(shape=HEADS)),
    "int4": lambda: _all(formats.int4(shape=HEADS)),
    "nvfp4": lambda: [
        formats.nvfp4(shape=HEADS),
        formats.nvfp4(is_swizzled=True, shape=HEADS),
        formats.nvfp4_slots(shape=HEADS),
        in_cells(formats.nvfp4(shape=HEADS)),
    ],
    "turboquant": lambda: _all(formats.turboquant(3, 4, shape=HEADS)),
    "ultraquant": lambda: _all(formats.ultraquant(shape=HEADS)),
    "fp8": lambda: _all(formats.fp8(shape=HEADS)),
    "352": lambda: [
        formats.ds_mla_352(ROWS),
        linear(formats.ds_mla_352(ROWS), "latent_scale"),
        in_regions(formats.ds_mla_352(ROWS)),
    ],
    "656": lambda: _all(formats.ds_mla_656(ROWS)),
    "584": lambda: _all(formats.v4_c4(STATES)),
    "528": lambda: _all(formats.v41_mxfp8(STATES)),
    "288": lambda: _all(formats.v41_nvfp4(STATES)),
    "132": lambda: _all(formats.indexer(ROWS)),
    "68": lambda: _all(formats.v4_indexer_mxfp4(STATES)),
    "compressor": lambda: _all(formats.v4_compressor_c128()),
    "compressor ring": lambda: _all(formats.compressor_ring(4)),
    "key ring": lambda: _all(formats.key_ring()),
    "pooled": lambda: _all(formats.pooled(HEADS._replace(size=8))),
    "cross": lambda: _all(formats.cross(HEADS._replace(size=8))),
    "by head": lambda: _all(formats.recurrent_by_head(HEADS._replace(size=8))),
}
"""By format: layouts of one cache, small enough to be moved element by element."""
