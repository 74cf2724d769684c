"""Caches as numpy arrays over raw bytes, and the descriptor that follows from how they lie.

A format slices, reshapes and transposes the bytes of its pools until each role is an array whose
axes are the role's; the descriptor is what numpy says of those arrays: where they start and what
their strides are. Nothing here computes an address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Document = dict[str, Any]

FILL = 0xA5
KINDS = {"f32": "<u4", "f16": "<u2", "bf16": "<u2", "i64": "<u8"}
HALF_BYTES = ("e2m1", "u4")
"""Of four bits: an array's byte holds two neighbours, the first of them in its lower half."""
_ORDER = "HNDG"


def kind(dtype: str) -> str:
    """The unsigned integer that holds an element; one of four bits has a byte outside of pools."""
    return KINDS.get(dtype, "u1")


class View(NamedTuple):
    """A role's elements as they lie in memory.

    Attributes:
        role: Its name.
        dtype: Of its elements.
        axes: A letter for each axis after the blocks; an axis that is split into digits has its
            letter once for each, the most significant first.
        layers: For each layer an array `[blocks, *axes]` in a pool's bytes. Of elements of four
            bits `D`, the last axis, counts pairs.
        place: Roles of one number share a place.
    """

    role: str
    dtype: str
    axes: str
    layers: list[Array]
    place: int = 0

    @property
    def shape(self) -> dict[str, int]:
        """Extents of the whole axes."""
        extents: dict[str, int] = {}
        for axis, extent in zip(self.axes, self.layers[0].shape[1:], strict=True):
            extents[axis] = extents.get(axis, 1) * extent
        if self.dtype in HALF_BYTES:
            extents["D"] *= 2
        return extents

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape of a block's elements with whole axes."""
        return tuple(self.shape.values())


@dataclass
class Group:
    """Some roles, and the rest of their document."""

    document: Document
    views: list[View]
    num_blocks: int

    def view(self, role: str) -> View:
        """The view of a role."""
        return next(view for view in self.views if view.role == role)


@dataclass
class Cache:
    """Pools with their bytes, and groups in them."""

    memory: dict[str, Array] = field(default_factory=dict)
    pools: dict[str, Document] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    model: Document = field(default_factory=lambda: model())

    def pool(self, name: str, num_bytes: int, num_blocks: int, **rest: Any) -> Array:
        """A new pool's bytes, all unwritten."""
        self.memory[name] = np.full(num_bytes, FILL, np.uint8)
        document = {"id": name, "memory": "device", "num_blocks": num_blocks} | rest
        self.pools[name] = document | {"num_bytes": num_bytes}
        return self.memory[name]

    def group(self, views: list[View], num_blocks: int, **document: Any) -> Cache:
        """Adds a group; `page_bytes` is a number for all places or one for each."""
        given = {"id": "attention", "kind": "full"} | document
        given.setdefault("layers", list(range(len(views[0].layers))))
        page_bytes = given.pop("page_bytes", 0)
        views = sorted(views, key=lambda view: view.role)
        numbers = list(dict.fromkeys(view.place for view in views))
        starts = {
            number: min(self._at(each.layers[0])[1] for each in views if each.place == number)
            for number in numbers
        }
        given["places"] = [
            self._place([v for v in views if v.place == number], starts[number], page_bytes)
            for number in numbers
        ]
        given["roles"] = [
            self._role(view, starts[view.place], numbers.index(view.place)) for view in views
        ]
        self.groups[given["id"]] = Group(given, views, num_blocks)
        return self

    def descriptor(self) -> Document:
        """The descriptor in its canonical form."""
        groups = [group.document for group in self.groups.values()]
        return {
            "abi": "kvabi/1",
            "groups": sorted(groups, key=lambda each: (each.get("table", 0), each["id"])),
            "model": self.model,
            "pools": [self.pools[name] for name in sorted(self.pools)],
        }

    def _at(self, array: Array) -> tuple[str, int]:
        """Which pool an array lies in, and its first byte there."""
        start = array.__array_interface__["data"][0]
        for name, memory in self.memory.items():
            first = memory.__array_interface__["data"][0]
            if first <= start < first + len(memory):
                return name, start - first
        raise LookupError("an array that is no view of a pool: something was copied")

    def _place(self, views: list[View], start: int, page_bytes: int) -> Document:
        layers = views[0].layers
        places = [self._at(layer) for layer in layers]
        pools = list(dict.fromkeys(name for name, _ in places))
        strides = {after[1] - before[1] for before, after in pairwise(places)}
        assert len(pools) in (1, len(layers)), "one pool, or one for each layer"
        assert len(strides) <= 1, "layers are equally far apart"
        document = {"pools": pools, "block_stride": layers[0].strides[0]}
        more = {"offset": start, "layer_stride": max(strides, default=0), "page_bytes": page_bytes}
        return document | {name: value for name, value in more.items() if value}

    def _role(self, view: View, start: int, place: int) -> Document:
        array = view.layers[0]
        document: Document = {"role": view.role, "dtype": view.dtype, "shape": view.shape}
        document["bits"] = 4 if view.dtype in HALF_BYTES else 8 * array.itemsize
        terms = _terms(view)
        base = 8 * (self._at(array)[1] - start)
        more = {"terms": terms, "base_bits": base, "place": place}
        return document | {name: value for name, value in more.items() if value}


def model(**given: Any) -> Document:
    """A model's document."""
    document = {
        "name": "example/model",
        "num_layers": 8,
        "rope": {"state": "applied", "params": {"rope_theta": 10000}},
        "weights": "sha256:" + "5e" * 32,
    }
    return document | given


def write(view: View, layer: int, block: int, elements: Array) -> None:
    """Writes one page's elements, `[*axes]`."""
    page = view.layers[layer][block]
    if view.dtype in HALF_BYTES:
        elements = elements[..., 0::2] | elements[..., 1::2] << 4
    page[...] = elements.reshape(page.shape)


def read(view: View, layer: int, block: int) -> Array:
    """A copy of one page's elements, `[*axes]`."""
    page = view.layers[layer][block]
    if view.dtype in HALF_BYTES:
        page = np.stack([page & 15, page >> 4], axis=-1)
    found: Array = page.reshape(view.extents)
    return found.copy()


def _terms(view: View) -> list[list[Any]]:
    """The digits of each axis, the least significant first; those that run on are one."""
    array = view.layers[0]
    digits = list(zip(view.axes, array.shape[1:], array.strides[1:], strict=True))
    digits = [(axis, extent, 8 * stride) for axis, extent, stride in digits]
    if view.dtype in HALF_BYTES:
        digits.append(("D", 2, 4))
    terms: list[list[Any]] = []
    for axis in _ORDER:
        div, own = 1, [digit for digit in digits if digit[0] == axis]
        for _, extent, stride in reversed(own):
            if extent == 1:
                continue
            last = terms[-1] if terms and terms[-1][0] == axis else None
            if last and stride == last[3] * last[2]:
                last[2] *= extent
            else:
                terms.append([axis, div, extent, stride])
            div *= extent
    return terms
