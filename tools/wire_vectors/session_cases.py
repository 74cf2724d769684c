"""Whole sessions, frame by frame: who says what on which stream."""

from wire_vectors.session_faults import faults_of_holders, faults_of_readers
from wire_vectors.session_writer import (
    FORGO,
    OPEN,
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


def two_streams() -> Document:
    """Four blocks by two reads on two data streams."""
    block_ids = [5, 2, 6, 1]
    first, second = pages(block_ids[:2]), pages(block_ids[2:])
    s = Session(num_streams=2, reader=tiny(4, is_transposed=False))
    s.accept()
    s.attach(1)
    s.attach(2)
    s.ask("open", OPEN)
    s.answer("lease", lease(4, 7))
    s.ask("read", read(2, 0, 2, form="page", stream=1, checksums=True))
    s.ask("read", read(3, 2, 2, stream=2))
    s.send(2, 0, first[:40], 1, check=True)
    s.send(3, 0, second, 2, check=False)
    s.answer("read_end", {"id": 3, "num_bytes": 64})
    s.send(2, 40, first[40:], 1, check=True)
    s.answer("read_end", {"id": 2, "num_bytes": 64})
    s.ask("renew", about(4))
    s.answer("confirmed", {"id": 4, "expires_ms": 30000})
    s.ask("done", about(5))
    s.answer("ended", {"id": 5, "left": 0})
    s.ask("bye")
    return s.document(
        "Four blocks by two reads, each on a data stream of its own.",
        block_ids,
        num_tokens=7,
        reads={2: first, 3: second},
    )


def control_stream() -> Document:
    """The session that `WIRE.md` prints: one block, all on the control stream."""
    s = Session(reader=tiny(2, is_transposed=False))
    s.accept()
    s.ask("open", OPEN)
    s.answer("lease", lease(1, 2))
    s.ask("read", read(2, 0, 1, checksums=True))
    s.send(2, 0, pages([5]), 0, check=True)
    s.answer("read_end", {"id": 2, "num_bytes": 32})
    s.ask("done", about(3))
    s.answer("ended", {"id": 3, "left": 0})
    s.ask("bye")
    return s.document(
        "One block on the control stream: the session of WIRE.md.",
        [5],
        num_tokens=2,
        reads={2: pages([5])},
    )


def refusal() -> Document:
    """The reader's model has another revision."""
    reader = tiny(2, revision="2")
    s = Session(reader=reader)
    s.greet()
    s.prove()
    s.describe("reader", reader)
    s.answer("refuse", {"path": "model.revision", "reason": "expected '1', got '2'"})
    return s.document("The two sides hold different models.")


def expired() -> Document:
    """A lease ends amid a read, and stays ended."""
    s = Session(reader=tiny(4, is_transposed=False))
    s.accept()
    s.ask("open", OPEN)
    s.answer("lease", lease(2, 4))
    s.ask("read", read(2, 0, 2))
    s.send(2, 0, pages([5]), 0, check=False)
    s.answer("expired", {"id": 2, "why": "expired"})
    s.ask("confirm", about(3))
    s.answer("expired", {"id": 3, "why": "expired"})
    s.ask("open", {**OPEN, "id": 4, "handoff": "cmpl-6"})
    s.answer("expired", {"id": 4, "why": "unknown"})
    s.ask("bye", {"reason": "nothing is left"})
    return s.document("A lease ends amid a read; its bytes are worthless.", [5, 2], num_tokens=4)


def cancelled() -> Document:
    """The reader wants no more of a read."""
    s = Session(reader=tiny(4, is_transposed=False))
    s.accept()
    s.ask("open", OPEN)
    s.answer("lease", lease(2, 3))
    s.ask("read", read(2, 0, 2))
    s.send(2, 0, pages([5])[:8], 0, check=False)
    s.ask("cancel", {"id": 2})
    s.send(2, 8, pages([5])[8:16], 0, check=False)
    s.answer("cancelled", {"id": 2})
    s.ask("release", about(3))
    s.answer("ended", {"id": 3, "left": 0})
    s.ask("bye")
    return s.document("A read is cancelled; a frame of it was under way.", [5, 2], num_tokens=3)


def forgone() -> Document:
    """A router gives up what nobody will read."""
    s = Session()
    s.greet()
    s.prove()
    s.ask("forgo", {"id": 1, **FORGO})
    s.answer("ended", {"id": 1, "left": 0})
    s.ask("forgo", {"id": 2, **FORGO})
    s.answer("expired", {"id": 2, "why": "ended"})
    s.ask("bye")
    return s.document("A handoff is given up by one who has no descriptor.", [5])


def shared_memory() -> Document:
    """Blocks are read where they are; the copy counts once it is confirmed."""
    s = Session(reader=tiny(4, is_transposed=False), features=(["shm", "x_more"], ["shm"]))
    s.accept()
    s.ask("open", OPEN)
    s.answer("lease", lease(4, 7))
    s.ask("map", map_blocks(2, [[0, 4]]))
    s.answer("mapped", mapped(2, [[5, 2], [2, 1], [1, 1]]))
    s.ask("confirm", about(3))
    s.answer("confirmed", {"id": 3, "expires_ms": 30000})
    s.ask("map", map_blocks(4, [[1, 1], [3, 1]]))
    s.answer("mapped", mapped(4, [[6, 1], [1, 1]]))
    s.ask("confirm", about(5))
    s.answer("confirmed", {"id": 5, "expires_ms": 30000})
    s.ask("done", about(6))
    s.answer("ended", {"id": 6, "left": 0})
    s.ask("bye")
    return s.document("Blocks are read in shared memory.", [5, 6, 2, 1], num_tokens=7)


def wrong_token() -> Document:
    """The reader has no token: it proves with the empty key, and looks at no proof."""
    s = Session(reader_token=b"")
    s.greet()
    s.prove()
    reason = "prove.proof: the peer does not know this side's token"
    s.answer("error", {"code": "bad_proof", "reason": reason})
    return s.document("The reader has no token, and the holder has one.")


def sessions() -> dict[str, Document]:
    """All of them, by name."""
    return {
        "two-streams": two_streams(),
        "control-stream": control_stream(),
        "refusal": refusal(),
        "expired-lease": expired(),
        "cancelled-read": cancelled(),
        "forgone": forgone(),
        "shared-memory": shared_memory(),
        "wrong-token": wrong_token(),
        **faults_of_readers(),
        **faults_of_holders(),
    }
