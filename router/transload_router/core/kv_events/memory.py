"""What a stream remembers between events, and the elementary changes of it."""

from collections import deque
from dataclasses import dataclass, field

from transload_router.core.kv_events.decode import BadBatch, decode_batch
from transload_router.core.kv_events.events import Batch, Cleared
from transload_router.core.kv_events.messages import Apply, Clear, Command, Count

# They are merged in one step: some 3 ms for 64 batches of 512 tokens, 45 us each (bench/events.py,
# AMD EPYC). The transport's own queue is where more of them wait.
MAX_HELD_BATCHES = 64
MAX_HELD_BYTES = 1 << 20
# Batches remembered for telling a duplicate from a restart.
NUM_RECENT = 64


@dataclass(slots=True)
class Memory:
    """The state of one stream but for its name.

    Attributes:
        next_seq: Sequence of the first batch not applied; None while the next to come is taken.
        is_whole: Rule 4.
        has_content: Whether anything was applied since the last `Clear`.
        last_live: Highest sequence that came live.
        highest: Highest sequence known to have been published.
        recent: Sequence and time of the batches applied last; no time for an unreadable one.
        held: Live payloads by sequence, while a replay is under way.
        check: The batch with which the answer must begin, until it did.
        has_answer: Whether anything of the answer came.
        has_progress: Whether the answer brought the stream on.
        out: Commands of the step under way.
        last_read: The payload decoded last in this step.
    """

    max_held_batches: int = MAX_HELD_BATCHES
    max_held_bytes: int = MAX_HELD_BYTES
    next_seq: int | None = 0
    is_whole: bool = True
    has_content: bool = False
    last_live: int = -1
    highest: int = -1
    recent: deque[tuple[int, float | None]] = field(
        default_factory=lambda: deque(maxlen=NUM_RECENT)
    )
    held: dict[int, bytes] = field(default_factory=dict)
    num_held_bytes: int = 0
    check: tuple[int, float | None] | None = None
    has_answer: bool = False
    has_progress: bool = False
    out: list[Command] = field(default_factory=list)
    last_read: tuple[bytes, Batch | None] = (b"", None)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another live batch."""
        return len(self.held) >= self.max_held_batches or self.num_held_bytes >= self.max_held_bytes

    def read(self, payload: bytes) -> Batch | None:
        """The batch, decoded once per step; None where it cannot be read."""
        if self.last_read[0] is not payload:
            try:
                self.last_read = (payload, decode_batch(payload))
            except BadBatch:
                self.last_read = (payload, None)
        return self.last_read[1]

    def take(self, seq: int, payload: bytes) -> None:
        """Apply the next batch, or give up what is known if it cannot be read."""
        self.next_seq = seq + 1
        self.has_progress = True
        self.apply(seq, payload)

    def apply(self, seq: int | None, payload: bytes) -> None:
        """Apply a batch, which follows on the last one by its sequence if it has one."""
        batch = self.read(payload)
        if seq is not None:
            self.recent.append((seq, None if batch is None else batch.timestamp_s))
        if batch is None:
            self.out.append(Count("bad_batch"))
            self.clear()
            self.is_whole = False
            return
        if batch.num_skipped:
            self.out.append(Count("bad_event", batch.num_skipped))
        if any(type(event) is Cleared for event in batch.events):
            self.is_whole = True
        self.has_content = True
        self.out.append(Apply(batch))

    def clear(self) -> None:
        """Nothing is known any more."""
        if self.has_content:
            self.out.append(Clear())
            self.has_content = False

    def place(self, seq: int | None) -> None:
        """Go on from here, with nothing known of before."""
        self.clear()
        self.recent.clear()
        self.next_seq = seq
        self.is_whole = seq == 0
        self.highest = max(self.held, default=-1)

    def drop_held(self) -> None:
        """Forget live batches that wait."""
        self.held.clear()
        self.num_held_bytes = 0
