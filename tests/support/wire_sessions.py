"""Whole sessions of the vectors, played by one of our sides: it must send each byte that is theirs.

What the other side sends is taken from the vector, so neither of our machines helps the other.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from transload_abi import read
from transload_abi.compare import compare
from transload_abi.text import encode_msgpack
from transload_abi.types import Descriptor
from transload_abi.wire import codec, frames, messages
from transload_abi.wire.holder_state import (
    Compatible,
    HolderEvent,
    HolderSettings,
    Incompatible,
    Serve,
)
from transload_abi.wire.ledger import Ledger
from transload_abi.wire.payload import payload_of
from transload_abi.wire.pool_files import PoolFiles
from transload_abi.wire.reader import ReaderSession
from transload_abi.wire.reader_events import ReaderEvent
from transload_abi.wire.reader_state import ReaderSettings
from transload_abi.wire.reception import Link, Reception
from transload_abi.wire.sizes import size_of

FOLDER = Path(__file__).parents[1] / "vectors" / "wire" / "sessions"
SESSIONS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.iterdir())
}
Step = dict[str, Any]


def descriptor_of(session: dict[str, Any], side: str) -> tuple[bytes, Descriptor] | None:
    """As it is sent, and what it says."""
    tree = session[side]["descriptor"]
    if tree is None:
        return None
    found = read(json.dumps(tree).encode())
    return encode_msgpack(found), found


def _meaning(frame: bytes, sender: codec.Sender) -> object:
    """A frame; of a message that gives a reason all but the words."""
    if frame[4:5] != bytes([frames.MESSAGE]):
        return frame
    message = codec.decode(frame[frames.HEADER_BYTES :], sender)
    has_reason = isinstance(message, messages.Refuse | messages.Error | messages.Bye)
    return msgspec.structs.replace(message, reason="") if has_reason else frame


class HolderSide:
    """Our holder in a session of the vectors.

    Args:
        session: The vector.
    """

    def __init__(self, session: dict[str, Any]) -> None:
        side = session["holder"]
        found = descriptor_of(session, "holder")
        assert found is not None
        body, self.holder = found
        self.now = 0.0
        self.ledger = Ledger()
        self.tables: dict[str, list[int]] = {}
        self.memory = {name: bytes.fromhex(text) for name, text in side["pools"].items()}
        if "files" in side:
            self.files = PoolFiles(self.holder, side["files"])
        self._grant(side["handoff"])
        settings = HolderSettings(
            side["engine"],
            side["generation"],
            body,
            bytes.fromhex(side["token"]),
            side["max_data_bytes"],
            side["max_streams"],
            tuple(side.get("features", ())),
        )
        self.reception = Reception(
            settings,
            self.ledger,
            self._judge,
            lambda wanted, tables: size_of(self.holder, wanted, tables),
            self._locate if messages.SHM in settings.features else None,
        )
        self.nonces = side["session"], side["nonce"]
        self.links: dict[int, Link] = {}
        self.owed: dict[int, bytes] = defaultdict(bytes)
        self.serving: dict[int, Serve] = {}
        self.allowed: set[int] = set()
        self.steps: list[Step] = session["steps"]

    def _judge(self, descriptor: bytes) -> Compatible | Incompatible:
        found = compare(self.holder, read(descriptor))
        if found.verdict == "refused":
            return Incompatible(found.refusal.path, found.refusal.reason)
        return Compatible(found.verdict)

    def _locate(self, asked: messages.Map, _lease: str) -> messages.Mapped:
        return self.files.mapped(asked, self.tables[str(asked.table)])

    def _grant(self, handoff: dict[str, Any] | None) -> None:
        if handoff:
            self.tables = handoff["tables"]
            tables = tuple(messages.Table(int(name), len(ids)) for name, ids in self.tables.items())
            counts = handoff["num_tokens"], handoff["readers"]
            self.ledger.grant(handoff["handoff"], handoff["lease"], tables, *counts, self.now)

    def play(self) -> None:
        """All steps; what is ours must be as they say, and nothing more."""
        for at, step in enumerate(self.steps):
            frame, stream = bytes.fromhex(step["bytes"]), step["stream"]
            if step["from"] == "reader":
                if stream not in self.links:
                    self.links[stream] = self.reception.connect(*self.nonces, self.now)
                self._note(self.links[stream].feed(frame, self.now))
            elif "data" in step:
                assert self._data_frame(step) == frame
                self._session.sent(step["read"], len(step["data"]) // 2, self.now)
                self.allowed.discard(step["read"])
            else:
                self._expire_for(step)
                self._drain()
                self._compare(stream, frame)
            self._allow(at)
        self._drain()
        assert set(self.owed.values()) <= {b""}

    def _compare(self, stream: int, frame: bytes) -> None:
        """Our next frame on a stream is this one; a refusal's words do not bind."""
        num_bytes = int.from_bytes(self.owed[stream][:4], "little") + frames.HEADER_BYTES
        ours, self.owed[stream] = self.owed[stream][:num_bytes], self.owed[stream][num_bytes:]
        assert _meaning(ours, "holder") == _meaning(frame, "holder")

    @property
    def _session(self) -> Any:
        return self.links[0].session

    def _allow(self, at: int) -> None:
        """The next frame of each read is under way before whatever comes ahead of it is heard."""
        for later in self.steps[at + 1 :]:
            id_ = later.get("read")
            if id_ in self.serving and id_ not in self.allowed:
                self.allowed.add(id_)
                assert self._session.may_send(id_, self.now)

    def _expire_for(self, step: Step) -> None:
        """Where the vector's lease ends, so does ours."""
        message = step.get("message", {})
        if message.get("type") == "expired" and message.get("id") in self.serving:
            self.now += 31.0
            assert not self._session.may_send(message["id"], self.now)

    def _data_frame(self, step: Step) -> bytes:
        message = self.serving[step["read"]].message
        payload = payload_of(self.holder, message)
        ids = self.tables[str(next(g.table for g in self.holder.groups if g.id == message.group))]
        blocks = [ids[at] for first, count in message.blocks for at in range(first, first + count)]
        runs = payload.runs_of(blocks)
        whole = b"".join(self.memory[r.pool][r.offset : r.offset + r.num_bytes] for r in runs)
        assert len(whole) == self.serving[step["read"]].num_bytes
        body = whole[step["offset"] : step["offset"] + len(step["data"]) // 2]
        checksum = frames.checksum_of(body) if message.checksums else None
        return frames.data_header(step["read"], step["offset"], len(body), checksum) + body

    def _note(self, events: list[HolderEvent]) -> None:
        self.serving |= {event.id: event for event in events if isinstance(event, Serve)}

    def _drain(self) -> None:
        for stream, link in self.links.items():
            self.owed[stream] += link.data_to_send()


class ReaderSide:
    """Our reader in a session of the vectors."""

    def __init__(self, session: dict[str, Any]) -> None:
        side = session["reader"]
        own = descriptor_of(session, "reader")
        settings = ReaderSettings(
            side["engine"],
            side["generation"],
            own[0] if own else None,
            bytes.fromhex(side["token"]),
            side["max_data_bytes"],
            tuple(side.get("features", ())),
            holder_generation="4",
        )
        self.holder: Descriptor | None = None
        self.session = ReaderSession(settings, side["nonce"], 0.0)
        self.owed: dict[int, bytes] = defaultdict(bytes)
        self.events: list[ReaderEvent] = []
        self.steps: list[Step] = session["steps"]

    def play(self) -> list[ReaderEvent]:
        """All steps; what is ours must be as they say, and nothing more."""
        asked = set()
        for at, step in enumerate(self.steps):
            frame, stream = bytes.fromhex(step["bytes"]), step["stream"]
            if step["from"] == "holder":
                if "descriptor" in step:
                    self.holder = read(frame[frames.HEADER_BYTES :])
                if step.get("message", {}).get("type") == "expired":
                    # What is asked next has crossed it: our reader asks nothing of what is gone.
                    asked.add(at + 1)
                    self._ask(self.steps[at + 1])
                self.events += self.session.feed(stream, frame, 0.0)
                continue
            if "follows" not in step and at not in asked:
                self._ask(step)
            self.owed[0] += self.session.data_to_send()
            self._compare(stream, frame)
        self.owed[0] += self.session.data_to_send()
        assert set(self.owed.values()) <= {b""}
        return self.events

    def _compare(self, stream: int, frame: bytes) -> None:
        """Our next frame on a stream is this one; the words of a bye do not bind."""
        num_bytes = int.from_bytes(self.owed[stream][:4], "little") + frames.HEADER_BYTES
        ours, self.owed[stream] = self.owed[stream][:num_bytes], self.owed[stream][num_bytes:]
        assert _meaning(ours, "reader") == _meaning(frame, "reader")

    def _ask(self, step: Step) -> None:
        """What the owner wants, such that the message comes of it."""
        session, message, stream = self.session, step["message"], step["stream"]
        body = bytes.fromhex(step["bytes"])[frames.HEADER_BYTES :]
        match message["type"]:
            case "hello":
                session.begin(0.0)
            case "attach":
                self.owed[stream] += session.attach(stream, 0.0)
            case "open":
                session.open(message["handoff"], message["lease"], message["reader"], 0.0)
            case "read":
                wanted = codec.decode(body, "reader")
                assert isinstance(wanted, messages.Read)
                assert self.holder is not None
                num_bytes = payload_of(self.holder, wanted).num_bytes(wanted.blocks)
                session.read(wanted, num_bytes, 0.0)
            case "map":
                wanted = codec.decode(body, "reader")
                assert isinstance(wanted, messages.Map)
                session.map(wanted.handoff, wanted.table, wanted.blocks, 0.0)
            case "cancel":
                self.events += session.cancel(message["id"], 0.0)
            case "forgo":
                session.forgo(message["handoff"], message["lease"], 0.0)
            case "bye":
                self.events += session.end(message.get("reason", ""), 0.0)
            case name:
                getattr(session, name)(message["handoff"], 0.0)
