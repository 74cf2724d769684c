"""What scripts of one publisher's stream are made of: its words, and beginnings they share."""

from support.zmq_publisher import batch, stored
from transload_router.core.kv_events.decode import decode_batch
from transload_router.core.kv_events.messages import (
    Apply,
    Clear,
    Command,
    Count,
    Event,
    Live,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    RequestReplay,
    StateChanged,
    StreamState,
    Subscribed,
)

Line = Event | Command
COLD, REPLAYING, EXACT, DEGRADED = StreamState
NONSENSE = b"\xc1"


def payload(seq: int, *events: object, at: float | None = None) -> bytes:
    """A batch of the publisher that started at time 0; other publishers have another time."""
    return batch(float(seq) if at is None else at, *(events or (stored(seq + 100),)))


def live(seq: int, *events: object, at: float | None = None) -> Live:
    return Live(seq, payload(seq, *events, at=at))


def replayed(seq: int, *events: object, at: float | None = None) -> Replayed:
    return Replayed(seq, payload(seq, *events, at=at))


def applied(seq: int, *events: object, at: float | None = None) -> Apply:
    return Apply(decode_batch(payload(seq, *events, at=at)))


ASKED = (Subscribed(), RequestReplay(0), StateChanged(REPLAYING, "subscribed"))
FRESH = (*ASKED, ReplayEnded(), StateChanged(EXACT, "replayed"))
# Batches 0 to 2 are known.
RUNNING = (*FRESH, live(0), applied(0), live(1), applied(1), live(2), applied(2))
# A publisher that forgot what came before batch 5; DEGRADED at 6.
LATE = (
    *ASKED,
    replayed(5),
    Count("truncated"),
    applied(5),
    ReplayEnded(),
    StateChanged(DEGRADED, "replayed"),
)
GAP = (*RUNNING, live(5), Count("gap"), RequestReplay(2), StateChanged(REPLAYING, "gap"))
RESTARTED = (
    *RUNNING,
    live(0, at=50.0),
    Count("restart"),
    Clear(),
    RequestReplay(0),
    StateChanged(REPLAYING, "restarted"),
)
# Nobody to ask, and nothing heard yet.
MUTE = (
    *ASKED,
    ReplayFailed(),
    Count("replay_failed"),
    StateChanged(DEGRADED, "replay_failed"),
)
