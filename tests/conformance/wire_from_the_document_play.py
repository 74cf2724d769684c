"""Plays one side of a recorded session of `tests/vectors/wire/sessions` to a live other side.

Frames are compared byte for byte, but for the reasons of refusals and errors, whose words are the
speaker's own, and for data of a read that is cancelled, which may come or not.
"""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Condition
from typing import Any, Final

from conformance.wire_from_the_document_frames import DATA, Frame, write_data, write_frame
from conformance.wire_from_the_document_messages import decode_message
from conformance.wire_from_the_document_streams import Stream

WAIT_S: Final = 10.0
Step = dict[str, Any]


class Session:
    """A recorded session; `at` is the step that is to come."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text())
        self.steps: list[Step] = found["steps"]
        self.token = bytes.fromhex(found["token"])
        self.memory = {pool: bytes.fromhex(data) for pool, data in found["memory"].items()}
        self.tables = {int(table): ids for table, ids in found["handoff"]["tables"].items()}
        self.at = 0
        self._moved = Condition()

    def message(self, kind: str) -> Step:
        """The first message of a type; empty where there is none."""
        said = [step["message"] for step in self.steps if "message" in step]
        return next((dict(message) for message in said if message["type"] == kind), {})

    def descriptor(self, sender: str) -> Step:
        """What a side said of itself; empty where it did not."""
        found = [s for s in self.steps if s["from"] == sender and "descriptor" in s]
        return dict(found[0]["descriptor"]) if found else {}

    def step_of(self, read: int, offset: int) -> int | None:
        """The step with data of a read from an offset on."""
        named = [
            i
            for i, s in enumerate(self.steps)
            if (s.get("read"), s.get("offset")) == (read, offset)
        ]
        return named[0] if named else None

    def is_cancelled(self, read: int) -> bool:
        return any(s.get("message") == {"type": "cancelled", "id": read} for s in self.steps)

    def advance(self) -> None:
        with self._moved:
            self.at += 1
            self._moved.notify_all()

    def wait_until(self, step: int) -> bool:
        with self._moved:
            return self._moved.wait_for(lambda: self.at >= step, WAIT_S)


def play(session: Session, side: str, connect: Callable[[], socket.socket]) -> list[str]:
    """Say what `side` said and hear what the other says; what differs, if anything does.

    `connect` gives the player's end of a stream as it is first needed.
    """
    streams: dict[int, Stream] = {}
    early: dict[int, Frame] = {}
    try:
        for i, step in enumerate(session.steps):
            number = step["stream"]
            if number not in streams:
                streams[number] = Stream(connect())
                streams[number].frames.max_data_bytes = 1 << 20
                streams[number].frames.max_descriptor_bytes = 1 << 20
            if step["from"] == side:
                streams[number].send(bytes.fromhex(step["bytes"]))
            else:
                frame = early.pop(number, None)
                frame = frame or streams[number].receive(time.monotonic() + WAIT_S)
                if "read" in step and frame.kind != DATA and session.is_cancelled(step["read"]):
                    early[number] = frame
                elif not _is_same(frame, step):
                    return [f"step {i}: expected {step}, came {frame}"]
            session.advance()
        return []
    finally:
        for stream in streams.values():
            stream.close_after()


def _is_same(frame: Frame, step: Step) -> bool:
    wanted = bytes.fromhex(step["bytes"])
    if frame.kind == DATA:
        has_checksum = frame.checksum is not None
        said = write_data(frame.read, frame.offset, frame.body, has_checksum)
        return said == wanted and not frame.has_wrong_checksum
    if step.get("message", {}).get("type") in ("error", "refuse"):
        heard, known = (decode_message(body, step["from"]) for body in (frame.body, wanted[8:]))
        return {**heard, "reason": ""} == {**known, "reason": ""}
    return write_frame(frame.kind, frame.body) == wanted
