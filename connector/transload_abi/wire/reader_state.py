"""What a reader knows of one session, and the few things it can do; `reader_table` says when.

Knows messages; no streams of bytes, and no deadlines.
"""

import enum
from dataclasses import dataclass, field

import msgspec

from transload_abi.wire import auth, codec, frames, messages
from transload_abi.wire.deadlines import ReaderDeadlines
from transload_abi.wire.errors import WireError
from transload_abi.wire.limits import MAX_DATA_BYTES, MAX_REASON_CHARS
from transload_abi.wire.reader_events import (
    ReaderEvent,
    ReadFailed,
    ReadFailure,
    RequestFailed,
    StreamFailed,
)
from transload_abi.wire.session_events import EndWhy, SessionEnded
from transload_abi.wire.spans import Spans


class ReaderState(enum.StrEnum):
    """What a reader's session waits for."""

    NEW = "new"
    WELCOME = "welcome"
    ACCEPT = "accept"
    DESCRIPTOR = "descriptor"
    OPEN = "open"
    FORGOING = "forgoing"
    ENDED = "ended"


class ReaderSettings(msgspec.Struct, frozen=True):
    """What a reader says of itself to a holder, and expects of it.

    Attributes:
        engine: Its name, for people.
        generation: Another one after each start.
        descriptor: Its MessagePack twin; None: the session can do nothing but forgo.
        token: Shared with the holder; `auth.NO_TOKEN` where there is none.
        max_data_bytes: Of a data frame that it takes.
        features: Names of additions that it knows, ascending.
        holder_generation: As the handoff names it; another start of the holder is refused. Empty:
            any will do.
        deadlines: How long it waits.
    """

    engine: str
    generation: str
    descriptor: bytes | None
    token: bytes = auth.NO_TOKEN
    max_data_bytes: int = MAX_DATA_BYTES
    features: tuple[str, ...] = ()
    holder_generation: str = ""
    deadlines: ReaderDeadlines = ReaderDeadlines()


# Events of the table that are no messages.


@dataclass(frozen=True, slots=True)
class BeginAsked:
    """The connection stands."""


@dataclass(frozen=True, slots=True)
class DescriptorCame:
    """The holder's descriptor."""

    body: bytes


@dataclass(frozen=True, slots=True)
class StreamAttached:
    """`Attached`, on a data stream."""

    stream: int
    message: messages.Attached


@dataclass(frozen=True, slots=True)
class DataBegun:
    """The header of a data frame."""

    stream: int
    begin: frames.DataBegin


@dataclass(frozen=True, slots=True)
class DataCame:
    """Bytes of the data frame of a stream.

    Attributes:
        data: Where they are; None where the owner has them already.
        is_spoiled: Whether they end a frame with another checksum than it named.
    """

    read: int
    offset: int
    num_bytes: int
    data: memoryview | None
    is_spoiled: bool


@dataclass(frozen=True, slots=True)
class ReadOverdue:
    """A read's bytes did not come in time."""

    read: int
    why: ReadFailure
    reason: str


# What is under way.


@dataclass(slots=True)
class Pending:
    """A request without an answer.

    Attributes:
        num_blocks: That a `map` asks for.
    """

    kind: type[messages.Message]
    handoff: str
    lease: str
    asked: float
    num_blocks: int = 0


@dataclass(slots=True)
class Opening:
    """A handoff that is open, or asked to be.

    Attributes:
        expires: When, as far as is known.
        is_answered: Whether it is open.
    """

    lease: str
    expires: float = 0.0
    is_answered: bool = False


@dataclass(slots=True)
class Reading:
    """A read that has no outcome.

    Attributes:
        begun: Ranges whose frames have begun.
        num_come: Bytes that have come.
        has_end: Whether the holder has said that all was sent.
    """

    handoff: str
    lease: str
    stream: int
    num_bytes: int
    checksums: bool
    asked: float
    heard: float
    begun: Spans = field(default_factory=Spans)
    num_come: int = 0
    has_end: bool = False

    @property
    def is_full(self) -> bool:
        """Whether all its bytes have come."""
        return self.num_come == self.num_bytes


@dataclass(slots=True)
class ReaderCore:
    """One session, as its table's guards and actions see it.

    Attributes:
        now: Of the event that is being taken.
        since: When the connection was asked for; when anything was last said, in an open session.
        last_id: The greatest id so far.
        pending: Requests by id, in the order of asking.
        opens: Handoffs that are open or asked to be.
        reads: Those without an outcome, by id.
        cancelling: When reads were given up whose end the holder has not said, by id.
        attaching: When data streams were asked for.
        streams: Data streams that are attached.
        out: Frames for the control stream.
        events: For the session's owner.
    """

    settings: ReaderSettings
    nonce: str
    now: float
    state: ReaderState = ReaderState.NEW
    since: float = 0.0
    last_id: int = 0
    hello_body: bytes = b""
    welcome_body: bytes = b""
    welcome: messages.Welcome | None = None
    digest: bytes = b""
    accept: messages.Accept | None = None
    pending: dict[int, Pending] = field(default_factory=dict)
    opens: dict[str, Opening] = field(default_factory=dict)
    reads: dict[int, Reading] = field(default_factory=dict)
    cancelling: dict[int, float] = field(default_factory=dict)
    attaching: dict[int, float] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)
    out: list[bytes] = field(default_factory=list)
    events: list[ReaderEvent] = field(default_factory=list)

    @property
    def peer(self) -> str:
        """The holder's name in errors."""
        return f"holder {self.welcome.engine!r}" if self.welcome else "the holder"

    def say(self, message: messages.Message) -> None:
        """Put a message on the control stream."""
        self.out.append(codec.encode(message))
        if self.state is ReaderState.OPEN or self.state is ReaderState.FORGOING:
            self.since = self.now

    def fail_read(self, id_: int, why: ReadFailure, reason: str) -> None:
        """Give a read up; the holder is told to send no more of it, unless it has ended it."""
        read = self.reads.pop(id_)
        self.events.append(ReadFailed(id_, read.handoff, why, reason[:MAX_REASON_CHARS]))
        if not read.has_end:
            self.cancelling[id_] = self.now
            self.say(messages.Cancel(id_))

    def end_read(self, id_: int, why: ReadFailure, reason: str) -> None:
        """The holder has ended a read that brings nothing."""
        self.reads[id_].has_end = True
        self.fail_read(id_, why, reason)

    def close(self, handoff: str, lease: str) -> None:
        """A handoff is open no more, if it was, under this lease."""
        opening = self.opens.get(handoff)
        if opening is not None and opening.lease == lease:
            del self.opens[handoff]

    def break_off(self, error: WireError) -> None:
        """The holder broke a rule: tell it which, and the owner."""
        self.out.append(codec.encode(messages.Bye(error.reason)))
        self.tell_end("peer_fault", error.code, f"{self.peer}: {error.reason}")

    def tell_end(self, why: EndWhy, code: str = "", reason: str = "") -> None:
        """Give whatever is under way its outcome, and tell the owner."""
        reason = reason[:MAX_REASON_CHARS]
        for id_, asked in self.pending.items():
            self.events.append(RequestFailed(id_, asked.handoff, "", reason))
        for id_, read in self.reads.items():
            self.events.append(ReadFailed(id_, read.handoff, "ended", reason))
        for stream in (*self.attaching, *sorted(self.streams)):
            self.events.append(StreamFailed(stream, reason))
        for each in (self.pending, self.reads, self.cancelling, self.opens, self.attaching):
            each.clear()
        self.streams.clear()
        self.events.append(SessionEnded(why, code, reason))
