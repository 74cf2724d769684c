"""Plays one side of a recorded session of `tests/vectors/wire/sessions` to a live other side.

Frames are compared byte for byte, but for the reasons of refusals, errors and byes, whose words are
the speaker's own, and for data of a read that is cancelled, which may come or not.
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
    """A recorded session; `at` is the step that is to come, `sides` are those to be played."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text())
        self.steps: list[Step] = found["steps"]
        self.sides: dict[str, Step] = {k: v for k, v in found.items() if k in ("holder", "reader")}
        self.at = 0
        self._moved = Condition()

    def step_of(self, read: int, offset: int) -> int | None:
        """The step with data of a read from an offset on."""
        named = [
            i
            for i, s in enumerate(self.steps)
            if (s.get("read"), s.get("offset")) == (read, offset)
        ]
        return named[0] if named else None

    def ends_by(self, read: int, *kinds: str) -> bool:
        """Whether a read got such an answer."""
        said = [step["message"] for step in self.steps if "message" in step]
        return any(m["type"] in kinds and m.get("id") == read for m in said)

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
                if (
                    "read" in step
                    and frame.kind != DATA
                    and session.ends_by(step["read"], "cancelled")
                ):
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
    if step.get("message", {}).get("type") in ("error", "refuse", "bye"):
        heard, known = (decode_message(body, step["from"]) for body in (frame.body, wanted[8:]))
        return {**heard, "reason": ""} == {**known, "reason": ""}
    return write_frame(frame.kind, frame.body) == wanted
