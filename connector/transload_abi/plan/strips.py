"""From a pair of groups to the copies and conversions that one piece takes."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from transload_abi.codecs import CODECS, scale_param
from transload_abi.compare_values import change, values_of
from transload_abi.compare_words import short
from transload_abi.errors import Refused
from transload_abi.plan.axes import Nest, axis_nests, compress, digits, offset, restrict, spans
from transload_abi.plan.budget import (
    OFFSETS_PER_COPY,
    SHARED_OFFSETS_PER_COPY,
    STEPS_PER_COPY,
    Budget,
)
from transload_abi.plan.loops import settle
from transload_abi.plan.shares import Share, pages, side_of
from transload_abi.plan.types import Conversion, Loop, Operand, Side, Template
from transload_abi.roles import ROLES
from transload_abi.types import Group, Role

Pools = tuple[str, str]
"""Ids of a pool of the source and one of the destination."""


def templates(share: Share, budget: Budget) -> list[Template]:
    """The copies of one piece, of all roles and layers whose bits stay as they are.

    Raises:
        Refused: Some would move less than a byte, or there are more than the budget has left.
    """
    layers = {role.role: _unchanged_layers(share, role) for role in share.dst.roles}
    whole = {number: _page_layers(share, number, layers) for number in _places(share)}
    made = [
        template
        for number, each in whole.items()
        for template in _page_templates(share, number, each, budget)
    ]
    for role in share.dst.roles:
        rest = [layer for layer in layers[role.role] if layer not in whole[role.place]]
        if rest:
            made += _role_templates(share, role, rest, budget)
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


def _page_templates(
    share: Share, number: int, layers: list[int], budget: Budget
) -> Iterator[Template]:
    if not layers:
        return
    role = next(role for role in share.dst.roles if role.place == number)
    ours = share.src.role(role.role)
    assert ours, "pages that are copied whole have the same roles"
    src_place, dst_place = share.src.places[ours.place], share.dst.places[number]
    for pools, nests in _layer_nests(share, ours, role, layers).items():
        budget.spend(len(nests), share.src, share.dst)
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
    """Layers in which a role's bits are copied as they are; scales go with what they scale."""
    value = _value_role(share.dst, role)
    source = share.src.role(value.role)
    if source is None:
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


def _role_templates(
    share: Share, theirs: Role, layers: list[int], budget: Budget
) -> Iterator[Template]:
    ours = share.src.role(theirs.role)
    assert ours, "only roles of both sides are unchanged"
    pages_by_pools = _layer_nests(share, ours, theirs, layers)
    choices = _nests(share, theirs, budget)
    num_strips, num_pages = prod(map(len, choices)), sum(map(len, pages_by_pools.values()))
    budget.spend(num_strips * num_pages * _cost(share), share.src, share.dst)
    strips = [_strip(share, ours, theirs, choice) for choice in product(*choices)]
    src_side, dst_side = (
        _side(share, share.src, ours, budget),
        _side(share, share.dst, theirs, budget),
    )
    for pools, nests in pages_by_pools.items():
        for page, (src, dst, run_bytes, loops) in product(nests, strips):
            run, settled = settle(run_bytes, (*page.loops, *loops))
            yield Template(
                src_side._replace(pool=pools[0], offset=page.src + src),
                dst_side._replace(pool=pools[1], offset=page.dst + dst),
                run,
                settled,
            )


def _cost(share: Share) -> int:
    """Of a template or a conversion, in the budget's copies."""
    return 1 + max(share.src_parts, share.dst_parts) // SHARED_OFFSETS_PER_COPY


def _side(share: Share, group: Group, role: Role, budget: Budget) -> Side:
    """As `side_of`: worked out once for all layers and heads of a role."""
    num_parts = group.states_per_block // share.piece
    budget.spend(num_parts // OFFSETS_PER_COPY, share.src, share.dst)
    return side_of(group, role, share.piece)


def _nests(share: Share, theirs: Role, budget: Budget) -> list[list[Nest]]:
    """For each axis of a role the loops over what moves, in bits."""
    ours = share.src.role(theirs.role)
    assert ours, "only roles of both sides are unchanged"
    axes = []

    def spend(steps: int) -> None:
        budget.spend(steps // STEPS_PER_COPY, share.src, share.dst)

    for axis in ROLES[theirs.role].axes:
        first, second, count = _range(share, theirs, axis)
        sides = digits(ours, axis), digits(theirs, axis)
        axes.append(axis_nests(sides[0], first, sides[1], second, count, spend))
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
            f"a copy of {theirs.role} moves less than a byte "
            f"({short(share.src.id)} to {short(share.dst.id)})"
        )
    in_bytes = tuple((count, a // 8, b // 8) for count, a, b in loops)
    return src // 8, dst // 8, run // 8, in_bytes


# --- conversions


def conversions(share: Share, budget: Budget) -> Iterator[Conversion]:
    """The conversions of one piece: of each value role and layer whose bits change.

    Raises:
        Refused: There are more than the budget has left.
    """
    scales = set(CODECS[share.dst.codec.id].scale_role.values())
    for theirs in share.dst.roles:
        ours = share.src.role(theirs.role)
        if theirs.role in scales or ours is None:
            continue
        changed = [one for one in share.layers if not _is_unchanged(share, ours, theirs, one)]
        if changed:
            yield from _role_conversions(share, (ours, theirs), changed, budget)


def _role_conversions(
    share: Share, roles: tuple[Role, Role], layers: list[int], budget: Budget
) -> Iterator[Conversion]:
    heads = []
    for some in _head_spans(share, *roles):
        budget.spend(len(layers) * _cost(share), share.src, share.dst)
        heads.append(some)
    ours, theirs = (
        _page_operands(share, group, role, heads, budget)
        for group, role in zip((share.src, share.dst), roles, strict=True)
    )
    codecs = share.src.codec.id, share.dst.codec.id
    by_layer = zip(
        layers,
        _layer_operands(share.src, roles[0], ours, layers),
        _layer_operands(share.dst, roles[1], theirs, layers),
        strict=True,
    )
    for layer, src, dst in by_layer:
        for each in zip(src, dst, strict=True):
            yield Conversion(roles[1].role, layer, *codecs, *each)


def _head_spans(share: Share, ours: Role, theirs: Role) -> Iterator[tuple[int, int]]:
    """Ranges of heads that digits can describe on both sides: one, or as few as that takes."""
    first, end = share.heads
    axes = [
        (digits(each, "H"), first - group.owner.heads[0])
        for group, role in ((share.src, ours), (share.dst, theirs))
        for each in _with_scales(group, role)
    ]
    for begin, count in spans(axes, end - first):
        yield first + begin, first + begin + count


def _with_scales(group: Group, role: Role) -> list[Role]:
    """A value role and, if the page has them, its scales."""
    scale = CODECS[group.codec.id].scale_role.get(role.role)
    found = group.role(scale) if scale else None
    return [role, found] if found else [role]


def _page_operands(
    share: Share,
    group: Group,
    role: Role,
    heads: Sequence[tuple[int, int]],
    budget: Budget,
) -> list[tuple[Operand, ...]]:
    """By range of heads: a value role and its scales as they lie in any page."""
    roles = _with_scales(group, role)
    sides = [_side(share, group, each, budget) for each in roles]
    return [
        tuple(
            _page_operand(share._replace(heads=some), group, each, side)
            for each, side in zip(roles, sides, strict=True)
        )
        for some in heads
    ]


def _page_operand(part: Share, group: Group, role: Role, side: Side) -> Operand:
    terms: list[tuple[str, int, int, int]] = []
    bits = role.base_bits
    shape = {}
    for axis in ROLES[role.role].axes:
        src_first, dst_first, count = _range(part, role, axis)
        first = src_first if group is part.src else dst_first
        rows = digits(role, axis)
        kept = restrict(rows, first, count)
        assert kept is not None, "spans of heads and pieces fit the digits"
        terms += ((axis, *row) for row in kept)
        bits += offset(rows, first)
        shape[axis] = count
    side = side._replace(offset=bits // 8)
    return Operand(role.role, role.dtype, side, bits % 8, shape, tuple(terms))


def _layer_operands(
    group: Group, role: Role, in_page: Sequence[tuple[Operand, ...]], layers: list[int]
) -> Iterator[list[tuple[Operand, ...]]]:
    """For each layer, by range of heads: what `in_page` is in that layer's pages."""
    roles = _with_scales(group, role)
    starts = zip(*(pages(group, each, layers) for each in roles), strict=True)
    for layer, pages_of in zip(layers, starts, strict=True):
        values = [_outside_scale(group, each, layer) for each in roles]
        yield [
            tuple(
                operand._replace(
                    side=operand.side._replace(pool=pool, offset=operand.side.offset + byte),
                    values=scale,
                )
                for operand, (pool, byte), scale in zip(operands, pages_of, values, strict=True)
            )
            for operands in in_page
        ]


def _outside_scale(group: Group, role: Role, layer: int) -> str | None:
    """The scale of a layer that the codec keeps in its parameters, as text."""
    scales = group.codec.params.get(scale_param(role.role))
    return str(scales[group.layers.index(layer)]) if isinstance(scales, list) else None
