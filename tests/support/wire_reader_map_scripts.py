"""What a reader must do that asks where blocks are: the feature `shm`."""

from typing import Final

from msgspec.structs import replace

from support.wire_reader_scripts import HELLO, LEASE, TURN, WELCOME, out_of_turn
from support.wire_reader_world import asks, begins, hears, hears_descriptor, waits
from support.wire_scripts import Descriptor, Said, Script, script
from transload_abi.wire import auth, codec
from transload_abi.wire import messages as m
from transload_abi.wire.reader_events import LeaseGone, Located, Opened, Ready, RequestFailed

FEATURES: Final = ("a", "b", m.SHM)
_HELLO: Final = replace(HELLO, features=FEATURES)
_WELCOME: Final = replace(WELCOME, features=(m.SHM,))
_DIGEST: Final = auth.transcript(codec.encode_body(_HELLO), codec.encode_body(_WELCOME))
FILES: Final = (m.PoolFile("kv", "transload-kv", 80),)
ASKED: Final = (
    *(begins(), _HELLO, hears(_WELCOME), m.Prove(auth.reader_proof(b"", _DIGEST))),
    *(Descriptor(b"ours"), hears(m.Accept("lossless")), hears_descriptor(b"theirs")),
    Ready(_WELCOME, "lossless", b"theirs"),
    *(asks("open", "h1", "l1", "r1"), m.Open(1, "h1", "l1", "r1"), Said(1), waits(1.0)),
    *(hears(LEASE), Opened(1, "h1", LEASE, 30.0)),
    asks("map", "h1", 0, ((0, 2), (4, 1))),
    m.Map(2, "h1", 0, ((0, 2), (4, 1))),
    Said(2),
)
AGAIN: Final = (asks("renew", "h1"), m.Renew(3, "h1"), Said(3))


def _unasked(*lines: object) -> tuple[object, ...]:
    """An answer that is none ends the session, and the request with it."""
    said = f"mapped: {TURN}"
    return *lines, m.Bye(said), RequestFailed(2, "h1", "", f"holder 'P': {said}")


SCRIPTS: Final[tuple[Script, ...]] = (
    script(
        "told where blocks are, in any order",
        *ASKED,
        hears(m.Mapped(2, FILES, ((7, 1), (3, 2)))),
        Located(2, "h1", m.Mapped(2, FILES, ((7, 1), (3, 2)))),
        *AGAIN,
        ends="open",
        features=FEATURES,
    ),
    *(
        script(
            f"told of {what}",
            *_unasked(*ASKED, hears(m.Mapped(2, FILES, blocks))),
            out_of_turn("mapped", "open")[1],
            ends="ended",
            features=FEATURES,
        )
        for what, blocks in (
            ("fewer blocks than were asked for", ((7, 2),)),
            ("more blocks than were asked for", ((7, 4),)),
        )
    ),
    script(
        "told where blocks are, and nobody asked",
        *ASKED[:-3],
        hears(m.Mapped(2, FILES, ((7, 1),))),
        *out_of_turn("mapped", "open"),
        ends="ended",
        features=FEATURES,
    ),
    script(
        "told where blocks are by an answer to something else",
        *ASKED[:-3],
        asks("renew", "h1"),
        m.Renew(2, "h1"),
        Said(2),
        *_unasked(hears(m.Mapped(2, FILES, ((7, 3),)))),
        out_of_turn("mapped", "open")[1],
        ends="ended",
        features=FEATURES,
    ),
    script(
        "told that the lease is not held",
        *ASKED,
        hears(m.Expired(2, "expired")),
        LeaseGone(2, "h1", "expired"),
        ends="open",
        features=FEATURES,
    ),
    script(
        "told that it cannot be said",
        *ASKED,
        hears(m.Error("too_many", "ask for less", 2)),
        RequestFailed(2, "h1", "too_many", "ask for less"),
        *AGAIN,
        ends="open",
        features=FEATURES,
    ),
)
