"""What a stream of events is told, what it answers, and its states, as plain values."""

import enum
from dataclasses import dataclass
from typing import Literal

from transload_router.core.kv_events.events import Batch


class StreamState(enum.StrEnum):
    """How much is known of what a publisher's engine holds.

    What is known is true in every state but REPLAYING, where removals may be outstanding.
    """

    COLD = "cold"  # nothing: the publisher was never reached
    REPLAYING = "replaying"  # missing batches were asked for
    EXACT = "exact"  # everything
    DEGRADED = "degraded"  # a part


# Events.


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The publisher is reached, for the first time or again, and live batches flow from now on."""


@dataclass(frozen=True, slots=True)
class Live:
    """A batch as it was published."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Unnumbered:
    """A live batch of a publisher that numbers none, so that its losses cannot be noticed."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Replayed:
    """A batch of the answer to the last `RequestReplay`."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplayEnded:
    """The answer's end marker came."""


@dataclass(frozen=True, slots=True)
class ReplayFailed:
    """There is nobody to ask, or the answer stopped short of its end marker."""


@dataclass(frozen=True, slots=True)
class SourceChanged:
    """Another publisher is behind the stream from now on."""


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The index holds what was known after the batch `seq`; only before the first subscription.

    Attributes:
        timestamp_s: That batch's own, by which its publisher is recognised.
        is_whole: Whether the stream that the snapshot was taken from was EXACT.
    """

    seq: int
    timestamp_s: float
    is_whole: bool


Event = (
    Subscribed
    | Live
    | Unnumbered
    | Replayed
    | ReplayEnded
    | ReplayFailed
    | SourceChanged
    | SnapshotLoaded
)

# Commands.


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Ask for all batches from this one on; an answer still under way is to be abandoned."""

    first_seq: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Bring the batch's events into the index."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget all that this publisher's engine holds."""


Reason = Literal[
    "subscribed",
    "first_batch",
    "replayed",
    "cleared",
    "gap",
    "doubt",
    "restarted",
    "source_changed",
    "replay_failed",
    "overflow",
    "bad_batch",
    "unnumbered",
]


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The stream is in another state."""

    state: StreamState
    reason: Reason


Counted = Literal[
    "gap",
    "truncated",
    "duplicate",
    "restart",
    "bad_batch",
    "bad_event",
    "overflow",
    "replay_failed",
]


@dataclass(frozen=True, slots=True)
class Count:
    """Something happened that operators count."""

    what: Counted
    amount: int = 1


Command = RequestReplay | Apply | Clear | StateChanged | Count
