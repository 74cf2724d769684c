"""Writes sessions down: who says what on which stream, and what each side is."""

from wire_vectors import spelling
from wire_vectors.message_cases import NONCE, OTHER_NONCE, SESSION
from wire_vectors.spelling import Document

TOKEN = b"a shared secret"
PAGE_BYTES = 32
NUM_BLOCKS = 8
TERM_MS = 30_000
FILE = "transload-1f2e3d4c5b6a-0123456789ab-fedcba987654"
"""Name of the file of the holder's pool, where that is shared."""

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


def pages(block_ids: list[int]) -> bytes:
    """What a read of whole blocks of the holder brings."""
    return b"".join(MEMORY[PAGE_BYTES * each :][:PAGE_BYTES] for each in block_ids)


class Session:
    """A conversation that is being written down.

    Args:
        num_streams: That the holder offers.
        reader: The reader's descriptor, if it has one.
        reader_token: The holder's is `TOKEN`.
        features: That the reader and the holder know.

    Attributes:
        steps: Its frames.
    """

    def __init__(
        self,
        num_streams: int = 0,
        reader: Document | None = None,
        reader_token: bytes = TOKEN,
        features: tuple[list[str], list[str]] = ([], []),
    ) -> None:
        self.steps: list[Document] = []
        self.hello: Document = {
            **{"type": "hello", "versions": [1], "engine": "decode-0", "generation": "17"},
            **{"nonce": NONCE, "max_data_bytes": 1 << 20},
        }
        self.welcome: Document = {
            **{"type": "welcome", "version": 1, "engine": "prefill-0", "generation": "4"},
            **{"session": SESSION, "nonce": OTHER_NONCE, "max_data_bytes": 1 << 16},
        }
        self._features = {"reader": features[0], "holder": features[1]}
        if features[0]:
            self.hello["features"] = features[0]
        if common := [each for each in features[0] if each in features[1]]:
            self.welcome["features"] = common
        if num_streams:
            self.welcome["max_streams"] = num_streams
        self._reader = reader
        self._reader_token = reader_token
        self._digest = spelling.transcript(self.hello, self.welcome)

    def ask(self, kind: str, fields: Document | None = None, on: int = 0) -> None:
        """A message of the reader, on a stream."""
        self._say("reader", kind, fields, on)

    def add(self, kind: str, fields: Document | None = None) -> None:
        """A message that the reader says by itself."""
        self._say("reader", kind, fields, 0)
        self.steps[-1]["follows"] = True

    def answer(self, kind: str, fields: Document | None = None, on: int = 0) -> None:
        """A message of the holder."""
        self._say("holder", kind, fields, on)

    def describe(self, sender: str, descriptor: Document) -> None:
        """A descriptor."""
        self._put(sender, 0, spelling.descriptor(descriptor), {"descriptor": descriptor})
        if sender == "reader":
            self.steps[-1]["follows"] = True

    def send(
        self, read: int, offset: int, content: bytes, stream: int = 0, *, check: bool = False
    ) -> None:
        """Bytes of a read."""
        frame = spelling.data(read, offset, content, has_checksum=check)
        said: Document = {"read": read, "offset": offset, "data": content.hex()}
        if check:
            said["checksum"] = int.from_bytes(frame[24:28], "little")
        self._put("holder", stream, frame, said)

    def greet(self) -> None:
        """Hello and welcome."""
        self.ask("hello", self.hello)
        self.answer("welcome", {**self.welcome, "proof": self.proof("holder", TOKEN)})

    def proof(self, label: str, token: bytes) -> str:
        """What a side proves by in this session."""
        return spelling.proof(token, label, self._digest).hex()

    def prove(self) -> None:
        """The reader's proof."""
        self.add("prove", {"proof": self.proof("reader", self._reader_token)})

    def accept(self) -> None:
        """All of the opening."""
        assert self._reader is not None
        self.greet()
        self.prove()
        self.describe("reader", self._reader)
        self.answer("accept", {"verdict": "lossless"})
        self.describe("holder", tiny(NUM_BLOCKS))

    def attach(self, stream: int) -> None:
        """A data stream."""
        self.ask("attach", self.attachment(stream), stream)
        self.answer("attached", {"stream": stream}, stream)

    def attachment(self, stream: int, **other: str) -> Document:
        """Fields of an `attach`, with the right proof unless told otherwise."""
        key = spelling.proof(TOKEN, "session", self._digest)
        proof = spelling.stream_proof(key, SESSION, stream).hex()
        return {"session": SESSION, "stream": stream, "proof": proof, **other}

    def document(
        self,
        description: str,
        block_ids: list[int] | None = None,
        *,
        num_tokens: int = 1,
        readers: int = 1,
        of: tuple[str, ...] = ("holder", "reader"),
        reads: dict[int, bytes] | None = None,
    ) -> Document:
        """The session as a file.

        Args:
            description: A sentence.
            block_ids: Of the handoff, if there is one.
            num_tokens: Likewise.
            readers: Likewise.
            of: The sides that behave as they should.
            reads: Payloads of those that become complete.
        """
        handoff = None if block_ids is None else _handoff(block_ids, num_tokens, readers)
        sides = {"holder": self._holder_is(handoff), "reader": self._reader_is()}
        whole = {str(read): payload.hex() for read, payload in (reads or {}).items()}
        found: Document = {"description": description}
        for side in of:
            known = self._features[side]
            found[side] = {**sides[side], "features": known} if known else sides[side]
            if side == "holder" and known:
                found[side]["files"] = {"kv": FILE}
        return {**found, "reads": whole, "steps": self.steps}

    def _holder_is(self, handoff: Document | None) -> Document:
        named = {key: self.welcome[key] for key in _NAMED}
        return {
            "token": TOKEN.hex(),
            **named,
            "session": SESSION,
            "max_streams": self.welcome.get("max_streams", 0),
            "descriptor": tiny(NUM_BLOCKS),
            "pools": {"kv": MEMORY.hex()},
            "handoff": handoff,
        }

    def _reader_is(self) -> Document:
        named = {key: self.hello[key] for key in _NAMED}
        return {"token": self._reader_token.hex(), **named, "descriptor": self._reader}

    def _say(self, sender: str, kind: str, fields: Document | None, on: int) -> None:
        document = {"type": kind, **(fields or {})}
        self._put(sender, on, spelling.message(document), {"message": document})

    def _put(self, sender: str, stream: int, frame: bytes, said: Document) -> None:
        self.steps.append({"from": sender, "stream": stream, **said, "bytes": frame.hex()})


_NAMED = ("engine", "generation", "nonce", "max_data_bytes")


def _handoff(block_ids: list[int], num_tokens: int, readers: int) -> Document:
    return {
        **{"handoff": "cmpl-7", "lease": "4-0", "readers": readers, "num_tokens": num_tokens},
        **{"expires_ms": TERM_MS, "tables": {"0": block_ids}},
    }


OPEN: Document = {"id": 1, "handoff": "cmpl-7", "lease": "4-0", "reader": "decode-0"}
FORGO: Document = {"handoff": "cmpl-7", "lease": "4-0"}


def about(id_: int, handoff: str = "cmpl-7") -> Document:
    """Fields of a request about a handoff that is open."""
    return {"id": id_, "handoff": handoff}


def read(id_: int, first: int, count: int, **more: object) -> Document:
    """Fields of a read."""
    return {**about(id_), "group": "attention", "blocks": [[first, count]], **more}


def lease(num_blocks: int, num_tokens: int, **more: object) -> Document:
    """Fields of the answer to `OPEN`."""
    tables = [{"table": 0, "num_blocks": num_blocks}]
    counts = {"num_tokens": num_tokens, "readers": 1, "left": 1, "expires_ms": TERM_MS}
    return {"id": 1, "tables": tables, **counts, **more}


def map_blocks(id_: int, blocks: list[list[int]]) -> Document:
    """Fields of a `map`."""
    return {**about(id_), "table": 0, "blocks": blocks}


def mapped(id_: int, blocks: list[list[int]]) -> Document:
    """Fields of the answer."""
    file = {"pool": "kv", "name": FILE, "num_bytes": len(MEMORY)}
    return {"id": id_, "pools": [file], "blocks": blocks}
