"""Where a handoff's blocks are in this host's memory: asked for in parts, found, and put together.

Knows nothing of torch, nor of what is done with the bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple

from transload_abi.types import Descriptor
from transload_abi.wire import messages
from transload_abi.wire.pool_files import pools_of
from transload_connector.transports.errors import NotShared, PeerFault, PeerRefused, TransferError
from transload_connector.transports.reader_requests import OpenHandoff
from transload_connector.transports.shared_memory import NoSharedMemory

MAX_ASKED: Final = 1024
"""Blocks that one `map` asks for, as `connector/WIRE.md` advises: 11 kB of ranges at most."""

Ask = Callable[[int, tuple[messages.Range, ...]], Future[messages.Mapped]]
"""Where blocks of a table are, by positions."""


class SharedBlocks(NamedTuple):
    """A handoff's blocks where their holder has them.

    Others may write to them as soon as the lease has ended, and nobody is told: what was copied
    out of them counts only once `ReaderClient.confirm`, asked behind the last byte, has an answer.

    Attributes:
        pools: By id, the bytes of the whole pool; read-only. Mapped as long as somebody has them.
        blocks: Block ids by table, one for each position in the handoff's list.
    """

    pools: Mapping[str, memoryview]
    blocks: Mapping[int, list[int]]


class Locating:
    """Asks for all blocks of one handoff, a part after the other.

    Args:
        handoff: Open, in a session with the feature.
        max_blocks: Of one list.
        ask: Asks for a part; its future is done in one thread, or before it is returned.
    """

    def __init__(self, handoff: OpenHandoff, max_blocks: int, ask: Ask) -> None:
        self.future: Future[SharedBlocks] = Future()
        self._handoff = handoff
        self._ask = ask
        self._max_blocks = max_blocks
        self._parts = _parts(handoff)
        self._pools: dict[str, memoryview] = {}
        self._blocks: dict[int, list[int]] = {}

    @property
    def what(self) -> str:
        """For errors."""
        return f"map of handoff {self._handoff.handoff!r}"

    def begin(self) -> None:
        """Ask for the first part; the future is done behind the last."""
        longest = max(each.num_blocks for each in self._handoff.tables)
        if longest > self._max_blocks:
            # A holder's word: nothing of that length is made before it has been looked at.
            said = f"lease.tables: {longest} blocks, where {self._max_blocks} may be"
            self._fail(PeerFault(self._handoff.peer, self.what, said))
            return
        self._blocks = _null_lists(self._handoff)
        self._go_on()

    def _go_on(self) -> None:
        part = next(self._parts, None)
        if part is None:
            if self.future.set_running_or_notify_cancel():
                self.future.set_result(SharedBlocks(self._pools, self._blocks))
            return
        asked = self._ask(*part)
        asked.add_done_callback(lambda done: self._take(*part, done))

    def _take(
        self, table: int, ranges: tuple[messages.Range, ...], done: Future[messages.Mapped]
    ) -> None:
        peer = self._handoff.peer
        try:
            self._keep(table, ranges, done.result())
        except (NoSharedMemory, PeerRefused) as error:
            self._fail(NotShared(peer, self.what, str(error)))
        except (TransferError, ValueError) as error:
            self._fail(error)
        else:
            self._go_on()

    def _fail(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _keep(
        self, table: int, ranges: tuple[messages.Range, ...], mapped: messages.Mapped
    ) -> None:
        problem = _problem(self._handoff.descriptor, table, mapped)
        if problem:
            raise PeerFault(self._handoff.peer, self.what, problem)
        for file in mapped.pools:
            self._pools[file.pool] = self._handoff.link.mapping_of(file)
        ids = (each for first, count in mapped.blocks for each in range(first, first + count))
        for first, count in ranges:
            for position in range(first, first + count):
                self._blocks[table][position] = next(ids)


def _parts(handoff: OpenHandoff) -> Iterator[tuple[int, tuple[messages.Range, ...]]]:
    """Positions that hold something, by table, so many at a time."""
    for table in handoff.tables:
        part: list[messages.Range] = []
        room = MAX_ASKED
        for first, left in _held(table):
            while left:
                count = min(left, room)
                part.append((first, count))
                first, left, room = first + count, left - count, room - count
                if not room:
                    yield table.table, tuple(part)
                    part, room = [], MAX_ASKED
        if part:
            yield table.table, tuple(part)


def _held(table: messages.Table) -> Iterator[messages.Range]:
    """What of a list is not null."""
    first = 0
    for null, count in (*table.null, (table.num_blocks, 0)):
        if null > first:
            yield first, null - first
        first = null + count


def _null_lists(handoff: OpenHandoff) -> dict[int, list[int]]:
    """Lists of null blocks, to be filled in."""
    nulls = {each.table: each.null_block or 0 for each in handoff.descriptor.groups}
    return {each.table: [nulls.get(each.table, 0)] * each.num_blocks for each in handoff.tables}


def _problem(holder: Descriptor, table: int, mapped: messages.Mapped) -> str:
    """What of an answer does not go with the holder's descriptor; empty: nothing."""
    due = {pool: holder.pool(pool) for pool in pools_of(holder, table)}
    found = {each.pool: each.num_bytes for each in mapped.pools}
    if found != {pool: each.num_bytes for pool, each in due.items()}:
        return "mapped.pools: not those of the table, or not as long as the descriptor says"
    most = min(each.num_blocks for each in due.values())
    if any(first + count > most for first, count in mapped.blocks):
        return f"mapped.blocks: expected ids below {most}"
    return ""
