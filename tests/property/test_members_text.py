"""Members of arbitrary JSON text, as clients may spell it, against Python's json."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from transload_router.core.bodies.members import (
    NotAnObject,
    append_member,
    read_members,
    write_members,
)

SPACE = st.sampled_from(["", " ", "\n", "\t\r\n "])
NUMBERS = st.sampled_from(
    ["0", "-0", "1e999", "1E+2", "0.10", "18446744073709551616", "NaN", "-Infinity", "1.0"]
)


def _spelled(drawn: tuple[str, bool]) -> str:
    """A JSON string of a text: every character escaped, or only those that must be."""
    text, is_escaped = drawn
    if is_escaped:
        return json.dumps(text)
    # No UTF-8 spells half a character.
    has_half = any("\ud800" <= char <= "\udfff" for char in text)
    return json.dumps(text, ensure_ascii=has_half)


CHARS = st.characters(codec="utf-8")
NAMES = st.one_of(st.sampled_from(["a", "kv_transfer_params", ""]), st.text(CHARS, max_size=4))
TEXTS = st.text(st.one_of(CHARS, st.just("\ud83d"), st.sampled_from('{}[],:"\\')), max_size=5)
KEYS = st.tuples(NAMES, st.booleans()).map(_spelled)
STRINGS = st.tuples(TEXTS, st.booleans()).map(_spelled)
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from(["null", "true", "false"]))


def _lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(SPACE, st.lists(inner, max_size=3)).map(
        lambda drawn: f"[{drawn[0]}{(drawn[0] + ',').join(drawn[1])}]"
    )


def _objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(SPACE, KEYS, SPACE, inner, SPACE).map(
        lambda part: f"{part[0]}{part[1]}{part[2]}:{part[2]}{part[3]}{part[4]}"
    )
    return st.tuples(st.lists(member, max_size=4), SPACE).map(
        lambda drawn: "{" + (",".join(drawn[0]) or drawn[1]) + "}"
    )


VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(_lists(inner), _objects(inner)), max_leaves=6
)
BODIES = st.tuples(SPACE, _objects(VALUES), SPACE).map("".join).map(str.encode)


def same(left: object, right: object) -> bool:
    # NaN is not itself; its text is.
    return repr(left) == repr(right)


@settings(max_examples=60, deadline=None)
@given(BODIES)
def test_members_are_what_json_reads(body: bytes) -> None:
    expected = json.loads(body)
    members = read_members(body)
    assert set(members) == set(expected)
    for name, raw in members.items():
        assert bytes(raw) in body
        assert same(json.loads(bytes(raw)), expected[name])
    assert same(json.loads(write_members(members)), {name: expected[name] for name in members})

    appended = append_member(body, "added", b'{"x":1}')
    match = re.search(rb',?"added":\{"x":1\}(?=\}\s*$)', appended)
    assert match
    assert appended[: match.start()] + appended[match.end() :] == body
    expected.pop("added", None)
    assert same(json.loads(appended), {**expected, "added": {"x": 1}})


@settings(max_examples=80, deadline=None)
@given(BODIES, st.data())
def test_broken_text_is_never_read_otherwise(body: bytes, data: st.DataObject) -> None:
    """One byte changed: refused, or read as json reads it."""
    at = data.draw(st.integers(0, len(body) - 1))
    byte = data.draw(st.sampled_from(b'{}[]",:\\0aN \x00\xff\xef'))
    broken = body[:at] + bytes([byte]) + body[at + 1 :]
    try:
        members = read_members(broken)
    except NotAnObject:
        return
    try:
        expected = json.loads(broken)
    except ValueError:
        return  # The engine refuses it.
    assert set(members) == set(expected)
