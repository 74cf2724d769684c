"""Bytes of a stream as frames: messages, descriptors, and data that nobody has to copy.

A frame is a header of 8 bytes and a body; a data frame's body begins with 24 bytes more. All
numbers are little-endian.

**Data go where they belong.** Of a data frame the decoder hands out `DataBegin` as soon as its
header is there, and then its bytes in pieces as they come, so a frame of 8 MiB is never held. Who
reads a socket need not even pass the bytes through: while `data_left` is above 0, so many bytes may
be received straight into their destination, and `skip` tells the decoder. `wanted` bytes at most
are to be asked for in between, so that nothing beyond a header is taken from the socket.

Knows nothing of what messages say (`codec`), nor whose turn it is: the owner says by
`max_data_bytes`, `max_descriptor_bytes` and `max_message_bytes` what may come, and may change them
between two frames.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from transload_abi.limits import MAX_INTEGER
from transload_abi.wire.errors import BadFrame
from transload_abi.wire.limits import MAX_MESSAGE_BYTES

Buffer = bytes | bytearray | memoryview

MESSAGE: Final = 1
DATA: Final = 2
DESCRIPTOR: Final = 3

HAS_CHECKSUM: Final = 1
"""Of the flags of a data frame; there are no others."""

_HEADER: Final = struct.Struct("<IB3s")
_DATA_HEADER: Final = struct.Struct("<IIQII")
HEADER_BYTES: Final = _HEADER.size
DATA_HEADER_BYTES: Final = _DATA_HEADER.size
_NO_BYTES: Final = bytes(3)


class MessageFrame(NamedTuple):
    """The body of a message, see `codec.decode`."""

    body: bytes


class DescriptorFrame(NamedTuple):
    """A descriptor's MessagePack twin, see `transload_abi.read`."""

    body: bytes


class DataBegin(NamedTuple):
    """Bytes of a read follow.

    Attributes:
        read: Its id.
        offset: Of the first of them, in the read's payload.
        num_bytes: How many.
        checksum: Their CRC-32; None where the frame has none.
    """

    read: int
    offset: int
    num_bytes: int
    checksum: int | None


class DataBytes(NamedTuple):
    """The next bytes of the data frame that has begun.

    Attributes:
        data: A view of what was fed; valid as long as that is.
        is_last: Whether the frame ends with them.
    """

    data: memoryview
    is_last: bool


Frame = MessageFrame | DescriptorFrame | DataBegin | DataBytes


def message_frame(body: bytes) -> bytes:
    """A message's body with its header."""
    return _HEADER.pack(len(body), MESSAGE, _NO_BYTES) + body


def descriptor_frame(body: bytes) -> bytes:
    """A descriptor's twin with its header."""
    return _HEADER.pack(len(body), DESCRIPTOR, _NO_BYTES) + body


def data_header(read: int, offset: int, num_bytes: int, checksum: int | None = None) -> bytes:
    """What precedes `num_bytes` bytes of a read: both headers of the data frame."""
    flags = 0 if checksum is None else HAS_CHECKSUM
    return _HEADER.pack(DATA_HEADER_BYTES + num_bytes, DATA, _NO_BYTES) + _DATA_HEADER.pack(
        read, flags, offset, checksum or 0, 0
    )


def checksum_of(data: Buffer, so_far: int = 0) -> int:
    """The CRC-32 of bytes, or of those before and these."""
    return zlib.crc32(data, so_far)


class FrameDecoder:
    """Frames out of a stream's bytes, however they are cut.

    Holds one header, or one body of a message or descriptor as far as it has come. After a
    `BadFrame` it is of no more use, as the stream is.

    Attributes:
        max_data_bytes: Of the bytes in a data frame; 0: none may come.
        max_descriptor_bytes: Of a descriptor; 0: none may come.
        max_message_bytes: Of a message.
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
        self._held = bytearray()
        self._kind = 0
        self._part_bytes = HEADER_BYTES
        self._num_data = 0
        self._data_left = 0

    @property
    def data_left(self) -> int:
        """Bytes that the data frame which has begun still lacks; 0 outside of such a frame."""
        return self._data_left

    @property
    def wanted(self) -> int:
        """Bytes up to the end of the header, body or data under way, at least one."""
        return self._data_left or self._part_bytes - len(self._held)

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here."""
        return not (self._kind or self._held or self._data_left)

    def skip(self, num_bytes: int) -> None:
        """So many bytes of the data frame were received without the decoder.

        Args:
            num_bytes: At most `data_left`.
        """
        if not 0 <= num_bytes <= self._data_left:
            raise ValueError(f"{num_bytes} bytes of a frame that lacks {self._data_left}")
        self._data_left -= num_bytes

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """What the next bytes complete; to be iterated to its end before more are fed.

        Raises:
            BadFrame: A header that breaks the rules, before any of its body is taken.
        """
        view = memoryview(data)
        while view:
            if self._data_left:
                taken = view[: self._data_left]
                self._data_left -= len(taken)
                view = view[len(taken) :]
                yield DataBytes(taken, self._data_left == 0)
                continue
            lacking = self._part_bytes - len(self._held)
            self._held += view[:lacking]
            if len(view) < lacking:
                return
            view = view[lacking:]
            part = bytes(self._held)
            self._held.clear()
            frame = self._part(part)
            if frame is not None:
                yield frame

    def _part(self, part: bytes) -> Frame | None:
        """What a whole header or body amounts to; sets what comes next."""
        if not self._kind:
            self._begin(*_HEADER.unpack(part))
            return None
        kind, self._kind = self._kind, 0
        self._part_bytes = HEADER_BYTES
        if kind == MESSAGE:
            return MessageFrame(part)
        if kind == DESCRIPTOR:
            return DescriptorFrame(part)
        begin = _data_begin(part, self._num_data)
        self._data_left = begin.num_bytes
        return begin

    def _begin(self, num_bytes: int, kind: int, rest: bytes) -> None:
        """Take a frame's header."""
        if rest != _NO_BYTES:
            raise BadFrame(f"expected three zero bytes in a header, got {rest.hex()}", "frame")
        if kind == DATA:
            self._num_data = num_bytes - DATA_HEADER_BYTES
            _check_length(self._num_data, self.max_data_bytes, "data")
            self._part_bytes = DATA_HEADER_BYTES
        elif kind == MESSAGE:
            _check_length(num_bytes, self.max_message_bytes, "message")
            self._part_bytes = num_bytes
        elif kind == DESCRIPTOR:
            _check_length(num_bytes, self.max_descriptor_bytes, "descriptor")
            self._part_bytes = num_bytes
        else:
            raise BadFrame(f"expected kind 1, 2 or 3, got {kind}", "frame")
        self._kind = kind


def _check_length(num_bytes: int, most: int, what: str) -> None:
    if most == 0:
        raise BadFrame("none may come now", what)
    if not 1 <= num_bytes <= most:
        raise BadFrame(f"expected 1 to {most} bytes, got {num_bytes}", what)


def _data_begin(header: bytes, num_bytes: int) -> DataBegin:
    read, flags, offset, checksum, zero = _DATA_HEADER.unpack(header)
    if read == 0:
        raise BadFrame("expected the id of a read, got 0", "data.read")
    if flags & ~HAS_CHECKSUM:
        raise BadFrame(f"expected no flag but 1, got {flags}", "data.flags")
    if offset + num_bytes > MAX_INTEGER:
        raise BadFrame("ends beyond 2**53 - 1", "data.offset")
    if zero or (checksum and not flags):
        raise BadFrame("expected 0 where no checksum is", "data.checksum")
    return DataBegin(read, offset, num_bytes, checksum if flags else None)
