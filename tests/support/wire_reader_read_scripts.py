"""What a reader must do with reads: a conversation for each row of its table."""

from typing import Final

from support.wire_reader_request_scripts import STREAM
from support.wire_reader_scripts import (
    AGAIN,
    OPENED,
    PEER,
    READY,
    TURN,
    fault,
)
from support.wire_reader_world import (
    Bytes,
    asks,
    begins_data,
    hears,
    hears_bytes,
    hears_data,
    loses,
    waits,
)
from support.wire_scripts import Said, Script, script
from transload_abi.wire import frames
from transload_abi.wire import messages as m
from transload_abi.wire.reader_events import (
    LeaseGone,
    ReadComplete,
    ReadFailed,
    ReadFailure,
    RequestFailed,
    StreamFailed,
)
from transload_abi.wire.session_events import SessionEnded

READ: Final = m.Read(2, "h1", "g", ((0, 3),))
ASKED: Final = (*OPENED, asks("read", READ, 6), READ, Said(2))
ON_ONE: Final = m.Read(2, "h1", "g", ((0, 3),), stream=1)
ASKED_ON_ONE: Final = (*OPENED, *STREAM, asks("read", ON_ONE, 6), ON_ONE, Said(2))
SUMMED: Final = m.Read(2, "h1", "g", ((0, 3),), checksums=True)
ASKED_SUMMED: Final = (*OPENED, asks("read", SUMMED, 6), SUMMED, Said(2))
UNASKED: Final = "data.read: data of a read that was never asked for"
ANSWERS: Final[tuple[tuple[str, m.Message, ReadFailure, str], ...]] = (
    (
        "expired",
        m.Expired(2, "other_lease"),
        "expired",
        f"{PEER} does not hold the lease: other_lease",
    ),
    ("refused", m.Error("bad_read", "no such", 2), "refused", f"{PEER} says bad_read: no such"),
)
SUM: Final = frames.checksum_of(b"abcdef")


def data(offset: int, body: bytes) -> Bytes:
    return Bytes(2, offset, body)


def failed(why: ReadFailure, reason: str, *, is_told: bool = True) -> tuple[object, ...]:
    """The read's outcome; the holder is told, unless it knows."""
    outcome = ReadFailed(2, "h1", why, reason)
    return (m.Cancel(2), outcome) if is_told else (outcome,)


def request(id_: int) -> tuple[object, ...]:
    """One more request, to see where the conversation has led."""
    return (*AGAIN[:1], m.Forgo(id_, "h8", "l8"), Said(id_))


# The holder's word of a read that was given up; once, and data before it are dropped.
GIVEN_UP: Final = (
    hears_data(2, 0, b"abcdef"),
    hears(m.Cancelled(2)),
    hears_data(2, 0, b"abcdef"),
    *request(3),
)

COMPLETE: Final = (
    script(
        "all in order",
        *ASKED,
        hears_data(2, 0, b"abcd"),
        data(0, b"abcd"),
        hears_data(2, 4, b"ef"),
        data(4, b"ef"),
        hears(m.ReadEnd(2, 6)),
        ReadComplete(2),
        *request(3),
        ends="open",
    ),
    script(
        "in any order",
        *ASKED,
        hears_data(2, 4, b"ef"),
        data(4, b"ef"),
        hears_data(2, 0, b"ab"),
        data(0, b"ab"),
        hears_data(2, 2, b"cd"),
        data(2, b"cd"),
        hears(m.ReadEnd(2, 6)),
        ReadComplete(2),
        ends="open",
    ),
    script(
        "the end overtakes the data",
        *ASKED_ON_ONE,
        hears(m.ReadEnd(2, 6)),
        hears_data(2, 0, b"abcd", 1),
        data(0, b"abcd"),
        hears_data(2, 4, b"ef", 1),
        data(4, b"ef"),
        ReadComplete(2),
        *request(3),
        ends="open",
    ),
    script(
        "data overtake the end",
        *ASKED_ON_ONE,
        hears_data(2, 0, b"abcdef", 1),
        data(0, b"abcdef"),
        loses(1),
        StreamFailed(1, "its connection has ended"),
        hears(m.ReadEnd(2, 6)),
        ReadComplete(2),
        ends="open",
    ),
    script(
        "nothing to read",
        *OPENED,
        asks("read", READ, 0),
        READ,
        Said(2),
        hears(m.ReadEnd(2, 0)),
        ReadComplete(2),
        ends="open",
    ),
    script(
        "checksums",
        *ASKED_SUMMED,
        hears_data(2, 0, b"abcdef", 0, SUM),
        data(0, b"abcdef"),
        hears(m.ReadEnd(2, 6)),
        ReadComplete(2),
        ends="open",
    ),
    script(
        "in place",
        *ASKED,
        begins_data(2, 1, 5),
        asks("received", 0, b"bc"),
        asks("received", 0, b"def"),
        hears_data(2, 0, b"a"),
        data(0, b"a"),
        hears(m.ReadEnd(2, 6)),
        ReadComplete(2),
        ends="open",
    ),
)

SPOILED: Final = (
    script(
        "beyond the end",
        *ASKED,
        hears_data(2, 4, b"efg"),
        *failed("bad_data", f"{PEER} sent bytes 4 to 7 on stream 0: beyond the read's end"),
        *GIVEN_UP,
        ends="open",
    ),
    script(
        "twice",
        *ASKED,
        hears_data(2, 0, b"abcd"),
        data(0, b"abcd"),
        hears_data(2, 3, b"de"),
        *failed("bad_data", f"{PEER} sent bytes 3 to 5 on stream 0: some of them twice"),
        *GIVEN_UP,
        ends="open",
    ),
    script(
        "on another stream",
        *ASKED_ON_ONE,
        hears_data(2, 0, b"abcdef"),
        *failed(
            "bad_data",
            f"{PEER} sent bytes 0 to 6 on stream 0: not the stream asked for, or no checksum",
        ),
        *GIVEN_UP,
        ends="open",
    ),
    script(
        "without the checksum",
        *ASKED_SUMMED,
        hears_data(2, 0, b"abcdef"),
        *failed(
            "bad_data",
            f"{PEER} sent bytes 0 to 6 on stream 0: not the stream asked for, or no checksum",
        ),
        *GIVEN_UP,
        ends="open",
    ),
    script(
        "with a wrong checksum",
        *ASKED,
        hears_data(2, 0, b"abcdef", 0, SUM + 1),
        *failed("bad_data", f"{PEER} sent a frame with a wrong checksum"),
        *GIVEN_UP,
        ends="open",
    ),
    script(
        "in too many pieces apart",
        *OPENED,
        asks("read", READ, 200),
        READ,
        Said(2),
        *(line for at in range(0, 128, 2) for line in (hears_data(2, at, b"x"), data(at, b"x"))),
        hears_data(2, 1, b"y"),
        data(1, b"y"),
        hears_data(2, 130, b"x"),
        data(130, b"x"),
        hears_data(2, 140, b"x"),
        *failed("bad_data", f"{PEER} sent bytes 140 to 141 on stream 0: in too many pieces apart"),
        *GIVEN_UP,
        ends="open",
    ),
    script(
        "ended too early",
        *ASKED,
        hears_data(2, 0, b"abcd"),
        data(0, b"abcd"),
        hears(m.ReadEnd(2, 6)),
        *failed("bad_data", f"{PEER} ended a read of 6 bytes after 4, and says 6", is_told=False),
        *request(3),
        ends="open",
    ),
    script(
        "of another size",
        *ASKED_ON_ONE,
        hears(m.ReadEnd(2, 5)),
        *failed("bad_data", f"{PEER} ended a read of 6 bytes after 0, and says 5", is_told=False),
        hears_data(2, 0, b"abcdef", 1),
        *request(3),
        ends="open",
    ),
    script(
        "all came, and another size is said",
        *ASKED,
        hears_data(2, 0, b"abcdef"),
        data(0, b"abcdef"),
        hears(m.ReadEnd(2, 7)),
        *failed("bad_data", f"{PEER} ended a read of 6 bytes after 6, and says 7", is_told=False),
        ends="open",
    ),
    script(
        "data that nobody asked for",
        *OPENED,
        hears_data(2, 0, b"abcdef"),
        *fault("out_of_turn", UNASKED),
        ends="ended",
    ),
    script(
        "data of a request that is no read",
        *READY,
        asks("open", "h1", "l1", "r1"),
        m.Open(1, "h1", "l1", "r1"),
        Said(1),
        begins_data(1, 0, 6),
        m.Bye(UNASKED),
        RequestFailed(1, "h1", "", f"{PEER}: {UNASKED}"),
        SessionEnded("peer_fault", "out_of_turn", f"{PEER}: {UNASKED}"),
        ends="ended",
    ),
)

FAILED: Final = (
    *(
        script(
            f"{name}, asked about again",
            *ASKED,
            hears(answer),
            *failed(why, reason, is_told=False),
            hears_data(2, 0, b"abcdef"),
            asks("open", "h1", "l2", "r1") if why == "expired" else asks("confirm", "h1"),
            m.Open(3, "h1", "l2", "r1") if why == "expired" else m.Confirm(3, "h1"),
            Said(3),
            ends="open",
        )
        for name, answer, why, reason in ANSWERS
    ),
    script(
        "the lease is gone, as two answers say",
        *ASKED,
        asks("confirm", "h1"),
        m.Confirm(3, "h1"),
        Said(3),
        hears(m.Expired(2, "expired")),
        *failed("expired", f"{PEER} does not hold the lease: expired", is_told=False),
        hears(m.Expired(3, "expired")),
        LeaseGone(3, "h1", "expired"),
        ends="open",
    ),
    *(
        script(
            f"given up; the holder says {type(answer).__name__}",
            *ASKED,
            asks("cancel", 2),
            *failed("cancelled", f"{PEER}: given up"),
            asks("cancel", 2),
            hears_data(2, 0, b"abcdef"),
            hears(answer),
            hears(answer),
            *fault("out_of_turn", f"{type(answer).__name__.lower()}: {TURN}"),
            ends="ended",
        )
        for answer in (
            m.Cancelled(2),
            m.ReadEnd(2, 6),
            m.Expired(2, "ended"),
            m.Error("internal", "", 2),
        )
    ),
    script(
        "given up within a frame: the rest of it is dropped",
        *ASKED,
        begins_data(2, 0, 6),
        asks("received", 0, b"ab"),
        asks("cancel", 2),
        *failed("cancelled", f"{PEER}: given up"),
        hears_bytes(b"cdef"),
        hears(m.Cancelled(2)),
        *request(3),
        ends="open",
    ),
    script(
        "given up, and the holder does not say how it ended",
        *ASKED,
        asks("cancel", 2),
        *failed("cancelled", f"{PEER}: given up"),
        waits(20.0),
        m.Bye("no answer for 20 s"),
        SessionEnded("overdue", "", f"{PEER}: no answer for 20 s"),
        ends="ended",
    ),
    script(
        "no byte for long",
        *ASKED,
        waits(29.0),
        hears_data(2, 0, b"abcd"),
        data(0, b"abcd"),
        waits(29.0),
        waits(1.0),
        *failed("stalled", f"{PEER}: no byte of a read for 30 s"),
        *GIVEN_UP,
        ends="open",
    ),
    script(
        "all bytes, and no word",
        *ASKED,
        hears_data(2, 0, b"abcdef"),
        data(0, b"abcdef"),
        waits(30.0),
        *failed("stalled", f"{PEER}: no byte of a read for 30 s"),
        ends="open",
    ),
    script(
        "too slow altogether",
        *ASKED,
        *(
            line
            for at in range(4)
            for line in (waits(24.0), hears_data(2, at, b"x"), data(at, b"x"))
        ),
        waits(3.9),
        waits(0.1),
        *failed("overdue", f"{PEER}: not all of a read within 100 s"),
        ends="open",
    ),
    script(
        "its stream ends",
        *ASKED_ON_ONE,
        hears_data(2, 0, b"abcd", 1),
        data(0, b"abcd"),
        loses(1),
        *failed("stream_lost", "the data stream 1 has ended"),
        StreamFailed(1, "its connection has ended"),
        hears(m.Error("bad_read", "its stream has ended", 2)),
        *request(3),
        ends="open",
    ),
    script(
        "its stream ends, and the holder had sent all",
        *ASKED_ON_ONE,
        hears(m.ReadEnd(2, 6)),
        hears_data(2, 0, b"abcd", 1),
        data(0, b"abcd"),
        loses(1),
        *failed("stream_lost", "the data stream 1 has ended", is_told=False),
        StreamFailed(1, "its connection has ended"),
        *request(3),
        ends="open",
    ),
    script(
        "ended twice",
        *ASKED_ON_ONE,
        hears(m.ReadEnd(2, 6)),
        hears(m.ReadEnd(2, 6)),
        m.Bye(f"readend: {TURN}"),
        ReadFailed(2, "h1", "ended", f"{PEER}: readend: {TURN}"),
        StreamFailed(1, f"{PEER}: readend: {TURN}"),
        SessionEnded("peer_fault", "out_of_turn", f"{PEER}: readend: {TURN}"),
        ends="ended",
    ),
    script(
        "the session ends",
        *ASKED,
        loses(),
        ReadFailed(2, "h1", "ended", f"{PEER} is gone: its control stream ended without a bye"),
        SessionEnded("peer_lost", "", f"{PEER} is gone: its control stream ended without a bye"),
        hears_data(2, 0, b"abcdef"),
        ends="ended",
    ),
)

SCRIPTS: Final[tuple[Script, ...]] = (*COMPLETE, *SPOILED, *FAILED)
