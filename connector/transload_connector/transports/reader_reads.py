"""The reads of one session: those that wait for a place and a stream, and those under way."""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from transload_abi.wire import reader_events as told
from transload_abi.wire.limits import MAX_READS
from transload_abi.wire.reader import ReaderSession
from transload_connector.transports import reader_failures as failures
from transload_connector.transports.errors import LeaseGone, TimedOut
from transload_connector.transports.io_thread import IoThread
from transload_connector.transports.outbox import MAX_BUFFERS
from transload_connector.transports.reader_requests import Failure, Reading
from transload_connector.transports.reader_stream import ReaderStream

MAX_READS_ASKED: Final = MAX_READS // 2
"""At one time. The other half of what a session may have is for reads that were given up and whose
end the holder has not said."""


class ReadQueue:
    """In the order of asking.

    Args:
        thread: That it runs in.
        machine: Of the session.
        peer: The holder's address.
        wait_s: How long a read may wait for its turn.
        choose: The stream for the next read; None: there is none yet.
        why: Why the session has ended.
    """

    def __init__(
        self,
        thread: IoThread,
        machine: ReaderSession,
        peer: str,
        wait_s: float,
        choose: Callable[[], ReaderStream | None],
        why: Failure,
    ) -> None:
        self._thread = thread
        self._machine = machine
        self._peer = peer
        self._wait_s = wait_s
        self._choose = choose
        self._why = why
        self._waiting: deque[Reading] = deque()
        self._under_way: dict[int, tuple[Reading, ReaderStream]] = {}

    @property
    def has_waiting(self) -> bool:
        """Whether some were not asked for yet."""
        return bool(self._waiting)

    def add(self, reading: Reading) -> None:
        """Read, now or when there is room."""
        reading.since = self._thread.clock()
        self._waiting.append(reading)
        self.start()

    def cancel(self, reading: Reading) -> list[told.ReaderEvent]:
        """Give a read up; what the machine says to that."""
        if reading.id in self._under_way:
            assert reading.id is not None
            return self._machine.cancel(reading.id, self._thread.clock())
        if reading in self._waiting:
            self._waiting.remove(reading)
            reading.end_cancelled()
        return []

    def views(self, read: int, offset: int, num_bytes: int) -> list[memoryview]:
        """Where bytes of a read belong: all of them, or as many as one call can fill."""
        return self._under_way[read][0].sink.views(offset, num_bytes, MAX_BUFFERS)

    def start(self) -> None:
        """Ask for those that wait, as far as there is room."""
        while self._waiting and len(self._under_way) < MAX_READS_ASKED:
            stream = self._choose()
            if stream is None:
                return
            reading = self._waiting[0]
            if reading.handoff.gone:
                self._waiting.popleft()
                reading.fail(LeaseGone(self._peer, reading.what, reading.handoff.gone))
                continue
            wanted = msgspec.structs.replace(reading.wanted, stream=stream.number)
            try:
                reading.id = self._machine.read(wanted, reading.num_bytes, self._thread.clock())
            except ValueError:
                # As many were given up as there is room for; some end by the next look.
                return
            self._waiting.popleft()
            self._under_way[reading.id] = (reading, stream)
            stream.num_due += reading.num_bytes

    def fail_late(self, now: float) -> None:
        """Give those up that have waited for too long."""
        while self._waiting and self._waiting[0].since + self._wait_s <= now:
            reading = self._waiting.popleft()
            reason = f"no turn within {self._wait_s:g} s"
            reading.fail(TimedOut(self._peer, reading.what, reason))

    def fail_all(self) -> None:
        """The session has ended."""
        while self._waiting:
            reading = self._waiting.popleft()
            reading.fail(self._why(reading.what))

    def end(self, event: told.ReadComplete | told.ReadFailed) -> None:
        """The machine has told the outcome of one."""
        reading, stream = self._under_way.pop(event.read)
        stream.num_due -= reading.num_bytes
        if isinstance(event, told.ReadFailed) and event.why == "expired":
            reading.handoff.gone = reading.handoff.gone or event.reason
        outcome = self._outcome(reading, event)
        # Later in the turn, when nothing of it refers to the sink's memory any more.
        if not self._thread.post(outcome):
            outcome()

    def _outcome(
        self, reading: Reading, event: told.ReadComplete | told.ReadFailed
    ) -> Callable[[], None]:
        if isinstance(event, told.ReadComplete):
            return reading.succeed
        if event.why == "cancelled":
            return reading.end_cancelled
        if event.why == "ended":
            error = self._why(reading.what)
        else:
            error = failures.of_read(event, self._peer, reading.what)
        return lambda: reading.fail(error)
