"""Loads out of the memory of other engines on this host: found, copied, and confirmed.

Knows open handoffs and block ids; nothing of requests, of leases, or of what a failure means.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import lru_cache

from transload_abi import encode_msgpack, read
from transload_connector.transports.mover import Request
from transload_connector.transports.reader_client import ReaderClient
from transload_connector.transports.reader_maps import SharedBlocks
from transload_connector.transports.reader_requests import OpenHandoff
from transload_connector.transports.reader_shared import SharedMover
from transload_engine.core.scheduler import Load
from transload_engine.server.kv_fetch import MAX_MOVERS, KvMemory, UnderWay, settled


class SharedReads:
    """See the module. Copies and conversions are made in a thread of its own.

    Args:
        client: That handoffs are open in.
        memory: To be filled.
        allows_lossy: Whether numbers may be rounded.
    """

    def __init__(self, client: ReaderClient, memory: KvMemory, *, allows_lossy: bool) -> None:
        self._client = client
        self._memory = memory
        self._tables = sorted({group.table for group in memory.descriptor.groups})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-shared")

        def compiled(holder: bytes) -> SharedMover:
            return SharedMover.compile(read(holder), memory.descriptor, allows_lossy=allows_lossy)

        self._mover: Callable[[bytes], SharedMover] = lru_cache(MAX_MOVERS)(compiled)

    async def fetch(self, load: Load, opened: OpenHandoff, under_way: UnderWay) -> int:
        """Fill the blocks of a load; the number of bytes that were read.

        However it ends, nothing is written to the blocks any more.

        Raises:
            NotShared: The handoff's blocks are not in this host's memory; nothing was written.
            TransferError: They are not held any more, or the holder cannot be asked.
            CancelledError: The load was dropped (`concurrent.futures`' error).
            AbiError: Its blocks do not become these.
        """
        locating = self._client.locate(opened, load.num_tokens)
        await settled(locating)
        found = locating.result()
        loop = asyncio.get_running_loop()
        copied = await loop.run_in_executor(
            self._thread, self._copy, load, opened, found, under_way
        )
        confirming = self._client.confirm(opened)
        await settled(confirming)
        confirming.result()
        return copied

    def close(self) -> None:
        """End the thread; may block."""
        self._thread.shutdown()

    def _copy(
        self, load: Load, opened: OpenHandoff, found: SharedBlocks, under_way: UnderWay
    ) -> int:
        mover = self._mover(encode_msgpack(opened.descriptor))
        dst = dict.fromkeys(self._tables, load.block_ids)
        request = Request((opened.tables,), dst, load.num_tokens, load.num_local_tokens)
        total = 0
        for num_bytes in mover.steps(0, found, request, self._memory.pools):
            if under_way.is_dropped:
                raise CancelledError
            total += num_bytes
        return total
