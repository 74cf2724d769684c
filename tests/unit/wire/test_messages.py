"""Whole sessions of the vectors: each frame says what is told, in turn, with proofs and bytes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from make_wire_vectors import documents, text
from transload_abi import read
from transload_abi.compare import compare
from transload_abi.packed import pack
from transload_abi.wire import auth, frames, limits
from transload_abi.wire.codec import Sender, decode, encode
from transload_abi.wire.messages import (
    Accept,
    Attach,
    HolderMessage,
    Lease,
    Message,
    Prove,
    Read,
    ReadEnd,
    ReaderMessage,
    Refuse,
    Welcome,
)
from transload_abi.wire.payload import payload_of

VECTORS = Path(__file__).parents[2] / "vectors" / "wire"
SESSIONS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((VECTORS / "sessions").iterdir())
}
EVERY = pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
RIGHT = {name: each for name, each in SESSIONS.items() if {"holder", "reader"} <= each.keys()}
RIGHTLY = pytest.mark.parametrize("session", RIGHT.values(), ids=RIGHT)
GREETED = {
    name: each
    for name, each in SESSIONS.items()
    if {"hello", "welcome"} <= {step.get("message", {}).get("type") for step in each["steps"]}
}
OPEN = [each for each in RIGHT.values() if any("data" in step for step in each["steps"])]
TOKEN = bytes.fromhex(RIGHT["control-stream"]["holder"]["token"])


def _said(session: dict[str, Any], sender: Sender) -> Iterator[Message]:
    for step in session["steps"]:
        if step["from"] == sender and "message" in step:
            yield decode(pack(step["message"]), sender)


def _first(session: dict[str, Any], kind: type[Message]) -> Any:
    """The first message of a type."""
    said = [*_said(session, "reader"), *_said(session, "holder")]
    return next(each for each in said if isinstance(each, kind))


def _descriptor(session: dict[str, Any], side: str) -> Any:
    return read(json.dumps(session[side]["descriptor"]).encode())


def _digest(session: dict[str, Any]) -> bytes:
    hello, welcome = (bytes.fromhex(step["bytes"])[8:] for step in session["steps"][:2])
    return auth.transcript(hello, welcome)


@EVERY
def test_every_frame_is_what_it_says(session: dict[str, Any]) -> None:
    for step in session["steps"]:
        decoder = frames.FrameDecoder(1 << 16, 1 << 20)
        found = list(decoder.feed(bytes.fromhex(step["bytes"])))
        assert decoder.is_between_frames
        match found:
            case [frames.MessageFrame(body)]:
                assert body == pack(step["message"])
                if len(body) <= limits.MAX_UNPROVEN_BYTES:
                    assert encode(decode(body, step["from"])).hex() == step["bytes"]
            case [frames.DescriptorFrame(body)]:
                assert body == pack(step["descriptor"])
                assert read(body)
            case [frames.DataBegin(id_, offset, _, checksum), frames.DataBytes(data, True)]:
                assert (id_, offset, data.hex()) == (step["read"], step["offset"], step["data"])
                assert checksum == step.get("checksum")
            case _:
                raise AssertionError(found)


@EVERY
def test_sides_say_what_they_are(session: dict[str, Any]) -> None:
    names = {"holder": "welcome", "reader": "hello"}
    for side, name in names.items():
        for step in session["steps"]:
            if step.get("message", {}).get("type") == name and side in session:
                keys = session[side].keys() & step["message"].keys()
                assert keys >= {"engine", "generation", "nonce", "max_data_bytes"}
                assert {key: step["message"][key] for key in keys} == {
                    key: session[side][key] for key in keys
                }
            if "descriptor" in step and side in session and step["from"] == side:
                assert step["descriptor"] == session[side]["descriptor"]


@pytest.mark.parametrize("session", GREETED.values(), ids=GREETED)
def test_the_holder_proves_that_it_knows_the_token(session: dict[str, Any]) -> None:
    step = next(each for each in session["steps"] if "proof" in each.get("message", {}))
    expected = auth.holder_proof(TOKEN, _digest(session))
    auth.check_proof(expected, step["message"]["proof"], TOKEN, "welcome.proof")


@RIGHTLY
def test_the_reader_proves_that_it_knows_what_it_has_for_a_token(session: dict[str, Any]) -> None:
    token = bytes.fromhex(session["reader"]["token"])
    assert _first(session, Prove).proof == auth.reader_proof(token, _digest(session))
    assert (token == TOKEN) == (session != SESSIONS["wrong-token"])


def test_data_streams_are_attached_with_proofs_of_their_own() -> None:
    session = SESSIONS["two-streams"]
    key = auth.session_key(TOKEN, _digest(session))
    name = _first(session, Welcome).session
    asked = [each for each in _said(session, "reader") if isinstance(each, Attach)]
    assert [each.proof for each in asked] == [auth.stream_proof(key, name, at) for at in (1, 2)]
    assert {each.session for each in asked} == {name}


@pytest.mark.parametrize("session", OPEN, ids=lambda session: str(session["description"]))
def test_the_verdict_is_that_of_the_two_descriptors(session: dict[str, Any]) -> None:
    found = compare(_descriptor(session, "holder"), _descriptor(session, "reader"))
    assert found.verdict == _first(session, Accept).verdict


def test_the_refusal_names_the_field_that_differs() -> None:
    session = SESSIONS["refusal"]
    ours = _descriptor(SESSIONS["two-streams"], "holder")
    found = compare(ours, _descriptor(session, "reader"))
    refusals = [each.path for each in found.findings if each.verdict == "refused"]
    assert refusals == [_first(session, Refuse).path]


@pytest.mark.parametrize("session", OPEN, ids=lambda session: str(session["description"]))
def test_data_are_the_payload_of_the_blocks(session: dict[str, Any]) -> None:
    holder = _descriptor(session, "holder")
    block_ids = session["holder"]["handoff"]["tables"]["0"]
    memory = {pool: bytes.fromhex(raw) for pool, raw in session["holder"]["pools"].items()}
    assert _first(session, Lease).tables[0].num_blocks == len(block_ids)
    for asked in _said(session, "reader"):
        if not isinstance(asked, Read):
            continue
        ids = [block_ids[at] for first, count in asked.blocks for at in range(first, first + count)]
        payload = payload_of(holder, asked)
        whole = b"".join(
            memory[run.pool][run.offset : run.offset + run.num_bytes]
            for run in payload.runs_of(ids)
        )
        come = bytearray(len(whole))
        for step in session["steps"]:
            if step.get("read") == asked.id:
                data = bytes.fromhex(step["data"])
                assert step["stream"] == asked.stream
                assert whole[step["offset"] :].startswith(data)
                come[step["offset"] : step["offset"] + len(data)] = data
        ends = [each for each in _said(session, "holder") if isinstance(each, ReadEnd)]
        sizes = [end.num_bytes for end in ends if end.id == asked.id]
        if sizes:
            assert (bytes(come), sizes) == (whole, [len(whole)])
            assert payload.num_bytes(asked.blocks) == len(whole)
            assert session["reads"][str(asked.id)] == whole.hex()


@RIGHTLY
def test_ids_ascend_and_each_request_has_one_answer(session: dict[str, Any]) -> None:
    asked = [
        getattr(each, "id", 0)
        for each in _said(session, "reader")
        if each.__struct_config__.tag != "cancel"
    ]
    ids = [each for each in asked if each]
    answers = [getattr(each, "id", 0) for each in _said(session, "holder")]
    assert ids == sorted(set(ids))
    assert sorted(each for each in answers if each) == ids


def test_sessions_have_every_type_of_message() -> None:
    told = {
        (sender, type(each))
        for session in RIGHT.values()
        for sender in ("reader", "holder")
        for each in _said(session, sender)
    }
    every = {("reader", kind) for kind in ReaderMessage.__args__}
    every |= {("holder", kind) for kind in HolderMessage.__args__}
    lacking = {kind.__struct_config__.tag for _, kind in every - told}
    assert lacking == {"bye"}


def test_the_vectors_are_what_their_tool_writes() -> None:
    for path, document in documents():
        assert (VECTORS / path).read_text() == text(document), path
