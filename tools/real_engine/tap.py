"""Stands before an engine, in a process of its own, and keeps what is asked, byte for byte."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from real_engine.launch import HOST, STOP_GRACE_S, Engine

_CHUNK_BYTES = 1 << 16


class Tap:
    """Forwards connections to one engine; a context manager.

    Attributes:
        url: Where to ask instead of the engine.
    """

    def __init__(self, engine: Engine, record: Path) -> None:
        """Starts it at once.

        Args:
            engine: The engine.
            record: Where to keep what is asked; written anew.
        """
        record.write_bytes(b"")
        arguments = [str(engine.ports.api), str(record.resolve())]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "real_engine.tap", *arguments],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.url = f"http://{HOST}:{int(self._process.stdout.readline())}"
        self._record = record
        self._num_taken = 0

    def __enter__(self) -> Self:
        """Nothing more to start."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends it with all its connections."""
        self._process.kill()
        self._process.communicate(timeout=STOP_GRACE_S)

    def take(self) -> bytes:
        """What was asked since the last call, heads and bodies, without spaces.

        All of a request is there before its answer is.
        """
        asked = self._record.read_bytes()[self._num_taken :]
        self._num_taken += len(asked)
        return asked.replace(b" ", b"")


async def _forward(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: BinaryIO | None
) -> None:
    try:
        while data := await source.read(_CHUNK_BYTES):
            if record is not None:
                record.write(data)
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


async def _serve(port: int, record: BinaryIO) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_engine, to_engine = await asyncio.open_connection(HOST, port)
        await asyncio.gather(
            _forward(reader, to_engine, record), _forward(from_engine, writer, None)
        )

    server = await asyncio.start_server(connect, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Ends with its starter, whose end of the pipe then closes.
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with Path(sys.argv[2]).open("ab", buffering=0) as record:
        asyncio.run(_serve(int(sys.argv[1]), record))
