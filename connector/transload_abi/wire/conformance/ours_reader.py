"""Our reader as one side of a recorded session."""

from collections.abc import Iterator
from typing import Final

import msgspec

from transload_abi.harness.protocol import Fields
from transload_abi.text import encode_msgpack, read
from transload_abi.types import Descriptor
from transload_abi.wire import messages
from transload_abi.wire.payload import payload_of
from transload_abi.wire.reader import ReaderSession
from transload_abi.wire.reader_events import Data, ReadComplete, ReaderEvent, Ready
from transload_abi.wire.reader_state import ReaderSettings

_NOW: Final = 0.0
"""No time passes."""

_Ranges = tuple[messages.Range, ...]


def play_reader(fields: Fields, descriptor: Descriptor | None) -> Fields:
    """What our reader says to each of the events, and the bytes of the reads that became whole."""
    play = _ReaderPlay(fields, descriptor)
    said = [list(play.take(event)) for event in fields["events"]]
    return {"said": said, "reads": {str(id_): play.data[id_].hex() for id_ in play.whole}}


class _ReaderPlay:
    """One session.

    Attributes:
        data: Of each read what has come.
        whole: The reads whose bytes may be used.
    """

    def __init__(self, fields: Fields, descriptor: Descriptor | None) -> None:
        settings = ReaderSettings(
            fields["engine"],
            fields["generation"],
            None if descriptor is None else encode_msgpack(descriptor),
            bytes.fromhex(fields["token"]),
            fields["max_data_bytes"],
            tuple(fields.get("features", ())),
        )
        self._session = ReaderSession(settings, fields["nonce"], _NOW)
        self._holder: Descriptor | None = None
        self.data: dict[int, bytearray] = {}
        self.whole: list[int] = []

    def take(self, event: Fields) -> Iterator[Fields]:
        """What is said to one event."""
        if "ask" in event:
            yield from self._ask(event["ask"])
        else:
            stream, data = event["stream"], bytes.fromhex(event["bytes"])
            self._note(self._session.feed(stream, data, _NOW))
        if owed := self._session.data_to_send():
            yield {"stream": 0, "bytes": owed.hex()}

    def _ask(self, wish: Fields) -> Iterator[Fields]:
        """What the owner wants; yields what goes out on another stream than the control stream."""
        session = self._session
        match wish:
            case {"type": "hello"}:
                session.begin(_NOW)
            case {"type": "attach", "stream": stream}:
                yield {"stream": stream, "bytes": session.attach(stream, _NOW).hex()}
            case {"type": "open"}:
                session.open(wish["handoff"], wish["lease"], wish["reader"], _NOW)
            case {"type": "read"}:
                self._read(msgspec.convert(wish, messages.Read))
            case {"type": "map", "table": table}:
                session.map(wish["handoff"], table, msgspec.convert(wish["blocks"], _Ranges), _NOW)
            case {"type": "cancel", "id": id_}:
                self._note(session.cancel(id_, _NOW))
            case {"type": "forgo"}:
                session.forgo(wish["handoff"], wish["lease"], _NOW)
            case {"type": "bye"}:
                self._note(session.end(wish.get("reason", ""), _NOW))
            case {"type": "confirm" | "renew" | "done" | "release" as name}:
                getattr(session, name)(wish["handoff"], _NOW)

    def _read(self, wanted: messages.Read) -> None:
        assert self._holder is not None
        num_bytes = payload_of(self._holder, wanted).num_bytes(wanted.blocks)
        self.data[self._session.read(wanted, num_bytes, _NOW)] = bytearray(num_bytes)

    def _note(self, events: list[ReaderEvent]) -> None:
        for event in events:
            match event:
                case Ready(_, _, descriptor) if descriptor:
                    self._holder = read(descriptor)
                case Data(id_, offset, data):
                    self.data[id_][offset : offset + len(data)] = data
                case ReadComplete(id_):
                    self.whole.append(id_)
                case _:
                    pass
