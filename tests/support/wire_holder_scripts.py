"""What a holder must do: a conversation for each row of its table."""

from typing import Final

from support.wire_holder_world import (
    NONCE,
    READER_NONCE,
    SESSION,
    TABLES,
    ZEROS,
    ends,
    fails,
    hears,
    hears_bytes,
    hears_descriptor,
    joins,
    loses,
    may_send,
    proves,
    sent,
    waits,
)
from support.wire_scripts import Descriptor, On, Said, Script, script
from transload_abi.wire import codec
from transload_abi.wire import messages as m
from transload_abi.wire.holder_state import ReaderAccepted, Serve
from transload_abi.wire.ledger import Freed
from transload_abi.wire.session_events import SessionEnded

HELLO: Final = m.Hello((1,), "D", "g7", READER_NONCE, 65536, ("b", "c"))
WELCOME: Final = m.Welcome(1, "P", "g1", SESSION, NONCE, ZEROS, 8192, 2, ("b",))
INTRODUCED: Final = (hears(HELLO), WELCOME)
PROVEN: Final = (*INTRODUCED, hears(m.Prove(ZEROS)))
ACCEPTED: Final = (
    *PROVEN,
    hears_descriptor(b"same"),
    m.Accept("identical"),
    Descriptor(b"ours"),
    ReaderAccepted(HELLO, "identical"),
)
LEASE: Final = m.Lease(1, 100, TABLES, 2, 2, 30_000)
OPENED: Final = (*ACCEPTED, hears(m.Open(1, "h1", "l-h1", "r1")), LEASE)
READ: Final = m.Read(2, "h1", "g", ((0, 3),))
SERVED: Final = (*OPENED, hears(READ), Serve(2, "l-h1", READ, 30))
STATES: Final[dict[str, tuple[object, ...]]] = {
    "hello": (),
    "proof": INTRODUCED,
    "descriptor": PROVEN,
    "forgo": (*PROVEN, hears(m.Forgo(1, "h9", "l")), m.Expired(1, "unknown")),
    "open": OPENED,
}


def out_of_turn(what: str, state: str) -> tuple[object, ...]:
    """What a session says that ends because something may not come."""
    reason = f"{what}: it may not come while a {state} is waited for"
    return m.Error("out_of_turn", reason), SessionEnded("peer_fault", "out_of_turn", reason)


def fault(code: m.Code, reason: str) -> tuple[object, ...]:
    """What a session says that ends for another fault of the reader's."""
    return m.Error(code, reason), SessionEnded("peer_fault", code, reason)


# A request after the conversation, so that each script sees where it has led.
AGAIN: Final = (hears(m.Confirm(90, "h1")), m.Confirmed(90, 30_000))
NOT_OPEN: Final = "handoff: the handoff is not open in this session"
NOT_HELD: Final[tuple[tuple[str, str, m.Gone], ...]] = (
    ("h9", "l", "unknown"),
    ("h1", "l-h0", "other_lease"),
)
REQUESTS: Final = (
    m.Open(1, "h1", "l-h1", "r1"),
    m.Read(1, "h1", "g", ((0, 1),)),
    m.Confirm(1, "h1"),
    m.Renew(1, "h1"),
    m.Done(1, "h1"),
    m.Release(1, "h1"),
    m.Forgo(1, "h1", "l-h1"),
)

OPENING: Final = (
    script("introduced", *INTRODUCED, hears(m.Prove(ZEROS)), ends="descriptor"),
    script(
        "no version in common",
        hears(m.Hello((2, 3), "D", "g7", READER_NONCE, 65536)),
        *fault("bad_version", "hello.versions: expected 1 among (2, 3)"),
        ends="ended",
    ),
    script(
        "the right token",
        hears(HELLO),
        WELCOME,
        proves(b"secret"),
        hears_descriptor(b"same"),
        m.Accept("identical"),
        Descriptor(b"ours"),
        ReaderAccepted(HELLO, "identical"),
        ends="open",
        token=b"secret",
    ),
    script(
        "another token",
        hears(HELLO),
        WELCOME,
        proves(b"guess"),
        *fault("bad_proof", "prove.proof: the peer does not know this side's token"),
        hears_descriptor(b"same"),
        ends="ended",
        token=b"secret",
    ),
    script("the blocks convert", *ACCEPTED, ends="open"),
    script(
        "the blocks never convert",
        *PROVEN,
        hears_descriptor(b"other"),
        m.Refuse("groups[0]", "2 layers against 3"),
        SessionEnded("refused", "", "groups[0]: 2 layers against 3"),
        ends="ended",
    ),
    script(
        "a descriptor that is none",
        *PROVEN,
        hears_descriptor(b"?"),
        *fault("bad_descriptor", "descriptor: not a descriptor"),
        ends="ended",
    ),
    script(
        "a router forgoes without a descriptor, each time with a new wait",
        *PROVEN,
        waits(9.0),
        hears(m.Forgo(1, "h1", "l-h1")),
        m.Ended(1, 0),
        Freed("h1", "l-h1", "forgone", 0),
        waits(9.0),
        hears(m.Forgo(2, "h1", "l-h1")),
        m.Expired(2, "ended"),
        waits(9.0),
        hears_descriptor(b"same"),
        *fault("bad_frame", "descriptor: none may come now"),
        ends="ended",
    ),
    script(
        "a request before the descriptor",
        *PROVEN,
        hears(m.Open(1, "h1", "l-h1", "r1")),
        *out_of_turn("open", "descriptor"),
        ends="ended",
    ),
    script(
        "a proof before hello", hears(m.Prove(ZEROS)), *out_of_turn("prove", "hello"), ends="ended"
    ),
    script("hello twice", *INTRODUCED, hears(HELLO), *out_of_turn("hello", "proof"), ends="ended"),
    script(
        "a descriptor twice",
        *ACCEPTED,
        hears_descriptor(b"same"),
        *fault("bad_frame", "descriptor: none may come now"),
        ends="ended",
    ),
    *(
        script(
            f"a data stream while a {state} is waited for",
            *STATES[state],
            joins(1),
            *(
                On(1, m.Error("out_of_turn", text))
                for text in (
                    ("attach.session: no such session",)
                    if state == "hello"
                    else ("attach.session: the session is not open",)
                )
            ),
            ends="no session" if state == "hello" else state,
        )
        for state in ("hello", "proof", "descriptor", "forgo")
    ),
)

ENDS: Final = tuple(
    each
    for state, lines in STATES.items()
    if state != "hello"
    for each in (
        script(
            f"bye at {state}",
            *lines,
            hears(m.Bye("enough")),
            SessionEnded("peer_bye", "", "enough"),
            hears(m.Bye()),
            ends="ended",
        ),
        script(
            f"lost at {state}",
            *lines,
            loses(),
            SessionEnded("peer_lost", "", "the control stream ended without a bye"),
            ends="ended",
        ),
        script(
            f"broken at {state}",
            *lines,
            hears_bytes(bytes(8)),
            *fault("bad_frame", "frame: expected kind 1, 2 or 3, got 0"),
            hears(m.Bye()),
            ends="ended",
        ),
        script(
            f"ended by the owner at {state}",
            *lines,
            ends("closing"),
            m.Bye("closing"),
            SessionEnded("asked", "", "closing"),
            ends="ended",
        ),
    )
)

OVERDUE: Final = (
    *(
        script(
            f"no {state} in time",
            *STATES[state],
            waits(9.9),
            waits(0.1),
            m.Bye(f"expected a {state} within 10 s"),
            SessionEnded("overdue", "", f"expected a {state} within 10 s"),
            ends="ended",
        )
        for state in ("proof", "descriptor", "forgo")
    ),
    script("nothing at all", waits(10.0), hears(HELLO), ends="no session"),
    script(
        "the reader takes no data",
        *SERVED,
        may_send(2),
        Said(True),
        waits(19.9),
        waits(0.1),
        m.Bye("the reader took no data for 20 s"),
        SessionEnded("overdue", "", "the reader took no data for 20 s"),
        ends="ended",
    ),
    script(
        "idle: the lease has expired meanwhile",
        *OPENED,
        waits(30.0),
        Freed("h1", "l-h1", "expired", 0),
        Freed("h2", "l-h2", "expired", 0),
        waits(169.9),
        waits(0.1),
        m.Bye("idle"),
        SessionEnded("idle"),
        ends="ended",
    ),
)

ENOUGH: Final[tuple[object, ...]] = tuple(
    line
    for number in range(64)
    for line in (
        hears(m.Read(10 + number, "h1", "g", ((0, 1),))),
        Serve(10 + number, "l-h1", m.Read(10 + number, "h1", "g", ((0, 1),)), 10),
    )
)

REQUESTED: Final = (
    *(
        script(
            f"{type(request).__name__} with an id that does not ascend",
            *OPENED,
            hears(request),
            *fault("out_of_turn", "id: expected more than 1, got 1"),
            ends="ended",
        )
        for request in REQUESTS
    ),
    script("opened", *OPENED, *AGAIN, ends="open"),
    script(
        "opened twice: the same lease, the same reader",
        *OPENED,
        hears(m.Open(2, "h1", "l-h1", "r1")),
        m.Lease(2, 100, TABLES, 2, 2, 30_000),
        ends="open",
    ),
    script(
        "opened for another reader of the same session",
        *OPENED,
        hears(m.Open(2, "h1", "l-h1", "r2")),
        m.Error("out_of_turn", "open.reader: open in this session for another reader", 2),
        *AGAIN,
        ends="open",
    ),
    *(
        script(
            f"a lease that is not held: {why}",
            *ACCEPTED,
            hears(m.Open(1, handoff, lease, "r1")),
            m.Expired(1, why),
            hears(m.Open(2, "h2", "l-h2", "r1")),
            m.Lease(2, 100, TABLES, 1, 1, 30_000),
            ends="open",
        )
        for handoff, lease, why in NOT_HELD
    ),
    script(
        "more readers than it is for",
        *ACCEPTED,
        hears(m.Open(1, "h2", "l-h2", "r1")),
        m.Lease(1, 100, TABLES, 1, 1, 30_000),
        hears(m.Done(2, "h2")),
        m.Ended(2, 0),
        Freed("h2", "l-h2", "ended", 1),
        hears(m.Done(3, "h2")),
        m.Expired(3, "ended"),
        hears(m.Open(4, "h2", "l-h2", "r1")),
        m.Expired(4, "ended"),
        ends="open",
    ),
    *(
        script(
            f"{type(request).__name__} of what was never opened",
            *ACCEPTED,
            hears(request),
            m.Error("out_of_turn", NOT_OPEN, 1),
            hears(m.Open(2, "h1", "l-h1", "r1")),
            m.Lease(2, 100, TABLES, 2, 2, 30_000),
            ends="open",
        )
        for request in REQUESTS[1:6]
    ),
    *(
        script(
            f"{name} of what has expired, and once more",
            *OPENED,
            waits(30.0),
            Freed("h1", "l-h1", "expired", 0),
            Freed("h2", "l-h2", "expired", 0),
            hears(first),
            m.Expired(2, "expired"),
            hears(second),
            m.Expired(3, "expired"),
            ends="open",
        )
        for name, first, second in (
            ("read", READ, m.Read(3, "h1", "g", ((0, 3),))),
            ("confirm", m.Confirm(2, "h1"), m.Confirm(3, "h1")),
            ("renew", m.Renew(2, "h1"), m.Renew(3, "h1")),
            ("done", m.Done(2, "h1"), m.Done(3, "h1")),
            ("release", m.Release(2, "h1"), m.Release(3, "h1")),
        )
    ),
    script(
        "confirmed, renewed, ended",
        *OPENED,
        waits(10.0),
        hears(m.Confirm(2, "h1")),
        m.Confirmed(2, 20_000),
        hears(m.Renew(3, "h1")),
        m.Confirmed(3, 30_000),
        hears(m.Done(4, "h1")),
        m.Ended(4, 1),
        hears(m.Confirm(5, "h1")),
        m.Expired(5, "ended"),
        ends="open",
    ),
    script(
        "released",
        *OPENED,
        hears(m.Release(2, "h1")),
        m.Ended(2, 1),
        hears(m.Confirm(3, "h1")),
        m.Expired(3, "ended"),
        ends="open",
    ),
    script(
        "forgone while it is open",
        *OPENED,
        hears(m.Forgo(2, "h1", "l-h1")),
        m.Ended(2, 0),
        Freed("h1", "l-h1", "forgone", 0),
        hears(m.Confirm(3, "h1")),
        m.Expired(3, "ended"),
        ends="open",
    ),
)

READING: Final = (
    script(
        "read, in two frames",
        *SERVED,
        may_send(2),
        Said(True),
        sent(2, 20),
        may_send(2),
        Said(True),
        sent(2, 10),
        m.ReadEnd(2, 30),
        may_send(2),
        Said(False),
        ends="open",
    ),
    script(
        "nothing to send",
        *OPENED,
        hears(m.Read(2, "h1", "empty", ((0, 3),))),
        m.ReadEnd(2, 0),
        *AGAIN,
        ends="open",
    ),
    script(
        "a read of what is not there",
        *OPENED,
        hears(m.Read(2, "h1", "unknown", ((0, 3),))),
        m.Error("bad_read", "read.group: no such group", 2),
        *AGAIN,
        ends="open",
    ),
    script(
        "a read on a stream that is not attached",
        *OPENED,
        hears(m.Read(2, "h1", "g", ((0, 3),), stream=1)),
        m.Error("bad_read", "read.stream: 1 is not attached", 2),
        *AGAIN,
        ends="open",
    ),
    script(
        "more reads than may be",
        *OPENED,
        *ENOUGH,
        hears(m.Read(80, "h1", "g", ((0, 1),))),
        m.Error("too_many", "read: 64 reads of this session have not ended", 80),
        *AGAIN,
        ends="open",
    ),
    script(
        "the lease expires before a frame",
        *SERVED,
        waits(30.0),
        Freed("h1", "l-h1", "expired", 0),
        Freed("h2", "l-h2", "expired", 0),
        may_send(2),
        m.Expired(2, "expired"),
        Said(False),
        ends="open",
    ),
    script(
        "the lease expires under the last frame: not freed before it is sent, and worthless",
        *SERVED,
        may_send(2),
        Said(True),
        sent(2, 20),
        waits(15.0),
        may_send(2),
        Said(True),
        waits(15.0),
        Freed("h2", "l-h2", "expired", 0),
        sent(2, 10),
        m.Expired(2, "expired"),
        Freed("h1", "l-h1", "expired", 0),
        hears(m.Confirm(3, "h1")),
        m.Expired(3, "expired"),
        ends="open",
    ),
    script(
        "forgone under a frame",
        *SERVED,
        may_send(2),
        Said(True),
        hears(m.Forgo(3, "h1", "l-h1")),
        m.Ended(3, 0),
        sent(2, 30),
        m.Expired(2, "ended"),
        Freed("h1", "l-h1", "forgone", 0),
        ends="open",
    ),
    script(
        "ended by its reader between frames, while another one holds it",
        *SERVED,
        may_send(2),
        Said(True),
        sent(2, 10),
        hears(m.Done(3, "h1")),
        m.Expired(2, "ended"),
        m.Ended(3, 1),
        may_send(2),
        Said(False),
        ends="open",
    ),
    script(
        "cancelled between frames",
        *SERVED,
        may_send(2),
        Said(True),
        sent(2, 10),
        hears(m.Cancel(2)),
        m.Cancelled(2),
        may_send(2),
        Said(False),
        ends="open",
    ),
    script(
        "cancelled under a frame",
        *SERVED,
        may_send(2),
        Said(True),
        hears(m.Cancel(2)),
        sent(2, 10),
        m.Cancelled(2),
        ends="open",
    ),
    script(
        "cancelled under the last frame: all was sent",
        *SERVED,
        may_send(2),
        Said(True),
        hears(m.Cancel(2)),
        sent(2, 30),
        m.ReadEnd(2, 30),
        ends="open",
    ),
    script(
        "cancelled when it has ended",
        *SERVED,
        may_send(2),
        Said(True),
        sent(2, 30),
        m.ReadEnd(2, 30),
        hears(m.Cancel(2)),
        *AGAIN,
        ends="open",
    ),
    script(
        "an id of the future cancelled",
        *SERVED,
        hears(m.Cancel(3)),
        *fault("out_of_turn", "cancel.id: 3 was not asked for"),
        ends="ended",
    ),
    script(
        "the owner cannot serve it, under a frame",
        *SERVED,
        may_send(2),
        Said(True),
        fails(2),
        m.Error("internal", "a disk is full", 2),
        fails(2),
        *AGAIN,
        ends="open",
    ),
    script(
        "the session ends under a frame: freed when it is over",
        *SERVED,
        may_send(2),
        Said(True),
        loses(),
        SessionEnded("peer_lost", "", "the control stream ended without a bye"),
        waits(30.0),
        Freed("h2", "l-h2", "expired", 0),
        sent(2, 0),
        Freed("h1", "l-h1", "expired", 0),
        ends="ended",
    ),
)

ON_ONE: Final = m.Read(2, "h1", "g", ((0, 3),), stream=1)
STREAM_GONE: Final = "read.stream: the data stream 1 has ended"
STREAMS: Final = (
    script(
        "attached, and read on",
        *OPENED,
        joins(1),
        On(1, m.Attached(1)),
        hears(ON_ONE),
        Serve(2, "l-h1", ON_ONE, 30),
        ends="open",
    ),
    script(
        "attached twice",
        *OPENED,
        joins(1),
        On(1, m.Attached(1)),
        joins(1),
        On(2, m.Error("out_of_turn", "attach.stream: 1 is not free")),
        *AGAIN,
        ends="open",
    ),
    script(
        "a stream that was not offered",
        *OPENED,
        joins(3),
        On(1, m.Error("out_of_turn", "attach.stream: 3 is not free")),
        *AGAIN,
        ends="open",
    ),
    script(
        "a stranger's stream",
        hears(HELLO),
        WELCOME,
        proves(b"secret"),
        hears_descriptor(b"same"),
        *ACCEPTED[-3:],
        joins(1, b"guess"),
        On(1, m.Error("bad_proof", "attach.proof: not of this session's reader")),
        joins(1, b"secret"),
        On(2, m.Attached(1)),
        ends="open",
        token=b"secret",
    ),
    script(
        "a stream of a session that there is not",
        *OPENED,
        joins(1, session="99" * 16),
        On(1, m.Error("out_of_turn", "attach.session: no such session")),
        *AGAIN,
        ends="open",
    ),
    script(
        "a stream ends between frames: its reads fail, it is not offered again",
        *OPENED,
        joins(1),
        On(1, m.Attached(1)),
        hears(ON_ONE),
        Serve(2, "l-h1", ON_ONE, 30),
        loses(1),
        m.Error("bad_read", STREAM_GONE, 2),
        hears(m.Read(3, "h1", "g", ((0, 3),), stream=1)),
        m.Error("bad_read", "read.stream: 1 is not attached", 3),
        joins(1),
        On(2, m.Error("out_of_turn", "attach.stream: 1 is not free")),
        *AGAIN,
        ends="open",
    ),
    script(
        "a stream ends under a frame",
        *OPENED,
        joins(1),
        On(1, m.Attached(1)),
        hears(ON_ONE),
        Serve(2, "l-h1", ON_ONE, 30),
        may_send(2),
        Said(True),
        loses(1),
        sent(2, 0),
        m.Error("bad_read", STREAM_GONE, 2),
        ends="open",
    ),
    script(
        "a reader speaks on a data stream",
        *OPENED,
        joins(1),
        On(1, m.Attached(1)),
        hears_bytes(codec.encode(m.Bye()), 1),
        *fault("out_of_turn", "stream 1: a reader says nothing on it but attach"),
        ends="ended",
    ),
)

SCRIPTS: Final[tuple[Script, ...]] = (
    *OPENING,
    *ENDS,
    *OVERDUE,
    *REQUESTED,
    *READING,
    *STREAMS,
)
