"""The client of engines against a real socket, on a clock that is moved by hand."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from transload_router.core.types import Address, Engine, Role
from transload_router.errors import EngineReset, EngineTimeout, EngineUnreachable
from transload_router.io.upstream import Exchange, Sending, Timeouts, Upstream
from transload_router.io.upstream.client import MAX_IDLE_S, STALE_WITHIN_S, SURELY_OPEN_S
from transload_router.io.upstream.client import SWEEP_INTERVAL_S as SWEEP_S

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n"
CONNECT_S, HEADER_S, IDLE_S = 3.0, 30.0, 5.0


class HandClock:
    """The loop's time, standing still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        """See asyncio."""
        return self.now

    async def move(self, seconds: float) -> None:
        """Later; every timer that is due has run."""
        self.now += seconds
        await turns()


async def turns() -> None:
    """Let what is ready run, to where it waits for the network or the clock."""
    for _ in range(5):
        await asyncio.sleep(0)


class Accepted:
    """The engine's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> bytes:
        """The next request's head."""
        return await self.reader.readuntil(b"\r\n\r\n")

    def answer(self, data: bytes) -> None:
        """Write."""
        self.writer.write(data)

    def hang_up(self) -> None:
        """The kernel has the end now; the router's loop has not."""
        self.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)

    async def is_left(self) -> bool:
        """Wait for the router's end of it."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


class LoopbackEngine:
    """A server whose connections the test answers."""

    def __init__(self, server: asyncio.Server, accepted: "asyncio.Queue[Accepted]") -> None:
        self.port: int = server.sockets[0].getsockname()[1]
        self.engine = Engine("e", Role.DECODE, Address("127.0.0.1", self.port))
        self._accepted = accepted

    async def accept(self) -> Accepted:
        """The next connection."""
        return await self._accepted.get()

    @property
    def num_waiting(self) -> int:
        """Connections that no `accept` took."""
        return self._accepted.qsize()


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock.time)
    return clock


@pytest.fixture
async def served(clock: HandClock) -> AsyncIterator[LoopbackEngine]:
    accepted: asyncio.Queue[Accepted] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        accepted.put_nowait(Accepted(reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield LoopbackEngine(server, accepted)
    server.close()
    for writer in writers:
        writer.transport.abort()
    await turns()


@pytest.fixture
async def upstream(clock: HandClock) -> AsyncIterator[Upstream]:
    upstream = Upstream(Timeouts(CONNECT_S, HEADER_S, IDLE_S))
    yield upstream
    upstream.close()
    await turns()


def get(
    upstream: Upstream,
    served: LoopbackEngine,
    sending: Sending | None = None,
    *,
    may_resend: bool = True,
) -> "asyncio.Task[Exchange]":
    """A request under way."""
    sent = upstream.send(served.engine, "GET", "/", b"", b"", sending, may_resend=may_resend)
    return asyncio.ensure_future(sent)


async def answered(upstream: Upstream, served: LoopbackEngine) -> Accepted:
    """One whole exchange on a new connection, which then is idle."""
    task = get(upstream, served)
    connection = await served.accept()
    await connection.head()
    connection.answer(OK)
    await end(await task)
    return connection


async def end(exchange: Exchange) -> None:
    assert await exchange.read_all(10) == (b"ok", True)
    exchange.release()


async def streaming(
    upstream: Upstream, served: LoopbackEngine, head: bytes = ENDLESS
) -> tuple[Exchange, Accepted]:
    """An exchange whose body does not end."""
    task = get(upstream, served)
    connection = await served.accept()
    await connection.head()
    connection.answer(head)
    return await task, connection


# Request bytes.


@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("GET", b"", b"GET /p/v1?q=%C3%A4 HTTP/1.1\r\nhost: 127.0.0.1:PORT\r\nx-a: 1\r\n\r\n"),
        (
            "POST",
            b"",
            b"POST /p/v1?q=%C3%A4 HTTP/1.1\r\nhost: 127.0.0.1:PORT\r\nx-a: 1\r\n"
            b"content-length: 0\r\n\r\n",
        ),
        (
            "POST",
            b"{}",
            b"POST /p/v1?q=%C3%A4 HTTP/1.1\r\nhost: 127.0.0.1:PORT\r\nx-a: 1\r\n"
            b"content-length: 2\r\n\r\n{}",
        ),
        (
            "DELETE",
            b"a" * 16384,
            b"DELETE /p/v1?q=%C3%A4 HTTP/1.1\r\nhost: 127.0.0.1:PORT\r\nx-a: 1\r\n"
            b"content-length: 16384\r\n\r\n" + b"a" * 16384,
        ),
    ],
    ids=["get", "empty post", "post", "large delete"],
)
async def test_request_bytes(
    upstream: Upstream, served: LoopbackEngine, method: str, body: bytes, expected: bytes
) -> None:
    address = Address("127.0.0.1", served.port, base_path="/p")
    engine = Engine("e", Role.DECODE, address)
    task = asyncio.ensure_future(upstream.send(engine, method, "/v1?q=%C3%A4", b"x-a: 1\r\n", body))
    connection = await served.accept()
    wanted = expected.replace(b"PORT", b"%d" % served.port)
    assert await connection.reader.readexactly(len(wanted)) == wanted
    connection.answer(OK)
    await end(await task)
    upstream.close()
    assert await connection.is_left(), "and not a byte more"


async def test_ipv6_host_line(clock: HandClock, upstream: Upstream) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    accepted: asyncio.Queue[Accepted] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda reader, writer: accepted.put_nowait(Accepted(reader, writer)), sock=listener
    )
    port = listener.getsockname()[1]
    engine = Engine("e", Role.DECODE, Address("::1", port))
    task = asyncio.ensure_future(upstream.send(engine, "GET", "/", b"", b""))
    connection = await accepted.get()
    assert await connection.head() == b"GET / HTTP/1.1\r\nhost: [::1]:%d\r\n\r\n" % port
    connection.answer(OK)
    await end(await task)
    server.close()
    connection.writer.transport.abort()


async def test_head_has_no_body(upstream: Upstream, served: LoopbackEngine) -> None:
    task = asyncio.ensure_future(upstream.send(served.engine, "HEAD", "/", b"", b""))
    connection = await served.accept()
    assert await connection.head() == b"HEAD / HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % served.port
    connection.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
    exchange = await task
    assert await exchange.read_all(10) == (b"", True)
    exchange.release()
    assert await connection.is_left()


# Reuse.


@pytest.mark.parametrize("idle_s", [0.0, SURELY_OPEN_S + 0.1, MAX_IDLE_S - 0.1])
async def test_a_young_connection_is_used_again(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine, idle_s: float
) -> None:
    connection = await answered(upstream, served)
    assert upstream.num_busy == 0
    clock.now += idle_s
    task = get(upstream, served)
    await connection.head()
    connection.answer(OK)
    await end(await task)
    assert served.num_waiting == 0


async def test_an_old_connection_is_not(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    connection = await answered(upstream, served)
    clock.now += MAX_IDLE_S
    await answered(upstream, served)
    assert await connection.is_left()


async def test_the_sweep_closes_old_connections(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    connection = await answered(upstream, served)
    await clock.move(MAX_IDLE_S - 0.1)
    assert not connection.reader.at_eof()
    await clock.move(0.2)
    assert await connection.is_left()


async def test_the_youngest_is_taken_first(upstream: Upstream, served: LoopbackEngine) -> None:
    tasks = [get(upstream, served) for _ in range(2)]
    first, second = [await served.accept() for _ in range(2)]
    for connection in (first, second):
        connection.answer(OK)
        await connection.head()
    exchanges = [await task for task in tasks]
    assert upstream.num_busy == 2
    for exchange in exchanges:
        await end(exchange)
    task = get(upstream, served)
    ports = [c.writer.get_extra_info("peername")[1] for c in (first, second)]
    await turns()
    sock = exchanges[1].connection.raw_socket
    assert sock is not None
    youngest = (first, second)[ports.index(sock.getsockname()[1])]
    await youngest.head()
    youngest.answer(OK)
    await end(await task)


async def test_an_unread_answer_is_not_kept(upstream: Upstream, served: LoopbackEngine) -> None:
    exchange, connection = await streaming(upstream, served, OK)
    exchange.release()
    assert await connection.is_left()


async def test_a_close_that_the_loop_has_not_read_is_seen(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    """By asking the kernel, so that even what must not be sent twice can be sent."""
    connection = await answered(upstream, served)
    clock.now += SURELY_OPEN_S
    connection.hang_up()
    task = get(upstream, served, may_resend=False)
    fresh = await served.accept()
    await fresh.head()
    fresh.answer(OK)
    await end(await task)


async def test_unasked_bytes_that_the_loop_has_not_read_are_seen(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    connection = await answered(upstream, served)
    clock.now += SURELY_OPEN_S
    connection.writer.write(OK)  # Goes to the kernel at once.
    task = get(upstream, served, may_resend=False)
    fresh = await served.accept()
    await fresh.head()
    fresh.answer(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
    exchange = await task
    assert exchange.status == 404
    exchange.release()


# Sending again.


async def test_what_fell_on_a_closing_connection_is_sent_again(
    upstream: Upstream, served: LoopbackEngine
) -> None:
    stale = await answered(upstream, served)
    stale.hang_up()
    sending = Sending()
    task = get(upstream, served, sending)
    fresh = await served.accept()
    assert await fresh.head() == await stale.head()
    fresh.answer(OK)
    exchange = await task
    assert sending.connection is exchange.connection
    await end(exchange)
    assert upstream.num_busy == 0


async def test_not_what_must_not_be_read_twice(upstream: Upstream, served: LoopbackEngine) -> None:
    (await answered(upstream, served)).hang_up()
    with pytest.raises(EngineReset):
        await get(upstream, served, may_resend=False)
    assert served.num_waiting == 0
    assert upstream.num_busy == 0


async def test_not_on_a_first_connection(upstream: Upstream, served: LoopbackEngine) -> None:
    task = get(upstream, served)
    connection = await served.accept()
    await connection.head()
    connection.hang_up()
    with pytest.raises(EngineReset):
        await task
    assert served.num_waiting == 0


async def test_not_after_an_answers_byte(upstream: Upstream, served: LoopbackEngine) -> None:
    connection = await answered(upstream, served)
    task = get(upstream, served)
    await connection.head()
    connection.answer(b"H")
    connection.hang_up()
    with pytest.raises(EngineReset):
        await task
    assert served.num_waiting == 0


async def test_not_when_the_engine_had_time_to_read_it(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    connection = await answered(upstream, served)
    task = get(upstream, served)
    await connection.head()
    await clock.move(STALE_WITHIN_S)
    connection.hang_up()
    with pytest.raises(EngineReset):
        await task
    assert served.num_waiting == 0


@pytest.mark.parametrize("how", ["close", "drop"])
async def test_not_what_the_router_itself_ended(
    upstream: Upstream, served: LoopbackEngine, how: str
) -> None:
    connection = await answered(upstream, served)
    sending = Sending()
    task = get(upstream, served, sending)
    await connection.head()
    assert sending.connection is not None
    if how == "close":
        upstream.close()
    else:
        upstream.drop(sending.connection)
    with pytest.raises(EngineReset, match="closed by the router"):
        await task
    assert served.num_waiting == 0


# Deadlines.


async def test_a_header_that_does_not_come(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    task = get(upstream, served)
    connection = await served.accept()
    await connection.head()
    await clock.move(HEADER_S)
    await clock.move(SWEEP_S)
    assert not task.done(), "one sweep has found it late"
    await clock.move(SWEEP_S)
    with pytest.raises(EngineTimeout):
        await task
    assert upstream.num_busy == 0
    assert await connection.is_left()


async def test_an_answer_that_was_there_when_the_router_woke(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    """Timers run before sockets are read, so the first sweep blames nobody."""
    task = get(upstream, served)
    connection = await served.accept()
    await connection.head()
    clock.now += 10 * HEADER_S
    connection.answer(OK)
    await end(await task)


async def test_a_body_that_goes_silent(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    exchange, connection = await streaming(upstream, served)
    await clock.move(IDLE_S - 0.1)
    connection.answer(b"a")
    assert await exchange.read_chunk() == b"a"
    await clock.move(IDLE_S - 0.1)
    await clock.move(SWEEP_S)
    await clock.move(SWEEP_S)
    reading = asyncio.ensure_future(exchange.read_chunk())
    await clock.move(SWEEP_S)
    with pytest.raises(EngineTimeout):
        await reading
    exchange.release()
    assert await connection.is_left()


async def test_two_sweeps_must_find_the_same_deadline(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    exchange, connection = await streaming(upstream, served)
    for _ in range(3):
        await clock.move(IDLE_S + SWEEP_S)
        connection.answer(b"a")
        assert await exchange.read_chunk() == b"a"
    exchange.abort()


async def test_a_connect_that_takes_too_long(clock: HandClock, upstream: Upstream) -> None:
    """A full backlog does not answer, and that is no sign of a dead engine."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        engine = Engine("e", Role.DECODE, Address(*listener.getsockname()))
        sending = Sending()
        task = asyncio.ensure_future(upstream.send(engine, "GET", "/", b"", b"", sending))
        await turns()
        await clock.move(CONNECT_S)
        with pytest.raises(EngineUnreachable) as raised:
            await task
        for filler in fillers:
            filler.close()
    assert str(raised.value) == "engine e: no connection in time"
    assert not raised.value.is_gone
    assert not sending.was_sent


async def test_a_connect_that_is_refused(upstream: Upstream) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        engine = Engine("e", Role.DECODE, Address(*unheard.getsockname()))
        with pytest.raises(EngineUnreachable) as raised:
            await upstream.send(engine, "GET", "/", b"", b"")
    assert str(raised.value) == "engine e: no connection: Connection refused"
    assert raised.value.is_gone


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "files"),
        OSError(errno.EADDRNOTAVAIL, "ports"),
        socket.gaierror(socket.EAI_AGAIN, "name"),
        ssl.SSLError(1, "handshake"),
    ],
    ids=lambda error: type(error).__name__ + str(error.errno),
)
async def test_what_fails_on_our_side_says_nothing_of_the_engine(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    async def connect(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    engine = Engine("e", Role.DECODE, Address("127.0.0.1", 1))
    with pytest.raises(EngineUnreachable) as raised:
        await upstream.send(engine, "GET", "/", b"", b"")
    assert not raised.value.is_gone


# Cancelled.


async def cancelled(task: "asyncio.Task[Exchange]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_owned", [False, True])
async def test_cancelled_while_it_connects(
    upstream: Upstream, served: LoopbackEngine, is_owned: bool
) -> None:
    sending = Sending()
    task = get(upstream, served, sending if is_owned else None)
    await asyncio.sleep(0)
    await cancelled(task)
    assert sending.connection is None
    assert not sending.was_sent
    assert not sending.may_have_arrived
    assert upstream.num_busy == 0


async def test_cancelled_while_it_waits_nobody_owns_it(
    upstream: Upstream, served: LoopbackEngine
) -> None:
    task = get(upstream, served)
    connection = await served.accept()
    await connection.head()
    await cancelled(task)
    assert upstream.num_busy == 0
    assert await connection.is_left()


async def test_cancelled_its_owner_may_drop_it(upstream: Upstream, served: LoopbackEngine) -> None:
    sending = Sending()
    task = get(upstream, served, sending)
    connection = await served.accept()
    await connection.head()
    await cancelled(task)
    assert upstream.num_busy == 1, "still under way"
    assert sending.was_sent
    assert sending.may_have_arrived
    assert sending.connection is not None
    upstream.drop(sending.connection)
    upstream.drop(sending.connection)
    assert upstream.num_busy == 0
    assert await connection.is_left()


async def test_cancelled_its_owner_may_go_on(upstream: Upstream, served: LoopbackEngine) -> None:
    sending = Sending()
    task = get(upstream, served, sending)
    connection = await served.accept()
    await connection.head()
    await cancelled(task)
    assert sending.connection is not None
    resumed = asyncio.ensure_future(upstream.resume(sending.connection))
    await turns()
    connection.answer(OK)
    await end(await resumed)
    again = get(upstream, served)
    await connection.head()
    connection.answer(OK)
    await end(await again)


async def test_part_of_a_request_has_not_arrived(
    upstream: Upstream, served: LoopbackEngine
) -> None:
    sending = Sending()
    body = b"a" * (16 << 20)
    task = asyncio.ensure_future(upstream.send(served.engine, "POST", "/", b"", body, sending))
    connection = await served.accept()
    await connection.head()
    assert sending.was_sent
    assert not sending.may_have_arrived
    await cancelled(task)
    assert sending.connection is not None
    upstream.drop(sending.connection)


# The end.


async def test_forget_closes_the_idle_and_leaves_the_busy(
    upstream: Upstream, served: LoopbackEngine
) -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    exchange, busy = await streaming(upstream, served, chunked)
    idle = await answered(upstream, served)
    upstream.forget("e")
    upstream.forget("e")
    assert await idle.is_left()
    busy.answer(b"2\r\nok\r\n0\r\n\r\n")
    await end(exchange)
    assert await busy.is_left(), "no pool would ever close it"


async def test_an_engine_that_moved_gets_its_old_connections_closed(
    upstream: Upstream, served: LoopbackEngine
) -> None:
    exchange, busy = await streaming(upstream, served, OK)
    idle = await answered(upstream, served)
    served.engine = Engine("e", Role.DECODE, Address("127.0.0.1", served.port))
    await answered(upstream, served)
    assert await idle.is_left()
    await end(exchange)
    assert await busy.is_left()


async def test_close_fails_what_is_under_way(
    clock: HandClock, upstream: Upstream, served: LoopbackEngine
) -> None:
    exchange, busy = await streaming(upstream, served)
    reading = asyncio.ensure_future(exchange.read_chunk())
    idle = await answered(upstream, served)
    waiting = get(upstream, served)
    await idle.head()
    upstream.close()
    for task in (reading, waiting):
        with pytest.raises(EngineReset, match="closed by the router"):
            await task
    exchange.release()
    exchange.abort()
    assert upstream.num_busy == 0
    assert await busy.is_left()
    assert await idle.is_left()


async def test_an_ended_exchange_does_not_end_the_next_on_its_connection(
    upstream: Upstream, served: LoopbackEngine
) -> None:
    first, connection = await streaming(upstream, served, OK)
    await end(first)
    task = get(upstream, served)
    await connection.head()
    first.abort()
    first.release()
    assert upstream.num_busy == 1
    connection.answer(OK)
    second = await task
    assert second.connection is first.connection
    await end(second)
