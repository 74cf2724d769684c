"""Which handoffs a holder holds, until when and for whom: one ledger for all of its sessions.

**Rules**

1. A lease is held from its grant until its time is over, all its readers have ended it, or it is
   forgone, whichever comes first. Each call looks at the time itself; nothing has to be in time.
2. A handoff is for `readers` distinct readers. Each counts once, however often it opens or ends.
3. Renewals reach to `Terms.max_hold_s` from the grant and not beyond.
4. Blocks are given back once, by `expire`, and not while a copy of them is under way: what
   overlaps the end of the lease is told so by `end_read`, and its bytes are worthless.
5. Of leases that have ended the last `Terms.max_remembered` are told apart from unknown ones.

Knows nothing of sessions and messages, and has no clock: times are seconds of any one clock. A time
before an earlier one counts as the earlier.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from transload_abi.wire.deadlines import Terms
from transload_abi.wire.limits import MAX_READERS
from transload_abi.wire.messages import Gone, Table

End = Literal["ended", "expired", "forgone"]
_GONE: dict[End, Gone] = {"ended": "ended", "expired": "expired", "forgone": "ended"}

_MIN_SWEPT: Final = 64
"""Stale entries of the heap that are not worth a sweep. Beyond, it is swept when they outnumber the
others, so sweeps cost each entry a constant on the average."""


class Held(msgspec.Struct, frozen=True):
    """A lease that is held.

    Attributes:
        left: Readers that have not ended it.
        left_s: Seconds until it expires.
    """

    tables: tuple[Table, ...]
    num_tokens: int
    num_encoder_tokens: int
    readers: int
    left: int
    left_s: float


class Freed(msgspec.Struct, frozen=True):
    """A handoff whose blocks nobody reads any more.

    Attributes:
        end: All readers ended it, its time was over, or it was forgone.
        num_ended: Readers that ended it.
    """

    handoff: str
    lease: str
    end: End
    num_ended: int


@dataclass(slots=True, eq=False)
class _Entry:
    handoff: str
    lease: str
    tables: tuple[Table, ...]
    num_tokens: int
    num_encoder_tokens: int
    readers: int
    expires: float
    last: float
    has_ended: dict[str, bool] = field(default_factory=dict)
    num_ended: int = 0
    num_copies: int = 0
    end: End | None = None

    @property
    def left(self) -> int:
        return 0 if self.end == "forgone" else self.readers - self.num_ended


class Ledger:
    """The leases of one holder. Not safe for threads: its owner takes turns.

    `handoff` and `lease` name one grant in all methods. Those that return `Gone` do so where the
    lease is not held.
    """

    def __init__(self, terms: Terms | None = None) -> None:
        self._terms = terms or Terms()
        self._held: dict[str, _Entry] = {}
        self._copied: dict[tuple[str, str], _Entry] = {}
        self._ends: OrderedDict[tuple[str, str], End] = OrderedDict()
        self._freed: list[Freed] = []
        self._heap: list[tuple[float, int, _Entry]] = []
        self._num_pushed = 0
        self._now = float("-inf")

    @property
    def num_held(self) -> int:
        """Handoffs that are held, as far as the last call's time."""
        return len(self._held)

    @property
    def num_copied(self) -> int:
        """Leases of which something is being copied, held or not."""
        return len(self._copied)

    @property
    def num_remembered(self) -> int:
        """Leases that have ended and are still told apart."""
        return len(self._ends)

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
        """Hold a handoff from now on.

        Args:
            handoff: Its blocks are the caller's to keep until `expire` gives it back.
            lease: Never used before for this handoff.
            tables: As readers are told.
            num_tokens: Likewise.
            readers: How many will read it.
            now: Seconds.
            num_encoder_tokens: As readers are told.

        Raises:
            ValueError: The caller's fault: the handoff is held, the lease was, or nobody or too
                many should read it.
        """
        self._advance(now)
        if not 1 <= readers <= MAX_READERS:
            raise ValueError(f"{handoff}: expected 1 to {MAX_READERS} readers, got {readers}")
        if handoff in self._held:
            raise ValueError(f"{handoff} is held already")
        if (handoff, lease) in self._copied or (handoff, lease) in self._ends:
            raise ValueError(f"{handoff} was held under the lease {lease} before")
        terms = self._terms
        last = self._now + terms.max_hold_s
        expires = min(self._now + terms.term_s, last)
        entry = _Entry(
            handoff, lease, tables, num_tokens, num_encoder_tokens, readers, expires, last
        )
        self._held[handoff] = entry
        self._push(entry)

    def open(
        self, handoff: str, lease: str, reader: str, now: float
    ) -> Held | Gone | Literal["too_many"]:
        """Count a reader in.

        Returns:
            `ended` also for a reader that has ended it; `too_many` where as many others have come
            as it is for.
        """
        entry = self._find(handoff, lease, now)
        if isinstance(entry, str):
            return entry
        if entry.has_ended.get(reader):
            return "ended"
        if not self._count_in(entry, reader):
            return "too_many"
        return self._told(entry)

    def confirm(self, handoff: str, lease: str, reader: str, now: float) -> float | Gone:
        """Seconds for which this reader's lease is still held."""
        entry = self._find(handoff, lease, now)
        if isinstance(entry, str):
            return entry
        return "ended" if entry.has_ended.get(reader) else entry.expires - self._now

    def renew(self, handoff: str, lease: str, reader: str, now: float) -> float | Gone:
        """Hold it for another term; seconds for which it is held then."""
        entry = self._find(handoff, lease, now)
        if isinstance(entry, str):
            return entry
        if entry.has_ended.get(reader):
            return "ended"
        entry.expires = max(entry.expires, min(self._now + self._terms.term_s, entry.last))
        return entry.expires - self._now

    def done(self, handoff: str, lease: str, reader: str, now: float) -> int | Gone:
        """This reader has ended it, whether it has read or not; how many have not ended it.

        The last one frees it.

        Returns:
            The same once more if this reader had; `ended` once all have, or where as many others
            have come as it is for.
        """
        entry = self._find(handoff, lease, now)
        if isinstance(entry, str):
            return entry
        if not self._count_in(entry, reader):
            return "ended"
        if not entry.has_ended[reader]:
            entry.has_ended[reader] = True
            entry.num_ended += 1
        if not entry.left:
            self._end(entry, "ended")
        return entry.left

    def forgo(self, handoff: str, lease: str, now: float) -> Gone | None:
        """End it for all readers."""
        entry = self._find(handoff, lease, now)
        if isinstance(entry, str):
            return entry
        self._end(entry, "forgone")
        return None

    def begin_read(self, handoff: str, lease: str, reader: str, now: float) -> Gone | None:
        """Keep the blocks from being freed until `end_read`, which must follow."""
        entry = self._find(handoff, lease, now)
        if isinstance(entry, str):
            return entry
        if entry.has_ended.get(reader):
            return "ended"
        entry.num_copies += 1
        self._copied[handoff, lease] = entry
        return None

    def end_read(self, handoff: str, lease: str, reader: str, now: float) -> Gone | None:
        """A copy that `begin_read` allowed is over; was the lease held all the while?"""
        self._advance(now)
        entry = self._copied[handoff, lease]
        entry.num_copies -= 1
        if not entry.num_copies:
            del self._copied[handoff, lease]
            if entry.end is not None:
                self._give_back(entry)
        if entry.end is not None:
            return _GONE[entry.end]
        return "ended" if entry.has_ended.get(reader) else None

    def expire(self, now: float) -> tuple[Freed, ...]:
        """Take what is free: handoffs that have ended since the last call and are not copied.

        Each is given out once; its blocks are the caller's again.
        """
        self._advance(now)
        freed = tuple(self._freed)
        self._freed.clear()
        return freed

    def next_expiry(self) -> float | None:
        """When `expire` will have something to do; None while nothing is held.

        Never later than the first lease's end, earlier where that one was renewed. At once if
        something is free already.
        """
        if self._freed:
            return self._now
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def _find(self, handoff: str, lease: str, now: float) -> _Entry | Gone:
        self._advance(now)
        entry = self._held.get(handoff)
        if entry is not None and entry.lease == lease:
            return entry
        end = self._ends.get((handoff, lease))
        if end is not None:
            return _GONE[end]
        return "unknown" if entry is None else "other_lease"

    def _told(self, entry: _Entry) -> Held:
        return Held(
            entry.tables,
            entry.num_tokens,
            entry.num_encoder_tokens,
            entry.readers,
            entry.left,
            entry.expires - self._now,
        )

    def _count_in(self, entry: _Entry, reader: str) -> bool:
        if reader not in entry.has_ended:
            if len(entry.has_ended) == entry.readers:
                return False
            entry.has_ended[reader] = False
        return True

    def _advance(self, now: float) -> None:
        """End what expires until now."""
        self._now = max(self._now, now)
        while self._heap and self._heap[0][0] <= self._now:
            _, _, entry = heapq.heappop(self._heap)
            if entry.end is not None:
                continue
            if entry.expires > self._now:
                self._push(entry)
            else:
                self._end(entry, "expired")

    def _end(self, entry: _Entry, end: End) -> None:
        entry.end = end
        del self._held[entry.handoff]
        self._ends[entry.handoff, entry.lease] = end
        while len(self._ends) > self._terms.max_remembered:
            self._ends.popitem(last=False)
        if not entry.num_copies:
            self._give_back(entry)

    def _give_back(self, entry: _Entry) -> None:
        assert entry.end is not None
        self._freed.append(Freed(entry.handoff, entry.lease, entry.end, entry.num_ended))

    def _push(self, entry: _Entry) -> None:
        """Each lease that is held is in the heap once, at its end or an earlier one."""
        if len(self._heap) > 2 * len(self._held) + _MIN_SWEPT:
            self._heap = [each for each in self._heap if each[2].end is None]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (entry.expires, self._num_pushed, entry))
        self._num_pushed += 1

    def _drop_stale(self) -> None:
        while self._heap and self._heap[0][2].end is not None:
            heapq.heappop(self._heap)
