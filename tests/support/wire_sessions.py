"""Whole sessions of the vectors, played by one of our sides: it must send each byte that is theirs.

What the other side sends is taken from the vector, so neither of our machines helps the other.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from transload_abi import read
from transload_abi.compare import compare
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


def _message(session: dict[str, Any], name: str) -> Any:
    """The first message of a type, or None."""
    for step in session["steps"]:
        if step.get("message", {}).get("type") == name:
            body = bytes.fromhex(step["bytes"])[frames.HEADER_BYTES :]
            return codec.decode(body, step["from"])
    return None


def descriptor_of(session: dict[str, Any], sender: str) -> tuple[bytes, Descriptor] | None:
    """As it is sent, and what it says."""
    for step in session["steps"]:
        if step["from"] == sender and "descriptor" in step:
            body = bytes.fromhex(step["bytes"])[frames.HEADER_BYTES :]
            return body, read(body)
    return None


class HolderSide:
    """Our holder in a session of the vectors.

    Args:
        session: The vector.
        descriptor: The holder's, where the vector does not send it.
    """

    def __init__(self, session: dict[str, Any], descriptor: tuple[bytes, Descriptor]) -> None:
        body, self.holder = descriptor_of(session, "holder") or descriptor
        welcome = _message(session, "welcome")
        self.now = 0.0
        self.ledger = Ledger()
        self.tables: dict[str, list[int]] = session["handoff"]["tables"]
        self.memory = {name: bytes.fromhex(text) for name, text in session["memory"].items()}
        self._grant(session)
        settings = HolderSettings(
            welcome.engine,
            welcome.generation,
            body,
            bytes.fromhex(session["token"]),
            welcome.max_data_bytes,
            welcome.max_streams,
        )
        self.reception = Reception(
            settings,
            self.ledger,
            self._judge,
            lambda wanted, tables: size_of(self.holder, wanted, tables),
        )
        self.nonces = welcome.session, welcome.nonce
        self.links: dict[int, Link] = {}
        self.owed: dict[int, bytes] = defaultdict(bytes)
        self.serving: dict[int, Serve] = {}
        self.allowed: set[int] = set()
        self.steps: list[Step] = session["steps"]

    def _judge(self, descriptor: bytes) -> Compatible | Incompatible:
        found = compare(self.holder, read(descriptor))
        if found.verdict == "refused":
            return Incompatible(found.findings[0].path, found.findings[0].reason)
        return Compatible(found.verdict)

    def _grant(self, session: dict[str, Any]) -> None:
        request = _message(session, "open") or _message(session, "forgo")
        if request:
            lease = _message(session, "lease")
            tables = tuple(messages.Table(int(name), len(ids)) for name, ids in self.tables.items())
            num_tokens = lease.num_tokens if lease else 1
            self.ledger.grant(request.handoff, request.lease, tables, num_tokens, 1, self.now)

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
        if b"refuse" in frame:
            said, due = (
                codec.decode(each[frames.HEADER_BYTES :], "holder") for each in (ours, frame)
            )
            assert isinstance(said, messages.Refuse)
            assert isinstance(due, messages.Refuse)
            assert said.path == due.path
        else:
            assert ours == frame

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
        hello = _message(session, "hello")
        own = descriptor_of(session, "reader")
        holder = descriptor_of(session, "holder")
        self.holder = holder[1] if holder else None
        settings = ReaderSettings(
            hello.engine,
            hello.generation,
            own[0] if own else None,
            bytes.fromhex(session["token"]),
            hello.max_data_bytes,
            holder_generation=_message(session, "welcome").generation,
        )
        self.session = ReaderSession(settings, hello.nonce, 0.0)
        self.owed: dict[int, bytes] = defaultdict(bytes)
        self.events: list[ReaderEvent] = []
        self.steps: list[Step] = session["steps"]

    def play(self) -> list[ReaderEvent]:
        """All steps; what is ours must be as they say, and nothing more."""
        asked = set()
        for at, step in enumerate(self.steps):
            frame, stream = bytes.fromhex(step["bytes"]), step["stream"]
            if step["from"] == "holder":
                if step.get("message", {}).get("type") == "expired":
                    # What is asked next has crossed it: our reader asks nothing of what is gone.
                    asked.add(at + 1)
                    self._ask(self.steps[at + 1])
                self.events += self.session.feed(stream, frame, 0.0)
                continue
            if "message" in step and at not in asked:
                self._ask(step)
            self.owed[0] += self.session.data_to_send()
            assert self.owed[stream][: len(frame)] == frame, step
            self.owed[stream] = self.owed[stream][len(frame) :]
        self.owed[0] += self.session.data_to_send()
        assert set(self.owed.values()) <= {b""}
        return self.events

    def _ask(self, step: Step) -> None:
        """What the owner wants, such that the message comes of it."""
        session, message, stream = self.session, step["message"], step["stream"]
        body = bytes.fromhex(step["bytes"])[frames.HEADER_BYTES :]
        match message["type"]:
            case "hello":
                session.begin(0.0)
            case "prove":
                pass
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
            case "cancel":
                self.events += session.cancel(message["id"], 0.0)
            case "forgo":
                session.forgo(message["handoff"], message["lease"], 0.0)
            case "bye":
                self.events += session.end(message.get("reason", ""), 0.0)
            case name:
                getattr(session, name)(message["handoff"], 0.0)
