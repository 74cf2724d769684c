"""What a reader's session tells its owner. Each request and each read has one outcome."""

from dataclasses import dataclass
from typing import Literal

from transload_abi.wire import messages
from transload_abi.wire.holder_state import Verdict
from transload_abi.wire.session_events import SessionEnded

ReadFailure = Literal[
    "expired", "refused", "bad_data", "stalled", "overdue", "cancelled", "stream_lost", "ended"
]
"""Why a read brought nothing: the lease is not held; the holder cannot serve it; it broke the rules
of data frames; no byte came for long, or not all in time; the owner wants it no more; its data
stream has ended; the session has."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The session is open.

    Attributes:
        welcome: What the holder said of itself.
        verdict: As the holder sees it; None in a session without a descriptor.
        descriptor: The holder's, the MessagePack twin; empty where there is no verdict.
    """

    welcome: messages.Welcome
    verdict: Verdict | None
    descriptor: bytes


@dataclass(frozen=True, slots=True)
class StreamReady:
    """Reads may name this data stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """A data stream was not attached, or has ended; close its connection."""

    stream: int
    reason: str


# Outcomes of requests.


@dataclass(frozen=True, slots=True)
class Opened:
    """A handoff is open.

    Attributes:
        lease: The holder's answer.
        expires: When the lease is over, seconds; no later than the holder means.
    """

    id: int
    handoff: str
    lease: messages.Lease
    expires: float


@dataclass(frozen=True, slots=True)
class StillHeld:
    """The outcome of `confirm` and `renew`; `expires` as in `Opened`."""

    id: int
    handoff: str
    expires: float


@dataclass(frozen=True, slots=True)
class Located:
    """The outcome of `map`: where the blocks are, if this is the holder's host.

    Attributes:
        mapped: The holder's answer; one block id for each position that was asked for.
    """

    id: int
    handoff: str
    mapped: messages.Mapped


@dataclass(frozen=True, slots=True)
class ShareEnded:
    """The outcome of `done`, `release` and `forgo`."""

    id: int
    handoff: str
    left: int


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """The outcome of any request about a lease that is not held."""

    id: int
    handoff: str
    why: messages.Gone


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request has no other outcome.

    Attributes:
        code: The holder's; empty where the session has ended.
        reason: For an operator.
    """

    id: int
    handoff: str
    code: str
    reason: str


# Of reads.


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a read have come; worthless until `ReadComplete`.

    Attributes:
        data: A view of what was fed, to be copied before more is fed.
    """

    read: int
    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class ReadComplete:
    """All bytes of a read have come, each once, and the lease was held behind the last one."""

    read: int


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A read's bytes are worthless.

    Attributes:
        handoff: Of which it was.
        reason: For an operator; names the holder where that is at fault.
    """

    read: int
    handoff: str
    why: ReadFailure
    reason: str


RequestEnded = Opened | StillHeld | Located | ShareEnded | LeaseGone | RequestFailed
"""What becomes of a request; `id` is its."""

ReaderEvent = (
    Ready
    | StreamReady
    | StreamFailed
    | RequestEnded
    | Data
    | ReadComplete
    | ReadFailed
    | SessionEnded
)
