"""What a holder's owner may ask of sessions and connections, and what it learns of them."""

from typing import Any

import pytest

from support.wire_holder_scripts import ACCEPTED, HELLO, INTRODUCED, OPENED, PROVEN, SERVED
from support.wire_holder_world import SESSION, HolderWorld, hears, joins
from support.wire_scripts import Do
from transload_abi.wire import codec, frames
from transload_abi.wire import messages as m
from transload_abi.wire.deadlines import Terms
from transload_abi.wire.holder import HolderSession
from transload_abi.wire.limits import MAX_OPEN
from transload_abi.wire.session_events import SessionEnded


def led(*lines: object, **settings: Any) -> HolderWorld:
    """A holder after a conversation."""
    world = HolderWorld(**settings)
    for line in lines:
        if isinstance(line, Do):
            line.does(world)
            world.tells()
    return world


def session_of(world: HolderWorld) -> HolderSession:
    session = world.links[0].session
    assert session is not None
    return session


def test_a_session_says_what_its_owner_needs() -> None:
    session = session_of(led(*SERVED))
    assert (session.name, session.max_data_bytes) == (SESSION, 8192)


def test_one_frame_of_a_read_at_a_time() -> None:
    session = session_of(led(*SERVED))
    assert session.may_send(2, 1.0)
    with pytest.raises(ValueError, match="a frame of read 2 is under way"):
        session.may_send(2, 1.0)


def test_nothing_was_sent_that_might_not_be() -> None:
    session = session_of(led(*SERVED))
    with pytest.raises(ValueError, match="no frame of read 2 is under way"):
        session.sent(2, 5, 1.0)


def test_no_more_is_sent_than_was_asked_for() -> None:
    session = session_of(led(*SERVED))
    session.may_send(2, 1.0)
    with pytest.raises(ValueError, match="read 2 is of 30 bytes"):
        session.sent(2, 31, 1.0)


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_frame_of_an_ended_session_lets_go_of_the_blocks(is_sent: bool) -> None:
    world = led(*SERVED)
    session = session_of(world)
    session.may_send(2, 1.0)
    world.lose(0)
    assert world.ledger.num_copied == 1
    if is_sent:
        session.sent(2, 30, 1.0)
    else:
        session.fail(2, "", 1.0)
    assert session.data_to_send() == b""
    assert world.ledger.num_copied == 0
    assert not session.may_send(2, 1.0)


def test_an_ended_session_forgets_what_was_open() -> None:
    world = led(*SERVED)
    session = session_of(world)
    world.lose(0)
    assert (session._core.opens, session._core.reads) == ({}, {})
    assert world.ledger.num_held == 2


def test_a_read_fails_between_frames() -> None:
    world = led(*SERVED)
    session_of(world).fail(2, "why", 1.0)
    assert world.tells() == [m.Error("internal", "why", 2)]


def test_what_was_open_is_remembered_within_bounds() -> None:
    world = led(*ACCEPTED)
    for number in range(MAX_OPEN + 1):
        world.ledger.grant(f"m{number}", "l", (m.Table(0, 8),), 1, 1, 0.0)
        hears(m.Open(2 * number + 1, f"m{number}", "l", "r")).does(world)
        hears(m.Done(2 * number + 2, f"m{number}")).does(world)
    world.tells()
    hears(m.Done(5000, "m1")).does(world)
    hears(m.Done(5001, "m0")).does(world)
    assert [type(each) for each in world.tells()] == [m.Expired, m.Error]


def test_sessions_are_forgotten_with_their_end() -> None:
    world = led(*OPENED)
    assert list(world.reception.sessions) == [SESSION]
    world.links[0].end("", 1.0)
    assert world.reception.sessions == {}
    assert world.links[0].is_over


def test_an_ended_session_takes_no_stream() -> None:
    world = led(*OPENED)
    session = session_of(world)
    session.end("", 1.0)
    answer = session.attach(m.Attach(SESSION, 1, "0" * 64), 1.0)
    assert answer == m.Error("out_of_turn", "attach.session: the session has ended")


def test_a_data_stream_ends_with_its_session() -> None:
    world = led(*OPENED, joins(1))
    assert not world.links[1].is_over
    assert world.links[1].deadline() is None
    world.links[0].end("", 1.0)
    assert world.links[1].is_over


def test_no_frame_is_taken_behind_the_last_one() -> None:
    world = led(*OPENED)
    world.feed(0, codec.encode(m.Bye()) + codec.encode(m.Confirm(2, "h1")) + b"\xff" * 8)
    assert [type(each).__name__ for each in world.tells()] == ["SessionEnded"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frames.descriptor_frame(b"same"), "descriptor: none may come now"),
        (frames.data_header(1, 0, 5), "data: none may come now"),
        (frames.message_frame(b"\xc0"), "expected a map"),
    ],
)
def test_a_connection_begins_with_a_message(data: bytes, reason: str) -> None:
    world = HolderWorld()
    world.feed(0, data)
    assert reason in repr(world.tells())
    assert world.links[0].is_over
    assert world.reception.sessions == {}


def test_a_connection_that_is_over_takes_nothing() -> None:
    world = HolderWorld()
    world.feed(0, bytes(8))
    world.tells()
    world.feed(0, codec.encode(HELLO))
    assert world.tells() == []


@pytest.mark.parametrize("what", ["lose", "end", "tick"])
def test_a_connection_that_says_nothing_is_turned_away(what: str) -> None:
    world = HolderWorld()
    link = world.links[0]
    assert link.deadline() == 10.0
    assert {
        "lose": lambda: link.lose(1.0),
        "end": lambda: link.end("", 1.0),
        "tick": lambda: link.tick(10.0),
    }[what]() == []
    assert link.is_over
    assert link.deadline() is None
    assert link.tick(99.0) == []


def test_nothing_is_due_while_the_owner_is_waited_for() -> None:
    world = led(*SERVED)
    assert world.links[0].deadline() is None
    assert session_of(world).tick(9999.0) == []


def test_a_descriptor_is_taken_at_its_time_alone() -> None:
    world = led(*INTRODUCED)
    world.feed(0, codec.encode(m.Prove("0" * 64)) + frames.descriptor_frame(b"same"))
    assert world.state == "open"


def test_idleness_is_counted_from_what_was_heard() -> None:
    world = led(*ACCEPTED)
    world.now = 150.0
    hears(m.Forgo(1, "h9", "l")).does(world)
    assert world.links[0].deadline() == 350.0


def test_a_lease_that_is_held_keeps_an_idle_session() -> None:
    world = led(*OPENED, terms=Terms(term_s=300.0, max_hold_s=600.0))
    session = session_of(world)
    assert session.tick(200.0) == []
    assert session.deadline() == 400.0
    assert [type(event) for event in session.tick(400.0)] == [SessionEnded]


@pytest.mark.parametrize(("lines", "most"), [((), 4096), (INTRODUCED, 4096), (PROVEN, 65536)])
def test_messages_are_short_before_the_proof(lines: tuple[object, ...], most: int) -> None:
    world = led(*lines)
    world.feed(0, (most + 1).to_bytes(4, "little") + b"\x01\0\0\0")
    assert f"message: expected 1 to {most} bytes, got {most + 1}" in repr(world.tells())
    assert world.links[0].is_over


def test_a_lost_data_stream_is_over_and_asks_for_nothing() -> None:
    world = led(*OPENED, joins(1))
    world.feed(1, b"\x01")
    assert world.links[1].is_over
    assert world.links[1].deadline() is None
    assert not world.links[0].is_over


def test_frames_that_may_not_come_are_called_so_without_a_decoder() -> None:
    for frame in (frames.DescriptorFrame(b"same"), frames.DataBegin(1, 0, 5, None)):
        session = session_of(led(*OPENED))
        (ended,) = session.take(frame, 1.0)
        assert isinstance(ended, SessionEnded)
        assert ended.code == "bad_frame"
