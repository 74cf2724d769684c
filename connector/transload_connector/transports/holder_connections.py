"""All connections of a holder, in its IO thread: who comes, what is due, and what is free.

Knows blocks by their lists alone; `holder_server` is what engines see of it.
"""

import contextlib
import errno
import hashlib
import secrets
import selectors
import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from transload_abi.types import Descriptor
from transload_abi.wire import codec, messages
from transload_abi.wire.errors import WireError
from transload_abi.wire.holder import HolderSession
from transload_abi.wire.holder_state import (
    Compatible,
    HolderEvent,
    HolderSettings,
    Incompatible,
    Serve,
)
from transload_abi.wire.ledger import Freed
from transload_abi.wire.pool_files import PoolFiles
from transload_abi.wire.reception import Reception
from transload_abi.wire.session_events import SessionEnded
from transload_abi.wire.sizes import size_of
from transload_connector.transports.block_lists import BlockLists
from transload_connector.transports.data_frames import FRAME_BYTES, DataFrames
from transload_connector.transports.holder_connection import HolderConnection, Job
from transload_connector.transports.io_thread import RECHECK_S, IoThread
from transload_connector.transports.shared_ledger import SharedLedger
from transload_connector.transports.sockets import tune
from transload_connector.transports.verdicts import Verdict, descriptor_of

MAX_ACCEPTED: Final = 64
"""In one turn."""

MAX_VERDICTS: Final = 64
"""Remembered, so that readers which come again are not compared again: it takes milliseconds."""

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""This host cannot take another connection for now."""

_ENDED_UNACCEPTED: Final = (
    errno.ECONNABORTED,
    errno.ENETDOWN,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
    errno.EPERM,
)
"""The next connection is lost, or a firewall forbids it: accept(2) of Linux says so of the
listener, which is as good as before."""

_NEVER: Final = float("inf")


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How many may be connected.

    Attributes:
        max_connections: In all. Each costs two file descriptors' worth of memory and some KB.
        max_connections_per_peer: From one host: 8 ranks with 17 streams each, and as much again.
    """

    max_connections: int = 1024
    max_connections_per_peer: int = 272


class HolderConnections:
    """The holder's side of all sessions.

    Args:
        listener: Listens, does not block.
        settings: What is said of this side.
        descriptor: In canonical form.
        memory: Of the pools.
        ledger: Of all leases.
        on_freed: As in `HolderServer`.
        verdict: Judges readers.
        limits: Of connections.
        files: Of the pools; None where they are in no shared memory.
    """

    def __init__(
        self,
        listener: socket.socket,
        settings: HolderSettings,
        descriptor: Descriptor,
        memory: Mapping[str, memoryview],
        ledger: SharedLedger,
        on_freed: Callable[[Freed], None],
        verdict: Verdict,
        limits: ConnectionLimits,
        files: PoolFiles | None,
    ) -> None:
        self.lists = BlockLists(descriptor)
        self.lists_lock = threading.Lock()
        self.ends: Counter[str] = Counter()
        self.num_bytes_sent = 0
        self.num_turned_away = 0
        self.num_mapped = 0
        self.connections: set[HolderConnection] = set()
        self._listener = listener
        self._descriptor = descriptor
        self._memory = memory
        self._ledger = ledger
        self._on_freed = on_freed
        self._verdict = verdict
        self._limits = limits
        self._files = files
        locate = None if files is None else self._locate
        self._reception = Reception(settings, ledger, self._compare, self._measure, locate)
        self._streams: dict[str, dict[int, HolderConnection]] = {}
        self._verdicts: OrderedDict[bytes, Compatible | Incompatible] = OrderedDict()
        self._per_peer: Counter[str] = Counter()
        self._accept_at = _NEVER
        # The last, as it has descriptors that the end of the thread closes.
        self.thread = IoThread(f"transload-holder-{listener.getsockname()[1]}", self)
        self.thread.watch(listener, selectors.EVENT_READ, self)

    # What the thread calls.

    def ready(self, _mask: int) -> None:
        """Connections wait to be accepted."""
        for _ in range(MAX_ACCEPTED):
            try:
                sock, where = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _ENDED_UNACCEPTED:
                    continue
                if error.errno not in _NO_ROOM:
                    raise
                self.thread.watch(self._listener, 0, self)
                self._accept_at = self.now() + RECHECK_S
                return
            self._accept(sock, where[0])

    def turn(self) -> None:
        """Free what is free."""
        self._free(self.now())

    def tick(self, now: float) -> None:
        """Do what is due."""
        if now >= self._accept_at:
            self._accept_at = _NEVER
            self.thread.watch(self._listener, selectors.EVENT_READ, self)
        for each in list(self.connections):
            due = each.deadline()
            if due is not None and due <= now:
                each.tick(now)
        self._free(now)

    def deadline(self) -> float | None:
        """When something is due."""
        dues = [each.deadline() for each in self.connections]
        dues.append(self._ledger.next_expiry())
        first = min((due for due in dues if due is not None), default=_NEVER)
        first = min(first, self._accept_at)
        return None if first == _NEVER else first

    def stop(self) -> None:
        """End all sessions, let the memory go, and give all blocks back."""
        self.thread.forget(self._listener)
        for each in list(self.connections):
            if each.link.stream == 0:
                each.end("the holder stops")
        for each in list(self.connections):
            each.close()
        now = self.now()
        with self.lists_lock:
            held = list(self.lists)
        for handoff, lease in held:
            self._ledger.forgo(handoff, lease, now)
        for view in self._memory.values():
            view.release()
        self._free(now)

    # What connections call.

    def now(self) -> float:
        """Seconds."""
        return self.thread.clock()

    def watch(self, sock: socket.socket, mask: int, of: HolderConnection) -> None:
        """Have a connection told when its socket is ready."""
        self.thread.watch(sock, mask, of)

    def count_sent(self, num_bytes: int) -> None:
        """A frame is with the kernel."""
        self.num_bytes_sent += num_bytes

    def took(self, connection: HolderConnection, events: list[HolderEvent]) -> None:
        """Do what a machine asks for, and send what it owes."""
        session = connection.link.session
        if session is not None and not connection.is_closed:
            streams = self._streams.setdefault(session.name, {})
            streams.setdefault(connection.link.stream, connection)
        for event in events:
            if isinstance(event, Serve) and session is not None:
                self._serve(session, event)
            elif isinstance(event, SessionEnded) and session is not None:
                self._end(session, event)
        connection.pump()
        if session is not None and connection.link.stream:
            self.owes(session)

    def owes(self, session: HolderSession) -> None:
        """Send what the control stream of a session is owed."""
        control = self._streams.get(session.name, {}).get(0)
        if control is not None:
            control.pump()

    def stalled(self, connection: HolderConnection) -> None:
        """A peer does not take what it is owed: end its session."""
        session = connection.link.session
        control = self._streams.get(session.name, {}).get(0) if session is not None else None
        if control is not None:
            control.end("the reader takes nothing of what it is owed")
        connection.close()

    def closed(self, connection: HolderConnection, sock: socket.socket) -> None:
        """A connection is over."""
        self.thread.forget(sock)
        self.connections.discard(connection)
        self._per_peer[connection.peer] -= 1
        if not self._per_peer[connection.peer]:
            del self._per_peer[connection.peer]
        session = connection.link.session
        if session is not None:
            streams = self._streams.get(session.name, {})
            if streams.get(connection.link.stream) is connection:
                del streams[connection.link.stream]
            if not streams:
                self._streams.pop(session.name, None)

    def _accept(self, sock: socket.socket, peer: str) -> None:
        limits = self._limits
        is_full = len(self.connections) >= limits.max_connections
        if is_full or self._per_peer[peer] >= limits.max_connections_per_peer:
            self.num_turned_away += 1
            _turn_away(sock)
            return
        tune(sock)
        now = self.now()
        link = self._reception.connect(secrets.token_hex(16), secrets.token_hex(32), now)
        self._per_peer[peer] += 1
        stall_s = self._reception.settings.deadlines.stall_s
        self.connections.add(HolderConnection(self, sock, peer, link, stall_s))

    def _serve(self, session: HolderSession, event: Serve) -> None:
        read = event.message
        connection = self._streams.get(session.name, {}).get(read.stream)
        if connection is None:
            session.fail(event.id, f"the stream {read.stream} is gone", self.now())
            return
        try:
            runs = self.lists.runs_of(read, event.lease)
        except WireError as error:
            session.fail(event.id, error.reason, self.now())
            return
        most = min(session.max_data_bytes, FRAME_BYTES)
        frames = DataFrames(self._memory, runs, event.id, most, read.checksums)
        connection.serve(Job(session, frames, event.num_bytes))
        connection.pump()

    def _end(self, session: HolderSession, event: SessionEnded) -> None:
        self.ends[event.why] += 1
        streams = self._streams.get(session.name, {})
        # A copy: what one owes the others may find them lost, and they are forgotten then.
        for _, connection in sorted(streams.items(), reverse=True):
            connection.finish()

    def _free(self, now: float) -> None:
        with self.lists_lock:
            freed = self._ledger.expire(now)
            for each in freed:
                self.lists.drop(each.handoff, each.lease)
        for each in freed:
            self._on_freed(each)

    def _compare(self, body: bytes) -> Compatible | Incompatible:
        key = hashlib.sha256(body).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = self._verdict(self._descriptor, descriptor_of(body))
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        return verdict

    def _measure(self, read: messages.Read, tables: tuple[messages.Table, ...]) -> int:
        return size_of(self._descriptor, read, tables)

    def _locate(self, asked: messages.Map, lease: str) -> messages.Mapped:
        assert self._files is not None
        found = self._files.mapped(asked, self.lists.ids_of(asked.handoff, lease, asked.table))
        self.num_mapped += 1
        return found


def _turn_away(sock: socket.socket) -> None:
    """One connection too many: say so, if it can be heard at once."""
    with contextlib.suppress(OSError):
        sock.setblocking(False)
        sock.send(codec.encode(messages.Bye("as many connections as this holder takes")))
        sock.shutdown(socket.SHUT_WR)
    sock.close()
