"""Frames against the vectors: however a stream is cut, and refused before a body is taken."""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from transload_abi.wire import frames
from transload_abi.wire.errors import BadFrame
from transload_abi.wire.frames import (
    DataBegin,
    DataBytes,
    DescriptorFrame,
    Frame,
    FrameDecoder,
    MessageFrame,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "wire"
CASES: list[dict[str, Any]] = json.loads((VECTORS / "frames.json").read_text())
ACCEPTED = [case for case in CASES if not case["refused"]]
REFUSED = [case for case in CASES if case["refused"]]
BYE = frames.message_frame(b"\x81\xa4type\xa3bye")


def _decoder(case: dict[str, Any]) -> FrameDecoder:
    return FrameDecoder(case["max_data_bytes"], case["max_descriptor_bytes"])


def _told(found: Iterable[Frame]) -> list[dict[str, Any]]:
    """Frames as the vectors tell them."""
    told: list[dict[str, Any]] = []
    for frame in found:
        match frame:
            case MessageFrame(body):
                told.append({"message": body.hex()})
            case DescriptorFrame(body):
                told.append({"descriptor": body.hex()})
            case DataBegin(read, offset, _, None):
                told.append({"read": read, "offset": offset, "data": ""})
            case DataBegin(read, offset, _, checksum):
                told.append({"read": read, "offset": offset, "data": "", "checksum": checksum})
            case DataBytes(data, _):
                told[-1]["data"] += data.hex()
    return told


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: str(case["name"]))
def test_a_stream_in_one_piece(case: dict[str, Any]) -> None:
    decoder = _decoder(case)
    assert _told(decoder.feed(bytes.fromhex(case["stream"]))) == case["frames"]
    assert decoder.is_between_frames


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: str(case["name"]))
def test_a_stream_byte_by_byte(case: dict[str, Any]) -> None:
    decoder, found = _decoder(case), []
    for byte in bytes.fromhex(case["stream"]):
        found += list(decoder.feed(bytes([byte])))
    assert _told(found) == case["frames"]


def test_a_stream_cut_once_at_every_byte() -> None:
    case = next(case for case in ACCEPTED if case["name"] == "mixed")
    stream = bytes.fromhex(case["stream"])
    for cut in range(len(stream) + 1):
        decoder = _decoder(case)
        found = [*decoder.feed(stream[:cut]), *decoder.feed(stream[cut:])]
        assert _told(found) == case["frames"], cut


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case["name"]))
def test_a_bad_header_is_refused_with_its_last_byte(case: dict[str, Any]) -> None:
    decoder, found = _decoder(case), []
    stream = bytes.fromhex(case["stream"])
    last = case["refused_after"] - 1
    for byte in stream[:last]:
        found += list(decoder.feed(bytes([byte])))
    with pytest.raises(BadFrame) as caught:
        list(decoder.feed(stream[last : last + 1]))
    assert _told(found) == case["frames"]
    assert (caught.value.path, caught.value.code) == (case["refused"], "bad_frame")


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: str(case["name"]))
def test_an_encoder_writes_the_same_stream(case: dict[str, Any]) -> None:
    stream = b""
    for said in case["frames"]:
        if "message" in said:
            stream += frames.message_frame(bytes.fromhex(said["message"]))
        elif "descriptor" in said:
            stream += frames.descriptor_frame(bytes.fromhex(said["descriptor"]))
        else:
            data = bytes.fromhex(said["data"])
            head = (said["read"], said["offset"], len(data), said.get("checksum"))
            stream += frames.data_header(*head) + data
    assert stream.hex() == case["stream"]


def test_checksums_are_those_of_the_bytes() -> None:
    checked = [said for case in ACCEPTED for said in case["frames"] if "checksum" in said]
    assert checked
    for said in checked:
        data = bytes.fromhex(said["data"])
        assert frames.checksum_of(data) == said["checksum"] == zlib.crc32(data)
        half = frames.checksum_of(data[:2])
        assert frames.checksum_of(data[2:], half) == said["checksum"]


def test_a_checksum_of_0_is_one() -> None:
    stream = frames.data_header(1, 0, 1, checksum=0) + b"x"
    begin = next(iter(FrameDecoder(max_data_bytes=1).feed(stream)))
    assert begin == DataBegin(1, 0, 1, 0)


def test_data_are_views_of_what_was_fed() -> None:
    stream = bytearray(frames.data_header(1, 0, 4) + b"abcd")
    _, content = FrameDecoder(max_data_bytes=4).feed(stream)
    assert isinstance(content, DataBytes)
    stream[-4:] = b"wxyz"
    assert (bytes(content.data), content.is_last) == (b"wxyz", True)


def test_data_may_be_received_past_the_decoder() -> None:
    decoder = FrameDecoder(max_data_bytes=100)
    begin = list(decoder.feed(frames.data_header(1, 7, 100)))
    assert begin == [DataBegin(1, 7, 100, None)]
    decoder.skip(60)
    assert (decoder.data_left, decoder.is_between_frames) == (40, False)
    decoder.skip(40)
    assert (decoder.data_left, decoder.is_between_frames) == (0, True)
    assert list(decoder.feed(BYE)) == [MessageFrame(BYE[8:])]


def test_no_more_is_skipped_than_the_frame_lacks() -> None:
    decoder = FrameDecoder(max_data_bytes=100)
    list(decoder.feed(frames.data_header(1, 0, 100)))
    with pytest.raises(ValueError, match="101 bytes of a frame that lacks 100"):
        decoder.skip(101)


def test_wanted_never_reaches_into_what_follows() -> None:
    stream = BYE + frames.data_header(1, 0, 3) + b"abc" + BYE
    decoder, asked, at = FrameDecoder(max_data_bytes=3), [], 0
    while at < len(stream):
        asked.append(decoder.wanted)
        list(decoder.feed(stream[at : at + asked[-1]]))
        at += asked[-1]
    assert asked == [8, 10, 8, 24, 3, 8, 10]


@pytest.mark.parametrize("stream", [frames.data_header(1, 0, 1), frames.descriptor_frame(b"\x80")])
def test_what_may_not_come_now_is_called_so(stream: bytes) -> None:
    with pytest.raises(BadFrame, match="none may come now"):
        list(FrameDecoder().feed(stream))


def test_limits_may_change_between_two_frames() -> None:
    decoder = FrameDecoder()
    found = []
    for frame in decoder.feed(BYE + frames.descriptor_frame(b"\x80") + BYE):
        found.append(frame)
        decoder.max_descriptor_bytes = 1 if len(found) == 1 else 0
    assert found == [MessageFrame(BYE[8:]), DescriptorFrame(b"\x80"), MessageFrame(BYE[8:])]


def test_a_stream_that_ends_amid_a_header_or_body_is_not_whole() -> None:
    for length in range(1, len(BYE)):
        decoder = FrameDecoder()
        assert list(decoder.feed(BYE[:length])) == []
        assert not decoder.is_between_frames
