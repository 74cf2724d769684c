"""A client that says exactly these bytes, and can leave in every impolite way."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

from support.scripted_engine import Headers
from support.waiting import soon


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer's parts.

    Attributes:
        body: With the transfer encoding taken off.
    """

    status: int
    headers: Headers
    body: bytes

    def header(self, name: str) -> str | None:
        """The first value, None where absent."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, Headers]:
        """Status and headers."""
        head = (await soon(self.reader.readuntil(b"\r\n\r\n"))).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines)]
        return int(first.split(" ")[1]), headers

    async def read_chunk(self) -> bytes:
        """One chunk of a chunked body; b"" for the last."""
        size = int((await soon(self.reader.readline())).split(b";")[0], 16)
        data = await soon(self.reader.readexactly(size + 2))
        return data[:-2]

    async def read_answer(self) -> RawAnswer:
        """A whole answer, however it is framed."""
        status, headers = await self.read_head()
        names = {key.lower(): value for key, value in headers}
        if "chunked" in names.get("transfer-encoding", ""):
            pieces = []
            while piece := await self.read_chunk():
                pieces.append(piece)
            return RawAnswer(status, headers, b"".join(pieces))
        if "content-length" in names:
            body = await soon(self.reader.readexactly(int(names["content-length"])))
            return RawAnswer(status, headers, body)
        if status in (204, 304) or status < 200:
            return RawAnswer(status, headers, b"")
        return RawAnswer(status, headers, await soon(self.reader.read()))

    async def read_to_end(self) -> bytes:
        """Everything until the peer's FIN."""
        return await soon(self.reader.read())

    def half_close(self) -> None:
        """FIN, but go on reading."""
        self.writer.write_eof()

    def close(self) -> None:
        """FIN, and take nothing more."""
        self.writer.close()

    def reset(self) -> None:
        """RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def raw_client(port: int, *, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    """A connection for the length of the block.

    Args:
        port: On loopback.
        receive_buffer: Bytes that the kernel takes while nobody reads; the reader's own limit
            is as small.
    """
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=receive_buffer or 1 << 20)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def post(path: str, body: bytes, *headers: tuple[str, str]) -> bytes:
    """A POST's bytes."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: router.test",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *(f"{k}: {v}" for k, v in headers),
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1") + body
