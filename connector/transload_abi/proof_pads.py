"""Which bits beyond a plan's elements may be copied: the pads of pages and blocks copied whole."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

from transload_abi.errors import ProofFailed
from transload_abi.plan.types import Batch
from transload_abi.proof_bits import Bundle, Elements, Home, Strip, elements
from transload_abi.types import Descriptor, Group


def check_pads(
    extra: list[Strip],
    home: Home,
    batch: Batch,
    mine: list[Bundle],
    descriptors: tuple[Descriptor, Descriptor],
    path: str,
) -> None:
    """Refuse bits that no page and no block owns on both sides, and bits of other elements.

    Args:
        extra: What is written beyond the elements that are due, sorted.
        home: What its bits are counted from.
        batch: Who writes it.
        mine: What the batch moves.
        descriptors: Source and destination.
        path: Of the batch.

    Raises:
        ProofFailed: Some of it may not be written.
    """
    if (batch.src_parts, batch.dst_parts) != (1, 1):
        raise ProofFailed(f"bit {extra[0].first} is no element's and blocks are cut", path)
    owned = [*_pages(mine, home), *_blocks(home, descriptors)]
    for strip in _cut(extra, sorted({spot for one in owned for spot in one[:2]})):
        if not any(
            first <= strip.first and strip.end <= end and (strip.shift, strip.src) == source
            for first, end, source in owned
        ):
            raise ProofFailed(f"bits {strip.first} to {strip.end} are nobody's pad", path)
    _check_others(extra, home, batch, descriptors[1], path)


Owned = tuple[int, int, tuple[int, Home | None]]
"""First bit, end, and where a copy of the whole takes them from."""


def _cut(extra: list[Strip], borders: list[int]) -> Iterator[Strip]:
    """The same bits, cut where a page or a block begins or ends: pads of two may be neighbours."""
    for strip in extra:
        inside = borders[bisect_right(borders, strip.first) : bisect_left(borders, strip.end)]
        for first, end in pairwise((strip.first, *inside, strip.end)):
            yield strip._replace(first=first, end=end)


def _pages(mine: list[Bundle], home: Home) -> list[Owned]:
    """Pages that own the same number of bytes on both sides."""
    found: list[Owned] = []
    for bundle in mine:
        for theirs in bundle.dst.roles:
            ours = bundle.src.role(theirs.role)
            num_bytes = bundle.dst.places[theirs.place].page_bytes
            if ours is None or bundle.src.places[ours.place].page_bytes != num_bytes:
                continue
            for layer in bundle.layers if num_bytes else ():
                into = elements(bundle.dst, theirs, layer)
                source = elements(bundle.src, ours, layer)
                if into.home == home:
                    first = into.base - theirs.base_bits
                    shift = source.base - ours.base_bits - first
                    found.append((first, first + 8 * num_bytes, (shift, source.home)))
    return found


def _blocks(home: Home, descriptors: tuple[Descriptor, Descriptor]) -> list[Owned]:
    """The block, for each pool of the source whose blocks are as large."""
    src, dst = descriptors
    num_bytes = dst.pool(home.pool).block_bytes
    if num_bytes == 0 or num_bytes != home.block_stride:
        return []
    found: list[Owned] = []
    for pool in src.pools:
        if pool.block_bytes == num_bytes:
            found.append((0, 8 * num_bytes, (0, Home(pool.id, num_bytes))))
    return found


def _check_others(extra: list[Strip], home: Home, batch: Batch, dst: Descriptor, path: str) -> None:
    """Pads hold no element of any group of the table."""
    for group in dst.groups:
        if group.table != batch.table:
            continue
        for role in group.roles:
            for layer in group.layers:
                where = elements(group, role, layer)
                if where.home.pool == home.pool:
                    _check_apart(extra, where, group, path)


def _check_apart(extra: list[Strip], where: Elements, group: Group, path: str) -> None:
    spots = [where.base]
    *axes, last = where.axes.values()
    bits = where.bits
    if all(step == i * bits for i, step in enumerate(last)):
        last, bits = [0], bits * len(last)
    for axis in (*axes, last):
        spots = [spot + step for spot in spots for step in axis]
    spots.sort()
    at = 0
    for strip in extra:
        while at < len(spots) and spots[at] + bits <= strip.first:
            at += 1
        if at < len(spots) and spots[at] < strip.end:
            raise ProofFailed(f"bit {spots[at]} is an element of {group.id} and no pad", path)
