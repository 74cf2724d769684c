"""Another engine's blocks, read over TCP or found in memory: sessions and reads behind futures.

Knows bytes and positions in block lists; nothing of torch, nor of what is done with the bytes.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from transload_abi import Descriptor, encode_msgpack, read
from transload_abi.wire import auth, messages
from transload_abi.wire.deadlines import ReaderDeadlines
from transload_abi.wire.limits import MAX_DATA_BYTES
from transload_abi.wire.reader_state import ReaderSettings
from transload_abi.wire.sizes import size_of
from transload_connector.transports.errors import ClientClosed, NotShared
from transload_connector.transports.io_thread import IoThread
from transload_connector.transports.reader_link import ReaderLink
from transload_connector.transports.reader_maps import Locating, SharedBlocks
from transload_connector.transports.reader_requests import (
    Asked,
    AskedOpen,
    OpenHandoff,
    ReadFuture,
    Reading,
    release,
    renewal,
)
from transload_connector.transports.sink import Sink
from transload_connector.transports.sockets import Address, name_of, resolve
from transload_connector.transports.verdicts import Verdict, judge

T = TypeVar("T")

_Key = tuple[Address, str, bool]
"""Address and generation of a holder, and whether the session is for `forgo` alone."""


class ReaderStats(msgspec.Struct, frozen=True):
    """Counts since the start.

    Attributes:
        num_located: Handoffs whose blocks were found in this host's memory.
        num_not_shared: Handoffs whose blocks were looked for there, and were not.
    """

    num_located: int
    num_not_shared: int


class ReaderClient:
    """One rank that reads from any holders. All methods may be called from any thread.

    Futures end in what they are of, or in an error of `transports.errors`; each within the
    deadlines. `ValueError` (and so `BadRead`) is the caller's fault.

    Args:
        descriptor: Of this rank's cache; None: it can do nothing but `forgo`.
        name: Of the engine, for people.
        generation: Another one after each start of the engine.
        token: Shared with holders; None: there is none.
        num_streams: Data streams for each session, if the holder offers so many.
        deadlines: For holders.
        verdict: Judges holders' descriptors.
        max_data_bytes: Of a data frame.
        has_shm: Whether holders may be asked where their blocks are, see `locate`.
    """

    def __init__(
        self,
        descriptor: Descriptor | None,
        *,
        name: str,
        generation: str,
        token: bytes | None = None,
        num_streams: int = 2,
        deadlines: ReaderDeadlines | None = None,
        verdict: Verdict = judge,
        max_data_bytes: int = MAX_DATA_BYTES,
        has_shm: bool = True,
    ) -> None:
        self._body = None if descriptor is None else encode_msgpack(descriptor)
        self._ours = None if self._body is None else read(self._body)
        self._name = name
        self._generation = generation
        self._token = auth.NO_TOKEN if token is None else token
        self._num_streams = num_streams
        self._deadlines = deadlines or ReaderDeadlines()
        self._verdict = verdict
        self._max_data_bytes = max_data_bytes
        self._features = (messages.SHM,) if has_shm else ()
        self._counting = threading.Lock()
        self._num_located = 0
        self._num_not_shared = 0
        self._links: dict[_Key, ReaderLink] = {}
        self._is_stopped = False
        self._thread = IoThread(f"transload-reader-{name}", self)
        self._thread.start()

    def open(
        self, address: Address, handoff: str, lease: str, reader: str, *, generation: str = ""
    ) -> Future[OpenHandoff]:
        """Take a share of a handoff. It is renewed as long as the result lives and is not ended.

        Args:
            address: Of the holder.
            handoff: As the holder's engine named it.
            lease: Likewise.
            reader: Name of the share, unique among the handoff's readers.
            generation: Of the holder, as it was told with the handoff; another start of the holder
                is refused. Empty: any will do.
        """
        if self._ours is None:
            raise ValueError("a client without a descriptor can do nothing but forgo")
        key = (address, generation, False)
        message = messages.Open(0, handoff, lease, reader)

        def retry() -> None:
            asked.retry = None
            self._ask(key, asked)

        asked = AskedOpen(message)

        def begin() -> None:
            is_reused = key in self._links
            asked.retry = retry if is_reused else None
            self._ask(key, asked)

        self._post(begin, asked, address)
        return asked.future

    def read(
        self,
        handoff: OpenHandoff,
        group: str,
        blocks: Sequence[messages.Range],
        sink: Sequence[memoryview],
        *,
        layers: messages.Range | None = None,
        heads: messages.Range | None = None,
        form: messages.Form = "elements",
        checksums: bool = False,
    ) -> ReadFuture:
        """Have the payload of a read written to memory.

        Args:
            handoff: Which is open.
            group: Of the holder's descriptor.
            blocks: As `messages.Read.blocks`.
            sink: Filled in order. The client's until the future is done; worthless where that has
                no result.
            layers: As in `messages.Read`.
            heads: Likewise.
            form: Likewise.
            checksums: Likewise.

        Raises:
            BadRead: The handoff has no such bytes.
            ValueError: The sink is not of their size.
        """
        wanted = messages.Read(
            1, handoff.handoff, group, tuple(blocks), layers, heads, form, 0, checksums
        )
        num_bytes = size_of(handoff.descriptor, wanted, handoff.tables)
        reading = Reading(handoff, wanted, Sink(sink))
        if reading.num_bytes != num_bytes:
            raise ValueError(f"sink: expected {num_bytes} bytes, got {reading.num_bytes}")
        link = handoff.link
        reading.future.on_cancel = lambda: self._cancel(link.cancel, reading)
        if not self._thread.post(lambda: link.read(reading)):
            reading.fail(_closed(handoff.peer, reading.what))
        return reading.future

    def locate(self, handoff: OpenHandoff, max_blocks: int) -> Future[SharedBlocks]:
        """Find all blocks of a handoff in this host's memory.

        The future fails with `NotShared` where they are not there: `read` brings them then.

        Args:
            handoff: Which is open.
            max_blocks: Of one list. A holder that has longer ones is at fault.
        """
        locating = Locating(handoff, max_blocks, lambda *asked: self.map(handoff, *asked))
        locating.future.add_done_callback(self._count_located)
        if handoff.is_shared:
            locating.begin()
        else:
            reason = "the session is without shared memory"
            locating.future.set_exception(NotShared(handoff.peer, locating.what, reason))
        return locating.future

    def map(
        self, handoff: OpenHandoff, table: int, blocks: tuple[messages.Range, ...]
    ) -> Future[messages.Mapped]:
        """Ask for a table where blocks are; for `locate`.

        Args:
            handoff: Which is open and `is_shared`.
            table: Of the holder's descriptor.
            blocks: Positions that hold something, ascending.
        """
        name = handoff.handoff
        asked: Asked[messages.Mapped] = Asked(
            f"map of handoff {name!r}",
            lambda session, now: session.map(name, table, blocks, now),
            handoff,
        )
        return self._about(handoff, asked)

    def stats(self) -> ReaderStats:
        """What was."""
        return ReaderStats(self._num_located, self._num_not_shared)

    def confirm(self, handoff: OpenHandoff) -> Future[float]:
        """Is it still held? Until when, in seconds of `time.monotonic`."""
        name = handoff.handoff
        asked: Asked[float] = Asked(
            f"confirmation of handoff {name!r}",
            lambda session, now: session.confirm(name, now),
            handoff,
        )
        return self._about(handoff, asked)

    def renew(self, handoff: OpenHandoff) -> Future[float]:
        """Have it held for another term; as `confirm`. The client does so by itself as well."""
        return self._about(handoff, renewal(handoff))

    def done(self, handoff: OpenHandoff) -> Future[int]:
        """Say that all wanted bytes are here; how many shares have not ended."""
        name = handoff.handoff
        asked: Asked[int] = Asked(
            f"end of handoff {name!r}", lambda session, now: session.done(name, now), handoff
        )
        return self._end_share(handoff, asked)

    def release(self, handoff: OpenHandoff) -> Future[int]:
        """Say that nothing (more) will be read; as `done`."""
        return self._end_share(handoff, release(handoff))

    def forgo(
        self, address: Address, handoff: str, lease: str, *, generation: str = ""
    ) -> Future[int]:
        """End a handoff for all its readers; it need not be open, and no blocks need convert."""
        asked: Asked[int] = Asked(
            f"forgoing of handoff {handoff!r}",
            lambda session, now: session.forgo(handoff, lease, now),
        )

        def begin() -> None:
            link = self._links.get((address, generation, False))
            is_open = link is not None and link.is_usable
            self._ask((address, generation, not is_open), asked)

        self._post(begin, asked, address)
        return asked.future

    def close(self) -> None:
        """End all sessions; what has no outcome ends in `ClientClosed`. Leases stay as they are.

        Raises:
            RuntimeError: As of `IoThread.close`; sinks may still be written to.
        """
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What the thread calls.

    def turn(self) -> None:
        """Send what was asked."""
        for link in list(self._links.values()):
            link.flush()

    def tick(self, now: float) -> None:
        """Do what is due."""
        for link in list(self._links.values()):
            link.tick(now)
        self.turn()

    def deadline(self) -> float | None:
        """When something is due."""
        dues = (link.deadline() for link in self._links.values())
        return min((due for due in dues if due is not None), default=None)

    def stop(self) -> None:
        """End all sessions."""
        self._is_stopped = True
        for link in list(self._links.values()):
            link.end("the reader stops")

    def _count_located(self, done: Future[SharedBlocks]) -> None:
        error = None if done.cancelled() else done.exception()
        with self._counting:
            self._num_located += not done.cancelled() and error is None
            self._num_not_shared += isinstance(error, NotShared)

    def _about(self, handoff: OpenHandoff, asked: Asked[T]) -> Future[T]:
        link = handoff.link
        if not self._thread.post(lambda: link.ask(asked)):
            asked.fail(_closed(handoff.peer, asked.what))
        return asked.future

    def _end_share(self, handoff: OpenHandoff, asked: Asked[int]) -> Future[int]:
        link = handoff.link
        if not self._thread.post(lambda: link.end_share(asked)):
            asked.fail(_closed(handoff.peer, asked.what))
        return asked.future

    def _post(self, action: Callable[[], None], asked: Asked[Any], address: Address) -> None:
        if not self._thread.post(action):
            asked.fail(_closed(name_of(address), asked.what))

    def _cancel(self, cancel: Callable[[Reading], None], reading: Reading) -> None:
        self._thread.post(lambda: cancel(reading))

    def _ask(self, key: _Key, asked: Asked[Any]) -> None:
        """Ask it of the session with that holder; begin one where there is none."""
        if self._is_stopped:
            asked.fail(_closed(name_of(key[0]), asked.what))
            return
        link = self._links.get(key)
        if link is None:
            link = self._begin(key)
        link.ask(asked)

    def _begin(self, key: _Key) -> ReaderLink:
        address, holder_generation, is_forgoing = key
        settings = ReaderSettings(
            engine=self._name,
            generation=self._generation,
            descriptor=None if is_forgoing else self._body,
            token=self._token,
            max_data_bytes=self._max_data_bytes,
            features=() if is_forgoing else self._features,
            holder_generation=holder_generation,
            deadlines=self._deadlines,
        )
        link = ReaderLink(
            self._thread,
            settings,
            address,
            self._num_streams,
            None if is_forgoing else self._ours,
            self._verdict,
            lambda: self._ended(key),
        )
        self._links[key] = link
        self._resolve(address, link)
        return link

    def _ended(self, key: _Key) -> None:
        self._links.pop(key, None)

    def _resolve(self, address: Address, link: ReaderLink) -> None:
        """Find the holder; names are looked up in a thread of their own, as that may block."""
        try:
            numbers = resolve(address, is_numeric=True)
        except OSError:
            look_up = threading.Thread(
                target=self._look_up, args=(address, link), name="transload-names", daemon=True
            )
            look_up.start()
        else:
            self._thread.post(lambda: link.begin(numbers))

    def _look_up(self, address: Address, link: ReaderLink) -> None:
        try:
            found = resolve(address, is_numeric=False)
        except OSError as error:
            reason = str(error.strerror or error)
            self._thread.post(lambda: link.unreachable(reason))
        else:
            self._thread.post(lambda: link.begin(found))


def _closed(peer: str, what: str) -> ClientClosed:
    return ClientClosed(peer, what, "the client is closed")
