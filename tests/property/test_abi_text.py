"""Descriptors through both encodings and in any spelling, and bytes that are almost descriptors."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from support.abi_strategies import descriptors, respelled
from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.errors import AbiError
from transload_abi.fingerprints import of_descriptor, of_group
from transload_abi.packed import pack, unpack
from transload_abi.text import (
    decode_json,
    decode_msgpack,
    encode_json,
    encode_msgpack,
    pretty_json,
    read,
)
from transload_abi.tree import inspect
from transload_abi.types import Descriptor

PAIRS = descriptors().flatmap(lambda each: st.tuples(st.just(each), respelled(each)))


@given(descriptors())
def test_round_trip_through_both_encodings(descriptor: Descriptor) -> None:
    check(descriptor)
    expected = canonical(descriptor)
    as_json, as_msgpack = encode_json(descriptor), encode_msgpack(descriptor)
    assert decode_json(as_json) == decode_msgpack(as_msgpack) == expected
    assert read(as_json) == read(as_msgpack) == read(pretty_json(descriptor).encode()) == expected
    assert encode_json(read(as_msgpack)) == as_json
    assert encode_msgpack(read(as_json)) == as_msgpack


@given(descriptors())
def test_all_fields_written_out_is_the_same_descriptor(descriptor: Descriptor) -> None:
    tree = msgspec.to_builtins(descriptor)
    assert read(json.dumps(tree, indent=3).encode()) == canonical(descriptor)
    assert read(pack(tree)) == canonical(descriptor)


@given(descriptors())
def test_the_canonical_form_is_canonical_and_valid(descriptor: Descriptor) -> None:
    once = canonical(descriptor)
    check(once)
    assert canonical(once) == once
    assert of_descriptor(once) == of_descriptor(descriptor)


@given(PAIRS)
def test_two_spellings_are_the_same_bytes(pair: tuple[Descriptor, Descriptor]) -> None:
    one, other = pair
    check(other)
    assert encode_json(one) == encode_json(other)
    assert encode_msgpack(one) == encode_msgpack(other)
    assert of_descriptor(one) == of_descriptor(other)
    by_id = {group.id: of_group(other, group) for group in other.groups}
    assert by_id == {group.id: of_group(one, group) for group in one.groups}


JSON_PIECES = [
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b",",
    b":",
    b"\\",
    b"-",
    b"1e9",
    b"0",
    b"null",
    b"\xff",
]
JSON_PIECES += [b'"x_a":1,', b'"id":"",', b"9" * 20, b'"\\ud800"', b"NaN", b"true"]
PACKED_PIECES = [bytes([each]) for each in range(256)]


@st.composite
def _damaged(draw: st.DrawFn, data: bytes, pieces: list[bytes]) -> bytes:
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 4))
        new = draw(st.one_of(st.sampled_from(pieces), st.binary(max_size=3), st.just(data[:end])))
        data = data[:start] + new + data[end:]
    return data


def _only_refuses(data: bytes) -> None:
    try:
        descriptor = read(data)
    except AbiError:
        return
    assert read(encode_json(descriptor)) == descriptor


@settings(max_examples=50)
@given(descriptors().map(encode_json).flatmap(lambda data: _damaged(data, JSON_PIECES)))
def test_damaged_json_is_refused_or_fine(data: bytes) -> None:
    _only_refuses(data)


@settings(max_examples=50)
@given(descriptors().map(encode_msgpack).flatmap(lambda data: _damaged(data, PACKED_PIECES)))
def test_damaged_msgpack_is_refused_or_fine(data: bytes) -> None:
    _only_refuses(data)


@given(st.binary(max_size=80))
def test_any_bytes_are_refused(data: bytes) -> None:
    for decode in (read, decode_json, decode_msgpack):
        try:
            decode(data)
        except AbiError:
            continue
        raise AssertionError(data)


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 60), 1 << 60), st.text(max_size=3), st.floats()
)
VALUES = st.one_of(VALUES, st.lists(VALUES, max_size=3), st.dictionaries(st.text(), VALUES))


@st.composite
def _disturbed(draw: st.DrawFn, descriptor: Descriptor) -> Any:
    """The tree of a descriptor with one value anywhere replaced, dropped or added."""
    tree: Any = msgspec.to_builtins(descriptor)
    at: Any = tree
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return tree
        key = draw(st.sampled_from(keys))
        if isinstance(at[key], dict | list) and draw(st.integers(0, 4)):
            at = at[key]
            continue
        near = at[key] + draw(st.integers(-3, 3)) if isinstance(at[key], int) else at[key]
        at[key] = draw(st.one_of(st.just(near), VALUES))
        if draw(st.booleans()):
            del at[key]
        return tree


@settings(max_examples=60)
@given(descriptors().map(canonical).flatmap(_disturbed))
def test_one_value_changed_is_refused_or_fine(tree: Any) -> None:
    _only_refuses(json.dumps(tree).encode())
    _only_refuses(msgspec.msgpack.encode(tree, order="sorted"))


NUMBERS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(0, 64).flatmap(lambda bits: st.integers(-2, 2).map(lambda by: (1 << bits) + by)),
    st.integers(0, 62).flatmap(lambda bits: st.integers(-2, 2).map(lambda by: by - (1 << bits))),
).filter(lambda number: -(1 << 63) <= number < 1 << 64)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TREES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(TEXTS, inner)),
    max_leaves=30,
)


@given(TREES)
def test_unpack_reads_what_msgspec_packs_in_order(tree: Any) -> None:
    packed = msgspec.msgpack.encode(tree, order="sorted")
    assert unpack(packed) == tree


@given(TREES.map(pack).flatmap(lambda data: _damaged(data, PACKED_PIECES)))
def test_unpack_accepts_one_encoding_only(data: bytes) -> None:
    try:
        tree = unpack(data)
        inspect(tree)
    except AbiError:
        return
    assert pack(tree) == data
