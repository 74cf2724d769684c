"""What both machines are told and tell: how streams and sessions end, and a row of their tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from transload_abi.wire.errors import WireError

EndWhy = Literal[
    "asked", "peer_bye", "peer_lost", "peer_error", "peer_fault", "refused", "overdue", "idle"
]
"""Who ended a session: this side's owner; the peer, in order, or without a word, or with an error;
this side, as the peer broke a rule (`SessionEnded.code` says which), or as the two descriptors do
not convert, or as the peer kept it waiting, or as nothing was to be said."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The last event of a session: send what is to be sent, then close its connections.

    Attributes:
        why: Who ended it.
        code: Of an error, else empty.
        reason: For an operator.
    """

    why: EndWhy
    code: str = ""
    reason: str = ""


# Events of both tables that are not messages.


@dataclass(frozen=True, slots=True)
class Lost:
    """The control stream has ended, or broke."""


@dataclass(frozen=True, slots=True)
class StreamLost:
    """A data stream has ended, or broke."""

    stream: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """The peer sent what breaks a rule, whatever the state."""

    error: WireError


@dataclass(frozen=True, slots=True)
class Overdue:
    """The peer kept this side waiting beyond a deadline that ends the session."""

    reason: str


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is under way, and nothing was said for long."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    """This side's owner ends the session."""

    reason: str


Core = TypeVar("Core")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Row(Generic[Core, State]):
    """One way in which an event is taken in a state.

    Attributes:
        guard: Whether the row is taken; the first whose guard holds is.
        actions: What is done, in order.
        target: The state thereafter.
        says: What the row is for.
    """

    guard: Callable[[Core, object], bool]
    actions: tuple[Callable[[Core, object], None], ...]
    target: State
    says: str


def always(_core: object, _event: object) -> bool:
    """Take the row whatever happened."""
    return True
