"""A picture of whole pools: how far tables fill blocks, and what lies over the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from transload_abi.errors import LimitExceeded
from transload_abi.footprint import Budget, Footprint, overlap
from transload_abi.picture_words import size_words
from transload_abi.types import Descriptor, Group, Role

_Part = tuple[int, tuple[Footprint, ...]]
"""A group's index, and what it has in a pool."""


def pool_notes(d: Descriptor) -> str:
    """What a block's pads come to, and which groups of different tables are over the same bytes.

    Args:
        d: A checked descriptor.
    """
    lines = [*_block_pads(d)]
    overlaid: set[tuple[int, int]] = set()
    try:
        for pair in _overlaid(d):
            overlaid.add(pair)
    except LimitExceeded:
        lines.append("more groups may overlay the same bytes: it is too irregular to tell")
    lines += [
        f"groups {d.groups[one].id} and {d.groups[other].id} overlay the same bytes: "
        "a block id is one table's at a time"
        for one, other in sorted(overlaid)
    ]
    return "\n".join(lines)


def element_bits(role: Role) -> int:
    """How many bits a page's elements of a role take."""
    bits = role.bits
    for extent in role.shape.values():
        bits *= extent
    return bits


def _block_pads(d: Descriptor) -> Iterator[str]:
    """The tables that do not fill their blocks of a pool."""
    used: dict[str, dict[int, int]] = {pool.id: {} for pool in d.pools}
    for group in d.groups:
        for number, place in enumerate(group.places):
            roles = [role for role in group.roles if role.place == number]
            page = 8 * place.page_bytes or sum(map(element_bits, roles))
            num_pages = len(group.layers) if len(place.pools) == 1 else 1
            for pool_id in place.pools:
                tables = used[pool_id]
                tables[group.table] = tables.get(group.table, 0) + page * num_pages
    for pool in d.pools:
        block = 8 * pool.block_bytes
        for table, bits in sorted(used[pool.id].items()):
            if bits < block:
                yield (
                    f"table {table} fills {size_words(bits)} of a block's {size_words(block)} "
                    f"in {pool.id}"
                )


def _overlaid(d: Descriptor) -> Iterator[tuple[int, int]]:
    """Indices of two groups of different tables that share a bit; some more than once.

    Raises:
        LimitExceeded: There may be more, and finding out takes too long.
    """
    budget = Budget()
    seen: set[tuple[tuple[Footprint, ...], tuple[Footprint, ...]]] = set()
    for parts in _different_pools(d):
        tables = {d.groups[number].table for number, _ in parts}
        if len(tables) < 2 or overlap([bits for _, each in parts for bits in each], budget) is None:
            continue
        for (one, ours), (other, theirs) in combinations(parts, 2):
            budget.spend(1)
            if d.groups[one].table == d.groups[other].table:
                continue
            if (ours, theirs) in seen or overlap([*ours, *theirs], budget) is not None:
                seen.add((ours, theirs))
                yield one, other


def _different_pools(d: Descriptor) -> list[tuple[_Part, ...]]:
    """What groups have in pools, once for all pools that are alike, as those of layers are."""
    num_blocks = {pool.id: pool.num_blocks for pool in d.pools}
    by_pool: dict[str, list[_Part]] = {pool: [] for pool in num_blocks}
    for number, group in enumerate(d.groups):
        found: dict[str, list[Footprint]] = {}
        for role in group.roles:
            place = group.places[role.place]
            bits = _page_bits(group, role)
            for pool in place.pools:
                blocks = (num_blocks[pool], 8 * place.block_stride)
                found.setdefault(pool, []).append(bits._replace(loops=(*bits.loops, blocks)))
        for pool, footprints in found.items():
            by_pool[pool].append((number, tuple(footprints)))
    return list(dict.fromkeys(tuple(parts) for parts in by_pool.values()))


def _page_bits(group: Group, role: Role) -> Footprint:
    """A role's bits of block 0 in a pool, all layers that are there."""
    place = group.places[role.place]
    loops = [(extent, stride) for _, _, extent, stride in role.terms]
    if len(place.pools) == 1:
        loops.append((len(group.layers), 8 * place.layer_stride))
    base = 8 * place.offset + role.base_bits
    return Footprint(base, role.bits, tuple(loop for loop in loops if loop[0] > 1))
