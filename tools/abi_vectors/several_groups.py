"""Caches of several groups, each laid out by itself in pools of its own."""

from __future__ import annotations

from abi_vectors import formats
from abi_vectors.formats import Dims
from abi_vectors.pages import Cache


def joined(caches: dict[str, Cache]) -> Cache:
    """One cache of several; the names begin the names of their pools."""
    whole = Cache()
    for prefix, cache in caches.items():
        names = {name: f"{prefix}-{name}" for name in cache.pools}
        for name, memory in cache.memory.items():
            whole.memory[names[name]] = memory
            whole.pools[names[name]] = cache.pools[name] | {"id": names[name]}
        for group in cache.groups.values():
            for place in group.document["places"]:
                place["pools"] = [names[name] for name in place["pools"]]
        whole.groups |= cache.groups
    return whole


def encoder_decoder(layout: str, dims: Dims) -> Cache:
    """Layers 0 and 1 of the decoder's own tokens, and 4 and 5 of the encoder's positions."""
    own = formats.vllm(layout, dims, id="self")
    cross = formats.vllm(layout, dims, id="cross", kind="cross", layers=[4, 5], table=1)
    return joined({"self": own, "cross": cross})


def hybrid(layout: str, dims: Dims, ids: tuple[str, str], *, is_state_first: bool = False) -> Cache:
    """Layers that have attention and a recurrent state.

    Args:
        layout: Of the attention.
        dims: Likewise.
        ids: Of the groups, the attention's first.
        is_state_first: Whether the state has table 0, and the attention 1.
    """
    own = {"table": 1} if is_state_first else {}
    attention = formats.vllm(layout, dims, id=ids[0], **own)
    states = Dims(blocks=dims.blocks, tokens=16, size=40)
    rest = {} if is_state_first else {"table": 1}
    recurrent = formats.recurrent(states, conv=18, pad=12, id=ids[1], **rest)
    return joined({"attention": attention, "states": recurrent})


def with_draft(layout: str, dims: Dims, size: int) -> Cache:
    """A group, and one of the same layers that is not transferable, with heads of another size."""
    main = formats.vllm(layout, dims)
    draft = formats.vllm(
        layout, dims._replace(size=size, layers=1), id="draft", layers=[1], transferable=False
    )
    return joined({"main": main, "draft": draft})
