"""A stream of events on its way: each arrival is written from the callback that brought it.

The request's task sleeps meanwhile. Waking it for every event would resume a dozen coroutines,
one inside the other, which was half of the router's own work for an event.
"""

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from transload_router.app.byhand import ByHand
from transload_router.app.client import Send
from transload_router.core.sse import EventFramer, split_events
from transload_router.core.usage import patch_event
from transload_router.errors import EngineError
from transload_router.io.upstream.connection import Connection


class EventRelay:
    """Relays what one connection brings until its answer ends.

    Attributes:
        framer: Where the stream stands; tells what to do if it is cut.
        num_intervals: Arrivals after the first.
    """

    def __init__(
        self,
        connection: Connection,
        send: Send,
        num_cached_tokens: int | None,
        on_first: Callable[[bytes], None],
        on_interval: Callable[[float], None],
        on_data: Callable[[bytes], None] | None = None,
    ) -> None:
        self.framer = EventFramer()
        self.num_intervals = 0
        self._connection = connection
        self._send = send
        self._cached = num_cached_tokens
        self._on_first = on_first
        self._on_interval = on_interval
        self._on_data = on_data
        self._last = 0.0
        self._sending: ByHand[None] | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Relay to the end.

        Raises:
            EngineError: The engine broke off; all whole events before that are with the client.
        """
        self._connection.set_sink(self._pump)
        try:
            self._pump()
            await self._ended
        finally:
            self._connection.set_sink(None)
            if self._sending is not None:
                self._sending.close()
        rest = self.framer.flush()
        if rest:
            await self._send({"type": "http.response.body", "body": rest, "more_body": True})

    def _pump(self) -> None:
        """Write what has come, unless the client is still busy with what was written before."""
        connection, push = self._connection, self.framer.push
        while self._sending is None and not self._ended.done():
            try:
                chunk = connection.take()
            except EngineError as error:
                self._ended.set_exception(error)
                return
            if not chunk:
                if connection.has_ended:
                    self._ended.set_result(None)
                return
            arrived = perf_counter()
            data = push(chunk)
            if self._last:
                self._on_interval(arrived - self._last)
                self.num_intervals += 1
                self._last = arrived
            if data:
                if self._on_data is not None:
                    self._on_data(data)
                self._write(data, arrived)

    def _write(self, data: bytes, arrived: float) -> None:
        if self._cached is not None:
            data = b"".join([patch_event(event, self._cached) for event in split_events(data)])
        message = {"type": "http.response.body", "body": data, "more_body": True}
        sending: Coroutine[Any, Any, None] = self._send(message)  # type: ignore[assignment]
        try:
            waits_for = sending.send(None)
        except StopIteration:
            pass
        except BaseException as error:
            self._ended.set_exception(error)
            return
        else:
            self._sending = ByHand(sending, self._on_sent, waits_for)
            self._sending.start()
        if not self._last:
            self._last = arrived
            self._on_first(data)

    def _on_sent(self, _value: None, error: BaseException | None) -> None:
        self._sending = None
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)
        self._pump()
