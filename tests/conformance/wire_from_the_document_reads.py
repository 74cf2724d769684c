"""A read as its reader sees it: `connector/WIRE.md`, 9. Knows nothing of sockets."""

from dataclasses import dataclass, field
from typing import Any, Final

from conformance.wire_from_the_document_frames import Frame

MAX_PIECES: Final = 64


@dataclass
class Read:
    """What was asked for, what has come of it, and how it ended.

    `failed` says why its bytes are worthless; `stream_is_lost` that no more can come.
    """

    message: dict[str, Any]
    num_bytes: int
    answer: dict[str, Any] | None = None
    failed: str = ""
    stream_is_lost: bool = False
    data: bytearray = field(init=False)
    _pieces: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = bytearray(self.num_bytes)

    @property
    def num_received(self) -> int:
        return sum(end - first for first, end in self._pieces)

    @property
    def is_complete(self) -> bool:
        """Whether the bytes may be used."""
        ended = self.answer is not None and self.answer["type"] == "read_end"
        return ended and not self.failed and self._pieces == [(0, self.num_bytes)]

    @property
    def is_over(self) -> bool:
        if self.answer is None:
            return False
        is_short = self.answer["type"] == "read_end" and not self.is_complete
        may_come = self.message["stream"] and not self.stream_is_lost
        return not (is_short and may_come and not self.failed)

    def take(self, frame: Frame, stream: int) -> None:
        """Put data to where they belong, or fail; what comes after the end is dropped."""
        if self.failed or (self.answer and self.answer["type"] != "read_end") or self.is_complete:
            return
        self.failed = self._why_wrong(frame, stream)
        if not self.failed:
            self.data[frame.offset : frame.offset + len(frame.body)] = frame.body

    def _why_wrong(self, frame: Frame, stream: int) -> str:
        first, end = frame.offset, frame.offset + len(frame.body)
        if end > self.num_bytes:
            return "data beyond the payload"
        if stream != self.message["stream"]:
            return "data on another stream"
        if self.message["checksums"] and frame.checksum is None:
            return "data without a checksum"
        if frame.has_wrong_checksum:
            return "data with a wrong checksum"
        if any(first < high and low < end for low, high in self._pieces):
            return "data came twice"
        joined: list[tuple[int, int]] = []
        for low, high in sorted([*self._pieces, (first, end)]):
            if joined and joined[-1][1] == low:
                joined[-1] = (joined[-1][0], high)
            else:
                joined.append((low, high))
        self._pieces = joined
        return "" if len(joined) <= MAX_PIECES else f"more than {MAX_PIECES} pieces"
