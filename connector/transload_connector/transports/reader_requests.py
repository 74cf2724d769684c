"""What a reader has asked of a holder and waits for, and the handoffs that it has open.

Knows no sockets: `reader_link` asks and answers, in its thread.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Generic, Protocol, TypeVar

from transload_abi.types import Descriptor
from transload_abi.wire import messages
from transload_abi.wire.holder_state import Verdict
from transload_abi.wire.reader import ReaderSession
from transload_connector.transports.errors import TransferError
from transload_connector.transports.sink import Sink
from transload_connector.transports.sockets import Address, name_of

MIN_RENEWAL_S: Final = 0.05
"""Between two renewals of a lease, so that one near the end of what it may be held for is not
renewed ever faster."""

Answer = TypeVar("Answer")
Start = Callable[[ReaderSession, float], int]
"""Ask it of an open session, now; returns the id. Raises `ValueError` where the caller may not."""


class Asked(Generic[Answer]):
    """One request.

    Attributes:
        what: For errors.
        start: Asks it.
        future: Has the answer.
        handoff: The open handoff it is about; None: of an `open`, or a `forgo`.
        renews: Whether the lease is longer once it is answered.
        retry: Asks it anew in another session; None once that was done, or where it must not be.
    """

    def __init__(
        self,
        what: str,
        start: Start,
        handoff: "OpenHandoff | None" = None,
        *,
        renews: bool = False,
    ) -> None:
        self.what = what
        self.start = start
        self.future: Future[Answer] = Future()
        self.handoff = handoff
        self.retry: Callable[[], None] | None = None
        self.renews = renews

    def answer(self, answer: Answer) -> bool:
        """Give the answer, unless nobody wants it any more."""
        if not self.future.set_running_or_notify_cancel():
            return False
        self.future.set_result(answer)
        return True

    def fail(self, error: Exception) -> None:
        """There is no answer."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class AskedOpen(Asked["OpenHandoff"]):
    """A request to open a handoff; `message` has its names."""

    def __init__(self, message: messages.Open) -> None:
        super().__init__(
            f"open of handoff {message.handoff!r}",
            lambda session, now: session.open(message.handoff, message.lease, message.reader, now),
        )
        self.message = message


class ReadFuture(Future[int]):
    """The number of bytes that a read has brought.

    Until it is done the sink's memory is the client's. `cancel` asks for the end, which comes soon:
    only when the future is done may the memory be used for something else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_cancel: Callable[[], None] = lambda: None

    def cancel(self) -> bool:
        """Ask for the end; False if there was one."""
        if self.done():
            return False
        self.on_cancel()
        return True

    def end_cancelled(self) -> None:
        """Nothing is written any more, and nobody wants the outcome."""
        super().cancel()
        self.set_running_or_notify_cancel()


class Reading:
    """One read.

    Attributes:
        num_bytes: Of the payload.
        id: Once it was asked for.
        since: When it was wanted.
    """

    def __init__(self, handoff: "OpenHandoff", wanted: messages.Read, sink: Sink) -> None:
        self.handoff = handoff
        self.wanted = wanted
        self.sink = sink
        self.num_bytes = sink.num_bytes
        self.future = ReadFuture()
        self.id: int | None = None
        self.since = 0.0

    def succeed(self) -> None:
        """All bytes are in place."""
        self.sink.release()
        self.future.set_result(self.num_bytes)

    def fail(self, error: TransferError) -> None:
        """They never will be."""
        self.sink.release()
        self.future.set_exception(error)

    def end_cancelled(self) -> None:
        """Nobody wants them."""
        self.sink.release()
        self.future.end_cancelled()

    @property
    def what(self) -> str:
        """For errors."""
        return f"read of group {self.wanted.group!r} of handoff {self.handoff.handoff!r}"


class Link(Protocol):
    """The session that a handoff is open in; called from its thread."""

    def ask(self, asked: Asked[Any]) -> None:
        """Ask it."""

    def end_share(self, asked: Asked[int]) -> None:
        """Ask what ends this reader's share."""

    def read(self, reading: Reading) -> None:
        """Read it."""

    def cancel(self, reading: Reading) -> None:
        """Give it up."""

    def mapping_of(self, file: messages.PoolFile) -> memoryview:
        """A file of the holder's, mapped once for the session.

        Raises:
            NoSharedMemory: It cannot be.
        """


class OpenHandoff:
    """A handoff that is open; renewed as long as somebody has this object and has not ended it.

    Attributes:
        address: Of the holder.
        generation: Likewise.
        handoff: Its name.
        lease: Likewise.
        reader: Whose share it is.
        descriptor: The holder's, in canonical form.
        verdict: From the holder's blocks to the reader's.
        answer: What the holder said of it: tables, tokens, readers.
        expires: When the lease is over if it is not renewed, seconds of `time.monotonic`.
        gone: Why it is not held any more; empty while it is, as far as is known.
        is_shared: Whether the holder's memory can be had by others on its host.
    """

    def __init__(
        self,
        link: Link,
        address: Address,
        welcome: messages.Welcome,
        descriptor: Descriptor,
        verdict: Verdict,
        asked: messages.Open,
        answer: messages.Lease,
    ) -> None:
        self.address = address
        self.generation = welcome.generation
        self.is_shared = messages.SHM in welcome.features
        self.handoff = asked.handoff
        self.lease = asked.lease
        self.reader = asked.reader
        self.descriptor = descriptor
        self.verdict = verdict
        self.answer = answer
        self.expires = 0.0
        self.gone = ""
        self.link = link
        self.renew_at = 0.0

    @property
    def peer(self) -> str:
        """The holder's address, for errors."""
        return name_of(self.address)

    @property
    def tables(self) -> tuple[messages.Table, ...]:
        """The block lists, by table."""
        return self.answer.tables

    @property
    def num_tokens(self) -> int:
        """Of the request."""
        return self.answer.num_tokens

    def plan_renewal(self, now: float) -> None:
        """After a third of the time that is left, so two renewals may fail."""
        self.renew_at = now + max((self.expires - now) / 3, MIN_RENEWAL_S)


Failure = Callable[[str], TransferError]
"""From what was asked to why there is no answer."""


def renewal(handoff: OpenHandoff) -> Asked[float]:
    """Ask for another term."""
    name = handoff.handoff
    return Asked(
        f"renewal of handoff {name!r}",
        lambda session, now: session.renew(name, now),
        handoff,
        renews=True,
    )


def release(handoff: OpenHandoff) -> Asked[int]:
    """Say that it will not be read."""
    name = handoff.handoff
    return Asked(
        f"release of handoff {name!r}", lambda session, now: session.release(name, now), handoff
    )
