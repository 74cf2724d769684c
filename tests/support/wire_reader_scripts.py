"""How a reader must begin and end sessions: a conversation for each row of its table."""

from typing import Final

import msgspec

from support.wire_reader_world import (
    HOLDER_NONCE,
    NONCE,
    SESSION,
    asks,
    begins,
    hears,
    hears_bytes,
    hears_descriptor,
    loses,
    waits,
    welcomed,
)
from support.wire_scripts import Descriptor, Said, Script, script
from transload_abi.wire import auth, codec
from transload_abi.wire import messages as m
from transload_abi.wire.reader_events import (
    Opened,
    Ready,
    ShareEnded,
)
from transload_abi.wire.session_events import SessionEnded

ZEROS: Final = auth.NO_PROOF
HELLO: Final = m.Hello((1,), "D", "g7", NONCE, 8192, ("a", "b"))
WELCOME: Final = m.Welcome(1, "P", "g1", SESSION, HOLDER_NONCE, ZEROS, 4096, 2, ("b",))
BODY: Final = codec.encode_body(WELCOME)
DIGEST: Final = auth.transcript(codec.encode_body(HELLO), BODY)
PROVE: Final = m.Prove(auth.reader_proof(b"", DIGEST))
BEGUN: Final = (begins(), HELLO)
INTRODUCED: Final = (*BEGUN, hears(WELCOME), PROVE, Descriptor(b"ours"))
ACCEPTED: Final = (*INTRODUCED, hears(m.Accept("lossless")))
READY: Final = (*ACCEPTED, hears_descriptor(b"theirs"), Ready(WELCOME, "lossless", b"theirs"))
TABLES: Final = (m.Table(0, 8),)
LEASE: Final = m.Lease(1, 100, TABLES, 2, 2, 30_000)
OPENED: Final = (
    *READY,
    asks("open", "h1", "l1", "r1"),
    m.Open(1, "h1", "l1", "r1"),
    Said(1),
    waits(1.0),
    hears(LEASE),
    Opened(1, "h1", LEASE, 30.0),
)
FORGOING: Final = (*BEGUN, hears(WELCOME), PROVE, Ready(WELCOME, None, b""))
STATES: Final[dict[str, tuple[object, ...]]] = {
    "welcome": BEGUN,
    "accept": INTRODUCED,
    "descriptor": ACCEPTED,
    "open": READY,
    "forgoing": FORGOING,
}
PEER: Final = "holder 'P'"
TURN: Final = "not while the session is at open, or not that one"
# A request after the conversation, so that each script sees where it has led.
AGAIN: Final = (
    asks("forgo", "h8", "l8"),
    m.Forgo(2, "h8", "l8"),
    Said(2),
    hears(m.Ended(2, 0)),
    ShareEnded(2, "h8", 0),
)


def fault(code: str, reason: str, peer: str = PEER) -> tuple[object, ...]:
    """What a session says that ends for the holder's fault."""
    return m.Bye(reason), SessionEnded("peer_fault", code, f"{peer}: {reason}")


def out_of_turn(what: str, state: str, peer: str = PEER) -> tuple[object, ...]:
    """The same, where something may not come."""
    reason = f"{what}: not while the session is at {state}, or not that one"
    return fault("out_of_turn", reason, peer)


def at(state: str) -> dict[str, None]:
    """Settings with which a session comes to a state."""
    return {"descriptor": None} if state == "forgoing" else {}


def peer_at(state: str) -> str:
    """What a holder is called in a state."""
    return "the holder" if state in ("new", "welcome") else PEER


def changed(**fields: object) -> m.Welcome:
    """The welcome, with other fields."""
    return msgspec.structs.replace(WELCOME, **fields)


OPENING: Final = (
    script("the blocks convert", *READY, ends="open"),
    script(
        "the right token",
        *BEGUN,
        welcomed(WELCOME, b"secret"),
        m.Prove(auth.reader_proof(b"secret", DIGEST)),
        Descriptor(b"ours"),
        ends="accept",
        token=b"secret",
    ),
    script(
        "another token",
        *BEGUN,
        welcomed(WELCOME, b"guess"),
        *fault(
            "bad_proof",
            "welcome.proof: the peer does not know this side's token",
            "the holder",
        ),
        hears(m.Accept("lossless")),
        ends="ended",
        token=b"secret",
    ),
    script(
        "a version that was not offered",
        *BEGUN,
        hears(changed(version=2)),
        *fault("bad_version", "welcome.version: expected one of (1,), got 2", "the holder"),
        ends="ended",
    ),
    *(
        script(
            f"more than was offered: {name}",
            *BEGUN,
            hears(welcome),
            *fault("bad_message", "welcome: more than the hello offered", "the holder"),
            ends="ended",
        )
        for name, welcome in (
            ("frames", changed(max_data_bytes=8193)),
            ("features", changed(features=("b", "c"))),
        )
    ),
    script(
        "another start of the holder",
        *BEGUN,
        hears(changed(generation="g2")),
        m.Bye("another start of the holder was expected"),
        SessionEnded("refused", "", "holder 'P' is not at its start 'g1' any more"),
        ends="ended",
    ),
    script(
        "any start of the holder will do",
        *BEGUN,
        hears(WELCOME),
        PROVE,
        Descriptor(b"ours"),
        ends="accept",
        holder_generation="",
    ),
    script(
        "the blocks never convert",
        *INTRODUCED,
        hears(m.Refuse("groups[0]", "2 layers against 3")),
        SessionEnded("refused", "", "holder 'P': groups[0]: 2 layers against 3"),
        ends="ended",
    ),
    script(
        "a descriptor before it is accepted",
        *INTRODUCED,
        hears_descriptor(b"theirs"),
        *fault("bad_frame", "descriptor: none may come now"),
        ends="ended",
    ),
    script(
        "accepted twice",
        *READY,
        hears(m.Accept("lossy")),
        *out_of_turn("accept", "open"),
        ends="ended",
    ),
    *(
        script(
            f"no {state} in time",
            *STATES[state],
            waits(9.9),
            waits(0.1),
            m.Bye(f"no {state} within 10 s"),
            SessionEnded("overdue", "", f"{peer_at(state)}: no {state} within 10 s"),
            ends="ended",
        )
        for state in ("welcome", "accept", "descriptor")
    ),
)

ENDS: Final = tuple(
    each
    for state, lines in STATES.items()
    for each in (
        script(
            f"bye at {state}",
            *lines,
            hears(m.Bye("enough")),
            SessionEnded("peer_bye", "", f"{peer_at(state)} says bye: enough"),
            hears(m.Bye()),
            ends="ended",
            **at(state),
        ),
        script(
            f"an error at {state}",
            *lines,
            hears(m.Error("busy", "later")),
            SessionEnded("peer_error", "busy", f"{peer_at(state)} says busy: later"),
            ends="ended",
            **at(state),
        ),
        script(
            f"lost at {state}",
            *lines,
            loses(),
            SessionEnded(
                "peer_lost",
                "",
                f"{peer_at(state)} is gone: its control stream ended without a bye",
            ),
            ends="ended",
            **at(state),
        ),
        script(
            f"broken at {state}",
            *lines,
            hears_bytes(bytes(8)),
            *fault("bad_frame", "frame: expected kind 1, 2 or 3, got 0", peer_at(state)),
            hears(m.Bye()),
            ends="ended",
            **at(state),
        ),
        script(
            f"ended by the owner at {state}",
            *lines,
            asks("end", "closing"),
            m.Bye("closing"),
            SessionEnded("asked", "", "closing"),
            ends="ended",
            **at(state),
        ),
    )
)

BEFORE: Final = (
    *(
        script(
            f"an error about nothing at {state}",
            *STATES[state],
            hears(m.Error("internal", "", 1)),
            *out_of_turn("error", state, peer_at(state)),
            ends="ended",
        )
        for state in ("welcome", "accept", "descriptor")
    ),
    script(
        "lost before it has begun",
        loses(),
        SessionEnded("peer_lost", "", "the holder is gone: its control stream ended without a bye"),
        ends="ended",
    ),
    script(
        "ended by the owner before it has begun",
        asks("end", "closing"),
        m.Bye("closing"),
        SessionEnded("asked", "", "closing"),
        ends="ended",
    ),
)


SCRIPTS: Final[tuple[Script, ...]] = (*OPENING, *ENDS, *BEFORE)
