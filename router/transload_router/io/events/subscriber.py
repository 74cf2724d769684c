"""All publishers of all engines, on the router's event loop, a bounded slice of it at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping

import zmq

from transload_router.core.kv_events.messages import SnapshotLoaded, StreamState
from transload_router.core.types import DestinationKey
from transload_router.io.events.feed import Feed, Limits, Sink
from transload_router.io.events.sources import Source


class EventSubscriber:
    """Subscribes to engines' KV events; one per event loop. Stop it when done.

    Never blocks, and never works much longer than `Limits.slice_s` before the loop's
    other callbacks have their turn. Nothing is decided here: `core/kv_events/stream` does.
    """

    def __init__(self, sink: Sink, limits: Limits | None = None) -> None:
        self._sink = sink
        self._limits = limits or Limits()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._engines: dict[str, tuple[int, list[Feed]]] = {}
        self._ready: deque[Feed] = deque()
        self._waiting: set[Feed] = set()
        self._turn_handle: asyncio.Handle | None = None

    def add(
        self,
        engine_id: str,
        generation: int,
        sources: Iterable[Source],
        positions: Mapping[int, SnapshotLoaded] | None = None,
    ) -> bool:
        """Subscribe to an engine, in place of an older generation of it.

        Args:
            engine_id: The router's name for it.
            generation: Grows when an engine is replaced; an older one than present is refused.
            sources: One per rank.
            positions: By rank, what the index holds of the engine already.

        Returns:
            Whether the engine is subscribed to as given; False where a newer one is there.

        Raises:
            zmq.ZMQError: An endpoint cannot be subscribed to; nothing of the engine is, then.
        """
        present = self._engines.get(engine_id)
        if present is not None and present[0] > generation:
            return False
        self._drop(engine_id)
        feeds: list[Feed] = []
        self._engines[engine_id] = (generation, feeds)
        try:
            for source in sources:
                feed = self._feed((engine_id, source.rank), source)
                feeds.append(feed)
                if positions is not None and source.rank in positions:
                    feed.handle(positions[source.rank])
                self._wake(feed)
        except zmq.ZMQError:
            self._drop(engine_id)
            raise
        return True

    def _feed(self, key: DestinationKey, source: Source) -> Feed:
        if self._context is None:
            self._context = zmq.Context()
        return Feed(key, source, self._sink, self._limits, self._context, self._wake)

    def remove(self, engine_id: str, generation: int) -> None:
        """Unsubscribe; nothing of it reaches the sink after this. A newer generation stays."""
        present = self._engines.get(engine_id)
        if present is not None and present[0] <= generation:
            self._drop(engine_id)

    def states(self) -> dict[DestinationKey, StreamState]:
        """Of every stream."""
        return {
            feed.key: feed.stream.state for _, feeds in self._engines.values() for feed in feeds
        }

    def positions(self) -> dict[DestinationKey, SnapshotLoaded]:
        """Of streams of whose blocks a snapshot may be taken now."""
        found = {}
        for _, feeds in self._engines.values():
            for feed in feeds:
                position = feed.stream.position
                if position is not None and not feed.is_behind:
                    found[feed.key] = position
        return found

    async def stop(self) -> None:
        """Unsubscribe from all and end ZMQ's thread."""
        for engine_id in list(self._engines):
            self._drop(engine_id)
        if self._turn_handle is not None:
            self._turn_handle.cancel()
            self._turn_handle = None
        if self._context is not None:
            context, self._context = self._context, None
            await asyncio.to_thread(context.term)

    def _drop(self, engine_id: str) -> None:
        _, feeds = self._engines.pop(engine_id, (0, []))
        # One that is still in the queue has nothing to take when its turn comes.
        for feed in feeds:
            feed.close()

    def _wake(self, feed: Feed) -> None:
        """Give the feed a turn."""
        if feed not in self._waiting:
            self._waiting.add(feed)
            self._ready.append(feed)
        if self._turn_handle is None:
            self._turn_handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Work a slice, each feed in its turn."""
        self._turn_handle = None
        end = time.perf_counter() + self._limits.slice_s
        try:
            while self._ready:
                feed = self._ready.popleft()
                self._waiting.discard(feed)
                if feed.pump():
                    self._wake(feed)
                if time.perf_counter() >= end:
                    break
        finally:
            if self._ready and self._turn_handle is None:
                self._turn_handle = asyncio.get_running_loop().call_soon(self._turn)
