"""Pools of connections, one per engine, and the sending of requests on them."""

import asyncio
import errno
import os
import socket
import ssl
from dataclasses import dataclass

from transload_router.core.types import Address, Engine
from transload_router.errors import EngineError, EngineReset, EngineUnreachable
from transload_router.io.tcp import UNACKNOWLEDGED_S, watch_peer
from transload_router.io.upstream.connection import Connection
from transload_router.io.upstream.exchange import Exchange

# uvicorn closes idle connections after 5 s (its `timeout_keep_alive`, which vLLM leaves alone);
# a connection that is used again must be clearly younger.
MAX_IDLE_S = 4.0
# Younger than this a connection is taken without asking the kernel whether it was just closed:
# no server's keep-alive is that short.
SURELY_OPEN_S = 0.5
# A close that was on its way when we wrote shows within a round trip; this allows a loaded loop.
STALE_WITHIN_S = 0.1
# How late a timeout may fire, twice over: see `Connection.overdue`.
SWEEP_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; there is no total cap.

    Attributes:
        connect_s: To an accepted connection.
        header_s: From handing the request to the kernel to the answer's header.
        idle_s: Between two arrivals of body bytes.
    """

    connect_s: float
    header_s: float
    idle_s: float


class Sending:
    """Whether a request's bytes have started on their way; outlives a failed or cancelled call.

    Attributes:
        was_sent: True as soon as a byte may have left.
        connection: The connection in use, once there is one.
    """

    __slots__ = ("connection", "was_sent")

    def __init__(self) -> None:
        self.was_sent = False
        self.connection: Connection | None = None

    @property
    def may_have_arrived(self) -> bool:
        """Whether the whole request may be with the engine; part of one is as good as none."""
        connection = self.connection
        return self.was_sent and (connection is None or connection.num_unwritten_bytes == 0)


class Pool:
    """Idle connections to one address, the youngest last.

    Attributes:
        host_line: The request line's end and the Host header, the same in each request.
    """

    __slots__ = ("address", "base_path", "host_line", "idle")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.base_path = address.base_path
        self.host_line = f" HTTP/1.1\r\nhost: {address.authority}\r\n"
        self.idle: list[Connection] = []


class Upstream:
    """Sends requests to engines. One per event loop; close it when done."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._pools: dict[str, Pool] = {}
        self._busy: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    @property
    def num_busy(self) -> int:
        """Exchanges under way."""
        return len(self._busy)

    async def send(
        self,
        engine: Engine,
        method: str,
        target: str,
        headers: bytes,
        body: bytes,
        sending: Sending | None = None,
        *,
        may_resend: bool = True,
    ) -> Exchange:
        """Send one request and wait for the answer's header.

        A request that fell on a connection which the engine was just closing (reused, closed
        without one answer byte) is sent again on a fresh one where `may_resend` allows it.

        Args:
            engine: Where to.
            method: HTTP method.
            target: Path and query, percent-encoded, below the engine's base path.
            headers: Whole lines, each with its end; without Host, Content-Length and those of
                the connection.
            body: The whole body, b"" for none.
            sending: Filled in while the call runs. After a cancelled call its owner ends the
                exchange with `drop` or `resume`.
            may_resend: False for what an engine must not read twice.

        Raises:
            EngineError: No answer's header came.
        """
        is_owned = sending is not None
        sending = sending or Sending()
        pool = self._pool(engine)
        request = _request_bytes(pool, method, target, headers, body)
        connection = self._take_idle(pool)
        timeouts = self._timeouts
        try:
            while True:
                if connection is None:
                    connection = await self._connect(engine, pool)
                sending.connection = connection
                sending.was_sent = True
                deadline = self._loop.time() + timeouts.header_s
                connection.send(request, deadline, timeouts.idle_s, is_head=method == "HEAD")
                try:
                    return await self._read_head(connection)
                except EngineReset:
                    if not may_resend or not _was_stale(connection, self._loop.time()):
                        raise
                    connection = None
        except asyncio.CancelledError:
            if not is_owned and connection is not None:
                self.drop(connection)
            raise

    def _pool(self, engine: Engine) -> Pool:
        pool = self._pools.get(engine.id)
        if pool is None or pool.address is not engine.address:
            if pool is not None:
                self._close_idle(pool)
            pool = self._pools[engine.id] = Pool(engine.address)
        return pool

    async def _read_head(self, connection: Connection) -> Exchange:
        """Wait for the header; on a failure hang up, so that the engine stops working.

        A cancelled exchange stays open and tracked: its owner may still want its answer.
        """
        self._busy.add(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_INTERVAL_S, self._check_deadlines)
        try:
            await connection.read_head()
        except EngineError:
            self.drop(connection)
            raise
        return Exchange(connection, self._give_back)

    def drop(self, connection: Connection) -> None:
        """Hang up on a connection whose exchange failed or was cancelled. Idempotent."""
        connection.abort()
        self._busy.discard(connection)

    async def resume(self, connection: Connection) -> Exchange:
        """Go on waiting for the header of a cancelled exchange; the wait is the caller's to bound.

        Raises:
            EngineError: No answer came.
        """
        return await self._read_head(connection)

    def _take_idle(self, pool: Pool) -> Connection | None:
        now = self._loop.time()
        while pool.idle:
            connection = pool.idle.pop()
            idle_s = now - connection.idle_since
            if idle_s < SURELY_OPEN_S and connection.is_open:
                return connection
            if idle_s < MAX_IDLE_S and connection.is_quiet():
                return connection
            connection.close()
        return None

    async def _connect(self, engine: Engine, pool: Pool) -> Connection:
        address = engine.address
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(engine.id, self._loop, pool.idle),
                    address.host,
                    address.port,
                    ssl=self._tls_context() if address.is_tls else None,
                )
        except TimeoutError:
            raise EngineUnreachable(engine.id, "no connection in time", is_gone=False) from None
        except OSError as error:
            message = f"no connection: {_reason(error)}"
            raise EngineUnreachable(engine.id, message, is_gone=_is_gone(error)) from error
        sock = connection.raw_socket
        if sock is not None:
            watch_peer(sock, UNACKNOWLEDGED_S)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _give_back(self, connection: Connection) -> None:
        if connection not in self._busy:
            return
        self._busy.discard(connection)
        pool = self._pools.get(connection.engine)
        # The engine may have been forgotten, or have moved, while the exchange ran.
        is_pooled = pool is not None and pool.idle is connection.idle_pool
        if is_pooled and connection.can_be_kept:
            connection.idle_since = self._loop.time()
            connection.idle_pool.append(connection)
        else:
            connection.abort()

    def _check_deadlines(self) -> None:
        now = self._loop.time()
        for connection in [c for c in self._busy if 0.0 < c.deadline < now]:
            # Timers run before sockets are read: after a pause of the router itself the answer
            # may be there already, so a deadline counts when a second sweep finds it still past.
            if connection.overdue == connection.deadline:
                connection.expire()
            connection.overdue = connection.deadline
        is_needed = bool(self._busy)
        for pool in self._pools.values():
            is_needed |= _trim(pool, now)
        self._sweep = (
            self._loop.call_later(SWEEP_INTERVAL_S, self._check_deadlines) if is_needed else None
        )

    def forget(self, engine_id: str) -> None:
        """Close a gone engine's idle connections; exchanges under way go on."""
        pool = self._pools.pop(engine_id, None)
        if pool is not None:
            self._close_idle(pool)

    def _close_idle(self, pool: Pool) -> None:
        for connection in pool.idle:
            connection.close()
        pool.idle.clear()

    def close(self) -> None:
        """Close all connections; exchanges under way fail with a reset."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in self._busy:
            connection.abort()
        for engine_id in list(self._pools):
            self.forget(engine_id)
        self._busy.clear()


def _trim(pool: Pool, now: float) -> bool:
    """Close what has been idle too long (the oldest stand first); whether any are left."""
    num_stale = 0
    for connection in pool.idle:
        if connection.is_open and connection.idle_since > now - MAX_IDLE_S:
            break
        connection.close()
        num_stale += 1
    del pool.idle[:num_stale]
    return bool(pool.idle)


def _was_stale(connection: Connection, now: float) -> bool:
    """Whether a request fell on a connection that its engine was just closing.

    An engine that dies of what it read looks the same, but later.
    """
    if connection.was_hung_up:
        return False
    is_fresh_failure = now - connection.sent_at < STALE_WITHIN_S
    return connection.is_reused and not connection.has_answer_byte and is_fresh_failure


def _is_gone(error: OSError) -> bool:
    """Whether nobody listens there; a lack of files, ports or names here is not the engine's."""
    # Where a name has several addresses that failed in several ways, asyncio's error has no number.
    is_connect = error.errno is None and type(error) is OSError
    return is_connect or error.errno in _NOBODY_LISTENS


_NOBODY_LISTENS = frozenset(
    {errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH}
)


def _reason(error: OSError) -> str:
    """Words without the address, since clients read them, too."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'reason', None) or 'failed'}"
    if isinstance(error, socket.gaierror):
        return "the host name does not resolve"
    return os.strerror(error.errno) if error.errno else type(error).__name__


def _request_bytes(
    pool: Pool, method: str, target: str, headers: bytes, body: bytes
) -> list[bytes]:
    """The request, its head and body apart so that a large body is not copied."""
    start = f"{method} {pool.base_path}{target}{pool.host_line}".encode()
    if not body and method not in ("POST", "PUT", "PATCH"):
        return [b"%b%b\r\n" % (start, headers)]
    # One packet for the usual body; 16 KiB is loopback's and most networks' cheap copy.
    if len(body) < 16 << 10:
        return [b"%b%bcontent-length: %d\r\n\r\n%b" % (start, headers, len(body), body)]
    return [b"%b%bcontent-length: %d\r\n\r\n" % (start, headers, len(body)), body]
