"""A ledger for several threads: engines grant while sessions read."""

import threading
from typing import Literal

from transload_abi.wire.deadlines import Terms
from transload_abi.wire.ledger import Freed, Held, Ledger
from transload_abi.wire.messages import Gone, Table


class SharedLedger(Ledger):
    """`Ledger`, one call after the other. Each takes microseconds, so nobody waits for long."""

    def __init__(self, terms: Terms | None = None) -> None:
        super().__init__(terms)
        self._lock = threading.RLock()

    def grant(
        self,
        handoff: str,
        lease: str,
        tables: tuple[Table, ...],
        num_tokens: int,
        readers: int,
        now: float,
        num_encoder_tokens: int = 0,
    ) -> None:
        """As `Ledger.grant`."""
        with self._lock:
            super().grant(handoff, lease, tables, num_tokens, readers, now, num_encoder_tokens)

    def open(
        self, handoff: str, lease: str, reader: str, now: float
    ) -> Held | Gone | Literal["too_many"]:
        """As `Ledger.open`."""
        with self._lock:
            return super().open(handoff, lease, reader, now)

    def confirm(self, handoff: str, lease: str, reader: str, now: float) -> float | Gone:
        """As `Ledger.confirm`."""
        with self._lock:
            return super().confirm(handoff, lease, reader, now)

    def renew(self, handoff: str, lease: str, reader: str, now: float) -> float | Gone:
        """As `Ledger.renew`."""
        with self._lock:
            return super().renew(handoff, lease, reader, now)

    def done(self, handoff: str, lease: str, reader: str, now: float) -> int | Gone:
        """As `Ledger.done`."""
        with self._lock:
            return super().done(handoff, lease, reader, now)

    def forgo(self, handoff: str, lease: str, now: float) -> Gone | None:
        """As `Ledger.forgo`."""
        with self._lock:
            return super().forgo(handoff, lease, now)

    def begin_read(self, handoff: str, lease: str, reader: str, now: float) -> Gone | None:
        """As `Ledger.begin_read`."""
        with self._lock:
            return super().begin_read(handoff, lease, reader, now)

    def end_read(self, handoff: str, lease: str, reader: str, now: float) -> Gone | None:
        """As `Ledger.end_read`."""
        with self._lock:
            return super().end_read(handoff, lease, reader, now)

    def expire(self, now: float) -> tuple[Freed, ...]:
        """As `Ledger.expire`."""
        with self._lock:
            return super().expire(now)

    def next_expiry(self) -> float | None:
        """As `Ledger.next_expiry`."""
        with self._lock:
            return super().next_expiry()
