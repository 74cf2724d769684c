"""Holder and readers over a network that splits, delays, reorders and cuts; then with liars."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from support.wire_network import NUM_BLOCKS, TABLES, Network, Pipe, Reader
from transload_abi.wire import codec, frames, messages
from transload_abi.wire.holder_state import Serve
from transload_abi.wire.limits import MAX_READS
from transload_abi.wire.reader_state import ReaderState

HANDOFFS = st.sampled_from(("h1", "h2"))
NUMBERS = st.integers(0, 7)
RANGES = st.tuples(st.integers(0, NUM_BLOCKS - 1), st.integers(1, NUM_BLOCKS)).map(
    lambda pair: (pair[0], min(pair[1], NUM_BLOCKS - pair[0]))
)
MAX_READERS = 4


def one_of(items: list[Any], number: int) -> Any:
    return items[number % len(items)]


class Walk(RuleBasedStateMachine):
    """Nobody lies: whatever the network does, neither side blames the other."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    @initialize(readers=st.integers(1, 2))
    def begin(self, readers: int) -> None:
        """A conversation is under way: what breaks it matters more than how it began."""
        for handoff in ("h1", "h2"):
            self.network.grant(handoff, readers)
        self.come("r1")

    def come(self, name: str) -> None:
        """A reader that has opened what there is, and has a data stream."""
        reader = self.network.connect()
        self.network.deliver_all()
        for handoff, lease in self.network.leases.items():
            self.network.ask(reader, "open", handoff, lease, name)
        self.network.attach(reader, 1)
        self.network.deliver_all()

    def open_readers(self) -> list[Reader]:
        return [r for r in self.network.readers if r.session.state is ReaderState.OPEN]

    def reading(self) -> list[Reader]:
        return [r for r in self.open_readers() if r.leases]

    def under_way(self) -> list[Pipe]:
        return [p for p in self.network.pipes() if p.to_holder or p.to_reader]

    @rule(handoff=HANDOFFS, readers=st.integers(1, 2))
    def grant(self, handoff: str, readers: int) -> None:
        self.network.grant(handoff, readers)

    @precondition(lambda self: sum(not r.ended for r in self.network.readers) < MAX_READERS)
    @rule(name=st.sampled_from(("", "r1", "r2")))
    def connect(self, name: str) -> None:
        if name:
            self.come(name)
        else:
            self.network.connect()

    @precondition(lambda self: self.open_readers())
    @rule(number=NUMBERS, stream=st.integers(1, 2))
    def attach(self, number: int, stream: int) -> None:
        reader = one_of(self.open_readers(), number)
        if ("stream", stream) not in reader.asked:
            self.network.attach(reader, stream)

    @precondition(lambda self: self.open_readers() and self.network.leases)
    @rule(number=NUMBERS, handoff=HANDOFFS, name=st.sampled_from(("r1", "r2")))
    def open(self, number: int, handoff: str, name: str) -> None:
        reader = one_of(self.open_readers(), number)
        if handoff not in reader.session._core.opens:
            lease = self.network.leases.get(handoff, "l0")
            self.network.ask(reader, "open", handoff, lease, name)

    @precondition(lambda self: self.reading())
    @rule(
        number=NUMBERS,
        handoff=NUMBERS,
        what=st.sampled_from(("confirm", "renew", "renew", "done", "release")),
    )
    def ask(self, number: int, handoff: int, what: str) -> None:
        reader = one_of(self.reading(), number)
        self.network.ask(reader, what, one_of(sorted(reader.leases), handoff))

    @precondition(lambda self: self.open_readers() and self.network.leases)
    @rule(number=NUMBERS, handoff=HANDOFFS)
    def forgo(self, number: int, handoff: str) -> None:
        lease = self.network.leases.get(handoff, "l0")
        self.network.ask(one_of(self.open_readers(), number), "forgo", handoff, lease)

    @precondition(lambda self: self.reading())
    @rule(
        number=NUMBERS,
        blocks=RANGES,
        stream=NUMBERS,
        checksums=st.booleans(),
        num_copies=st.sampled_from((0, 0, 1, 3, 4)),
    )
    def read(
        self,
        number: int,
        blocks: tuple[int, int],
        stream: int,
        checksums: bool,
        num_copies: int,
    ) -> None:
        reader = one_of(self.reading(), number)
        handoff = one_of(sorted(reader.leases), number)
        core = reader.session._core
        if len(core.reads) + len(core.cancelling) >= MAX_READS:
            return
        streams = [0, *sorted(core.streams)]
        self.network.read(reader, handoff, blocks, one_of(streams, stream), checksums)
        if num_copies:
            self.network.deliver_all()
        for _ in range(num_copies):
            if self.network.serving:
                self.network.copy(-1)

    @precondition(lambda self: self.network.serving)
    @rule(number=NUMBERS)
    def copy(self, number: int) -> None:
        self.network.copy(number)

    @precondition(lambda self: self.network.serving)
    @rule()
    def forgo_under_the_last_copy(self) -> None:
        one = self.network.serving[-1]
        while one in self.network.serving and not (one.is_copying and len(one.pieces) == 1):
            self.network.copy(-1)
        if one in self.network.serving:
            handoff = one.serve.message.handoff
            self.network.ledger.forgo(handoff, one.serve.lease, self.network.now)
            self.network.copy(-1)
            self.network.deliver_all()

    @precondition(lambda self: self.network.serving)
    @rule()
    def copy_all(self) -> None:
        while self.network.serving:
            self.network.copy(0)
        self.network.deliver_all()

    @precondition(lambda self: any(r.session._core.reads for r in self.network.readers))
    @rule(number=NUMBERS)
    def cancel(self, number: int) -> None:
        reader = one_of([r for r in self.network.readers if r.session._core.reads], number)
        self.network.cancel(reader, one_of(sorted(reader.session._core.reads), number))

    @precondition(lambda self: self.under_way())
    @rule(
        number=NUMBERS,
        num_bytes=st.sampled_from((1, 3, 8, 20, 33, 100, 1000)),
        to_holder=st.booleans(),
    )
    def deliver(self, number: int, num_bytes: int, to_holder: bool) -> None:
        self.network.deliver(one_of(self.under_way(), number), num_bytes, to_holder)

    @rule()
    def deliver_all(self) -> None:
        self.network.deliver_all()

    @rule(
        what=st.sampled_from(("cut", "end", "wait", "jump")),
        number=NUMBERS,
        num_lost_bytes=st.sampled_from((0, 1, 10, 10_000)),
    )
    def trouble(self, what: str, number: int, num_lost_bytes: int) -> None:
        """A connection breaks, a reader has enough, or time passes: to the next deadline, or on."""
        if what == "cut" and self.network.pipes():
            self.network.cut(one_of(self.network.pipes(), number), num_lost_bytes)
        elif what == "end" and self.open_readers():
            self.network.end(one_of(self.open_readers(), number))
        elif what == "wait":
            self.network.pass_time(number * number / 2)
        elif what == "jump":
            due = self.network.next_deadline()
            self.network.pass_time(max(0.0, due - self.network.now) if due is not None else 0.0)

    def teardown(self) -> None:
        self.network.finish()
        self.nobody_is_blamed()

    def nobody_is_blamed(self) -> None:
        whys = [end.why for end in self.network.ends]
        whys += [reader.ended.why for reader in self.network.readers if reader.ended]
        assert not {"peer_fault", "peer_error"} & set(whys), self.network.ends


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=30, stateful_step_count=60, deadline=None)

IDS = st.integers(0, 12)
NAMES = st.sampled_from(("h1", "h2", "h9"))
WHYS: st.SearchStrategy[messages.Gone] = st.sampled_from(
    ("expired", "ended", "unknown", "other_lease")
)
HOLDER_LIES = st.one_of(
    st.builds(
        messages.Lease, IDS.filter(bool), st.just(5), st.just(TABLES), st.just(1), st.just(1), IDS
    ),
    st.builds(messages.ReadEnd, IDS.filter(bool), st.integers(0, 30)),
    st.builds(messages.Cancelled, IDS.filter(bool)),
    st.builds(messages.Confirmed, IDS.filter(bool), IDS),
    st.builds(messages.Ended, IDS.filter(bool), IDS),
    st.builds(messages.Expired, IDS.filter(bool), WHYS),
    st.builds(messages.Error, st.just("internal"), st.just("a lie"), IDS),
    st.builds(messages.Attached, st.integers(1, 16)),
    st.builds(messages.Accept, st.just("lossy")),
    st.builds(messages.Refuse, st.just(""), st.just("")),
    st.builds(messages.Bye),
).map(codec.encode)
READER_LIES = st.one_of(
    st.builds(messages.Open, IDS.filter(bool), NAMES, st.just("l1"), st.just("r3")),
    st.builds(messages.Read, IDS.filter(bool), NAMES, st.just("g"), st.just(((0, 2),))),
    st.builds(messages.Cancel, IDS.filter(bool)),
    st.builds(messages.Done, IDS.filter(bool), NAMES),
    st.builds(messages.Forgo, IDS.filter(bool), NAMES, st.sampled_from(("l1", "l2"))),
    st.builds(messages.Prove, st.just("0" * 64)),
    st.builds(messages.Attach, st.just("0" * 32), st.integers(1, 16), st.just("0" * 64)),
    st.builds(messages.Bye),
).map(codec.encode)
DATA_LIES = st.builds(
    lambda read, offset, data: frames.data_header(read, offset, len(data)) + data,
    IDS.filter(bool),
    st.integers(0, 40),
    st.binary(min_size=1, max_size=30),
)


class HostileWalk(Walk):
    """Somebody puts bytes of his own between those of either side."""

    @precondition(lambda self: self.network.pipes())
    @rule(number=NUMBERS, lie=st.one_of(HOLDER_LIES, DATA_LIES, st.binary(min_size=1, max_size=40)))
    def lie_to_reader(self, number: int, lie: bytes) -> None:
        pipe = one_of(self.network.pipes(), number)
        pipe.reader.is_tainted = True
        pipe.to_reader += lie

    @precondition(lambda self: self.network.pipes())
    @rule(number=NUMBERS, lie=st.one_of(READER_LIES, st.binary(min_size=1, max_size=40)))
    def lie_to_holder(self, number: int, lie: bytes) -> None:
        pipe = one_of(self.network.pipes(), number)
        pipe.reader.is_tainted = True
        pipe.to_holder += lie

    @precondition(lambda self: self.under_way())
    @rule(number=NUMBERS, num_bytes=st.sampled_from((0, 30, 60)))
    def say_twice(self, number: int, num_bytes: int) -> None:
        """What is under way to a reader comes once more, or its last bytes."""
        pipe = one_of(self.under_way(), number)
        pipe.to_reader += pipe.to_reader[-num_bytes:]

    @rule(lie=st.one_of(READER_LIES, st.binary(max_size=40)))
    def come_as_a_stranger(self, lie: bytes) -> None:
        link = self.network.reception.connect("f" * 32, "f" * 64, self.network.now)
        assert not any(isinstance(event, Serve) for event in link.feed(lie, self.network.now))
        link.lose(self.network.now)

    def nobody_is_blamed(self) -> None:
        """Here somebody may be."""


TestHostileWalk = HostileWalk.TestCase
TestHostileWalk.settings = settings(max_examples=30, stateful_step_count=60, deadline=None)
