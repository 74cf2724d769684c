"""A holder's side of one session: frames and the time in, messages and reads to serve out.

**Obligations of the owner**

1. After each call send `data_to_send` on the control stream, before it feeds more bytes: what is to
   be sent is then bounded by what was fed.
2. `tick` when `deadline` has come. Nothing waits without one.
3. Of each `Serve`: ask `may_send` before a data frame touches the blocks, call `sent` when it
   is with the kernel, or `fail` when it never will be. In between the ledger frees nothing of it.
   A frame goes out whole, between others of its stream.
4. After `SessionEnded` send what is to be sent, close all streams, and call `sent` for frames that
   were under way.

Knows nothing of connections (`reception`).
"""

from transload_abi.wire import codec, frames, messages
from transload_abi.wire.errors import BadFrame, OutOfTurn, WireError
from transload_abi.wire.holder_requests import fail_read
from transload_abi.wire.holder_state import (
    Compare,
    HolderCore,
    HolderEvent,
    HolderSettings,
    HolderState,
    Locate,
    Measure,
    StreamAsked,
)
from transload_abi.wire.holder_table import step
from transload_abi.wire.ledger import Ledger
from transload_abi.wire.limits import MAX_REASON_CHARS
from transload_abi.wire.session_events import Broken, EndAsked, Idle, Lost, Overdue, StreamLost

_REQUESTS = (
    messages.Open
    | messages.Read
    | messages.Map
    | messages.Confirm
    | messages.Renew
    | messages.Done
    | messages.Release
    | messages.Forgo
)


class HolderSession:
    """One reader's session. All times are those of the ledger's clock.

    Args:
        settings: What is said of this side.
        ledger: Of all sessions.
        compare: Judges the reader's descriptor.
        measure: Judges each read.
        locate: Says where blocks are; None where no memory is shared.
        session: 32 hex digits, drawn for this session.
        nonce: 64 hex digits, likewise.
        now: When the connection came.
    """

    def __init__(
        self,
        settings: HolderSettings,
        ledger: Ledger,
        compare: Compare,
        measure: Measure,
        locate: Locate | None,
        session: str,
        nonce: str,
        now: float,
    ) -> None:
        self._core = HolderCore(
            settings, ledger, compare, measure, locate, session, nonce, now=now, since=now
        )
        self._heard = now

    @property
    def state(self) -> HolderState:
        """What the session waits for."""
        return self._core.state

    @property
    def name(self) -> str:
        """As in `Welcome.session`."""
        return self._core.session

    @property
    def max_data_bytes(self) -> int:
        """Of a data frame; 0 before the reader has said hello."""
        return self._core.max_data_bytes

    def take(self, frame: frames.Frame, now: float) -> list[HolderEvent]:
        """A frame of the control stream."""
        self._at(now)
        core = self._core
        self._heard = core.now
        try:
            event = self._event(frame)
        except WireError as error:
            event = Broken(error)
        step(core, event)
        return self._told()

    def take_broken(self, error: WireError, now: float) -> list[HolderEvent]:
        """What came on any stream of this session is no frame that may come."""
        return self._step(Broken(error), now)

    def take_loss(self, now: float) -> list[HolderEvent]:
        """The control stream has ended."""
        return self._step(Lost(), now)

    def attach(self, message: messages.Attach, now: float) -> messages.Message:
        """Answer a connection that asks to be a data stream; an `Error`: close it then."""
        core = self._core
        core.stream_answer = None
        self._step(StreamAsked(message), now)
        refusal = OutOfTurn("the session has ended", "attach.session")
        return core.stream_answer or messages.Error(refusal.code, refusal.reason)

    def take_stream_loss(self, stream: int, now: float) -> list[HolderEvent]:
        """An attached stream has ended."""
        return self._step(StreamLost(stream), now)

    def end(self, reason: str, now: float) -> list[HolderEvent]:
        """End it in order."""
        return self._step(EndAsked(reason[:MAX_REASON_CHARS]), now)

    def may_send(self, read: int, now: float) -> bool:
        """Whether a frame of a read may be sent now; the read has ended if not."""
        self._at(now)
        core = self._core
        serving = core.reads.get(read)
        if serving is None or core.state is HolderState.ENDED:
            return False
        if serving.copying_since is not None:
            raise ValueError(f"a frame of read {read} is under way")
        claim = serving.claim
        gone = core.ledger.begin_read(serving.handoff, claim.lease, claim.reader, core.now)
        if gone is not None:
            del core.reads[read]
            core.say_gone(read, serving.handoff, claim.lease, gone)
            return False
        serving.copying_since = core.now
        return True

    def sent(self, read: int, num_bytes: int, now: float) -> None:
        """The frame that `may_send` allowed was sent, with so many bytes; 0 where it was not."""
        self._at(now)
        core = self._core
        serving = core.reads[read]
        if serving.num_sent + num_bytes > serving.num_bytes:
            raise ValueError(f"read {read} is of {serving.num_bytes} bytes")
        serving.num_sent += num_bytes
        gone = self._end_copy(read)
        claim = serving.claim
        if core.state is HolderState.ENDED:
            del core.reads[read]
        elif gone is not None:
            del core.reads[read]
            core.say_gone(read, serving.handoff, claim.lease, gone)
        elif serving.failed is not None:
            fail_read(core, read, serving.failed)
        elif serving.num_sent == serving.num_bytes:
            del core.reads[read]
            core.say(messages.ReadEnd(read, serving.num_bytes))
        elif serving.is_cancelled:
            del core.reads[read]
            core.say(messages.Cancelled(read))

    def fail(self, read: int, reason: str, now: float) -> None:
        """The owner cannot serve a read; without effect on one that has ended."""
        self._at(now)
        core = self._core
        serving = core.reads.get(read)
        if serving is None:
            return
        if serving.copying_since is not None:
            self._end_copy(read)
        if core.state is HolderState.ENDED:
            del core.reads[read]
        else:
            fail_read(core, read, WireError(reason))

    def data_to_send(self) -> bytes:
        """What the control stream is owed, once."""
        sending = b"".join(self._core.out)
        self._core.out.clear()
        return sending

    def deadline(self) -> float | None:
        """When to `tick`; None where the owner, not the reader, is waited for, and at the end."""
        core, waits = self._core, self._core.settings.deadlines
        if core.state is HolderState.ENDED:
            return None
        if core.state is not HolderState.OPEN:
            return core.since + waits.opening_s
        copying = [
            read.copying_since for read in core.reads.values() if read.copying_since is not None
        ]
        if copying:
            return min(copying) + waits.stall_s
        return None if core.reads else self._heard + waits.idle_s

    def tick(self, now: float) -> list[HolderEvent]:
        """Do what is due."""
        self._at(now)
        core, waits = self._core, self._core.settings.deadlines
        due = self.deadline()
        if due is None or due > core.now:
            return []
        if core.state is not HolderState.OPEN:
            step(core, Overdue(f"expected a {core.state} within {waits.opening_s:g} s"))
        elif core.reads:
            step(core, Overdue(f"the reader took no data for {waits.stall_s:g} s"))
        elif self._holds_anything():
            self._heard = core.now
        else:
            step(core, Idle())
        return self._told()

    def _event(self, frame: frames.Frame) -> object:
        """What a frame is to the table."""
        core = self._core
        if isinstance(frame, frames.DescriptorFrame):
            if core.state is not HolderState.DESCRIPTOR:
                raise BadFrame("none may come now", "descriptor")
            return core.compare(frame.body)
        if not isinstance(frame, frames.MessageFrame):
            raise BadFrame("none may come now", "data")
        message = codec.decode(frame.body, "reader")
        if isinstance(message, messages.Hello):
            core.hello_body = frame.body
        if isinstance(message, _REQUESTS):
            if message.id <= core.last_id:
                raise OutOfTurn(f"expected more than {core.last_id}, got {message.id}", "id")
            core.last_id = message.id
        return message

    def _holds_anything(self) -> bool:
        """Whether the ledger still holds what the reader has open; forgets what it does not."""
        core = self._core
        for handoff, claim in list(core.opens.items()):
            left_s = core.ledger.confirm(handoff, claim.lease, claim.reader, core.now)
            if isinstance(left_s, str):
                core.close(handoff, claim.lease, left_s)
        return bool(core.opens)

    def _end_copy(self, read: int) -> messages.Gone | None:
        core = self._core
        serving = core.reads[read]
        if serving.copying_since is None:
            raise ValueError(f"no frame of read {read} is under way")
        serving.copying_since = None
        claim = serving.claim
        return core.ledger.end_read(serving.handoff, claim.lease, claim.reader, core.now)

    def _at(self, now: float) -> None:
        self._core.now = max(self._core.now, now)

    def _step(self, event: object, now: float) -> list[HolderEvent]:
        self._at(now)
        step(self._core, event)
        return self._told()

    def _told(self) -> list[HolderEvent]:
        told = list(self._core.events)
        self._core.events.clear()
        return told
