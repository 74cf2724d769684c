"""Subscriptions against a publisher with real sockets, and what it may do wrong."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
import uvloop

from support.waiting import until
from support.zmq_publisher import CLEARED, ZmqPublisher, batch, removed, stored
from transload_router.core.kv_events.events import Cleared, Event, Removed, Stored
from transload_router.core.kv_events.messages import StreamState
from transload_router.io.events import EventSubscriber, Limits, Source

COLD, REPLAYING, EXACT, DEGRADED = StreamState
KEY = ("p0", 0)
QUICK = Limits(replay_silence_s=0.2, reconnect_s=0.01, reconnect_max_s=0.05)


class Recorder:
    """A sink that knows which copies of which blocks each destination holds."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, int], Counter[object]] = {}
        self.state: dict[tuple[str, int], StreamState] = {}
        self.history: list[tuple[tuple[str, int], StreamState, str]] = []
        self.counts: Counter[str] = Counter()
        self.num_events = 0

    def apply(self, key: tuple[str, int], event: Event) -> None:
        self.num_events += 1
        held = self.blocks.setdefault(key, Counter())
        match event:
            case Stored(hashes):
                held.update(hashes)
            case Removed(hashes):
                held.subtract(hashes)
                self.blocks[key] = +held
            case Cleared():
                held.clear()

    def clear(self, key: tuple[str, int]) -> None:
        self.counts["clear"] += 1
        self.blocks.setdefault(key, Counter()).clear()

    def set_state(self, key: tuple[str, int], state: StreamState, reason: str) -> None:
        self.state[key] = state
        self.history.append((key, state, reason))

    def count(self, key: tuple[str, int], what: str, amount: int) -> None:
        self.counts[what] += amount

    def holds(self, *hashes: int, key: tuple[str, int] = KEY) -> bool:
        return set(self.blocks.get(key, ())) == set(hashes)

    def is_settled(self, state: StreamState, *hashes: int, key: tuple[str, int] = KEY) -> bool:
        return self.state.get(key) is state and self.holds(*hashes, key=key)


@asynccontextmanager
async def subscribing(
    *sources: Source, limits: Limits = QUICK
) -> AsyncIterator[tuple[EventSubscriber, Recorder]]:
    recorder = Recorder()
    subscriber = EventSubscriber(recorder, limits)
    try:
        subscriber.add("p0", 1, sources)
        yield subscriber, recorder
    finally:
        await subscriber.stop()


@asynccontextmanager
async def publishing(**options: int) -> AsyncIterator[ZmqPublisher]:
    publisher = ZmqPublisher(**options)
    try:
        yield publisher
    finally:
        await publisher.close()


def source_of(publisher: ZmqPublisher, *, rank: int = 0, can_replay: bool = True) -> Source:
    return Source(rank, publisher.endpoint, publisher.replay_endpoint if can_replay else None)


async def test_a_late_join_learns_all_that_the_buffer_reaches() -> None:
    async with publishing() as publisher:
        await publisher.publish(batch(1.0, stored(1, 2)))
        await publisher.publish(batch(2.0, removed(1), stored(3)))
        async with subscribing(source_of(publisher)) as (_, sink):
            await until(lambda: sink.is_settled(EXACT, 2, 3), "replay")
            await publisher.publish(batch(3.0, removed(2)))
            await until(lambda: sink.is_settled(EXACT, 3), "live")
            assert [(state, reason) for _, state, reason in sink.history] == [
                (COLD, "added"),
                (REPLAYING, "subscribed"),
                (EXACT, "replayed"),
            ]


async def test_a_late_join_beyond_the_buffer_is_degraded() -> None:
    async with publishing(buffer_steps=1) as publisher:
        await publisher.publish(batch(1.0, stored(1)))
        await publisher.publish(batch(2.0, stored(2)))
        async with subscribing(source_of(publisher)) as (_, sink):
            await until(lambda: sink.is_settled(DEGRADED, 2), "replay")
            await publisher.publish(batch(3.0, CLEARED, stored(3)))
            await until(lambda: sink.is_settled(EXACT, 3), "cleared")


@pytest.mark.parametrize("has_topic", [True, False])
async def test_a_gap_is_filled_by_replay(has_topic: bool) -> None:
    async with publishing() as publisher:
        publisher.has_topic = has_topic
        async with subscribing(source_of(publisher)) as (_, sink):
            await until(lambda: sink.is_settled(EXACT), "subscription")
            publisher.lose = {1, 2}
            await publisher.publish(batch(1.0, stored(1)))
            await publisher.publish(batch(2.0, stored(2), removed(1)))
            await publisher.publish(batch(3.0, stored(3)))
            await publisher.publish(batch(4.0, removed(2), stored(4)))
            await until(lambda: sink.is_settled(EXACT, 3, 4), "gap filled")
            assert sink.counts == {"gap": 1}
            assert publisher.num_requests == 2


async def test_a_gap_that_nobody_fills_clears() -> None:
    async with publishing() as publisher:
        source = source_of(publisher, can_replay=False)
        async with subscribing(source) as (_, sink):
            await until(lambda: sink.state.get(KEY) is DEGRADED, "nobody to ask")
            await publisher.publish(batch(1.0, stored(1)))
            await until(lambda: sink.is_settled(EXACT, 1), "the very first batch")
            publisher.lose = {1}
            await publisher.publish(batch(2.0, removed(1)))
            await publisher.publish(batch(3.0, stored(3)))
            await until(lambda: sink.is_settled(DEGRADED, 3), "cleared")


async def test_a_replay_that_goes_silent_clears() -> None:
    async with publishing() as publisher, subscribing(source_of(publisher)) as (_, sink):
        await until(lambda: sink.is_settled(EXACT), "subscription")
        await publisher.publish(batch(1.0, stored(1)))
        publisher.lose, publisher.answers = {1}, False
        await publisher.publish(batch(2.0, removed(1)))
        await publisher.publish(batch(3.0, stored(3)))
        await until(lambda: sink.is_settled(DEGRADED, 3), "deadline")
        assert sink.counts == {"gap": 1, "replay_failed": 1, "clear": 1}


async def test_a_replay_without_its_end_marker_is_asked_on() -> None:
    async with publishing() as publisher:
        publisher.ends = False
        await publisher.publish(batch(1.0, stored(1)))
        async with subscribing(source_of(publisher)) as (_, sink):
            await until(lambda: sink.is_settled(EXACT, 1), "all but the marker")


async def test_a_restart_on_the_same_port_is_noticed() -> None:
    async with publishing() as old:
        await old.publish(batch(1.0, stored(1)))
        ports = old.ports
        async with subscribing(source_of(old)) as (_, sink):
            await until(lambda: sink.is_settled(EXACT, 1), "the old one")
            await old.close()
            new = ZmqPublisher(*ports)
            try:
                await until(lambda: sink.is_settled(EXACT), "forgotten before a word was said")
                assert sink.counts["restart"] == 1
                await new.publish(batch(2.0, stored(2)))
                await until(lambda: sink.is_settled(EXACT, 2), "the new one")
            finally:
                await new.close()


async def test_a_lost_connection_to_the_same_publisher_loses_nothing() -> None:
    async with publishing() as publisher, subscribing(source_of(publisher)) as (_, sink):
        await until(lambda: sink.is_settled(EXACT), "subscription")
        await publisher.publish(batch(1.0, stored(1)))
        await until(lambda: sink.holds(1), "live")
        publisher.pub.unbind(publisher.endpoint)
        await publisher.publish(batch(2.0, stored(2)))
        publisher.pub.bind(publisher.endpoint)
        await until(lambda: sink.is_settled(EXACT, 1, 2), "reconnected and replayed")
        assert sink.counts["restart"] == sink.counts["clear"] == 0


@pytest.mark.parametrize(
    "scenario",
    [
        test_a_late_join_learns_all_that_the_buffer_reaches,
        test_a_replay_that_goes_silent_clears,
        test_a_restart_on_the_same_port_is_noticed,
    ],
)
def test_under_uvloop(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    uvloop.run(scenario())
