"""A transport that is a list of what was done to it, and a clock that is a number."""

import asyncio
from collections.abc import Iterable
from typing import cast

from transload_router.io.upstream.connection import Connection

REQUEST = b"GET / HTTP/1.1\r\nhost: e:1\r\n\r\n"


class FakeLoop:
    """What a connection wants of its loop.

    Attributes:
        now: The time, moved by hand.
    """

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        """See asyncio."""
        return self.now

    def create_future(self) -> asyncio.Future[None]:
        """See asyncio."""
        return asyncio.get_running_loop().create_future()


class FakeTransport(asyncio.Transport):
    """Remembers what was done to it.

    Attributes:
        written: Each write.
        calls: Names of all calls, in order.
        num_unwritten_bytes: What the kernel has not taken, set by hand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.calls: list[str] = []
        self._is_reading = True
        self._is_gone = False
        self.num_unwritten_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        self.calls.append("write")
        self.written.append(bytes(data))

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        """See asyncio."""
        self.calls.append("writelines")
        self.written.extend(bytes(part) for part in parts)

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self.num_unwritten_bytes

    def pause_reading(self) -> None:
        """See asyncio."""
        assert self._is_reading, "paused twice"
        self.calls.append("pause_reading")
        self._is_reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        assert not self._is_reading
        self.calls.append("resume_reading")
        self._is_reading = True

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._is_reading

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_gone

    def lose(self) -> None:
        """The other side has ended it."""
        self._is_gone = True

    def close(self) -> None:
        """See asyncio."""
        self.calls.append("close")
        self._is_gone = True

    def abort(self) -> None:
        """See asyncio."""
        self.calls.append("abort")
        self._is_gone = True


class Wire:
    """A connection on a fake transport and a fake clock.

    Attributes:
        connection: What is tested.
        transport: Below it.
        loop: Its clock.
    """

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.transport = FakeTransport()
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.connection = Connection("e", loop, [])
        self.connection.connection_made(self.transport)

    def send(self, *, is_head: bool = False) -> None:
        """A request whose header may take until 130.0 and whose silences 5 s."""
        self.connection.send([REQUEST], self.loop.now + 30.0, 5.0, is_head=is_head)

    def receive(self, *chunks: bytes) -> None:
        """Bytes from the engine."""
        for chunk in chunks:
            self.connection.data_received(chunk)

    def lose(self, error: Exception | None = None) -> None:
        """The end of the connection."""
        self.transport.lose()
        self.connection.connection_lost(error)


def asked(*, is_head: bool = False) -> Wire:
    """A wire on which a request was sent."""
    wire = Wire()
    wire.send(is_head=is_head)
    return wire
