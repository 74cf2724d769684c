"""The block ids of each handoff that is held, and what a read's payload is made of.

Readers know positions in these lists and never ids. Knows no sockets, and no time.
"""

from collections.abc import Iterator, Mapping, Sequence

from transload_abi.types import Descriptor
from transload_abi.wire.errors import WireError
from transload_abi.wire.messages import Range, Read, Table
from transload_abi.wire.payload import Run, payload_of

BlocksByTable = Mapping[int, Sequence[int]]
"""Block ids of one request, by the number of the table. See `connector/ABI.md`, section 9."""


class BlockLists:
    """Of one holder. Its owner takes turns.

    Args:
        holder: Its descriptor, in canonical form.
    """

    def __init__(self, holder: Descriptor) -> None:
        self._holder = holder
        self._table_of = {each.id: each.table for each in holder.groups}
        groups = [each for each in holder.groups if each.transferable]
        self._null_of = {each.table: each.null_block for each in groups}
        self._num_blocks_of = {
            table: min(
                holder.pool(pool).num_blocks
                for each in groups
                if each.table == table
                for place in each.places
                for pool in place.pools
            )
            for table in self._null_of
        }
        self._lists: dict[tuple[str, str], dict[int, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._lists)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._lists)

    def tables_of(self, blocks: BlocksByTable) -> tuple[Table, ...]:
        """What readers are told of such lists.

        Raises:
            ValueError: Lists of other tables than the descriptor's, or ids that it does not have.
        """
        if set(blocks) != set(self._null_of):
            raise ValueError(f"expected blocks of tables {sorted(self._null_of)}, got {[*blocks]}")
        return tuple(self._table(number, blocks[number]) for number in sorted(blocks))

    def keep(self, handoff: str, lease: str, blocks: BlocksByTable) -> None:
        """Remember the ids until `drop`."""
        self._lists[handoff, lease] = {number: tuple(ids) for number, ids in blocks.items()}

    def drop(self, handoff: str, lease: str) -> None:
        """The handoff is free."""
        self._lists.pop((handoff, lease), None)

    def ids_of(self, handoff: str, lease: str, table: int) -> tuple[int, ...]:
        """One list of a handoff.

        Raises:
            WireError: The handoff is not among these.
        """
        lists = self._lists.get((handoff, lease))
        if lists is None:
            raise WireError("the blocks of the handoff are not known", "handoff")
        return lists[table]

    def runs_of(self, read: Read, lease: str) -> Iterator[Run]:
        """Where the bytes of a read are; it was measured before.

        Raises:
            WireError: The handoff is not among these.
        """
        ids = self.ids_of(read.handoff, lease, self._table_of[read.group])
        chosen = (each for first, count in read.blocks for each in ids[first : first + count])
        return payload_of(self._holder, read).runs_of(chosen)

    def _table(self, number: int, ids: Sequence[int]) -> Table:
        null, most = self._null_of[number], self._num_blocks_of[number]
        wrong = next((each for each in ids if not 0 <= each < most), None)
        if wrong is not None:
            raise ValueError(f"table {number}: expected block ids below {most}, got {wrong}")
        return Table(number, len(ids), tuple(_ranges(ids, null)))


def _ranges(ids: Sequence[int], null: int | None) -> Iterator[Range]:
    """Where the null block is."""
    first = None
    for at, each in enumerate((*ids, -1)):
        if each == null and null is not None:
            first = at if first is None else first
        elif first is not None:
            yield first, at - first
            first = None
