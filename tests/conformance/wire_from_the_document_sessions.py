"""What the two sides do in the recorded sessions, alive, and a pair of them over the loopback."""

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from conformance.wire_from_the_document import connect_reader, serve_handoff
from conformance.wire_from_the_document_descriptor import Tree
from conformance.wire_from_the_document_holder import Holder
from conformance.wire_from_the_document_holder import Settings as HolderSettings
from conformance.wire_from_the_document_leases import Leases
from conformance.wire_from_the_document_messages import Message
from conformance.wire_from_the_document_packing import pack
from conformance.wire_from_the_document_play import WAIT_S, Session
from conformance.wire_from_the_document_reader import Reader
from conformance.wire_from_the_document_reader import Settings as ReaderSettings
from conformance.wire_from_the_document_service import Read

TOKEN: Final = b"a shared secret"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def cut_as_recorded(session: Session, clock: Clock) -> Callable[[Read, int], int]:
    """Data frames as in the recording; where it has no more, the lease's time is over."""

    def cut(read: Read, at: int) -> int:
        step = session.step_of(read.id, at)
        if step is not None and session.wait_until(step):
            return len(session.steps[step]["data"]) // 2
        if session.ends_by(read.id, "cancelled", "error"):
            read.stopped.wait(WAIT_S)
            return 0
        clock.now_s = 60.0
        return 1

    return cut


def live_holder(session: Session) -> Holder:
    """A holder like the recorded one."""
    clock, side = Clock(), session.sides["holder"]
    names = ("generation", "engine", "nonce", "session", "max_data_bytes", "max_streams")
    settings = HolderSettings(
        **{name: side[name] for name in names},
        cut=cut_as_recorded(session, clock),
        features=tuple(side.get("features", ())),
    )
    leases = Leases(clock)
    held = side["handoff"]
    if held:
        tables = {int(table): ids for table, ids in held["tables"].items()}
        counts = held["num_tokens"], held["readers"]
        leases.grant(held["handoff"], held["lease"], tables, *counts)
    memory = {pool: bytes.fromhex(data) for pool, data in side["pools"].items()}
    token, twin = bytes.fromhex(side["token"]), pack(side["descriptor"])
    return Holder(token, twin, memory, leases, settings, side.get("files"))


def share(reader: Reader) -> Message:
    return reader.open("cmpl-7", "4-0", "decode-0", generation="4")


def read_one_block(reader: Reader) -> None:
    share(reader)
    read = reader.read("cmpl-7", "attention", [[0, 1]], checksums=True)
    assert reader.finish(read) == bytes((7 * a + 3) % 256 for a in range(160, 192))
    assert reader.about("done", "cmpl-7")["left"] == 0
    reader.bye()


def read_on_two_streams(reader: Reader) -> None:
    assert [reader.attach(n)["type"] for n in (1, 2)] == ["attached", "attached"]
    share(reader)
    first = reader.read("cmpl-7", "attention", [[0, 2]], form="page", stream=1, checksums=True)
    second = reader.read("cmpl-7", "attention", [[2, 2]], stream=2)
    payloads = [reader.finish(number) for number in (first, second)]
    blocks = [bytes((7 * a + 3) % 256 for a in range(32 * b, 32 * b + 32)) for b in (5, 2, 6, 1)]
    assert payloads == [blocks[0] + blocks[1], blocks[2] + blocks[3]]
    reader.about("renew", "cmpl-7")
    reader.about("done", "cmpl-7")
    reader.bye()


def cancel_a_read(reader: Reader) -> None:
    share(reader)
    read = reader.read("cmpl-7", "attention", [[0, 2]])
    assert reader.pump_until_bytes(read, 8)
    reader.cancel(read)
    assert reader.finish(read) is None
    reader.about("release", "cmpl-7")
    reader.bye()


def see_a_lease_end(reader: Reader) -> None:
    share(reader)
    read = reader.read("cmpl-7", "attention", [[0, 2]])
    assert reader.finish(read) is None
    assert reader.about("confirm", "cmpl-7")["why"] == "expired"
    assert reader.open("cmpl-6", "4-0", "decode-0")["why"] == "unknown"
    reader.bye("nothing is left")


def forgo_twice(reader: Reader) -> None:
    assert reader.forgo("cmpl-7", "4-0")["left"] == 0
    assert reader.forgo("cmpl-7", "4-0")["why"] == "ended"
    reader.bye()


def read_where_it_is(reader: Reader) -> None:
    share(reader)
    for asked, there in (
        ([[0, 4]], [[5, 2], [2, 1], [1, 1]]),
        ([[1, 1], [3, 1]], [[6, 1], [1, 1]]),
    ):
        mapped = reader.map("cmpl-7", 0, asked)
        assert mapped["blocks"] == there
        assert [each["num_bytes"] for each in mapped["pools"]] == [256]
        assert reader.about("confirm", "cmpl-7")["type"] == "confirmed"
    reader.about("done", "cmpl-7")
    reader.bye()


def map_too_few(reader: Reader) -> None:
    share(reader)
    reader.map("cmpl-7", 0, [[0, 4]])


def read_what_is_short(reader: Reader) -> None:
    share(reader)
    for _ in range(2):
        assert reader.finish(reader.read("cmpl-7", "attention", [[0, 2]])) is None
    read_well_and_leave(reader)


def read_what_is_spoiled(reader: Reader) -> None:
    share(reader)
    for checksums in (False, False, True):
        read = reader.read("cmpl-7", "attention", [[0, 2]], checksums=checksums)
        assert reader.finish(read) is None
    read_well_and_leave(reader)


def read_well_and_leave(reader: Reader) -> None:
    read = reader.read("cmpl-7", "attention", [[2, 1]])
    assert reader.finish(read) == bytes((7 * a + 3) % 256 for a in range(192, 224))
    reader.about("done", "cmpl-7")
    reader.bye()


def listen(reader: Reader) -> None:
    reader.listen(WAIT_S)


def share_and_listen(reader: Reader) -> None:
    share(reader)
    listen(reader)


DEEDS: Final = {
    "control-stream": read_one_block,
    "two-streams": read_on_two_streams,
    "cancelled-read": cancel_a_read,
    "expired-lease": see_a_lease_end,
    "forgone": forgo_twice,
    "shared-memory": read_where_it_is,
    "short-reads": read_what_is_short,
    "spoiled-reads": read_what_is_spoiled,
}
# The session ends meanwhile, and by what the holder says or does.
ENDED_DEEDS: Final = {
    "refusal": (listen, "model.revision"),
    "wrong-token": (listen, "bad_proof"),
    "welcome-too-long": (listen, "message: "),
    "unasked-descriptor": (share_and_listen, "descriptor: "),
    "mapped-otherwise": (map_too_few, "other blocks than were asked for"),
    "unasked-answer": (share_and_listen, "an answer to what was not asked"),
    "unasked-data": (share_and_listen, "which is no read"),
}


def live_reader(session: Session, listener: socket.socket) -> Reader:
    side = session.sides["reader"]
    names = ("generation", "engine", "nonce", "max_data_bytes")
    known = tuple(side.get("features", ()))
    settings = ReaderSettings(**{name: side[name] for name in names}, features=known)
    twin = pack(side["descriptor"]) if side["descriptor"] else None
    address = listener.getsockname()
    token = bytes.fromhex(side["token"])
    return Reader(lambda: socket.create_connection(address), token, twin, settings)


class Pair:
    """A holder of one handoff, by default the example's, and readers that leave when it does."""

    def __init__(
        self,
        descriptor: Tree,
        memory: Mapping[str, bytes],
        blocks: Sequence[int] = (5, 2),
        **more: Any,
    ) -> None:
        self._descriptor = descriptor
        self._ends = contextlib.ExitStack()
        tables = {0: list(blocks)}
        more = {"settings": HolderSettings(generation="4"), **more}
        self.holder, self.port = serve_handoff(
            TOKEN, descriptor, memory, "cmpl-7", "4-0", tables, 3, **more
        )
        self._ends.callback(self.holder.close)

    def connect(
        self, descriptor: Tree | None = None, token: bytes = TOKEN, **settings: Any
    ) -> Reader:
        mine = descriptor or self._descriptor
        reader = connect_reader("127.0.0.1", self.port, token, mine, ReaderSettings(**settings))
        self._ends.callback(reader.bye)
        return reader

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()
