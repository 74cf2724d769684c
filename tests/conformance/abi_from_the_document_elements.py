"""One state on its way from page to page, as bits or as numbers under another codec (8, 9)."""

from typing import NamedTuple

from conformance.abi_from_the_document_codecs import page_scale, param_scale, value_roles
from conformance.abi_from_the_document_compare import Meeting, as_bits
from conformance.abi_from_the_document_fields import number
from conformance.abi_from_the_document_numbers import (
    encode,
    inline_scale,
    single,
    with_zero_point,
)
from conformance.abi_from_the_document_spelling import Tree
from conformance.abi_from_the_document_values import Cache, Index, role_of

Where = tuple[Tree, int, int]  # a group, a layer position, a block


class Parts(NamedTuple):
    """A source, and its group that has layers of the destination's group."""

    cache: Cache
    met: Meeting


class State(NamedTuple):
    """One state of one layer and head of the model."""

    layer: int
    head: int
    old: tuple[int, int]  # the block and the state's index in it
    new: tuple[int, int]


def move_state(parts: Parts, target: Cache, state: State) -> None:
    """Move all roles of a state."""
    source, met = parts
    old = met.old, met.old["layers"].index(state.layer), state.old[0]
    new = met.new, met.new["layers"].index(state.layer), state.new[0]
    come = {"H": state.head - met.old["owner"]["heads"][0], "N": state.old[1]}
    goes = {"H": state.head - met.new["owner"]["heads"][0], "N": state.new[1]}
    for name in value_roles(met.new):
        if not as_bits(met, name, state.layer):
            width = role_of(met.new, name)["shape"]["D"]
            values = [source.value(name, *old, come | {"D": i}) for i in range(width)]
            numbers = [value for value in values if value is not None]
            _store(target, name, new, goes, numbers)
            continue
        scale = page_scale(met.new, name)
        for role in [name, scale] if scale else [name]:
            shape = role_of(met.new, role)["shape"]
            for i in range(shape.get("D", shape.get("G", 1))):
                element = source.get(role, *old, come | {"D": i, "G": i})
                target.put(role, *new, goes | {"D": i, "G": i}, element)


def _store(cache: Cache, name: str, where: Where, at: Index, values: list[float]) -> None:
    """Write the values of one state under the codec of the destination (8)."""
    g, layer, _ = where
    scale = page_scale(g, name)
    num_scales = role_of(g, scale)["shape"].get("G", 1) if scale else 1
    width = len(values) // num_scales
    for group in range(num_scales):
        first = group * width
        pattern, elements = _encoded(g, name, layer, values[first : first + width])
        if scale:
            cache.put(scale, *where, {**at, "G": group}, pattern)
        for i, element in enumerate(elements, first):
            cache.put(name, *where, {**at, "D": i}, element)


def _encoded(g: Tree, name: str, layer: int, values: list[float]) -> tuple[int, list[int]]:
    """The pattern of the scale in the page, or 0 without one, and the elements under it."""
    if g["codec"]["id"] == "int4_zero_point":
        return with_zero_point(values)
    text, scale = param_scale(g, name, g["layers"][layer]), page_scale(g, name)
    param, dtype = number(text) if text else 1.0, role_of(g, name)["dtype"]
    pattern, divisor = 0, 1.0
    if scale:
        scale_dtype = role_of(g, scale)["dtype"]
        divisor = inline_scale(scale_dtype, dtype, values, param)
        pattern = encode(scale_dtype, divisor)
    return pattern, [encode(dtype, single(single(x / param) / divisor)) for x in values]
