"""A TCP proxy between engines: it holds, spoils or cuts what comes from the one that is read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_BUFFER_BYTES = 4096


class Proxy:
    """See the module.

    Attributes:
        port: Where readers connect.
        num_bytes: That have come from the other side.
        is_holding: Whether bytes wait here.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.num_bytes = 0
        self.is_holding = asyncio.Event()
        self._holder = (host, port)
        self._hold_at: int | None = None
        self._spoil_at: int | None = None
        self._released = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def hold_after(self, num_bytes: int) -> None:
        """Let so many bytes more come, and no other until it is cut or released."""
        self._hold_at = self.num_bytes + num_bytes

    def spoil_after(self, num_bytes: int) -> None:
        """Flip a bit of the byte that comes after so many more."""
        self._spoil_at = self.num_bytes + num_bytes

    def release(self) -> None:
        """Let all come."""
        self._released.set()

    def cut(self) -> None:
        """End all connections; what is held is lost."""
        for writer in self._writers:
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._holder)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, far_writer]
        ends = ((reader, far_writer, False), (far_reader, writer, True))
        for end in ends:
            task = asyncio.create_task(self._pass(*end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cut, and leave no task."""
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_watched: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_BUFFER_BYTES):
                if is_watched:
                    data = await self._watched(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _watched(self, data: bytes) -> bytes:
        first, self.num_bytes = self.num_bytes, self.num_bytes + len(data)
        if self._spoil_at is not None and first <= self._spoil_at < self.num_bytes:
            spoiled = bytearray(data)
            spoiled[self._spoil_at - first] ^= 1
            data = bytes(spoiled)
        if self._hold_at is not None and self.num_bytes > self._hold_at:
            self.is_holding.set()
            await self._released.wait()
        return data


@asynccontextmanager
async def proxy(host: str, port: int) -> AsyncIterator[Proxy]:
    """One in front of a holder."""
    made = Proxy(host, port)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.close()
