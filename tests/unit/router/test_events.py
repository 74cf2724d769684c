"""Events from a connection to a client, whatever either does meanwhile."""

import asyncio
from collections.abc import Generator
from types import coroutine

import pytest

from support.wire import Wire, asked
from transload_router.app.client import Message
from transload_router.app.events import EventRelay
from transload_router.errors import EngineReset, EngineTimeout
from transload_router.io.upstream.connection import HIGH_WATER_BYTES

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@coroutine
def bare_yield() -> Generator[None, None, None]:
    yield


class Client:
    """An ASGI `send` that can be slow.

    Attributes:
        got: Bodies, as they were handed over.
        is_slow: Whether a send waits for `go_on`.
        yields: Whether a send asks for a pass of the loop.
        error: Raised by the next send.
        num_closed: Sends that were ended where they stood.
    """

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.is_slow = False
        self.yields = False
        self.error: Exception | None = None
        self.num_closed = 0
        self._wait: asyncio.Future[None] | None = None

    async def send(self, message: Message) -> None:
        """See ASGI."""
        assert message["type"] == "http.response.body"
        assert message["more_body"]
        self.got.append(message["body"])
        if self.yields:
            await bare_yield()
        if self.is_slow:
            self._wait = asyncio.get_running_loop().create_future()
            try:
                await self._wait
            except GeneratorExit:
                self.num_closed += 1
                raise
        if self.error is not None:
            raise self.error

    async def go_on(self) -> None:
        """Let the waiting send end."""
        assert self._wait is not None
        wait, self._wait = self._wait, None
        wait.set_result(None)
        await asyncio.sleep(0)


class Relaying:
    """A relay under way.

    Attributes:
        firsts: What `on_first` was told.
        intervals_s: What `on_interval` was told.
    """

    def __init__(self, num_cached_tokens: int | None = None) -> None:
        self.wire: Wire = asked()
        self.wire.receive(HEAD)
        self.client = Client()
        self.firsts: list[bytes] = []
        self.intervals_s: list[float] = []
        self.relay = EventRelay(
            self.wire.connection,
            self.client.send,
            num_cached_tokens,
            self.firsts.append,
            self.intervals_s.append,
        )
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.task = asyncio.ensure_future(self.relay.run())
        await asyncio.sleep(0)

    async def end(self) -> None:
        assert self.task is not None
        await asyncio.wait_for(self.task, 1)


async def started(num_cached_tokens: int | None = None) -> Relaying:
    relaying = Relaying(num_cached_tokens)
    await relaying.start()
    return relaying


async def test_each_arrival_is_written_when_it_comes() -> None:
    relaying = await started()
    relaying.wire.receive(chunk(b"data: a\n\n"))
    assert relaying.client.got == [b"data: a\n\n"], "without a pass of the loop"
    relaying.wire.receive(chunk(b"data: b\n\ndata: c\n\n") + chunk(b"data: d\n\n"))
    assert relaying.client.got[1:] == [b"data: b\n\ndata: c\n\ndata: d\n\n"]
    relaying.wire.receive(LAST)
    await relaying.end()
    assert len(relaying.client.got) == 2
    assert relaying.firsts == [b"data: a\n\n"]
    assert len(relaying.intervals_s) == 1 == relaying.relay.num_intervals


async def test_what_came_before_the_start() -> None:
    relaying = Relaying()
    relaying.wire.receive(chunk(b"data: a\n\n") + LAST)
    await relaying.start()
    await relaying.end()
    assert relaying.client.got == [b"data: a\n\n"]
    assert relaying.firsts == [b"data: a\n\n"]


async def test_cut_at_any_byte() -> None:
    stream = "data: 日本\r\n\r\n: note\n\ndata: [DONE]\n\n".encode()
    body = chunk(stream) + LAST
    for cut in range(1, len(body)):
        relaying = await started()
        relaying.wire.receive(body[:cut], body[cut:])
        await relaying.end()
        assert b"".join(relaying.client.got) == stream


async def test_a_break_at_any_byte_leaves_whole_events() -> None:
    events = [b"data: a\n\n", b"data: b\r\n\r\n", b"data: c\n\n"]
    stream = b"".join(events)
    for cut in range(1, len(stream)):
        relaying = await started()
        relaying.wire.receive(chunk(stream[:cut]))
        relaying.wire.lose()
        with pytest.raises(EngineReset):
            await relaying.end()
        got = b"".join(relaying.client.got)
        assert got in (b"", events[0], events[0] + b"data: b\r\n\r", b"".join(events[:2]))
        # Not one whole event that came was kept back.
        assert len(stream[:cut]) - len(got) < max(map(len, events))


async def test_the_end_gives_out_half_an_event() -> None:
    relaying = await started()
    relaying.wire.receive(chunk(b"data: a\n\ndata: [DONE]\n"))
    assert relaying.client.got == [b"data: a\n\n"]
    relaying.wire.receive(LAST)
    await relaying.end()
    assert relaying.client.got == [b"data: a\n\n", b"data: [DONE]\n"]


async def test_a_send_that_suspends_holds_the_rest_together() -> None:
    relaying = await started()
    relaying.client.is_slow = True
    relaying.wire.receive(chunk(b"data: a\n\n"), chunk(b"data: b\n\n"), chunk(b"data: c\n\n"))
    await asyncio.sleep(0)
    assert relaying.client.got == [b"data: a\n\n"]
    assert relaying.firsts == [b"data: a\n\n"]
    await relaying.client.go_on()
    assert relaying.client.got == [b"data: a\n\n", b"data: b\n\ndata: c\n\n"]
    relaying.wire.receive(LAST)
    await asyncio.sleep(0)
    assert relaying.task is not None
    assert not relaying.task.done(), "the last send is still under way"
    await relaying.client.go_on()
    await relaying.end()


async def test_a_send_that_yields_barely() -> None:
    relaying = await started()
    relaying.client.yields = True
    relaying.wire.receive(chunk(b"data: a\n\n"), chunk(b"data: b\n\n"), LAST)
    assert relaying.client.got == [b"data: a\n\n"]
    await relaying.end()
    assert relaying.client.got == [b"data: a\n\n", b"data: b\n\n"]


async def test_a_slow_client_pauses_the_engine() -> None:
    relaying = await started()
    relaying.client.is_slow = True
    event = b"data: " + b"x" * (HIGH_WATER_BYTES // 2) + b"\n\n"
    relaying.wire.receive(chunk(event))
    relaying.wire.receive(chunk(event))
    assert relaying.wire.transport.is_reading(), "the first is with the client's side"
    relaying.wire.receive(chunk(event))
    assert not relaying.wire.transport.is_reading()
    assert relaying.wire.connection.deadline == 0.0, "the client is slow, not the engine"
    await relaying.client.go_on()
    assert relaying.wire.transport.is_reading()
    assert relaying.client.got == [event, event + event]
    relaying.wire.receive(LAST)
    await relaying.client.go_on()
    await relaying.end()


async def test_an_engine_that_dies_while_the_client_is_busy() -> None:
    relaying = await started()
    relaying.client.is_slow = True
    relaying.wire.receive(chunk(b"data: a\n\n"), chunk(b"data: b\n\ndata: c"))
    relaying.wire.lose()
    await asyncio.sleep(0)
    assert relaying.task is not None
    assert not relaying.task.done()
    await relaying.client.go_on()
    assert relaying.client.got == [b"data: a\n\n", b"data: b\n\n"]
    assert not relaying.task.done()
    await relaying.client.go_on()
    with pytest.raises(EngineReset):
        await relaying.end()
    assert len(relaying.client.got) == 2


async def test_an_engine_that_goes_silent() -> None:
    relaying = await started()
    relaying.wire.receive(chunk(b"data: a\n\n"))
    relaying.wire.connection.expire()
    with pytest.raises(EngineTimeout):
        await relaying.end()
    assert relaying.relay.framer.last_event == b"data: a\n\n"


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_send_that_fails_is_raised(is_slow: bool) -> None:
    relaying = await started()
    relaying.client.is_slow = is_slow
    relaying.client.error = LookupError("the server's")
    relaying.wire.receive(chunk(b"data: a\n\n"), chunk(b"data: b\n\n"))
    if is_slow:
        await relaying.client.go_on()
    with pytest.raises(LookupError, match="the server's"):
        await relaying.end()
    assert relaying.client.got == [b"data: a\n\n"]


@pytest.mark.parametrize("is_slow", [False, True])
async def test_cancelled_it_touches_neither_side_again(is_slow: bool) -> None:
    relaying = await started()
    relaying.client.is_slow = is_slow
    relaying.wire.receive(chunk(b"data: a\n\n"))
    assert relaying.task is not None
    relaying.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relaying.task
    assert relaying.client.num_closed == int(is_slow)
    reading = asyncio.ensure_future(relaying.wire.connection.read_chunk())
    await asyncio.sleep(0)
    relaying.wire.receive(chunk(b"data: b\n\n"))
    assert await asyncio.wait_for(reading, 1) == b"data: b\n\n", "it is others' to read"
    relaying.wire.lose()
    assert relaying.client.got == [b"data: a\n\n"]


async def test_cached_tokens_are_put_right_in_each_event() -> None:
    relaying = await started(num_cached_tokens=3)
    usage = b'"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":%d}}'
    relaying.wire.receive(
        chunk(b'data: {"a":1}\n\ndata: {' + usage % 9 + b"}\n\ndata: [DONE]\n\n"), LAST
    )
    await relaying.end()
    assert relaying.client.got == [
        b'data: {"a":1}\n\ndata: {' + usage % 3 + b"}\n\ndata: [DONE]\n\n"
    ]


async def test_without_a_count_nothing_is_changed() -> None:
    relaying = await started()
    event = b'data: {"usage":{"prompt_tokens_details":{"cached_tokens":9}}}\n\n'
    relaying.wire.receive(chunk(event), LAST)
    await relaying.end()
    assert relaying.client.got == [event]
