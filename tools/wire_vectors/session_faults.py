"""Sessions in which one side does what it may not, or what is at the edge of what it may."""

from wire_vectors import spelling
from wire_vectors.message_cases import MAX_UNPROVEN, padded
from wire_vectors.session_writer import (
    FORGO,
    OPEN,
    PAGE_BYTES,
    TOKEN,
    Session,
    about,
    lease,
    map_blocks,
    mapped,
    pages,
    read,
    tiny,
)
from wire_vectors.spelling import Document

_STRANGER = 17
"""Number of a connection that becomes no stream."""


def faults_of_readers() -> dict[str, Document]:
    """By name; what the holder has to answer."""
    return {
        "first-word": _first_word(),
        "hello-too-long": _long_hello(),
        "early-descriptor": _early_descriptor(),
        "message-out-of-turn": _prove_twice(),
        "id-again": _id_again(),
        "strangers": _strangers(),
        "talking-stream": _talking_stream(),
        "opened-again": _opened_again(),
        "cancels": _cancels(),
        "map-not-agreed": _map_not_agreed(),
        "mapped-nothing": _mapped_nothing(),
    }


def faults_of_holders() -> dict[str, Document]:
    """By name; what the reader has to do."""
    return {
        "welcome-too-long": _long_welcome(),
        "unasked-descriptor": _unasked_descriptor(),
        "unasked-answer": _unasked_answer(),
        "unasked-data": _unasked_data(),
        "mapped-otherwise": _mapped_otherwise(),
        "short-reads": _short_reads(),
        "spoiled-reads": _spoiled_reads(),
    }


_SHM = ["shm"]


def _open(
    num_streams: int = 0,
    readers: int = 1,
    features: tuple[list[str], list[str]] = ([], []),
) -> Session:
    s = Session(num_streams, reader=tiny(4, is_transposed=False), features=features)
    s.accept()
    s.ask("open", OPEN)
    s.answer("lease", lease(4, 8, readers=readers, left=readers))
    return s


_BLOCKS = [5, 2, 6, 1]


def _of_holder(s: Session, description: str, readers: int = 1) -> Document:
    return s.document(description, _BLOCKS, num_tokens=8, readers=readers, of=("holder",))


def _of_reader(s: Session, description: str, reads: dict[int, bytes] | None = None) -> Document:
    return s.document(description, _BLOCKS, of=("reader",), reads=reads)


def _wrong(s: Session, code: str, on: int = 0, **of: int) -> None:
    s.answer("error", {"code": code, "reason": "", **of}, on)


def _first_word() -> Document:
    s = Session()
    s.ask("forgo", {"id": 1, **FORGO})
    _wrong(s, "out_of_turn")
    return _of_holder(s, "The first message is neither hello nor attach.")


def _long_hello() -> Document:
    s = Session()
    s.ask("hello", padded(s.hello, MAX_UNPROVEN + 1))
    _wrong(s, "bad_frame")
    return _of_holder(s, "A hello is a byte longer than it may be before a proof.")


def _early_descriptor() -> Document:
    s = Session()
    s.greet()
    s.describe("reader", tiny(4))
    _wrong(s, "bad_frame")
    return _of_holder(s, "A descriptor comes before the proof: a frame that may not come now.")


def _prove_twice() -> Document:
    s = Session(reader=tiny(4, is_transposed=False))
    s.accept()
    s.prove()
    _wrong(s, "out_of_turn")
    return _of_holder(s, "A proof comes in an open session: a message that may not come now.")


def _id_again() -> Document:
    s = _open()
    s.ask("confirm", about(3))
    s.answer("confirmed", {"id": 3, "expires_ms": 30_000})
    s.ask("confirm", about(3))
    _wrong(s, "out_of_turn")
    return _of_holder(s, "An id does not ascend, which ends the session.")


def _strangers() -> Document:
    s = Session(num_streams=2, reader=tiny(4, is_transposed=False))
    s.accept()
    asked = [
        ("out_of_turn", s.attachment(1, session="00" * 16)),
        ("bad_proof", s.attachment(1, proof="00" * 32)),
        ("out_of_turn", s.attachment(3)),
    ]
    for number, (code, fields) in enumerate(asked):
        s.ask("attach", fields, _STRANGER + number)
        _wrong(s, code, _STRANGER + number)
    s.attach(1)
    s.ask("attach", s.attachment(1), _STRANGER + 3)
    _wrong(s, "out_of_turn", _STRANGER + 3)
    s.ask("open", OPEN)
    s.answer("lease", lease(4, 8))
    s.ask("bye")
    return _of_holder(s, "Data streams that may not be attached do no harm to the session.")


def _talking_stream() -> Document:
    s = _open(num_streams=2)
    s.attach(1)
    s.ask("read", read(2, 0, 1, stream=1))
    s.ask("confirm", about(3))
    s.answer("confirmed", {"id": 3, "expires_ms": 30_000})
    s.ask("bye", on=1)
    _wrong(s, "internal", id=2)
    s.ask("read", read(4, 0, 1, stream=1))
    _wrong(s, "bad_read", id=4)
    s.ask("attach", s.attachment(1), _STRANGER)
    _wrong(s, "out_of_turn", _STRANGER)
    s.ask("confirm", about(5))
    s.answer("confirmed", {"id": 5, "expires_ms": 30_000})
    s.ask("bye")
    return _of_holder(s, "A reader talks on a data stream, and loses that one alone.")


def _opened_again() -> Document:
    s = _open(readers=2)
    s.ask("open", {**OPEN, "id": 2})
    s.answer("lease", lease(4, 8, readers=2, left=2, id=2))
    s.ask("open", {**OPEN, "id": 3, "reader": "decode-1"})
    _wrong(s, "out_of_turn", id=3)
    s.ask("open", {**OPEN, "id": 4, "lease": "3-0", "reader": "decode-1"})
    s.answer("expired", {"id": 4, "why": "other_lease"})
    s.ask("confirm", about(5))
    s.answer("confirmed", {"id": 5, "expires_ms": 30_000})
    s.ask("confirm", about(6, "cmpl-6"))
    _wrong(s, "out_of_turn", id=6)
    s.ask("done", about(7))
    s.answer("ended", {"id": 7, "left": 1})
    s.ask("read", read(8, 0, 1))
    s.answer("expired", {"id": 8, "why": "ended"})
    s.ask("open", {**OPEN, "id": 9})
    s.answer("expired", {"id": 9, "why": "ended"})
    s.ask("open", {**OPEN, "id": 10, "reader": "decode-1"})
    s.answer("lease", lease(4, 8, readers=2, left=1, id=10))
    s.ask("forgo", {"id": 11, **FORGO})
    s.answer("ended", {"id": 11, "left": 0})
    s.ask("renew", about(12))
    s.answer("expired", {"id": 12, "why": "ended"})
    s.ask("open", {**OPEN, "id": 13, "handoff": "cmpl-6"})
    s.answer("expired", {"id": 13, "why": "unknown"})
    s.ask("done", about(14, "cmpl-6"))
    _wrong(s, "out_of_turn", id=14)
    s.ask("bye")
    return _of_holder(
        s, "A handoff is opened more than once, and asked about when it is not open.", 2
    )


def _cancels() -> Document:
    s = _open()
    s.ask("confirm", about(4))
    s.answer("confirmed", {"id": 4, "expires_ms": 30_000})
    s.ask("cancel", {"id": 1})
    s.ask("cancel", {"id": 3})
    s.ask("read", read(5, 0, 2))
    s.ask("cancel", {"id": 5})
    s.answer("cancelled", {"id": 5})
    s.ask("cancel", {"id": 5})
    s.ask("confirm", about(6))
    s.answer("confirmed", {"id": 6, "expires_ms": 30_000})
    s.ask("cancel", {"id": 7})
    _wrong(s, "out_of_turn")
    return _of_holder(s, "Cancels of what is no read are ignored, but for an id of the future.")


def _map_not_agreed() -> Document:
    s = _open(features=([], _SHM))
    s.ask("map", map_blocks(2, [[0, 1]]))
    _wrong(s, "out_of_turn")
    return _of_holder(s, "A reader that has not said `shm` asks where blocks are.")


def _mapped_nothing() -> Document:
    s = _open(features=(_SHM, _SHM))
    s.ask("map", map_blocks(2, [[3, 2]]))
    _wrong(s, "bad_read", id=2)
    s.ask("map", {**map_blocks(3, [[0, 1]]), "table": 1})
    _wrong(s, "bad_read", id=3)
    s.ask("map", {**map_blocks(4, [[0, 1]]), "handoff": "cmpl-6"})
    _wrong(s, "out_of_turn", id=4)
    s.ask("done", about(5))
    s.answer("ended", {"id": 5, "left": 0})
    s.ask("map", map_blocks(6, [[0, 1]]))
    s.answer("expired", {"id": 6, "why": "ended"})
    s.ask("bye")
    return _of_holder(s, "A reader asks where blocks are that there are not, or not for it.")


def _mapped_otherwise() -> Document:
    s = _open(features=(_SHM, _SHM))
    s.ask("map", map_blocks(2, [[0, 4]]))
    s.answer("mapped", mapped(2, [[5, 3]]))
    s.add("bye")
    return _of_reader(s, "A holder names fewer blocks than it was asked for.")


def _long_welcome() -> Document:
    s = Session(reader=tiny(4))
    s.ask("hello", s.hello)
    welcome = padded({**s.welcome, "proof": spelling.NO_PROOF}, MAX_UNPROVEN + 1)
    digest = spelling.transcript(s.hello, welcome)
    s.answer("welcome", {**welcome, "proof": spelling.proof(TOKEN, "holder", digest).hex()})
    s.add("bye")
    return _of_reader(s, "A welcome is a byte longer than it may be before a proof.")


def _unasked_descriptor() -> Document:
    s = _open()
    s.describe("holder", tiny(8))
    s.add("bye")
    return _of_reader(s, "A descriptor comes a second time.")


def _unasked_answer() -> Document:
    s = _open()
    s.answer("ended", {"id": 1, "left": 0})
    s.add("bye")
    return _of_reader(s, "A request is answered twice.")


def _unasked_data() -> Document:
    s = _open()
    s.send(2, 0, pages([5]))
    s.add("bye")
    return _of_reader(s, "Data come of a read that nobody asked for.")


def _short_reads() -> Document:
    s = _open()
    whole = pages(_BLOCKS[:2])
    s.ask("read", read(2, 0, 2))
    s.send(2, 0, whole[:40])
    s.answer("read_end", {"id": 2, "num_bytes": 64})
    s.send(2, 40, whole[40:])
    s.ask("read", read(3, 0, 2))
    s.send(3, 0, whole)
    s.answer("read_end", {"id": 3, "num_bytes": 63})
    _read_well_and_leave(s, 4)
    said = "Two reads end with other bytes than they have: they fail alone, and nothing is said."
    return _of_reader(s, said, {4: pages([6])})


def _spoiled_reads() -> Document:
    s = _open()
    whole = pages(_BLOCKS[:2])
    s.ask("read", read(2, 0, 2))
    s.send(2, 33, whole[32:])
    s.add("cancel", {"id": 2})
    s.send(2, 0, whole[:32])
    s.answer("cancelled", {"id": 2})
    s.ask("read", read(3, 0, 2))
    s.send(3, 0, whole[:40])
    s.send(3, 39, whole[39:])
    s.add("cancel", {"id": 3})
    s.answer("read_end", {"id": 3, "num_bytes": 64})
    s.ask("read", read(4, 0, 2, checksums=True))
    s.send(4, 0, whole)
    s.add("cancel", {"id": 4})
    s.answer("error", {"id": 4, "code": "internal", "reason": ""})
    _read_well_and_leave(s, 5)
    said = "Data beyond a read, twice, or without the checksum: the reader cancels that read."
    return _of_reader(s, said, {5: pages([6])})


def _read_well_and_leave(s: Session, id_: int) -> None:
    s.ask("read", read(id_, 2, 1))
    s.send(id_, 0, pages([6]))
    s.answer("read_end", {"id": id_, "num_bytes": PAGE_BYTES})
    s.ask("done", about(id_ + 1))
    s.answer("ended", {"id": id_ + 1, "left": 0})
    s.ask("bye")
