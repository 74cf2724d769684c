"""A request's tokens in a cache: what each of its states holds, and the slots it lies in.

A state's elements depend on nothing but layer, role, head and position, so caches that hold parts
of the same request agree without anything being copied between them.
"""

from __future__ import annotations

import numpy as np

from abi_vectors.numbers import elements, nearest_bf16, scale_elements, worth
from abi_vectors.pages import Array, Cache, Group, View, read, write
from abi_vectors.transfers import ConvertCase

_SEEDS = ("k", "v", "k_scale", "v_scale", "latent", "latent_scale", "rope", "conv", "ssm")


def fill(
    cache: Cache,
    blocks: dict[int, list[int]],
    num_tokens: int,
    first_token: int = 0,
    convert: ConvertCase | None = None,
) -> None:
    """Writes the tokens from `first_token` to `num_tokens` into the blocks.

    Args:
        cache: Where.
        blocks: By table; the last holds the last token.
        num_tokens: Of the request.
        first_token: The first to write; 0 where the group holds a slice of the tokens.
        convert: Its sources' elements, changed as it says; None: the request's own elements.
    """
    for group in cache.groups.values():
        ids = blocks[group.document.get("table", 0)]
        tokens, states = group.document.get("tokens_per_state", [1, 1])
        first, end = first_token * states // tokens, num_tokens * states // tokens
        for view in group.views:
            size = view.shape["N"]
            for position, layer in enumerate(group.document["layers"]):
                found = _states(group, view, layer, end, convert)
                held = _held(group, end)
                found = found[:, held] if "H" in view.axes else found[held]
                last = (len(held) - 1) // size
                for index, block in enumerate(ids, last - len(ids) + 1):
                    if block != group.document.get("null_block"):
                        part = slice(max(first, index * size), min(len(held), (index + 1) * size))
                        _write_part(view, position, block, found, part, index * size)


def _held(group: Group, end: int) -> list[int]:
    """The states below `end` that a rank of a context-parallel group holds, in its order."""
    given = group.document.get("owner", {}).get("tokens", {})
    rank, size, run = (given.get(name, 0) for name in ("rank", "size", "interleave"))
    return [state for state in range(end) if not size or state // run % size == rank]


def _write_part(
    view: View, position: int, block: int, found: Array, part: slice, start: int
) -> None:
    """Writes the states `part` of a request into a block that begins with state `start`."""
    if part.start >= part.stop:
        return
    page = read(view, position, block)
    axis = 1 if "H" in view.axes else 0
    here = slice(part.start - start, part.stop - start)
    leading = (slice(None),) * axis
    page[(*leading, here)] = found[(*leading, part)]
    write(view, position, block, page)


def _states(group: Group, view: View, layer: int, end: int, convert: ConvertCase | None) -> Array:
    """The elements of all states before `end`: of the heads that the group holds."""
    if convert is None or view.role not in convert.change:
        return _original(view, layer, end, group)
    source = next(
        each
        for source in convert.sources
        for each in source.cache.groups.values()
        if layer in each.document["layers"]
    )
    origin = source.view(view.role)
    values = worth(_original(origin, layer, end, group), origin.dtype)
    codec = source.document.get("codec", {"id": "none"})
    if codec["id"] == "fp8_per_tensor":
        text = codec["params"][f"scales.{view.role}"][source.document["layers"].index(layer)]
        values = values * np.frombuffer(bytes.fromhex(text[4:]), ">f4").astype(np.float32)
    elif codec["id"] != "none":
        scale_view = source.view(f"{view.role}_scale")
        scales = worth(_original(scale_view, layer, end, group), "f32")
        each = values.shape[-1] // (scales.shape[-1] if "G" in scale_view.axes else 1)
        spread = scales if "G" in scale_view.axes else scales[..., None]
        values = values * np.repeat(spread, each, axis=-1)
    wanted = convert.change[view.role]
    return values.view("<u4") if wanted == "f32" else nearest_bf16(values)


def _original(view: View, layer: int, end: int, group: Group) -> Array:
    """A role's elements for one layer, `[heads that the group holds, end, ...]`."""
    first, last, total = group.document.get("owner", {}).get("heads", [0, 1, 1])
    shape = view.shape
    rest = tuple(shape[axis] for axis in shape if axis not in "HN")
    per_head = []
    for head in range(total):
        seed = (layer * 16 + _SEEDS.index(view.role)) * 64 + head
        if view.role.endswith("_scale"):
            per_head.append(scale_elements((end, *rest), seed))
        else:
            per_head.append(elements(view.dtype, (end, *rest), seed, is_plain=True))
    return np.stack(per_head)[first:last] if "H" in shape else per_head[0]
