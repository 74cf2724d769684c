"""Messages against the vectors: every type both ways, and every rule broken once."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from transload_abi.packed import pack, unpack
from transload_abi.tree import tree_of
from transload_abi.wire.codec import decode, encode, encode_body, type_of
from transload_abi.wire.errors import BadMessage, Unsendable
from transload_abi.wire.limits import MAX_MESSAGE_BYTES, MAX_RANGES
from transload_abi.wire.messages import Bye, Code, Gone, HolderMessage, Lease, ReaderMessage, Table

VECTORS = Path(__file__).parents[2] / "vectors" / "wire"
ACCEPTED: list[dict[str, Any]] = json.loads((VECTORS / "messages.json").read_text())
REFUSED: list[dict[str, Any]] = json.loads((VECTORS / "refused.json").read_text())


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: str(case["name"]))
def test_a_message_means_what_the_vector_says(case: dict[str, Any]) -> None:
    message = decode(bytes.fromhex(case["body"]), case["sender"])
    assert {"type": type_of(message), **tree_of(message)} == case["message"]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: str(case["name"]))
def test_a_message_is_written_in_one_way(case: dict[str, Any]) -> None:
    body = bytes.fromhex(case["body"])
    written = encode_body(decode(body, case["sender"]))
    assert written == pack(case["message"])
    assert (written == body) == case["is_canonical"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case["name"]))
def test_a_body_that_breaks_a_rule_is_refused_at_its_field(case: dict[str, Any]) -> None:
    with pytest.raises(BadMessage) as caught:
        decode(bytes.fromhex(case["body"]), case["sender"])
    assert (caught.value.code, caught.value.is_fatal) == ("bad_message", True)
    if case["path"]:
        assert caught.value.path == case["path"]
        assert str(caught.value).startswith(f"{case['path']}: ")


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case["name"]))
def test_what_an_error_says_fits_into_a_message(case: dict[str, Any]) -> None:
    with pytest.raises(BadMessage) as caught:
        decode(bytes.fromhex(case["body"]), case["sender"])
    reason = "".join(each if each.isprintable() else "?" for each in caught.value.reason)
    assert reason == caught.value.reason
    assert decode(encode_body(Bye(reason)), "reader") == Bye(reason)


@pytest.mark.parametrize(
    ("sender", "union"), [("reader", ReaderMessage), ("holder", HolderMessage)]
)
def test_every_type_has_a_vector_of_each_sender(sender: str, union: Any) -> None:
    covered = {case["message"]["type"] for case in ACCEPTED if case["sender"] == sender}
    assert covered == {struct.__struct_config__.tag for struct in get_args(union)}


@pytest.mark.parametrize(("field", "names"), [("code", Code), ("why", Gone)])
def test_every_code_and_reason_has_a_vector(field: str, names: Any) -> None:
    covered = {case["message"].get(field) for case in ACCEPTED} - {None}
    assert covered == set(get_args(names))


def test_every_field_has_a_refusal() -> None:
    covered = {case["path"].partition("[")[0] for case in REFUSED}
    fields = {
        f"{struct.__struct_config__.tag}.{name}"
        for union in (ReaderMessage, HolderMessage)
        for struct in get_args(union)
        for name in struct.__struct_fields__
    }
    shared = {path for path in fields if path.endswith((".id", ".handoff"))}
    assert fields - shared <= covered


def test_a_frame_is_a_header_and_the_body() -> None:
    assert encode(Bye()) == bytes.fromhex("0a00000001000000") + encode_body(Bye())


def test_a_message_beyond_its_limits_is_not_written() -> None:
    with pytest.raises(Unsendable, match=r"bye\.reason: expected 0 to 500 characters, got 501"):
        encode(Bye("r" * 501))


def test_text_that_nobody_may_read_is_not_written() -> None:
    with pytest.raises(Unsendable, match=r"bye\.reason: control character"):
        encode(Bye("a\nb"))


def test_a_message_of_all_ranges_fits_into_a_frame() -> None:
    nulls = tuple((number * 1000000, 999999) for number in range(MAX_RANGES // 16))
    tables = tuple(Table((1 << 53) - 256 + number, 1 << 32, nulls) for number in range(16))
    more = tuple(Table((1 << 53) - 240 + number, 1 << 32) for number in range(240))
    lease = Lease(
        id=(1 << 32) - 1,
        num_tokens=(1 << 53) - 1,
        tables=tables + more,
        readers=1,
        left=1,
        expires_ms=1,
    )
    assert len(encode_body(lease)) <= MAX_MESSAGE_BYTES


def test_what_a_long_error_says_is_cut_to_a_message() -> None:
    reason = BadMessage("x" * 1000, "bye.reason").reason
    assert reason == "bye.reason: " + "x" * 488
    assert encode(Bye(reason))


def test_extensions_do_not_come_back() -> None:
    body = pack({"type": "bye", "x_why": "tired"})
    assert unpack(encode_body(decode(body, "reader"))) == {"type": "bye"}


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_spoiled_byte_is_refused_or_makes_another_message(flip: int) -> None:
    short = [case for case in ACCEPTED if len(case["body"]) < 400]
    for case in short:
        body = bytes.fromhex(case["body"])
        for at in range(len(body)):
            spoiled = body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :]
            try:
                message = decode(spoiled, case["sender"])
            except BadMessage:
                continue
            assert decode(encode_body(message), case["sender"]) == message
