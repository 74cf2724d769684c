"""One request to an engine and its answer, on a connection that goes back to its pool."""

from collections.abc import Callable

from transload_router.io.upstream.connection import Connection

GiveBack = Callable[[Connection], None]


class Exchange:
    """One request and its answer; end it with `release` or `abort`, always.

    Attributes:
        status: The answer's status.
        headers: The answer's headers, names in lower case, as they came.
    """

    __slots__ = (
        "_connection",
        "_give_back",
        "_has_ended",
        "_num_bytes",
        "_parts",
        "headers",
        "status",
    )

    def __init__(self, connection: Connection, give_back: GiveBack) -> None:
        self._connection = connection
        self._give_back = give_back
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._has_ended = False
        self.status = connection.status
        self.headers = connection.headers

    @property
    def connection(self) -> Connection:
        """For loops that cannot afford a coroutine per chunk; not valid after the end."""
        return self._connection

    async def read_chunk(self) -> bytes:
        """See `Connection.read_chunk`."""
        return await self._connection.read_chunk()

    async def read_all(self, limit_bytes: int) -> tuple[bytes, bool]:
        """The body up to a limit; a cancelled call can be made again and loses nothing.

        Returns:
            (bytes, whether they are the whole body). Where they are not, `read_chunk` goes on.
        """
        parts = self._parts
        while self._num_bytes <= limit_bytes:
            chunk = await self._connection.read_chunk()
            if not chunk:
                return (parts[0] if len(parts) == 1 else b"".join(parts)), True
            parts.append(chunk)
            self._num_bytes += len(chunk)
        self._parts = []
        return b"".join(parts), False

    async def take_all(self, limit_bytes: int) -> tuple[bytes, bool]:
        """`read_all`, and `release` however that ended: there is nothing left to do."""
        try:
            return await self.read_all(limit_bytes)
        finally:
            self.release()

    def release(self) -> None:
        """Keep the connection if the answer was read to its end, else close it. Idempotent."""
        if not self._has_ended:
            self._has_ended = True
            self._give_back(self._connection)

    def abort(self) -> None:
        """Hang up on the engine, which ends its work for this request. Idempotent."""
        if not self._has_ended:
            self._connection.abort()
            self.release()
