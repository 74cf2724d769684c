"""Blocks that both sides agree on in every respect, and that are therefore copied whole."""

from collections.abc import Sequence

from transload_abi.plan.shares import Share, is_same_slice
from transload_abi.plan.strips import Pools, is_same_page
from transload_abi.plan.types import Side, Template
from transload_abi.types import Descriptor, Group, Place


def whole_blocks(src: Descriptor, dst: Descriptor, shares: Sequence[Share]) -> list[Template]:
    """One template for each pair of pools of which one table's blocks are the same on both sides.

    So they are where both pools give each block its own `block_bytes`, and where every group of the
    table in either pool has a twin: the same pages at the same distance from the block's start, all
    layers, all heads, the same codec and block size. Pads are copied with the rest.

    Args:
        src: The source.
        dst: The destination.
        shares: All of one table of the source and one of the destination.
    """
    twins = [each for each in shares if is_twin(each)]
    tables = (shares[0].src.table, shares[0].dst.table)
    found = []
    for src_pool, dst_pool in dict.fromkeys(pools for each in twins for pools in _pools(each)):
        num_bytes = dst.pool(dst_pool).block_bytes
        if num_bytes == 0 or src.pool(src_pool).block_bytes != num_bytes:
            continue
        within = [each for each in twins if (src_pool, dst_pool) in _pools(each)]
        if (
            _holders(src, tables[0], src_pool) == sorted(each.src.id for each in within)
            and _holders(dst, tables[1], dst_pool) == sorted(each.dst.id for each in within)
            and all(_is_paired(each, src_pool, dst_pool, num_bytes) for each in within)
        ):
            sides = Side(src_pool, 0, num_bytes), Side(dst_pool, 0, num_bytes)
            found.append(Template(*sides, num_bytes))
    return found


def is_twin(share: Share) -> bool:
    """Whether two groups' pages are the same in everything but the pools they lie in."""
    src, dst = share.src, share.dst
    if not share.is_whole or src.codec != dst.codec or src.layers != dst.layers:
        return False
    if len(share.layers) != len(dst.layers) or len(src.roles) != len(dst.roles):
        return False
    if not is_same_slice(src.owner.tokens, dst.owner.tokens):
        return False
    for theirs in dst.roles:
        ours = src.role(theirs.role)
        if ours is None or not is_same_page(ours, theirs):
            return False
        if not _is_same_place(src.places[ours.place], dst.places[theirs.place]):
            return False
    return True


def _is_same_place(ours: Place, theirs: Place) -> bool:
    return (
        ours.offset == theirs.offset
        and ours.block_stride == theirs.block_stride
        and ours.layer_stride == theirs.layer_stride
        and len(ours.pools) == len(theirs.pools)
    )


def _pools(share: Share) -> set[Pools]:
    """The pairs of pools that a twin's pages lie in."""
    pairs: set[Pools] = set()
    for theirs in share.dst.roles:
        ours = share.src.role(theirs.role)
        assert ours, "twins have the same roles"
        places = share.src.places[ours.place], share.dst.places[theirs.place]
        pairs.update(zip(places[0].pools, places[1].pools, strict=True))
    return pairs


def _is_paired(share: Share, src_pool: str, dst_pool: str, num_bytes: int) -> bool:
    """Whether all of a twin that lies in one of two pools lies in the other, block by block."""
    pools = _pools(share)
    places = [place for role in share.dst.roles for place in (share.dst.places[role.place],)]
    return all(pair == (src_pool, dst_pool) for pair in pools if pair[0] == src_pool) and (
        all(pair == (src_pool, dst_pool) for pair in pools if pair[1] == dst_pool)
        and all(place.block_stride == num_bytes for place in places if dst_pool in place.pools)
    )


def _holders(descriptor: Descriptor, table: int, pool: str) -> list[str]:
    """The groups of a table with roles in a pool, those that are not transferred included."""
    return sorted(group.id for group in descriptor.groups if _is_in(group, table, pool))


def _is_in(group: Group, table: int, pool: str) -> bool:
    return group.table == table and any(
        pool in group.places[role.place].pools for role in group.roles
    )
