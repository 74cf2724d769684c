"""The client's side of one request: its body, and whether it is still there."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from types import TracebackType
from typing import Any, Self, cast

from transload_router.app.byhand import ByHand
from transload_router.app.headers import find
from transload_router.core.types import Headers
from transload_router.errors import BadRequest, BodyTooLarge, RequestTimeout

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# For a refused upload to end, so that its client reads the refusal; nothing of it is kept.
DRAIN_TIMEOUT_S = 2.0
DRAIN_BYTES = 256 << 20
# nginx's word for a client that left before its answer; never sent, only counted.
CLIENT_LEFT_STATUS = 499
# A client that sends nothing for this long in the middle of its body is not uploading.
BODY_STALL_S = 60.0


class ClientLeft(Exception):
    """The client closed its connection before its request was whole."""


async def read_body(headers: Headers, receive: Receive, limit_bytes: int) -> bytes:
    """The whole request body, read once.

    Raises:
        BodyTooLarge: Announced or found to be over the limit; the rest is not read.
        ClientLeft: The client closed first.
        RequestTimeout: The client stopped in the middle.
    """
    announced = find(headers, b"content-length")
    if announced is not None and announced.isdigit() and int(announced[:20]) > limit_bytes:
        raise BodyTooLarge(f"the body has {announced.decode()} bytes; the limit is {limit_bytes}")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await _next_message(receive)
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        _check_size(size, limit_bytes)
        if not message.get("more_body"):
            # Of one part this is the part itself.
            return b"".join(parts)


async def _next_message(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(BODY_STALL_S):
            return await receive()
    except TimeoutError:
        raise RequestTimeout(f"no more of the body came in {BODY_STALL_S:g} s") from None


async def drain_body(receive: Receive) -> None:
    """Take and forget what a refused client still sends, within bounds.

    A connection closed over unread bytes is reset, and the refusal lost with it.
    """
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            while size < DRAIN_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
                size += len(message.get("body", b""))


def _check_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise BodyTooLarge(f"the body has more than {limit_bytes} bytes, which is the limit")


class ClientWatch:
    """Cancels the current task when the client goes, in whatever await it is.

    Use as a context manager around everything after the body was read; `is_gone` tells a
    cancellation by the client from one by the server. No polling: the server's own disconnect
    message is awaited, without a task.
    """

    __slots__ = ("_error", "_receive", "_receiving", "_task", "is_gone")

    def __init__(self, receive: Receive) -> None:
        self.is_gone = False
        self._error: BaseException | None = None
        self._receive = receive
        self._receiving: ByHand[Message] | None = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._await_message()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task = None
        if self._receiving is not None:
            self._receiving.close()

    def _await_message(self) -> None:
        receiving = cast(Coroutine[Any, Any, Message], self._receive())
        self._receiving = ByHand(receiving, self._on_message)
        self._receiving.start()

    def _on_message(self, message: Message | None, error: BaseException | None) -> None:
        if self._task is None:
            return
        if error is None and message is not None and message["type"] != "http.disconnect":
            self._await_message()
            return
        self.is_gone = error is None
        self._error = error
        self._task.cancel()

    def absorb(self) -> None:
        """Call where a CancelledError was caught: raise again unless the client has gone.

        Raises:
            CancelledError: The server is ending, not the client.
            BaseException: What the server's `receive` raised instead of a message.
        """
        if self._error is not None:
            raise self._error
        if not self.is_gone or self._task is None:
            raise asyncio.CancelledError
        self._task.uncancel()


def header_list(scope: Scope) -> Headers:
    """The request's headers, names in lower case as ASGI gives them."""
    return list(scope["headers"])


def request_target(scope: Scope, path: bytes = b"") -> str:
    """Path and query as the client sent them, percent-encoded.

    Args:
        scope: ASGI.
        path: Stands for the client's own spelling of it.

    Raises:
        BadRequest: The bytes are not ASCII, as RFC 9112 wants them.
    """
    raw: bytes = path or scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    try:
        return (raw + b"?" + query if query else raw).decode("ascii")
    except UnicodeDecodeError:
        raise BadRequest("the request target is not ASCII") from None
