"""What a holder knows of one session, and the few things it can do; `holder_table` says when.

Knows the ledger and messages; no streams of bytes, and no deadlines.
"""

import enum
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from transload_abi.wire import auth, codec, frames, messages
from transload_abi.wire.deadlines import HolderDeadlines
from transload_abi.wire.errors import WireError
from transload_abi.wire.ledger import Ledger
from transload_abi.wire.limits import MAX_DATA_BYTES, MAX_OPEN, MAX_REASON_CHARS
from transload_abi.wire.session_events import EndWhy, SessionEnded

Verdict = Literal["identical", "lossless", "lossy"]


class HolderState(enum.StrEnum):
    """What a holder's session waits for."""

    HELLO = "hello"
    PROOF = "proof"
    DESCRIPTOR = "descriptor"
    FORGOING = "forgo"
    OPEN = "open"
    ENDED = "ended"


class HolderSettings(msgspec.Struct, frozen=True):
    """What a holder says of itself in every session.

    Attributes:
        engine: Its name, for people.
        generation: Another one after each start.
        descriptor: Its MessagePack twin.
        token: Shared with readers; `auth.NO_TOKEN` where there is none.
        max_data_bytes: Of a data frame that it likes to send.
        max_streams: Data streams that a session may attach.
        features: Names of additions that it knows, ascending.
        deadlines: How long it waits.
    """

    engine: str
    generation: str
    descriptor: bytes
    token: bytes = auth.NO_TOKEN
    max_data_bytes: int = MAX_DATA_BYTES
    max_streams: int = 4
    features: tuple[str, ...] = ()
    deadlines: HolderDeadlines = HolderDeadlines()


# What comparing gives; events of the table.


@dataclass(frozen=True, slots=True)
class Compatible:
    """The holder's blocks become the reader's."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Incompatible:
    """They never do: the first field of the reader's descriptor that differs, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class StreamAsked:
    """A connection wants to be a data stream of this session."""

    attach: messages.Attach


Compare = Callable[[bytes], Compatible | Incompatible]
"""From a reader's descriptor, the MessagePack twin. May raise `BadDescriptor`."""

Measure = Callable[[messages.Read, tuple[messages.Table, ...]], int]
"""How many bytes a read is, of a handoff with such tables. May raise `BadRead`."""

Locate = Callable[[messages.Map, str], messages.Mapped]
"""Where blocks are that a handoff under such a lease has. May raise `WireError`."""


# Events of a session.


@dataclass(frozen=True, slots=True)
class ReaderAccepted:
    """The session is open.

    Attributes:
        hello: What the reader said of itself.
        verdict: As it was told.
    """

    hello: messages.Hello
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Serve:
    """Send a read's bytes in frames, each after `may_send`, and call `sent` after each.

    Attributes:
        id: Of the read.
        lease: Under which the handoff is held.
        message: What is asked for.
        num_bytes: All that is to be sent, more than 0.
    """

    id: int
    lease: str
    message: messages.Read
    num_bytes: int


HolderEvent = ReaderAccepted | Serve | SessionEnded


@dataclass(slots=True)
class Claim:
    """Under what a session has a handoff open."""

    lease: str
    reader: str
    tables: tuple[messages.Table, ...]


@dataclass(slots=True)
class Serving:
    """A read that has not ended.

    Attributes:
        copying_since: Since when a frame is under way; None while none is.
        is_cancelled: The reader wants no more of it.
        failed: Why no more of it is sent.
    """

    handoff: str
    claim: Claim
    stream: int
    num_bytes: int
    num_sent: int = 0
    copying_since: float | None = None
    is_cancelled: bool = False
    failed: WireError | None = None


@dataclass(slots=True)
class HolderCore:
    """One session, as its table's guards and actions see it.

    Attributes:
        locate: None where nothing is shared.
        now: Of the event that is being taken.
        last_id: The greatest id so far.
        opens: Claims by handoff.
        closed: The last of those that were open, so that a late request is told what became of it.
        streams: Data streams that are attached.
        seen_streams: Those that ever were.
        stream_answer: To the connection that asks to be attached.
        out: Frames for the control stream.
        events: For the session's owner.
    """

    settings: HolderSettings
    ledger: Ledger
    compare: Compare
    measure: Measure
    locate: Locate | None
    session: str
    nonce: str
    now: float
    state: HolderState = HolderState.HELLO
    since: float = 0.0
    last_id: int = 0
    hello: messages.Hello | None = None
    hello_body: bytes = b""
    digest: bytes = b""
    max_data_bytes: int = 0
    opens: dict[str, Claim] = field(default_factory=dict)
    closed: OrderedDict[str, Claim] = field(default_factory=OrderedDict)
    reads: dict[int, Serving] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)
    seen_streams: set[int] = field(default_factory=set)
    stream_answer: messages.Message | None = None
    out: list[bytes] = field(default_factory=list)
    events: list[HolderEvent] = field(default_factory=list)

    @property
    def peer(self) -> str:
        """The reader's name in errors."""
        return f"reader {self.hello.engine!r}" if self.hello else "the reader"

    @property
    def has_shm(self) -> bool:
        """Whether both sides know the feature."""
        known = self.hello.features if self.hello else ()
        return messages.SHM in known and messages.SHM in self.settings.features

    def say(self, message: messages.Message) -> None:
        """Put a message on the control stream."""
        self.out.append(codec.encode(message))

    def say_descriptor(self) -> None:
        """Put the own descriptor on the control stream."""
        self.out.append(frames.descriptor_frame(self.settings.descriptor))

    def say_error(self, id_: int, error: WireError) -> None:
        """Answer a request, or all of the session with id 0, with what is wrong."""
        self.say(messages.Error(error.code, error.reason, id_))

    def tell_end(self, why: EndWhy, code: str = "", reason: str = "") -> None:
        """Tell the owner, and forget all but what is being copied."""
        self.reads = {
            id_: read for id_, read in self.reads.items() if read.copying_since is not None
        }
        self.opens.clear()
        self.closed.clear()
        self.streams.clear()
        self.events.append(SessionEnded(why, code, reason[:MAX_REASON_CHARS]))

    def close(self, handoff: str, lease: str, why: messages.Gone) -> None:
        """A handoff is open no more, if it was, under this lease; nor are its reads.

        A read of which a frame is under way is told when that is over.
        """
        claim = self.opens.get(handoff)
        if claim is None or claim.lease != lease:
            return
        del self.opens[handoff]
        self.closed[handoff] = claim
        self.closed.move_to_end(handoff)
        if len(self.closed) > MAX_OPEN:
            self.closed.popitem(last=False)
        for id_, read in list(self.reads.items()):
            if read.claim is claim and read.copying_since is None:
                del self.reads[id_]
                self.say(messages.Expired(id_, why))

    def say_gone(self, id_: int, handoff: str, lease: str, why: messages.Gone) -> None:
        """Answer that a lease is not held."""
        self.say(messages.Expired(id_, why))
        self.close(handoff, lease, why)
