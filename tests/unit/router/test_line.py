"""Head and body in one write, nothing held for ever; what a request's head may be."""

import asyncio
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from support.wire import FakeTransport
from transload_router.app.line import CORK, MAX_HEAD_BYTES, CorkedTransport, Line

GET = b"GET / HTTP/1.1\r\nhost: r\r\n\r\n"
Message = dict[str, Any]


def corked() -> tuple[CorkedTransport, FakeTransport]:
    below = FakeTransport()
    return CorkedTransport(below), below


def test_without_a_cork_every_write_passes() -> None:
    line, below = corked()
    line.write(b"head")
    line.write(b"body")
    assert below.written == [b"head", b"body"]


def test_head_and_body_are_one_write() -> None:
    line, below = corked()
    line.cork()
    line.write(b"head")
    assert below.written == []
    line.write(b"body")
    line.write(b"more")
    assert below.written == [b"headbody", b"more"]


def test_an_empty_body_lets_the_head_go() -> None:
    line, below = corked()
    line.cork()
    line.write(b"head")
    line.write(b"")
    assert below.written == [b"head"]


def test_close_flushes_first() -> None:
    line, below = corked()
    line.cork()
    line.write(b"head")
    line.close()
    line.close()
    assert below.written == [b"head"]
    assert below.calls == ["write", "close", "close"]


def test_a_cork_on_a_cork_loses_nothing() -> None:
    line, below = corked()
    line.cork()
    line.write(b"head")
    line.cork()
    line.write(b"body")
    line.write(b"more")
    assert below.written == [b"headbodymore"]


def test_the_rest_passes() -> None:
    line, below = corked()
    below.num_unwritten_bytes = 3
    line.pause_reading()
    line.resume_reading()
    assert line.get_write_buffer_size() == 3
    assert not line.is_closing()
    line.abort()
    assert line.is_closing()
    assert below.calls == ["pause_reading", "resume_reading", "abort"]


class ClientWire(FakeTransport):
    """A client's connection."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio."""
        return {"peername": ("192.0.2.1", 5), "sockname": ("192.0.2.2", 80)}.get(name, default)


class Served:
    """A line whose app answers as told; ended by `end`."""

    def __init__(self, *, is_corked: bool = True, answers: bool = True) -> None:
        self.wire = ClientWire()
        self.scopes: list[Message] = []
        self._is_corked = is_corked
        self._answers = answers
        self._state = ServerState()
        config = Config(self._app, interface="asgi3", proxy_headers=False, log_config=None)
        config.date_header = config.server_header = False
        config.load()
        self.line = Line(config=config, server_state=self._state, app_state={})
        self.line.connection_made(self.wire)

    async def _app(self, scope: Message, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if not self._answers:
            assert (await receive())["type"] == "http.request"
            assert (await receive())["type"] == "http.disconnect"
            return
        if self._is_corked:
            scope["extensions"][CORK]()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def ends(self) -> None:
        """Wait until the app has ended each request."""
        while self._state.tasks:
            await asyncio.wait(set(self._state.tasks))
            await asyncio.sleep(0)

    async def end(self) -> None:
        """The client leaves."""
        self.line.connection_lost(None)
        await self.ends()


ANSWER = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"ok"]


@pytest.mark.parametrize(
    ("is_corked", "written"), [(True, [b"".join(ANSWER)]), (False, ANSWER)], ids=["cork", "none"]
)
async def test_an_app_can_cork_each_answer(is_corked: bool, written: list[bytes]) -> None:
    served = Served(is_corked=is_corked)
    for _ in range(2):
        served.line.data_received(GET)
        await served.ends()
        assert served.wire.written == written
        served.wire.written.clear()
    await served.end()


async def test_trailers_are_no_headers() -> None:
    served = Served()
    head = b"POST / HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n"
    served.line.data_received(head + b"1\r\na\r\n0\r\nx-late: 1\r\n\r\n")
    await served.ends()
    assert served.scopes[0]["headers"] == [(b"host", b"r"), (b"transfer-encoding", b"chunked")]
    await served.end()


async def test_a_head_that_never_ends() -> None:
    served = Served()
    served.line.data_received(b"GET / HTTP/1.1\r\nx: ")
    for _ in range(MAX_HEAD_BYTES // 1024 - 1):
        served.line.data_received(b"a" * 1024)
    assert served.wire.written == []
    served.line.data_received(b"a" * 1024)
    assert served.wire.written == [
        b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
        b"connection: close\r\ncontent-length: 0\r\n\r\n"
    ]
    assert served.wire.is_closing()
    await served.end()
    assert served.scopes == []


async def test_a_client_that_sends_ahead_is_seen_to_leave() -> None:
    served = Served(answers=False)
    served.line.data_received(GET)
    await asyncio.sleep(0)
    served.line.data_received(GET)
    assert len(served.scopes) == 1
    assert served.wire.is_reading()
    await served.end()
