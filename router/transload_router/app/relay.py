"""Answers on their way to the client: bytes as they came, one write per arrival.

Streams of events are cut at the ends of events, never inside; everything else passes as it is.
Only two things are ever changed, both whole JSON blocks: cached-token counts of engines that
cannot know them, and transfer parameters that an engine would show to a client.
"""

from collections.abc import Callable
from dataclasses import dataclass

from transload_router.app.answers import error_event
from transload_router.app.client import Send
from transload_router.app.events import EventRelay
from transload_router.app.headers import find
from transload_router.core.bodies.endpoints import HANDOFF_MEMBER, Endpoint
from transload_router.core.bodies.members import (
    NotAnObject,
    Raw,
    is_unset,
    read_int,
    read_members,
    read_object,
    read_str,
    write_members,
)
from transload_router.core.sse import EventFramer, event_data, split_events
from transload_router.core.types import Dialect, Headers
from transload_router.core.usage import patch_answer
from transload_router.errors import EngineError, TransloadError
from transload_router.io.upstream import Exchange


class CutShort(Exception):
    """The answer cannot be completed and its form has no way to say so: close the connection.

    Attributes:
        status: What the client had got before.
        cause: The engine's failure.
    """

    def __init__(self, status: int, cause: TransloadError) -> None:
        super().__init__(str(cause))
        self.status = status
        self.cause = cause


def do_nothing(*_: object) -> None:
    """For callers that do not want to be told."""


@dataclass(slots=True)
class Held:
    """An engine's answer of which nothing went to the client yet.

    Attributes:
        exchange: Status and headers, and the rest of the body.
        body: What was read of it.
        is_whole: Whether that is all.
    """

    exchange: Exchange
    body: bytes
    is_whole: bool


def is_event_stream(headers: Headers) -> bool:
    """Whether the body is server-sent events."""
    kind = find(headers, b"content-type")
    return kind is not None and kind.lower().startswith(b"text/event-stream")


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """One answer in one piece; statuses without a body get none."""
    if status not in (204, 304):
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Answer:
    """Relays one engine's answer.

    Attributes:
        response_id: The Responses API's id, once seen and where the endpoint has one.
        num_intervals: Arrivals of an event stream after the first, once it is over.
    """

    def __init__(
        self,
        held: Held,
        headers: Headers,
        endpoint: Endpoint | None,
        num_cached_tokens: int | None,
    ) -> None:
        self._held = held
        self._headers = headers
        self._endpoint = endpoint
        self._cached = num_cached_tokens
        self._framer: EventFramer | None = None
        self.response_id: str | None = None
        self.num_intervals = 0

    async def relay(
        self,
        send: Send,
        on_first_chunk: Callable[[], None] = do_nothing,
        on_interval: Callable[[float], None] = do_nothing,
        cork: Callable[[], None] = do_nothing,
        on_data: Callable[[bytes], None] | None = None,
    ) -> None:
        """Send everything.

        Args:
            send: ASGI.
            on_first_chunk: Called when the first bytes of an event stream have gone.
            on_interval: Called with the seconds between arrivals of an event stream.
            cork: Called before a head whose body is at hand.
            on_data: Called with whole events of an event stream before they go.

        Raises:
            EngineError: The engine broke off; call `cut` next.
        """
        held = self._held
        if held.is_whole:
            cork()
            await self._send_held(send)
            return
        status = held.exchange.status
        await send({"type": "http.response.start", "status": status, "headers": self._headers})
        if is_event_stream(held.exchange.headers):

            def on_first(data: bytes) -> None:
                on_first_chunk()
                self._look_for_id(data)

            relay = EventRelay(
                held.exchange.connection, send, self._cached, on_first, on_interval, on_data
            )
            self._framer = relay.framer
            await relay.run()
            self.num_intervals = relay.num_intervals
        else:
            await _relay_bytes(send, held)
        await send({"type": "http.response.body", "body": b""})

    async def _send_held(self, send: Send) -> None:
        held = self._held
        body = self._cleaned(held.body) if 200 <= held.exchange.status < 300 else held.body
        await send_whole(send, held.exchange.status, self._headers, body)

    def _cleaned(self, body: bytes) -> bytes:
        """A whole answer without what stays among engines, and with true counts."""
        if self._cached is not None:
            body = patch_answer(body, self._cached)
        is_responses = self._endpoint is not None and self._endpoint.dialect is Dialect.RESPONSES
        if b'"kv_transfer_params":null' in body and not is_responses:
            return body
        try:
            members = read_members(body)
        except NotAnObject:
            return body
        if is_responses:
            self.response_id = read_str(members.get("id"))
        if is_unset(members.get(HANDOFF_MEMBER)):
            return body
        del members[HANDOFF_MEMBER]
        return write_members(members)

    def _look_for_id(self, data: bytes) -> None:
        """The first event of the Responses API names the response."""
        if self._endpoint is None or self._endpoint.dialect is not Dialect.RESPONSES:
            return
        fields = read_object(Raw(event_data(split_events(data)[0]))) or {}
        response = read_object(fields.get("response")) or {}
        self.response_id = read_str(response.get("id"))

    async def cut(self, send: Send, error: TransloadError) -> None:
        """End an answer that the engine broke off, in the API's own words.

        Raises:
            CutShort: The answer is no event stream; only a closed connection can tell.
        """
        if self._framer is None or self._endpoint is None:
            raise CutShort(self._held.exchange.status, error)
        event = error_event(error, self._endpoint.dialect, self._last_sequence_number())
        if self._framer.is_inside_event:
            # Half of an event too long to hold is with the client: end it, or it swallows ours.
            event = b"\n\n" + event
        await send({"type": "http.response.body", "body": event})

    def _last_sequence_number(self) -> int:
        assert self._framer is not None
        events = split_events(self._framer.last_event)
        if not events:
            return -1
        fields = read_object(Raw(event_data(events[-1]))) or {}
        number = read_int(fields.get("sequence_number"))
        return -1 if number is None else number


async def _relay_bytes(send: Send, held: Held) -> None:
    if held.body:
        await send({"type": "http.response.body", "body": held.body, "more_body": True})
    while chunk := await held.exchange.read_chunk():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def relay_unread(send: Send, exchange: Exchange, headers: Headers) -> None:
    """Relay an answer of any kind as its bytes come.

    Raises:
        CutShort: The engine broke off.
    """
    await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
    try:
        await _relay_bytes(send, Held(exchange, b"", False))
    except EngineError as error:
        raise CutShort(exchange.status, error) from None
    await send({"type": "http.response.body", "body": b""})
