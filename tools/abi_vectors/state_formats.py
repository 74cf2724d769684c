"""How engines lay out the states of recurrent layers, and pages that nobody describes."""

from typing import Any

from abi_vectors.formats import Dims, attention, key_value, split
from abi_vectors.pages import Array, Cache, View, kind


def mamba(order: str, dims: Dims, parts: tuple[int, int], pad: int = 0, **owners: Any) -> Cache:
    """A Mamba layer: the convolution's three columns `[3, X | B | C]` in bf16, then the state.

    A head has 4 channels and a state `[4, 8]` in f32; one of B's and C's groups has 8 channels.

    Args:
        order: `LB` or `BL`.
        dims: Layers, blocks, tokens of a block.
        parts: Heads, and groups of B and C, that are held.
        pad: Bytes behind each page.
        owners: By group, `heads` or `groups`, its `owner.heads`.
    """
    heads, groups = parts
    channels = heads * 4 + 2 * groups * 8
    used = 3 * channels * 2 + heads * 4 * 8 * 4
    cache, pages = _pages(order, dims, used, pad)
    columns = split(pages[..., : 6 * channels].view("<u2"), 3, channels)
    views = [
        _columns("conv_x", columns[..., : heads * 4], heads),
        _columns("conv_b", columns[..., heads * 4 : heads * 4 + groups * 8], groups),
        _columns("conv_c", columns[..., heads * 4 + groups * 8 :], groups),
        _by_head("ssm_h", pages[..., 6 * channels : used], heads),
    ]
    _state_group(cache, dims, "groups", views[1:3], owners.get("groups", [0, groups, groups]))
    return _state_group(
        cache, dims, "heads", [views[0], views[3]], owners.get("heads", [0, heads, heads])
    )


def delta_net(order: str, dims: Dims, parts: tuple[int, int], **owners: Any) -> Cache:
    """A gated delta net: columns `[3, Q | K | V]` of the convolution in bf16, then the state.

    A head of Q and K has 8 channels, one of V 4 and a state `[4, 8]` in f32.

    Args:
        order: `LB` or `BL`.
        dims: Layers, blocks, tokens of a block.
        parts: Heads of Q and K, and heads of V, that are held; one group where they are as many.
        owners: By group, `heads` or `key_heads`, its `owner.heads`.
    """
    key_heads, heads = parts
    keys = key_heads * 8
    channels = 2 * keys + heads * 4
    used = 3 * channels * 2 + heads * 4 * 8 * 4
    cache, pages = _pages(order, dims, used, 0)
    columns = split(pages[..., : 6 * channels].view("<u2"), 3, channels)
    of_keys = [
        _columns("conv_q", columns[..., :keys], key_heads),
        _columns("conv_k", columns[..., keys : 2 * keys], key_heads),
    ]
    of_heads = [
        _columns("conv_v", columns[..., 2 * keys :], heads),
        _by_head("ssm_h", pages[..., 6 * channels : used], heads),
    ]
    own = owners.get("heads", [0, heads, heads])
    if key_heads == heads:
        return _state_group(cache, dims, "heads", of_keys + of_heads, own)
    of_key_heads = owners.get("key_heads", [0, key_heads, key_heads])
    _state_group(cache, dims, "key_heads", of_keys, of_key_heads)
    return _state_group(cache, dims, "heads", of_heads, own)


def padded_to_attention(dims: Dims, conv: int, size: int) -> Cache:
    """Attention, and flattened states on the same pages: padded to be as long as those."""
    cache = Cache()
    layers, blocks, heads, tokens, width, _ = dims
    page = 2 * heads * tokens * width * dims.item
    raw = cache.pool("kv", layers * blocks * page, blocks, align=256)
    pages = raw.reshape(layers, blocks, page)
    cells = split(pages.view(kind(dims.dtype)), heads, tokens, 2, width)
    views = key_value(dims, cells[..., 0, :], cells[..., 1, :])
    given: dict[str, Any] = {"page_bytes": page, "layers": list(range(layers))}
    cache.group(views, blocks, **attention(dims, **given))
    states = split(pages[..., : conv * 2 + size * 4], 1, -1)
    views = [
        View("conv", "bf16", "ND", list(states[..., : conv * 2].view("<u2"))),
        View("ssm", "f32", "ND", list(states[..., conv * 2 :].view("<u4"))),
    ]
    given |= {"layers": list(range(layers, 2 * layers)), "table": 1, "tokens_per_block": 2 * tokens}
    return cache.group(views, blocks, **_recurrent("states", 2 * tokens) | given)


def opaque_pages(dims: Dims, page: int, **document: Any) -> Cache:
    """Pages of which only the size is said."""
    cache = Cache()
    raw = cache.pool("kv", dims.layers * dims.blocks * page, dims.blocks, align=256)
    views = [View("page", "u8", "D", list(raw.reshape(dims.layers, dims.blocks, page)))]
    given: dict[str, Any] = {"opaque": "example/1.0 backend=of-its-own", "page_bytes": page}
    given |= {"codec": {"id": "opaque"}}
    return cache.group(views, dims.blocks, **attention(dims, **(given | document)))


def host_and_device(dims: Dims, num_host_blocks: int) -> Cache:
    """All tokens in the host's memory, and a copy of some that the device keeps for itself."""
    cache = Cache()
    page = 2 * dims.tokens * dims.size * dims.item
    for table, (name, memory, blocks) in enumerate(
        (("source", "host", num_host_blocks), ("hot", "device", dims.blocks))
    ):
        raw = cache.pool(name, dims.layers * blocks * page, blocks, memory=memory, align=64)
        rows = raw.view(kind(dims.dtype)).reshape(dims.layers, blocks, dims.tokens, -1)
        views = [
            View("latent", dims.dtype, "ND", list(rows[..., : dims.size])),
            View("rope", dims.dtype, "ND", list(rows[..., dims.size :])),
        ]
        given: dict[str, Any] = {"id": name, "kind": "mla", "page_bytes": page, "null_block": 0}
        given |= {"tokens_per_block": dims.tokens}
        given |= {"table": table, "transferable": False} if table else {}
        cache.group(views, blocks, **given)
    return cache


def _recurrent(name: str, tokens: int) -> dict[str, Any]:
    given: dict[str, Any] = {"id": name, "kind": "recurrent", "null_block": 0}
    return given | {"tokens_per_block": tokens, "tokens_per_state": [tokens, 1]}


def _pages(order: str, dims: Dims, used: int, pad: int) -> tuple[Cache, Array]:
    """A cache whose one pool's pages hold one state each: `[layers, blocks, 1, bytes]`."""
    cache, page = Cache(), used + pad
    block = {"block_bytes": dims.layers * page} if order == "BL" else {}
    raw = cache.pool("states", dims.layers * dims.blocks * page, dims.blocks, **block)
    if order == "LB":
        return cache, raw.reshape(dims.layers, dims.blocks, 1, page)[..., :used]
    return cache, raw.reshape(dims.blocks, dims.layers, 1, page).swapaxes(0, 1)[..., :used]


def _columns(role: str, columns: Array, heads: int) -> View:
    """A convolution's `[..., columns, channels]` by head, channels outside of columns."""
    parts = split(columns, heads, -1)
    return View(role, "bf16", "HNDD", list(parts.transpose(0, 1, 4, 2, 5, 3)))


def _by_head(role: str, state: Array, heads: int) -> View:
    found = split(state.view("<u4"), heads, -1).swapaxes(2, 3)
    return View(role, "f32", "HND", list(found))


def _state_group(cache: Cache, dims: Dims, name: str, views: list[View], heads: list[int]) -> Cache:
    owner = {} if heads == [0, 1, 1] else {"owner": {"heads": heads}}
    return cache.group(views, dims.blocks, **_recurrent(name, dims.tokens), **owner)
