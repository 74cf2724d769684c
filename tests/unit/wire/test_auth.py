"""Proofs against the vectors, and that each depends on all that both sides have said."""

import json
from pathlib import Path
from typing import Any

import pytest

from transload_abi.packed import pack, unpack
from transload_abi.wire import auth
from transload_abi.wire.codec import decode, encode_body
from transload_abi.wire.errors import BadMessage, BadProof
from transload_abi.wire.messages import Welcome

VECTORS = Path(__file__).parents[2] / "vectors" / "wire"
CASES: list[dict[str, Any]] = json.loads((VECTORS / "proofs.json").read_text())
PLAIN = next(case for case in CASES if case["name"] == "token")
ALTERED = [case for case in CASES if case["name"].startswith("other-")]


def _bytes(case: dict[str, Any], name: str) -> bytes:
    return bytes.fromhex(case[name])


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_transcript_covers_both_messages_as_sent(case: dict[str, Any]) -> None:
    assert (
        auth.transcript(_bytes(case, "hello"), _bytes(case, "welcome")).hex()
        == (case["transcript"])
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_both_sides_prove_as_the_vector_says(case: dict[str, Any]) -> None:
    token, digest = _bytes(case, "token"), _bytes(case, "transcript")
    assert auth.holder_proof(token, digest) == case["holder_proof"]
    assert auth.reader_proof(token, digest) == case["reader_proof"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_data_streams_are_attached_with_a_key_of_the_session(case: dict[str, Any]) -> None:
    key = auth.session_key(_bytes(case, "token"), _bytes(case, "transcript"))
    assert key.hex() == case["session_key"]
    for stream, proof in case["stream_proofs"].items():
        assert auth.stream_proof(key, case["session"], int(stream)) == proof


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_welcome_carries_the_proof_that_is_made_over_it(case: dict[str, Any]) -> None:
    welcome = decode(_bytes(case, "welcome"), "holder")
    assert isinstance(welcome, Welcome)
    assert welcome.proof == case["holder_proof"]


@pytest.mark.parametrize("case", ALTERED, ids=lambda case: str(case["name"]))
def test_whatever_is_altered_on_the_way_spoils_every_proof(case: dict[str, Any]) -> None:
    names = ("holder_proof", "reader_proof", "session_key", "stream_proofs")
    assert case["token"] == PLAIN["token"]
    assert not [name for name in names if case[name] == PLAIN[name]]


def test_no_proof_serves_for_another() -> None:
    proofs = [PLAIN["holder_proof"], PLAIN["reader_proof"], PLAIN["session_key"]]
    proofs += PLAIN["stream_proofs"].values()
    assert len(set(proofs)) == len(proofs)


def test_the_proof_in_the_welcome_is_no_part_of_the_transcript() -> None:
    body = _bytes(PLAIN, "welcome")
    bare = pack({**unpack(body), "proof": auth.NO_PROOF})
    hello = _bytes(PLAIN, "hello")
    assert bare != body
    assert auth.transcript(hello, bare) == auth.transcript(hello, body)


def test_both_bodies_are_told_apart() -> None:
    hello = _bytes(PLAIN, "hello")
    welcome = _bytes(PLAIN, "welcome")
    assert auth.transcript(hello + b"\x00", welcome) != auth.transcript(hello, welcome)


def test_a_welcome_without_a_proof_has_no_transcript() -> None:
    tree = unpack(_bytes(PLAIN, "welcome"))
    del tree["proof"]
    with pytest.raises(BadMessage, match=r"welcome\.proof: expected a text"):
        auth.transcript(_bytes(PLAIN, "hello"), pack(tree))


def test_a_right_proof_is_taken() -> None:
    auth.check_proof(PLAIN["reader_proof"], PLAIN["reader_proof"], b"token", "prove.proof")


@pytest.mark.parametrize("given", [PLAIN["holder_proof"], "0" * 64, ""])
def test_a_wrong_proof_is_refused_by_who_has_a_token(given: str) -> None:
    with pytest.raises(BadProof, match=r"prove\.proof: the peer does not know") as caught:
        auth.check_proof(PLAIN["reader_proof"], given, b"token", "prove.proof")
    assert (caught.value.code, caught.value.is_fatal) == ("bad_proof", True)


def test_without_a_token_any_proof_is_taken() -> None:
    auth.check_proof(PLAIN["reader_proof"], "0" * 64, auth.NO_TOKEN, "prove.proof")


def test_a_welcome_is_written_as_it_was_proven() -> None:
    welcome = decode(_bytes(PLAIN, "welcome"), "holder")
    assert encode_body(welcome) == _bytes(PLAIN, "welcome")
