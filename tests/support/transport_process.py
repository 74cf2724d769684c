"""A holder in a process of its own, to be stopped and killed; and a reader likewise."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from support.transport_world import GROUP, LARGE, PATIENCE_S, Holder, client, soon


class HolderProcess:
    """As `Holder` with the blocks of `LARGE`, elsewhere."""

    def __init__(self, port: int = 0, generation: str = "g1") -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_hold, args=(theirs, port, generation), daemon=True)
        self._process.start()
        theirs.close()
        assert self._pipe.poll(PATIENCE_S)
        self.address: tuple[str, int] = self._pipe.recv()

    def grant(self, handoff: str, blocks: list[int]) -> None:
        """Under the lease `l-` and the handoff's name."""
        self._pipe.send((handoff, blocks))
        assert self._pipe.poll(PATIENCE_S)
        self._pipe.recv()

    def signal(self, number: int) -> None:
        """Send one to the process."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.join(PATIENCE_S)
        self._pipe.close()


@contextmanager
def holder_process(**options: Any) -> Iterator[HolderProcess]:
    """One that is gone at the end."""
    process = HolderProcess(**options)
    try:
        yield process
    finally:
        process.kill()


def _hold(pipe: Connection, port: int, generation: str) -> None:
    holder = Holder(LARGE, port=port, generation=generation)
    with holder.server, contextlib.suppress(EOFError):
        pipe.send(holder.address)
        while True:
            handoff, blocks = pipe.recv()
            holder.grant(handoff, blocks)
            pipe.send(None)


class ReaderProcess:
    """A reader of `LARGE` blocks, elsewhere."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_read, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._wait()

    def open(self, address: tuple[str, int], handoff: str) -> None:
        """Open the handoff under the lease `l-` and its name."""
        self._pipe.send((address, handoff))
        self._wait()

    def read(self, blocks: tuple[int, int]) -> None:
        """Begin to."""
        self._pipe.send(blocks)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.join(PATIENCE_S)
        self._pipe.close()

    def _wait(self) -> None:
        assert self._pipe.poll(PATIENCE_S)
        self._pipe.recv()


def _read(pipe: Connection) -> None:
    with client(LARGE, num_streams=0) as reader, contextlib.suppress(EOFError):
        pipe.send(None)
        address, handoff = pipe.recv()
        opened = soon(reader.open(address, handoff, f"l-{handoff}", "r"))
        pipe.send(None)
        blocks = pipe.recv()
        sink = bytearray(blocks[1] * LARGE.pools[0].block_bytes)
        reader.read(opened, GROUP, [blocks], [memoryview(sink)], form="block")
        pipe.recv()
