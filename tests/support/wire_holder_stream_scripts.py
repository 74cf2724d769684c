"""What a holder must do with data streams: a conversation for each row of its table."""

from typing import Final

from support.wire_holder_scripts import ACCEPTED, AGAIN, HELLO, OPENED, WELCOME
from support.wire_holder_world import (
    hears,
    hears_bytes,
    hears_descriptor,
    joins,
    loses,
    may_send,
    proves,
    sent,
)
from support.wire_scripts import On, Said, Script, script
from transload_abi.wire import codec, frames
from transload_abi.wire import messages as m
from transload_abi.wire.holder_state import Serve

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
        m.Error("internal", STREAM_GONE, 2),
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
        m.Error("internal", STREAM_GONE, 2),
        ends="open",
    ),
    *(
        script(
            f"a reader speaks on a data stream, {what}: that one is lost, and its reads",
            *OPENED,
            joins(1),
            On(1, m.Attached(1)),
            hears(ON_ONE),
            Serve(2, "l-h1", ON_ONE, 30),
            hears_bytes(said, 1),
            m.Error("internal", STREAM_GONE, 2),
            hears_bytes(said, 1),
            joins(1),
            On(2, m.Error("out_of_turn", "attach.stream: 1 is not free")),
            *AGAIN,
            ends="open",
        )
        for what, said in (
            ("a message", codec.encode(m.Bye())),
            ("a byte", b"\x01"),
            ("no frame", bytes(8)),
            ("a descriptor", frames.descriptor_frame(b"same")),
        )
    ),
    *(
        script(
            f"a reader says {what} behind attach",
            *OPENED,
            joins(1, more=said),
            On(1, m.Attached(1)),
            hears(ON_ONE),
            m.Error("bad_read", "read.stream: 1 is not attached", 2),
            *AGAIN,
            ends="open",
        )
        for what, said in (("a message", codec.encode(m.Bye())), ("a byte", b"\x01"))
    ),
    script(
        "a reader speaks on a data stream under a frame",
        *OPENED,
        joins(1),
        On(1, m.Attached(1)),
        hears(ON_ONE),
        Serve(2, "l-h1", ON_ONE, 30),
        may_send(2),
        Said(True),
        hears_bytes(b"?", 1),
        sent(2, 0),
        m.Error("internal", STREAM_GONE, 2),
        ends="open",
    ),
)

SCRIPTS: Final[tuple[Script, ...]] = STREAMS
