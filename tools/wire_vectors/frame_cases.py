"""Streams of frames, and streams that break off at a header that no side may take."""

from typing import NamedTuple

from wire_vectors.spelling import Document, data, frame, message

MAX_DATA = 1 << 12
MAX_DESCRIPTOR = 1 << 20


class FrameCase(NamedTuple):
    """A stream and what is in it.

    Attributes:
        name: Of the case.
        stream: Its bytes.
        frames: What comes out.
        max_data_bytes: Of data frames that may come; 0: none.
        max_descriptor_bytes: Likewise of a descriptor.
        refused: Part and field that are refused after these frames; empty: nothing is.
        refused_after: Bytes after which it must have been.
    """

    name: str
    stream: bytes
    frames: list[Document]
    max_data_bytes: int = MAX_DATA
    max_descriptor_bytes: int = MAX_DESCRIPTOR
    refused: str = ""
    refused_after: int = 0


def _content(num_bytes: int) -> bytes:
    return bytes(number * 7 % 256 for number in range(num_bytes))


def _data(read: int, offset: int, num_bytes: int, *, has_checksum: bool) -> tuple[bytes, Document]:
    whole = data(read, offset, _content(num_bytes), has_checksum=has_checksum)
    said: Document = {"read": read, "offset": offset, "data": _content(num_bytes).hex()}
    if has_checksum:
        said["checksum"] = int.from_bytes(whole[24:28], "little")
    return whole, said


def _message(document: Document) -> tuple[bytes, Document]:
    whole = message(document)
    return whole, {"message": whole[8:].hex()}


def accepted() -> list[FrameCase]:
    """Streams of several frames."""
    bye = _message({"type": "bye"})
    mixed = [
        _message({"type": "cancel", "id": 1}),
        _data(1, 0, 5, has_checksum=True),
        _data(2, 1 << 40, 1, has_checksum=False),
        bye,
        _data(1, 5, 300, has_checksum=True),
        (frame(3, b"\x81\xa3abi\x00"), {"descriptor": "81a361626900"}),
        _data((1 << 32) - 1, (1 << 53) - 3, 2, has_checksum=False),
        bye,
    ]
    largest = _data(1, 0, MAX_DATA, has_checksum=True)
    empty = data(9, 0, b"\0", has_checksum=False)
    return [
        FrameCase("mixed", b"".join(raw for raw, _ in mixed), [said for _, said in mixed]),
        FrameCase("largest-data", largest[0] + bye[0], [largest[1], bye[1]]),
        FrameCase("message-alone", bye[0], [bye[1]], max_data_bytes=0, max_descriptor_bytes=0),
        FrameCase("one-zero-byte", empty, [{"read": 9, "offset": 0, "data": "00"}]),
    ]


def refused() -> list[FrameCase]:
    """Each after a good frame."""
    bye, said = _message({"type": "bye"})
    headers: list[tuple[str, str, bytes]] = [
        ("kind-0", "frame", _header(1, 0)),
        ("kind-4", "frame", _header(1, 4)),
        ("byte-5-not-zero", "frame", bytes([1, 0, 0, 0, 1, 1, 0, 0])),
        ("byte-7-not-zero", "frame", bytes([1, 0, 0, 0, 1, 0, 0, 128])),
        ("message-of-no-bytes", "message", _header(0, 1)),
        ("message-too-long", "message", _header((1 << 16) + 1, 1)),
        ("length-big-endian", "message", bytes([0, 0, 0, 10, 1, 0, 0, 0])),
        ("descriptor-of-no-bytes", "descriptor", _header(0, 3)),
        ("descriptor-too-long", "descriptor", _header((1 << 20) + 1, 3)),
        ("data-without-its-header", "data", _header(23, 2)),
        ("data-of-no-bytes", "data", _header(24, 2)),
        ("data-too-long", "data", _header(24 + MAX_DATA + 1, 2)),
        ("data-of-read-0", "data.read", _data_head(read=0)),
        ("data-with-an-unknown-flag", "data.flags", _data_head(flags=2)),
        ("data-beyond-all-numbers", "data.offset", _data_head(offset=(1 << 53) - 1)),
        ("data-whose-end-is-not-zero", "data.checksum", _data_head(zero=1)),
        ("data-with-a-checksum-and-no-flag", "data.checksum", _data_head(checksum=5)),
    ]
    cases = [
        FrameCase(name, bye + head, [said], refused=path, refused_after=len(bye + head))
        for name, path, head in headers
    ]
    none: list[tuple[str, str, bytes]] = [
        ("data-that-may-not-come", "data", _header(25, 2)),
        ("descriptor-that-may-not-come", "descriptor", _header(1, 3)),
    ]
    return cases + [
        FrameCase(name, bye + head, [said], 0, 0, path, len(bye + head))
        for name, path, head in none
    ]


def _header(num_bytes: int, kind: int) -> bytes:
    return frame(kind, b"")[4:].join([num_bytes.to_bytes(4, "little"), b""])


def _data_head(
    read: int = 1, flags: int = 0, offset: int = 0, checksum: int = 0, zero: int = 0
) -> bytes:
    """Both headers of a frame of one byte."""
    return (
        _header(25, 2)
        + read.to_bytes(4, "little")
        + flags.to_bytes(4, "little")
        + offset.to_bytes(8, "little")
        + checksum.to_bytes(4, "little")
        + zero.to_bytes(4, "little")
    )
