"""A session that is open, as a holder of `connector/WIRE.md` serves it: 5, 7, 8 and 9.

Requests are answered as they come; each stream has a thread that sends its reads, one after
another. Numbers in comments are the document's sections.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from conformance.wire_from_the_document_descriptor import Tree
from conformance.wire_from_the_document_frames import write_data
from conformance.wire_from_the_document_leases import (
    Lease,
    Leases,
    NotHeldError,
    Share,
    TooManyError,
)
from conformance.wire_from_the_document_packing import RefusedError
from conformance.wire_from_the_document_payload import (
    Message,
    Run,
    check_read,
    group_of,
    positions,
    runs_of,
)
from conformance.wire_from_the_document_streams import ClosedError, Stream, WrongError

MAX_READS: Final = 64  # 9
MAX_OPEN: Final = 1024  # 7


@dataclass
class Read:
    """A read that is under way; `is_lost` where its stream has ended."""

    message: Message
    share: Share
    runs: list[Run]
    stopped: threading.Event = field(default_factory=threading.Event)
    is_lost: bool = False

    @property
    def id(self) -> int:
        return int(self.message["id"])


# Of a read and an offset: of how many bytes the next frame is; 0 asks to look at the read again.
Cut = Callable[[Read, int], int]


@dataclass(frozen=True)
class Store:
    """What a holder has: `memory` are the bytes of each pool of the descriptor, by its id."""

    descriptor: Tree
    memory: Mapping[str, bytes]
    leases: Leases
    files: Mapping[str, str] = field(default_factory=dict)  # 16


class Service:
    """The requests of one session and the streams that its data go to."""

    def __init__(self, store: Store, control: Stream, max_data_bytes: int, cut: Cut | None) -> None:
        self._store = store
        self._control = control
        self._max_data_bytes = max_data_bytes
        self._cut = cut
        self.has_shm = False
        self._last_id = 0
        self._shares: dict[str, Share] = {}
        self._closed: set[str] = set()
        self._reads: dict[int, Read] = {}
        self._senders: dict[int, queue.Queue[Read | None]] = {}
        self._streams: dict[int, Stream] = {}
        self._lock = threading.Lock()

    def add_stream(self, number: int, stream: Stream, first: bytes = b"") -> None:
        """Let reads come on a stream, behind its `first` words."""
        with self._lock:
            self._streams[number] = stream
            reads = self._senders[number] = queue.Queue()
        threading.Thread(target=self._send_all, args=(stream, reads, first), daemon=True).start()

    def lose_stream(self, number: int) -> None:
        """Close a data stream, or see that it was closed; its reads fail."""
        with self._lock:
            stream = self._streams.pop(number, None)
            for read in self._reads.values():
                if read.message["stream"] == number:
                    read.is_lost = True
                    read.stopped.set()
        if stream is not None:
            stream.close()

    def end(self) -> None:
        """Stop all reads and close the data streams."""
        with self._lock:
            streams = [stream for number, stream in self._streams.items() if number]
            senders = list(self._senders.values())
            for read in self._reads.values():
                read.stopped.set()
            self._reads.clear()
        for stream in streams:
            stream.close()
        for sender in senders:
            sender.put(None)

    def turn(self, message: Message) -> bool:
        """Answer one message; whether more may come."""
        kind = message["type"]
        if kind == "bye":
            return False
        if kind == "cancel":
            self._cancel(message["id"])
            return True
        if kind == "forgo":
            self.forgo(message)
            return True
        answer = {"open": self._open, "read": self._read}.get(kind)
        if kind == "map" and self.has_shm:
            answer = self._map
        if answer is None and kind not in ("confirm", "renew", "done", "release"):
            raise WrongError("out_of_turn", f"{kind} may not be said now")
        self._check_id(message["id"])
        try:
            (answer or self._about_a_share)(message)
        except NotHeldError as error:
            share = self._shares.get(message["handoff"])
            if share and message.get("lease", share.lease) == share.lease:
                self._closed.add(share.handoff)
            self._say("expired", id=message["id"], why=str(error))
        except WrongError as error:
            self._say("error", id=message["id"], code=error.code, reason=str(error)[:500])
        return True

    def _check_id(self, number: int) -> None:
        if number <= self._last_id:
            raise WrongError("out_of_turn", f"the id {number} is not greater than the last")
        self._last_id = number

    def _say(self, kind: str, **fields: Any) -> None:
        self._control.say("holder", kind, **fields)

    def forgo(self, message: Message) -> None:
        self._check_id(message["id"])
        try:
            left = self._store.leases.forgo(message["handoff"], message["lease"])
        except NotHeldError as error:
            self._say("expired", id=message["id"], why=str(error))
        else:
            self._say("ended", id=message["id"], left=left)

    def _open(self, message: Message) -> None:
        handoff = message["handoff"]
        share = Share(handoff, message["lease"], message["reader"])
        other = None if handoff in self._closed else self._shares.get(handoff)
        if other and other.lease == share.lease and other.reader != share.reader:
            raise WrongError("out_of_turn", f"is open for {other.reader!r}")
        if not other and len(self._shares.keys() - self._closed) >= MAX_OPEN:
            raise WrongError("too_many", f"{MAX_OPEN} handoffs are open")
        try:
            lease = self._store.leases.take_share(share)
        except TooManyError as error:
            raise WrongError("too_many", str(error)) from error
        self._shares[handoff] = share
        self._closed.discard(handoff)
        self._say(
            "lease",
            id=message["id"],
            num_tokens=lease.num_tokens,
            tables=[self._table(number, lease) for number in self._tables()],
            readers=lease.num_readers,
            left=lease.num_left,
            expires_ms=self._store.leases.left_ms(lease),
            num_encoder_tokens=lease.num_encoder_tokens,
        )

    def _tables(self) -> list[int]:
        groups = self._store.descriptor["groups"]
        return sorted({group["table"] for group in groups if group["transferable"]})

    def _table(self, number: int, lease: Lease) -> Message:
        groups = self._store.descriptor["groups"]
        null = next(group["null_block"] for group in groups if group["table"] == number)
        blocks = lease.tables.get(number, [])
        ranges: list[list[int]] = []
        for position, block in enumerate(blocks):
            if block == null and ranges and sum(ranges[-1]) == position:
                ranges[-1][1] += 1
            elif block == null:
                ranges.append([position, 1])
        return {"table": number, "num_blocks": len(blocks), "null": ranges}

    def _share(self, handoff: str) -> Share:
        if handoff not in self._shares:
            raise WrongError("out_of_turn", f"{handoff!r} is not open")
        return self._shares[handoff]

    def _about_a_share(self, message: Message) -> None:
        leases = self._store.leases
        share = self._share(message["handoff"])
        if message["type"] in ("done", "release"):
            left = leases.end(share)
            self._closed.add(share.handoff)
            self._say("ended", id=message["id"], left=left)
            return
        lease = (leases.renew if message["type"] == "renew" else leases.confirm)(share)
        self._say("confirmed", id=message["id"], expires_ms=leases.left_ms(lease))

    # --- 16: memory of one host ---

    def _map(self, message: Message) -> None:
        share = self._share(message["handoff"])
        lease = self._store.leases.confirm(share)
        number = message["table"]
        if number not in self._tables():
            raise WrongError("bad_read", f"map.table: there is no table {number}")
        ids = self._ids(lease, number, message["blocks"], "map.blocks")
        groups = [g for g in self._store.descriptor["groups"] if g["table"] == number]
        pools = {pool for g in groups for place in g["places"] for pool in place["pools"]}
        ranges: list[list[int]] = []
        for block in ids:
            if ranges and sum(ranges[-1]) == block:
                ranges[-1][1] += 1
            else:
                ranges.append([block, 1])
        if len(ranges) > 4096:
            raise WrongError("too_many", "map.blocks: more ranges than a message has")
        files = [self._file(pool) for pool in sorted(pools)]
        self._say("mapped", id=message["id"], pools=files, blocks=ranges)

    def _file(self, pool: str) -> Message:
        described = next(each for each in self._store.descriptor["pools"] if each["id"] == pool)
        name = self._store.files[pool]
        return {"pool": pool, "name": name, "num_bytes": described["num_bytes"]}

    def _ids(self, lease: Lease, table: int, blocks: list[list[int]], path: str) -> list[int]:
        """The blocks at some positions, if there are such and none is null."""
        listed = lease.tables.get(table, [])
        first, count = blocks[-1]
        if first + count > len(listed):
            raise WrongError("bad_read", f"{path}: beyond the list")
        groups = self._store.descriptor["groups"]
        null = next(group["null_block"] for group in groups if group["table"] == table)
        ids = [listed[position] for position in positions(blocks)]
        if null is not None and null in ids:
            raise WrongError("bad_read", f"{path}: a null block")
        return ids

    # --- 8, 9: reads ---

    def _read(self, message: Message) -> None:
        share = self._share(message["handoff"])
        lease = self._store.leases.confirm(share)
        descriptor = self._store.descriptor
        try:
            check_read(descriptor, message)
        except RefusedError as error:
            raise WrongError("bad_read", str(error)) from error
        group = group_of(descriptor, message)
        ids = self._ids(lease, group["table"], message["blocks"], "read.blocks")
        read = Read(message, share, runs_of(descriptor, message, ids))
        with self._lock:
            if message["stream"] not in self._streams:
                raise WrongError("bad_read", "read.stream: is not attached")
            if len(self._reads) >= MAX_READS:
                raise WrongError("too_many", f"{MAX_READS} reads are under way")
            self._reads[read.id] = read
            self._senders[message["stream"]].put(read)

    def _cancel(self, number: int) -> None:
        if number > self._last_id:
            raise WrongError("out_of_turn", f"{number} was not asked for")
        with self._lock:
            if number in self._reads:
                self._reads[number].stopped.set()

    def _send_all(self, stream: Stream, reads: "queue.Queue[Read | None]", first: bytes) -> None:
        with contextlib.suppress(ClosedError):
            stream.send(first)
        while (read := reads.get()) is not None:
            try:
                answer = self._send_read(stream, read)
            except NotHeldError as error:
                self._closed.add(read.share.handoff)
                answer = {"kind": "expired", "why": str(error)}
            except ClosedError as error:
                answer = {"kind": "error", "code": "internal", "reason": f"stream: {error}"}
            with self._lock:
                if self._reads.pop(read.id, None) is None:
                    continue
            with contextlib.suppress(ClosedError):
                self._say(id=read.id, **answer)

    def _send_read(self, stream: Stream, read: Read) -> Message:
        total = sum(count for _, _, count in read.runs)
        at = 0
        while at < total:
            if read.is_lost:
                raise ClosedError("has ended")
            if read.stopped.is_set():
                return {"kind": "cancelled"}
            cut = self._cut
            size = cut(read, at) if cut else self._max_data_bytes
            if size:
                runs = _slice(read.runs, at, size)
                data = self._store.leases.copy(read.share, self._store.memory, runs)
                stream.send(write_data(read.id, at, data, read.message["checksums"]))
                at += len(data)
        return {"kind": "read_end", "num_bytes": total}


def _slice(runs: list[Run], first: int, count: int) -> list[Run]:
    """The runs of bytes `first .. first + count` of a payload."""
    found: list[Run] = []
    at = 0
    for pool, start, size in runs:
        low, high = max(first - at, 0), min(first + count - at, size)
        if low < high:
            found.append((pool, start + low, high - low))
        at += size
    return found
