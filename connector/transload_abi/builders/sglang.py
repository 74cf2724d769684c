"""Descriptors of SGLang's caches: memory of its own for each layer, counted in token slots.

A layer has a K buffer and a V buffer `[slots, H, D]`, or with MLA one buffer `[slots, 1, D]` of
latent and rotary part. A page is `page_size` consecutive slots; pages are this descriptor's blocks.
The slots of the first page take what belongs to nobody, so page 0 stands for "not held".
"""

from __future__ import annotations

from typing import NamedTuple

from transload_abi.builders import by_hand
from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.errors import Contradiction
from transload_abi.types import (
    VERSION,
    Descriptor,
    Group,
    Kind,
    Memory,
    Model,
    Owner,
    Place,
    Pool,
    Producer,
    Role,
)


class Slots(NamedTuple):
    """The buffers' common shape.

    Attributes:
        layers: The model's layer numbers, in the buffers' order.
        num_slots: Tokens in a buffer, the first page's included.
        page_size: Tokens of a page.
        memory: Where the buffers are.
        align: Bytes that each buffer's start is aligned to.
    """

    layers: tuple[int, ...]
    num_slots: int
    page_size: int
    memory: Memory = "device"
    align: int = 256


def attention(
    model: Model,
    slots: Slots,
    *,
    heads: tuple[int, int, int],
    head_size: int,
    value_size: int = 0,
    dtype: str = "bf16",
    replica: tuple[int, int] = (0, 1),
) -> Descriptor:
    """Separate K and V buffers; their pools are `k0`, `k1`, ... and `v0`, `v1`, ... by layer.

    Args:
        model: Whose cache it is.
        slots: The buffers' shape.
        heads: First head, end, and heads of the whole model.
        head_size: Elements of a head of K.
        value_size: Of V; 0: as K.
        dtype: `f32`, `f16` or `bf16`.
        replica: Ordinal and number of ranks with the same heads.

    Raises:
        DescriptorError: Slots are no whole pages, or something else contradicts itself.
    """
    num_heads = heads[1] - heads[0]
    roles = tuple(
        by_hand.role(
            name,
            dtype,
            place=place,
            H=(num_heads, size),
            N=(slots.page_size, num_heads * size),
            D=(size, 1),
        )
        for place, (name, size) in enumerate((("k", head_size), ("v", value_size or head_size)))
    )
    return _described(model, slots, "full", roles, Owner(heads=heads, replica=replica))


def latent(
    model: Model,
    slots: Slots,
    *,
    kv_lora_rank: int = 512,
    rope_size: int = 64,
    dtype: str = "bf16",
    replica: tuple[int, int] = (0, 1),
) -> Descriptor:
    """One buffer of latent and rotary part for each layer; their pools are `k0`, `k1`, ...

    Raises:
        DescriptorError: Slots are no whole pages, or something else contradicts itself.
    """
    row = kv_lora_rank + rope_size
    roles = (
        by_hand.role("latent", dtype, N=(slots.page_size, row), D=(kv_lora_rank, 1)),
        by_hand.role("rope", dtype, first=kv_lora_rank, N=(slots.page_size, row), D=(rope_size, 1)),
    )
    return _described(model, slots, "mla", roles, Owner(replica=replica))


def _described(
    model: Model, slots: Slots, kind: Kind, roles: tuple[Role, ...], owner: Owner
) -> Descriptor:
    num_pages, rest = divmod(slots.num_slots, slots.page_size)
    if rest:
        raise Contradiction(
            f"{slots.num_slots} slots are no pages of {slots.page_size}", "num_slots"
        )
    pools, places = _buffers(slots, num_pages, roles)
    group = Group(
        id="attention",
        kind=kind,
        layers=slots.layers,
        tokens_per_block=slots.page_size,
        places=places,
        roles=roles,
        null_block=0,
        owner=owner,
    )
    found = Descriptor(
        abi=VERSION,
        model=model,
        pools=pools,
        groups=(group,),
        producer=Producer(engine="sglang"),
    )
    check(found)
    return canonical(found)


def _buffers(
    slots: Slots, num_pages: int, roles: tuple[Role, ...]
) -> tuple[tuple[Pool, ...], tuple[Place, ...]]:
    """A buffer for each layer and place that roles have."""
    pools: list[Pool] = []
    places: list[Place] = []
    for place in range(1 + max(role.place for role in roles)):
        page_bytes = sum(_page_bits(role) for role in roles if role.place == place) // 8
        names = tuple(f"{'kv'[place]}{layer}" for layer in slots.layers)
        places.append(Place(pools=names, block_stride=page_bytes, page_bytes=page_bytes))
        pools += [
            Pool(
                id=name,
                memory=slots.memory,
                num_bytes=page_bytes * num_pages,
                num_blocks=num_pages,
                align=slots.align,
                block_bytes=page_bytes,
            )
            for name in names
        ]
    return tuple(pools), tuple(places)


def _page_bits(role: Role) -> int:
    bits = role.bits
    for extent in role.shape.values():
        bits *= extent
    return bits
