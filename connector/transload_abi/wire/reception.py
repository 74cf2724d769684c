"""A holder's connections: the first message says whether one begins a session or joins one.

Bytes and the time in, bytes and events out. Knows no sockets, and draws no nonces. Each connection
costs a short message at most before it has proven the token; how many there may be is the owner's
to say. Whatever a reader says on a data stream behind `attach` ends that stream alone.
"""

from collections.abc import Callable

from transload_abi.limits import MAX_DOCUMENT_BYTES
from transload_abi.wire import codec, frames, messages
from transload_abi.wire.errors import BadFrame, OutOfTurn, WireError
from transload_abi.wire.holder import HolderSession
from transload_abi.wire.holder_state import (
    Compare,
    HolderEvent,
    HolderSettings,
    HolderState,
    Locate,
    Measure,
)
from transload_abi.wire.ledger import Ledger
from transload_abi.wire.limits import MAX_MESSAGE_BYTES, MAX_UNPROVEN_BYTES


class Reception:
    """All sessions of one holder.

    Args:
        settings: What is said of this side.
        ledger: Of all sessions.
        compare: Judges a reader's descriptor.
        measure: Judges a read.
        locate: Says where blocks are; None where no memory is shared.

    Attributes:
        sessions: Those that have not ended, by name.
    """

    def __init__(
        self,
        settings: HolderSettings,
        ledger: Ledger,
        compare: Compare,
        measure: Measure,
        locate: Locate | None = None,
    ) -> None:
        if (messages.SHM in settings.features) != (locate is not None):
            raise ValueError(f"features: {messages.SHM!r} needs `locate`, and `locate` needs it")
        self.settings = settings
        self.sessions: dict[str, HolderSession] = {}
        self._begin: Callable[[str, str, float], HolderSession] = lambda session, nonce, now: (
            HolderSession(settings, ledger, compare, measure, locate, session, nonce, now)
        )

    def connect(self, session: str, nonce: str, now: float) -> "Link":
        """A connection was accepted.

        Args:
            session: 32 hex digits, drawn for it; its name, should it begin a session.
            nonce: 64 hex digits, likewise.
            now: Seconds.
        """
        return Link(self, self._begin(session, nonce, now), now)


class Link:
    """One connection.

    Attributes:
        session: Which it belongs to; None before its first message, and where that was refused.
        stream: 0 for a control stream, and a data stream's number.
        is_over: Whether it is to be closed once what is to be sent is sent.
    """

    def __init__(self, reception: Reception, fresh: HolderSession, now: float) -> None:
        self.session: HolderSession | None = None
        self.stream = 0
        self._reception = reception
        self._fresh = fresh
        self._since = now
        self._out = b""
        self._is_refused = False
        self._is_lost = False
        self._decoder = frames.FrameDecoder(max_message_bytes=MAX_UNPROVEN_BYTES)

    @property
    def is_over(self) -> bool:
        """Whether it is to be closed once what is to be sent is sent."""
        if self.session is None:
            return self._is_refused
        return self._is_lost or self.session.state is HolderState.ENDED

    def feed(self, data: frames.Buffer, now: float) -> list[HolderEvent]:
        """Bytes of the connection; dropped once it is over."""
        return [] if self.is_over else self._feed(data, now)

    def lose(self, now: float) -> list[HolderEvent]:
        """The connection has ended, or broke, or a data stream of it is of no use any more."""
        session = self.session
        if session is None:
            self._is_refused = True
            return []
        if self.stream:
            self._is_lost = True
            return session.take_stream_loss(self.stream, now)
        return self._ending(session.take_loss(now))

    def end(self, reason: str, now: float) -> list[HolderEvent]:
        """End the session in order, or turn a connection away that has none."""
        if self.session is None:
            self._is_refused = True
            return []
        return self._ending(self.session.end(reason, now))

    def data_to_send(self) -> bytes:
        """What the connection is owed besides data frames, once."""
        sending, self._out = self._out, b""
        if self.session is not None and not self.stream:
            sending += self.session.data_to_send()
        return sending

    def deadline(self) -> float | None:
        """When to `tick`."""
        if self.session is None:
            waits = self._reception.settings.deadlines
            return None if self._is_refused else self._since + waits.opening_s
        return None if self.stream else self.session.deadline()

    def tick(self, now: float) -> list[HolderEvent]:
        """Do what is due."""
        due = self.deadline()
        if due is None or now < due:
            return []
        if self.session is None:
            self._is_refused = True
            return []
        return self._ending(self.session.tick(now))

    def _feed(self, data: frames.Buffer, now: float) -> list[HolderEvent]:
        events: list[HolderEvent] = []
        try:
            for frame in self._decoder.feed(data):
                if self.is_over:
                    return events
                if self.stream:
                    return events + self.lose(now)
                events += self._take(frame, now)
                self._bound()
        except WireError as error:
            return events + (self.lose(now) if self.stream else self._break_off(error, now))
        if self.stream and not self._decoder.is_between_frames:
            return events + self.lose(now)
        return events

    def _take(self, frame: frames.Frame, now: float) -> list[HolderEvent]:
        if self.session is None:
            return self._begin(frame, now)
        return self._ending(self.session.take(frame, now))

    def _bound(self) -> None:
        """Let the decoder take what may come next."""
        state = None if self.session is None or self.stream else self.session.state
        is_proven = state not in (None, HolderState.HELLO, HolderState.PROOF)
        self._decoder.max_message_bytes = MAX_MESSAGE_BYTES if is_proven else MAX_UNPROVEN_BYTES
        is_due = state is HolderState.DESCRIPTOR
        self._decoder.max_descriptor_bytes = MAX_DOCUMENT_BYTES if is_due else 0

    def _begin(self, frame: frames.Frame, now: float) -> list[HolderEvent]:
        """The first frame."""
        if not isinstance(frame, frames.MessageFrame):
            raise BadFrame("expected a message first")
        message = codec.decode(frame.body, "reader")
        if isinstance(message, messages.Attach):
            self._attach(message, now)
            return []
        session = self._fresh
        self.session = self._reception.sessions[session.name] = session
        return self._ending(session.take(frame, now))

    def _attach(self, message: messages.Attach, now: float) -> None:
        session = self._reception.sessions.get(message.session)
        if session is None:
            raise OutOfTurn("no such session", "attach.session")
        answer = session.attach(message, now)
        self._out = codec.encode(answer)
        if isinstance(answer, messages.Attached):
            self.session, self.stream = session, message.stream
        else:
            self._is_refused = True

    def _break_off(self, error: WireError, now: float) -> list[HolderEvent]:
        if self.session is not None:
            return self._ending(self.session.take_broken(error, now))
        self._is_refused = True
        self._out = codec.encode(messages.Error(error.code, error.reason))
        return []

    def _ending(self, events: list[HolderEvent]) -> list[HolderEvent]:
        """Forget the session with its end."""
        session = self.session
        if session is not None and session.state is HolderState.ENDED:
            self._reception.sessions.pop(session.name, None)
        return events
