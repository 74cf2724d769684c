"""What must hold in addresses: inside the pool, claims of ownership kept, and no bit shared.

**Theory.** Per pool, every role (or, where a place claims `page_bytes`, every page as a whole) is a
footprint of one block, repeated with the block's stride. Groups of one table must share no bit at
all. Groups of two tables may share a block's bytes, since a block id belongs to one table at a
time; then block `b` of one must not touch block `c` of the other for `b != c`, which is asked as:
blocks 1, 2, ... of either share nothing with block 0 of the other.
"""

from itertools import combinations
from typing import NamedTuple

from transload_abi.canonical import canonical_place
from transload_abi.errors import Contradiction, LimitExceeded
from transload_abi.footprint import Budget, Footprint, overlap, whole_bytes
from transload_abi.limits import MAX_INTEGER
from transload_abi.types import Descriptor, Group, Place, Pool, Role


class _Part(NamedTuple):
    """What one role or page has in a pool.

    Attributes:
        path: Of the role; of a page, that of its first role.
        table: Of its group.
        stride: Bits from a block to the next.
        block: The bits of block 0, over all layers in this pool.
    """

    path: str
    table: int
    stride: int
    block: Footprint


_Unit = tuple[int, int]
"""Table and stride."""


def check_pages(descriptor: Descriptor) -> None:
    """See that every element has bits of its own, inside its pool.

    Args:
        descriptor: Everything but its addresses is checked.

    Raises:
        Contradiction: Beyond a pool, a page or a block; bits shared.
        LimitExceeded: An address beyond the limits, or too irregular to settle.
    """
    pools = {pool.id: (pool, f"pools[{index}]") for index, pool in enumerate(descriptor.pools)}
    parts: dict[str, list[_Part]] = {pool: [] for pool in pools}
    budget = Budget()
    for index, group in enumerate(descriptor.groups):
        for place, roles in _roles_by_place(group, f"groups[{index}]"):
            if place.page_bytes:
                _check_page(place, roles, budget)
            for pool_id, part in _parts(group, place, roles):
                _check_inside(part, *pools[pool_id])
                parts[pool_id].append(part)
    seen: set[tuple[int, tuple[_Part, ...]]] = set()
    for pool, _ in pools.values():
        # Pools of one layer each are alike, and asking once settles all.
        pattern = (pool.num_blocks, tuple(parts[pool.id]))
        if pattern not in seen:
            seen.add(pattern)
            _check_pool(pool.num_blocks, parts[pool.id], budget)


def _check_place(group: Group, place: Place, path: str) -> None:
    if len(place.pools) not in (1, len(group.layers)):
        raise Contradiction(
            f"expected 1 pool or {len(group.layers)}, one per layer, got {len(place.pools)}",
            f"{path}.pools",
        )
    if len(place.pools) > 1 and place.layer_stride:
        raise Contradiction("expected 0 with a pool per layer", f"{path}.layer_stride")


def _roles_by_place(group: Group, path: str) -> list[tuple[Place, dict[str, Role]]]:
    """Places that are used, and by path the roles in each; places that say the same are one."""
    found: dict[Place, dict[str, Role]] = {}
    for number, place in enumerate(group.places):
        _check_place(group, place, f"{path}.places[{number}]")
    for number, role in enumerate(group.roles):
        place = canonical_place(group.places[role.place], len(group.layers))
        found.setdefault(place, {})[f"{path}.roles[{number}]"] = role
    return list(found.items())


def _parts(group: Group, place: Place, roles: dict[str, Role]) -> list[tuple[str, _Part]]:
    """Ids of pools, and what the place's roles have in each."""
    start = 8 * place.offset
    if place.page_bytes:
        pieces = {next(iter(roles)): Footprint(start, 8 * place.page_bytes)}
    else:
        pieces = {
            path: bits._replace(base=start + bits.base)
            for path, bits in ((path, _element_bits(role)) for path, role in roles.items())
        }
    layers = (len(group.layers), 8 * place.layer_stride) if len(place.pools) == 1 else (1, 0)
    parts = [
        _Part(path, group.table, 8 * place.block_stride, _over(piece, layers))
        for path, piece in pieces.items()
    ]
    return [(pool, part) for pool in place.pools for part in parts]


def _element_bits(role: Role) -> Footprint:
    """The role's bits from the start of its page."""
    loops = tuple((extent, stride) for _, _, extent, stride in role.terms)
    return Footprint(role.base_bits, role.bits, loops)


def _over(piece: Footprint, loop: tuple[int, int]) -> Footprint:
    return piece._replace(loops=(*piece.loops, loop))


def _check_page(place: Place, roles: dict[str, Role], budget: Budget) -> None:
    """Roles inside of a page that is theirs alone."""
    bits = [_element_bits(role) for role in roles.values()]
    for each, path in zip(bits, roles, strict=True):
        if each.end > 8 * place.page_bytes:
            raise Contradiction(
                f"ends at bit {each.end} of a page of {place.page_bytes} bytes", path
            )
    _check_disjoint(bits, list(roles), budget)


def _check_inside(part: _Part, pool: Pool, pool_path: str) -> None:
    end = _over(part.block, (pool.num_blocks, part.stride)).end
    if end - 1 > MAX_INTEGER:
        raise LimitExceeded("its last bit's address is beyond 2**53 - 1", part.path)
    if end > 8 * pool.num_bytes:
        raise Contradiction(
            f"ends at byte {-(-end // 8)} of {pool.num_bytes} in {pool_path}", part.path
        )
    if pool.block_bytes and part.stride != 8 * pool.block_bytes:
        raise Contradiction(
            f"blocks {part.stride // 8} bytes apart, where {pool_path}.block_bytes is "
            f"{pool.block_bytes}",
            part.path,
        )
    if pool.block_bytes and part.block.end > 8 * pool.block_bytes:
        raise Contradiction(f"beyond the block that {pool_path}.block_bytes says", part.path)


def _check_pool(num_blocks: int, parts: list[_Part], budget: Budget) -> None:
    tables: dict[int, list[_Part]] = {}
    for part in parts:
        tables.setdefault(part.table, []).append(part)
    if len(tables) > 1 and _are_all_disjoint(num_blocks, _in_bytes(parts), budget):
        return
    for own in tables.values():
        bits = [_over(part.block, (num_blocks, part.stride)) for part in own]
        _check_disjoint(bits, [part.path for part in own], budget)
    for a, b in combinations(_different_units(parts), 2):
        if a[0].table != b[0].table:
            _check_overlay(num_blocks, a, _in_bytes(b), budget)


def _in_bytes(parts: list[_Part]) -> list[_Part]:
    """The parts with all bits of their bytes: two tables may not have halves of one either."""
    wide = [part._replace(block=bits) for part in parts for bits in whole_bytes(part.block)]
    return list({(part.table, part.stride, part.block): part for part in wide}.values())


def _are_all_disjoint(num_blocks: int, parts: list[_Part], budget: Budget) -> bool:
    """Whether no two tables overlay at all; False as well where that is much to find out."""
    most = budget.left // 2
    own = Budget(most)
    try:
        met = overlap([_over(part.block, (num_blocks, part.stride)) for part in parts], own)
    except LimitExceeded:
        met = (0, 0)
    budget.spend(most - own.left)
    return met is None


def _different_units(parts: list[_Part]) -> list[list[_Part]]:
    """What a table has in a pool at one stride; of tables that have the same there, two."""
    units: dict[_Unit, list[_Part]] = {}
    for part in parts:
        units.setdefault((part.table, part.stride), []).append(part)
    alike: dict[tuple[int, frozenset[Footprint]], list[list[_Part]]] = {}
    for (_, stride), unit in units.items():
        bits = frozenset(part.block for part in unit)
        alike.setdefault((stride, bits), []).append(unit)
    return [unit for same in alike.values() for unit in same[:2]]


def _check_overlay(num_blocks: int, a: list[_Part], b: list[_Part], budget: Budget) -> None:
    """Parts of two tables: nothing in common, or only what blocks of the same id have."""
    both = a + b
    every = [_over(part.block, (num_blocks, part.stride)) for part in both]
    met = _overlap(every, both, budget)
    if met is None:
        return
    first, second = both[met[0]], both[met[1]]
    if first.stride != second.stride:
        raise Contradiction(
            f"shares bytes with {first.path}, of another table and block_stride", second.path
        )
    if num_blocks == 1:
        return
    for later, earlier in ((a, b), (b, a)):
        blocks = [
            Footprint(
                part.block.base + part.stride,
                part.block.size,
                (*part.block.loops, (num_blocks - 1, part.stride)),
            )
            for part in later
        ]
        ordered = later + earlier
        met = _overlap([*blocks, *(part.block for part in earlier)], ordered, budget)
        if met is not None:
            raise Contradiction(
                f"a block shares bytes with another block of {ordered[met[0]].path}",
                ordered[met[1]].path,
            )


def _overlap(bits: list[Footprint], parts: list[_Part], budget: Budget) -> tuple[int, int] | None:
    """As `overlap`; where it gives up, the path is that of the first part."""
    try:
        return overlap(bits, budget)
    except LimitExceeded as error:
        raise LimitExceeded(str(error), parts[0].path) from None


def _check_disjoint(bits: list[Footprint], paths: list[str], budget: Budget) -> None:
    try:
        met = overlap(bits, budget)
    except LimitExceeded as error:
        raise LimitExceeded(str(error), paths[0]) from None
    if met is None:
        return
    first, second = met
    if paths[first] == paths[second]:
        raise Contradiction("two of its elements, or of its pages, share a bit", paths[first])
    raise Contradiction(f"shares a bit with {paths[first]}", paths[second])
