"""A holder and its readers over a network of byte queues, with books of what must hold.

Nothing happens by itself: bytes lie in queues until they are delivered, time stands until it is
passed, and what the holder serves is copied when that is asked for. Blocks that are given back are
overwritten at once, so a byte that was read too late is seen.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from transload_abi.wire import frames, limits, messages
from transload_abi.wire.deadlines import HolderDeadlines, ReaderDeadlines, Terms
from transload_abi.wire.holder_state import Compatible, HolderSettings, Serve
from transload_abi.wire.ledger import Ledger
from transload_abi.wire.reader import ReaderSession
from transload_abi.wire.reader_events import (
    Data,
    LeaseGone,
    Opened,
    ReadComplete,
    ReadFailed,
    RequestFailed,
    ShareEnded,
    StillHeld,
    StreamFailed,
    StreamReady,
)
from transload_abi.wire.reader_state import ReaderSettings, ReaderState
from transload_abi.wire.reception import Link, Reception
from transload_abi.wire.session_events import SessionEnded

NUM_BLOCKS = 6
BLOCK_BYTES = 5
TABLES = (messages.Table(0, NUM_BLOCKS),)
TERMS = Terms(term_s=10.0, max_hold_s=60.0)
HOLDER_WAITS = HolderDeadlines(opening_s=10.0, stall_s=8.0, idle_s=50.0)
READER_WAITS = ReaderDeadlines(opening_s=10.0, answer_s=6.0, stall_s=8.0, read_s=30.0, idle_s=40.0)
DESCRIPTOR = bytes(range(200))
MAX_HELD_BYTES = limits.MAX_MESSAGE_BYTES + 64


def content(handoff: str, lease: str) -> bytes:
    """What a handoff's blocks hold under a lease: no byte as under another one."""
    seed = sum(f"{handoff}/{lease}".encode()) * 7
    return bytes((seed + 11 * at) % 251 for at in range(NUM_BLOCKS * BLOCK_BYTES))


@dataclass
class Pipe:
    """Bytes under way on one connection, and who is at its ends.

    Attributes:
        is_cut: Nothing more can be sent; what is under way may still be delivered, and both ends
            learn of it after that.
    """

    reader: "Reader"
    stream: int
    link: Link
    to_holder: bytearray = field(default_factory=bytearray)
    to_reader: bytearray = field(default_factory=bytearray)
    is_cut: bool = False
    is_closed: bool = False


@dataclass
class Asked:
    """A read, and what has come of it."""

    handoff: str
    lease: str
    blocks: tuple[messages.Range, ...]
    data: bytearray

    @property
    def expected(self) -> bytes:
        """The bytes that a complete read must have brought."""
        whole = content(self.handoff, self.lease)
        return b"".join(
            whole[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES]
            for first, count in self.blocks
        )


@dataclass
class Reader:
    """A reader's session with its books.

    Attributes:
        asked: Requests and reads by id, and streams as `("stream", n)`.
        outcomes: How many each of them has had.
        is_tainted: Somebody has sent it data that are not the holder's.
    """

    number: int
    session: ReaderSession
    pipes: dict[int, Pipe] = field(default_factory=dict)
    asked: set[Any] = field(default_factory=set)
    outcomes: Counter[Any] = field(default_factory=Counter)
    leases: dict[str, str] = field(default_factory=dict)
    opened: dict[int, tuple[str, str]] = field(default_factory=dict)
    reads: dict[int, Asked] = field(default_factory=dict)
    num_complete: int = 0
    ended: SessionEnded | None = None
    is_tainted: bool = False


@dataclass
class Copying:
    """A read that is being served: pieces of it that are still to be sent."""

    link: Link
    serve: Serve
    pieces: list[tuple[int, int]]
    is_copying: bool = False


class Network:
    """All of it."""

    def __init__(self, token: bytes = b"a token") -> None:
        self.now = 0.0
        self.token = token
        self.ledger = Ledger(TERMS)
        self.blocks: dict[str, bytearray] = {}
        self.leases: dict[str, str] = {}
        self.freed: Counter[tuple[str, str]] = Counter()
        self.reception = self._reception("g1")
        self.readers: list[Reader] = []
        self.serving: list[Copying] = []
        self.ends: list[SessionEnded] = []
        self.held_to_the_end: set[tuple[str, int]] = set()
        self._numbers = itertools.count(1)

    def _reception(self, generation: str) -> Reception:
        settings = HolderSettings(
            "P", generation, DESCRIPTOR, self.token, 4096, 2, deadlines=HOLDER_WAITS
        )
        return Reception(
            settings,
            self.ledger,
            lambda _: Compatible("identical"),
            lambda read, _: BLOCK_BYTES * sum(count for _, count in read.blocks),
        )

    # The holder's owner.

    def grant(self, handoff: str, readers: int) -> None:
        """Hold a handoff, if it is not held and nobody copies it."""
        if handoff not in self.blocks:
            lease = self.leases[handoff] = f"l{next(self._numbers)}"
            self.blocks[handoff] = bytearray(content(handoff, lease))
            self.ledger.grant(handoff, lease, TABLES, 50, readers, self.now)

    def copy(self, which: int) -> None:
        """Begin to send a piece of a read, or finish it."""
        one = self.serving[which % len(self.serving)]
        session, serve = one.link.session, one.serve
        assert session is not None
        if not one.is_copying:
            one.is_copying = session.may_send(serve.id, self.now)
            if not one.is_copying:
                self.serving.remove(one)
        else:
            first, end = one.pieces.pop(0)
            self._send_piece(one, first, end)
            one.is_copying = False
            claim = session._core.reads[serve.id].claim
            left_s = self.ledger.confirm(serve.message.handoff, claim.lease, claim.reader, self.now)
            if not one.pieces and not isinstance(left_s, str):
                self.held_to_the_end.add((session.name, serve.id))
            session.sent(serve.id, end - first, self.now)
            if not one.pieces:
                self.serving.remove(one)
        self._settle()

    def _send_piece(self, one: Copying, first: int, end: int) -> None:
        message = one.serve.message
        memory = self.blocks[message.handoff]
        payload = b"".join(
            memory[block * BLOCK_BYTES : (block + count) * BLOCK_BYTES]
            for block, count in message.blocks
        )
        body = payload[first:end]
        checksum = frames.checksum_of(body) if message.checksums else None
        frame = frames.data_header(one.serve.id, first, len(body), checksum) + body
        for pipe in self.pipes():
            if pipe.link.session is one.link.session and pipe.stream == message.stream:
                self._drain(pipe)
                self._send(pipe, pipe.to_reader, frame)

    # The readers' owner.

    def connect(self) -> Reader:
        """A new reader."""
        number = next(self._numbers)
        settings = ReaderSettings(
            "D",
            f"g{number}",
            DESCRIPTOR,
            self.token,
            4096,
            holder_generation="g1",
            deadlines=READER_WAITS,
        )
        reader = Reader(number, ReaderSession(settings, f"{number:064x}", self.now))
        self.readers.append(reader)
        self._pipe(reader, 0)
        reader.session.begin(self.now)
        self._settle()
        return reader

    def attach(self, reader: Reader, stream: int) -> None:
        """One more connection."""
        first = reader.session.attach(stream, self.now)
        reader.asked.add(("stream", stream))
        pipe = self._pipe(reader, stream)
        pipe.to_holder += first
        self._settle()

    def ask(self, reader: Reader, what: str, *args: Any) -> None:
        """A request that is no read."""
        id_ = getattr(reader.session, what)(*args, self.now)
        reader.asked.add(id_)
        if what == "open":
            reader.opened[id_] = args[0], args[1]
        if what in ("done", "release"):
            del reader.leases[args[0]]
        self._settle()

    def read(
        self, reader: Reader, handoff: str, blocks: messages.Range, stream: int, checksums: bool
    ) -> None:
        """Read some blocks."""
        wanted = messages.Read(1, handoff, "g", (blocks,), stream=stream, checksums=checksums)
        num_bytes = blocks[1] * BLOCK_BYTES
        id_ = reader.session.read(wanted, num_bytes, self.now)
        reader.asked.add(id_)
        reader.reads[id_] = Asked(handoff, reader.leases[handoff], (blocks,), bytearray(num_bytes))
        self._settle()

    def cancel(self, reader: Reader, read: int) -> None:
        """Give a read up."""
        self._note(reader, reader.session.cancel(read, self.now))
        self._settle()

    def end(self, reader: Reader) -> None:
        """End a session in order."""
        self._note(reader, reader.session.end("enough", self.now))
        self._settle()

    # The network.

    def _pipe(self, reader: Reader, stream: int) -> Pipe:
        number = next(self._numbers)
        link = self.reception.connect(f"{number:032x}", f"{number:064x}", self.now)
        pipe = reader.pipes[stream] = Pipe(reader, stream, link)
        return pipe

    def pipes(self) -> list[Pipe]:
        """Connections that stand."""
        return [
            pipe for reader in self.readers for pipe in reader.pipes.values() if not pipe.is_closed
        ]

    def deliver(self, pipe: Pipe, num_bytes: int, to_holder: bool) -> None:
        """Some of the bytes under way."""
        queue = pipe.to_holder if to_holder else pipe.to_reader
        data = bytes(queue[:num_bytes])
        del queue[:num_bytes]
        if to_holder:
            self._note_holder(pipe.link, pipe.link.feed(data, self.now))
        else:
            events = pipe.reader.session.feed(pipe.stream, data, self.now)
            self._note(pipe.reader, events)
        if pipe.is_cut and not pipe.to_holder and not pipe.to_reader:
            self._close(pipe)
        self._settle()

    def deliver_all(self) -> None:
        """Whatever is under way, and what comes of it."""
        while busy := [pipe for pipe in self.pipes() if pipe.to_holder or pipe.to_reader]:
            for pipe in busy:
                for to_holder in (True, False):
                    self.deliver(pipe, 1 << 20, to_holder)

    def cut(self, pipe: Pipe, num_lost_bytes: int) -> None:
        """A connection breaks; the last bytes under way are lost."""
        pipe.is_cut = True
        for queue in (pipe.to_holder, pipe.to_reader):
            del queue[max(0, len(queue) - num_lost_bytes) :]
        if not pipe.to_holder and not pipe.to_reader:
            self._close(pipe)
        self._settle()

    def pass_time(self, seconds: float) -> None:
        """Time passes; all that is due is done."""
        self.now += seconds
        for reader in self.readers:
            self._note(reader, reader.session.tick(self.now))
        for pipe in self.pipes():
            self._note_holder(pipe.link, pipe.link.tick(self.now))
        self._settle()

    def next_deadline(self) -> float | None:
        """When somebody's wait is over."""
        times = [
            *(reader.session.deadline() for reader in self.readers),
            *(pipe.link.deadline() for pipe in self.pipes()),
            self.ledger.next_expiry(),
        ]
        return min((time for time in times if time is not None), default=None)

    def _close(self, pipe: Pipe) -> None:
        pipe.is_closed = True
        self._note_holder(pipe.link, pipe.link.lose(self.now))
        self._note(pipe.reader, pipe.reader.session.lose(pipe.stream, self.now))

    def _drain(self, pipe: Pipe) -> None:
        self._send(pipe, pipe.to_reader, pipe.link.data_to_send())

    def _send(self, pipe: Pipe, queue: bytearray, data: bytes) -> None:
        if not pipe.is_cut:
            queue += data

    def _settle(self) -> None:
        """What every call owes: bytes are sent, connections closed, free blocks used again."""
        for pipe in self.pipes():
            self._drain(pipe)
            if pipe.stream == 0:
                self._send(pipe, pipe.to_holder, pipe.reader.session.data_to_send())
            is_over = pipe.link.is_over or pipe.reader.session.state is ReaderState.ENDED
            if is_over and not pipe.is_cut:
                pipe.is_cut = True
                if not pipe.to_holder and not pipe.to_reader:
                    self._close(pipe)
        for freed in self.ledger.expire(self.now):
            self.freed[freed.handoff, freed.lease] += 1
            self.blocks.pop(freed.handoff)[:] = b"\xff" * (NUM_BLOCKS * BLOCK_BYTES)
        self.check()

    # Books.

    def _note_holder(self, link: Link, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Serve):
                half = event.num_bytes // 2
                pieces = [(0, half), (half, event.num_bytes)]
                if event.id % 2:
                    pieces.reverse()
                self.serving.append(Copying(link, event, pieces))
            elif isinstance(event, SessionEnded):
                self.ends.append(event)

    def _note(self, reader: Reader, events: list[Any]) -> None:
        for event in events:
            match event:
                case Data(read, offset, data):
                    reader.reads[read].data[offset : offset + len(data)] = data
                case ReadComplete(read):
                    reader.outcomes[read] += 1
                    reader.num_complete += 1
                    one = reader.reads[read]
                    if not reader.is_tainted:
                        welcome = reader.session._core.welcome
                        assert welcome is not None
                        assert (welcome.session, read) in self.held_to_the_end
                        assert bytes(one.data) == one.expected
                case ReadFailed(read=read):
                    reader.outcomes[read] += 1
                    if event.why == "expired":
                        reader.leases.pop(event.handoff, None)
                case Opened(id=id_, handoff=handoff):
                    reader.outcomes[id_] += 1
                    reader.leases[handoff] = reader.opened[id_][1]
                case LeaseGone(id=id_, handoff=handoff):
                    reader.outcomes[id_] += 1
                    reader.leases.pop(handoff, None)
                case StillHeld(id=id_) | ShareEnded(id=id_) | RequestFailed(id=id_):
                    reader.outcomes[id_] += 1
                case StreamReady(stream):
                    reader.outcomes["stream", stream] += 1
                case StreamFailed(stream):
                    if not reader.outcomes["stream", stream]:
                        reader.outcomes["stream", stream] += 1
                    if stream in reader.pipes:
                        self.cut(reader.pipes[stream], 0)
                case SessionEnded():
                    assert reader.ended is None
                    reader.ended = event
                    reader.leases.clear()

    def check(self) -> None:
        """What must hold at all times."""
        assert all(count == 1 for count in self.freed.values()), "given back twice"
        for reader in self.readers:
            twice = [id_ for id_, count in reader.outcomes.items() if count != 1]
            assert twice == []
            assert set(reader.outcomes) <= reader.asked
            core = reader.session._core
            assert len(core.pending) <= limits.MAX_OPEN
            assert len(core.reads) + len(core.cancelling) <= limits.MAX_READS
            assert core.events == []
            for decoder in reader.session._decoders.values():
                assert len(decoder._held) <= MAX_HELD_BYTES
            if reader.ended:
                assert set(reader.outcomes) == reader.asked
                assert reader.session.deadline() is None
        for pipe in self.pipes():
            assert len(pipe.link._decoder._held) <= MAX_HELD_BYTES
        for session in self.reception.sessions.values():
            holding = session._core
            assert max(len(holding.opens), len(holding.closed)) <= limits.MAX_OPEN
            assert len(holding.reads) <= limits.MAX_READS
            assert len(holding.seen_streams) <= limits.MAX_STREAMS

    def finish(self) -> None:
        """Nobody says anything any more: every wait ends, and all blocks come back."""
        while self.serving:
            self.copy(0)
        for pipe in self.pipes():
            pipe.to_holder.clear()
            pipe.to_reader.clear()
        for _ in range(400):
            due = self.next_deadline()
            if due is None:
                break
            self.pass_time(max(0.0, due - self.now))
            for pipe in self.pipes():
                pipe.to_holder.clear()
                pipe.to_reader.clear()
        assert self.next_deadline() is None
        assert all(reader.ended for reader in self.readers)
        assert self.reception.sessions == {}
        assert self.blocks == {}
        assert (self.ledger.num_held, self.ledger.num_copied) == (0, 0)
