"""From a pair of groups to the copies and conversions that one piece takes."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from transload_abi.codecs import CODECS, scale_param
from transload_abi.compare_values import change, values_of
from transload_abi.errors import Refused
from transload_abi.plan.axes import Digits, Nest, axis_nests, compress, digits, offset, restrict
from transload_abi.plan.loops import settle
from transload_abi.plan.shares import Share, pages, side_of
from transload_abi.plan.types import Conversion, Loop, Operand, Side, Template
from transload_abi.roles import ROLES
from transload_abi.types import Group, Role

MAX_STRIPS: Final = 1 << 12
"""Copies with a shape of their own that a role may take; almost always it is one."""

Pools = tuple[str, str]
"""Ids of a pool of the source and one of the destination."""


def templates(share: Share) -> list[Template]:
    """The copies of one piece, of all roles and layers whose bits stay as they are.

    Raises:
        Refused: Some would move less than a byte.
    """
    layers = {role.role: _unchanged_layers(share, role) for role in share.dst.roles}
    whole = {number: _page_layers(share, number, layers) for number in _places(share)}
    made = [
        template
        for number, each in whole.items()
        for template in _page_templates(share, number, each)
    ]
    for role in share.dst.roles:
        rest = [layer for layer in layers[role.role] if layer not in whole[role.place]]
        if rest:
            made += _role_templates(share, role, rest)
    return made


# --- whole pages


def _places(share: Share) -> range:
    return range(len(share.dst.places))


def _page_layers(share: Share, number: int, unchanged: dict[str, list[int]]) -> list[int]:
    """The layers of which the pages in a place of the destination are copied whole, with pads."""
    theirs = [role for role in share.dst.roles if role.place == number]
    ours = [share.src.role(role.role) for role in theirs]
    if not theirs or not share.is_whole or None in ours:
        return []
    places = {role.place for role in ours if role}
    num_src = sum(role.place in places for role in share.src.roles)
    pads = [
        share.dst.places[number].page_bytes,
        *(share.src.places[at].page_bytes for at in places),
    ]
    if len(places) != 1 or num_src != len(theirs) or pads[0] == 0 or pads[0] != pads[1]:
        return []
    if not all(a and is_same_page(a, b) for a, b in zip(ours, theirs, strict=True)):
        return []
    common = set.intersection(*(set(unchanged[role.role]) for role in theirs))
    return [layer for layer in share.layers if layer in common]


def is_same_page(ours: Role, theirs: Role) -> bool:
    """Whether a role lies in two pages alike."""
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and ours.base_bits == theirs.base_bits
        and all(digits(ours, axis) == digits(theirs, axis) for axis in theirs.shape)
    )


def _page_templates(share: Share, number: int, layers: list[int]) -> Iterator[Template]:
    if not layers:
        return
    role = next(role for role in share.dst.roles if role.place == number)
    ours = share.src.role(role.role)
    assert ours, "pages that are copied whole have the same roles"
    src_place, dst_place = share.src.places[ours.place], share.dst.places[number]
    for pools, nests in _layer_nests(share, ours, role, layers).items():
        for src, dst, loops in nests:
            run, settled = settle(dst_place.page_bytes, loops)
            yield Template(
                Side(pools[0], src, src_place.block_stride),
                Side(pools[1], dst, dst_place.block_stride),
                run,
                settled,
            )


# --- single roles


def _unchanged_layers(share: Share, role: Role) -> list[int]:
    """Layers in which a role's bits are copied as they are."""
    ours = share.src.role(role.role)
    if ours is None:
        return []
    value = _value_role(share.dst, role)
    source = share.src.role(value.role)
    if source is None or ours.dtype != role.dtype:
        return []
    if value is not role and share.src.codec.id != share.dst.codec.id:
        return []
    return [layer for layer in share.layers if _is_unchanged(share, source, value, layer)]


def _is_unchanged(share: Share, ours: Role, theirs: Role, layer: int) -> bool:
    return change(values_of(share.src, ours, layer), values_of(share.dst, theirs, layer)) == "none"


def _value_role(group: Group, role: Role) -> Role:
    """The role whose scales a role is; itself where it holds values."""
    scales = CODECS[group.codec.id].scale_role
    name = next((value for value, scale in scales.items() if scale == role.role), role.role)
    found = group.role(name)
    assert found, "a checked page that has scales has what they scale"
    return found


def _layer_nests(
    share: Share, ours: Role, theirs: Role, layers: list[int]
) -> dict[Pools, list[Nest]]:
    """By pools: loops over the pages of a role in block 0, in bytes."""
    found: dict[Pools, list[Nest]] = {}
    src_pages, dst_pages = pages(share.src, ours, layers), pages(share.dst, theirs, layers)
    for (src_pool, src), (dst_pool, dst) in zip(src_pages, dst_pages, strict=True):
        found.setdefault((src_pool, dst_pool), []).append(Nest(src, dst))
    return {
        pools: compress(sorted(nests, key=lambda nest: nest.dst)) for pools, nests in found.items()
    }


def _role_templates(share: Share, theirs: Role, layers: list[int]) -> Iterator[Template]:
    ours = share.src.role(theirs.role)
    assert ours, "only roles of both sides are unchanged"
    choices = _nests(share, theirs)
    if prod(map(len, choices)) > MAX_STRIPS:
        raise Refused(
            f"{theirs.role} would be cut into more than {MAX_STRIPS} copies "
            f"({share.src.id[:80]} to {share.dst.id[:80]})"
        )
    strips = [_strip(share, ours, theirs, choice) for choice in product(*choices)]
    src_side, dst_side = (
        side_of(share.src, ours, share.piece),
        side_of(share.dst, theirs, share.piece),
    )
    for pools, nests in _layer_nests(share, ours, theirs, layers).items():
        for page, (src, dst, run_bytes, loops) in product(nests, strips):
            run, settled = settle(run_bytes, (*page.loops, *loops))
            yield Template(
                src_side._replace(pool=pools[0], offset=page.src + src),
                dst_side._replace(pool=pools[1], offset=page.dst + dst),
                run,
                settled,
            )


def _nests(share: Share, theirs: Role) -> list[list[Nest]]:
    """For each axis of a role the loops over what moves, in bits."""
    ours = share.src.role(theirs.role)
    assert ours, "only roles of both sides are unchanged"
    axes = []
    for axis in ROLES[theirs.role].axes:
        first, second, count = _range(share, theirs, axis)
        axes.append(axis_nests(digits(ours, axis), first, digits(theirs, axis), second, count))
    return axes


def _range(share: Share, role: Role, axis: str) -> tuple[int, int, int]:
    """First index on either side and how many: of what moves along an axis."""
    if axis == "H":
        first, end = share.heads
        return first - share.src.owner.heads[0], first - share.dst.owner.heads[0], end - first
    return 0, 0, share.piece if axis == "N" else role.shape[axis]


def _strip(
    share: Share, ours: Role, theirs: Role, nests: tuple[Nest, ...]
) -> tuple[int, int, int, tuple[Loop, ...]]:
    """Source and destination byte in the page, bytes of a run, further runs."""
    run, loops = settle(theirs.bits, (loop for nest in nests for loop in nest.loops))
    src = ours.base_bits + sum(nest.src for nest in nests)
    dst = theirs.base_bits + sum(nest.dst for nest in nests)
    if any(each % 8 for each in (run, src, dst, *(step for loop in loops for step in loop[1:]))):
        raise Refused(
            f"a copy of {theirs.role} moves less than a byte ({share.src.id} to {share.dst.id})"
        )
    in_bytes = tuple((count, a // 8, b // 8) for count, a, b in loops)
    return src // 8, dst // 8, run // 8, in_bytes


# --- conversions


def conversions(share: Share) -> Iterator[Conversion]:
    """The conversions of one piece: of each value role and layer whose bits change."""
    scales = set(CODECS[share.dst.codec.id].scale_role.values())
    for theirs in share.dst.roles:
        ours = share.src.role(theirs.role)
        if theirs.role in scales or ours is None:
            continue
        for layer in share.layers:
            if not _is_unchanged(share, ours, theirs, layer):
                for heads in _spans(share, ours, theirs):
                    yield Conversion(
                        theirs.role,
                        layer,
                        share.src.codec.id,
                        share.dst.codec.id,
                        _operands(share, share.src, ours, layer, heads),
                        _operands(share, share.dst, theirs, layer, heads),
                    )


def _spans(share: Share, ours: Role, theirs: Role) -> list[tuple[int, int]]:
    """Ranges of heads that digits can describe: one, or each head by itself."""
    first, end = share.heads
    for group, role in ((share.src, ours), (share.dst, theirs)):
        for each in _with_scales(group, role):
            if restrict(digits(each, "H"), first - group.owner.heads[0], end - first) is None:
                return [(head, head + 1) for head in range(first, end)]
    return [(first, end)]


def _with_scales(group: Group, role: Role) -> list[Role]:
    """A value role and, if the page has them, its scales."""
    scale = CODECS[group.codec.id].scale_role.get(role.role)
    found = group.role(scale) if scale else None
    return [role, found] if found else [role]


def _operands(
    share: Share, group: Group, role: Role, layer: int, heads: tuple[int, int]
) -> tuple[Operand, ...]:
    part = share._replace(heads=heads)
    is_src = group is share.src
    operands = []
    for each in _with_scales(group, role):
        terms: list[tuple[str, int, int, int]] = []
        ((pool, byte),) = pages(group, each, [layer])
        bits = 8 * byte + each.base_bits
        shape = {}
        for axis in ROLES[each.role].axes:
            src_first, dst_first, count = _range(part, each, axis)
            first = src_first if is_src else dst_first
            kept = _kept(digits(each, axis), first, count)
            terms += ((axis, *row) for row in kept)
            bits += offset(digits(each, axis), first)
            shape[axis] = count
        side = side_of(group, each, share.piece)._replace(pool=pool, offset=bits // 8)
        values = _outside_scale(group, each, layer)
        operands.append(Operand(each.role, each.dtype, side, bits % 8, shape, tuple(terms), values))
    return tuple(operands)


def _kept(axis: Digits, first: int, count: int) -> Digits:
    kept = restrict(axis, first, count)
    assert kept is not None, "spans of heads and pieces fit the digits"
    return kept


def _outside_scale(group: Group, role: Role, layer: int) -> str | None:
    """The scale of a layer that the codec keeps in its parameters, as text."""
    if not CODECS[group.codec.id].has_scales_param:
        return None
    scales = group.codec.params[scale_param(role.role)]
    assert isinstance(scales, list), "a checked codec has a list of scales"
    return str(scales[group.layers.index(layer)])
