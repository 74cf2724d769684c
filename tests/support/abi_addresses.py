"""Where a descriptor says that one element is, by the formula of `transload_abi.types`."""

from __future__ import annotations

from transload_abi.types import Descriptor, Group


def bit_of(group: Group, name: str, *, layer: int, block: int, **index: int) -> tuple[str, int]:
    """The pool and the bit of an element.

    Args:
        group: Of a descriptor.
        name: The role.
        layer: Position among the group's layers.
        block: Block id.
        index: Of the element, by axis; 0 where left out.
    """
    role = group.role(name)
    assert role is not None
    place = group.places[role.place]
    start = place.offset + layer * place.layer_stride + block * place.block_stride
    bit = 8 * start + role.base_bits
    for axis, div, extent, stride in role.terms:
        bit += index.get(axis, 0) // div % extent * stride
    return place.pools[layer if len(place.pools) > 1 else 0], bit


def byte_of(group: Group, name: str, *, layer: int, block: int, **index: int) -> int:
    """The byte of an element whose pool is known."""
    _, bit = bit_of(group, name, layer=layer, block=block, **index)
    assert bit % 8 == 0
    return bit // 8


def holder(descriptor: Descriptor, layer: int) -> tuple[Group, int]:
    """The first group with one of the model's layers, and the layer's position there."""
    group = next(group for group in descriptor.groups if layer in group.layers)
    return group, group.layers.index(layer)
