"""A reader's side of one session: requests, bytes and the time in; bytes and events out.

**Obligations of the owner**

1. `begin` when the control stream stands. After each call send `data_to_send` on it.
2. `tick` when `deadline` has come. Nothing waits without one.
3. Copy the bytes of `Data` before more are fed; or receive them in place: ask each stream for no
   more than `wanted`, and while `expects` names a range of a read, receive so many bytes of that
   stream into where they belong, and tell them by `received`. Nothing may use them before
   `ReadComplete`, and nobody else may have that memory while they are being received.
4. Renew a lease before it expires while it is wanted; the session does not.
5. After `SessionEnded` send what is to be sent, and close all streams; after `StreamFailed` close
   that one.
"""

from dataclasses import dataclass

import msgspec

from transload_abi.limits import MAX_DOCUMENT_BYTES
from transload_abi.wire import auth, codec, frames, messages
from transload_abi.wire import reader_waits as waits
from transload_abi.wire.errors import OutOfTurn, WireError
from transload_abi.wire.limits import (
    MAX_ID,
    MAX_MESSAGE_BYTES,
    MAX_OPEN,
    MAX_READS,
    MAX_REASON_CHARS,
    MAX_UNPROVEN_BYTES,
)
from transload_abi.wire.reader_events import ReaderEvent
from transload_abi.wire.reader_state import (
    BeginAsked,
    DataBegun,
    DataCame,
    DescriptorCame,
    Opening,
    Pending,
    ReaderCore,
    ReaderSettings,
    ReaderState,
    Reading,
    ReadOverdue,
    StreamAttached,
)
from transload_abi.wire.reader_table import step
from transload_abi.wire.session_events import Broken, EndAsked, Lost, StreamLost

_Request = (
    messages.Open
    | messages.Map
    | messages.Confirm
    | messages.Renew
    | messages.Done
    | messages.Release
    | messages.Forgo
)


@dataclass(slots=True)
class _Incoming:
    """The data frame of a stream, from its header to its last byte."""

    read: int
    offset: int
    checksum: int | None
    so_far: int = 0


class ReaderSession:
    """One session with a holder. Times are seconds of any one clock.

    Raises `ValueError` from calls that the session's state does not allow: the owner's fault.

    Args:
        settings: What is said of this side, and expected of the holder.
        nonce: 64 hex digits, drawn for this session.
        now: When the connection was asked for.
    """

    def __init__(self, settings: ReaderSettings, nonce: str, now: float) -> None:
        self._core = ReaderCore(settings, nonce, now=now, since=now)
        self._decoders = {0: frames.FrameDecoder(max_message_bytes=MAX_UNPROVEN_BYTES)}
        self._over: set[int] = set()
        self._incoming: dict[int, _Incoming] = {}

    @property
    def state(self) -> ReaderState:
        """What the session waits for."""
        return self._core.state

    # What the owner asks for.

    def begin(self, now: float) -> None:
        """Say hello."""
        if self.state is not ReaderState.NEW:
            raise ValueError("the session has begun")
        self._at(now)
        step(self._core, BeginAsked())

    def attach(self, stream: int, now: float) -> bytes:
        """Make a new connection a data stream; outcome `StreamReady` or `StreamFailed`.

        Returns:
            What to send on that connection, and all that is.
        """
        core = self._core
        self._at(now)
        self._require(ReaderState.OPEN)
        assert core.welcome is not None
        if not 1 <= stream <= core.welcome.max_streams or stream in self._decoders:
            raise ValueError(f"the stream {stream} was not offered, or was had")
        core.attaching[stream] = core.since = core.now
        self._decoders[stream] = frames.FrameDecoder(max_message_bytes=MAX_UNPROVEN_BYTES)
        key = auth.session_key(core.settings.token, core.digest)
        proof = auth.stream_proof(key, core.welcome.session, stream)
        return codec.encode(messages.Attach(core.welcome.session, stream, proof))

    def open(self, handoff: str, lease: str, reader: str, now: float) -> int:
        """Open a handoff; outcome `Opened`, `LeaseGone` or `RequestFailed`, of the id returned."""
        core = self._core
        self._at(now)
        self._require(ReaderState.OPEN)
        if handoff in core.opens or len(core.opens) >= MAX_OPEN:
            raise ValueError(f"{handoff!r} is open, or {MAX_OPEN} others are")
        asked = self._ask(messages.Open(self._new_id(), handoff, lease, reader), lease)
        core.opens[handoff] = Opening(lease)
        return asked

    def read(self, wanted: messages.Read, num_bytes: int, now: float) -> int:
        """Read blocks of an open handoff; outcome `ReadComplete` or `ReadFailed`.

        Args:
            wanted: Its id counts for nothing; the one that is sent is returned.
            num_bytes: What the holder's descriptor makes of it; another size fails it.
            now: Seconds.
        """
        core = self._core
        self._at(now)
        lease = self._lease(wanted.handoff)
        if wanted.stream and wanted.stream not in core.streams:
            raise ValueError(f"the stream {wanted.stream} is not attached")
        if len(core.reads) + len(core.cancelling) >= MAX_READS:
            raise ValueError(f"{MAX_READS} reads have not ended")
        message = msgspec.structs.replace(wanted, id=self._new_id())
        core.say(message)
        core.last_id = message.id
        core.reads[message.id] = Reading(
            message.handoff,
            lease,
            message.stream,
            num_bytes,
            message.checksums,
            asked=core.now,
            heard=core.now,
        )
        return message.id

    def cancel(self, read: int, now: float) -> list[ReaderEvent]:
        """Give a read up: its outcome is `ReadFailed` at once, unless it has one."""
        self._at(now)
        if read in self._core.reads:
            step(self._core, ReadOverdue(read, "cancelled", "given up"))
        return self._told()

    def map(self, handoff: str, table: int, blocks: tuple[messages.Range, ...], now: float) -> int:
        """Ask where blocks are; outcome `Located`, `LeaseGone` or `RequestFailed`.

        Args:
            handoff: Open, in a session with the feature `messages.SHM`.
            table: Of the holder's descriptor.
            blocks: As of `messages.Map`.
            now: Seconds.
        """
        core = self._core
        self._at(now)
        lease = self._lease(handoff)
        if core.welcome is None or messages.SHM not in core.welcome.features:
            raise ValueError(f"the session is without the feature {messages.SHM!r}")
        asked = self._ask(messages.Map(self._new_id(), handoff, table, blocks), lease)
        core.pending[asked].num_blocks = sum(count for _, count in blocks)
        return asked

    def confirm(self, handoff: str, now: float) -> int:
        """Ask whether the lease is held; outcome `StillHeld`, `LeaseGone` or `RequestFailed`."""
        self._at(now)
        lease = self._lease(handoff)
        return self._ask(messages.Confirm(self._new_id(), handoff), lease)

    def renew(self, handoff: str, now: float) -> int:
        """Have it held for another term; outcomes as of `confirm`."""
        self._at(now)
        lease = self._lease(handoff)
        return self._ask(messages.Renew(self._new_id(), handoff), lease)

    def done(self, handoff: str, now: float) -> int:
        """Say that nothing more is wanted; outcome `ShareEnded`, `LeaseGone` or `RequestFailed`."""
        return self._end_share(messages.Done, handoff, now)

    def release(self, handoff: str, now: float) -> int:
        """Say that it will not be read; outcomes as of `done`."""
        return self._end_share(messages.Release, handoff, now)

    def forgo(self, handoff: str, lease: str, now: float) -> int:
        """Give a handoff up that was never opened; outcomes as of `done`."""
        self._at(now)
        self._require(ReaderState.OPEN, ReaderState.FORGOING)
        return self._ask(messages.Forgo(self._new_id(), handoff, lease), lease)

    def end(self, reason: str, now: float) -> list[ReaderEvent]:
        """End it in order; whatever is under way gets its outcome."""
        return self._step(EndAsked(reason[:MAX_REASON_CHARS]), now)

    # What comes.

    def feed(self, stream: int, data: frames.Buffer, now: float) -> list[ReaderEvent]:
        """Bytes of a stream; dropped once the session, or the stream, has ended."""
        self._at(now)
        core = self._core
        try:
            self._bound(stream)
            for frame in self._decoders[stream].feed(data):
                if core.state is ReaderState.ENDED or stream in self._over:
                    break
                self._take(stream, frame)
                self._bound(stream)
        except WireError as error:
            step(core, Broken(error))
        return self._told()

    def wanted(self, stream: int) -> int:
        """Bytes up to the end of a stream's header, body or data under way, at least one.

        Who feeds no more at a time finds out by `expects` where data belong before they come.
        """
        return self._decoders[stream].wanted

    def expects(self, stream: int) -> tuple[int, int, int] | None:
        """Which bytes come next on a stream: read, offset, how many; None: feed it.

        Of a read that goes on, so the bytes may be received into its destination. As long as this
        says so they must not be fed.
        """
        incoming = self._incoming.get(stream)
        if incoming is None or incoming.read not in self._core.reads:
            return None
        return incoming.read, incoming.offset, self._decoders[stream].data_left

    def received(self, stream: int, data: frames.Buffer, now: float) -> list[ReaderEvent]:
        """The next of the bytes that `expects` named are in place; no `Data` tells of them.

        Args:
            stream: On which they came.
            data: A view of them, in place.
            now: Seconds.
        """
        if self.expects(stream) is None:
            raise ValueError(f"no data of a read are due on the stream {stream}")
        self._at(now)
        view = memoryview(data)
        decoder = self._decoders[stream]
        decoder.skip(len(view))
        self._take_data(stream, view, is_last=decoder.data_left == 0, is_in_place=True)
        return self._told()

    def lose(self, stream: int, now: float) -> list[ReaderEvent]:
        """A stream has ended, or broke."""
        if stream == 0:
            return self._step(Lost(), now)
        self._over.add(stream)
        return self._step(StreamLost(stream), now)

    # What is owed.

    def data_to_send(self) -> bytes:
        """What the control stream is owed, once."""
        sending = b"".join(self._core.out)
        self._core.out.clear()
        return sending

    def deadline(self) -> float | None:
        """When to `tick`; None at the end alone."""
        return waits.deadline(self._core)

    def tick(self, now: float) -> list[ReaderEvent]:
        """Do what is due."""
        self._at(now)
        for event in waits.overdue(self._core):
            step(self._core, event)
        return self._told()

    def _take(self, stream: int, frame: frames.Frame) -> None:
        """A frame, as an event of the table."""
        core = self._core
        if isinstance(frame, frames.DataBytes):
            self._take_data(stream, frame.data, is_last=frame.is_last, is_in_place=False)
        elif isinstance(frame, frames.DataBegin):
            step(core, DataBegun(stream, frame))
            if core.state is not ReaderState.ENDED:
                self._incoming[stream] = _Incoming(frame.read, frame.offset, frame.checksum)
        elif isinstance(frame, frames.DescriptorFrame):
            step(core, DescriptorCame(frame.body))
        elif stream:
            self._take_answer(stream, codec.decode(frame.body, "holder"))
        else:
            message = codec.decode(frame.body, "holder")
            if isinstance(message, messages.Welcome):
                core.welcome_body = frame.body
            step(core, message)

    def _take_answer(self, stream: int, message: messages.Message) -> None:
        """A message on a data stream."""
        if isinstance(message, messages.Attached):
            step(self._core, StreamAttached(stream, message))
        elif isinstance(message, messages.Error) and message.id == 0:
            self._over.add(stream)
            step(self._core, StreamLost(stream, f"{message.code}: {message.reason}"))
        else:
            raise OutOfTurn("expected attached or data", f"stream {stream}")

    def _take_data(
        self, stream: int, data: memoryview, *, is_last: bool, is_in_place: bool
    ) -> None:
        incoming = self._incoming[stream]
        if incoming.checksum is not None:
            incoming.so_far = frames.checksum_of(data, incoming.so_far)
        is_spoiled = is_last and incoming.checksum not in (None, incoming.so_far)
        came = DataCame(
            incoming.read,
            incoming.offset,
            len(data),
            None if is_in_place else data,
            is_spoiled,
        )
        incoming.offset += len(data)
        if is_last:
            del self._incoming[stream]
        step(self._core, came)

    def _bound(self, stream: int) -> None:
        """Let the decoder take what may come next on a stream."""
        core, decoder = self._core, self._decoders[stream]
        may_read = core.state is ReaderState.OPEN and (stream == 0 or stream in core.streams)
        most = core.welcome.max_data_bytes if core.welcome else 0
        decoder.max_data_bytes = most if may_read else 0
        is_due = stream == 0 and core.state is ReaderState.DESCRIPTOR
        decoder.max_descriptor_bytes = MAX_DOCUMENT_BYTES if is_due else 0
        is_proven = stream == 0 and core.welcome is not None
        decoder.max_message_bytes = MAX_MESSAGE_BYTES if is_proven else MAX_UNPROVEN_BYTES

    def _lease(self, handoff: str) -> str:
        """Of a handoff that must be open."""
        self._require(ReaderState.OPEN)
        opening = self._core.opens.get(handoff)
        if opening is None or not opening.is_answered:
            raise ValueError(f"{handoff!r} is not open")
        return opening.lease

    def _end_share(
        self, kind: type[messages.Done] | type[messages.Release], handoff: str, now: float
    ) -> int:
        self._at(now)
        lease = self._lease(handoff)
        asked = self._ask(kind(self._new_id(), handoff), lease)
        self._core.close(handoff, lease)
        return asked

    def _ask(self, message: _Request, lease: str) -> int:
        core = self._core
        if len(core.pending) >= MAX_OPEN:
            raise ValueError(f"{MAX_OPEN} requests have no answer")
        core.say(message)
        core.last_id = message.id
        core.pending[message.id] = Pending(type(message), message.handoff, lease, core.now)
        return message.id

    def _new_id(self) -> int:
        if self._core.last_id >= MAX_ID:
            raise ValueError("the session has no ids left")
        return self._core.last_id + 1

    def _require(self, *states: ReaderState) -> None:
        if self.state not in states:
            raise ValueError(f"the session is {self.state}")

    def _at(self, now: float) -> None:
        self._core.now = max(self._core.now, now)

    def _step(self, event: object, now: float) -> list[ReaderEvent]:
        self._at(now)
        step(self._core, event)
        return self._told()

    def _told(self) -> list[ReaderEvent]:
        told = list(self._core.events)
        self._core.events.clear()
        return told
