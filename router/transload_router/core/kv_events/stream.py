"""The continuity of one publisher's events, sans IO: what came in, what to do; a transition table.

**Rules**

1. Nothing is reported that the engine may have dropped. A removal that was missed would do that,
   so where batches are missing for good, everything known is cleared. A missed `BlockStored` is
   harmless.
2. Batches are applied in the order of their sequence, each once, whatever order they came in.
3. A gap is filled by replay while live batches are held, at most `max_held_batches` or about
   `max_held_bytes` of them. A shell that leaves live batches where they are while `wants_live` is
   False never overflows it.
4. EXACT means that everything since the publisher's first batch, or since its last
   `AllBlocksCleared`, was applied. Otherwise the stream is DEGRADED: true, and not everything.
   (A reset may clear the GPU tier alone; blocks of lower tiers that stay there are then unknown
   until they are announced again.)
5. A publisher that starts over begins at sequence 0. Everything known of it is cleared then.
6. Silence means nothing. A publisher without work publishes nothing.
7. Batches without a number are applied, but losses among them cannot be noticed: never EXACT.
8. The content of a batch that cannot be read is unknown and a replay would bring the same bytes:
   cleared, DEGRADED. Events that cannot be read within a batch are counted and left out.

**Theory of operation**

vLLM's publisher (`distributed/kv_events.py:ZmqEventPublisher` @ 0.32) numbers batches from 0,
keeps the last `buffer_steps` (10,000) and answers a request for a sequence with all kept batches
from there on, then an end marker. Its ROUTER drops what the network does not take fast enough,
so answers have holes, or no end: as long as an answer brings the stream on, the rest is asked for
again.

*Is it still the same publisher?* A replay is asked for from the last batch applied, not from the
one after it. If the answer begins with that very batch (the publisher's clock at its making, a
float64, tells them apart), it is; if the batch is another one, or is not there, it is not. So a
restart is noticed even where the new publisher is further on than the old one was.

*Live batches that go back.* PUB/SUB never repeats or reorders. After a replay the live batches
that it already brought follow, ascending (overlap). A batch that goes back and is younger than what
was applied last is a restart; anything else that goes back is a duplicate if it is known; and where
neither is sure (a clock that was set back), the publisher is asked for a replay, which tells.

For each (state, event) the table lists rows; the first row whose guard holds is taken. A row is
(guard, actions, next state, reason). `SETTLED` is EXACT or DEGRADED, by rule 4. A pair that is not
in the table is a defect of the shell and raises. When the state leaves REPLAYING the shell
abandons whatever answer is under way; what still comes of it is ignored.

::

    COLD ──► REPLAYING ──► EXACT ──► REPLAYING (gap, doubt, restart, subscribed again)
                      └──► DEGRADED ──► EXACT (AllBlocksCleared)
"""

from dataclasses import dataclass

from transload_router.core.kv_events import steps
from transload_router.core.kv_events.memory import Memory
from transload_router.core.kv_events.messages import (
    Command,
    Event,
    Live,
    Reason,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    SnapshotLoaded,
    SourceChanged,
    StateChanged,
    StreamState,
    Subscribed,
    Unnumbered,
)


@dataclass(slots=True)
class EventStream(Memory):
    """The machine of one publisher."""

    state: StreamState = StreamState.COLD

    @property
    def wants_live(self) -> bool:
        """Whether a live batch finds room."""
        return not self.is_full

    @property
    def position(self) -> SnapshotLoaded | None:
        """What a snapshot of the index as of now begins from; None where it would be worthless."""
        if self.state not in (StreamState.EXACT, StreamState.DEGRADED) or not self.recent:
            return None
        seq, timestamp_s = self.recent[-1]
        return None if timestamp_s is None else SnapshotLoaded(seq, timestamp_s, self.is_whole)

    def handle(self, event: Event) -> list[Command]:
        """Take one step.

        Returns:
            Commands to perform in order, before the next event.

        Raises:
            AssertionError: The shell sent an event that this state cannot have.
        """
        for guard, actions, target, reason in TABLE.get((self.state, type(event)), ()):
            if guard(self, event):
                self.out = []
                for action in actions:
                    action(self, event)
                self.last_read = (b"", None)
                state = target or (StreamState.EXACT if self.is_whole else StreamState.DEGRADED)
                if state is not self.state:
                    self.state = state
                    self.out.append(StateChanged(state, reason))
                return self.out
        raise AssertionError(f"{event!r} cannot happen while {self.state}")


Row = tuple[steps.Guard, tuple[steps.Action, ...], StreamState | None, Reason]

S = StreamState
SETTLED = None


def _late(state: StreamState) -> dict[tuple[StreamState, type], tuple[Row, ...]]:
    """What is left of an abandoned answer means nothing."""
    row: Row = (steps.always, (), state, "replayed")
    return {(state, event): (row,) for event in (Replayed, ReplayEnded, ReplayFailed)}


def _backwards(state: StreamState) -> tuple[Row, ...]:
    """Live batches that neither follow nor leave a gap, outside a replay."""
    return (
        (
            steps.is_restart,
            (steps.count("restart"), steps.forget, steps.hold, steps.request),
            S.REPLAYING,
            "restarted",
        ),
        (steps.is_overlap, (steps.skip,), state, "replayed"),
        (steps.is_known, (steps.count("duplicate"),), state, "replayed"),
        (steps.always, (steps.count("duplicate"), steps.request), S.REPLAYING, "doubt"),
    )


_GAP: Row = (
    steps.is_beyond,
    (steps.count("gap"), steps.hold, steps.request),
    S.REPLAYING,
    "gap",
)
_SUBSCRIBED: Row = (steps.always, (steps.request,), S.REPLAYING, "subscribed")
_OTHER: Row = (steps.always, (steps.forget,), S.COLD, "source_changed")
_UNNUMBERED: Row = (steps.always, (steps.take_unnumbered,), S.DEGRADED, "unnumbered")
TABLE: dict[tuple[StreamState, type], tuple[Row, ...]] = {
    (S.COLD, SnapshotLoaded): ((steps.always, (steps.take_position,), S.COLD, "subscribed"),),
    (S.COLD, Subscribed): (_SUBSCRIBED,),
    (S.COLD, Live): (
        (steps.is_first, (steps.take,), SETTLED, "first_batch"),
        (steps.always, (steps.hold, steps.request), S.REPLAYING, "first_batch"),
    ),
    (S.COLD, SourceChanged): (_OTHER,),
    (S.REPLAYING, Subscribed): (
        (steps.always, (steps.drop_held, steps.request), S.REPLAYING, "subscribed"),
    ),
    (S.REPLAYING, Live): (
        (steps.is_known, (steps.count("duplicate"),), S.REPLAYING, "gap"),
        (
            steps.is_restart,
            (steps.count("restart"), steps.forget, steps.hold, steps.request),
            S.REPLAYING,
            "restarted",
        ),
        (steps.is_old, (steps.skip,), S.REPLAYING, "gap"),
        (
            steps.is_full,
            (steps.count("overflow"), steps.drop_held, steps.place, steps.take),
            SETTLED,
            "overflow",
        ),
        (steps.always, (steps.hold,), S.REPLAYING, "gap"),
    ),
    (S.REPLAYING, Replayed): (
        (
            steps.is_other_publisher,
            (steps.count("restart"), steps.start_over, steps.request),
            S.REPLAYING,
            "restarted",
        ),
        (steps.is_check, (steps.confirm,), S.REPLAYING, "gap"),
        (steps.is_old, (), S.REPLAYING, "gap"),
        (
            steps.starts_late,
            (steps.count("truncated"), steps.place, steps.take),
            S.REPLAYING,
            "gap",
        ),
        (steps.is_next, (steps.take,), S.REPLAYING, "gap"),
        (steps.always, (steps.skip,), S.REPLAYING, "gap"),
    ),
    (S.REPLAYING, ReplayEnded): (
        (
            steps.is_check_missing,
            (steps.count("restart"), steps.start_over, steps.request),
            S.REPLAYING,
            "restarted",
        ),
        (steps.is_filled, (steps.merge,), SETTLED, "replayed"),
        (steps.has_progress, (steps.request,), S.REPLAYING, "gap"),
        (steps.always, (steps.count("replay_failed"), steps.give_up), SETTLED, "replay_failed"),
    ),
    (S.REPLAYING, ReplayFailed): (
        (steps.is_answered, (steps.merge,), SETTLED, "replayed"),
        (steps.has_progress, (steps.request,), S.REPLAYING, "gap"),
        (steps.always, (steps.count("replay_failed"), steps.give_up), SETTLED, "replay_failed"),
    ),
    (S.REPLAYING, SourceChanged): (_OTHER,),
    (S.EXACT, Subscribed): (_SUBSCRIBED,),
    (S.EXACT, Live): (
        (steps.is_next_unreadable, (steps.take,), S.DEGRADED, "bad_batch"),
        (steps.is_next, (steps.take,), S.EXACT, "replayed"),
        _GAP,
        *_backwards(S.EXACT),
    ),
    (S.EXACT, SourceChanged): (_OTHER,),
    (S.DEGRADED, Subscribed): (_SUBSCRIBED,),
    (S.DEGRADED, Live): (
        (steps.is_unplaced, (steps.place, steps.take), SETTLED, "first_batch"),
        (steps.is_next, (steps.take,), SETTLED, "cleared"),
        _GAP,
        *_backwards(S.DEGRADED),
    ),
    (S.DEGRADED, SourceChanged): (_OTHER,),
    **{(state, Unnumbered): (_UNNUMBERED,) for state in StreamState},
    **_late(S.COLD),
    **_late(S.EXACT),
    **_late(S.DEGRADED),
}
