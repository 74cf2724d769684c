"""Puts the vectors of `tests/vectors/wire/README.md` to an implementation, and names what differs.

What is due comes from the vectors' files alone; the implementation is asked as `HARNESS.md` says.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from transload_abi.errors import VectorFailed
from transload_abi.harness.protocol import Declined, Done, Fields, Implementation, asked
from transload_abi.harness.report import Vectors, unequal
from transload_abi.wire.conformance.files import objects, read_object, read_objects
from transload_abi.wire.conformance.sessions import sessions_in

KINDS = ("messages.json", "refused.json", "frames.json", "proofs.json", "payloads.json", "sessions")


def vectors_in(path: Path, by: Implementation) -> Vectors:
    """All vectors of a folder, to be run, in the order of its files.

    Raises:
        VectorFailed: There is not a single one, or a file of them cannot be read.
    """
    found: Vectors = []
    for name, check in (
        ("messages", check_message),
        ("refused", check_refused),
        ("frames", check_frames),
        ("proofs", check_proofs),
    ):
        for case in read_objects(path / f"{name}.json"):
            found.append((f"{name}/{case.get('name', '?')}", check(case, by)))
    payloads = read_object(path / "payloads.json")
    for case in objects(payloads.get("reads", []), "payloads.json: reads"):
        found.append((f"payloads/{case.get('name', '?')}", check_payload(path, case, by)))
    bad_reads = objects(payloads.get("refused", []), "payloads.json: refused")
    for index, case in enumerate(bad_reads):
        found.append((f"payloads/refused-{index}", check_bad_read(path, case, by)))
    found += sessions_in(path / "sessions", by)
    if not found:
        raise VectorFailed(f"expected vectors in {path}, found none")
    return found


def check_message(case: Fields, by: Implementation) -> Iterator[str]:
    """Whether a body is taken for the right message, and written alike where it is canonical."""
    answer = asked(by, "decode_message", sender=case["sender"], body=case["body"])
    if isinstance(answer, Declined):
        yield f"decoded: got {answer}"
    else:
        yield from unequal("decoded", answer.fields.get("message"), case["message"])
    if case["is_canonical"]:
        message, sender = case["message"], case["sender"]
        answer = asked(by, "encode_message", sender=sender, message=message)
        yield from _field_differences("encoded", answer, {"body": case["body"]})


def check_refused(case: Fields, by: Implementation) -> Iterator[str]:
    """Whether a body that is no message is refused."""
    answer = asked(by, "decode_message", sender=case["sender"], body=case["body"])
    if isinstance(answer, Done):
        yield f"expected a refusal ({case['path']}), got {answer.fields.get('message')}"


def check_frames(case: Fields, by: Implementation) -> Iterator[str]:
    """Whether a stream has the right frames, in one piece and byte by byte."""
    stream = bytes.fromhex(case["stream"])[: case["refused_after"] or None]
    singly = [stream[at : at + 1].hex() for at in range(len(stream))]
    due = {"frames": case["frames"], "is_refused": bool(case["refused"])}
    limits = {name: case[name] for name in ("max_data_bytes", "max_descriptor_bytes")}
    for what, chunks in (("in one piece", [stream.hex()]), ("byte by byte", singly)):
        answer = asked(by, "decode_frames", chunks=chunks, **limits)
        yield from _field_differences(what, answer, due)


def check_proofs(case: Fields, by: Implementation) -> Iterator[str]:
    """Whether digests, proofs and keys are right."""
    given = {name: case[name] for name in ("token", "hello", "welcome", "session")}
    streams = [int(stream) for stream in case["stream_proofs"]]
    due = {
        name: case[name]
        for name in ("transcript", "holder_proof", "reader_proof", "session_key", "stream_proofs")
    }
    yield from _field_differences("proofs", asked(by, "prove", **given, streams=streams), due)


def check_payload(path: Path, case: Fields, by: Implementation) -> Iterator[str]:
    """Whether a read asks for the right bytes."""
    answer = _asked_payload(path, case, case["block_ids"], by)
    due = {name: case[name] for name in ("num_bytes", "runs")}
    yield from _field_differences("payload", answer, due)


def check_bad_read(path: Path, case: Fields, by: Implementation) -> Iterator[str]:
    """Whether a read of what is not there is refused."""
    num_blocks = sum(count for _, count in case["read"]["blocks"])
    answer = _asked_payload(path, case, list(range(num_blocks)), by)
    if isinstance(answer, Done):
        yield f"expected a refusal ({case['path']}) of {case['read']}, got a payload"


def _asked_payload(
    path: Path, case: Fields, block_ids: list[int], by: Implementation
) -> Done | Declined:
    descriptor = json.loads((path / "descriptors" / f"{case['descriptor']}.json").read_bytes())
    return asked(by, "payload", descriptor=descriptor, read=case["read"], block_ids=block_ids)


def _field_differences(what: str, answer: Done | Declined, due: Fields) -> Iterator[str]:
    if isinstance(answer, Declined):
        yield f"{what}: got {answer}"
        return
    for name, item in due.items():
        yield from unequal(f"{what}: {name}", answer.fields.get(name), item)
