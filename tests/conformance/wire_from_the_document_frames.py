"""Frames and proofs of `connector/WIRE.md`, 2 and 4. Knows nothing of what messages say."""

import hashlib
import hmac
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from conformance.wire_from_the_document_packing import MAX_NUMBER, need, pack, unpack

MESSAGE: Final = 1
DATA: Final = 2
DESCRIPTOR: Final = 3
MAX_MESSAGE_BYTES: Final = 65_536
MAX_UNPROVEN_BYTES: Final = 4096  # of a message before a proof, or on a data stream
MAX_DESCRIPTOR_BYTES: Final = 1_048_576
_HEADER: Final = struct.Struct("<II")
_DATA_HEADER: Final = struct.Struct("<IIQII")
_NAMES: Final = {MESSAGE: "message", DATA: "data", DESCRIPTOR: "descriptor"}


@dataclass(frozen=True)
class Frame:
    """A message (`kind` 1) or a descriptor (3) by its body, or some data (2) of a read."""

    kind: int
    body: bytes
    read: int = 0
    offset: int = 0
    checksum: int | None = None

    @property
    def has_wrong_checksum(self) -> bool:
        return self.checksum is not None and self.checksum != zlib.crc32(self.body)


def write_frame(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(len(body), kind) + body


def write_data(read: int, offset: int, data: bytes, has_checksum: bool) -> bytes:
    crc = zlib.crc32(data) if has_checksum else 0
    header = _DATA_HEADER.pack(read, int(has_checksum), offset, crc, 0)
    return write_frame(DATA, header + data)


class FrameReader:
    """Bytes in as they come, frames out; refuses as soon as a header is there.

    What may come may change between frames; of data and descriptors none at 0.
    """

    def __init__(
        self,
        max_data_bytes: int = 0,
        max_descriptor_bytes: int = 0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.max_data_bytes = max_data_bytes
        self.max_descriptor_bytes = max_descriptor_bytes
        self.max_message_bytes = max_message_bytes
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    @property
    def is_between_frames(self) -> bool:
        return not self._bytes

    def next(self) -> Frame | None:
        """Take the next frame, if all of it has come."""
        if len(self._bytes) < _HEADER.size:
            return None
        length, kind = _HEADER.unpack_from(self._bytes)
        self._check_header(length, kind)
        header: tuple[int, int, int, int, int] | None = None
        if kind == DATA:
            if len(self._bytes) < _HEADER.size + _DATA_HEADER.size:
                return None
            read, flags, offset, checksum, end = _DATA_HEADER.unpack_from(self._bytes, _HEADER.size)
            header = (read, flags, offset, checksum, end)
            _check_data_header(header, length - _DATA_HEADER.size)
        if len(self._bytes) < _HEADER.size + length:
            return None
        body = bytes(self._bytes[_HEADER.size : _HEADER.size + length])
        del self._bytes[: _HEADER.size + length]
        if header is None:
            return Frame(kind, body)
        read, flags, offset, checksum, _ = header
        return Frame(kind, body[_DATA_HEADER.size :], read, offset, checksum if flags else None)

    def _check_header(self, length: int, kind: int) -> None:
        need(kind in _NAMES, "frame", "no such kind, or bytes 5 to 7 are not 0")
        name = _NAMES[kind]
        if kind == MESSAGE:
            need(1 <= length <= self.max_message_bytes, name, f"{length} bytes")
        elif kind == DESCRIPTOR:
            need(self.max_descriptor_bytes, name, "may not come now")
            need(1 <= length <= self.max_descriptor_bytes, name, f"{length} bytes")
        else:
            need(self.max_data_bytes, name, "may not come now")
            num_bytes = length - _DATA_HEADER.size
            need(1 <= num_bytes <= self.max_data_bytes, name, f"{length} bytes")


def _check_data_header(header: tuple[int, int, int, int, int], num_bytes: int) -> None:
    read, flags, offset, checksum, end = header
    need(read, "data.read", "is 0")
    need(flags in (0, 1), "data.flags", "an unknown flag")
    need(offset + num_bytes <= MAX_NUMBER, "data.offset", "ends beyond 2^53-1")
    need(end == 0, "data.checksum", "bytes 20 to 23 are not 0")
    need(flags or not checksum, "data.checksum", "is there without its flag")


# --- 4: proofs -----------------------------------------------------------------------------------


def transcript(hello: bytes, welcome: bytes) -> bytes:
    """Digest the bodies of both, in their frames, `welcome` with zeros for a proof.

    A body has one spelling, so that writing it again changes the proof alone.
    """
    blank = pack({**unpack(welcome), "proof": "0" * 64})
    return hashlib.sha256(write_frame(MESSAGE, hello) + write_frame(MESSAGE, blank)).digest()


def prove(token: bytes, who: str, digest: bytes) -> bytes:
    """Make the proof of the `holder` or the `reader`, or the key of the `session`."""
    return hmac.digest(token, b"kvwire/1 " + who.encode() + digest, "sha256")


def prove_stream(session_key: bytes, session: str, stream: int) -> bytes:
    named = b"kvwire/1 stream" + bytes.fromhex(session) + stream.to_bytes(4, "little")
    return hmac.digest(session_key, named, "sha256")


def is_proof(token: bytes, given: str, right: bytes) -> bool:
    """Whether a proof is to be taken; without a token nobody looks at it."""
    return not token or hmac.compare_digest(given, right.hex())
