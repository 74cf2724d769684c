"""`transload wire check` of sessions: whoever says one thing wrong is noticed."""

from collections.abc import Callable, Iterator

import pytest

from support.harnesses import Bend, says
from support.wire_bends import SESSIONS, declines, failures, names
from transload_abi.harness.protocol import Answer, Done, Fields
from transload_abi.packed import pack
from transload_abi.wire import codec, frames


def frames_of(data: bytes) -> Iterator[bytes]:
    while data:
        end = frames.HEADER_BYTES + int.from_bytes(data[:4], "little")
        yield data[:end]
        data = data[end:]


def in_frames(change: Callable[[bytes], bytes]) -> Bend:
    """Each frame that is said, changed; one that becomes empty is left out."""

    def bend(answer: Answer, asked: Fields) -> Answer:
        assert isinstance(answer, Done)
        said: list[list[Fields]] = []
        for event in answer.fields["said"]:
            said.append([])
            for part in event:
                parts = [change(frame) for frame in frames_of(bytes.fromhex(part["bytes"]))]
                if whole := b"".join(parts):
                    said[-1].append({**part, "bytes": whole.hex()})
        return Done({**answer.fields, "said": said})

    return bend


def of_side(side: str, bend: Bend) -> Bend:
    return lambda answer, asked: bend(answer, asked) if asked["side"] == side else answer


def message_with(name: str, **changed: object) -> Callable[[bytes], bytes]:
    """A message of a type with other fields."""

    def change(frame: bytes) -> bytes:
        if frame[4] != frames.MESSAGE or name.encode() not in frame:
            return frame
        tree = codec.read_tree(frame[frames.HEADER_BYTES :])
        if tree["type"] != name:
            return frame
        return frames.message_frame(pack({**tree, **changed}))

    return change


def without(kind: int) -> Callable[[bytes], bytes]:
    return lambda frame: b"" if frame[4] == kind else frame


def in_data(change: Callable[[bytearray], object]) -> Callable[[bytes], bytes]:
    def changed(frame: bytes) -> bytes:
        data = bytearray(frame)
        if frame[4] == frames.DATA:
            change(data)
        return bytes(data)

    return changed


def flip_last(data: bytearray) -> None:
    data[-1] ^= 1


def flip_checksum(data: bytearray) -> None:
    data[24] ^= data[12] & 1


def drop_checksum(data: bytearray) -> None:
    data[12] = 0
    data[24:28] = bytes(4)


def twice(frame: bytes) -> bytes:
    return frame * 2 if frame[4] == frames.DATA else frame


def saying(what: str, sender: str) -> tuple[str, ...]:
    """Sessions with such a message, or frame."""
    return tuple(
        name
        for name, session in SESSIONS.items()
        for step in session["steps"]
        if step["from"] == sender and what in (step.get("message", {}).get("type"), *step)
    )


WHOLE = ("control-stream", "two-streams")
EVERY = tuple(SESSIONS)
PROOF = "0" * 64


@pytest.mark.parametrize(
    ("side", "bend", "noticed", "sentence"),
    [
        (
            "holder",
            in_frames(message_with("welcome", proof=PROOF)),
            saying("welcome", "holder"),
            "event 0: expected",
        ),
        (
            "holder",
            in_frames(message_with("accept", verdict="lossy")),
            saying("accept", "holder"),
            "event 2: exp",
        ),
        ("holder", in_frames(message_with("refuse", path="")), ("refusal",), "event 2: expected"),
        (
            "holder",
            in_frames(message_with("error", id=9)),
            ("wrong-token", *saying("error", "holder")),
            "event 1: expected",
        ),
        (
            "holder",
            in_frames(message_with("expired", why="ended")),
            ("expired-lease", "opened-again"),
            "event 5",
        ),
        (
            "holder",
            in_frames(without(frames.DESCRIPTOR)),
            saying("descriptor", "holder"),
            "event 2: expected [{'stream",
        ),
        ("holder", in_frames(without(frames.DATA)), WHOLE, "event 4: read 2 ends before all of "),
        (
            "holder",
            in_frames(in_data(flip_last)),
            WHOLE,
            "event 4: data of read 2 with a wrong checksum",
        ),
        (
            "holder",
            in_frames(in_data(flip_checksum)),
            WHOLE,
            "event 4: data of read 2 with a wrong checksum",
        ),
        (
            "holder",
            in_frames(in_data(drop_checksum)),
            WHOLE,
            "event 4: data of read 2 without a checksum",
        ),
        ("holder", in_frames(twice), WHOLE, "event 4: data of read 2 at 0: sent twice"),
        ("reader", in_frames(message_with("hello", nonce=PROOF)), EVERY, "event 0: expected"),
        (
            "reader",
            in_frames(message_with("prove", proof=PROOF)),
            saying("prove", "reader"),
            "event 1: expected",
        ),
        (
            "reader",
            in_frames(without(frames.DESCRIPTOR)),
            saying("descriptor", "reader"),
            "event 1: exp",
        ),
        ("reader", says(reads={"2": ""}), EVERY, "bytes of the reads: expected {"),
        ("reader", in_frames(lambda frame: frame[:-1]), EVERY, "event 0: a frame on stream 0 does"),
        (
            "reader",
            in_frames(lambda frame: frame[:4] + b"\x09" + frame[5:]),
            EVERY,
            "event 0: what ",
        ),
        ("reader", says(said=[]), EVERY, "said: expected a list of "),
        ("reader", says(said=lambda said: [7] * len(said)), EVERY, "event 0: expected a list, got"),
        ("reader", says(said=lambda said: [[7]] * len(said)), EVERY, "event 0: expected objects "),
        (
            "reader",
            says(said=lambda said: [[{"stream": 0, "bytes": "x"}]] * len(said)),
            EVERY,
            "event 0: bytes that are no hex digits",
        ),
        ("reader", declines, EVERY, "got a refusal (bad: here: no)"),
        ("holder", declines, EVERY, "got a refusal (bad: here: no)"),
    ],
)
def test_sides_of_sessions(side: str, bend: Bend, noticed: tuple[str, ...], sentence: str) -> None:
    found = failures("play", of_side(side, bend))
    assert found.keys() == {f"sessions/{name}/{side}" for name in noticed} & names("sessions/")
    first = "control-stream" if "control-stream" in noticed else noticed[0]
    assert found[f"sessions/{first}/{side}"].startswith(sentence)


def moved(answer: Answer, asked: Fields) -> Answer:
    """All that is on data streams is said on the control stream."""
    assert isinstance(answer, Done)
    said = [[{**part, "stream": 0} for part in event] for event in answer.fields["said"]]
    return Done({**answer.fields, "said": said})


def test_data_on_another_stream() -> None:
    found = failures("play", of_side("holder", moved))
    streams = ("two-streams", "strangers", "talking-stream")
    assert found.keys() == {f"sessions/{name}/holder" for name in streams}


def split(frame: bytes) -> bytes:
    """A data frame as two, each with a checksum where it had one."""
    if frame[4] != frames.DATA:
        return frame
    header = frame[8 : 8 + frames.DATA_HEADER_BYTES]
    read, flags = int.from_bytes(header[:4], "little"), header[4]
    offset = int.from_bytes(header[8:16], "little")
    data = frame[8 + frames.DATA_HEADER_BYTES :]
    parts = ((offset + 5, data[5:]), (offset, data[:5]))
    return b"".join(
        frames.data_header(read, at, len(part), frames.checksum_of(part) if flags else None) + part
        for at, part in parts
    )


def reworded(frame: bytes) -> bytes:
    for name in ("refuse", "error", "bye"):
        frame = message_with(name, reason="in other words")(frame)
    return frame


@pytest.mark.parametrize("change", [split, reworded])
def test_what_a_side_may_choose(change: Callable[[bytes], bytes]) -> None:
    assert failures("play", in_frames(change)) == {}


FAREWELL = [{"stream": 0, "bytes": frames.message_frame(b"\x81\xa4type\xa3bye").hex()}]


@pytest.mark.parametrize("event", [0, -1])
def test_a_farewell_that_was_not_recorded(event: int) -> None:
    def say_bye(said: list[list[Fields]]) -> list[list[Fields]]:
        said[event] = said[event] + FAREWELL
        return said

    assert failures("play", says(said=say_bye)).keys() == names("sessions/")
