"""What a reader must do with requests and streams: a conversation for each row of its table."""

from typing import Final

import msgspec

from support.wire_reader_scripts import (
    ACCEPTED,
    AGAIN,
    BEGUN,
    DIGEST,
    FORGOING,
    LEASE,
    OPENED,
    PEER,
    READY,
    TURN,
    out_of_turn,
)
from support.wire_reader_world import (
    SESSION,
    asks,
    hears,
    loses,
    waits,
)
from support.wire_scripts import Said, Script, script
from transload_abi.wire import auth, codec
from transload_abi.wire import messages as m
from transload_abi.wire.reader_events import (
    LeaseGone,
    Opened,
    RequestFailed,
    ShareEnded,
    StillHeld,
    StreamFailed,
    StreamReady,
)
from transload_abi.wire.session_events import SessionEnded


def asked(name: str, request: m.Message, *more: object) -> tuple[object, ...]:
    """A request about `h1` after it was opened."""
    return (*OPENED, asks(name, "h1"), request, Said(2), *more)


REQUESTED: Final = (
    script("opened", *OPENED, *AGAIN, ends="open"),
    *(
        script(
            f"a lease that is not held: {name}",
            *lines,
            hears(m.Expired(id_, "expired")),
            LeaseGone(id_, "h1", "expired"),
            asks("open", "h1", "l2", "r1"),
            m.Open(id_ + 1, "h1", "l2", "r1"),
            Said(id_ + 1),
            ends="open",
        )
        for name, lines, id_ in (
            ("open", OPENED[:-3], 1),
            ("confirm", asked("confirm", m.Confirm(2, "h1")), 2),
            ("renew", asked("renew", m.Renew(2, "h1")), 2),
            ("done", asked("done", m.Done(2, "h1")), 2),
            ("release", asked("release", m.Release(2, "h1")), 2),
        )
    ),
    script(
        "an open that cannot be served",
        *OPENED[:-3],
        hears(m.Error("too_many", "no share is left", 1)),
        RequestFailed(1, "h1", "too_many", "no share is left"),
        asks("open", "h1", "l1", "r2"),
        m.Open(2, "h1", "l1", "r2"),
        Said(2),
        ends="open",
    ),
    script(
        "confirmed, then renewed: the time counts from the question",
        *asked("confirm", m.Confirm(2, "h1"), waits(2.0), hears(m.Confirmed(2, 29_000))),
        StillHeld(2, "h1", 30.0),
        asks("renew", "h1"),
        m.Renew(3, "h1"),
        Said(3),
        hears(m.Confirmed(3, 30_000)),
        StillHeld(3, "h1", 33.0),
        ends="open",
    ),
    *(
        script(
            f"{name}: the handoff is closed at once",
            *asked(name, request, hears(m.Ended(2, 1))),
            ShareEnded(2, "h1", 1),
            asks("open", "h1", "l1", "r1"),
            m.Open(3, "h1", "l1", "r1"),
            Said(3),
            ends="open",
        )
        for name, request in (("done", m.Done(2, "h1")), ("release", m.Release(2, "h1")))
    ),
    *(
        script(
            f"{type(answer).__name__} {answer.id} to what was not asked so",
            *asked("confirm", m.Confirm(2, "h1")),
            hears(answer),
            m.Bye(f"{what}: {TURN}"),
            RequestFailed(2, "h1", "", f"{PEER}: {what}: {TURN}"),
            SessionEnded("peer_fault", "out_of_turn", f"{PEER}: {what}: {TURN}"),
            ends="ended",
        )
        for answer, what in (
            (msgspec.structs.replace(LEASE, id=2), "lease"),
            (m.Ended(2, 0), "ended"),
            (m.Confirmed(3, 5), "confirmed"),
            (m.Confirmed(1, 5), "confirmed"),
            (m.Expired(3, "expired"), "expired"),
            (m.Error("internal", "", 3), "error"),
            (m.ReadEnd(2, 0), "readend"),
            (m.Cancelled(2), "cancelled"),
        )
    ),
    script(
        "an answer that does not come",
        *asked("confirm", m.Confirm(2, "h1")),
        waits(19.9),
        waits(0.1),
        m.Bye("no answer for 20 s"),
        RequestFailed(2, "h1", "", f"{PEER}: no answer for 20 s"),
        SessionEnded("overdue", "", f"{PEER}: no answer for 20 s"),
        ends="ended",
    ),
    script(
        "idle: counted from when it is open",
        *ACCEPTED,
        waits(5.0),
        *READY[-2:],
        waits(199.9),
        waits(0.1),
        m.Bye("idle"),
        SessionEnded("idle"),
        ends="ended",
    ),
    script(
        "idle, once the lease that is open has expired",
        *OPENED[:-2],
        hears(msgspec.structs.replace(LEASE, expires_ms=300_000)),
        Opened(1, "h1", msgspec.structs.replace(LEASE, expires_ms=300_000), 300.0),
        waits(298.9),
        waits(0.2),
        m.Bye("idle"),
        SessionEnded("idle"),
        ends="ended",
    ),
)

FORGONE: Final = (
    script(
        "forgone without a descriptor",
        *FORGOING,
        asks("forgo", "h1", "l1"),
        m.Forgo(1, "h1", "l1"),
        Said(1),
        hears(m.Ended(1, 0)),
        ShareEnded(1, "h1", 0),
        *AGAIN,
        ends="forgoing",
        descriptor=None,
    ),
    script(
        "forgone too late",
        *FORGOING,
        asks("forgo", "h1", "l1"),
        m.Forgo(1, "h1", "l1"),
        Said(1),
        hears(m.Expired(1, "expired")),
        LeaseGone(1, "h1", "expired"),
        *AGAIN,
        ends="forgoing",
        descriptor=None,
    ),
    script(
        "a forgo that cannot be served",
        *FORGOING,
        asks("forgo", "h1", "l1"),
        m.Forgo(1, "h1", "l1"),
        Said(1),
        hears(m.Error("internal", "oh", 1)),
        RequestFailed(1, "h1", "internal", "oh"),
        *AGAIN,
        ends="forgoing",
        descriptor=None,
    ),
    *(
        script(
            f"{what} to nothing, without a descriptor",
            *FORGOING,
            hears(answer),
            *out_of_turn(what, "forgoing"),
            ends="ended",
            descriptor=None,
        )
        for what, answer in (
            ("ended", m.Ended(1, 0)),
            ("expired", m.Expired(1, "expired")),
            ("error", m.Error("internal", "", 1)),
        )
    ),
    script(
        "an answer to a forgo that does not come",
        *FORGOING,
        asks("forgo", "h1", "l1"),
        m.Forgo(1, "h1", "l1"),
        Said(1),
        waits(20.0),
        m.Bye("no answer for 20 s"),
        RequestFailed(1, "h1", "", f"{PEER}: no answer for 20 s"),
        SessionEnded("overdue", "", f"{PEER}: no answer for 20 s"),
        ends="ended",
        descriptor=None,
    ),
    script(
        "idle without a descriptor",
        *BEGUN,
        waits(5.0),
        *FORGOING[2:],
        waits(199.9),
        waits(0.1),
        m.Bye("idle"),
        SessionEnded("idle"),
        ends="ended",
        descriptor=None,
    ),
)


def _attach(stream: int) -> bytes:
    key = auth.session_key(b"", DIGEST)
    return codec.encode(m.Attach(SESSION, stream, auth.stream_proof(key, SESSION, stream)))


ASKED_STREAM: Final = (asks("attach", 1), Said(_attach(1)))
STREAM: Final = (*ASKED_STREAM, hears(m.Attached(1), 1), StreamReady(1))

STREAMS: Final = (
    script("a data stream", *READY, *STREAM, ends="open"),
    script(
        "another stream's number",
        *READY,
        *ASKED_STREAM,
        hears(m.Attached(2), 1),
        m.Bye(f"streamattached: {TURN}"),
        StreamFailed(1, f"{PEER}: streamattached: {TURN}"),
        out_of_turn("streamattached", "open")[1],
        ends="ended",
    ),
    script(
        "attached twice",
        *READY,
        *STREAM,
        hears(m.Attached(1), 1),
        m.Bye(f"streamattached: {TURN}"),
        StreamFailed(1, f"{PEER}: streamattached: {TURN}"),
        out_of_turn("streamattached", "open")[1],
        ends="ended",
    ),
    script(
        "a stream that is refused, and ends",
        *READY,
        *ASKED_STREAM,
        hears(m.Error("bad_proof", "who?"), 1),
        StreamFailed(1, "bad_proof: who?"),
        loses(1),
        hears(m.Attached(1), 1),
        waits(20.0),
        ends="open",
    ),
    script(
        "a stream that ends before it is attached",
        *READY,
        *ASKED_STREAM,
        loses(1),
        StreamFailed(1, "its connection has ended"),
        ends="open",
    ),
    script(
        "a stream that ends",
        *READY,
        *STREAM,
        loses(1),
        StreamFailed(1, "its connection has ended"),
        loses(1),
        ends="open",
    ),
    script(
        "a stream that nobody answers",
        *READY,
        *ASKED_STREAM,
        waits(20.0),
        m.Bye("no answer for 20 s"),
        StreamFailed(1, f"{PEER}: no answer for 20 s"),
        SessionEnded("overdue", "", f"{PEER}: no answer for 20 s"),
        ends="ended",
    ),
    script(
        "other messages on a data stream",
        *READY,
        *STREAM,
        hears(m.Bye(), 1),
        m.Bye("stream 1: expected attached or data"),
        StreamFailed(1, f"{PEER}: stream 1: expected attached or data"),
        SessionEnded("peer_fault", "out_of_turn", f"{PEER}: stream 1: expected attached or data"),
        ends="ended",
    ),
)

SCRIPTS: Final[tuple[Script, ...]] = (*REQUESTED, *FORGONE, *STREAMS)
