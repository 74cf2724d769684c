"""An engine's blocks, served to readers of the wire protocol over TCP and in shared memory.

Knows bytes and block ids; nothing of torch, nor of what the bytes mean beyond the descriptor.
"""

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from transload_abi import Descriptor, encode_msgpack, read
from transload_abi.wire import auth, codec, messages
from transload_abi.wire.deadlines import HolderDeadlines, Terms
from transload_abi.wire.frames import Buffer
from transload_abi.wire.holder_state import HolderSettings
from transload_abi.wire.ledger import Freed
from transload_abi.wire.pool_files import PoolFiles
from transload_connector.transports.block_lists import BlocksByTable
from transload_connector.transports.holder_connections import ConnectionLimits, HolderConnections
from transload_connector.transports.shared_ledger import SharedLedger
from transload_connector.transports.shared_memory import SharedPool
from transload_connector.transports.sockets import Address, listen
from transload_connector.transports.verdicts import Verdict, judge


class HolderStats(msgspec.Struct, frozen=True):
    """Counts of one moment.

    Attributes:
        num_connections: Open now, data streams included.
        num_held: Handoffs whose lease is held.
        num_copied: Leases of which a frame is under way.
        num_bytes_sent: Of data, since the start.
        num_bytes_waiting: Of data and answers, that readers have not taken.
        num_turned_away: Connections that were too many.
        num_mapped: Times that a reader was told where blocks are in shared memory.
        ends: Sessions that have ended, by `SessionEnded.why`.
    """

    num_connections: int
    num_held: int
    num_copied: int
    num_bytes_sent: int
    num_bytes_waiting: int
    num_turned_away: int
    num_mapped: int
    ends: dict[str, int]


class HolderServer:
    """Listens from its making until `close`. All methods may be called from any thread.

    Args:
        descriptor: Of this rank's cache.
        memory: Contiguous bytes of each pool, by id; the server's to read while a lease is held.
            Where all are a `SharedPool`, readers of this host may read them there; whoever made
            them closes them behind the server.
        name: Of the engine, for people.
        generation: Another one after each start of the engine.
        on_freed: Called once for each handoff that was granted, when its blocks are the caller's
            again, from the server's own thread: it must be quick, never block and never raise.
            Owners with a loop hop by `loop.call_soon_threadsafe`, such with a step by a
            `queue.SimpleQueue` that the step drains.
        token: Shared with readers; None: there is none.
        host: To listen at; empty: all addresses of this host.
        port: Likewise; 0: any that is free, see `address`.
        terms: Of leases.
        deadlines: For readers.
        limits: Of connections.
        verdict: Judges readers' descriptors.
        max_streams: Data streams of a session.

    Raises:
        OSError: The address cannot be had.
        ValueError: The memory is not what the descriptor says.
        RuntimeError: There can be no more threads.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        memory: Mapping[str, Buffer | SharedPool],
        *,
        name: str,
        generation: str,
        on_freed: Callable[[Freed], None],
        token: bytes | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        terms: Terms | None = None,
        deadlines: HolderDeadlines | None = None,
        limits: ConnectionLimits | None = None,
        verdict: Verdict = judge,
        max_streams: int = 4,
    ) -> None:
        body = encode_msgpack(descriptor)
        canonical = read(body)
        pools, files = _pools(canonical, memory), _files(canonical, memory)
        settings = HolderSettings(
            engine=name,
            generation=generation,
            descriptor=body,
            token=auth.NO_TOKEN if token is None else token,
            max_streams=max_streams,
            features=() if files is None else (messages.SHM,),
            deadlines=deadlines or HolderDeadlines(),
        )
        self._ledger = SharedLedger(terms)
        with contextlib.ExitStack() as unless_started:
            listener = listen(host, port)
            unless_started.callback(listener.close)
            self.address: Address = listener.getsockname()[:2]
            self._connections = HolderConnections(
                listener,
                settings,
                canonical,
                pools,
                self._ledger,
                on_freed,
                verdict,
                limits or ConnectionLimits(),
                files,
            )
            self._thread = self._connections.thread
            self._thread.start()
            unless_started.pop_all()

    def grant(
        self,
        handoff: str,
        lease: str,
        blocks_by_table: BlocksByTable,
        num_tokens: int,
        readers: int = 1,
        num_encoder_tokens: int = 0,
    ) -> None:
        """Hold blocks for readers from now on; tell nobody of the handoff before.

        Args:
            handoff: Of the request.
            lease: Never used before for this handoff.
            blocks_by_table: Ids for each table of the descriptor's transferable groups. They must
                not change until `on_freed` gives them back.
            num_tokens: Of the request.
            readers: How many will read it.
            num_encoder_tokens: Of a request with an encoder.

        Raises:
            ValueError: The caller's fault, as of `Ledger.grant` and `BlockLists.tables_of`; or a
                field that no message can say to readers, which is named.
            RuntimeError: The server is closed.
        """
        server = self._connections
        tables = server.lists.tables_of(blocks_by_table)
        # Whatever cannot be said raises here, and not in the thread when a reader asks.
        codec.encode(messages.Forgo(1, handoff, lease))
        codec.encode(messages.Lease(1, num_tokens, tables, readers, readers, 0, num_encoder_tokens))
        with server.lists_lock:
            if self._thread.is_closing:
                raise RuntimeError("the holder is closed")
            now = self._thread.clock()
            self._ledger.grant(handoff, lease, tables, num_tokens, readers, now, num_encoder_tokens)
            server.lists.keep(handoff, lease, blocks_by_table)
        self._thread.wake()

    def forgo(self, handoff: str, lease: str) -> messages.Gone | None:
        """End a handoff for all readers; `on_freed` follows. None, or why it is not held."""
        gone = self._ledger.forgo(handoff, lease, self._thread.clock())
        self._thread.wake()
        return gone

    def stats(self) -> HolderStats:
        """What is and was."""
        server = self._connections
        return HolderStats(
            num_connections=len(server.connections),
            num_held=self._ledger.num_held,
            num_copied=self._ledger.num_copied,
            num_bytes_sent=server.num_bytes_sent,
            num_bytes_waiting=sum(each.num_bytes_waiting for each in list(server.connections)),
            num_turned_away=server.num_turned_away,
            num_mapped=server.num_mapped,
            ends=dict(server.ends),
        )

    def close(self) -> None:
        """End all sessions and leases: `on_freed` has been called for all when this returns.

        Raises:
            RuntimeError: As of `IoThread.close`; blocks may still be read.
        """
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _pools(
    descriptor: Descriptor, memory: Mapping[str, Buffer | SharedPool]
) -> dict[str, memoryview]:
    """The memory as bytes."""
    found = {}
    for pool in descriptor.pools:
        if pool.id not in memory:
            raise ValueError(f"memory: lacks the pool {pool.id!r}")
        given = memory[pool.id]
        view = memoryview(given.memory if isinstance(given, SharedPool) else given)
        if not view.c_contiguous or view.nbytes < pool.num_bytes:
            raise ValueError(
                f"memory[{pool.id!r}]: expected {pool.num_bytes} contiguous bytes, "
                f"got {view.nbytes}"
            )
        found[pool.id] = view.cast("B") if view.format != "B" or view.ndim != 1 else view
    return found


def _files(descriptor: Descriptor, memory: Mapping[str, Buffer | SharedPool]) -> PoolFiles | None:
    """Where the memory can be found, if all of it can."""
    names = {pool: each.name for pool, each in memory.items() if isinstance(each, SharedPool)}
    if not all(pool.id in names for pool in descriptor.pools):
        return None
    for pool in descriptor.pools:
        found = memory[pool.id]
        assert isinstance(found, SharedPool)
        if len(found.memory) != pool.num_bytes:
            raise ValueError(
                f"memory[{pool.id!r}]: expected a file of {pool.num_bytes} bytes, "
                f"got {len(found.memory)}"
            )
    return PoolFiles(descriptor, names)
