"""What was written from the wire protocol's document alone agrees with it and with the vectors."""

import ast
import copy
import hashlib
import json
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conformance import wire_from_the_document_service
from conformance.wire_from_the_document import connect_reader, read_handoff, serve_handoff
from conformance.wire_from_the_document_descriptor import Tree, read_descriptor
from conformance.wire_from_the_document_frames import (
    Frame,
    FrameReader,
    prove,
    prove_stream,
    transcript,
    write_frame,
)
from conformance.wire_from_the_document_holder import Settings as HolderSettings
from conformance.wire_from_the_document_messages import (
    Message,
    decode_message,
    encode_message,
    without_defaults,
)
from conformance.wire_from_the_document_packing import RefusedError, pack, unpack
from conformance.wire_from_the_document_payload import check_read, num_payload_bytes, put, runs_of
from conformance.wire_from_the_document_play import WAIT_S, Session, play
from conformance.wire_from_the_document_reader import EndedError, Reader
from conformance.wire_from_the_document_reader import Settings as ReaderSettings
from conformance.wire_from_the_document_reads import Read as ReadOfTheReader
from conformance.wire_from_the_document_service import Read
from conformance.wire_from_the_document_sessions import (
    DEEDS,
    ENDED_DEEDS,
    TOKEN,
    Clock,
    Pair,
    live_holder,
    live_reader,
    share,
)
from conformance.wire_from_the_document_streams import Stream

HERE = Path(__file__).parent
WIRE = HERE.parent / "vectors" / "wire"
MODULES = sorted(HERE.glob("wire_from_the_document*.py"))
SESSIONS = {path.stem: Session(path) for path in sorted((WIRE / "sessions").glob("*.json"))}


def load(name: str) -> Any:
    return json.loads((WIRE / name).read_text())


def by_name(vectors: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[v["name"] for v in vectors])


PAYLOADS = load("payloads.json")


# --- messages, frames, proofs --------------------------------------------------------------------


@by_name(load("messages.json"))
def test_a_message(vector: dict[str, Any]) -> None:
    body, sender = bytes.fromhex(vector["body"]), vector["sender"]
    message = decode_message(body, sender)
    assert without_defaults(message, sender) == vector["message"]
    assert (encode_message(message, sender) == body) == vector["is_canonical"]


@by_name(load("refused.json"))
def test_a_body_that_is_no_message(vector: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        decode_message(bytes.fromhex(vector["body"]), vector["sender"])


def frames_of(vector: dict[str, Any], size: int) -> tuple[list[Frame], str, int]:
    """The frames, the part that is refused, and the bytes that were seen by then."""
    reader = FrameReader(vector["max_data_bytes"], vector["max_descriptor_bytes"])
    stream, found, at = bytes.fromhex(vector["stream"]), [], 0
    while at < len(stream):
        reader.feed(stream[at : at + size])
        at = min(at + size, len(stream))
        try:
            while (frame := reader.next()) is not None:
                found.append(frame)
        except RefusedError as error:
            return found, error.path, at
    return found, "", 0


def as_json(frame: Frame) -> dict[str, Any]:
    if frame.kind != 2:
        return {{1: "message", 3: "descriptor"}[frame.kind]: frame.body.hex()}
    found = {"read": frame.read, "offset": frame.offset, "data": frame.body.hex()}
    return found if frame.checksum is None else {**found, "checksum": frame.checksum}


@by_name(load("frames.json"))
def test_frames_of_a_stream_that_is_cut_anywhere(vector: dict[str, Any]) -> None:
    for size in (1, 3, 7, 8, 33, 1 << 20):
        found, refused, seen = frames_of(vector, size)
        assert [as_json(frame) for frame in found] == vector["frames"]
        assert refused == vector["refused"]
        assert size > 1 or seen == vector["refused_after"]


@by_name(load("proofs.json"))
def test_a_proof(vector: dict[str, Any]) -> None:
    token, hello, welcome = (bytes.fromhex(vector[k]) for k in ("token", "hello", "welcome"))
    digest = transcript(hello, welcome)
    key = prove(token, "session", digest)
    streams = {n: prove_stream(key, vector["session"], int(n)) for n in vector["stream_proofs"]}
    assert digest.hex() == vector["transcript"]
    assert prove(token, "holder", digest).hex() == vector["holder_proof"]
    assert prove(token, "reader", digest).hex() == vector["reader_proof"]
    assert key.hex() == vector["session_key"]
    assert {n: proof.hex() for n, proof in streams.items()} == vector["stream_proofs"]
    assert unpack(welcome)["proof"] == vector["holder_proof"]


# --- payloads ------------------------------------------------------------------------------------


def descriptor_of(name: str) -> Tree:
    return read_descriptor(pack(load(f"descriptors/{name}.json")))


def read_of(fields: dict[str, Any]) -> Message:
    return decode_message(pack({"type": "read", "id": 1, "handoff": "h", **fields}), "reader")


@by_name(PAYLOADS["reads"])
def test_a_payload(vector: dict[str, Any]) -> None:
    descriptor, read = descriptor_of(vector["descriptor"]), read_of(vector["read"])
    check_read(descriptor, read)
    runs = runs_of(descriptor, read, vector["block_ids"])
    assert [list(run) for run in runs] == vector["runs"]
    assert num_payload_bytes(descriptor, read) == vector["num_bytes"]


@pytest.mark.parametrize("vector", PAYLOADS["refused"])
def test_a_read_that_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        check_read(descriptor_of(vector["descriptor"]), read_of(vector["read"]))
    assert refused.value.path == vector["path"]


def test_payloads_are_counted_by_the_canonical_form() -> None:
    given = load("descriptors/sglang-bf16.json")
    other = copy.deepcopy(given)
    group = other["groups"][0]
    group["places"].reverse()
    group["roles"].reverse()
    for role in group["roles"]:
        role["place"] = len(group["places"]) - 1 - role.get("place", 0)
    assert len(group["places"]) > 1
    assert read_descriptor(pack(other)) == read_descriptor(pack(given))


# --- recorded sessions ---------------------------------------------------------------------------


def of_side(side: str) -> list[str]:
    return [name for name, session in SESSIONS.items() if side in session.sides]


def test_every_recorded_reader_is_played() -> None:
    assert {*DEEDS, *ENDED_DEEDS} == {*of_side("reader")}


@pytest.mark.parametrize("name", of_side("holder"))
def test_the_holder_of_a_recorded_session(name: str) -> None:
    session = Session(WIRE / "sessions" / f"{name}.json")
    holder = live_holder(session)
    port = holder.listen()
    try:
        assert play(session, "reader", lambda: socket.create_connection(("127.0.0.1", port))) == []
    finally:
        holder.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        yield server


@pytest.mark.parametrize("name", DEEDS)
def test_the_reader_of_a_recorded_session(name: str, listener: socket.socket) -> None:
    session = Session(WIRE / "sessions" / f"{name}.json")
    with ThreadPoolExecutor(1) as pool:
        played = pool.submit(play, session, "holder", lambda: listener.accept()[0])
        reader = live_reader(session, listener)
        reader.start()
        DEEDS[name](reader)
        assert played.result(WAIT_S) == []


@pytest.mark.parametrize(("name", "deed", "why"), [(n, *d) for n, d in ENDED_DEEDS.items()])
def test_the_reader_of_a_recorded_session_that_ends_early(
    name: str, deed: Callable[[Reader], None], why: str, listener: socket.socket
) -> None:
    session = Session(WIRE / "sessions" / f"{name}.json")
    with ThreadPoolExecutor(1) as pool:
        played = pool.submit(play, session, "holder", lambda: listener.accept()[0])
        reader = live_reader(session, listener)
        with pytest.raises(EndedError, match=why):
            begin_and_do(reader, deed)
        assert played.result(WAIT_S) == []


def begin_and_do(reader: Reader, deed: Callable[[Reader], None]) -> None:
    reader.start()
    deed(reader)


# --- the two sides over loopback -----------------------------------------------------------------


CONTROL = SESSIONS["control-stream"].sides["holder"]
TINY = CONTROL["descriptor"]
MEMORY = {pool: bytes.fromhex(data) for pool, data in CONTROL["pools"].items()}


def served(**more: Any) -> Pair:
    return Pair(TINY, MEMORY, **more)


def bytes_of(pool: Tree) -> bytes:
    return b"".join(
        hashlib.sha256(i.to_bytes(4)).digest() for i in range(pool["num_bytes"] // 32 + 1)
    )


@pytest.mark.parametrize("name", sorted({v["descriptor"] for v in PAYLOADS["reads"]}))
def test_payloads_arrive_where_they_were(name: str) -> None:
    vectors = [v for v in PAYLOADS["reads"] if v["descriptor"] == name]
    descriptor = descriptor_of(name)
    descriptor["model"]["revision"] = "1"  # without one nobody can tell whether models are the same
    memory = {p["id"]: bytes_of(p)[: p["num_bytes"]] for p in descriptor["pools"]}
    tables: dict[int, list[int]] = {}
    reads: list[dict[str, Any]] = []
    for i, vector in enumerate(vectors):
        read = vector["read"]
        group = next(g for g in descriptor["groups"] if g["id"] == read["group"])
        blocks = tables.setdefault(group["table"], [])
        at = [[len(blocks), len(vector["block_ids"])]]
        blocks += vector["block_ids"]
        reads.append({**read, "blocks": at, "stream": i % 3, "checksums": bool(i % 2)})
    settings = HolderSettings(cut=lambda read, at: 1 + (at + read.id) % 700)
    holder, port = serve_handoff(TOKEN, descriptor, memory, "h", "l", tables, 9, settings=settings)
    try:
        found = read_handoff("127.0.0.1", port, TOKEN, descriptor, "h", "l", reads)
    finally:
        holder.close()
    assert found["verdict"] == "identical"
    assert found["ended"]["left"] == 0
    for vector, payload in zip(vectors, found["payloads"], strict=True):
        image = {pool: bytearray(len(data)) for pool, data in memory.items()}
        put(image, vector["runs"], payload)
        for pool, first, count in vector["runs"]:
            assert image[pool][first : first + count] == memory[pool][first : first + count]


def test_a_reader_without_the_token_hears_why_it_is_refused() -> None:
    with served() as pair, pytest.raises(EndedError) as ended:
        pair.connect(token=b"")
    assert ended.value.message is not None
    assert ended.value.message["code"] == "bad_proof"


def test_a_reader_does_not_trust_a_holder_with_another_token() -> None:
    with served() as pair, pytest.raises(EndedError, match=r"welcome\.proof"):
        pair.connect(token=b"another secret")


def test_a_lossy_conversion_needs_leave() -> None:
    other = copy.deepcopy(TINY)
    for role in other["groups"][0]["roles"]:
        role["dtype"] = "f16"
    with served() as pair:
        with pytest.raises(EndedError, match="lossy"):
            pair.connect(other)
        assert pair.connect(other, may_lossy=True).verdict == "lossy"


def test_one_reader_too_many() -> None:
    with served() as pair:
        assert share(pair.connect())["type"] == "lease"
        late = pair.connect().open("cmpl-7", "4-0", "decode-1")
    assert late["code"] == "too_many"


def test_one_handoff_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_from_the_document_service, "MAX_OPEN", 1)
    with served() as pair:
        pair.holder.store.leases.grant("cmpl-8", "4-0", {0: [1]}, 2)
        reader = pair.connect()
        assert share(reader)["type"] == "lease"
        assert share(reader)["type"] == "lease"
        assert reader.open("cmpl-8", "4-0", "decode-0")["code"] == "too_many"
        reader.about("done", "cmpl-7")
        assert reader.open("cmpl-8", "4-0", "decode-0")["type"] == "lease"


def test_a_share_is_the_same_in_another_session() -> None:
    with served() as pair:
        share(pair.connect(generation="1"))
        second = pair.connect()
        assert share(second)["left"] == 1
        second.about("release", "cmpl-7")
        assert share(pair.connect())["why"] == "ended"


@pytest.mark.parametrize(
    ("lease", "handoff", "why"), [("4-1", "cmpl-7", "other_lease"), ("4-0", "cmpl-8", "unknown")]
)
def test_what_is_not_held(lease: str, handoff: str, why: str) -> None:
    with served() as pair:
        assert pair.connect().open(handoff, lease, "decode-0")["why"] == why


def test_a_handoff_that_is_not_open() -> None:
    with served() as pair:
        reader = pair.connect()
        reader.cancel(reader.read("cmpl-7", "attention", [[0, 1]]))
        assert reader.about("confirm", "cmpl-7")["code"] == "out_of_turn"
        assert share(reader)["type"] == "lease"


@pytest.mark.parametrize(
    ("blocks", "fields"), [([[1, 1]], {}), ([[2, 1]], {}), ([[0, 1]], {"stream": 3})]
)
def test_a_read_of_what_is_not_there(blocks: list[list[int]], fields: dict[str, int]) -> None:
    with served(blocks=(5, 0)) as pair:
        reader = pair.connect()
        assert share(reader)["tables"][0]["null"] == [[1, 1]]
        number = reader.read("cmpl-7", "attention", blocks, **fields)
        assert reader.finish(number) is None
        answer = reader.reads[number].answer
    assert answer is not None
    assert answer["code"] == "bad_read"


def test_a_handoff_of_another_generation_is_not_opened() -> None:
    with served() as pair, pytest.raises(ValueError, match="generation"):
        pair.connect().open("cmpl-7", "4-0", "decode-0", generation="0")


def test_a_stranger_on_a_data_stream_does_no_harm() -> None:
    with served() as pair:
        reader = pair.connect()
        session = reader.welcome["session"]
        stranger = Stream(socket.create_connection(("127.0.0.1", pair.port)))
        stranger.say("reader", "attach", session=session, stream=1, proof="0" * 64)
        assert stranger.hear("holder")["code"] == "bad_proof"
        stranger.close()
        assert reader.attach(1)["type"] == "attached"
        assert reader.attach(1)["code"] == "out_of_turn"
        assert share(reader)["type"] == "lease"


def test_a_lost_data_stream_fails_its_reads_alone() -> None:
    lost = threading.Event()

    def cut(read: Read, at: int) -> int:
        return 8 if at == 0 or lost.wait(WAIT_S) else 0

    with served(settings=HolderSettings(generation="4", cut=cut)) as pair:
        reader = pair.connect()
        reader.attach(1)
        share(reader)
        number = reader.read("cmpl-7", "attention", [[0, 2]], stream=1)
        assert reader.pump_until_bytes(number, 8)
        pair.holder.sessions[reader.welcome["session"]].service.lose_stream(1)
        lost.set()
        assert reader.finish(number) is None
        answer = reader.reads[number].answer
        other = reader.read("cmpl-7", "attention", [[0, 1]])
        assert reader.finish(other) is not None
    assert answer is not None
    assert answer["type"] == "error"


def test_a_lease_is_renewed_at_half_of_its_time() -> None:
    clock = Clock()
    with served() as pair:
        reader = pair.connect(clock=clock)
        share(reader)
        clock.now_s = 15.0
        reader.about("confirm", "cmpl-7")
        reader.about("confirm", "cmpl-7")
        kinds = [answer["type"] for answer in reader.answers.values()]
    assert kinds == ["lease", "confirmed", "confirmed", "confirmed"]


def test_a_holder_that_says_nothing_is_left(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(EndedError, match="in time"):
        connect_reader("127.0.0.1", port, TOKEN, TINY, ReaderSettings(opening_s=0.05))


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bad_frame"),
        (write_frame(1, pack({"type": "ping"})), "bad_message"),
        (write_frame(1, pack({"type": "bye"})), "out_of_turn"),
    ],
)
def test_first_words_that_are_none(first: bytes, code: str) -> None:
    with served() as pair:
        stranger = Stream(socket.create_connection(("127.0.0.1", pair.port)))
        stranger.send(first)
        assert stranger.hear("holder")["code"] == code
        stranger.close()


@pytest.mark.parametrize(
    ("offset", "data", "stream", "checksum", "why"),
    [
        (20, b"01234", 1, zlib.crc32(b"01234"), "beyond"),
        (0, b"01234", 0, zlib.crc32(b"01234"), "another stream"),
        (0, b"01234", 1, None, "without a checksum"),
        (0, b"01234", 1, 7, "wrong checksum"),
        (8, b"01234", 1, zlib.crc32(b"01234"), "twice"),
    ],
)
def test_data_that_fail_a_read(
    offset: int, data: bytes, stream: int, checksum: int | None, why: str
) -> None:
    read = ReadOfTheReader({"stream": 1, "checksums": True, "id": 2}, 24)
    read.take(Frame(2, b"0123", 2, 10, zlib.crc32(b"0123")), 1)
    read.take(Frame(2, data, 2, offset, checksum), stream)
    assert why in read.failed


# --- nothing of the project ----------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES, ids=[module.stem for module in MODULES])
def test_it_has_the_standard_library_alone(module: Path) -> None:
    tree = ast.walk(ast.parse(module.read_text()))
    names = {a.name for node in tree if isinstance(node, ast.Import) for a in node.names}
    tree = ast.walk(ast.parse(module.read_text()))
    names |= {str(node.module) for node in tree if isinstance(node, ast.ImportFrom)}
    ours = {name for name in names if name.startswith("conformance.wire_from_the_document")}
    assert {name.partition(".")[0] for name in names - ours} <= set(sys.stdlib_module_names)


def test_no_module_of_the_project_is_loaded() -> None:
    names = [f"conformance.{module.stem}" for module in MODULES]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(sorted({n.partition('.')[0] for n in sys.modules} - sys.stdlib_module_names))\n"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=HERE.parent,
    )
    assert found.stdout.strip() in ("['__main__', 'conformance']", "['conformance']")
