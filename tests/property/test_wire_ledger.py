"""A ledger against a naive one: the same answers, blocks given back once and never under a copy."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from transload_abi.wire.deadlines import Terms
from transload_abi.wire.ledger import Ledger
from transload_abi.wire.messages import Table

TERM, HOLD = 10.0, 25.0
TABLES = (Table(0, 8),)
# Few of all, and mostly the newest lease, so that the walk meets itself.
HANDOFFS = st.sampled_from(("h1", "h2"))
READERS = st.sampled_from(("r1", "r2", "r3"))
AGES = st.sampled_from((0, 0, 0, 1))


@dataclass
class Lease:
    """What a lease is, by heart."""

    readers: int
    granted: float
    expires: float
    known: set[str] = field(default_factory=set)
    over: set[str] = field(default_factory=set)
    copies: int = 0
    end: str = ""
    is_freed: bool = False


class Walk(RuleBasedStateMachine):
    """All that sessions do with a ledger, at any times."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(Terms(TERM, HOLD, max_remembered=10_000))
        self.now = 0.0
        self.leases: dict[str, list[Lease]] = {}
        self.copies: list[tuple[str, int, str]] = []

    def lease(self, handoff: str, age: int) -> tuple[str, Lease | None]:
        """The lease so many grants ago; its name counts them."""
        granted = self.leases.get(handoff, [])
        number = len(granted) - 1 - age
        return str(number), granted[number] if number >= 0 else None

    def gone(self, handoff: str, age: int, reader: str = "") -> str | None:
        _, lease = self.lease(handoff, age)
        if lease is None:
            newest = self.lease(handoff, 0)[1]
            return "other_lease" if newest and not newest.end else "unknown"
        if lease.end:
            return "ended" if lease.end == "forgone" else lease.end
        return "ended" if reader in lease.over else None

    def pass_to(self, now: float) -> None:
        self.now = now
        for granted in self.leases.values():
            for lease in granted:
                if not lease.end and lease.expires <= now:
                    lease.end = "expired"

    @initialize(readers=st.integers(1, 3))
    def begin(self, readers: int) -> None:
        self.grant("h1", readers)
        self.begin_read("h1", 0, "r1")

    @rule(seconds=st.sampled_from((0.5, 3.0, 9.5, 10.0)))
    def wait(self, seconds: float) -> None:
        self.pass_to(self.now + seconds)

    @rule(handoff=HANDOFFS, readers=st.integers(1, 3))
    def grant_if_free(self, handoff: str, readers: int) -> None:
        self.grant(handoff, readers)

    def grant(self, handoff: str, readers: int) -> None:
        newest = self.lease(handoff, 0)[1]
        if newest is None or newest.end:
            granted = self.leases.setdefault(handoff, [])
            granted.append(Lease(readers, self.now, self.now + TERM))
            self.ledger.grant(handoff, str(len(granted) - 1), TABLES, 1, readers, self.now)

    @rule(handoff=HANDOFFS, age=AGES, reader=READERS)
    def open(self, handoff: str, age: int, reader: str) -> None:
        name, lease = self.lease(handoff, age)
        told = self.ledger.open(handoff, name, reader, self.now)
        gone = self.gone(handoff, age, reader)
        if gone or lease is None:
            assert told == gone
        elif reader not in lease.known and len(lease.known) == lease.readers:
            assert told == "too_many"
        else:
            lease.known.add(reader)
            assert not isinstance(told, str)
            assert told.left == lease.readers - len(lease.over)
            assert told.left_s == lease.expires - self.now

    @rule(handoff=HANDOFFS, age=AGES, reader=READERS, renews=st.booleans())
    def ask(self, handoff: str, age: int, reader: str, renews: bool) -> None:
        name, lease = self.lease(handoff, age)
        call = self.ledger.renew if renews else self.ledger.confirm
        told = call(handoff, name, reader, self.now)
        gone = self.gone(handoff, age, reader)
        if gone or lease is None:
            assert told == gone
            return
        if renews:
            lease.expires = max(lease.expires, min(self.now + TERM, lease.granted + HOLD))
        assert told == lease.expires - self.now

    @rule(handoff=HANDOFFS, age=AGES, reader=READERS)
    def done(self, handoff: str, age: int, reader: str) -> None:
        name, lease = self.lease(handoff, age)
        told = self.ledger.done(handoff, name, reader, self.now)
        gone = self.gone(handoff, age)
        if gone or lease is None:
            assert told == gone
        elif reader not in lease.known and len(lease.known) == lease.readers:
            assert told == "ended"
        else:
            lease.known.add(reader)
            lease.over.add(reader)
            assert told == lease.readers - len(lease.over)
            if told == 0:
                lease.end = "ended"

    @rule(handoff=HANDOFFS, age=AGES)
    def forgo(self, handoff: str, age: int) -> None:
        name, lease = self.lease(handoff, age)
        assert self.ledger.forgo(handoff, name, self.now) == self.gone(handoff, age)
        if lease and not lease.end:
            lease.end = "forgone"

    @rule(handoff=HANDOFFS, age=AGES, reader=READERS)
    def begin_copy(self, handoff: str, age: int, reader: str) -> None:
        self.begin_read(handoff, age, reader)

    def begin_read(self, handoff: str, age: int, reader: str) -> None:
        name, lease = self.lease(handoff, age)
        gone = self.gone(handoff, age, reader)
        assert self.ledger.begin_read(handoff, name, reader, self.now) == gone
        if lease and not gone:
            lease.copies += 1
            self.copies.append((handoff, int(name), reader))

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def end_read(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.copies) - 1))
        handoff, number, reader = self.copies.pop(at)
        lease = self.leases[handoff][number]
        lease.copies -= 1
        age = len(self.leases[handoff]) - 1 - number
        gone = self.gone(handoff, age, reader)
        assert self.ledger.end_read(handoff, str(number), reader, self.now) == gone

    @rule()
    def expire(self) -> None:
        freed = self.ledger.expire(self.now)
        for each in freed:
            lease = self.leases[each.handoff][int(each.lease)]
            assert not lease.is_freed, "given back twice"
            assert lease.copies == 0, "given back under a copy"
            assert lease.end == each.end
            lease.is_freed = True
        for granted in self.leases.values():
            for lease in granted:
                assert lease.is_freed == (bool(lease.end) and lease.copies == 0)

    @invariant()
    def next_expiry_is_never_late(self) -> None:
        every = [lease for granted in self.leases.values() for lease in granted]
        due = self.ledger.next_expiry()
        held = [lease.expires for lease in every if not lease.end]
        if any(lease.end and not lease.is_freed and not lease.copies for lease in every):
            assert due is not None
            assert due <= self.now
        elif held:
            assert due is not None
            assert due <= min(held)
        else:
            assert due is None or due <= self.now


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
