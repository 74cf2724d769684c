"""What a reader's owner may ask of a session, and what it learns between events."""

from typing import Any

import msgspec
import pytest

from support.wire_reader_request_scripts import STREAM
from support.wire_reader_scripts import BEGUN, LEASE, OPENED, READY, STATES, WELCOME
from support.wire_reader_world import ReaderWorld, hears, hears_bytes, welcomed
from support.wire_scripts import Do
from transload_abi.wire import codec, frames
from transload_abi.wire import messages as m
from transload_abi.wire.errors import Unsendable
from transload_abi.wire.limits import MAX_ID, MAX_OPEN, MAX_READS
from transload_abi.wire.reader import ReaderSession
from transload_abi.wire.reader_events import ReadComplete, ReadFailed

READ = m.Read(1, "h1", "g", ((0, 3),))


def led(*lines: object, **settings: Any) -> ReaderWorld:
    """A session after a conversation."""
    world = ReaderWorld(**settings)
    for line in lines:
        if isinstance(line, Do):
            line.does(world)
            world.tells()
    return world


def test_a_session_begins_once() -> None:
    world = led(*BEGUN)
    with pytest.raises(ValueError, match="the session has begun"):
        world.session.begin(1.0)


@pytest.mark.parametrize(
    ("what", "args"),
    [
        ("attach", (1,)),
        ("open", ("h1", "l1", "r1")),
        ("read", (READ, 6)),
        ("confirm", ("h1",)),
        ("renew", ("h1",)),
        ("done", ("h1",)),
        ("release", ("h1",)),
        ("forgo", ("h1", "l1")),
    ],
)
def test_nothing_is_asked_before_the_session_is_open(what: str, args: tuple[Any, ...]) -> None:
    world = led(*BEGUN)
    with pytest.raises(ValueError, match="the session is welcome"):
        getattr(world.session, what)(*args, 1.0)


@pytest.mark.parametrize("stream", [0, 1, 3])
def test_a_stream_that_cannot_be_attached(stream: int) -> None:
    world = led(*READY, *STREAM)
    with pytest.raises(ValueError, match=f"the stream {stream} was not offered, or was had"):
        world.session.attach(stream, 1.0)


def test_a_handoff_is_opened_once() -> None:
    world = led(*READY)
    world.session.open("h1", "l1", "r1", 1.0)
    with pytest.raises(ValueError, match="'h1' is open"):
        world.session.open("h1", "l1", "r1", 1.0)


def test_a_handoff_that_is_not_open_yet_is_not_read() -> None:
    world = led(*OPENED[:-3])
    with pytest.raises(ValueError, match="'h1' is not open"):
        world.session.read(READ, 6, 1.0)
    hears(LEASE).does(world)
    assert world.session.read(READ, 6, 1.0) == 2


def test_a_read_needs_its_stream() -> None:
    world = led(*OPENED)
    with pytest.raises(ValueError, match="the stream 1 is not attached"):
        world.session.read(m.Read(1, "h1", "g", ((0, 3),), stream=1), 6, 1.0)


def test_reads_given_up_count_until_the_holder_has_ended_them() -> None:
    world = led(*OPENED)
    session = world.session
    reads = [session.read(READ, 6, 1.0) for _ in range(MAX_READS)]
    session.cancel(reads[0], 1.0)
    with pytest.raises(ValueError, match=f"{MAX_READS} reads have not ended"):
        session.read(READ, 6, 1.0)
    hears(m.Cancelled(reads[0])).does(world)
    assert session.read(READ, 6, 1.0) == reads[-1] + 1


def test_requests_without_answers_are_bounded() -> None:
    session = led(*OPENED).session
    for _ in range(MAX_OPEN):
        session.confirm("h1", 1.0)
    with pytest.raises(ValueError, match=f"{MAX_OPEN} requests have no answer"):
        session.confirm("h1", 1.0)


def test_open_handoffs_are_bounded() -> None:
    world = led(*READY)
    for number in range(MAX_OPEN):
        id_ = world.session.open(f"h{number}", "l", "r", 1.0)
        hears(m.Lease(id_, 1, (m.Table(0, 1),), 1, 1, 9)).does(world)
    with pytest.raises(ValueError, match=f"'more' is open, or {MAX_OPEN} others are"):
        world.session.open("more", "l", "r", 1.0)


def test_a_session_ends_before_its_ids_do_not_fit() -> None:
    session = led(*READY).session
    session._core.last_id = MAX_ID - 1
    assert session.forgo("h1", "l", 1.0) == MAX_ID
    with pytest.raises(ValueError, match="no ids left"):
        session.forgo("h1", "l", 1.0)


def test_a_request_that_cannot_be_sent_leaves_nothing_behind() -> None:
    session = led(*READY).session
    with pytest.raises(Unsendable, match=r"open\.?"):
        session.open("h" * 999, "l", "r", 1.0)
    assert session._core.pending == {}
    assert session.open("h1", "l", "r", 1.0) == 1


def test_a_stream_says_where_its_next_bytes_belong() -> None:
    world = led(*OPENED)
    session = world.session
    read = session.read(READ, 6, 1.0)
    assert session.expects(0) is None
    session.feed(0, frames.data_header(read, 1, 5) + b"b", 1.0)
    assert session.expects(0) == (read, 2, 4)
    session.received(0, b"cd", 1.0)
    assert session.expects(0) == (read, 4, 2)
    assert [type(event) for event in session.cancel(read, 1.0)] == [ReadFailed]
    assert session.expects(0) is None
    with pytest.raises(ValueError, match="no data of a read are due on the stream 0"):
        session.received(0, b"ef", 1.0)


def test_no_byte_of_a_read_has_to_pass_through_the_session() -> None:
    session = led(*OPENED).session
    read = session.read(READ, 6, 1.0)
    end = codec.encode(m.ReadEnd(read, 6))
    coming = frames.data_header(read, 2, 4, frames.checksum_of(b"cdef")) + b"cdef"
    coming += frames.data_header(read, 0, 2) + b"ab" + end
    memory = bytearray(6)
    events: list[object] = []
    while coming:
        place = session.expects(0)
        most = min(3, session.wanted(0))
        part, coming = coming[:most], coming[most:]
        if place is None:
            events += session.feed(0, part, 1.0)
        else:
            view = memoryview(memory)[place[1] : place[1] + most]
            view[:] = part
            events += session.received(0, view, 1.0)
    assert bytes(memory) == b"abcdef"
    assert events == [ReadComplete(read)]


def test_bytes_in_place_are_held_to_their_checksum() -> None:
    session = led(*OPENED).session
    read = session.read(READ, 6, 1.0)
    session.feed(0, frames.data_header(read, 0, 6, frames.checksum_of(b"abcdef")), 1.0)
    assert session.received(0, b"abc", 1.0) == []
    assert [type(event) for event in session.received(0, b"xyz", 1.0)] == [ReadFailed]


def test_no_more_is_received_than_the_frame_has() -> None:
    session = led(*OPENED).session
    read = session.read(READ, 6, 1.0)
    session.feed(0, frames.data_header(read, 0, 3), 1.0)
    with pytest.raises(ValueError, match="4 bytes of a frame that lacks 3"):
        session.received(0, b"abcd", 1.0)


@pytest.mark.parametrize("state", ["welcome", "accept", "descriptor"])
def test_no_data_are_taken_before_the_session_is_open(state: str) -> None:
    world = led(*STATES[state])
    hears_bytes(frames.data_header(1, 0, 3)).does(world)
    assert "data: none may come now" in repr(world.tells())


def test_no_data_are_taken_before_a_stream_is_attached() -> None:
    world = led(*READY)
    world.session.attach(1, 1.0)
    hears_bytes(frames.data_header(1, 0, 3), 1).does(world)
    assert "data: none may come now" in repr(world.tells())


def test_frames_are_held_to_what_was_agreed() -> None:
    world = led(*OPENED)
    hears_bytes(frames.data_header(1, 0, 4097)).does(world)
    assert "data: expected 1 to 4096 bytes, got 4097" in repr(world.tells())


def test_half_a_frame_of_a_stream_that_is_lost_is_forgotten() -> None:
    world = led(*OPENED, *STREAM)
    session = world.session
    read = session.read(m.Read(1, "h1", "g", ((0, 3),), stream=1), 6, 1.0)
    session.feed(1, frames.data_header(read, 0, 6) + b"ab", 1.0)
    assert session.expects(1) == (read, 2, 4)
    session.lose(1, 1.0)
    assert session.feed(1, b"cdef", 1.0) == []
    assert session.expects(1) is None


def test_time_does_not_go_back() -> None:
    world = led(*READY)
    world.session.tick(100.0)
    world.session.open("h1", "l", "r", 50.0)
    assert world.session.deadline() == 120.0


def test_idleness_counts_from_the_last_thing_said() -> None:
    world = led(*READY)
    session = world.session
    session.attach(1, 50.0)
    hears(m.Attached(1), 1).does(world)
    assert session.deadline() == 250.0
    hears(m.Bye()).does(world)
    assert session.deadline() is None


def test_a_renewed_lease_keeps_an_idle_session() -> None:
    world = led(*OPENED)
    id_ = world.session.renew("h1", 10.0)
    hears(m.Confirmed(id_, 900_000)).does(world)
    assert world.session.deadline() == 910.0


def test_a_side_without_the_token_does_not_look_at_proofs() -> None:
    assert led(*BEGUN, welcomed(WELCOME, b"any")).state == "accept"


@pytest.mark.parametrize(
    ("lines", "stream", "most"),
    [(BEGUN, 0, 4096), (STATES["accept"], 0, 65536), ((*OPENED, *STREAM), 1, 4096)],
)
def test_messages_are_short_before_the_proof_and_on_data_streams(
    lines: tuple[object, ...], stream: int, most: int
) -> None:
    world = led(*lines)
    hears_bytes((most + 1).to_bytes(4, "little") + b"\x01\0\0\0", stream).does(world)
    assert f"message: expected 1 to {most} bytes, got {most + 1}" in repr(world.tells())
    assert world.state == "ended"


def test_no_longer_hello_is_sent_than_is_taken() -> None:
    world = ReaderWorld()
    long = tuple(f"{number:064d}" for number in range(64))
    settings = msgspec.structs.replace(world.session._core.settings, features=long)
    with pytest.raises(Unsendable, match=r"hello: 4\d{3} bytes, more than 4096"):
        ReaderSession(settings, "cd" * 32, 0.0).begin(0.0)
