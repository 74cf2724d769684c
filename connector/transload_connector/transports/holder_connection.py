"""One connection of a holder: what it is owed, and the reads whose data go out on it.

**Rules**

1. A turn sends at most one new data frame, so sessions take turns whatever they ask for.
2. What the peer does not take is not made: no frame is begun before the one before is with the
   kernel, and nothing more is read while too many answers wait.
3. A frame that was begun is finished, or the connection is closed; either way the machine is told,
   so no block stays pinned.
4. A peer that takes nothing of what it is owed for `stall_s` loses its session, whether a frame is
   under way or waits.
"""

import selectors
import socket
from collections import deque
from typing import Final, Protocol

from transload_abi.wire.holder import HolderSession
from transload_abi.wire.holder_state import HolderEvent, HolderState
from transload_abi.wire.reception import Link
from transload_connector.transports.data_frames import DataFrames
from transload_connector.transports.outbox import Outbox

DESCRIPTOR_PART_BYTES: Final = 1 << 16
"""Taken at once of a descriptor, which has one answer however long it is; 64 KiB is what a reader
takes of messages as well."""

REQUEST_PART_BYTES: Final = 4096
"""Taken at once of messages; what they are answered is then some 4 MB at most, if all of them open
handoffs with the longest lists."""

MAX_OWED_BYTES: Final = 1 << 16
"""Of answers that a peer may leave untaken before it is not listened to."""

LINGER_S: Final = 1.0
"""For the peer to take the last message, and to close."""


class Job:
    """A read that is being served.

    Attributes:
        num_left: Bytes of which no frame has been made.
    """

    def __init__(self, session: HolderSession, frames: DataFrames, num_bytes: int) -> None:
        self.session = session
        self.frames = frames
        self.num_left = num_bytes


class Owner(Protocol):
    """What a connection needs of the holder it belongs to."""

    def now(self) -> float:
        """Seconds."""

    def watch(self, sock: socket.socket, mask: int, of: "HolderConnection") -> None:
        """Have `ready` called."""

    def took(self, connection: "HolderConnection", events: list[HolderEvent]) -> None:
        """The connection's machine has told something, or owes something."""

    def owes(self, session: HolderSession) -> None:
        """The control stream of a session may have something to send."""

    def closed(self, connection: "HolderConnection", sock: socket.socket) -> None:
        """Close the socket and forget the connection."""

    def stalled(self, connection: "HolderConnection") -> None:
        """The peer does not take what it is owed."""

    def count_sent(self, num_bytes: int) -> None:
        """A frame is with the kernel."""


class HolderConnection:
    """From `accept` to `close`.

    Args:
        owner: Whose it is.
        sock: Not blocking.
        peer: Host of the peer.
        link: Its machine.
        stall_s: How long the peer may take nothing.
    """

    def __init__(
        self, owner: Owner, sock: socket.socket, peer: str, link: Link, stall_s: float
    ) -> None:
        self.peer = peer
        self.link = link
        self.is_closed = False
        self._owner = owner
        self._sock = sock
        self._outbox = Outbox()
        self._jobs: deque[Job] = deque()
        self._frame: tuple[HolderSession, int, int] | None = None
        self._num_owed = 0
        self._closes: float | None = None
        self._is_pumping = False
        self._stall_s = stall_s
        self._stuck_at = 0
        self._stuck_since: float | None = None
        self._watch()

    @property
    def num_bytes_waiting(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._outbox.num_bytes

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""
        if mask & selectors.EVENT_READ:
            self._receive()
        self.pump()

    def serve(self, job: Job) -> None:
        """Send a read's data on this connection, behind those that came before."""
        self._jobs.append(job)

    def pump(self) -> None:
        """Send what can be sent now; without effect from within."""
        if self.is_closed or self._is_pumping:
            return
        self._is_pumping = True
        try:
            self._pump()
        except OSError:
            self._lose()
        finally:
            self._is_pumping = False
        self._watch()

    def deadline(self) -> float | None:
        """When to `tick`."""
        if self._closes is not None:
            return self._closes
        due = self.link.deadline()
        if self._stuck_since is None:
            return due
        stalls = self._stuck_since + self._stall_s
        return stalls if due is None else min(due, stalls)

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._closes is not None:
            if now >= self._closes:
                self.close()
        elif self._stuck_since is not None and self._stuck_since + self._stall_s <= now:
            self._owner.stalled(self)
        else:
            self._owner.took(self, self.link.tick(now))

    def end(self, reason: str) -> None:
        """End its session in order, or turn it away."""
        self._owner.took(self, self.link.end(reason, self._owner.now()))

    def finish(self) -> None:
        """The session has ended: no data any more; the last message is sent if that can be."""
        self._jobs.clear()
        if self._frame is not None or self.link.stream:
            self.close()
        else:
            self.pump()

    def close(self) -> None:
        """Close it, whatever it still has to send; its machine must know."""
        if self.is_closed:
            return
        self.is_closed = True
        self._jobs.clear()
        self._outbox.drop()
        if self._frame is not None:
            session, read, _ = self._frame
            self._frame = None
            session.sent(read, 0, self._owner.now())
            self._owner.owes(session)
        self._owner.closed(self, self._sock)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(self._num_wanted())
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
        elif self._closes is None:
            self._owner.took(self, self.link.feed(data, self._owner.now()))

    def _num_wanted(self) -> int:
        session = self.link.session
        is_next = session is not None and session.state is HolderState.DESCRIPTOR
        return DESCRIPTOR_PART_BYTES if is_next else REQUEST_PART_BYTES

    def _lose(self) -> None:
        """The peer is gone."""
        if self.is_closed:
            return
        events = self.link.lose(self._owner.now())
        self.close()
        self._owner.took(self, events)

    def _pump(self) -> None:
        has_begun = False
        self._owe()
        while self._outbox.send(self._sock):
            self._num_owed = 0
            self._finish_frame()
            if self.is_closed:
                return
            if self._owe():
                continue
            if self.link.is_over:
                self._linger()
                return
            if has_begun or not self._jobs:
                return
            has_begun = self._begin_frame(self._jobs[0])

    def _owe(self) -> bool:
        """Take what the machine has said since; whether it was anything."""
        owed = self.link.data_to_send()
        self._outbox.put([owed])
        self._num_owed += len(owed)
        return bool(owed)

    def _begin_frame(self, job: Job) -> bool:
        """Make the next frame of the first job, unless its read has ended."""
        if not job.session.may_send(job.frames.read, self._owner.now()):
            self._jobs.popleft()
            self._owner.owes(job.session)
            return False
        num_bytes, buffers = job.frames.next_frame()
        self._frame = (job.session, job.frames.read, num_bytes)
        self._outbox.put(buffers)
        job.num_left -= num_bytes
        if not job.num_left:
            self._jobs.popleft()
        return True

    def _finish_frame(self) -> None:
        if self._frame is None:
            return
        session, read, num_bytes = self._frame
        self._frame = None
        session.sent(read, num_bytes, self._owner.now())
        self._owner.count_sent(num_bytes)
        if self.link.stream:
            self._owner.owes(session)

    def _linger(self) -> None:
        self._jobs.clear()
        if self._closes is None:
            self._closes = self._owner.now() + LINGER_S
            self._sock.shutdown(socket.SHUT_WR)

    def _watch(self) -> None:
        if self.is_closed:
            return
        mask = 0
        if self._num_owed <= MAX_OWED_BYTES or self._closes is not None:
            mask |= selectors.EVENT_READ
        if self._outbox.num_bytes or self._jobs:
            mask |= selectors.EVENT_WRITE
            if self._stuck_since is None or self._stuck_at != self._outbox.num_sent:
                self._stuck_at, self._stuck_since = self._outbox.num_sent, self._owner.now()
        else:
            self._stuck_since = None
        self._owner.watch(self._sock, mask, self)
