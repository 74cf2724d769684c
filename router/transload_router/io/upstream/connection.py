"""One HTTP/1.1 connection to an engine, and the exchange that runs on it.

**Rules**

1. A connection carries one exchange at a time and returns to its pool only after a whole answer
   that permits keep-alive.
2. Every wait ends: with bytes, with the answer's end, with a reset, or at its deadline. Deadlines
   are kept by one sweep over all open exchanges (`client.Upstream`), so a chunk costs no timer.
3. Back-pressure: bytes nobody has taken yet pause the socket above `HIGH_WATER_BYTES`.
4. What the engine sent before it hung up is delivered before the hang-up is.
"""

import asyncio
import enum
import select
import socket
from collections.abc import Callable
from typing import cast

import httptools

from transload_router.core.types import Headers
from transload_router.errors import (
    EngineBadAnswer,
    EngineError,
    EngineReset,
    EngineTimeout,
)

# An engine that writes faster than the client reads is paused at this much. asyncio's own
# default for writing is the same 64 KiB, so that one paused stream holds at most twice that.
HIGH_WATER_BYTES = 64 << 10
# Engines' headers are a few hundred bytes; uvicorn itself takes 64 KiB.
MAX_HEADER_BYTES = 64 << 10


class Phase(enum.Enum):
    """Where the newest exchange is; IDLE before a connection's first."""

    IDLE = "idle"
    WAITING = "waiting for the header"
    BODY = "reading the body"


class Connection(asyncio.Protocol):
    """A socket to one engine and the answer being read from it.

    Attributes:
        engine: The engine's id, for errors.
        idle_pool: Where it waits between exchanges.
        idle_since: Loop time at which the last exchange ended.
        deadline: Loop time at which the present wait ends, 0.0 for none.
        sent_at: Loop time of the newest request.
        overdue: The deadline that a sweep found past.
        is_reused: Whether an exchange has ended on this connection before.
        was_hung_up: Whether the router itself broke the present answer off.
    """

    __slots__ = (
        "_body_size",
        "_chunks",
        "_error",
        "_header_bytes",
        "_idle_timeout_s",
        "_is_paused",
        "_is_whole",
        "_keeps_alive",
        "_loop",
        "_num_barren_bytes",
        "_parser",
        "_phase",
        "_sink",
        "_skips_body",
        "_transport",
        "_waiter",
        "deadline",
        "engine",
        "has_answer_byte",
        "headers",
        "idle_pool",
        "idle_since",
        "is_reused",
        "overdue",
        "sent_at",
        "status",
        "was_hung_up",
    )

    def __init__(
        self, engine: str, loop: asyncio.AbstractEventLoop, idle_pool: list["Connection"]
    ) -> None:
        self.engine = engine
        self.idle_pool = idle_pool
        self.idle_since = 0.0
        self.deadline = 0.0
        self.overdue = 0.0
        self.sent_at = 0.0
        self.is_reused = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._phase = Phase.IDLE
        self._idle_timeout_s = 0.0
        # llhttp starts over by itself after a whole answer, so one parser serves a connection.
        self._parser = httptools.HttpResponseParser(self)
        self._begin_answer()

    def _begin_answer(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.has_answer_byte = False
        self.was_hung_up = False
        self._header_bytes = 0
        # Received since the head or the newest piece of body: the parser gathers an unended line.
        self._num_barren_bytes = 0
        self._chunks: list[bytes] = []
        self._body_size = 0
        self._error: EngineError | None = None
        self._is_whole = False
        self._keeps_alive = False
        self._is_paused = False
        self._skips_body = False
        self._sink: Callable[[], None] | None = None

    # The exchange's side.

    @property
    def is_open(self) -> bool:
        """Whether a request could still be written."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def can_be_kept(self) -> bool:
        """Whether the last exchange left nothing behind, either way, and permits another."""
        return (
            self._is_whole
            and self._keeps_alive
            and self.is_open
            and not self._is_paused
            and not self._chunks
            and self.num_unwritten_bytes == 0
        )

    @property
    def num_unwritten_bytes(self) -> int:
        """Bytes of the request that the kernel has not taken yet; 0 once the connection is lost."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def is_quiet(self) -> bool:
        """Whether an idle connection is open and holds nothing unread, not even its end.

        Asks the kernel, since the loop may not have come to read a close that is there already.
        """
        sock = self.raw_socket
        if sock is None or not self.is_open:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN | select.POLLRDHUP)
        return not poll.poll(0)

    @property
    def raw_socket(self) -> socket.socket | None:
        """The socket, for its options alone."""
        if self._transport is None:
            return None
        found: socket.socket | None = self._transport.get_extra_info("socket")
        return found

    def send(
        self, parts: list[bytes], deadline: float, idle_timeout_s: float, *, is_head: bool
    ) -> None:
        """Write one request; the answer may be awaited from now on."""
        assert self._transport is not None
        if self._phase is not Phase.IDLE:
            self.is_reused = True
            self._begin_answer()
        self._phase = Phase.WAITING
        self.sent_at = self._loop.time()
        self._skips_body = is_head
        self.deadline = deadline
        self._idle_timeout_s = idle_timeout_s
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    async def read_head(self) -> None:
        """Wait for status and headers.

        Raises:
            EngineError: Reset, silent too long, or not HTTP.
        """
        while self._phase is Phase.WAITING and self._error is None:
            await self.arrival()
        if self._phase is Phase.WAITING and self._error is not None:
            raise self._error

    def take(self) -> bytes:
        """All body bytes that have come, b"" for none; never waits.

        Raises:
            EngineError: The answer broke off; everything before the break was given already.
        """
        chunks = self._chunks
        if not chunks:
            if self._error is not None and not self._is_whole:
                raise self._error
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self._body_size = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            if not self._is_whole:
                self.deadline = self._loop.time() + self._idle_timeout_s
            self._transport.resume_reading()
        return data

    @property
    def has_ended(self) -> bool:
        """Whether the whole answer has come (and, once `take` gives b"", was taken)."""
        return self._is_whole

    def arrival(self) -> asyncio.Future[None]:
        """A future that is done when there may be more to take. Await it before asking again."""
        self._waiter = self._loop.create_future()
        return self._waiter

    async def await_body(self) -> None:
        """Wait until there is something to take, or the answer's end.

        Raises:
            EngineError: The answer broke off before its first byte.
        """
        while not self._chunks and not self._is_whole:
            if self._error is not None:
                raise self._error
            await self.arrival()

    async def read_chunk(self) -> bytes:
        """All body bytes that have come, at least one; b"" once the answer has ended.

        Raises:
            EngineError: The answer broke off; everything before the break was given already.
        """
        while True:
            data = self.take()
            if data or self._is_whole:
                return data
            await self.arrival()

    def abort(self) -> None:
        """Close at once, sending nothing more; an answer that is not whole fails with a reset."""
        self.deadline = 0.0
        if self._error is None and not self._is_whole:
            self._error = EngineReset(self.engine, "closed by the router")
            self.was_hung_up = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close an idle connection."""
        if self._transport is not None:
            self._transport.close()

    def expire(self) -> None:
        """The deadline has passed: fail whatever waits."""
        self.deadline = 0.0
        what = "no response header in time" if self._phase is Phase.WAITING else "went silent"
        self._fail(EngineTimeout(self.engine, what))
        self.abort()

    def _fail(self, error: EngineError) -> None:
        if self._error is None and not self._is_whole:
            self._error = error
        self._wake()

    def set_sink(self, sink: Callable[[], None] | None) -> None:
        """Call `sink` whenever there may be something to take, instead of waking a waiter.

        It is called from the transport's callbacks, must not raise, and must be taken away
        (None) before its owner goes.
        """
        self._sink = sink

    def _wake(self) -> None:
        if self._sink is not None:
            self._sink()
            return
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._phase is Phase.IDLE or self._is_whole:
            # Bytes that nobody asked for: the connection cannot be trusted further.
            self.abort()
            return
        self.has_answer_byte = True
        self._num_barren_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Garbage behind a whole answer: that one stands, the connection does not.
            self._keeps_alive = False
            if not self._is_whole:
                self._fail(EngineBadAnswer(self.engine, f"not HTTP/1.1: {error}"))
                self.abort()
                return
        if self._num_barren_bytes > MAX_HEADER_BYTES and not self._is_whole:
            self._fail(EngineBadAnswer(self.engine, "headers too large"))
            self.abort()
            return
        if self._is_paused:
            # Whoever reads is slow, not the engine.
            self.deadline = 0.0
        elif self._phase is Phase.BODY and not self._is_whole:
            self.deadline = self._loop.time() + self._idle_timeout_s
        if self._chunks or self._is_whole or self._phase is Phase.BODY:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.deadline = 0.0
        self._keeps_alive = False
        is_clean = self._phase is Phase.BODY and exc is None and self._error is None
        if is_clean and self._is_close_delimited():
            self._is_whole = True
        detail = f": {exc}" if exc is not None else ""
        where = self._phase.value
        self._fail(EngineReset(self.engine, f"connection closed while {where}{detail}"))
        self._transport = None

    def _is_close_delimited(self) -> bool:
        """An answer without a length ends with its connection (RFC 9112, 6.3)."""
        return not any(
            name == b"content-length" or name == b"transfer-encoding" for name, _ in self.headers
        )

    # httptools' side.

    def on_message_begin(self) -> None:
        """See httptools."""
        if self._is_whole:
            raise ValueError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        if self._phase is Phase.BODY:
            # A trailer; engines' answers need none, and they are no headers.
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError("headers too large")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """See httptools."""
        status = self._parser.get_status_code()
        if status < 200:
            # An interim answer (RFC 9110, 15.2); the real one follows.
            self.headers = []
            return
        self.status = status
        self._num_barren_bytes = 0
        self._keeps_alive = self._parser.should_keep_alive()
        self._phase = Phase.BODY
        if self._skips_body:
            self._end()
            self._keeps_alive = False

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        if self._is_whole:
            return
        self._num_barren_bytes = 0
        self._chunks.append(body)
        self._body_size += len(body)
        if self._body_size > HIGH_WATER_BYTES and not self._is_paused:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._phase is Phase.BODY:
            self._end()

    def _end(self) -> None:
        self._is_whole = True
        self.deadline = 0.0
