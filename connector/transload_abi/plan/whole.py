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
    twins: dict[Pools, list[Share]] = {}
    partners: dict[tuple[int, str], set[str]] = {}
    for each in shares:
        for pools in _pools(each) if is_twin(each) else ():
            twins.setdefault(pools, []).append(each)
            partners.setdefault((0, pools[0]), set()).add(pools[1])
            partners.setdefault((1, pools[1]), set()).add(pools[0])
    src_bytes, dst_bytes = ({pool.id: pool.block_bytes for pool in d.pools} for d in (src, dst))
    src_groups, dst_groups = _holders(src, shares[0].src.table), _holders(dst, shares[0].dst.table)
    found = []
    for (ours, theirs), within in twins.items():
        num_bytes = dst_bytes[theirs]
        if (
            num_bytes == src_bytes[ours] > 0
            and len(partners[0, ours]) == len(partners[1, theirs]) == 1
            and src_groups[ours] == sorted(each.src.id for each in within)
            and dst_groups[theirs] == sorted(each.dst.id for each in within)
            and all(_is_by_blocks(each.dst, theirs, num_bytes) for each in within)
        ):
            found.append(Template(Side(ours, 0, num_bytes), Side(theirs, 0, num_bytes), num_bytes))
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


def _is_by_blocks(group: Group, pool: str, num_bytes: int) -> bool:
    """Whether all of a group that lies in a pool lies in the pool's own blocks."""
    places = [group.places[role.place] for role in group.roles]
    return all(place.block_stride == num_bytes for place in places if pool in place.pools)


def _holders(descriptor: Descriptor, table: int) -> dict[str, list[str]]:
    """By pool the groups of a table with roles in it, those that are not transferred included."""
    holders: dict[str, set[str]] = {}
    for group in descriptor.groups:
        if group.table == table:
            for number in {role.place for role in group.roles}:
                for pool in group.places[number].pools:
                    holders.setdefault(pool, set()).add(group.id)
    return {pool: sorted(groups) for pool, groups in holders.items()}
