"""Pages that are regions: each a row of fields for every state, one region behind the other."""

from typing import Any, NamedTuple

from abi_vectors.formats import Dims, attention, split
from abi_vectors.pages import HALF_BYTES, Array, Cache, View, kind


class Field(NamedTuple):
    """What a row holds of a state.

    Attributes:
        role: Its name; empty: a pad of `size` bytes.
        dtype: Of its elements.
        size: How many.
        axes: After the blocks; the last is the elements'.
        turned: Above 1: the elements lie as `[turned, size / turned]` and count the other way.
    """

    role: str
    dtype: str = "u8"
    size: int = 0
    axes: str = "ND"
    turned: int = 1

    @property
    def num_bytes(self) -> int:
        """Of a state."""
        if self.dtype in HALF_BYTES:
            return self.size // 2
        return self.size * int(kind(self.dtype)[-1])

    def view(self, raw: Array) -> View:
        """The field as `[layers, blocks, ..., bytes]` holds it."""
        array = raw.view(kind(self.dtype))
        if self.turned == 1:
            return View(self.role, self.dtype, self.axes, list(array))
        turned = split(array, self.turned, self.size // self.turned).swapaxes(-1, -2)
        return View(self.role, self.dtype, self.axes + self.axes[-1], list(turned))


Region = list[Field]


def fields_of(raw: Array, fields: Region) -> list[View]:
    """The fields of rows `[layers, blocks, ..., bytes]`."""
    views, at = [], 0
    for field in fields:
        if field.role:
            views.append(field.view(raw[..., at : at + field.num_bytes]))
        at += field.num_bytes
    return views


def regions(
    order: str, dims: Dims, parts: list[Region], page: int = 0, memory: str = "device", **given: Any
) -> Cache:
    """Pages of several regions.

    Args:
        order: `LB` or `BL`, which is outermost.
        dims: Layers, blocks and states.
        parts: One behind the other.
        page: Bytes of a page; 0: as many as the regions have.
        memory: Of the pool.
        given: For the group.
    """
    cache = Cache()
    widths = [dims.tokens * sum(field.num_bytes for field in part) for part in parts]
    page = page or sum(widths)
    layers, blocks = dims.layers, dims.blocks
    block = {"block_bytes": layers * page} if order == "BL" else {}
    raw = cache.pool("kv", layers * blocks * page, blocks, align=256, memory=memory, **block)
    outer = (layers, blocks) if order == "LB" else (blocks, layers)
    pages = raw.reshape(*outer, page)
    pages = pages if order == "LB" else pages.swapaxes(0, 1)
    views, at = [], 0
    for part, width in zip(parts, widths, strict=True):
        views += fields_of(split(pages[..., at : at + width], dims.tokens, -1), part)
        at += width
    document = {"kind": "mla", "null_block": 0, "tokens_per_block": dims.tokens}
    return cache.group(views, blocks, **(document | {"page_bytes": page} | given))


def by_order(order: str, dims: Dims, memory: str = "device", **given: Any) -> Cache:
    """K and V as one array whose axes are `order`: `S` is the side, the others as in `Dims`.

    Sides that lie outside of the blocks have places of their own.
    """
    cache = Cache()
    extents = dict(L=dims.layers, B=dims.blocks, H=dims.heads, N=dims.tokens, D=dims.size, S=2)
    item, count = dims.item, 1
    for axis in order:
        count *= extents[axis]
    block = {"block_bytes": count * item // dims.blocks} if order[0] == "B" else {}
    raw = cache.pool("kv", count * item, dims.blocks, align=256, memory=memory, **block)
    whole = raw.view(kind(dims.dtype)).reshape(*(extents[axis] for axis in order))
    whole = whole.transpose(*(order.index(axis) for axis in "SLBHND"))
    is_apart = order.index("S") < order.index("B") or order.index("S") < order.index("L")
    page = dims.heads * dims.tokens * dims.size * item
    if set(order[-3:]) == set("HND"):
        given = {"page_bytes": page} | given if is_apart else given
    if set(order[-4:]) == set("SHND"):
        given = {"page_bytes": 2 * page} | given
    views = [
        View(side, dims.dtype, "HND", list(whole[number]), number if is_apart else 0)
        for number, side in enumerate("kv")
    ]
    return cache.group(views, dims.blocks, **attention(dims, **given))


def shuffled(order: str, dims: Dims, **given: Any) -> Cache:
    """AITER's tiles of `x`, being 16 bytes: K `[H, D/x, N, x]` and V `[H, N/x, D, x]`.

    Args:
        order: Of layers, blocks and sides: `LSB` or `LBS`.
        dims: Whose tokens are a multiple of `x`.
        given: For the group.
    """
    cache, x = Cache(), 16 // dims.item
    layers, blocks, heads, tokens, size, _ = dims
    side = heads * tokens * size * dims.item
    raw = cache.pool("kv", 2 * layers * blocks * side, blocks, align=256)
    extents = dict(L=layers, B=blocks, S=2)
    whole = raw.view(kind(dims.dtype)).reshape(*(extents[axis] for axis in order), -1)
    k, v = whole.transpose(*(order.index(axis) for axis in "SLB"), 3)
    k = split(k, heads, size // x, tokens, x).transpose(0, 1, 2, 4, 3, 5)
    v = split(v, heads, tokens // x, size, x).transpose(0, 1, 2, 3, 5, 4)
    is_apart = order == "LSB"
    views = [
        View("k", dims.dtype, "HNDD", list(k)),
        View("v", dims.dtype, "HNND", list(v), int(is_apart)),
    ]
    page = side if is_apart else 2 * side
    document = attention(dims, **({"page_bytes": page} | given))
    return cache.group(views, blocks, **document)
