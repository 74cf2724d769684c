"""Plays one publisher's scripts, and tests that they notice each row of the table."""

from collections.abc import Iterator
from typing import get_args

import pytest

from support.kv_streams.gaps import GAPS
from support.kv_streams.joining import JOINING, SNAPSHOTS
from support.kv_streams.odd_batches import GOING_BACK, UNNUMBERED, UNREADABLE
from support.kv_streams.restarts import RESTARTS
from support.kv_streams.words import DEGRADED, EXACT, NONSENSE, REPLAYING, live, payload
from transload_router.core.kv_events import steps
from transload_router.core.kv_events.messages import (
    Event,
    Live,
    ReplayFailed,
    SnapshotLoaded,
    StreamState,
)
from transload_router.core.kv_events.stream import TABLE, EventStream, Row

SCRIPTS = JOINING | SNAPSHOTS | GAPS | GOING_BACK | RESTARTS | UNREADABLE | UNNUMBERED


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
