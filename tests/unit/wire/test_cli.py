"""`transload wire check`: ours holds, and whoever is wrong about one thing is noticed."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from support.harnesses import Bend, Bent, does_all, says
from support.wire_bends import (
    FOLDER,
    FRAMES,
    OURS,
    SESSIONS,
    declines,
    failures,
    names,
)
from transload_abi.harness.protocol import Answer, Fields, InProcess
from transload_abi.harness.report import run as run_vectors
from transload_abi.wire import cli
from transload_abi.wire.conformance.checks import KINDS, check_frames, vectors_in

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
        f"sessions/{name}/{side}"
        for name, session in SESSIONS.items()
        for side in ("holder", "reader")
        if side in session
    }
    assert names("sessions/") == sides
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
    # It reads the request first: one that has ended before takes none.
    command = f"{sys.executable} -c 'input(); print({json.dumps(json.dumps(said))})'"
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
    (tmp_path / "sessions" / "one.json").write_text('{"steps": [], "reader": {}}')
    status, out, _ = run(capsys, "check", str(tmp_path))
    assert status == 1
    told = "sessions/one/reader: the vector itself cannot be read: KeyError('descriptor')"
    assert out.splitlines()[0] == told


@pytest.mark.parametrize("args", [(), ("draw",), ("check",)])
def test_arguments_that_are_wrong(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert err.startswith("usage: transload wire")


# --- wrong about one thing


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
