"""Keys and values in memory as a descriptor places them, read and written by its terms alone.

A role of a layer is one strided view of its pool: a dimension for the block, one for each digit of
`N`, `H` and `D` (outermost digit first), and one for an element's units. A unit is the widest
integer whose multiples all addresses are, so that no placement needs a path of its own. Knows no
layout by name.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from transload_abi.codecs import CODECS, scale_param
from transload_abi.floats import read_float
from transload_abi.types import Descriptor, Group, Owner, Role
from transload_engine.model.batch import Slots

DTYPES: Final = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
"""The descriptor's element types that keys and values can have here."""

_UNITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_CODECS: Final = ("none", "fp8_per_tensor")

Buffer = Any
"""Writable memory with Python's buffer protocol: a `bytearray`, a `SharedMemory.buf`, an `mmap`."""


class PagedCache:
    """A cache of keys and values, its blocks shared by all layers.

    Args:
        descriptor: Checked. All of its layers are of kind `full`, whole and of one block table.
        buffers: By pool, memory that outlives the cache; its bytes are kept as they are. None:
            memory of the cache's own, zeroed.

    Attributes:
        descriptor: As given.
        memory: By pool, uint8 `[num_bytes]`.
        block_size: Tokens of a block.

    Raises:
        ValueError: The descriptor says what this engine does not have, or a buffer is too small.
    """

    def __init__(self, descriptor: Descriptor, buffers: Mapping[str, Buffer] | None = None) -> None:
        self.descriptor = descriptor
        self.memory = _memory(descriptor, buffers)
        self.block_size = _block_size(descriptor)
        self._keys: dict[int, _Elements] = {}
        self._values: dict[int, _Elements] = {}
        for group in descriptor.groups:
            for position, layer in enumerate(group.layers):
                self._keys[layer] = self._elements(group, "k", position)
                self._values[layer] = self._elements(group, "v", position)

    def write(self, layer: int, slots: Slots, keys: Tensor, values: Tensor) -> None:
        """Store tokens' keys and values, f32 `[tokens, heads, head_dim]`; no slot comes twice."""
        self._keys[layer].write(slots, keys)
        self._values[layer].write(slots, values)

    def read(self, layer: int, block_ids: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """The first tokens that blocks hold: keys and values, f32 `[num_tokens, heads, head_dim]`.

        They are contiguous copies, whatever the placement: sums over them round alike. What was
        rounded on its way into the cache stays rounded.
        """
        return (
            self._keys[layer].read(block_ids, num_tokens),
            self._values[layer].read(block_ids, num_tokens),
        )

    def _elements(self, group: Group, name: str, position: int) -> "_Elements":
        role = group.role(name)
        assert role is not None, "a checked attention group has K and V"
        pools = group.places[role.place].pools
        memory = self.memory[pools[position if len(pools) > 1 else 0]]
        num_blocks = self.descriptor.pool(pools[0]).num_blocks
        return _Elements(memory, group, role, position, num_blocks)


class _Elements:
    """One role of one layer."""

    def __init__(
        self, memory: Tensor, group: Group, role: Role, position: int, num_blocks: int
    ) -> None:
        place = group.places[role.place]
        digits = {axis: _digits(role, axis) for axis in "NHD"}
        inner = [digit for axis in "NHD" for digit in digits[axis]]
        start = place.offset + position * place.layer_stride + role.base_bits // 8
        strides = [place.block_stride, *(bits // 8 for _, _, bits in inner)]
        element_bytes = role.bits // 8
        unit = math.gcd(element_bytes, start, *strides)
        num_units = element_bytes // unit
        whole = memory[: len(memory) // unit * unit].view(_UNITS[unit])
        self._view = whole.as_strided(
            (num_blocks, *(extent for _, extent, _ in inner), num_units),
            (*(stride // unit for stride in strides), 1),
            start // unit,
        )
        # Blocks are gathered in the order that they have in memory, and turned afterwards.
        dims = range(1, self._view.dim() - 1)
        stored = sorted(dims, key=self._view.stride, reverse=True)
        self._stored = self._view.permute(0, *stored, -1)
        self._to_view = (0, *(1 + stored.index(dim) for dim in dims), -1)
        self._token_digits = [(div, extent) for div, extent, _ in digits["N"]]
        self._shape = (role.shape["H"], role.shape["D"])
        self._dtype = DTYPES[role.dtype]
        self._scale = _scale(group, role, position)

    def read(self, block_ids: Tensor, num_tokens: int) -> Tensor:
        elements = self._stored.index_select(0, block_ids).view(self._dtype).permute(self._to_view)
        tokens = elements.reshape(-1, *self._shape)[:num_tokens]
        values = tokens.contiguous().to(torch.float32)
        return values if self._scale is None else values * self._scale

    def write(self, slots: Slots, values: Tensor) -> None:
        if self._scale is not None:
            values = values / self._scale
        if self._dtype.itemsize == 1:
            largest = torch.finfo(self._dtype).max
            values = values.clamp(-largest, largest)
        place = [slots.offsets // div % extent for div, extent in self._token_digits]
        inside = self._view.shape[1 + len(place) :]
        elements = values.to(self._dtype).contiguous()[..., None].view(self._view.dtype)
        self._view[(slots.block_ids, *place)] = elements.reshape(-1, *inside)


def _digits(role: Role, axis: str) -> list[tuple[int, int, int]]:
    """The terms of an axis as (div, extent, stride in bits), the outermost digit first."""
    found = [(div, extent, bits) for of, div, extent, bits in role.terms if of == axis]
    return sorted(found, reverse=True)


def _scale(group: Group, role: Role, position: int) -> float | None:
    """What elements are multiplied with, a binary32; None where they are the values."""
    if not CODECS[group.codec.id].has_scales_param:
        return None
    texts = group.codec.params[scale_param(role.role)]
    assert isinstance(texts, list), "a checked codec has a list of scales"
    return read_float(str(texts[position]))


def _memory(descriptor: Descriptor, buffers: Mapping[str, Buffer] | None) -> dict[str, Tensor]:
    if buffers is None:
        return {
            pool.id: torch.zeros(pool.num_bytes, dtype=torch.uint8) for pool in descriptor.pools
        }
    memory = {}
    for pool in descriptor.pools:
        view = memoryview(buffers[pool.id])
        if view.readonly or view.nbytes < pool.num_bytes:
            raise ValueError(
                f"pool {pool.id!r} needs {pool.num_bytes} writable bytes; its buffer has "
                f"{view.nbytes}, {'read-only' if view.readonly else 'writable'}"
            )
        memory[pool.id] = torch.frombuffer(view, dtype=torch.uint8, count=pool.num_bytes)
    return memory


def _block_size(descriptor: Descriptor) -> int:
    """Tokens of a block, the same in all groups; sees that this engine has all they need."""
    sizes = set()
    for group in descriptor.groups:
        heads = group.owner.heads
        is_whole = group.owner == Owner(heads=heads, replica=group.owner.replica)
        if group.kind != "full" or group.table or group.tokens_per_state != (1, 1):
            raise ValueError(f"group {group.id!r}: only blocks of all tokens, of one table")
        if not is_whole or heads[:2] != (0, heads[2]):
            raise ValueError(f"group {group.id!r}: only whole models")
        if group.opaque:
            raise ValueError(f"group {group.id!r}: only known bytes, and these are opaque")
        if group.codec.id not in _CODECS:
            raise ValueError(f"group {group.id!r}: codec {group.codec.id!r} is none of {_CODECS}")
        sizes.add(group.tokens_per_block)
    if len(sizes) != 1:
        raise ValueError(f"blocks of different lengths: {sorted(sizes)}")
    return sizes.pop()
