"""What a transport has to register: the fewest stretches of memory that hold all blocks."""

from typing import NamedTuple

from transload_abi.types import Descriptor, Group, Place, Pool


class Region(NamedTuple):
    """A contiguous stretch of a pool, in bytes."""

    pool: str
    offset: int
    num_bytes: int


def regions(descriptor: Descriptor) -> list[Region]:
    """One region for each pool, or more where the blocks of a pool lie in places far apart.

    What is between the pages of a place is registered with them, and so are pads. Groups that are
    not transferred count only where they share the place of others.
    """
    found: list[Region] = []
    for pool in descriptor.pools:
        spans = sorted(
            span
            for group in descriptor.groups
            if group.transferable
            for number in {role.place for role in group.roles}
            for span in _spans(group, number, pool)
        )
        end = -1
        for first, last in spans:
            if first <= end:
                begin = found[-1].offset
                end = max(end, last)
                found[-1] = Region(pool.id, begin, end - begin)
            else:
                end = last
                found.append(Region(pool.id, first, last - first))
    return found


def _spans(group: Group, number: int, pool: Pool) -> list[tuple[int, int]]:
    """First byte and end of a place's pages in a pool: none, or one stretch."""
    place = group.places[number]
    if pool.id not in place.pools:
        return []
    num_layers = len(group.layers) if len(place.pools) == 1 else 1
    begin, page = _page(group, number, place)
    last = (pool.num_blocks - 1) * place.block_stride + (num_layers - 1) * place.layer_stride
    first, end = place.offset + begin, place.offset + last + page
    if pool.block_bytes:
        first, end = 0, max(end, pool.num_blocks * pool.block_bytes)
    return [(first, min(end, pool.num_bytes))]


def _page(group: Group, number: int, place: Place) -> tuple[int, int]:
    """First byte and end of what a page holds, from its start."""
    begin, end = [], [place.page_bytes]
    for role in group.roles:
        if role.place == number:
            size = sum((extent - 1) * stride for _, _, extent, stride in role.terms) + role.bits
            begin.append(role.base_bits // 8)
            end.append(-(-(role.base_bits + size) // 8))
    return 0 if place.page_bytes else min(begin), max(end)
