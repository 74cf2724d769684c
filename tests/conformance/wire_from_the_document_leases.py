"""Handoffs and leases of `connector/WIRE.md`, 7, as a holder keeps them.

One lock guards all: who copies out of blocks holds it, so that no lease ends amid a copy. Knows
nothing of sessions.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from conformance.wire_from_the_document_payload import Run, take


@dataclass
class Lease:
    """`shares` has the names that came, and whether each has ended."""

    num_tokens: int
    tables: dict[int, list[int]]
    num_readers: int
    num_encoder_tokens: int
    ends_at: float
    is_forgone: bool = False
    shares: dict[str, bool] = field(default_factory=dict)

    @property
    def num_left(self) -> int:
        return 0 if self.is_forgone else self.num_readers - sum(self.shares.values())


class NotHeldError(Exception):
    """The lease is not held for who asks; the text is `expired.why`."""


class TooManyError(Exception):
    """As many readers have come as the handoff is for."""


@dataclass(frozen=True)
class Share:
    """Who reads what: a handoff, its lease, and the reader's name."""

    handoff: str
    lease: str
    reader: str


class Leases:
    """All that a holder has granted in its generation; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float], term_s: float = 30.0) -> None:
        self._clock = clock
        self._term_s = term_s
        self._leases: dict[tuple[str, str], Lease] = {}
        self._lock = threading.Lock()

    def grant(
        self,
        handoff: str,
        lease: str,
        tables: Mapping[int, Sequence[int]],
        num_tokens: int,
        num_readers: int = 1,
        num_encoder_tokens: int = 0,
    ) -> None:
        with self._lock:
            if (handoff, lease) in self._leases:
                raise ValueError(f"{handoff}, {lease}: a pair is used once in a generation")
            self._leases[handoff, lease] = Lease(
                num_tokens,
                {table: list(blocks) for table, blocks in tables.items()},
                num_readers,
                num_encoder_tokens,
                self._clock() + self._term_s,
            )

    def take_share(self, share: Share) -> Lease:
        with self._lock:
            lease = self._held(share.handoff, share.lease, share.reader)
            if share.reader not in lease.shares and len(lease.shares) >= lease.num_readers:
                raise TooManyError(f"it is for {lease.num_readers} readers")
            lease.shares.setdefault(share.reader, False)
            return lease

    def confirm(self, share: Share) -> Lease:
        with self._lock:
            return self._held(share.handoff, share.lease, share.reader)

    def renew(self, share: Share) -> Lease:
        with self._lock:
            lease = self._held(share.handoff, share.lease, share.reader)
            lease.ends_at = self._clock() + self._term_s
            return lease

    def end(self, share: Share) -> int:
        """End a share; how many are left."""
        with self._lock:
            lease = self._held(share.handoff, share.lease, share.reader)
            lease.shares[share.reader] = True
            return lease.num_left

    def forgo(self, handoff: str, lease: str) -> int:
        with self._lock:
            held = self._held(handoff, lease, None)
            held.is_forgone = True
            return held.num_left

    def copy(self, share: Share, memory: Mapping[str, bytes], runs: Sequence[Run]) -> bytes:
        """Copy bytes of a share that is held until all of them are there."""
        with self._lock:
            self._held(share.handoff, share.lease, share.reader)
            return take(memory, runs)

    def left_ms(self, lease: Lease) -> int:
        return max(0, int((lease.ends_at - self._clock()) * 1000))

    def _is_over(self, lease: Lease) -> str:
        if lease.num_left == 0:
            return "ended"
        return "expired" if self._clock() >= lease.ends_at else ""

    def _held(self, handoff: str, name: str, reader: str | None) -> Lease:
        lease = self._leases.get((handoff, name))
        if lease is None:
            others = [x for (other, _), x in self._leases.items() if other == handoff]
            is_held = any(not self._is_over(other) for other in others)
            raise NotHeldError("other_lease" if is_held else "unknown")
        over = self._is_over(lease)
        if over or (reader is not None and lease.shares.get(reader, False)):
            raise NotHeldError(over or "ended")
        return lease
