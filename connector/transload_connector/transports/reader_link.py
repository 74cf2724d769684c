"""One session of a reader over its connections: requests in, futures' outcomes out.

All of it runs in the client's IO thread. What is asked before the session is open waits for it.
"""

import secrets
import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from transload_abi.types import Descriptor
from transload_abi.wire import messages
from transload_abi.wire import reader_events as told
from transload_abi.wire.errors import WireError
from transload_abi.wire.frames import DATA_HEADER_BYTES, HEADER_BYTES
from transload_abi.wire.holder_state import Incompatible
from transload_abi.wire.reader import ReaderSession
from transload_abi.wire.reader_state import ReaderSettings, ReaderState
from transload_abi.wire.session_events import SessionEnded
from transload_connector.transports import reader_failures as failures
from transload_connector.transports.errors import (
    LeaseGone,
    PeerFault,
    PeerRefused,
    PeerUnreachable,
    TimedOut,
    TransferError,
)
from transload_connector.transports.io_thread import RECHECK_S, IoThread
from transload_connector.transports.reader_reads import ReadQueue
from transload_connector.transports.reader_requests import (
    Asked,
    AskedOpen,
    Failure,
    OpenHandoff,
    Reading,
    release,
    renewal,
)
from transload_connector.transports.reader_stream import ReaderStream
from transload_connector.transports.shared_memory import map_pool
from transload_connector.transports.sockets import Address, SocketAddress, name_of
from transload_connector.transports.verdicts import Verdict, descriptor_of

MESSAGE_PART_BYTES: Final = 1 << 16
"""Taken at once of what is no data."""

_USABLE: Final = (ReaderState.OPEN, ReaderState.FORGOING)


class ReaderLink:
    """A session.

    Args:
        thread: That it runs in.
        settings: What is said of this side.
        address: Of the holder.
        num_streams: Data streams to attach, if the holder offers so many.
        ours: This side's descriptor, in canonical form; None where it only forgoes.
        verdict: Judges the holder's blocks.
        on_end: Called once, when the session has ended, before its requests fail.
    """

    def __init__(
        self,
        thread: IoThread,
        settings: ReaderSettings,
        address: Address,
        num_streams: int,
        ours: Descriptor | None,
        verdict: Verdict,
        on_end: Callable[[], None],
    ) -> None:
        self._thread = thread
        self._machine = ReaderSession(settings, secrets.token_hex(32), thread.clock())
        self._address = address
        self._peer = name_of(address)
        self._num_streams = num_streams
        self._ours = ours
        self._verdict = verdict
        self._on_end = on_end
        self._failure: Failure | None = None
        self._ready: told.Ready | None = None
        self._holder: Descriptor | None = None
        self._streams: dict[int, ReaderStream] = {}
        self._ready_streams: set[int] = set()
        self._num_attached = 0
        self._waiting: deque[Asked[Any]] = deque()
        self._asked: dict[int, Asked[Any]] = {}
        read_s = settings.deadlines.read_s
        self._reads = ReadQueue(
            thread, self._machine, self._peer, read_s, self._chosen_stream, self._why
        )
        self._mappings: dict[str, memoryview] = {}
        self._handoffs: weakref.WeakValueDictionary[str, OpenHandoff] = (
            weakref.WeakValueDictionary()
        )

    @property
    def is_usable(self) -> bool:
        """Whether requests are asked at once."""
        return self._machine.state in _USABLE

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self._machine.state is ReaderState.ENDED

    # What the client asks for.

    def begin(self, addresses: list[SocketAddress]) -> None:
        """The holder's address is known: connect."""
        if not self.is_over:
            self._streams[0] = ReaderStream(0, self, self._thread, addresses)
            self._streams[0].connect()

    def unreachable(self, reason: str) -> None:
        """There is nothing to connect to."""
        self._failure = lambda what: PeerUnreachable(self._peer, what, reason)
        self._took(self._machine.lose(0, self._thread.clock()))

    def ask(self, asked: Asked[Any]) -> None:
        """Ask it, now or when the session is open."""
        handoff = asked.handoff
        if self.is_over:
            asked.fail(PeerUnreachable(self._peer, asked.what, "the session has ended"))
        elif handoff is not None and handoff.gone:
            asked.fail(LeaseGone(self._peer, asked.what, handoff.gone))
        elif self.is_usable:
            self._start(asked)
        else:
            self._waiting.append(asked)

    def end_share(self, asked: Asked[int]) -> None:
        """Ask what ends this reader's share."""
        self.ask(asked)
        if asked.handoff is not None:
            asked.handoff.gone = asked.handoff.gone or "this reader has ended it"

    def read(self, reading: Reading) -> None:
        """Read, now or when there is room."""
        if self.is_over:
            reading.fail(PeerUnreachable(self._peer, reading.what, "the session has ended"))
        else:
            self._reads.add(reading)

    def cancel(self, reading: Reading) -> None:
        """Give a read up."""
        self._took(self._reads.cancel(reading))

    def mapping_of(self, file: messages.PoolFile) -> memoryview:
        """See `Link`."""
        found = self._mappings.get(file.name)
        if found is None:
            found = self._mappings[file.name] = map_pool(file.name, file.num_bytes)
        return found

    def end(self, reason: str) -> None:
        """End the session in order."""
        self._took(self._machine.end(reason, self._thread.clock()))

    # What the thread calls.

    def flush(self) -> None:
        """Send what is owed."""
        data = self._machine.data_to_send()
        control = self._streams.get(0)
        if data and control is not None:
            control.send(data)

    def deadline(self) -> float | None:
        """When to `tick`."""
        dues = [each.renew_at for each in self._handoffs.values() if not each.gone]
        due = self._machine.deadline()
        if due is not None:
            dues.append(due)
        if self._reads.has_waiting:
            dues.append(self._thread.clock() + RECHECK_S)
        return min(dues, default=None)

    def tick(self, now: float) -> None:
        """Do what is due."""
        due = self._machine.deadline()
        if self._machine.state is ReaderState.NEW and due is not None and due <= now:
            self._failure = lambda what: TimedOut(self._peer, what, "no connection in time")
            self._took(self._machine.lose(0, now))
        self._took(self._machine.tick(now))
        for each in list(self._handoffs.values()):
            if not each.gone and each.renew_at <= now:
                self._renew(each, now)
        self._reads.fail_late(now)
        self._reads.start()

    # What streams call.

    def connected(self, stream: ReaderStream) -> None:
        """A connection stands."""
        if stream.number == 0:
            self._machine.begin(self._thread.clock())

    def receive(self, stream: ReaderStream, sock: socket.socket) -> int:
        """Take bytes: data to where they belong, all else to the machine."""
        number, machine = stream.number, self._machine
        expected = machine.expects(number)
        if expected is None:
            data = sock.recv(self._num_wanted(number))
            if data:
                self._took(machine.feed(number, data, self._thread.clock()))
            return len(data)
        read, offset, left = expected
        views = self._reads.views(read, offset, left)
        num_bytes = sock.recv_into(views[0]) if len(views) == 1 else sock.recvmsg_into(views)[0]
        rest = num_bytes
        for view in views:
            if not rest:
                break
            come = view[:rest]
            rest -= len(come)
            self._took(machine.received(number, come, self._thread.clock()))
        return num_bytes

    def _num_wanted(self, number: int) -> int:
        """At most up to where data may begin."""
        wanted = self._machine.wanted(number)
        if number in self._ready_streams and wanted == HEADER_BYTES:
            # Nothing but data frames come on a data stream, so both headers can be had at once.
            return HEADER_BYTES + DATA_HEADER_BYTES
        return min(wanted, MESSAGE_PART_BYTES)

    def lost(self, stream: ReaderStream, reason: str) -> None:
        """A connection has failed or ended."""
        if stream.number == 0 and self._failure is None:
            self._failure = lambda what: PeerUnreachable(self._peer, what, reason)
        self._took(self._machine.lose(stream.number, self._thread.clock()))

    # What the machine tells.

    def _took(self, events: list[told.ReaderEvent]) -> None:
        ended = next((each for each in events if isinstance(each, SessionEnded)), None)
        if ended is not None:
            self._on_end()
            if ended.why != "peer_lost" and not (ended.why == "asked" and self._failure):
                self._failure = lambda what: failures.of_session(ended, self._peer, what)
        for event in events:
            self._take(event)

    def _take(self, event: told.ReaderEvent) -> None:
        if isinstance(event, told.ReadComplete | told.ReadFailed):
            self._reads.end(event)
            self._reads.start()
        elif isinstance(event, told.StreamReady | told.StreamFailed):
            self._take_stream(event)
        elif isinstance(event, told.Ready):
            self._open(event)
        elif isinstance(event, SessionEnded):
            self._end()
        else:
            assert not isinstance(event, told.Data), "data are received in place"
            self._answer(event)

    def _open(self, event: told.Ready) -> None:
        """The session is open; judge the holder's blocks, if they are to be read."""
        self._ready = event
        if self._ours is not None:
            try:
                self._holder = descriptor_of(event.descriptor)
                found = self._verdict(self._holder, self._ours)
            except WireError as error:
                fault = error.reason
                self._failure = lambda what: PeerFault(self._peer, what, fault)
                self.end(fault)
                return
            if isinstance(found, Incompatible):
                said = f"{found.path}: {found.reason}"
                self._failure = lambda what: PeerRefused(self._peer, what, said)
                self.end(said)
                return
            for _ in range(min(self._num_streams, event.welcome.max_streams)):
                self._attach()
        while self._waiting and not self.is_over:
            self._start(self._waiting.popleft())

    def _attach(self) -> None:
        """Connect another data stream."""
        self._num_attached += 1
        number = self._num_attached
        stream = ReaderStream(number, self, self._thread, [self._streams[0].address])
        self._streams[number] = stream
        stream.send(self._machine.attach(number, self._thread.clock()))
        stream.connect()

    def _take_stream(self, event: told.StreamReady | told.StreamFailed) -> None:
        if isinstance(event, told.StreamReady):
            self._ready_streams.add(event.stream)
        else:
            stream = self._streams.pop(event.stream, None)
            if stream is not None:
                stream.close()
            was_ready = event.stream in self._ready_streams
            self._ready_streams.discard(event.stream)
            assert self._ready is not None
            has_more = self._num_attached < self._ready.welcome.max_streams
            if was_ready and has_more and not self.is_over:
                self._attach()
        self._reads.start()

    def _answer(self, event: told.RequestEnded) -> None:
        asked = self._asked.pop(event.id)
        handoff = self._handoffs.get(event.handoff)
        if isinstance(event, told.Opened):
            assert isinstance(asked, AskedOpen)
            self._answer_open(asked, event)
        elif isinstance(event, told.StillHeld):
            if handoff is not None:
                handoff.expires = max(handoff.expires, event.expires)
                if asked.renews:
                    handoff.plan_renewal(self._thread.clock())
            asked.answer(event.expires)
        elif isinstance(event, told.ShareEnded):
            asked.answer(event.left)
        elif isinstance(event, told.Located):
            asked.answer(event.mapped)
        elif isinstance(event, told.LeaseGone):
            if handoff is not None:
                handoff.gone = handoff.gone or event.why
            asked.fail(LeaseGone(self._peer, asked.what, event.why))
        elif event.code:
            asked.fail(failures.of_request(event, self._peer, asked.what))
        else:
            self._fail(asked)

    def _answer_open(self, asked: AskedOpen, event: told.Opened) -> None:
        assert self._ready is not None
        assert self._ready.verdict is not None
        assert self._holder is not None
        handoff = OpenHandoff(
            self,
            self._address,
            self._ready.welcome,
            self._holder,
            self._ready.verdict,
            asked.message,
            event.lease,
        )
        handoff.expires = event.expires
        handoff.plan_renewal(self._thread.clock())
        self._handoffs[event.handoff] = handoff
        if not asked.answer(handoff):
            self.end_share(release(handoff))

    def _end(self) -> None:
        """The session has ended: nobody waits for it any more."""
        self.flush()
        for stream in self._streams.values():
            stream.close()
        for asked in self._waiting:
            self._fail(asked)
        self._waiting.clear()
        self._mappings.clear()
        self._reads.fail_all()

    def _fail(self, asked: Asked[Any]) -> None:
        """The session has ended without an answer."""
        error = self._why(asked.what)
        if asked.retry is not None and isinstance(error, PeerUnreachable):
            asked.retry()
        else:
            asked.fail(error)

    def _why(self, what: str) -> TransferError:
        if self._failure is None:
            return PeerUnreachable(self._peer, what, "the session has ended")
        return self._failure(what)

    # What is asked.

    def _start(self, asked: Asked[Any]) -> None:
        try:
            id_ = asked.start(self._machine, self._thread.clock())
        except ValueError as error:
            asked.fail(error)
        else:
            self._asked[id_] = asked

    def _renew(self, handoff: OpenHandoff, now: float) -> None:
        handoff.plan_renewal(now)
        self.ask(renewal(handoff))

    def _chosen_stream(self) -> ReaderStream | None:
        """The data stream with the least to come; None before there is one."""
        if not self.is_usable:
            return None
        if self._ready_streams:
            ready = (self._streams[number] for number in self._ready_streams)
            return min(ready, key=lambda each: each.num_due)
        return None if len(self._streams) > 1 else self._streams[0]
