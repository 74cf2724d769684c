"""Reads and writes pages by nothing but their descriptor: what all else is held against.

Plain and slow on purpose: each element's address is computed by the formula of `types`, for all
elements at once.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from transload_abi.codecs import CODECS, scale_param
from transload_abi.errors import PlanError
from transload_abi.floats import read_float
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.oracle_bits import Addresses, Pool, extents, gather, offsets, scatter, spans
from transload_abi.oracle_codecs import Rule, to_elements, to_values
from transload_abi.oracle_numbers import Bits, Values
from transload_abi.plan.types import Batch, Conversion, Operand, Plan, Side, Template
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Group, Role

Memory = dict[str, Pool]
"""Bytes of each pool, by the pool's id."""

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
        gather(memory[pool], addresses, which.dtype)
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
    due = (len(of.layers), len(blocks), *extents(which.role, which.shape))
    if elements.shape != due:
        raise PlanError(f"{group}.{role}: expected elements of shape {due}, got {elements.shape}")
    for (pool, addresses), layer in zip(_layers(d, of, which, blocks), elements, strict=True):
        scatter(memory[pool], addresses, layer, which.dtype)


def has_values(group: Group, role: str) -> bool:
    """Whether the elements of a role are numbers to others than their owner.

    Positions are none: a binary32 cannot hold them.
    """
    return CODECS[group.codec.id].has_values and role != "position"


def read_values(
    d: Descriptor, memory: Memory, group: str, role: str, blocks: Sequence[int]
) -> Values:
    """The values of a role's elements, of the shape that `read_elements` returns.

    A scale's value is the scale itself.

    Raises:
        PlanError: There is no such group, role or block, or the role has no values.
    """
    of, which = _find_values(d, group, role)
    inline = _inline_role(of, role)
    return to_values(
        _rule(of.codec.id, which, inline),
        read_elements(d, memory, group, role, blocks),
        read_elements(d, memory, group, inline.role, blocks) if inline else None,
        _outside_scales(of, role),
    )


def write_values(
    d: Descriptor, memory: Memory, group: str, role: str, blocks: Sequence[int], values: Values
) -> None:
    """Writes the elements nearest to `values`, and the scales that they need inside the page.

    Both are made as section 8 of `ABI.md` says.

    Raises:
        PlanError: There is no such group, role or block, the role has no values, or the shape is
            another.
    """
    of, which = _find_values(d, group, role)
    inline = _inline_role(of, role)
    rule = _rule(of.codec.id, which, inline)
    elements, scales = to_elements(rule, values, _outside_scales(of, role))
    write_elements(d, memory, group, role, blocks, elements)
    if inline and scales is not None:
        write_elements(d, memory, group, inline.role, blocks, scales)


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


def _find_values(d: Descriptor, group_id: str, role: str) -> tuple[Group, Role]:
    group, found = _find(d, group_id, role)
    if not has_values(group, role):
        raise PlanError(
            f"{group.id}.{role}: codec {group.codec.id!r} does not say what its elements are worth"
        )
    return group, found


def _role(group: Group, name: str) -> Role:
    found = group.role(name)
    if found is None:
        raise PlanError(f"group {group.id!r} has no role {name[:MAX_QUOTED_CHARS]!r}")
    return found


def _inline_role(group: Group, value: str) -> Role | None:
    """The role that holds a value role's scales in the page."""
    return group.role(CODECS[group.codec.id].scale_role.get(value, ""))


def _rule(codec: str, values: Role | Operand, inline: Role | Operand | None) -> Rule:
    if inline is None:
        return Rule(codec, values.dtype)
    return Rule(codec, values.dtype, inline.dtype, inline.shape.get("G", 0))


def _layers(
    d: Descriptor, group: Group, role: Role, blocks: Sequence[int]
) -> list[tuple[str, Addresses]]:
    """For each layer position its pool, and the bit address of each element, `[blocks, *axes]`."""
    place = group.places[role.place]
    inside = role.base_bits + offsets(role.role, role.shape, role.terms)
    ids = np.asarray(blocks, np.int64).reshape(-1, *[1] * inside.ndim)
    layers = []
    for position in range(len(group.layers)):
        pool = d.pool(place.pools[position if len(place.pools) > 1 else 0])
        for block in blocks:
            if not 0 <= block < pool.num_blocks:
                raise PlanError(f"block {block}: pool {pool.id} has {pool.num_blocks}")
        page = place.offset + position * place.layer_stride
        layers.append((pool.id, 8 * (page + ids * place.block_stride) + inside))
    return layers


def _outside_scales(group: Group, role: str) -> Values | None:
    """Scales that the codec keeps in its parameters, to be multiplied with `[layers, ...]`."""
    texts = group.codec.params.get(scale_param(role))
    if not isinstance(texts, list):
        return None
    scales = np.array([read_float(str(text)) for text in texts], np.float32)
    num_axes = 1 + len(ROLES[role].axes)
    return scales.reshape(-1, *[1] * num_axes)


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
    src_memory: Pool,
    dst_memory: Memory,
) -> None:
    src = _starts(template.src, pieces[0], batch.src_parts)
    dst = _starts(template.dst, pieces[1], batch.dst_parts)
    for count, src_stride, dst_stride in template.loops:
        steps = np.arange(count, dtype=np.int64)
        src = src[..., None] + steps * src_stride
        dst = dst[..., None] + steps * dst_stride
    to = dst_memory[template.dst.pool]
    to[spans(to, dst, template.run_bytes)] = src_memory[spans(src_memory, src, template.run_bytes)]


def _operand_addresses(operand: Operand, pieces: Addresses, parts: int) -> Addresses:
    """Bit address of each element, `[pieces, *axes]`."""
    inside = operand.bit + offsets(operand.role, operand.shape, operand.terms)
    starts = _starts(operand.side, pieces, parts)
    return 8 * starts.reshape(-1, *[1] * inside.ndim) + inside


def _operand_scale(operand: Operand) -> Values | None:
    return None if operand.values is None else np.array(read_float(operand.values), np.float32)


def _read_operands(conversion: Conversion, pieces: Addresses, parts: int, memory: Memory) -> Values:
    """The values to convert, `[pieces, *axes]`."""
    elements, *scales = (
        gather(memory[each.side.pool], _operand_addresses(each, pieces, parts), each.dtype)
        for each in conversion.src
    )
    operand, *inline = conversion.src
    rule = _rule(conversion.src_codec, operand, inline[0] if inline else None)
    return to_values(rule, elements, scales[0] if scales else None, _operand_scale(operand))


def _write_operands(
    conversion: Conversion, pieces: Addresses, parts: int, memory: Memory, values: Values
) -> None:
    operand, *inline = conversion.dst
    rule = _rule(conversion.dst_codec, operand, inline[0] if inline else None)
    elements, scales = to_elements(rule, values, _operand_scale(operand))
    made = [elements] if scales is None else [elements, scales]
    for each, bits in zip(conversion.dst, made, strict=True):
        where = _operand_addresses(each, pieces, parts)
        scatter(memory[each.side.pool], where, bits, each.dtype)
