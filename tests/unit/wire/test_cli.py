"""`transload wire check`: ours holds, and whoever is wrong about one thing is noticed."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.harnesses import VECTORS, Bend, Bent
from transload_abi.harness.protocol import Answer, Declined, Done, Fields, InProcess
from transload_abi.harness.report import run as run_vectors
from transload_abi.packed import pack
from transload_abi.wire import cli, codec, frames
from transload_abi.wire.conformance.checks import KINDS, check_frames, vectors_in
from transload_abi.wire.conformance.ours import ours

FOLDER = VECTORS / "wire"
FRAMES = FOLDER / "frames.json"
OURS = ours(cli._compare)
ASK_FOR = {
    "decode_message": ("messages/", "refused/"),
    "encode_message": ("messages/",),
    "decode_frames": ("frames/",),
    "prove": ("proofs/",),
    "payload": ("payloads/",),
    "play": ("sessions/",),
}
FILES = {
    "messages/": "messages.json",
    "refused/": "refused.json",
    "frames/": "frames.json",
    "proofs/": "proofs.json",
}


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = cli.main(args)
    out, err = capsys.readouterr()
    return status, out, err


def failures(operation: str, bend: Bend) -> dict[str, str]:
    """By vector of those that ask for the operation, its first failure."""
    vectors = vectors_in(FOLDER, Bent(OURS, operation, bend))
    concerned = [each for each in vectors if each[0].startswith(ASK_FOR[operation])]
    return {each.name: each.failures[0] for each in run_vectors(concerned) if each.failures}


def names(prefix: str) -> set[str]:
    return {name for name, _ in vectors_in(FOLDER, OURS) if name.startswith(prefix)}


# --- the command


def test_ours_holds(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "check", str(FOLDER))
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[-1] == f"{len(lines) - 1} vectors, 0 failed"
    assert all(line.endswith(": ok") for line in lines[:-1])


def test_no_vector_is_left_out() -> None:
    for prefix, file in FILES.items():
        cases = json.loads((FOLDER / file).read_text())
        assert names(prefix) == {prefix + case["name"] for case in cases}
    payloads = json.loads((FOLDER / "payloads.json").read_text())
    assert len(names("payloads/")) == len(payloads["reads"]) + len(payloads["refused"])
    sides = {
        f"sessions/{file.stem}/{side}"
        for file in (FOLDER / "sessions").iterdir()
        for side in ("holder", "reader")
    }
    assert names("sessions/") == sides - {"sessions/wrong-token/reader"}
    assert {file.name for file in FOLDER.iterdir()} == {*KINDS, "README.md", "descriptors"}


def test_a_part_of_the_vectors_will_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copy(FOLDER / "proofs.json", tmp_path)
    status, out, _ = run(capsys, "check", str(tmp_path))
    assert (status, out.splitlines()[-1]) == (0, "11 vectors, 0 failed")


def test_a_vector_that_does_not_hold(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (case, *_) = json.loads((FOLDER / "proofs.json").read_text())
    (tmp_path / "proofs.json").write_text(json.dumps([{**case, "session_key": "00"}]))
    status, out, _ = run(capsys, "check", str(tmp_path))
    assert status == 1
    assert out.startswith("proofs/no-token: proofs: session_key: expected 00, got ")
    assert out.endswith("\n1 vectors, 1 failed\n")


def test_a_harness_that_offers_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copy(FOLDER / "proofs.json", tmp_path)
    script = tmp_path / "harness.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    said = {'id': json.loads(line)['id'], 'unsupported': 'later'}\n"
        "    print(json.dumps(said), flush=True)\n"
    )
    args = ("check", str(tmp_path), "--with", f"{sys.executable} {script}")
    status, out, _ = run(capsys, *args)
    assert status == 1
    assert out.splitlines()[0] == "proofs/no-token: skipped, not offered: prove: later"
    assert out.splitlines()[-1] == "11 vectors, 0 failed, 11 skipped"
    assert run(capsys, *args, "--allow-unsupported") == (0, out, "")


def test_a_harness_that_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{sys.executable} -c 'import sys; sys.stdin.read()'"
    status, out, _ = run(capsys, "check", str(FOLDER), "--with", command, "--answer-s", "1")
    first, last = out.splitlines()
    assert status == 1
    assert first.endswith(": the harness, asked to decode_message: no answer within 1 s")
    assert last.startswith("1 vectors, 1 failed, ")
    assert last.endswith(" not run")


def test_what_an_operator_reads_is_printable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copy(FOLDER / "proofs.json", tmp_path)
    said = {"id": 1, "unsupported": "\x1b[31m\nred"}
    command = f"{sys.executable} -c 'print({json.dumps(json.dumps(said))})'"
    _, out, _ = run(capsys, "check", str(tmp_path), "--with", command)
    assert out.splitlines()[0] == "proofs/no-token: skipped, not offered: prove: ?[31m?red"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("other.json", "[]", f"expected {', '.join(KINDS[:-1])} or {KINDS[-1]} in "),
        ("messages.json", "[]", "expected vectors in "),
        ("messages.json", "{}", "messages.json: expected a list of objects"),
        ("frames.json", "[1]", "frames.json: expected a list of objects"),
        ("proofs.json", "[", "proofs.json: cannot be read: JSONDecodeError("),
        ("payloads.json", "[]", "payloads.json: expected an object"),
        ("payloads.json", '{"reads": 1}', "payloads.json: reads: expected a list of objects"),
        ("payloads.json", '{"refused": 1}', "payloads.json: refused: expected a list of objects"),
        ("sessions/one.json", "[]", "one.json: expected an object"),
        ("sessions/one.json", "{}", "one.json: steps: expected a list of objects"),
    ],
)
def test_folders_without_vectors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: str, text: str, message: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    status, out, err = run(capsys, "check", str(tmp_path))
    assert (status, out) == (2, "")
    assert err.startswith(f"transload wire check: {message}")


def test_a_session_that_says_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "one.json").write_text('{"steps": []}')
    status, out, _ = run(capsys, "check", str(tmp_path))
    assert status == 1
    told = "sessions/one/reader: the vector itself cannot be read: KeyError('token')"
    assert out.splitlines()[0] == told


@pytest.mark.parametrize("args", [(), ("draw",), ("check",)])
def test_arguments_that_are_wrong(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert err.startswith("usage: transload wire")


# --- wrong about one thing


def says(**changed: Any) -> Bend:
    """Other fields, where something was done; those that are functions take what was there."""

    def bend(answer: Answer, _asked: Fields) -> Answer:
        if not isinstance(answer, Done):
            return answer
        new = {
            name: change(answer.fields[name]) if callable(change) else change
            for name, change in changed.items()
        }
        return Done({**answer.fields, **new})

    return bend


def declines(answer: Answer, _asked: Fields) -> Answer:
    return Declined("bad", "here", "no") if isinstance(answer, Done) else answer


def does_all(answer: Answer, _asked: Fields) -> Answer:
    return answer if isinstance(answer, Done) else Done({})


def only_in_one_piece(answer: Answer, asked: Fields) -> Answer:
    return answer if len(asked["chunks"]) == 1 else says(frames=[])(answer, asked)


@pytest.mark.parametrize(
    ("operation", "bend", "kind", "sentence"),
    [
        ("decode_message", says(message={}), "messages/", "decoded: expected {'type': 'hello'"),
        ("decode_message", declines, "messages/", "decoded: got a refusal (bad: here: no)"),
        ("decode_message", does_all, "refused/", "expected a refusal (), got None"),
        ("decode_frames", says(frames=[]), "frames/", "in one piece: frames: expected [{'mess"),
        ("decode_frames", only_in_one_piece, "frames/", "byte by byte: frames: expected [{'mess"),
        ("decode_frames", declines, "frames/", "in one piece: got a refusal (bad: here: no)"),
        ("prove", says(transcript="00"), "proofs/", "proofs: transcript: expected "),
        ("prove", says(holder_proof="00"), "proofs/", "proofs: holder_proof: expected "),
        ("prove", says(reader_proof="00"), "proofs/", "proofs: reader_proof: expected "),
        ("prove", says(session_key="00"), "proofs/", "proofs: session_key: expected "),
        ("prove", says(stream_proofs={}), "proofs/", "proofs: stream_proofs: expected "),
        ("prove", declines, "proofs/", "proofs: got a refusal (bad: here: no)"),
    ],
)
def test_every_vector_of_a_kind_notices(
    operation: str, bend: Bend, kind: str, sentence: str
) -> None:
    found = failures(operation, bend)
    assert found.keys() == names(kind)
    assert next(iter(found.values())).startswith(sentence)


def test_messages_that_are_written_otherwise() -> None:
    found = failures("encode_message", says(body="80"))
    cases = json.loads((FOLDER / "messages.json").read_text())
    assert found.keys() == {f"messages/{case['name']}" for case in cases if case["is_canonical"]}
    assert found["messages/hello"].startswith("encoded: body: expected 86a6656e67696e65a8")


@pytest.mark.parametrize("is_refused", [True, False])
def test_streams_that_are_refused_or_not(is_refused: bool) -> None:
    found = failures("decode_frames", says(is_refused=is_refused))
    cases = json.loads((FOLDER / "frames.json").read_text())
    assert found.keys() == {
        f"frames/{case['name']}" for case in cases if bool(case["refused"]) != is_refused
    }


@pytest.mark.parametrize(
    ("bend", "are_reads", "sentence"),
    [
        (says(num_bytes=1), True, "payload: num_bytes: expected 256, got 1"),
        (says(runs=[]), True, "payload: runs: expected [['kv', 256, 256]], got []"),
        (declines, True, "payload: got a refusal (bad: here: no)"),
        (does_all, False, "expected a refusal (read.group) of {'group': 'none', "),
    ],
)
def test_payloads(bend: Bend, are_reads: bool, sentence: str) -> None:
    found = failures("payload", bend)
    refused = names("payloads/refused-")
    assert found.keys() == (names("payloads/") - refused if are_reads else refused)
    assert next(iter(found.values())).startswith(sentence)


# --- sessions


def frames_of(data: bytes) -> Iterator[bytes]:
    while data:
        end = frames.HEADER_BYTES + int.from_bytes(data[:4], "little")
        yield data[:end]
        data = data[end:]


def in_frames(change: Callable[[bytes], bytes]) -> Bend:
    """Each frame that is said, changed; one that becomes empty is left out."""

    def bend(answer: Answer, asked: Fields) -> Answer:
        assert isinstance(answer, Done)
        said: list[list[Fields]] = []
        for event in answer.fields["said"]:
            said.append([])
            for part in event:
                parts = [change(frame) for frame in frames_of(bytes.fromhex(part["bytes"]))]
                if whole := b"".join(parts):
                    said[-1].append({**part, "bytes": whole.hex()})
        return Done({**answer.fields, "said": said})

    return bend


def of_side(side: str, bend: Bend) -> Bend:
    return lambda answer, asked: bend(answer, asked) if asked["side"] == side else answer


def message_with(name: str, **changed: object) -> Callable[[bytes], bytes]:
    """A message of a type with other fields."""

    def change(frame: bytes) -> bytes:
        if frame[4] != frames.MESSAGE or name.encode() not in frame:
            return frame
        tree = codec.read_tree(frame[frames.HEADER_BYTES :])
        if tree["type"] != name:
            return frame
        return frames.message_frame(pack({**tree, **changed}))

    return change


def without(kind: int) -> Callable[[bytes], bytes]:
    return lambda frame: b"" if frame[4] == kind else frame


def in_data(change: Callable[[bytearray], object]) -> Callable[[bytes], bytes]:
    def changed(frame: bytes) -> bytes:
        data = bytearray(frame)
        if frame[4] == frames.DATA:
            change(data)
        return bytes(data)

    return changed


def flip_last(data: bytearray) -> None:
    data[-1] ^= 1


def flip_checksum(data: bytearray) -> None:
    data[24] ^= data[12] & 1


def drop_checksum(data: bytearray) -> None:
    data[12] = 0
    data[24:28] = bytes(4)


def twice(frame: bytes) -> bytes:
    return frame * 2 if frame[4] == frames.DATA else frame


SESSIONS = ("cancelled-read", "control-stream", "expired-lease", "two-streams")
WHOLE = ("control-stream", "two-streams")
EVERY = (*SESSIONS, "forgone", "refusal", "wrong-token")
PROOF = "0" * 64


@pytest.mark.parametrize(
    ("side", "bend", "noticed", "sentence"),
    [
        ("holder", in_frames(message_with("welcome", proof=PROOF)), EVERY, "event 0: expected"),
        ("holder", in_frames(message_with("accept", verdict="lossy")), SESSIONS, "event 2: exp"),
        ("holder", in_frames(message_with("refuse", path="")), ("refusal",), "event 2: expected"),
        ("holder", in_frames(message_with("error", id=3)), ("wrong-token",), "event 1: expected"),
        ("holder", in_frames(message_with("expired", why="ended")), ("expired-lease",), "event 5"),
        ("holder", in_frames(without(frames.DESCRIPTOR)), SESSIONS, "event 2: expected [{'stream"),
        ("holder", in_frames(without(frames.DATA)), WHOLE, "event 4: read 2 ends before all of "),
        (
            "holder",
            in_frames(in_data(flip_last)),
            WHOLE,
            "event 4: data of read 2 with a wrong checksum",
        ),
        (
            "holder",
            in_frames(in_data(flip_checksum)),
            WHOLE,
            "event 4: data of read 2 with a wrong checksum",
        ),
        (
            "holder",
            in_frames(in_data(drop_checksum)),
            WHOLE,
            "event 4: data of read 2 without a checksum",
        ),
        ("holder", in_frames(twice), WHOLE, "event 4: data of read 2 at 0: sent twice"),
        ("reader", in_frames(message_with("hello", nonce=PROOF)), EVERY, "event 0: expected"),
        ("reader", in_frames(message_with("prove", proof=PROOF)), EVERY, "event 1: expected"),
        ("reader", in_frames(without(frames.DESCRIPTOR)), (*SESSIONS, "refusal"), "event 1: exp"),
        ("reader", says(reads={"2": ""}), EVERY, "bytes of the reads: expected {"),
        ("reader", in_frames(lambda frame: frame[:-1]), EVERY, "event 0: a frame on stream 0 does"),
        (
            "reader",
            in_frames(lambda frame: frame[:4] + b"\x09" + frame[5:]),
            EVERY,
            "event 0: what ",
        ),
        ("reader", says(said=[]), EVERY, "said: expected a list of "),
        ("reader", says(said=lambda said: [7] * len(said)), EVERY, "event 0: expected a list, got"),
        ("reader", says(said=lambda said: [[7]] * len(said)), EVERY, "event 0: expected objects "),
        (
            "reader",
            says(said=lambda said: [[{"stream": 0, "bytes": "x"}]] * len(said)),
            EVERY,
            "event 0: bytes that are no hex digits",
        ),
        ("reader", declines, EVERY, "got a refusal (bad: here: no)"),
        ("holder", declines, EVERY, "got a refusal (bad: here: no)"),
    ],
)
def test_sides_of_sessions(side: str, bend: Bend, noticed: tuple[str, ...], sentence: str) -> None:
    found = failures("play", of_side(side, bend))
    assert found.keys() == {f"sessions/{name}/{side}" for name in noticed} & names("sessions/")
    first = "control-stream" if "control-stream" in noticed else noticed[0]
    assert found[f"sessions/{first}/{side}"].startswith(sentence)


def moved(answer: Answer, asked: Fields) -> Answer:
    """All that is on data streams is said on the control stream."""
    assert isinstance(answer, Done)
    said = [[{**part, "stream": 0} for part in event] for event in answer.fields["said"]]
    return Done({**answer.fields, "said": said})


def test_data_on_another_stream() -> None:
    found = failures("play", of_side("holder", moved))
    assert found.keys() == {"sessions/two-streams/holder"}


def split(frame: bytes) -> bytes:
    """A data frame as two, each with a checksum where it had one."""
    if frame[4] != frames.DATA:
        return frame
    header = frame[8 : 8 + frames.DATA_HEADER_BYTES]
    read, flags = int.from_bytes(header[:4], "little"), header[4]
    offset = int.from_bytes(header[8:16], "little")
    data = frame[8 + frames.DATA_HEADER_BYTES :]
    parts = ((offset + 5, data[5:]), (offset, data[:5]))
    return b"".join(
        frames.data_header(read, at, len(part), frames.checksum_of(part) if flags else None) + part
        for at, part in parts
    )


def reworded(frame: bytes) -> bytes:
    for name in ("refuse", "error", "bye"):
        frame = message_with(name, reason="in other words")(frame)
    return frame


@pytest.mark.parametrize("change", [split, reworded])
def test_what_a_side_may_choose(change: Callable[[bytes], bytes]) -> None:
    assert failures("play", in_frames(change)) == {}


FAREWELL = [{"stream": 0, "bytes": frames.message_frame(b"\x81\xa4type\xa3bye").hex()}]


def test_a_farewell_after_the_end() -> None:
    bend = says(said=lambda said: [*said[:-1], said[-1] + FAREWELL])
    twice_said = {f"sessions/{name}/reader" for name in (*SESSIONS, "forgone")}
    assert failures("play", of_side("reader", bend)).keys() == twice_said


def test_a_farewell_amid_a_session() -> None:
    bend = says(said=lambda said: [said[0] + FAREWELL, *said[1:]])
    assert failures("play", bend).keys() == names("sessions/")


def test_a_header_is_enough_to_refuse() -> None:
    (case, *_) = [each for each in json.loads(FRAMES.read_text()) if each["refused"]]
    longer = {**case, "stream": case["stream"] + "00" * 100}
    given: list[str] = []

    def note(answer: Answer, asked: Fields) -> Answer:
        given.append("".join(asked["chunks"]))
        return answer

    assert list(check_frames(longer, Bent(OURS, "decode_frames", note))) == []
    assert given == [case["stream"]] * 2


def test_a_side_that_cannot_be_played() -> None:
    without_play = InProcess({}, {})
    results = list(run_vectors(vectors_in(FOLDER, without_play)))
    assert all(result.skipped for result in results)
