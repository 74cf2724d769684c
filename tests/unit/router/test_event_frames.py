"""Frames of live and replayed messages in every layout."""

import pytest

from transload_router.io.events.frames import END, MAX_SEQ, read_frames, replay_request

SEQ = b"\x00\x00\x00\x00\x00\x00\x01\x02"
MINUS_ONE = b"\xff" * 8


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"kv@p1@tiny", SEQ, b"p"], id="live"),
        pytest.param([b"", SEQ, b"p"], id="live, no topic; replayed, 0.16"),
        pytest.param([b"", b"kv@p1@tiny", SEQ, b"p"], id="replayed"),
        pytest.param([b"", b"", SEQ, b"p"], id="replayed, no topic"),
        pytest.param([b"kv@p1@tiny", SEQ, b"p"], id="replayed to a REQ socket"),
        pytest.param([SEQ, b"p"], id="two frames"),
        pytest.param([b"8letters", SEQ, b"p"], id="a topic as long as a sequence"),
    ],
)
def test_a_batch(frames: list[bytes]) -> None:
    assert read_frames(frames) == (0x102, b"p")


@pytest.mark.parametrize(
    "frames", [[b"", b"", MINUS_ONE, b""], [b"", MINUS_ONE, b""], [MINUS_ONE, b""]]
)
def test_the_end_of_a_replay(frames: list[bytes]) -> None:
    assert read_frames(frames) == (END, b"")


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"p"], id="payload alone"),
        pytest.param([b"topic", b"p"], id="topic and payload"),
        pytest.param([b"kv-event", b"p"], id="a topic of eight letters and payload"),
        pytest.param([b"", b"\x00" * 7, b"p"], id="a short sequence"),
        pytest.param([b"", MAX_SEQ.to_bytes(8, "big"), b"p"], id="a sequence beyond reason"),
    ],
)
def test_a_message_without_a_number(frames: list[bytes]) -> None:
    assert read_frames(frames) == (None, b"p")


def test_a_request() -> None:
    assert replay_request(0x102) == [b"", SEQ]
