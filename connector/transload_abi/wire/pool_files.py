"""Where blocks are in the memory of their holder's host: the answer to `map`, from block lists."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from transload_abi.types import Descriptor
from transload_abi.wire.messages import Map, Mapped, PoolFile, Range


class PoolFiles:
    """Of one holder.

    Args:
        holder: Its descriptor, in canonical form.
        names: Of the file of each pool, by the pool's id.
    """

    def __init__(self, holder: Descriptor, names: Mapping[str, str]) -> None:
        self._by_table: dict[int, tuple[PoolFile, ...]] = {}
        for table in {group.table for group in holder.groups}:
            pools = sorted(pools_of(holder, table))
            self._by_table[table] = tuple(
                PoolFile(pool, names[pool], holder.pool(pool).num_bytes) for pool in pools
            )

    def mapped(self, asked: Map, ids: Sequence[int]) -> Mapped:
        """Where blocks are.

        Args:
            asked: For positions that the list has.
            ids: The whole list.
        """
        chosen = chain.from_iterable(ids[first : first + count] for first, count in asked.blocks)
        return Mapped(asked.id, self._by_table[asked.table], tuple(_ranges(chosen)))


def pools_of(holder: Descriptor, table: int) -> set[str]:
    """The pools that a table's groups lie in."""
    groups = [group for group in holder.groups if group.table == table]
    return {pool for group in groups for place in group.places for pool in place.pools}


def _ranges(ids: Iterator[int]) -> Iterator[Range]:
    """The same ids in the same order, neighbours as one range."""
    first = count = 0
    for each in ids:
        if count and each == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = each, 1
    if count:
        yield first, count
