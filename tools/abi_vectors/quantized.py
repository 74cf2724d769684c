"""How engines lay out keys and values of 4 bits and as codes."""

from typing import Any

from abi_vectors.formats import Dims, attention, split
from abi_vectors.pages import Array, Cache, View
from abi_vectors.regions import Field, fields_of

TABLE = "sha256:" + "a1" * 32
"""The digest of a rotation's table that nobody needs."""


def nvfp4(order: str, dims: Dims, *, is_swizzled: bool, **document: Any) -> Cache:
    """Planes of a page: K data, K scales, V data, V scales; a scale for each 16 elements.

    Args:
        order: `LB` or `BL`.
        dims: `size` counts elements.
        is_swizzled: Whether V's scales lie as four groups of columns under one another, with four
            tokens side by side.
        document: For the group.
    """
    cache = Cache()
    _, blocks, heads, tokens, size, _ = dims
    groups = size // 16
    data, scales = heads * tokens * size // 2, heads * tokens * groups
    page = 2 * (data + scales)
    pages = _pages(cache, order, dims, page)
    parts = _cut(pages, data, scales, data, scales)
    v_scales = split(parts[3], heads, tokens, groups)
    if is_swizzled:
        tiles = split(parts[3], heads, tokens // 4, 4, groups // 4, 4)
        v_scales = tiles.transpose(0, 1, 2, 3, 6, 4, 5)
    views = [
        View("k", "e2m1", "HND", list(split(parts[0], heads, tokens, size // 2))),
        View("k_group_scale", "e4m3", "HNG", list(split(parts[1], heads, tokens, groups))),
        View("v", "e2m1", "HND", list(split(parts[2], heads, tokens, size // 2))),
        View("v_group_scale", "e4m3", "HNNGG" if is_swizzled else "HNG", list(v_scales)),
    ]
    given = {"page_bytes": page, "codec": {"id": "block_scaled"}} | document
    return cache.group(views, blocks, **attention(dims, **given))


def nvfp4_of_heads(dims: Dims, **document: Any) -> Cache:
    """For each head K and then V, either as `[N, D / 2]` of data and `[N, D / 16]` of scales."""
    cache = Cache()
    _, blocks, heads, tokens, size, _ = dims
    data, scales = tokens * size // 2, tokens * size // 16
    page = 2 * heads * (data + scales)
    slots = split(_pages(cache, "LB", dims, page), heads, 2, data + scales)
    views = []
    for side, name in enumerate("kv"):
        parts = _cut(slots[:, :, :, side], data, scales)
        views += [
            View(name, "e2m1", "HND", list(split(parts[0], tokens, -1))),
            View(f"{name}_group_scale", "e4m3", "HNG", list(split(parts[1], tokens, -1))),
        ]
    given = {"page_bytes": page, "codec": {"id": "block_scaled"}} | document
    return cache.group(views, blocks, **attention(dims, **given))


def nvfp4_trtllm(dims: Dims, **document: Any) -> Cache:
    """TensorRT-LLM: a pool of data `[blocks, layers, 2, H, N, D / 2]` and one like it of scales."""
    cache = Cache()
    layers, blocks, heads, tokens, size, _ = dims
    views = []
    for place, (name, width) in enumerate({"data": size // 2, "scales": size // 16}.items()):
        page = 2 * heads * tokens * width
        raw = cache.pool(name, blocks * layers * page, blocks, block_bytes=layers * page, align=256)
        whole = raw.reshape(blocks, layers, 2, heads, tokens, width).transpose(2, 1, 0, 3, 4, 5)
        for side, role in enumerate("kv"):
            if place:
                view = View(f"{role}_group_scale", "e4m3", "HNG", list(whole[side]), place)
            else:
                view = View(role, "e2m1", "HND", list(whole[side]), place)
            views.append(view)
    given = {"codec": {"id": "block_scaled"}} | document
    return cache.group(views, blocks, **attention(dims, **given))


def cells(layout: str, dims: Dims, row: list[Field], pad: int = 0, **document: Any) -> Cache:
    """A layout of vLLM with a row of fields in each cell, and a pad behind the row."""
    cache = Cache()
    cell = sum(field.num_bytes for field in row) + pad
    page, axes = dims.heads * dims.tokens * cell, layout[:4]
    extents = dict(L=dims.layers, B=dims.blocks, H=dims.heads, N=dims.tokens)
    block = {"block_bytes": dims.layers * page} if axes[0] == "B" else {}
    raw = cache.pool("kv", dims.layers * dims.blocks * page, dims.blocks, align=256, **block)
    found = raw.reshape(*(extents[axis] for axis in axes), cell)
    views = fields_of(found.transpose(*(axes.index(axis) for axis in "LBHN"), 4), row)
    views = [_without_last(view) if view.axes == "HN" else view for view in views]
    is_page_whole = axes[:2] in ("LB", "BL")
    given = {"page_bytes": page if is_page_whole else 0} | document
    return cache.group(views, dims.blocks, **attention(dims, **given))


def int4_cells(layout: str, dims: Dims, **document: Any) -> Cache:
    """`[K][scale][V][scale]` in each cell, two elements in a byte; both sides are rotated."""
    row = []
    for side in "kv":
        row += [Field(side, "u4", dims.size, "HND"), Field(f"{side}_scale", "f32", 1, "HN")]
    params = {"rotation.k": TABLE, "rotation.v": TABLE}
    given = {"codec": {"id": "int4_zero_point", "params": params}} | document
    return cells(layout, dims, row, **given)


def ultraquant(layout: str, dims: Dims, **document: Any) -> Cache:
    """`[K][scales][V][scales]` in each cell, a power of two for 32 elements; K is rotated."""
    given = {"codec": {"id": "block_scaled", "params": {"rotation.k": TABLE}}} | document
    return group_scaled_cells(layout, dims._replace(dtype="e2m1"), 32, "ue8m0", **given)


def turboquant(layout: str, dims: Dims, key_bits: int, value_bits: int, **document: Any) -> Cache:
    """`[K codes][norm][V codes][scale][zero]` in each cell, of an even size.

    Keys of 8 bits have no norm.
    """
    row = [Field("k_code", "u8", -(-dims.size * key_bits // 8), "HND")]
    if key_bits < 8:
        row.append(Field("k_norm", "f16", 1, "HN"))
    row += [
        Field("v_code", "u8", -(-dims.size * value_bits // 8), "HND"),
        Field("v_scale", "f16", 1, "HN"),
        Field("v_zero", "f16", 1, "HN"),
    ]
    params = {"tables": TABLE, "key_bits": key_bits, "value_bits": value_bits}
    given = {"codec": {"id": "turboquant", "params": params}} | document
    pad = sum(field.num_bytes for field in row) % 2
    return cells(layout, dims, row, pad, **given)


def group_scaled_cells(layout: str, dims: Dims, run: int, scale: str, **document: Any) -> Cache:
    """`[K][scales][V][scales]` of any dtype in each cell, a scale for each `run` elements."""
    row = []
    for side in "kv":
        row += [
            Field(side, dims.dtype, dims.size, "HND"),
            Field(f"{side}_group_scale", scale, dims.size // run, "HNG"),
        ]
    return cells(layout, dims, row, **({"codec": {"id": "block_scaled"}} | document))


def _pages(cache: Cache, order: str, dims: Dims, page: int) -> Array:
    """A new pool's pages, `[layers, blocks, bytes]`."""
    layers, blocks = dims.layers, dims.blocks
    block = {"block_bytes": layers * page} if order == "BL" else {}
    raw = cache.pool("kv", layers * blocks * page, blocks, align=256, **block)
    if order == "LB":
        return raw.reshape(layers, blocks, page)
    return raw.reshape(blocks, layers, page).swapaxes(0, 1)


def _cut(array: Array, *widths: int) -> list[Array]:
    """The last axis in parts of these widths."""
    ends = [sum(widths[: number + 1]) for number in range(len(widths))]
    return [array[..., end - width : end] for end, width in zip(ends, widths, strict=True)]


def _without_last(view: View) -> View:
    """A field of one element for each head and state."""
    return view._replace(layers=[layer[..., 0] for layer in view.layers])
