"""A JSON object's members as the client spelled them: read, replace, append.

Values are never decoded and encoded again. A body is split into `name -> raw bytes of the value`;
a changed body is made of those same raw bytes, and a handoff is spliced in before the closing
brace of the client's own text. So 64-bit integers, number spellings, key order and unknown
members survive by construction.

Engines read bodies with Python's `json`, which takes more than RFC 8259: `NaN`, lone surrogates.
What `json` takes in UTF-8 text is not refused here: `read_members` falls back to it. UTF-16, UTF-32
and a byte order mark, which `json` takes from bytes, are refused: a body that the router cannot
read must not reach an engine that can.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

Raw = msgspec.Raw
Members = dict[str, Raw]

_DECODER = msgspec.json.Decoder(dict[str, Raw])
_STR_DECODER = msgspec.json.Decoder(str)
_ANY_DECODER = msgspec.json.Decoder(Raw)
_ITEMS_DECODER = msgspec.json.Decoder(list[Raw])
_ENCODER = msgspec.json.Encoder()
_WHITESPACE = " \t\n\r"
# json's own scanner, for bodies that only it takes. It builds every value, so it is kept to
# bodies small enough not to hold the loop (about 0.1 s for 8 MiB of nested text on one EPYC core).
_SCANNER = json.JSONDecoder()
_LENIENT_LIMIT_BYTES = 8 << 20


class NotAnObject(ValueError):
    """The bytes are not one JSON object; the message says what they are instead."""


def read_members(body: bytes) -> Members:
    """Split a JSON object into its members.

    Args:
        body: The whole text, UTF-8. Of a repeated name the last value counts, as for engines.

    Returns:
        Names, unescaped, to the raw bytes of their values; the values are views that keep
        `body` alive.

    Raises:
        NotAnObject: Neither RFC 8259 nor Python's `json` reads an object there.
    """
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise NotAnObject(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        if len(body) > _LENIENT_LIMIT_BYTES:
            raise NotAnObject(f"the body is not valid JSON: {error}") from None
        return _read_leniently(body)


def _read_leniently(body: bytes) -> Members:
    """What `json.loads` would read, its values kept as text."""
    try:
        text = body.decode()
        value = _SCANNER.decode(text)
    except (ValueError, RecursionError) as error:
        raise NotAnObject(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise NotAnObject(f"expected a JSON object, got {type(value).__name__}")
    members: Members = {}
    position = _skip(text, text.index("{") + 1)
    while text[position] != "}":
        name, position = _SCANNER.raw_decode(text, position)
        position = _skip(text, _skip(text, position) + 1)
        _, end = _SCANNER.raw_decode(text, position)
        if not name.isascii() and _has_surrogate(name):
            raise NotAnObject("the body is not valid JSON: a member's name is half a character")
        members[name] = Raw(text[position:end].encode())
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return members


def _has_surrogate(name: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in name)


def _skip(text: str, position: int) -> int:
    while text[position] in _WHITESPACE:
        position += 1
    return position


def write_members(members: Mapping[str, Raw]) -> bytes:
    """One JSON object of these members, values byte for byte as given."""
    return _ENCODER.encode(members)


def encode_value(value: Any) -> Raw:
    """The raw form of a plain value, for `write_members`."""
    return Raw(_ENCODER.encode(value))


def append_member(body: bytes, name: str, value: bytes) -> bytes:
    """The client's own text with one member more at its end.

    Args:
        body: A JSON object as `read_members` accepted it, without a member of that name.
        name: ASCII, nothing to escape.
        value: Raw JSON.
    """
    end = body.rindex(b"}")
    is_empty = body[:end].strip() == b"{"
    comma = b"" if is_empty else b","
    return b"".join((body[:end], comma, b'"', name.encode(), b'":', value, body[end:]))


def is_json(body: bytes) -> bool:
    """Whether the bytes are JSON of any kind, in UTF-8, as RFC 8259 has it."""
    try:
        # msgspec takes text that it does not look into as it is, and Python's json takes encoded
        # surrogates from bytes.
        body.decode()
        _ANY_DECODER.decode(body)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return False
    return True


def read_items(raw: Raw) -> list[Raw] | None:
    """The raw items of a JSON array, or None if it is none."""
    try:
        return _ITEMS_DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def read_object(raw: Raw | None) -> Members | None:
    """The members of a nested object, or None where there is none."""
    if raw is None:
        return None
    try:
        return read_members(bytes(raw))
    except NotAnObject:
        return None


def read_nested(raw: Raw | None) -> Members | None:
    """Like `read_object`, for what a client sent: what cannot be read is refused, not skipped.

    Raises:
        NotAnObject: An object stands there, and its members cannot be told apart.
    """
    if raw is None:
        return None
    text = bytes(raw)
    return read_members(text) if text.startswith(b"{") else None


def read_str(raw: Raw | None) -> str | None:
    """A JSON string's text, or None where the member is absent or no string."""
    if raw is None:
        return None
    try:
        return _STR_DECODER.decode(raw)
    except msgspec.DecodeError:
        return _read_str_leniently(raw)


def _read_str_leniently(raw: Raw) -> str | None:
    """What only `json` takes for a string; half a surrogate pair names nothing here."""
    try:
        value = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) and not _has_surrogate(value) else None


def read_int(raw: Raw | None) -> int | None:
    """A JSON integer, or None where the member is absent or something else."""
    if raw is None:
        return None
    text = bytes(raw)
    # Longer digits are no count of anything, and int() refuses over 4,300 of them.
    if len(text) > 20:
        return None
    try:
        return int(text)
    except ValueError:
        return None


def is_unset(raw: Raw | None) -> bool:
    """Whether a member is absent, null or false: what engines take for "not asked for"."""
    return raw is None or bytes(raw) in (b"null", b"false")
