"""Whole sessions, frame by frame: who says what on which stream."""

from __future__ import annotations

from typing import Any

from wire_vectors import spelling
from wire_vectors.message_cases import NONCE, OTHER_NONCE, SESSION
from wire_vectors.spelling import Document

TOKEN = b"a shared secret"
PAGE_BYTES = 32
NUM_BLOCKS = 8
MEMORY = bytes((7 * at + 3) % 256 for at in range(NUM_BLOCKS * PAGE_BYTES))
"""The holder's one pool."""


def tiny(num_blocks: int, *, is_transposed: bool = True, revision: str = "1") -> Document:
    """The descriptor of section 11 of `ABI.md`, with so many blocks."""
    n, d = (16, 32) if is_transposed else (64, 16)
    shape = {"D": 4, "H": 1, "N": 2}
    k: Document = {"bits": 16, "dtype": "bf16", "role": "k", "shape": shape}
    k["terms"] = [["N", 1, 2, n], ["D", 1, 4, d]]
    v: Document = {"base_bits": 128, "bits": 16, "dtype": "bf16", "role": "v", "shape": shape}
    v["terms"] = [["N", 1, 2, 64], ["D", 1, 4, 16]]
    place = {"block_stride": PAGE_BYTES, "page_bytes": PAGE_BYTES, "pools": ["kv"]}
    group: Document = {"id": "attention", "kind": "full", "layers": [0], "null_block": 0}
    group |= {"places": [place], "roles": [k, v], "tokens_per_block": 2}
    rope = {"state": "none"}
    model = {"name": "tiny", "num_layers": 1, "revision": revision, "rope": rope}
    pool: Document = {"align": 64, "id": "kv", "memory": "host", "num_blocks": num_blocks}
    pool["num_bytes"] = num_blocks * PAGE_BYTES
    return {"abi": "kvabi/1", "groups": [group], "model": model, "pools": [pool]}


class Session:
    """A conversation that is being written down.

    Attributes:
        steps: Its frames.
    """

    def __init__(self, token: bytes, num_streams: int = 0) -> None:
        self.steps: list[Document] = []
        self._token = token
        self._hello: Document = {
            **{"type": "hello", "versions": [1], "engine": "decode-0", "generation": "17"},
            **{"nonce": NONCE, "max_data_bytes": 1 << 20},
        }
        self._welcome: Document = {
            **{"type": "welcome", "version": 1, "engine": "prefill-0", "generation": "4"},
            **{"session": SESSION, "nonce": OTHER_NONCE, "max_data_bytes": 1 << 16},
        }
        if num_streams:
            self._welcome["max_streams"] = num_streams
        self._digest = spelling.transcript(self._hello, self._welcome)

    def ask(self, kind: str, fields: Document | None = None, on: int = 0) -> None:
        """A message of the reader, on a stream."""
        self._say("reader", kind, fields, on)

    def answer(self, kind: str, fields: Document | None = None, on: int = 0) -> None:
        """A message of the holder."""
        self._say("holder", kind, fields, on)

    def describe(self, sender: str, descriptor: Document) -> None:
        """A descriptor."""
        self._put(sender, 0, spelling.descriptor(descriptor), {"descriptor": descriptor})

    def send(self, read: int, offset: int, content: bytes, stream: int, *, check: bool) -> None:
        """Bytes of a read."""
        frame = spelling.data(read, offset, content, has_checksum=check)
        said: Document = {"read": read, "offset": offset, "data": content.hex()}
        if check:
            said["checksum"] = int.from_bytes(frame[24:28], "little")
        self._put("holder", stream, frame, said)

    def greet(self) -> None:
        """Hello and welcome."""
        proof = spelling.proof(self._token, "holder", self._digest).hex()
        self.ask("hello", self._hello)
        self.answer("welcome", {**self._welcome, "proof": proof})

    def prove(self, token: bytes | None = None) -> None:
        """The reader's proof, made with the session's token unless told otherwise."""
        key = self._token if token is None else token
        self.ask("prove", {"proof": spelling.proof(key, "reader", self._digest).hex()})

    def accept(self, reader: Document) -> None:
        """All of the opening."""
        self.greet()
        self.prove()
        self.describe("reader", reader)
        self.answer("accept", {"verdict": "lossless"})
        self.describe("holder", tiny(NUM_BLOCKS))

    def attach(self, stream: int) -> None:
        """A data stream."""
        key = spelling.proof(self._token, "session", self._digest)
        proof = spelling.stream_proof(key, SESSION, stream).hex()
        self.ask("attach", {"session": SESSION, "stream": stream, "proof": proof}, stream)
        self.answer("attached", {"stream": stream}, stream)

    def _say(self, sender: str, kind: str, fields: Document | None, on: int) -> None:
        document = {"type": kind, **(fields or {})}
        self._put(sender, on, spelling.message(document), {"message": document})

    def _put(self, sender: str, stream: int, frame: bytes, said: Document) -> None:
        self.steps.append({"from": sender, "stream": stream, **said, "bytes": frame.hex()})


def pages(block_ids: list[int]) -> bytes:
    """What a read of whole blocks of the holder brings."""
    return b"".join(MEMORY[PAGE_BYTES * each :][:PAGE_BYTES] for each in block_ids)


_OPEN: Document = {"id": 1, "handoff": "cmpl-7", "lease": "4-0", "reader": "decode-0"}
_FORGO: Document = {"handoff": "cmpl-7", "lease": "4-0"}


def _about(id_: int) -> Document:
    return {"id": id_, "handoff": "cmpl-7"}


def _read(id_: int, first: int, count: int, **more: object) -> Document:
    return {**_about(id_), "group": "attention", "blocks": [[first, count]], **more}


def _lease(num_blocks: int, num_tokens: int) -> Document:
    tables = [{"table": 0, "num_blocks": num_blocks}]
    counts = {"num_tokens": num_tokens, "readers": 1, "left": 1, "expires_ms": 30000}
    return {"id": 1, "tables": tables, **counts}


def two_streams() -> Document:
    """Four blocks by two reads on two data streams."""
    block_ids = [5, 2, 6, 1]
    first, second = pages(block_ids[:2]), pages(block_ids[2:])
    s = Session(TOKEN, num_streams=2)
    s.accept(tiny(4, is_transposed=False))
    s.attach(1)
    s.attach(2)
    s.ask("open", _OPEN)
    s.answer("lease", _lease(4, 7))
    s.ask("read", _read(2, 0, 2, form="page", stream=1, checksums=True))
    s.ask("read", _read(3, 2, 2, stream=2))
    s.send(2, 0, first[:40], 1, check=True)
    s.send(3, 0, second, 2, check=False)
    s.answer("read_end", {"id": 3, "num_bytes": 64})
    s.send(2, 40, first[40:], 1, check=True)
    s.answer("read_end", {"id": 2, "num_bytes": 64})
    s.ask("renew", _about(4))
    s.answer("confirmed", {"id": 4, "expires_ms": 30000})
    s.ask("done", _about(5))
    s.answer("ended", {"id": 5, "left": 0})
    s.ask("bye")
    return _session("Four blocks by two reads, each on a data stream of its own.", s, block_ids)


def control_stream() -> Document:
    """The session that `WIRE.md` prints: one block, all on the control stream."""
    s = Session(TOKEN)
    s.accept(tiny(2, is_transposed=False))
    s.ask("open", _OPEN)
    s.answer("lease", _lease(1, 2))
    s.ask("read", _read(2, 0, 1, checksums=True))
    s.send(2, 0, pages([5]), 0, check=True)
    s.answer("read_end", {"id": 2, "num_bytes": 32})
    s.ask("done", _about(3))
    s.answer("ended", {"id": 3, "left": 0})
    s.ask("bye")
    return _session("One block on the control stream: the session of WIRE.md.", s, [5])


def refusal() -> Document:
    """The reader's model has another revision."""
    s = Session(TOKEN)
    s.greet()
    s.prove()
    s.describe("reader", tiny(2, revision="2"))
    s.answer("refuse", {"path": "model.revision", "reason": "expected '1', got '2'"})
    return _session("The two sides hold different models.", s, [])


def expired() -> Document:
    """A lease ends amid a read, and stays ended."""
    s = Session(TOKEN)
    s.accept(tiny(4, is_transposed=False))
    s.ask("open", _OPEN)
    s.answer("lease", _lease(2, 4))
    s.ask("read", _read(2, 0, 2))
    s.send(2, 0, pages([5]), 0, check=False)
    s.answer("expired", {"id": 2, "why": "expired"})
    s.ask("confirm", _about(3))
    s.answer("expired", {"id": 3, "why": "expired"})
    s.ask("open", {**_OPEN, "id": 4, "handoff": "cmpl-6"})
    s.answer("expired", {"id": 4, "why": "unknown"})
    s.ask("bye", {"reason": "nothing is left"})
    return _session("A lease ends amid a read; its bytes are worthless.", s, [5, 2])


def cancelled() -> Document:
    """The reader wants no more of a read."""
    s = Session(TOKEN)
    s.accept(tiny(4, is_transposed=False))
    s.ask("open", _OPEN)
    s.answer("lease", _lease(2, 3))
    s.ask("read", _read(2, 0, 2))
    s.send(2, 0, pages([5])[:8], 0, check=False)
    s.ask("cancel", {"id": 2})
    s.send(2, 8, pages([5])[8:16], 0, check=False)
    s.answer("cancelled", {"id": 2})
    s.ask("release", _about(3))
    s.answer("ended", {"id": 3, "left": 0})
    s.ask("bye")
    return _session("A read is cancelled; a frame of it was under way.", s, [5, 2])


def forgone() -> Document:
    """A router gives up what nobody will read."""
    s = Session(TOKEN)
    s.greet()
    s.prove()
    s.ask("forgo", {"id": 1, **_FORGO})
    s.answer("ended", {"id": 1, "left": 0})
    s.ask("forgo", {"id": 2, **_FORGO})
    s.answer("expired", {"id": 2, "why": "ended"})
    s.ask("bye")
    return _session("A handoff is given up by one who has no descriptor.", s, [5])


def wrong_token() -> Document:
    """The reader does not know the token, and does not look at the holder's proof."""
    s = Session(TOKEN)
    s.greet()
    s.prove(b"another secret")
    reason = "prove.proof: the peer does not know this side's token"
    s.answer("error", {"code": "bad_proof", "reason": reason})
    return _session("The reader does not know the token.", s, [])


def sessions() -> dict[str, Document]:
    """All of them, by name."""
    return {
        "two-streams": two_streams(),
        "control-stream": control_stream(),
        "refusal": refusal(),
        "expired-lease": expired(),
        "cancelled-read": cancelled(),
        "forgone": forgone(),
        "wrong-token": wrong_token(),
    }


def _session(description: str, session: Session, block_ids: list[int]) -> Document:
    found: dict[str, Any] = {"description": description, "token": TOKEN.hex()}
    found["memory"] = {"kv": MEMORY.hex()}
    found["handoff"] = {"tables": {"0": block_ids}}
    found["steps"] = session.steps
    return found
