"""Playbooks for one publisher's stream, and a test that they notice each row of the table."""

from collections.abc import Iterator
from typing import get_args

import pytest

from support.zmq_publisher import CLEARED, batch, removed, stored
from transload_router.core.kv_events import steps
from transload_router.core.kv_events.decode import decode_batch
from transload_router.core.kv_events.messages import (
    Apply,
    Clear,
    Command,
    Count,
    Event,
    Live,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    RequestReplay,
    SnapshotLoaded,
    SourceChanged,
    StateChanged,
    StreamState,
    Subscribed,
    Unnumbered,
)
from transload_router.core.kv_events.stream import TABLE, EventStream, Row

Line = Event | Command
COLD, REPLAYING, EXACT, DEGRADED = StreamState
NONSENSE = b"\xc1"


def payload(seq: int, *events: object, at: float | None = None) -> bytes:
    """A batch of the publisher that started at time 0; other publishers have another time."""
    return batch(float(seq) if at is None else at, *(events or (stored(seq + 100),)))


def live(seq: int, *events: object, at: float | None = None) -> Live:
    return Live(seq, payload(seq, *events, at=at))


def replayed(seq: int, *events: object, at: float | None = None) -> Replayed:
    return Replayed(seq, payload(seq, *events, at=at))


def applied(seq: int, *events: object, at: float | None = None) -> Apply:
    return Apply(decode_batch(payload(seq, *events, at=at)))


ASKED = (Subscribed(), RequestReplay(0), StateChanged(REPLAYING, "subscribed"))
FRESH = (*ASKED, ReplayEnded(), StateChanged(EXACT, "replayed"))
# Batches 0 to 2 are known.
RUNNING = (*FRESH, live(0), applied(0), live(1), applied(1), live(2), applied(2))
# A publisher that forgot what came before batch 5; DEGRADED at 6.
LATE = (
    *ASKED,
    replayed(5),
    Count("truncated"),
    applied(5),
    ReplayEnded(),
    StateChanged(DEGRADED, "replayed"),
)
GAP = (*RUNNING, live(5), Count("gap"), RequestReplay(2), StateChanged(REPLAYING, "gap"))
RESTARTED = (
    *RUNNING,
    live(0, at=50.0),
    Count("restart"),
    Clear(),
    RequestReplay(0),
    StateChanged(REPLAYING, "restarted"),
)
# Nobody to ask, and nothing heard yet.
MUTE = (
    *ASKED,
    ReplayFailed(),
    Count("replay_failed"),
    StateChanged(DEGRADED, "replay_failed"),
)

SCRIPTS: dict[str, tuple[Line, ...]] = {
    # Joining.
    "a publisher that has not said a word": FRESH,
    "everything from the beginning by replay": (
        *ASKED,
        replayed(0),
        applied(0),
        replayed(1),
        applied(1),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
        live(2),
        applied(2),
    ),
    "late: what the publisher remembers is true, and not everything": (*LATE, live(6), applied(6)),
    "late: held batches follow on the replay, those it brought are not applied twice": (
        *ASKED,
        live(6),
        live(7),
        live(8),
        replayed(5),
        Count("truncated"),
        applied(5),
        replayed(6),
        applied(6),
        ReplayEnded(),
        applied(7),
        applied(8),
        StateChanged(DEGRADED, "replayed"),
        live(9),
        applied(9),
    ),
    "late: a reset makes it exact": (
        *LATE,
        live(6, CLEARED),
        applied(6, CLEARED),
        StateChanged(EXACT, "cleared"),
    ),
    "late: a reset among what is replayed makes it exact": (
        *ASKED,
        replayed(5),
        Count("truncated"),
        applied(5),
        replayed(6, CLEARED, stored(1)),
        applied(6, CLEARED, stored(1)),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
    ),
    "a batch comes before the connection is noticed": (
        live(7),
        RequestReplay(0),
        StateChanged(REPLAYING, "first_batch"),
        replayed(6),
        Count("truncated"),
        applied(6),
        ReplayEnded(),
        applied(7),
        StateChanged(DEGRADED, "replayed"),
    ),
    "the very first batch needs no replay": (
        live(0),
        applied(0),
        StateChanged(EXACT, "first_batch"),
        live(1),
        applied(1),
    ),
    "the very first batch cannot be read": (
        Live(0, NONSENSE),
        Count("bad_batch"),
        StateChanged(DEGRADED, "first_batch"),
    ),
    "late, and the end marker is lost": (
        *ASKED,
        replayed(5),
        Count("truncated"),
        applied(5),
        ReplayFailed(),
        StateChanged(DEGRADED, "replayed"),
    ),
    "nobody to ask: the very first batch makes it exact": (
        *MUTE,
        live(0),
        applied(0),
        StateChanged(EXACT, "first_batch"),
    ),
    "nobody to ask: any other batch is a beginning, and its gaps clear": (
        *MUTE,
        live(7),
        applied(7),
        live(8),
        applied(8),
        live(10),
        Count("gap"),
        RequestReplay(8),
        StateChanged(REPLAYING, "gap"),
        ReplayFailed(),
        Count("replay_failed"),
        Clear(),
        applied(10),
        StateChanged(DEGRADED, "replay_failed"),
        live(11),
        applied(11),
    ),
    "nobody to ask, and the very first batch was held": (
        *ASKED,
        live(0),
        live(1),
        ReplayFailed(),
        Count("replay_failed"),
        applied(0),
        applied(1),
        StateChanged(EXACT, "replay_failed"),
    ),
    # Gaps.
    "a gap: filled, merged in order": (
        *GAP,
        live(6),
        replayed(2),
        replayed(3),
        applied(3),
        replayed(4),
        applied(4),
        ReplayEnded(),
        applied(5),
        applied(6),
        StateChanged(EXACT, "replayed"),
        live(7),
        applied(7),
    ),
    "a gap: live batches that the replay brought are dropped": (
        *GAP,
        replayed(2),
        replayed(3),
        applied(3),
        replayed(4),
        applied(4),
        replayed(5),
        applied(5),
        replayed(6),
        applied(6),
        replayed(7),
        applied(7),
        live(6),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
        live(7),
        live(7),
        Count("duplicate"),
        live(8),
        applied(8),
    ),
    "a gap: live batches that the replay brought take no room, and may be duplicates": (
        *GAP,
        replayed(2),
        replayed(3),
        applied(3),
        replayed(4),
        applied(4),
        replayed(5),
        applied(5),
        replayed(6),
        applied(6),
        replayed(7),
        applied(7),
        replayed(8),
        applied(8),
        live(6),
        live(7),
        live(7),
        Count("duplicate"),
        live(8),
        live(9),
        ReplayEnded(),
        applied(9),
        StateChanged(EXACT, "replayed"),
    ),
    "a gap: answers that begin before what was asked for": (
        *GAP,
        replayed(1),
        replayed(2),
        replayed(3),
        applied(3),
        replayed(4),
        applied(4),
        ReplayEnded(),
        applied(5),
        StateChanged(EXACT, "replayed"),
    ),
    "a gap that stays, and a reset behind it": (
        *GAP,
        live(6, CLEARED),
        replayed(2),
        ReplayEnded(),
        Count("replay_failed"),
        Clear(),
        applied(5),
        applied(6, CLEARED),
        StateChanged(EXACT, "replay_failed"),
    ),
    "what comes of an answer after its end": (
        *RUNNING,
        replayed(3),
        ReplayEnded(),
        ReplayFailed(),
        live(3),
        applied(3),
    ),
    "a gap in what is known in part: filled, and still in part": (
        *LATE,
        live(7),
        Count("gap"),
        RequestReplay(5),
        StateChanged(REPLAYING, "gap"),
        replayed(5),
        replayed(6),
        applied(6),
        ReplayEnded(),
        applied(7),
        StateChanged(DEGRADED, "replayed"),
    ),
    "a gap: the publisher has forgotten it": (
        *GAP,
        replayed(4),
        Count("truncated"),
        Clear(),
        applied(4),
        replayed(5),
        applied(5),
        ReplayEnded(),
        StateChanged(DEGRADED, "replayed"),
    ),
    "a gap: the publisher has forgotten the batch known last, so nothing proves it is the same": (
        *GAP,
        replayed(3),
        Count("truncated"),
        Clear(),
        applied(3),
        replayed(4),
        applied(4),
        ReplayEnded(),
        applied(5),
        StateChanged(DEGRADED, "replayed"),
    ),
    "a gap: the deadline passes": (
        *GAP,
        live(6),
        ReplayFailed(),
        Count("replay_failed"),
        Clear(),
        applied(5),
        applied(6),
        StateChanged(DEGRADED, "replay_failed"),
        live(7),
        applied(7),
    ),
    "a gap: the deadline passes, and what is held has a gap itself": (
        *GAP,
        live(8),
        live(9),
        ReplayFailed(),
        Count("replay_failed"),
        Clear(),
        applied(8),
        applied(9),
        StateChanged(DEGRADED, "replay_failed"),
    ),
    "a gap: late batches of an abandoned replay are ignored": (
        *GAP,
        ReplayFailed(),
        Count("replay_failed"),
        Clear(),
        applied(5),
        StateChanged(DEGRADED, "replay_failed"),
        replayed(2),
        replayed(9),
        ReplayEnded(),
        ReplayFailed(),
        live(6),
        applied(6),
    ),
    "a replay with a hole: the rest is asked for": (
        *GAP,
        replayed(2),
        replayed(3),
        applied(3),
        replayed(7),
        ReplayEnded(),
        RequestReplay(3),
        replayed(3),
        replayed(4),
        applied(4),
        replayed(5),
        applied(5),
        replayed(6),
        applied(6),
        replayed(7),
        applied(7),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
    ),
    "a replay with a hole, and nothing live to tell of it: the rest is asked for": (
        *RUNNING,
        Subscribed(),
        RequestReplay(2),
        StateChanged(REPLAYING, "subscribed"),
        replayed(2),
        replayed(3),
        applied(3),
        replayed(5),
        ReplayEnded(),
        RequestReplay(3),
    ),
    "a replay with a hole that stays: cleared": (
        *GAP,
        replayed(2),
        replayed(7),
        ReplayEnded(),
        Count("replay_failed"),
        Clear(),
        applied(5),
        StateChanged(DEGRADED, "replay_failed"),
    ),
    "a replay without its end: what it brought is enough": (
        *GAP,
        replayed(2),
        replayed(3),
        applied(3),
        replayed(4),
        applied(4),
        ReplayFailed(),
        applied(5),
        StateChanged(EXACT, "replayed"),
    ),
    "a replay without its end, cut short: the rest is asked for": (
        *GAP,
        replayed(2),
        replayed(3),
        applied(3),
        ReplayFailed(),
        RequestReplay(3),
        replayed(3),
        ReplayFailed(),
        Count("replay_failed"),
        Clear(),
        applied(5),
        StateChanged(DEGRADED, "replay_failed"),
    ),
    "a slow replay: more is held than there is room for": (
        *GAP,
        live(6),
        live(7),
        live(8),
        live(9),
        Count("overflow"),
        Clear(),
        applied(9),
        StateChanged(DEGRADED, "overflow"),
        live(10),
        applied(10),
        live(12),
        Count("gap"),
        RequestReplay(10),
        StateChanged(REPLAYING, "gap"),
        live(13),
        live(14),
        ReplayFailed(),
        Count("replay_failed"),
        Clear(),
        applied(12),
        applied(13),
        applied(14),
        StateChanged(DEGRADED, "replay_failed"),
    ),
    "a slow replay: what is too much is a reset": (
        *GAP,
        live(6),
        live(7),
        live(8),
        live(9, CLEARED),
        Count("overflow"),
        Clear(),
        applied(9, CLEARED),
        StateChanged(EXACT, "overflow"),
    ),
    "a publisher that keeps nothing: the second answer is empty, too": (
        *GAP,
        ReplayEnded(),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        ReplayEnded(),
        Count("replay_failed"),
        applied(5),
        StateChanged(DEGRADED, "replay_failed"),
    ),
    # Going back.
    "a duplicate": (*RUNNING, live(1), Count("duplicate"), live(3), applied(3)),
    "a duplicate of what is held": (
        *GAP,
        live(6),
        live(5),
        Count("duplicate"),
        replayed(2),
        replayed(3),
        applied(3),
        replayed(4),
        applied(4),
        ReplayEnded(),
        applied(5),
        applied(6),
        StateChanged(EXACT, "replayed"),
    ),
    "a duplicate of what is known, while a replay is under way": (
        *GAP,
        live(1),
        Count("duplicate"),
        replayed(2),
        replayed(3),
        applied(3),
        replayed(4),
        applied(4),
        ReplayEnded(),
        applied(5),
        StateChanged(EXACT, "replayed"),
    ),
    "batches out of order fill the gap": (
        *GAP,
        live(4),
        live(3),
        replayed(2),
        ReplayEnded(),
        applied(3),
        applied(4),
        applied(5),
        StateChanged(EXACT, "replayed"),
    ),
    "a batch that goes back, older than all that is remembered: the publisher is asked": (
        *LATE,
        live(6),
        applied(6),
        live(3),
        Count("duplicate"),
        RequestReplay(6),
        StateChanged(REPLAYING, "doubt"),
        replayed(6),
        ReplayEnded(),
        StateChanged(DEGRADED, "replayed"),
        live(7),
        applied(7),
    ),
    "an old batch while a replay is under way": (
        *LATE,
        live(7),
        Count("gap"),
        RequestReplay(5),
        StateChanged(REPLAYING, "gap"),
        live(3),
        replayed(5),
        replayed(6),
        applied(6),
        ReplayEnded(),
        applied(7),
        StateChanged(DEGRADED, "replayed"),
    ),
    # Restarts.
    "a restart: everything is forgotten, and the new one's beginning is asked for": (
        *RESTARTED,
        live(1, at=51.0),
        replayed(0, at=50.0),
        applied(0, at=50.0),
        ReplayEnded(),
        applied(1, at=51.0),
        StateChanged(EXACT, "replayed"),
    ),
    "a restart after a replay, with nothing live in between": (
        *ASKED,
        replayed(0),
        applied(0),
        replayed(1),
        applied(1),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
        live(0, at=50.0),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        StateChanged(REPLAYING, "restarted"),
    ),
    "a restart, and nobody answers": (
        *RESTARTED,
        ReplayFailed(),
        Count("replay_failed"),
        applied(0, at=50.0),
        StateChanged(EXACT, "replay_failed"),
    ),
    "a restart of what is known in part": (
        *LATE,
        live(0, at=50.0),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        StateChanged(REPLAYING, "restarted"),
        ReplayFailed(),
        Count("replay_failed"),
        applied(0, at=50.0),
        StateChanged(EXACT, "replay_failed"),
    ),
    "overlap and duplicates of what is known in part": (
        *LATE,
        live(5),
        live(5),
        Count("duplicate"),
        live(6),
        applied(6),
    ),
    "another source than the one known in part": (
        *LATE,
        SourceChanged(),
        Clear(),
        StateChanged(COLD, "source_changed"),
        *FRESH,
    ),
    "a restart whose clock was set back: the publisher is asked": (
        *RUNNING,
        live(0, at=-9.0),
        Count("duplicate"),
        RequestReplay(2),
        StateChanged(REPLAYING, "doubt"),
        ReplayEnded(),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        replayed(0, at=-9.0),
        applied(0, at=-9.0),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
        live(1, at=-8.0),
        applied(1, at=-8.0),
    ),
    "a restart while a replay is under way": (
        *GAP,
        live(6),
        live(0, at=50.0),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        replayed(0, at=50.0),
        applied(0, at=50.0),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
        live(1, at=51.0),
        applied(1, at=51.0),
    ),
    "a restart while a replay is under way, and nobody answers": (
        *GAP,
        live(6),
        live(0, at=50.0),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        live(1, at=51.0),
        ReplayFailed(),
        Count("replay_failed"),
        applied(0, at=50.0),
        applied(1, at=51.0),
        StateChanged(EXACT, "replay_failed"),
    ),
    "a restart unnoticed until the new one is further on": (
        *GAP,
        replayed(2, at=52.0),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        replayed(0, at=50.0),
        applied(0, at=50.0),
        replayed(1, at=51.0),
        applied(1, at=51.0),
        ReplayEnded(),
        RequestReplay(1),
        replayed(1, at=51.0),
        ReplayEnded(),
        Count("replay_failed"),
        Clear(),
        applied(5),
        StateChanged(DEGRADED, "replay_failed"),
    ),
    "connected again to the same publisher: nothing is lost": (
        *RUNNING,
        Subscribed(),
        RequestReplay(2),
        StateChanged(REPLAYING, "subscribed"),
        replayed(2),
        replayed(3),
        applied(3),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
        live(4),
        applied(4),
    ),
    "connected again to another publisher that is not as far": (
        *RUNNING,
        Subscribed(),
        RequestReplay(2),
        StateChanged(REPLAYING, "subscribed"),
        ReplayEnded(),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
        live(0, at=50.0),
        applied(0, at=50.0),
    ),
    "connected again, and nobody to ask": (
        *RUNNING,
        Subscribed(),
        RequestReplay(2),
        StateChanged(REPLAYING, "subscribed"),
        ReplayFailed(),
        Count("replay_failed"),
        Clear(),
        StateChanged(DEGRADED, "replay_failed"),
        live(9),
        applied(9),
    ),
    "connected again while a replay is under way: what is held comes with the new one": (
        *GAP,
        Subscribed(),
        RequestReplay(2),
        replayed(2),
        replayed(3),
        applied(3),
        replayed(4),
        applied(4),
        ReplayEnded(),
        RequestReplay(4),
        replayed(4),
        replayed(5),
        applied(5),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
    ),
    "connected again after all was given up: from the beginning": (
        *MUTE,
        Subscribed(),
        RequestReplay(0),
        StateChanged(REPLAYING, "subscribed"),
        replayed(0),
        applied(0),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
    ),
    "another source": (
        *RUNNING,
        SourceChanged(),
        Clear(),
        StateChanged(COLD, "source_changed"),
        replayed(3),
        ReplayEnded(),
        ReplayFailed(),
        *ASKED,
        replayed(0, at=50.0),
        applied(0, at=50.0),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
    ),
    "another source while a replay is under way": (
        *GAP,
        SourceChanged(),
        Clear(),
        StateChanged(COLD, "source_changed"),
        *FRESH,
    ),
    "another source before the first was reached, with its snapshot": (
        SnapshotLoaded(2, 2.0, True),
        SourceChanged(),
        Clear(),
        *FRESH,
    ),
    # Snapshots.
    "a snapshot: the replay goes on from it": (
        SnapshotLoaded(2, 2.0, True),
        Subscribed(),
        RequestReplay(2),
        StateChanged(REPLAYING, "subscribed"),
        replayed(2),
        replayed(3),
        applied(3),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
    ),
    "a snapshot of a part stays a part": (
        SnapshotLoaded(2, 2.0, False),
        Subscribed(),
        RequestReplay(2),
        StateChanged(REPLAYING, "subscribed"),
        replayed(2),
        ReplayEnded(),
        StateChanged(DEGRADED, "replayed"),
    ),
    "a snapshot of another publisher is forgotten": (
        SnapshotLoaded(2, 2.0, True),
        live(3, at=53.0),
        RequestReplay(2),
        StateChanged(REPLAYING, "first_batch"),
        replayed(2, at=52.0),
        Count("restart"),
        Clear(),
        RequestReplay(0),
        replayed(0, at=50.0),
        applied(0, at=50.0),
        replayed(1, at=51.0),
        applied(1, at=51.0),
        replayed(2, at=52.0),
        applied(2, at=52.0),
        ReplayEnded(),
        applied(3, at=53.0),
        StateChanged(EXACT, "replayed"),
    ),
    # What cannot be read.
    "a batch that cannot be read may have removed anything": (
        *RUNNING,
        Live(3, NONSENSE),
        Count("bad_batch"),
        Clear(),
        StateChanged(DEGRADED, "bad_batch"),
        live(4),
        applied(4),
        live(5, CLEARED),
        applied(5, CLEARED),
        StateChanged(EXACT, "cleared"),
    ),
    "a replayed batch that cannot be read": (
        *GAP,
        replayed(2),
        Replayed(3, NONSENSE),
        Count("bad_batch"),
        Clear(),
        replayed(4),
        applied(4),
        ReplayEnded(),
        applied(5),
        StateChanged(DEGRADED, "replayed"),
    ),
    "a batch that cannot be read, and goes back: the publisher is asked": (
        *RUNNING,
        Live(1, NONSENSE),
        Count("duplicate"),
        RequestReplay(2),
        StateChanged(REPLAYING, "doubt"),
        replayed(2),
        ReplayEnded(),
        StateChanged(EXACT, "replayed"),
    ),
    "an event that cannot be read is left out": (
        *RUNNING,
        live(3, ["BlockStored", [1, 1], None, [], 0], removed(100)),
        Count("bad_event"),
        applied(3, ["BlockStored", [1, 1], None, [], 0], removed(100)),
    ),
    # Without numbers.
    "batches without a number are applied, and are never all there is": (
        *FRESH,
        Unnumbered(payload(1)),
        applied(1),
        StateChanged(DEGRADED, "unnumbered"),
        Unnumbered(payload(2, CLEARED)),
        applied(2, CLEARED),
        Unnumbered(NONSENSE),
        Count("bad_batch"),
        Clear(),
        live(3),
        applied(3),
        Unnumbered(payload(4)),
        Clear(),
        applied(4),
    ),
    "a batch without a number before the connection is noticed": (
        Unnumbered(payload(1)),
        applied(1),
        StateChanged(DEGRADED, "unnumbered"),
    ),
    "a batch without a number while a replay is under way ends it": (
        *GAP,
        Unnumbered(payload(1)),
        Clear(),
        applied(1),
        StateChanged(DEGRADED, "unnumbered"),
        live(9),
        Clear(),
        applied(9),
    ),
}


def play(name: str) -> None:
    """Feed the script's events to a new stream.

    Raises:
        AssertionError: It answers otherwise; the message shows both scripts.
    """
    stream = EventStream(max_held_batches=4)
    actual: list[str] = []
    for line in SCRIPTS[name]:
        if isinstance(line, Event):
            actual.append(f">> {line!r}")
            actual.extend(f"<< {command!r}" for command in stream.handle(line))
    wanted = [f"{'>>' if isinstance(line, Event) else '<<'} {line!r}" for line in SCRIPTS[name]]
    if actual != wanted:
        at = next(
            (i for i, (a, w) in enumerate(zip(actual, wanted, strict=False)) if a != w),
            min(len(actual), len(wanted)),
        )
        shown = "\n".join(["expected:", *wanted[at : at + 4], "actual:", *actual[at : at + 4]])
        raise AssertionError(f"{name}, line {at}\n{shown}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    play(name)


@pytest.mark.parametrize("state", [REPLAYING, EXACT, DEGRADED])
def test_impossible_events_are_refused(state: StreamState) -> None:
    with pytest.raises(AssertionError, match=f"cannot happen while {state}"):
        EventStream(state=state).handle(SnapshotLoaded(1, 1.0, True))


def test_every_state_takes_every_event_but_snapshots() -> None:
    missing = [
        (state, event)
        for state in StreamState
        for event in get_args(Event)
        if (state, event) not in TABLE and event is not SnapshotLoaded
    ]
    assert missing == []


def test_last_row_of_each_event_is_unconditional() -> None:
    assert [key for key, rows in TABLE.items() if rows[-1][0] is not steps.always] == []


def test_live_batches_are_wanted_up_to_the_bounds() -> None:
    by_number = EventStream(max_held_batches=2, max_held_bytes=1 << 20)
    by_bytes = EventStream(max_held_bytes=2 * len(payload(5)))
    for stream in (by_number, by_bytes):
        wants = [stream.wants_live]
        for seq in (5, 6):
            stream.handle(live(seq))
            wants.append(stream.wants_live)
        assert wants == [True, True, False]


def test_a_snapshot_may_be_taken_while_what_is_known_is_true() -> None:
    stream = EventStream()
    positions = [stream.position]
    for event in (live(0), live(1), live(3), ReplayFailed(), Live(4, NONSENSE)):
        stream.handle(event)
        positions.append(stream.position)
    assert positions == [
        None,
        SnapshotLoaded(0, 0.0, True),
        SnapshotLoaded(1, 1.0, True),
        None,
        SnapshotLoaded(3, 3.0, False),
        None,
    ]


# A test of the tests: each row broken once, in each of these ways, turns a script red.


def _inverted(guard: steps.Guard) -> steps.Guard:
    return lambda memory, event: not guard(memory, event)


def _mutants(key: tuple[StreamState, type]) -> Iterator[tuple[str, tuple[Row, ...]]]:
    rows = TABLE[key]
    for index, (guard, actions, target, reason) in enumerate(rows):
        name = f"row {index} {getattr(guard, '__name__', '')}"

        def replaced(*row: Row, at: int = index) -> tuple[Row, ...]:
            return (*rows[:at], *row, *rows[at + 1 :])

        yield f"{name} removed", replaced()
        if guard is not steps.always:
            yield f"{name}, guard inverted", replaced((_inverted(guard), actions, target, reason))
            yield f"{name}, guard dropped", replaced((steps.always, actions, target, reason))
        for other in StreamState:
            if other is not target:
                yield f"{name} to {other}", replaced((guard, actions, other, reason))
        for at in range(len(actions)):
            fewer = (*actions[:at], *actions[at + 1 :])
            yield f"{name} without action {at}", replaced((guard, fewer, target, reason))


@pytest.mark.parametrize("key", TABLE, ids=lambda key: f"{key[0]}+{key[1].__name__}")
def test_broken_rows_are_noticed(
    monkeypatch: pytest.MonkeyPatch, key: tuple[StreamState, type]
) -> None:
    unnoticed = []
    for name, rows in _mutants(key):
        monkeypatch.setitem(TABLE, key, rows)
        if not any(_is_red(one) for one in SCRIPTS):
            unnoticed.append(name)
    assert not unnoticed, "\n".join(unnoticed)


def _is_red(name: str) -> bool:
    try:
        play(name)
    except (AssertionError, ValueError):
        return True
    return False
