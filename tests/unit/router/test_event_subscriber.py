"""Subscriptions against a publisher with real sockets, and what it may do wrong."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
import zmq

from support.waiting import PATIENCE_S, until
from support.zmq_publisher import CLEARED, ZmqPublisher, batch, removed, stored
from transload_router.core.kv_events.events import Cleared, Event, Removed, Stored
from transload_router.core.kv_events.messages import SnapshotLoaded, StreamState
from transload_router.io.events import EventSubscriber, Limits, Source
from transload_router.io.events.feed import MAX_EVENTS_AT_ONCE

COLD, REPLAYING, EXACT, DEGRADED = StreamState
KEY = ("p0", 0)
QUICK = Limits(replay_silence_s=0.2, reconnect_s=0.01, reconnect_max_s=0.05)

ONE_A_TURN = Limits(slice_s=0.0)


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


async def test_a_long_batch_comes_in_slices_and_in_order() -> None:
    numbers = range(3 * MAX_EVENTS_AT_ONCE)
    async with publishing() as publisher:
        await publisher.publish(batch(1.0, *(stored(number) for number in numbers)))
        await publisher.publish(batch(2.0, removed(0), stored(9999)))
        async with subscribing(source_of(publisher), limits=ONE_A_TURN) as (subscriber, sink):
            seen: list[int] = []
            async with asyncio.timeout(PATIENCE_S):
                while sink.state.get(KEY) is not EXACT:
                    if sink.num_events:
                        seen.append(sink.num_events)
                        assert subscriber.positions() == {}, "a snapshot would lack the rest"
                    await asyncio.sleep(0)
            assert sink.holds(*numbers[1:], 9999)
            slices = [after - before for before, after in itertools.pairwise([0, *seen])]
            assert max(slices) <= MAX_EVENTS_AT_ONCE
            assert subscriber.positions()[KEY].seq == 1


async def test_what_waits_of_a_long_batch_goes_with_its_engine() -> None:
    async with publishing() as publisher:
        events = (stored(number) for number in range(3 * MAX_EVENTS_AT_ONCE))
        await publisher.publish(batch(1.0, *events))
        async with subscribing(source_of(publisher), limits=ONE_A_TURN) as (subscriber, sink):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await asyncio.sleep(0)
                    if sink.num_events:
                        break
            subscriber.remove("p0", 1)
            num_events = sink.num_events
            assert num_events < 3 * MAX_EVENTS_AT_ONCE
            for _ in range(20):
                await asyncio.sleep(0)
            assert sink.num_events == num_events


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
    async with publishing() as publisher:
        old, lost = publisher.endpoint, batch(2.0, stored(2))
        async with subscribing(source_of(publisher)) as (_, sink):
            await until(lambda: sink.is_settled(EXACT), "subscription")
            await publisher.publish(batch(1.0, stored(1)))
            await until(lambda: sink.holds(1), "live")
            # The same publisher, by its batches, on a socket that is made anew.
            publisher.pub.close()
            await until(lambda: sink.counts["disconnected"], "connection lost")
            publisher.published.append(lost)
            publisher.buffer.append((1, lost))
            publisher.pub = publisher.context.socket(zmq.PUB)
            publisher.pub.linger = 0
            await until(lambda: is_bound(publisher, old), "the port is free again")
            await until(lambda: sink.is_settled(EXACT, 1, 2), "reconnected and replayed")
            assert sink.counts == {"disconnected": 1}


def is_bound(publisher: ZmqPublisher, endpoint: str) -> bool:
    """Whether the port could be taken again; ZMQ closes sockets in a thread of its own."""
    try:
        publisher.pub.bind(endpoint)
    except zmq.ZMQError:
        return False
    return True


async def test_ranks_are_told_apart_by_subscription() -> None:
    async with publishing() as first, publishing() as second:
        sources = (source_of(first), source_of(second, rank=1))
        async with subscribing(*sources) as (subscriber, sink):
            # Both say rank 0 and the same topic.
            await first.publish(batch(1.0, stored(1)))
            await second.publish(batch(1.0, stored(2)))
            await until(lambda: sink.is_settled(EXACT, 1), "rank 0")
            await until(lambda: sink.is_settled(EXACT, 2, key=("p0", 1)), "rank 1")
            await second.publish(batch(2.0, CLEARED))
            await until(lambda: sink.holds(key=("p0", 1)), "cleared")
            assert sink.holds(1)
            assert subscriber.states() == {KEY: EXACT, ("p0", 1): EXACT}


async def test_a_publisher_that_comes_up_later() -> None:
    async with publishing() as placeholder:
        ports = placeholder.ports
        source = source_of(placeholder)
    async with subscribing(source) as (_, sink):
        assert sink.history == [(KEY, COLD, "added")]
        publisher = ZmqPublisher(*ports)
        try:
            await until(lambda: sink.is_settled(EXACT), "there")
        finally:
            await publisher.close()
        await until(lambda: sink.counts["disconnected"], "gone")
        # Nothing is known to be wrong, so nothing is forgotten.
        assert sink.state[KEY] is EXACT


async def test_engines_come_and_go_by_generation() -> None:
    async with publishing() as old, publishing() as new:
        await old.publish(batch(1.0, stored(1)))
        await new.publish(batch(1.0, stored(2)))
        async with subscribing(source_of(old)) as (subscriber, sink):
            await until(lambda: sink.is_settled(EXACT, 1), "generation 1")
            sink.clear(KEY)
            assert subscriber.add("p0", 2, [source_of(new)])
            await until(lambda: sink.is_settled(EXACT, 2), "generation 2")
            assert not subscriber.add("p0", 1, [source_of(old)])
            subscriber.remove("p0", 1)
            await old.publish(batch(2.0, stored(3)))
            await new.publish(batch(2.0, stored(4)))
            await until(lambda: sink.holds(2, 4), "still generation 2, and it alone")
            subscriber.remove("p0", 2)
            num_events = sink.num_events
            await new.publish(batch(3.0, stored(5)))
            assert subscriber.states() == {}
            assert subscriber.add("p0", 3, [source_of(new)])
            await until(lambda: sink.is_settled(EXACT, 2, 4, 5), "generation 3")
            # All three batches by replay; none came to the one that was removed.
            assert sink.num_events == num_events + 3


async def test_a_snapshot_is_a_start() -> None:
    async with publishing(buffer_steps=2) as publisher:
        for seq in range(3):
            await publisher.publish(batch(float(seq), stored(seq)))
        async with subscribing() as (subscriber, sink):
            position = SnapshotLoaded(1, 1.0, True)
            sink.apply(KEY, Stored([0, 1], None, [], 0))
            subscriber.add("p0", 1, [source_of(publisher)], {0: position})
            await until(lambda: sink.is_settled(EXACT, 0, 1, 2), "what came since")
            assert sink.num_events == 2
            assert subscriber.positions() == {KEY: SnapshotLoaded(2, 2.0, True)}


@pytest.mark.parametrize("is_numbered", [True, False])
async def test_messages_of_fewer_frames(is_numbered: bool) -> None:
    async with publishing() as publisher, subscribing(source_of(publisher)) as (_, sink):
        await until(lambda: sink.is_settled(EXACT), "subscription")
        if is_numbered:
            await publisher.send((0).to_bytes(8, "big"), batch(1.0, stored(1)))
            await until(lambda: sink.is_settled(EXACT, 1), "sequence and payload")
        else:
            await publisher.send(batch(1.0, stored(1)))
            await until(lambda: sink.is_settled(DEGRADED, 1), "payload alone")


async def test_messages_that_mean_nothing_are_counted() -> None:
    async with publishing() as publisher, subscribing(source_of(publisher)) as (_, sink):
        await until(lambda: sink.is_settled(EXACT), "subscription")
        await publisher.publish(batch(1.0, stored(1)))
        await publisher.send(b"t", b"\xff" * 8, b"")
        await publisher.publish(batch(2.0, stored(2), ["BlockStored", [1, 1], None, [], 0]))
        await until(lambda: sink.is_settled(EXACT, 1, 2), "what could be read")
        assert sink.counts == {"bad_message": 1, "bad_event": 1}
        await publisher.publish(b"nonsense")
        await until(lambda: sink.is_settled(DEGRADED), "what could not")
        assert sink.counts["bad_batch"] == 1


async def test_an_engine_on_the_same_host_by_ipc(tmp_path: Path) -> None:
    async with publishing() as publisher:
        publisher.pub.bind(f"ipc://{tmp_path}/events")
        source = Source(0, f"ipc://{tmp_path}/events", publisher.replay_endpoint)
        async with subscribing(source) as (_, sink):
            await until(lambda: sink.is_settled(EXACT), "subscription")
            await publisher.publish(batch(1.0, stored(1)))
            await until(lambda: sink.holds(1), "live")


async def test_an_endpoint_that_cannot_be_is_refused_whole() -> None:
    async with publishing() as publisher, subscribing() as (subscriber, _):
        sources = [source_of(publisher), Source(1, "tcp://no.port")]
        with pytest.raises(zmq.ZMQError):
            subscriber.add("p1", 1, sources)
        assert subscriber.states() == {}
        nobody = Source(0, publisher.endpoint, "tcp://no.port")
        assert subscriber.add("p1", 1, [nobody])
        await until(lambda: subscriber.states()["p1", 0] is DEGRADED, "nobody to ask")


async def test_a_stalled_subscriber_does_not_block_the_publisher() -> None:
    limits = Limits(max_live_queue=10)
    async with (
        publishing(hwm=10) as publisher,
        subscribing(source_of(publisher), limits=limits) as (_, sink),
    ):
        await until(lambda: sink.is_settled(EXACT), "subscription")
        blocking: zmq.Socket[bytes] = zmq.Socket.shadow(publisher.pub.underlying)
        # Nothing else runs on this loop meanwhile: some 24 MB that nobody reads.
        for seq in range(3000):
            payload = batch(float(seq), stored(seq), {"type": "x", "pad": b"x" * 8000})
            publisher.published.append(payload)
            publisher.buffer.append((seq, payload))
            blocking.send_multipart((b"", seq.to_bytes(8, "big"), payload), zmq.NOBLOCK)
        await publisher.publish(batch(4000.0, stored(3000)))
        await publisher.publish(batch(4001.0, stored(3001)))
        await until(lambda: sink.is_settled(EXACT, *range(3002)), "all of it by replay")
        assert sink.counts["gap"] >= 1
        assert sink.counts["clear"] == 0


async def test_a_flood_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that moves 20 us a look, a slice of 0.1 ms is five messages."""
    async with publishing() as publisher, subscribing(source_of(publisher)) as (_, sink):
        await until(lambda: sink.is_settled(EXACT), "subscription")
        ticks = itertools.count()
        monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) * 2e-5)
        blocking: zmq.Socket[bytes] = zmq.Socket.shadow(publisher.pub.underlying)
        for seq in range(2000):
            payload = batch(float(seq), stored(seq))
            blocking.send_multipart((b"", seq.to_bytes(8, "big"), payload))
        most = 0
        while sink.num_events < 2000:
            before = sink.num_events
            await asyncio.sleep(0)
            most = max(most, sink.num_events - before)
        assert 4 <= most <= 6
        assert sink.is_settled(EXACT, *range(2000))


async def test_a_fault_of_the_sink_stops_no_other_feed() -> None:
    async with (
        publishing() as first,
        publishing() as second,
        subscribing(source_of(first)) as (subscriber, sink),
    ):
        subscriber.add("p1", 1, [source_of(second)])
        await until(lambda: sink.is_settled(EXACT, key=("p1", 0)), "both")
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: faults.append(context["exception"])
        )
        sink.blocks[KEY] = None  # type: ignore[assignment]
        await first.publish(batch(1.0, stored(1)))
        await second.publish(batch(1.0, stored(2)))
        await until(lambda: sink.holds(2, key=("p1", 0)), "the other one")
        await until(lambda: faults, "the fault is told")
        assert [type(fault) for fault in faults] == [AttributeError]


async def test_stop_while_all_is_under_way() -> None:
    async with publishing() as publisher:
        publisher.answers = False
        subscriber = EventSubscriber(Recorder(), QUICK)
        subscriber.add("p0", 1, [source_of(publisher)])
        await until(lambda: subscriber.states()[KEY] is REPLAYING, "a replay was asked for")
        await publisher.publish(batch(1.0, stored(1)))
        await subscriber.stop()
        await subscriber.stop()


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
