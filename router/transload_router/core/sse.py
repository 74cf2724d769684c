"""Server-sent events seen from the side: where events end, and what one event says.

Nothing here changes bytes. `EventFramer` holds back an event that is not whole yet, so that a
stream which dies inside an event never leaves half of one with the client: an error event can
follow, which it could not after `data: {"choi`.
"""

import re

# Two line ends, each \n, \r\n or \r. A \r at the very end may be the first half of \r\n; the
# event has ended all the same, and the \n merely comes with the next one.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
# An unfinished event longer than this is relayed as it comes: no engine writes such, and the
# router's memory is not the client's to fill.
MAX_HELD_BYTES = 1 << 20


class EventFramer:
    """Cuts a stream at the ends of events, keeping every byte.

    Attributes:
        last_event: The newest bytes given out, at least one whole event.
    """

    __slots__ = ("_cut", "_held", "_num_held_bytes", "last_event")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._num_held_bytes = 0
        # Last byte of an event that was too long to hold.
        self._cut = b""
        self.last_event = b""

    @property
    def is_inside_event(self) -> bool:
        """Whether the bytes given out end inside an event, which only an oversized one does."""
        return self._cut != b""

    def push(self, data: bytes) -> bytes:
        """Take bytes as they came; give those that end with a whole event.

        The concatenation of all results and of `flush` equals that of all arguments.
        """
        if not self._held and data.endswith(b"\n\n"):
            self._cut = b""
            self.last_event = data
            return data
        # An end may straddle the seam by one character, no more.
        seam = self._held[-1][-1:] if self._held else self._cut
        end = _last_event_end(seam + data) - len(seam)
        if end <= 0:
            return self._hold(data)
        whole = b"".join((*self._held, data[:end]))
        self._held = [data[end:]] if end < len(data) else []
        self._num_held_bytes = len(data) - end
        self._cut = b""
        self.last_event = whole
        return whole

    def _hold(self, data: bytes) -> bytes:
        if data:
            self._held.append(data)
            self._num_held_bytes += len(data)
        if self._num_held_bytes <= MAX_HELD_BYTES:
            return b""
        self._cut = self._held[-1][-1:]
        return self.flush()

    def flush(self) -> bytes:
        """What a finished stream left behind its last event."""
        held = b"".join(self._held)
        self._held = []
        self._num_held_bytes = 0
        return held


def _last_event_end(data: bytes) -> int:
    """Offset behind the last event's end, 0 if none ends in `data`."""
    newest = max(data.rfind(b"\n\n"), data.rfind(b"\n\r"), data.rfind(b"\r\r"))
    match = _EVENT_END.match(data, newest) if newest >= 0 else None
    return match.end() if match else 0


def split_events(data: bytes) -> list[bytes]:
    """Whole events with their ends, as `EventFramer.push` gives them; concatenate to `data`."""
    events = []
    start = 0
    while start < len(data):
        match = _EVENT_END.search(data, start)
        end = match.end() if match else len(data)
        events.append(data[start:end])
        start = end
    return events


def event_data(event: bytes) -> bytes:
    """An event's data: its `data` lines' values, joined by newlines; b"" for comments."""
    values = []
    for line in _LINE_END.split(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(values)
