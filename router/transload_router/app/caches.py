"""What engines say of their caches, on its way into the index: who is followed, and how far."""

import asyncio
import logging
from time import monotonic

import zmq

from transload_router.app.state import ONE_RANK, Router
from transload_router.core.kv_events.events import Event
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.membership import Member
from transload_router.core.types import DestinationKey
from transload_router.io.events import BadSources, EventSubscriber, Source, named_source

log = logging.getLogger("transload")

# Expectations live for seconds, so this late is early enough; a tick costs at most a slice of
# sweeping, 1 ms (bench/index.py).
_TICK_S = 0.5


class Caches:
    """Follows engines' KV events; the sink of all their streams.

    An engine is followed from its first answer to a probe on; when it tells of other endpoints,
    or serves another model, it is followed anew. While it is down its stream stays: a publisher
    that comes back says by its numbers whether it is the same.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._configured = router.settings.event_endpoints()
        self._subscriber = EventSubscriber(self)
        router.stream_positions = self._subscriber.positions
        self._followed: dict[str, tuple[str, int, tuple[Source, ...]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Have expectations end in time, on the running loop."""
        self._router.index.expire(monotonic())
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self.start)

    async def stop(self) -> None:
        """End all subscriptions."""
        if self._timer is not None:
            self._timer.cancel()
        await self._subscriber.stop()

    def wants_sources(self, engine_id: str) -> bool:
        """Whether the engine itself is to be asked where it publishes."""
        return self._router.settings.kv_events == "auto" and engine_id not in self._configured

    def follow(self, member: Member, told: list[Source] | None) -> None:
        """Follow an engine that has answered a probe.

        Args:
            member: The engine.
            told: Where it says that it publishes; None where it was not asked, or has no answer.
        """
        engine = member.engine
        identity = next(
            (found for name in member.models or () if (found := self._router.fleet.identity(name))),
            None,
        )
        try:
            sources = tuple(self._configured_sources(member) or told or ())
        except BadSources as error:
            log.error("KV events of %s: %s", engine.id, error)
            sources = ()
        if identity is None or self._router.settings.kv_events == "off":
            sources = ()
        wanted = (identity.model if identity else "", engine.generation, sources)
        if self._followed.get(engine.id, ("", engine.generation, ())) != wanted:
            self._follow_anew(member, *wanted)

    def _configured_sources(self, member: Member) -> list[Source]:
        host = member.engine.address.host
        return [
            named_source(rank, endpoint, replay, host)
            for rank, endpoint, replay in self._configured.get(member.engine.id, ())
        ]

    def _follow_anew(
        self, member: Member, model: str, generation: int, sources: tuple[Source, ...]
    ) -> None:
        router, engine = self._router, member.engine
        self.forget(engine.id)
        self._followed[engine.id] = (model, generation, sources)
        if not sources:
            # Its ranks are unknown: only an engine that has some takes the header that names one.
            router.set_ranks(engine, ONE_RANK)
            return
        # A server of several ranks names them all, one of a single rank that one.
        router.set_ranks(engine, sorted({source.rank for source in sources}))
        for source in sources:
            router.index.add_owner((engine.id, source.rank), model, generation)
        positions = {
            source.rank: position
            for source in sources
            if (position := router.index.position((engine.id, source.rank))) is not None
        }
        try:
            self._subscriber.add(engine.id, generation, sources, positions)
        except zmq.ZMQError as error:
            log.error("KV events of %s cannot be subscribed to: %s", engine.id, error)
            router.index.remove_engine(engine.id)
            router.set_ranks(engine, ONE_RANK)
            return
        log.info("following the KV events of %s: %d publisher(s)", engine.id, len(sources))

    def forget(self, engine_id: str) -> None:
        """Follow an engine no longer, and drop what is known of its cache."""
        known = self._followed.pop(engine_id, None)
        if known is None or not known[2]:
            return
        self._subscriber.remove(engine_id, known[1])
        self._router.index.remove_engine(engine_id)
        self._router.texts.remove_engine(engine_id)
        self._router.drop_streams(engine_id)

    def note_return(self, engine_id: str) -> None:
        """It was down and answers again, perhaps as a new process with an empty cache.

        Its publisher says by itself whether it is the same; what is known by text has nobody to
        say so.
        """
        self._router.texts.remove_engine(engine_id)

    def note_positions(self) -> None:
        """Let the index know where streams stand, before it is exported."""
        positions = self._subscriber.positions()
        for key in self._router.index.owners():
            self._router.index.set_position(key, positions.get(key))

    # As the sink of streams.

    def apply(self, key: DestinationKey, event: Event) -> None:
        """See `Sink`."""
        followed = self._followed.get(key[0])
        if followed is not None:
            self._router.index.apply(key, followed[1], event)

    def clear(self, key: DestinationKey) -> None:
        """See `Sink`."""
        self._router.index.clear(key)

    def set_state(self, key: DestinationKey, state: StreamState, reason: str) -> None:
        """See `Sink`."""
        before = self._router.streams.get(key)
        self._router.set_stream(key, state)
        if before is not state and (state is StreamState.DEGRADED or before is not None):
            level = logging.WARNING if state is StreamState.DEGRADED else logging.INFO
            log.log(level, "KV events of %s/%d: %s (%s)", *key, state.value, reason)

    def count(self, key: DestinationKey, what: str, amount: int) -> None:
        """See `Sink`."""
        self._router.metrics.kv_events.add(key[0], what, amount=amount)
        if what == "restart":
            self._router.on_restart(key[0])
