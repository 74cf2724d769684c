"""Blocks over TCP and in shared memory: a holder of those that others read, a reader of theirs.

**Rules**

* Requests of one handoff have one share of it here, since the choices of one answer come with one
  handoff. It is opened when the first of them is expected, and from then on renewed; it is ended
  behind the last.
* `done` is said behind the last byte that is in its place, `release` where nothing came of it.
* Where no share can be had, as the blocks do not become blocks of this engine, the handoff is
  forgone. One that others may read as well is left to them and to its time.
"""

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from typing import NamedTuple

from transload_abi import AbiError
from transload_abi.wire.deadlines import Terms
from transload_abi.wire.errors import WireError
from transload_abi.wire.ledger import Freed
from transload_abi.wire.limits import MAX_NAME_CHARS
from transload_connector.transports.errors import NotShared, PeerRefused, TransferError
from transload_connector.transports.holder_server import HolderServer
from transload_connector.transports.reader_client import ReaderClient
from transload_connector.transports.reader_requests import OpenHandoff
from transload_connector.transports.verdicts import judge, judge_lossless
from transload_engine.core.handoff import Grant, Handoff, prompt_digest
from transload_engine.core.scheduler import Load
from transload_engine.core.transfers import FailedLoad, Loaded
from transload_engine.server.kv_failures import (
    ABORTED,
    conflict,
    failure_of,
    foreign,
    other_prompt,
    other_tokens,
)
from transload_engine.server.kv_fetch import BlockReads, KvMemory, UnderWay, settled
from transload_engine.server.kv_shared import SharedReads
from transload_engine.server.kv_transfer import KvTransport, TransferSettings


class _Name(NamedTuple):
    """One grant of one engine."""

    host: str
    port: int
    generation: str
    handoff: str
    lease: str

    @classmethod
    def of(cls, handoff: Handoff) -> "_Name":
        """That a handoff is of, whatever else it says."""
        where = (handoff.host, handoff.port, handoff.generation)
        return cls(*where, handoff.request_id, handoff.lease)


class _Share:
    """This engine's share of one handoff.

    Attributes:
        handoff: As the first request brought it.
        users: Requests that want it, or have been given it.
        is_read: Whether one of them had all that it wanted.
    """

    def __init__(self, handoff: Handoff, opening: Future[OpenHandoff]) -> None:
        self.handoff = handoff
        self.opening = opening
        self.users: set[str] = set()
        self.is_read = False


class SocketTransfer:
    """See the module, and `Transfer`.

    Args:
        memory: Of this engine.
        settings: How to move.
        name: Of this engine, for people.
        generation: Of this start of it.
        on_freed: Called once for each grant that ends, from a thread of the holder's.

    Raises:
        OSError: The address cannot be had.
    """

    def __init__(
        self,
        memory: KvMemory,
        settings: TransferSettings,
        name: str,
        generation: str,
        on_freed: Callable[[Freed], None],
    ) -> None:
        self._tables = sorted({group.table for group in memory.descriptor.groups})
        self._holder = HolderServer(
            memory.descriptor,
            memory.shared or {pool: tensor.numpy() for pool, tensor in memory.pools.items()},
            name=name,
            generation=generation,
            on_freed=on_freed,
            token=settings.token,
            host=settings.host,
            port=settings.port,
            terms=Terms(settings.lease_s, max(settings.lease_s, Terms().max_hold_s)),
            deadlines=settings.holder_deadlines,
        )
        self.host = settings.host
        self.port = self._holder.address[1]
        self._client = ReaderClient(
            memory.descriptor,
            name=name,
            generation=generation,
            token=settings.token,
            deadlines=settings.reader_deadlines,
            verdict=judge if settings.allows_lossy else judge_lossless,
            has_shm=settings.transport is not KvTransport.TCP,
        )
        self._memory = memory
        self._transport = settings.transport
        self._shared_reads = SharedReads(self._client, memory, allows_lossy=settings.allows_lossy)
        self._reads = BlockReads(self._client, memory, allows_lossy=settings.allows_lossy)
        self._shares: dict[_Name, _Share] = {}
        self._expected: dict[str, _Name] = {}
        self._under_way: dict[str, UnderWay] = {}

    def grant(self, grant: Grant) -> None:
        """See `Transfer`."""
        blocks = dict.fromkeys(self._tables, grant.block_ids)
        readers = grant.num_readers
        self._holder.grant(grant.handoff, grant.lease, blocks, grant.num_tokens, readers)

    def expect(self, request_id: str, handoff: Handoff) -> None:
        """See `Transfer`."""
        if not handoff.speaks_wire:
            return
        name = _Name.of(handoff)
        share = self._shares.get(name)
        if share is None:
            opening = self._client.open(
                (name.host, name.port),
                name.handoff,
                name.lease,
                request_id[-MAX_NAME_CHARS:],
                generation=name.generation,
            )
            share = self._shares[name] = _Share(handoff, opening)
        share.users.add(request_id)
        self._expected[request_id] = name

    async def fetch(self, load: Load) -> Loaded | FailedLoad:
        """See `Transfer`."""
        if not load.handoff.speaks_wire:
            return foreign(load.handoff)
        name = self._expected.get(load.request_id)
        if name is None:
            return ABORTED
        under_way = self._under_way[load.request_id] = UnderWay()
        try:
            return await self._fetch(load, self._shares[name], under_way)
        except CancelledError:
            return ABORTED
        except (TransferError, AbiError, WireError) as error:
            return ABORTED if under_way.is_dropped else failure_of(error)
        finally:
            del self._under_way[load.request_id]
            self._leave(load.request_id)

    def drop(self, request_id: str) -> None:
        """See `Transfer`."""
        under_way = self._under_way.get(request_id)
        if under_way is None:
            self._leave(request_id)
        else:
            under_way.drop()

    def forgo(self, handoff: Handoff) -> None:
        """See `Transfer`."""
        if handoff.speaks_wire and handoff.num_readers == 1:
            address = (handoff.host, handoff.port)
            name, lease = handoff.request_id, handoff.lease
            self._client.forgo(address, name, lease, generation=handoff.generation)

    def close(self) -> None:
        """See `Transfer`."""
        with ExitStack() as closing:
            # Each, whatever becomes of those before it.
            closing.callback(self._holder.close)
            closing.callback(self._shared_reads.close)
            closing.callback(self._reads.close)
            closing.callback(self._client.close)
        for pool in self._memory.shared.values():
            pool.unlink()

    async def _fetch(self, load: Load, share: _Share, under_way: UnderWay) -> Loaded | FailedLoad:
        begun = time.monotonic()
        await settled(share.opening, under_way.told)
        if under_way.is_dropped:
            return ABORTED
        try:
            opened = share.opening.result()
        except ValueError as error:
            return conflict(load.handoff, str(error))
        if opened.num_tokens != load.num_tokens:
            return other_prompt(load.handoff, opened.num_tokens, load.num_tokens)
        if load.handoff.prompt != prompt_digest(load.prompt):
            return other_tokens(load.handoff)
        num_bytes, is_shared = await self._read(load, opened, under_way)
        share.is_read = True
        return Loaded(num_bytes, time.monotonic() - begun, is_shared)

    async def _read(self, load: Load, opened: OpenHandoff, under_way: UnderWay) -> tuple[int, bool]:
        """How many bytes were read, and whether in shared memory."""
        if self._transport is not KvTransport.TCP:
            try:
                return await self._shared_reads.fetch(load, opened, under_way), True
            except NotShared:
                if self._transport is KvTransport.SHM:
                    raise
        return await self._reads.fetch(load, opened, under_way), False

    def _leave(self, request_id: str) -> None:
        """A request has no use for its handoff any more; the last one ends the share."""
        name = self._expected.pop(request_id, None)
        if name is None:
            return
        share = self._shares[name]
        share.users.discard(request_id)
        if share.users:
            return
        del self._shares[name]
        if share.opening.cancel() or share.opening.cancelled():
            # If it opens none the less, the client releases it, as nobody has it.
            return
        error = share.opening.exception()
        if error is None:
            end = self._client.done if share.is_read else self._client.release
            end(share.opening.result())
        elif isinstance(error, PeerRefused):
            self.forgo(share.handoff)
