"""Reads and writes pages by nothing but their descriptor: what all else is held against.

Plain and slow on purpose: each element's address is computed by the formula of `types`, for all
elements at once. Elements are whole bytes; no dtype of this version is smaller.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from transload_abi.codecs import CODECS, scale_param
from transload_abi.errors import PlanError, ProofFailed
from transload_abi.floats import read_float
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.oracle_numbers import Bits, Values, bits_type, decode, encode, largest
from transload_abi.plan.types import Batch, Conversion, Operand, Plan, Side, Template
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Group, Role

Memory = dict[str, NDArray[np.uint8]]
"""Bytes of each pool, by the pool's id."""

Addresses = NDArray[np.int64]
Terms = tuple[tuple[str, int, int, int], ...]

FILL: Final = 0xA5
"""What a byte that nobody has written holds here."""


def blank(d: Descriptor, fill: int = FILL) -> Memory:
    """Memory for all pools of a checked descriptor, each byte `fill`."""
    return {pool.id: np.full(pool.num_bytes, fill, np.uint8) for pool in d.pools}


def read_elements(
    d: Descriptor, memory: Memory, group: str, role: str, blocks: Sequence[int]
) -> Bits:
    """The raw bits of a role's elements.

    Args:
        d: Checked.
        memory: Of all pools that the role lies in.
        group: Its id.
        role: Its name.
        blocks: Block ids, in any order.

    Returns:
        `[layers of the group, blocks, *axes of the role]`, of the unsigned integer as wide as an
        element.

    Raises:
        PlanError: There is no such group, role or block.
    """
    of, which = _find(d, group, role)
    layers = [
        _gather(memory[pool], addresses, which.dtype)
        for pool, addresses in _layers(d, of, which, blocks)
    ]
    return np.stack(layers)


def write_elements(
    d: Descriptor, memory: Memory, group: str, role: str, blocks: Sequence[int], elements: Bits
) -> None:
    """Writes a role's elements, of the shape that `read_elements` returns, into `memory`.

    Raises:
        PlanError: There is no such group, role or block, or the shape is another.
    """
    of, which = _find(d, group, role)
    due = (len(of.layers), len(blocks), *_extents(which.role, which.shape))
    if elements.shape != due:
        raise PlanError(f"{group}.{role}: expected elements of shape {due}, got {elements.shape}")
    for (pool, addresses), layer in zip(_layers(d, of, which, blocks), elements, strict=True):
        _scatter(memory[pool], addresses, layer, which.dtype)


def read_values(
    d: Descriptor, memory: Memory, group: str, role: str, blocks: Sequence[int]
) -> Values:
    """The values of a role's elements, of the shape that `read_elements` returns.

    A scale's value is the scale itself.

    Raises:
        PlanError: There is no such group, role or block.
    """
    of, which = _find(d, group, role)
    values = decode(read_elements(d, memory, group, role, blocks), which.dtype)
    scales = _outside_scales(of, role)
    if scales is None and (inline := CODECS[of.codec.id].scale_role.get(role)):
        raw = read_elements(d, memory, group, inline, blocks)
        scales = decode(raw, _role(of, inline).dtype)
        scales = _spread(scales, of.codec.id, role)
    return values if scales is None else _product(values, scales)


def write_values(
    d: Descriptor, memory: Memory, group: str, role: str, blocks: Sequence[int], values: Values
) -> None:
    """Writes the elements nearest to `values`, and the scales that they need inside the page.

    An element is the value divided by its scale in binary32, then rounded as
    `oracle_numbers.encode` does. A scale inside the page is the largest magnitude under it divided
    by the dtype's largest value, or 1 where that is zero.

    Raises:
        PlanError: There is no such group, role or block, or the shape is another.
    """
    of, which = _find(d, group, role)
    scales = _outside_scales(of, role)
    if scales is None and (inline := CODECS[of.codec.id].scale_role.get(role)):
        scales = _make_scales(values, of.codec.id, role, which.dtype)
        raw = encode(scales, _role(of, inline).dtype)
        write_elements(d, memory, group, inline, blocks, raw)
        scales = _spread(scales, of.codec.id, role)
    quotients = values if scales is None else _quotient(values, scales)
    write_elements(d, memory, group, role, blocks, encode(quotients, which.dtype))


def execute(plan: Plan, src_memory: Memory, dst_memory: Memory) -> None:
    """Moves and converts everything that a plan names, into `dst_memory`.

    Raises:
        ProofFailed: An address is outside of its pool.
    """
    for batch in plan.batches:
        src, dst = _pieces(batch)
        for template in batch.templates:
            _copy(template, batch, (src, dst), src_memory[template.src.pool], dst_memory)
        for conversion in batch.conversions:
            values = _read_operands(conversion, src, batch.src_parts, src_memory)
            _write_operands(conversion, dst, batch.dst_parts, dst_memory, values)


def _find(d: Descriptor, group_id: str, role: str) -> tuple[Group, Role]:
    group = next((each for each in d.groups if each.id == group_id), None)
    if group is None:
        raise PlanError(f"the descriptor has no group {group_id[:MAX_QUOTED_CHARS]!r}")
    return group, _role(group, role)


def _role(group: Group, name: str) -> Role:
    found = group.role(name)
    if found is None:
        raise PlanError(f"group {group.id!r} has no role {name[:MAX_QUOTED_CHARS]!r}")
    return found


def _extents(role: str, shape: dict[str, int]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in ROLES[role].axes)


def _offsets(role: str, shape: dict[str, int], terms: Terms) -> Addresses:
    """Bits from index 0 to each element, `[*axes]`."""
    axes = ROLES[role].axes
    offsets = np.zeros(_extents(role, shape), np.int64)
    for axis, div, extent, stride in terms:
        digit = np.arange(shape[axis], dtype=np.int64) // div % extent
        shape_along = [-1 if each == axis else 1 for each in axes]
        offsets += (digit * stride).reshape(shape_along)
    return offsets


def _layers(
    d: Descriptor, group: Group, role: Role, blocks: Sequence[int]
) -> list[tuple[str, Addresses]]:
    """For each layer position its pool, and the byte address of each element, `[blocks, *axes]`."""
    place = group.places[role.place]
    inside = _bytes(role.base_bits + _offsets(role.role, role.shape, role.terms))
    ids = np.asarray(blocks, np.int64).reshape(-1, *[1] * inside.ndim)
    layers = []
    for position in range(len(group.layers)):
        pool = d.pool(place.pools[position if len(place.pools) > 1 else 0])
        for block in blocks:
            if not 0 <= block < pool.num_blocks:
                raise PlanError(f"block {block}: pool {pool.id} has {pool.num_blocks}")
        page = place.offset + position * place.layer_stride
        layers.append((pool.id, page + ids * place.block_stride + inside))
    return layers


def _bytes(bit_addresses: Addresses) -> Addresses:
    assert not np.any(bit_addresses % 8), "elements of this version are whole bytes"
    return bit_addresses // 8


def _spans(memory: NDArray[np.uint8], addresses: Addresses, num_bytes: int) -> Addresses:
    """The address of each byte, `[*addresses, num_bytes]`, all inside of the pool."""
    spans = addresses[..., None] + np.arange(num_bytes, dtype=np.int64)
    if spans.size and (spans.min() < 0 or spans.max() >= len(memory)):
        raise ProofFailed(
            f"bytes {spans.min()} to {spans.max()} of a pool that has {len(memory)} bytes"
        )
    return spans


def _gather(memory: NDArray[np.uint8], addresses: Addresses, dtype: str) -> Bits:
    kind = bits_type(dtype)
    return memory[_spans(memory, addresses, kind.itemsize)].view(kind)[..., 0]


def _scatter(memory: NDArray[np.uint8], addresses: Addresses, elements: Bits, dtype: str) -> None:
    kind = bits_type(dtype)
    raw = np.ascontiguousarray(elements, kind)[..., None].view(np.uint8)
    memory[_spans(memory, addresses, kind.itemsize)] = raw


def _outside_scales(group: Group, role: str) -> Values | None:
    """Scales that the codec keeps in its parameters, to be multiplied with `[layers, ...]`."""
    if not CODECS[group.codec.id].has_scales_param:
        return None
    texts = group.codec.params[scale_param(role)]
    assert isinstance(texts, list), "a checked codec has a list of scales"
    scales = np.array([read_float(str(text)) for text in texts], np.float32)
    num_axes = 1 + len(ROLES[role].axes)
    return scales.reshape(-1, *[1] * num_axes)


def _spread(scales: Values, codec: str, role: str) -> Values:
    """Scales `[..., N]` or `[..., N, G]`, repeated for the elements `[..., N, D]` under each."""
    size = CODECS[codec].group_elements.get(role)
    return scales[..., None] if size is None else np.repeat(scales, size, axis=-1)


def _make_scales(values: Values, codec: str, role: str, dtype: str) -> Values:
    size = CODECS[codec].group_elements.get(role)
    # A NaN has no magnitude, and an infinity that of the largest number.
    values = np.nan_to_num(np.abs(values), nan=0.0)
    if size is None:
        peaks = values.max(axis=-1)
    else:
        grouped = values.reshape(*values.shape[:-1], values.shape[-1] // size, size)
        peaks = grouped.max(axis=-1)
    scales = _quotient(peaks, largest(dtype))
    return np.where(scales == 0, np.float32(1), scales)


def _product(values: Values, scales: Values) -> Values:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.multiply(values, scales, dtype=np.float32)


def _quotient(values: Values, scales: Values | np.float32) -> Values:
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        return np.divide(values, scales, dtype=np.float32)


def _pieces(batch: Batch) -> tuple[Addresses, Addresses]:
    """Numbers of all pieces, on either side."""
    src = [np.arange(each.src, each.src + each.num_pieces) for each in batch.sequences]
    dst = [np.arange(each.dst, each.dst + each.num_pieces) for each in batch.sequences]
    empty = np.zeros(0, np.int64)
    return np.concatenate([empty, *src]), np.concatenate([empty, *dst])


def _starts(side: Side, pieces: Addresses, parts: int) -> Addresses:
    """Byte address of a template's first byte for each piece."""
    part_offsets = np.asarray(side.part_offsets, np.int64)
    return side.offset + pieces // parts * side.block_stride + part_offsets[pieces % parts]


def _copy(
    template: Template,
    batch: Batch,
    pieces: tuple[Addresses, Addresses],
    src_memory: NDArray[np.uint8],
    dst_memory: Memory,
) -> None:
    src = _starts(template.src, pieces[0], batch.src_parts)
    dst = _starts(template.dst, pieces[1], batch.dst_parts)
    for count, src_stride, dst_stride in template.loops:
        steps = np.arange(count, dtype=np.int64)
        src = src[..., None] + steps * src_stride
        dst = dst[..., None] + steps * dst_stride
    to = dst_memory[template.dst.pool]
    to[_spans(to, dst, template.run_bytes)] = src_memory[
        _spans(src_memory, src, template.run_bytes)
    ]


def _operand_addresses(operand: Operand, pieces: Addresses, parts: int) -> Addresses:
    """Byte address of each element, `[pieces, *axes]`."""
    inside = _bytes(operand.bit + _offsets(operand.role, operand.shape, operand.terms))
    starts = _starts(operand.side, pieces, parts)
    return starts.reshape(-1, *[1] * inside.ndim) + inside


def _operand_scale(operand: Operand) -> np.float32 | None:
    return None if operand.values is None else np.float32(read_float(operand.values))


def _read_operands(conversion: Conversion, pieces: Addresses, parts: int, memory: Memory) -> Values:
    """The values to convert, `[pieces, *axes]`."""
    decoded = [
        decode(
            _gather(memory[each.side.pool], _operand_addresses(each, pieces, parts), each.dtype),
            each.dtype,
        )
        for each in conversion.src
    ]
    values, *inline = decoded
    scale = _operand_scale(conversion.src[0])
    if scale is not None:
        return _product(values, np.asarray(scale))
    if inline:
        return _product(values, _spread(inline[0], conversion.src_codec, conversion.role))
    return values


def _write_operands(
    conversion: Conversion, pieces: Addresses, parts: int, memory: Memory, values: Values
) -> None:
    operand, *inline = conversion.dst
    scale = _operand_scale(operand)
    if scale is not None:
        values = _quotient(values, scale)
    elif inline:
        codec, role = conversion.dst_codec, conversion.role
        scales = _make_scales(values, codec, role, operand.dtype)
        _put(inline[0], pieces, parts, memory, scales)
        values = _quotient(values, _spread(scales, codec, role))
    _put(operand, pieces, parts, memory, values)


def _put(operand: Operand, pieces: Addresses, parts: int, memory: Memory, values: Values) -> None:
    pool = memory[operand.side.pool]
    bits = encode(values, operand.dtype)
    _scatter(pool, _operand_addresses(operand, pieces, parts), bits, operand.dtype)
