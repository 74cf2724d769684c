"""An engine in this process whose every answer can be scripted, down to the bytes.

A raw HTTP/1.1 server on a free loopback port. Each request becomes an `Exchange`, and a
`Behaviour` (`behaviours.py` has the stock) plays it. Without a script it behaves like vLLM:
`vllm_behaviour.py`. It records what it was asked, and when each connection went away.
"""

import asyncio
import contextlib
import enum
import functools
import json
import re
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import msgspec

from support.ledger import Ledger
from support.waiting import soon, until

Headers = list[tuple[str, str]]
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
# What the router adds to a handoff, or sends without one: the prompt's ids.
_IDS = re.compile(rb',?"prompt_token_ids":\[[\d,]*\]\}$')
_PROBES = ("/health", "/v1/models", "/kv_event_sources", "/metrics", "/version", "/ping")


class Leg(enum.StrEnum):
    """What a request is to an engine."""

    PREFILL = "prefill"
    DECODE = "decode"
    LOCAL = "local"
    RELEASE = "release"
    PROBE = "probe"


@dataclass(slots=True, eq=False)
class Request:
    """One request as it came.

    Attributes:
        target: Path and query, as sent.
        headers: Names and values, in order, as sent.
        handoff: Raw JSON of `kv_transfer_params`, None where absent or null.
    """

    method: str
    target: str
    headers: Headers
    body: bytes
    leg: Leg = Leg.LOCAL
    handoff: bytes | None = None

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """A header's values, joined as HTTP allows; None where absent."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(values) if values else None

    def json(self) -> Any:
        """The body as Python reads it."""
        return json.loads(self.body)


class Exchange:
    """One request and the means to answer it.

    Attributes:
        ended: Set when the behaviour has returned or its connection was lost.
        lost: Set when the connection is gone, whoever ended it.
        lost_at: Loop time of that, 0.0 before.
        sent: Bytes of the answer's body, before chunk framing.
        was_answered: Whether the behaviour came to its own end.
    """

    def __init__(self, engine: "ScriptedEngine", connection: "_Connection", request: Request):
        self.engine = engine
        self.request = request
        self.connection = connection
        self.ended = asyncio.Event()
        self.lost = connection.lost
        self.sent = bytearray()
        self.was_answered = False

    @property
    def lost_at(self) -> float:
        """See the class."""
        return self.connection.lost_at

    @property
    def is_gone(self) -> bool:
        """Whether nothing written now can arrive."""
        return self.lost.is_set() or self.connection.transport.is_closing()

    async def write(self, data: bytes) -> None:
        """Bytes as they are; returns when the kernel has them, and others had their turn."""
        if self.is_gone:
            raise asyncio.CancelledError
        self.connection.transport.write(data)
        await asyncio.sleep(0)
        await self.connection.can_write.wait()

    async def head(
        self, status: int, headers: Headers, *, reason: str = "X", version: str = "1.1"
    ) -> None:
        """Status line and headers."""
        await self.write(_head(status, headers, reason, version))

    async def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        self.sent += data
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_chunks(self) -> None:
        """The chunk that ends a chunked body."""
        await self.write(b"0\r\n\r\n")

    async def answer(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """A whole answer with its length, in one write: it leaves whole or not at all."""
        kept = headers if headers is not None else [("content-type", "application/json")]
        if self._is_refused_unread(status, body):
            self.engine.ledger.leave_alone(self.request.handoff or b"")
        self.sent += body
        await self.write(_head(status, [*kept, ("content-length", str(len(body)))]) + body)

    def _is_refused_unread(self, status: int, body: bytes) -> bool:
        """Measured on 0.32.0: only these refusals do not tell prefill to free its blocks."""
        if self.request.leg is not Leg.DECODE or not 400 <= status < 500:
            return False
        return self.request.path == "/inference/v1/generate" or b'"type":"Bad Request"' in body

    def reset(self) -> None:
        """End the connection with a RST; what the kernel has not sent is lost."""
        sock = self.connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.transport.abort()

    def close(self) -> None:
        """End the connection with a FIN after what was written."""
        self.connection.transport.close()


def _head(status: int, headers: Headers, reason: str = "X", version: str = "1.1") -> bytes:
    lines = [f"HTTP/{version} {status} {reason}", *(f"{k}: {v}" for k, v in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


Behaviour = Callable[[Exchange], Awaitable[None]]


class _Connection(asyncio.Protocol):
    """One client connection: requests in turn, each played by a behaviour."""

    transport: asyncio.Transport

    def __init__(self, engine: "ScriptedEngine") -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._target = bytearray()
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()
        self.lost_at = 0.0
        self.can_write = asyncio.Event()
        self.num_requests = 0

    @property
    def is_idle(self) -> bool:
        """Whether it is gone, or waits for a next request."""
        return self.lost.is_set() or self._task is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no asyncio class.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(0)
        self.can_write.set()
        self._engine.connections.append(self)
        if self._engine.on_connect is not None:
            self._engine.on_connect(self)

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        self._engine.bytes_received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            self._engine.protocol_errors.append(f"{error}: {data[:200]!r}")
            self.transport.abort()

    def eof_received(self) -> bool:
        """Hang up, as uvicorn does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_at = asyncio.get_running_loop().time()
        self.lost.set()
        self.can_write.set()
        if self._task is not None:
            self._task.cancel()

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = bytearray(), [], []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._engine.on_headers is not None:
            self._engine.on_headers(self)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        target, body = self._target.decode("latin-1"), b"".join(self._body)
        self._waiting.append(_classify(Request(method, target, self._headers, body)))
        self._start_next()

    def _start_next(self) -> None:
        if self._task is not None or not self._waiting or self.lost.is_set():
            return
        self.num_requests += 1
        exchange = Exchange(self._engine, self, self._waiting.popleft())
        behaviour = self._engine.note(exchange)
        self._task = asyncio.get_running_loop().create_task(self._play(exchange, behaviour))
        self._task.add_done_callback(functools.partial(self._played, exchange))

    async def _play(self, exchange: Exchange, behaviour: Behaviour) -> None:
        try:
            await behaviour(exchange)
            exchange.was_answered = True
        except asyncio.CancelledError:
            if not exchange.is_gone:
                raise

    def _played(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        exchange.ended.set()
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._engine.behaviour_errors.append(error)
            self.transport.abort()
        self._start_next()


def _classify(request: Request) -> Request:
    """Say which leg a request is, and what handoff it carries."""
    if request.method in ("GET", "HEAD") and request.path in _PROBES:
        request.leg = Leg.PROBE
        return request
    try:
        members = _MEMBERS.decode(request.body)
    except msgspec.DecodeError:
        return request
    raw = _IDS.sub(b"}", bytes(members.get("kv_transfer_params", b"null")))
    if raw in (b"null", b"{}"):
        return request
    params = json.loads(raw)
    request.handoff = raw
    if isinstance(params, dict) and params.get("do_remote_decode"):
        request.leg = Leg.PREFILL
    elif (
        bytes(members.get("use_beam_search", b"")) == b"true" and request.path == "/v1/completions"
    ):
        request.leg = Leg.RELEASE
    else:
        request.leg = Leg.DECODE
    return request


@dataclass(eq=False)
class ScriptedEngine:
    """One engine.

    Attributes:
        name: For messages and handoffs.
        ledger: Shared among the engines of a test.
        default: Plays what no script covers.
        script: Plays the next generation requests (legs and other paths), one each.
        always: Plays every generation request that `script` does not.
        by_leg: Plays a leg's requests; before `always`, behind `script`.
        by_path: Plays a path's requests, probes too; before everything else.
        exchanges: All requests in order.
        on_connect: Called with each new connection.
        on_headers: Called when a request's head is complete, its body not yet read.
    """

    name: str
    ledger: Ledger
    default: Behaviour
    script: deque[Behaviour] = field(default_factory=deque)
    always: Behaviour | None = None
    by_leg: dict[Leg, Behaviour] = field(default_factory=dict)
    by_path: dict[str, Behaviour] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    connections: list[_Connection] = field(default_factory=list)
    protocol_errors: list[str] = field(default_factory=list)
    behaviour_errors: list[BaseException] = field(default_factory=list)
    on_connect: Callable[[_Connection], None] | None = None
    on_headers: Callable[[_Connection], None] | None = None
    bytes_received: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_listening(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    async def start(self) -> None:
        """Listen; on the same port as before, if there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, backlog=2048
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for connection in self.connections:
            connection.transport.abort()
        for connection in self.connections:
            await soon(connection.lost.wait())
        await until(lambda: all(e.ended.is_set() for e in self.exchanges), "behaviours ended")
        await server.wait_closed()

    def note(self, exchange: Exchange) -> Behaviour:
        """Record a request and choose what plays it."""
        self.exchanges.append(exchange)
        request = exchange.request
        if request.handoff is not None:
            if request.leg is Leg.DECODE:
                self.ledger.present(request.handoff)
            elif request.leg is Leg.RELEASE:
                self.ledger.release(request.handoff)
        self._changed.set()
        return self._choose(request)

    def _choose(self, request: Request) -> Behaviour:
        if request.path in self.by_path:
            return self.by_path[request.path]
        if request.leg in (Leg.PROBE, Leg.RELEASE):
            return self.by_leg.get(request.leg, self.default)
        if self.script:
            return self.script.popleft()
        return self.by_leg.get(request.leg) or self.always or self.default

    def asked(self, *legs: Leg) -> list[Exchange]:
        """Exchanges of these legs; without any, all but probes and releases."""
        wanted = legs or (Leg.PREFILL, Leg.DECODE, Leg.LOCAL)
        return [one for one in self.exchanges if one.request.leg in wanted]

    async def next_exchange(self, count: int = 1, *legs: Leg) -> Exchange:
        """The `count`-th exchange that `asked` lists, as soon as it is there."""
        while len(self.asked(*legs)) < count:
            self._changed.clear()
            await soon(self._changed.wait())
        return self.asked(*legs)[count - 1]

    @property
    def busy(self) -> list[Request]:
        """Requests that are still being played."""
        return [one.request for one in self.exchanges if not one.ended.is_set()]

    @property
    def is_idle(self) -> bool:
        """Whether every connection is gone or waits for a next request."""
        return all(connection.is_idle for connection in self.connections)

    def clear(self) -> None:
        """Forget scripts and records; connections stay."""
        self.script.clear()
        self.by_leg.clear()
        self.by_path.clear()
        self.exchanges.clear()
        self.always = self.on_connect = self.on_headers = None
        self.bytes_received = 0
        self.connections = [one for one in self.connections if not one.lost.is_set()]


@contextlib.asynccontextmanager
async def running(engine: ScriptedEngine) -> AsyncIterator[ScriptedEngine]:
    """An engine that listens within the block."""
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@contextlib.contextmanager
def refused_url() -> Iterator[str]:
    """An address that refuses connections: a port that is bound, so nobody else gets it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextlib.contextmanager
def blackhole_url(port: int = 0) -> Iterator[str]:
    """An address whose connections are never accepted: a listener with a full backlog."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
