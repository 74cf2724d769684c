"""How a holder must begin and end sessions: a conversation for each row of its table."""

from typing import Final

from support.wire_holder_world import (
    NONCE,
    READER_NONCE,
    SESSION,
    TABLES,
    ZEROS,
    ends,
    hears,
    hears_bytes,
    hears_descriptor,
    joins,
    loses,
    may_send,
    proves,
    waits,
)
from support.wire_scripts import Descriptor, On, Said, Script, script
from transload_abi.wire import messages as m
from transload_abi.wire.holder_state import ReaderAccepted, Serve
from transload_abi.wire.ledger import Freed
from transload_abi.wire.session_events import SessionEnded

PEER: Final = "reader 'D'"
LOST: Final = f"{PEER} is gone: its control stream ended without a bye"
HELLO: Final = m.Hello((1,), "D", "g7", READER_NONCE, 65536, ("b", "c"))
WELCOME: Final = m.Welcome(1, "P", "g1", SESSION, NONCE, ZEROS, 8192, 2, ("b",))
INTRODUCED: Final = (hears(HELLO), WELCOME)
PROVEN: Final = (*INTRODUCED, hears(m.Prove(ZEROS)))


def accepted(hello: m.Hello, welcome: m.Welcome) -> tuple[object, ...]:
    """A session that is open."""
    return (
        *(hears(hello), welcome, hears(m.Prove(ZEROS)), hears_descriptor(b"same")),
        *(m.Accept("identical"), Descriptor(b"ours"), ReaderAccepted(hello, "identical")),
    )


ACCEPTED: Final = accepted(HELLO, WELCOME)
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
    return fault("out_of_turn", reason, "the reader" if state == "hello" else PEER)


def fault(code: m.Code, reason: str, peer: str = PEER) -> tuple[object, ...]:
    """What a session says that ends for another fault of the reader's."""
    return m.Error(code, reason), SessionEnded("peer_fault", code, f"{peer}: {reason}")


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
        *fault("bad_version", "hello.versions: expected 1 among (2, 3)", "the reader"),
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
        SessionEnded("refused", "", f"{PEER}: groups[0]: 2 layers against 3"),
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
        "forgone twice",
        *PROVEN,
        hears(m.Forgo(1, "h1", "l-h1")),
        m.Ended(1, 0),
        Freed("h1", "l-h1", "forgone", 0),
        hears(m.Forgo(2, "h2", "l-h2")),
        m.Ended(2, 0),
        Freed("h2", "l-h2", "forgone", 0),
        ends="forgo",
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
            SessionEnded("peer_bye", "", f"{PEER} says bye: enough"),
            hears(m.Bye()),
            ends="ended",
        ),
        script(
            f"lost at {state}",
            *lines,
            loses(),
            SessionEnded("peer_lost", "", LOST),
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
            SessionEnded("overdue", "", f"{PEER}: expected a {state} within 10 s"),
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
        SessionEnded("overdue", "", f"{PEER}: the reader took no data for 20 s"),
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


SCRIPTS: Final[tuple[Script, ...]] = (*OPENING, *ENDS, *OVERDUE)
