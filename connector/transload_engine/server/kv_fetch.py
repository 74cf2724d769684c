"""The reads of one load: asked for in chunks, received, and made blocks of this engine.

Knows open handoffs and block ids; nothing of requests, of leases, or of what a failure means.
"""

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from torch import Tensor

from transload_abi import Descriptor, encode_msgpack
from transload_connector.transports.mover import Mover, ReadPlan, Request
from transload_connector.transports.reader_client import ReaderClient
from transload_connector.transports.reader_requests import OpenHandoff, ReadFuture
from transload_connector.transports.shared_memory import SharedPool
from transload_engine.core.scheduler import Load

MAX_CHUNKS: Final = 8
"""Of one load, received or to be landed at one time: each takes memory beside the cache's, as much
as `mover_parts.CHUNK_BYTES`."""

MAX_MOVERS: Final = 64
"""Kept: each is of one descriptor of other engines, and is compiled in some milliseconds."""


class KvMemory(NamedTuple):
    """A cache as it lies in memory.

    Attributes:
        pools: By id, uint8 `[num_bytes]` of the CPU.
        shared: The same memory, where others on this host may have it; else empty.
    """

    descriptor: Descriptor
    pools: Mapping[str, Tensor]
    shared: Mapping[str, SharedPool] = {}


class UnderWay:
    """A load that can be given up from without.

    Attributes:
        is_dropped: Whether nobody wants it any more.
        told: Set when it is dropped, or its handoff is open or cannot be opened.
        reads: That were asked for.
    """

    def __init__(self) -> None:
        self.is_dropped = False
        self.told = asyncio.Event()
        self.reads: list[ReadFuture] = []

    def drop(self) -> None:
        """Ask for the end of all reads; none is asked for any more."""
        self.is_dropped = True
        self.told.set()
        for future in self.reads:
            future.cancel()


class _Chunk(NamedTuple):
    """One read.

    Attributes:
        staging: What it is received into; None where that is its place.
    """

    plan: ReadPlan
    staging: bytearray | None
    future: ReadFuture


async def settled(future: Future[Any], told: asyncio.Event | None = None) -> None:
    """Wait for a future, or for the event, without having it cancelled with the caller."""
    loop = asyncio.get_running_loop()
    event = told or asyncio.Event()
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(event.set))
    await event.wait()


class BlockReads:
    """See the module. Copies and conversions are made in a thread of its own.

    Args:
        client: That handoffs are open in.
        memory: To be filled.
        allows_lossy: Whether numbers may be rounded.
    """

    def __init__(self, client: ReaderClient, memory: KvMemory, *, allows_lossy: bool) -> None:
        self._client = client
        self._memory = memory
        self._allows_lossy = allows_lossy
        self._tables = sorted({group.table for group in memory.descriptor.groups})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-loads")
        self._movers: OrderedDict[bytes, Mover] = OrderedDict()

    async def fetch(self, load: Load, opened: OpenHandoff, under_way: UnderWay) -> int:
        """Fill the blocks of a load; the number of bytes that came.

        However it ends, nothing is written to the blocks any more.

        Raises:
            TransferError: Something did not come.
            CancelledError: The load was dropped (`concurrent.futures`' error).
            WireError: The holder's lists are not of its descriptor.
            AbiError: Its blocks do not become these.
        """
        loop = asyncio.get_running_loop()
        mover = await loop.run_in_executor(self._thread, self._mover, opened.descriptor)
        dst = dict.fromkeys(self._tables, load.block_ids)
        request = Request((opened.tables,), dst, load.num_tokens, load.num_local_tokens)
        plans = mover.reads(request)
        pending: deque[_Chunk] = deque()
        try:
            for plan in plans:
                if len(pending) == MAX_CHUNKS:
                    await self._land(mover, pending.popleft())
                if under_way.is_dropped:
                    raise CancelledError
                pending.append(self._ask(mover, plan, opened, under_way))
            while pending:
                await self._land(mover, pending.popleft())
        finally:
            for chunk in pending:
                chunk.future.cancel()
            for chunk in pending:
                await settled(chunk.future)
        return sum(plan.num_bytes for plan in plans)

    def close(self) -> None:
        """End the thread; may block."""
        self._thread.shutdown()

    def _ask(
        self, mover: Mover, plan: ReadPlan, opened: OpenHandoff, under_way: UnderWay
    ) -> _Chunk:
        staging = None if plan.is_direct else bytearray(plan.num_bytes)
        read = plan.message(1, opened.handoff, checksums=True)
        future = self._client.read(
            opened,
            read.group,
            read.blocks,
            mover.sinks(plan, self._memory.pools) if staging is None else [memoryview(staging)],
            layers=read.layers,
            heads=read.heads,
            form=read.form,
            checksums=True,
        )
        under_way.reads.append(future)
        return _Chunk(plan, staging, future)

    async def _land(self, mover: Mover, chunk: _Chunk) -> None:
        await settled(chunk.future)
        chunk.future.result()
        if chunk.staging is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(
                self._thread, mover.land, chunk.plan, chunk.staging, self._memory.pools
            )

    def _mover(self, holder: Descriptor) -> Mover:
        """From a holder's blocks to these, compiled once."""
        key = hashlib.sha256(encode_msgpack(holder)).digest()
        mover = self._movers.get(key)
        if mover is None:
            mover = self._movers[key] = Mover.compile(
                holder, self._memory.descriptor, allows_lossy=self._allows_lossy
            )
            if len(self._movers) > MAX_MOVERS:
                self._movers.popitem(last=False)
        return mover
