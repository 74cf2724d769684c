"""How engines lay out their caches, each written as its own shape of numpy array."""

from __future__ import annotations

from typing import Any, NamedTuple

from abi_vectors.pages import Array, Cache, View, kind


class Dims(NamedTuple):
    """Layers, blocks, heads, tokens (states) in a block, elements in a head."""

    layers: int = 2
    blocks: int = 4
    heads: int = 2
    tokens: int = 8
    size: int = 8
    dtype: str = "bf16"

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return {"f32": 4, "f16": 2, "bf16": 2}.get(self.dtype, 1)


def attention(dims: Dims, **document: Any) -> dict[str, Any]:
    """What all groups with heads say; `document` wins."""
    given: dict[str, Any] = {"tokens_per_block": dims.tokens, "null_block": 0}
    if dims.heads > 1:  # one head of one is the default
        given["owner"] = {"heads": [0, dims.heads, dims.heads]}
    return given | document


def split(array: Array, *shape: int) -> Array:
    """The last axis as several; never a copy, since one axis is only cut."""
    return array.reshape(*array.shape[:-1], *shape)


def key_value(dims: Dims, k: Array, v: Array, axes: tuple[str, str] = ("HND", "HND")) -> list[View]:
    """Views of arrays that begin with layers and blocks."""
    return [
        View("k", dims.dtype, axes[0], list(k)),
        View("v", dims.dtype, axes[1], list(v)),
    ]


def vllm(layout: str, dims: Dims, v_size: int = 0, **document: Any) -> Cache:
    """A layout of vLLM, `[K V]` in each cell, as `LBNHC`; `v_size` where V is of another size."""
    cache = Cache()
    v_size = v_size or dims.size
    cell = (dims.size + v_size) * dims.item
    extents = dict(L=dims.layers, B=dims.blocks, H=dims.heads, N=dims.tokens)
    page, axes = dims.heads * dims.tokens * cell, layout[:4]
    block = {"block_bytes": dims.layers * page} if axes[0] == "B" else {}
    raw = cache.pool("kv", dims.layers * dims.blocks * page, dims.blocks, align=256, **block)
    cells = raw.view(kind(dims.dtype)).reshape(*(extents[axis] for axis in axes), -1)
    cells = cells.transpose(*(axes.index(axis) for axis in "LBHN"), 4)
    views = key_value(dims, cells[..., : dims.size], cells[..., dims.size :])
    is_page_whole = axes[:2] in ("LB", "BL")
    given = {"page_bytes": page if is_page_whole else 0} | document
    return cache.group(views, dims.blocks, **attention(dims, **given))


def vllm_cpu(dims: Dims, kernel_blocks: int = 1, **document: Any) -> Cache:
    """CPU attention: for each kernel block and head K `[D, N]`, then V `[N, D]`."""
    cache = Cache()
    layers, blocks, heads, tokens, size, _ = dims
    kernel = tokens // kernel_blocks
    page = 2 * heads * tokens * size * dims.item
    raw = cache.pool("kv", layers * blocks * page, blocks, memory="host", align=64)
    halves = raw.view(kind(dims.dtype)).reshape(layers, blocks, kernel_blocks, heads, 2, -1)
    k = split(halves[..., 0, :], size, kernel).transpose(0, 1, 3, 2, 5, 4)
    v = split(halves[..., 1, :], kernel, size).transpose(0, 1, 3, 2, 4, 5)
    given = attention(dims, page_bytes=page, **document)
    return cache.group(key_value(dims, k, v, ("HNND", "HNND")), blocks, **given)


def rocm(dims: Dims, **document: Any) -> Cache:
    """ROCm: a K plane `[H, D/x, N, x]`, x being 16 bytes, and a V plane `[H, D, N]`."""
    cache = Cache()
    layers, blocks, heads, tokens, size, _ = dims
    page, x = 2 * heads * tokens * size * dims.item, 16 // dims.item
    raw = cache.pool("kv", layers * blocks * page, blocks, align=256)
    planes = raw.view(kind(dims.dtype)).reshape(layers, blocks, 2, -1)
    k = split(planes[:, :, 0], heads, size // x, tokens, x).transpose(0, 1, 2, 4, 3, 5)
    v = split(planes[:, :, 1], heads, size, tokens).transpose(0, 1, 2, 4, 3)
    given = attention(dims, page_bytes=page, **document)
    return cache.group(key_value(dims, k, v, ("HNDD", "HND")), blocks, **given)


def sglang(dims: Dims, **document: Any) -> Cache:
    """SGLang: a buffer of keys and one of values for each layer, `[slots, H, D]`."""
    cache = Cache()
    page = dims.heads * dims.tokens * dims.size * dims.item
    views = []
    for place, side in enumerate("kv"):
        buffers = []
        for layer in range(dims.layers):
            raw = cache.pool(f"{side}{layer}", dims.blocks * page, dims.blocks, block_bytes=page)
            slots = raw.view(kind(dims.dtype)).reshape(-1, dims.heads, dims.size)
            buffers.append(
                slots.reshape(dims.blocks, dims.tokens, dims.heads, dims.size).swapaxes(1, 2)
            )
        views.append(View(side, dims.dtype, "HND", buffers, place))
    return cache.group(views, dims.blocks, **attention(dims, page_bytes=page, **document))


def trtllm(dims: Dims, **document: Any) -> Cache:
    """TensorRT-LLM: one pool `[blocks, layers, 2, H, N, D]`."""
    cache = Cache()
    layers, blocks, heads, tokens, size, _ = dims
    page = 2 * heads * tokens * size * dims.item
    raw = cache.pool("kv", blocks * layers * page, blocks, block_bytes=layers * page, align=256)
    whole = raw.view(kind(dims.dtype)).reshape(blocks, layers, 2, heads, tokens, size)
    k, v = whole[:, :, 0].swapaxes(0, 1), whole[:, :, 1].swapaxes(0, 1)
    return cache.group(
        key_value(dims, k, v), blocks, **attention(dims, page_bytes=page, **document)
    )


def odd(dims: Dims, **document: Any) -> Cache:
    """Nobody's: tokens in pairs, V and K alternating by element, pads after all that can have one.

    The pool begins with 16 bytes of nothing. A head's row ends with 8, a pair of tokens with 16, a
    page with 24 and a block with 40.
    """
    cache = Cache()
    layers, blocks, heads, tokens, size, _ = dims
    row = 2 * size * dims.item
    pair = 2 * heads * (row + 8)
    page = tokens // 2 * (pair + 16)
    block = layers * (page + 24)
    raw = cache.pool("odd", 16 + blocks * (block + 40), blocks, memory="host", align=8)
    pages = split(raw[16:].reshape(blocks, -1)[:, :block], layers, page + 24)[..., :page]
    pairs = split(pages, tokens // 2, pair + 16)[..., :pair]
    rows = split(pairs, 2, heads, row + 8)[..., :row].view(kind(dims.dtype))
    elements = split(rows, size, 2).transpose(1, 0, 4, 2, 3, 5, 6)
    views = key_value(dims, elements[..., 1], elements[..., 0], ("HNND", "HNND"))
    given = attention(dims, page_bytes=page + 24, **document)
    return cache.group(views, blocks, **given)


def padded(dims: Dims, page_pad: int, block_pad: int, **document: Any) -> Cache:
    """Layers inside of blocks, packed `[H, N, (K V)]`, with pads after pages and blocks."""
    cache = Cache()
    layers, blocks, heads, tokens, size, _ = dims
    used = 2 * heads * tokens * size * dims.item
    page = used + page_pad
    block = layers * page + block_pad
    raw = cache.pool("kv", blocks * block, blocks, block_bytes=block, align=256)
    pages = split(raw.reshape(blocks, block)[:, : layers * page], layers, page)[..., :used]
    cells = split(pages.view(kind(dims.dtype)), heads, tokens, 2, size).swapaxes(0, 1)
    views = key_value(dims, cells[..., 0, :], cells[..., 1, :])
    return cache.group(views, blocks, **attention(dims, page_bytes=page, **document))


def scaled_cells(layout: str, dims: Dims, **document: Any) -> Cache:
    """A scale behind each head's K and each head's V: `[K][f32][V][f32]` in each cell."""
    cache = Cache()
    half = dims.size + 4
    page = dims.heads * dims.tokens * 2 * half
    extents = dict(L=dims.layers, B=dims.blocks, H=dims.heads, N=dims.tokens)
    axes = layout[:4]
    raw = cache.pool("kv", dims.layers * dims.blocks * page, dims.blocks)
    cells = raw.reshape(*(extents[axis] for axis in axes), 2, half)
    cells = cells.transpose(*(axes.index(axis) for axis in "LBHN"), 4, 5)
    views = []
    for side, role in enumerate("kv"):
        cell = cells[..., side, :]
        views.append(View(role, dims.dtype, "HND", list(cell[..., : dims.size])))
        scales = cell[..., dims.size :].view("<u4")[..., 0]
        views.append(View(f"{role}_scale", "f32", "HN", list(scales)))
    whole = page if axes[:2] in ("LB", "BL") else 0
    given = {"codec": {"id": "per_token_head"}, "page_bytes": whole} | document
    return cache.group(views, dims.blocks, **attention(dims, **given))


def scaled_planes(dims: Dims, **document: Any) -> Cache:
    """Elements in planes, scales in a pool of their own: `[N, H, D]` twice; `[B, L, 2, N, H]`."""
    cache = Cache()
    layers, blocks, heads, tokens, size, _ = dims
    page = 2 * heads * tokens * size
    raw = cache.pool("elements", layers * blocks * page, blocks)
    planes = raw.reshape(layers, blocks, 2, tokens, heads, size).swapaxes(3, 4)
    side = cache.pool("scales", blocks * layers * 2 * tokens * heads * 4, blocks).view("<u4")
    scales = side.reshape(blocks, layers, 2, tokens, heads).transpose(1, 0, 2, 4, 3)
    views = []
    for number, role in enumerate("kv"):
        views.append(View(role, dims.dtype, "HND", list(planes[:, :, number])))
        views.append(View(f"{role}_scale", "f32", "HN", list(scales[:, :, number]), 1))
    given = {"codec": {"id": "per_token_head"}} | document
    return cache.group(views, blocks, **attention(dims, **given))


def latent(order: str, dims: Dims, rope_size: int, **document: Any) -> Cache:
    """MLA: in each cell `[latent][rope]`; `order` is `LB` or `BL`."""
    cache = Cache()
    layers, blocks, _, tokens, size, _ = dims
    page = tokens * (size + rope_size) * dims.item
    raw = cache.pool("kv", layers * blocks * page, blocks, align=256)
    cells = raw.view(kind(dims.dtype)).reshape(*_ordered(order, dims), tokens, -1)
    cells = cells if order == "LB" else cells.swapaxes(0, 1)
    views = [
        View("latent", dims.dtype, "ND", list(cells[..., :size])),
        View("rope", dims.dtype, "ND", list(cells[..., size:])),
    ]
    given = {"kind": "mla", "null_block": 0, "tokens_per_block": tokens, "page_bytes": page}
    return cache.group(views, blocks, **(given | document))


def rows_656(order: str, dims: Dims, **document: Any) -> Cache:
    """656 bytes for each token: 512 elements, four scales of 128 each, 64 rotary elements."""
    cache = Cache()
    page = dims.tokens * 656
    raw = cache.pool("kv", dims.layers * dims.blocks * page, dims.blocks)
    rows = raw.reshape(*_ordered(order, dims), dims.tokens, 656)
    rows = rows if order == "LB" else rows.swapaxes(0, 1)
    parts = rows[..., :512], rows[..., 512:528], rows[..., 528:]
    return _views_656(cache, dims, parts, page, document)


def planes_656(dims: Dims, **document: Any) -> Cache:
    """The same elements in three planes for each page, with 32 bytes of pad behind."""
    cache = Cache()
    page = dims.tokens * 656 + 32
    raw = cache.pool("kv", dims.layers * dims.blocks * page, dims.blocks)
    pages = raw.reshape(dims.layers, dims.blocks, page)
    at, parts = 0, []
    for width in (512, 16, 128):
        parts.append(split(pages[..., at : at + dims.tokens * width], dims.tokens, width))
        at += dims.tokens * width
    return _views_656(cache, dims, (parts[0], parts[1], parts[2]), page, document)


def recurrent(dims: Dims, conv: int, pad: int, **document: Any) -> Cache:
    """A convolution state in bf16, then a state of `dims.size` in f32, then a pad."""
    cache = Cache()
    used = conv * 2 + dims.size * 4
    page = used + pad
    raw = cache.pool("states", dims.layers * dims.blocks * page, dims.blocks)
    pages = raw.reshape(dims.layers, dims.blocks, 1, page)
    views = [
        View("conv", "bf16", "ND", list(pages[..., : conv * 2].view("<u2"))),
        View("ssm", "f32", "ND", list(pages[..., conv * 2 : used].view("<u4"))),
    ]
    given = {"id": "states", "kind": "recurrent", "null_block": 0, "page_bytes": page}
    given |= {"tokens_per_block": dims.tokens, "tokens_per_state": [dims.tokens, 1]}
    return cache.group(views, dims.blocks, **(given | document))


def overlay(dims: Dims, window: int) -> Cache:
    """Two full layers and two of a sliding window on the same bytes, blocks outermost.

    The window's cells are half as long, so its pages cover half of a block.
    """
    cache = Cache()
    layers, blocks, heads, tokens, size, _ = dims
    block = layers * heads * tokens * 2 * size * dims.item
    raw = cache.pool("kv", blocks * block, blocks, block_bytes=block)
    by_block = raw.view(kind(dims.dtype)).reshape(blocks, -1)
    for table, (name, used) in enumerate({"full": size, "window": size // 2}.items()):
        page = heads * tokens * 2 * used
        cells = split(by_block[:, : layers * page], layers, heads, tokens, 2, used).swapaxes(0, 1)
        document: dict[str, Any] = {"id": name, "page_bytes": page * dims.item}
        document["layers"] = [2 * layer + table for layer in range(layers)]
        if table:
            document |= {"table": table, "kind": "sliding_window", "window": window}
        views = key_value(dims, cells[..., 0, :], cells[..., 1, :])
        cache.group(views, blocks, **attention(dims, **document))
    return cache


def _ordered(order: str, dims: Dims) -> tuple[int, int]:
    return (dims.layers, dims.blocks) if order == "LB" else (dims.blocks, dims.layers)


def _views_656(
    cache: Cache,
    dims: Dims,
    parts: tuple[Array, Array, Array],
    page: int,
    document: dict[str, Any],
) -> Cache:
    elements, scales, rope = parts
    views = [
        View("latent", "e4m3", "ND", list(elements)),
        View("latent_scale", "f32", "NG", list(scales.view("<u4"))),
        View("rope", "bf16", "ND", list(rope.view("<u2"))),
    ]
    given = {"kind": "mla", "null_block": 0, "tokens_per_block": dims.tokens, "page_bytes": page}
    given["codec"] = {"id": "fp8_ds_mla_656"}
    return cache.group(views, dims.blocks, **(given | document))
