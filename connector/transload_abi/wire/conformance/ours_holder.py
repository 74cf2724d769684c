"""Our holder as one side of a recorded session."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transload_abi.errors import DescriptorError
from transload_abi.harness.protocol import Fields
from transload_abi.text import encode_msgpack, read
from transload_abi.types import Descriptor
from transload_abi.wire import frames, messages
from transload_abi.wire.deadlines import Terms
from transload_abi.wire.errors import BadDescriptor
from transload_abi.wire.holder_state import Compatible, HolderSettings, Incompatible, Serve
from transload_abi.wire.ledger import Ledger
from transload_abi.wire.payload import payload_of
from transload_abi.wire.pool_files import PoolFiles
from transload_abi.wire.reception import Link, Reception
from transload_abi.wire.sizes import size_of

Compare = Callable[[Descriptor, Descriptor], Compatible | Incompatible]
"""From the holder's descriptor to the reader's."""


def play_holder(fields: Fields, holder: Descriptor, compare: Compare) -> Fields:
    """What our holder says to each of the events."""
    play = _HolderPlay(fields, holder, compare)
    return {"said": [list(play.take(event)) for event in fields["events"]]}


@dataclass
class _Sending:
    """A read that is served.

    Attributes:
        left: The bytes of its payload that were not sent.
    """

    message: messages.Read
    left: memoryview
    num_sent: int = 0


class _HolderPlay:
    def __init__(self, fields: Fields, holder: Descriptor, compare: Compare) -> None:
        self._fields = fields
        self._holder = holder
        self._memory = {pool: bytes.fromhex(data) for pool, data in fields["pools"].items()}
        self._now = 0.0
        self._links: dict[int, Link] = {}
        self._reads: dict[int, _Sending] = {}

        def judge(descriptor: bytes) -> Compatible | Incompatible:
            try:
                return compare(holder, read(descriptor))
            except DescriptorError as error:
                raise BadDescriptor(str(error), "descriptor") from error

        settings = HolderSettings(
            fields["engine"],
            fields["generation"],
            encode_msgpack(holder),
            bytes.fromhex(fields["token"]),
            fields["max_data_bytes"],
            fields["max_streams"],
            tuple(fields.get("features", ())),
        )
        self._reception = Reception(
            settings,
            self._granted(),
            judge,
            lambda wanted, tables: size_of(holder, wanted, tables),
            self._locate if messages.SHM in settings.features else None,
        )

    def take(self, event: Fields) -> Iterator[Fields]:
        """What is said to one event."""
        if "expire" in event:
            self._now += self._fields["handoff"]["expires_ms"] / 1000
        else:
            self._feed(event["stream"], bytes.fromhex(event["bytes"]))
        yield from self._owed()
        left = event["data_bytes"]
        for id_, sending in list(self._reads.items()):
            for frame, num_bytes in self._frames(id_, sending, left):
                left -= num_bytes
                yield {"stream": sending.message.stream, "bytes": frame.hex()}
            yield from self._owed()

    def _locate(self, asked: messages.Map, _lease: str) -> messages.Mapped:
        """Where blocks of the handoff are."""
        files = PoolFiles(self._holder, self._fields["files"])
        return files.mapped(asked, self._fields["handoff"]["tables"][str(asked.table)])

    def _granted(self) -> Ledger:
        """A ledger that holds the handoff."""
        handoff = self._fields["handoff"]
        if handoff is None:
            return Ledger()
        ledger = Ledger(Terms(term_s=handoff["expires_ms"] / 1000))
        tables = tuple(
            messages.Table(int(table), len(ids)) for table, ids in handoff["tables"].items()
        )
        of = handoff["num_tokens"], handoff["readers"]
        ledger.grant(handoff["handoff"], handoff["lease"], tables, *of, self._now)
        return ledger

    def _feed(self, stream: int, data: bytes) -> None:
        if stream not in self._links:
            names = self._fields["session"], self._fields["nonce"]
            self._links[stream] = self._reception.connect(*names, self._now)
        for told in self._links[stream].feed(data, self._now):
            if isinstance(told, Serve):
                self._reads[told.id] = _Sending(told.message, self._payload(told.message))

    def _frames(self, id_: int, sending: _Sending, most: int) -> Iterator[tuple[bytes, int]]:
        """Data frames of a read, of `most` bytes in all, as long as it may be served."""
        session = self._links[0].session
        assert session is not None
        while session.may_send(id_, self._now):
            data = bytes(sending.left[: min(most, session.max_data_bytes)])
            if data:
                checksum = frames.checksum_of(data) if sending.message.checksums else None
                yield (
                    frames.data_header(id_, sending.num_sent, len(data), checksum) + data,
                    len(data),
                )
            session.sent(id_, len(data), self._now)
            sending.left = sending.left[len(data) :]
            sending.num_sent += len(data)
            most -= len(data)
            if sending.left and most == 0:
                return
        del self._reads[id_]

    def _payload(self, message: messages.Read) -> memoryview:
        group = next(group for group in self._holder.groups if group.id == message.group)
        ids = self._fields["handoff"]["tables"][str(group.table)]
        blocks = [ids[at] for first, count in message.blocks for at in range(first, first + count)]
        runs = payload_of(self._holder, message).runs_of(blocks)
        parts = (self._memory[run.pool][run.offset : run.offset + run.num_bytes] for run in runs)
        return memoryview(b"".join(parts))

    def _owed(self) -> Iterator[Fields]:
        for stream, link in self._links.items():
            if data := link.data_to_send():
                yield {"stream": stream, "bytes": data.hex()}
