"""Members keep the client's spelling; what engines read differently is not let through."""

import json

import pytest

from transload_router.core.bodies.members import (
    NotAnObject,
    Raw,
    append_member,
    encode_value,
    is_unset,
    read_int,
    read_items,
    read_members,
    read_object,
    read_str,
    write_members,
)


def as_bytes(body: bytes) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in read_members(body).items()}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", {}),
        (b" \t\r\n{ \n} ", {}),
        (b'{"seed":18446744073709551616}', {"seed": b"18446744073709551616"}),
        (b'{"seed":9007199254740993}', {"seed": b"9007199254740993"}),
        (b'{"a":1e999,"b":1.0,"c":-0,"d":1E+2}', dict(a=b"1e999", b=b"1.0", c=b"-0", d=b"1E+2")),
        (b'{"b":1,"a":2}', {"b": b"1", "a": b"2"}),
        (b'{"a":1,"a":2}', {"a": b"2"}),
        (b'{"\\u0061":1,"a":2}', {"a": b"2"}),
        (b'{"kv_transfer_param\\u0073":{}}', {"kv_transfer_params": b"{}"}),
        (b'{"a" : [ 1 , { "b" : 2 } ] }', {"a": b'[ 1 , { "b" : 2 } ]'}),
        (b'{"a":"}{\\"],"}', {"a": b'"}{\\"],"'}),
        ('{"é":"日本"}'.encode(), {"é": '"日本"'.encode()}),
        # What only Python's json takes.
        (
            b'{"a":NaN , "b":-Infinity,"c":[Infinity]}',
            dict(a=b"NaN", b=b"-Infinity", c=b"[Infinity]"),
        ),
        (b' {"a" : NaN } ', {"a": b"NaN"}),
        (b'{"a":1,"b":NaN,"a":2}', {"a": b"2", "b": b"NaN"}),
        (b'{"kv_transfer_param\\u0073":NaN}', {"kv_transfer_params": b"NaN"}),
        ('{"é":"日本","x":NaN}'.encode(), {"é": '"日本"'.encode(), "x": b"NaN"}),
        (b'{"a":"\\ud800"}', {"a": b'"\\ud800"'}),
        (b'{"a":"\\ud800","b":NaN}', {"a": b'"\\ud800"', "b": b"NaN"}),
    ],
)
def test_values_keep_their_spelling(body: bytes, expected: dict[str, bytes]) -> None:
    assert as_bytes(body) == expected
    assert list(as_bytes(body)) == list(expected)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b'{"a":1',
        b'{"a":1}x',
        b'{"a":1}{}',
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":tru}',
        b'{"a":"\x01"}',
        b'{"a":NaN}x',
        b'{"a":nan}',
        b'{"a":1}\x00',
        b'\x0b{"a":NaN}',
        # Text that json.loads takes from bytes, and the router does not read.
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-32"),
        # A name that no UTF-8 can carry on.
        b'{"\\ud800":1}',
    ],
)
def test_unreadable_is_refused(body: bytes) -> None:
    with pytest.raises(NotAnObject, match="JSON"):
        read_members(body)


@pytest.mark.parametrize(
    ("body", "got"), [(b"[]", "array"), (b'"x"', "str"), (b"1", "int"), (b"null", "null")]
)
def test_other_than_an_object_is_named(body: bytes, got: str) -> None:
    with pytest.raises(NotAnObject, match=got):
        read_members(body)


def test_lenient_list_is_named() -> None:
    with pytest.raises(NotAnObject, match="expected a JSON object, got"):
        read_members(b"NaN")


@pytest.mark.parametrize("depth", [1_000, 200_000])
def test_deep_nesting_is_refused_or_read(depth: int) -> None:
    body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    try:
        members = read_members(body)
    except NotAnObject:
        return
    assert bytes(members["a"]) == body[5:-1]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"k":[1]}'),
        (b"{ }\n", b'{ "k":[1]}\n'),
        (b'{"a":1}', b'{"a":1,"k":[1]}'),
        (b' {"a":1 } \r\n', b' {"a":1 ,"k":[1]} \r\n'),
        (b'{"a":{}}', b'{"a":{},"k":[1]}'),
        (b'{"a":"{"}', b'{"a":"{","k":[1]}'),
        (b'{"a":"}"  }', b'{"a":"}"  ,"k":[1]}'),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2,"k":[1]}'),
        (b'{"a":NaN,"b":1e999}', b'{"a":NaN,"b":1e999,"k":[1]}'),
    ],
)
def test_append_changes_nothing_else(body: bytes, expected: bytes) -> None:
    assert append_member(body, "k", b"[1]") == expected


def test_write_keeps_raw_values() -> None:
    body = b'{"a":1e999,"\xc3\xa9":NaN,"q\\"":"\\u00e9"}'
    assert json.loads(write_members(read_members(body)).replace(b"NaN", b"0")) == {
        "a": float("inf"),
        "é": 0,
        'q"': "é",
    }
    assert b"1e999" in write_members(read_members(body))
    assert b'"\\u00e9"' in write_members(read_members(body))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"-1", -1),
        (b"7", 7),
        (b"1.0", None),
        (b"1e2", None),
        (b'"1"', None),
        (b"true", None),
        (b"null", None),
        (b"[]", None),
        (b"9" * 20, int("9" * 20)),
        (b"9" * 21, None),
        (b"9" * 5_000, None),
    ],
)
def test_read_int(text: bytes, number: int | None) -> None:
    assert read_int(Raw(text)) == number


def test_read_int_absent() -> None:
    assert read_int(None) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [(b'"a\\u0062"', "ab"), (b"1", None), (b"null", None), (b'{"a":1}', None), (b"nope", None)],
)
def test_read_str(text: bytes, value: str | None) -> None:
    assert read_str(Raw(text)) == value
    assert read_str(None) is None


def test_read_object_and_items() -> None:
    assert read_object(None) is None
    assert read_object(Raw(b"[]")) is None
    assert read_object(Raw(b"null")) is None
    nested = read_object(Raw(b'{"a":NaN}'))
    assert nested is not None
    assert bytes(nested["a"]) == b"NaN"
    assert read_items(Raw(b"{}")) is None
    items = read_items(Raw(b"[1, [2] ,null]"))
    assert items is not None
    assert [bytes(item) for item in items] == [b"1", b"[2]", b"null"]


@pytest.mark.parametrize(
    ("text", "unset"),
    [
        (b"null", True),
        (b"false", True),
        (b"true", False),
        (b"0", False),
        (b'""', False),
        (b"[]", False),
    ],
)
def test_is_unset(text: bytes, unset: bool) -> None:
    assert is_unset(Raw(text)) is unset
    assert is_unset(None)
    assert is_unset(read_members(b'{"a": ' + text + b" }")["a"]) is unset


def test_encode_value() -> None:
    assert bytes(encode_value('a"é')) == '"a\\"é"'.encode()
