"""Descriptors as bytes: canonical JSON, its MessagePack twin, and the reader of either.

Whatever the bytes, reading takes bounded time and memory, and nothing but `AbiError` comes out.
Fields whose name begins with `x_` are extensions: dropped wherever a struct of `types` stands.
"""

import json
import re
from typing import Final

import msgspec

from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.errors import LimitExceeded, MalformedDescriptor, UnknownPart
from transload_abi.limits import MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_INTEGER
from transload_abi.packed import pack, unpack
from transload_abi.tree import (
    EXTENSION_PREFIX,
    Repeated,
    Tree,
    canonical_text,
    inspect,
    join,
    nested,
    quote,
    tree_of,
)
from transload_abi.types import VERSION, Descriptor

_MAPS: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
"""First bytes of a MessagePack map; no JSON text begins with one."""

_STRING_OR_BRACKET: Final = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|(?P<open>[\[{])|(?P<close>[\]}])', re.DOTALL
)
"""Every match takes what it has seen, so a scan is linear whatever the text."""

_MAX_DIGITS: Final = 17
"""Sign and digits of the longest number within limits."""

_AT: Final = re.compile(r" - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)


def encode_json(descriptor: Descriptor) -> bytes:
    """The canonical JSON of the canonical form.

    Raises:
        DescriptorError: It holds what no reader would accept.
    """
    return canonical_text(_writable(descriptor))


def pretty_json(descriptor: Descriptor) -> str:
    """The canonical JSON with line breaks, for people; with the errors of `encode_json`."""
    return json.dumps(_writable(descriptor), ensure_ascii=False, sort_keys=True, indent=1) + "\n"


def encode_msgpack(descriptor: Descriptor) -> bytes:
    """The MessagePack twin of the canonical JSON; with the errors of `encode_json`."""
    return pack(_writable(descriptor))


def read(data: bytes) -> Descriptor:
    """A descriptor from either encoding: decoded, checked and in canonical form.

    Raises:
        DescriptorError: As its subclasses say.
    """
    is_packed = bool(data) and data[0] in _MAPS
    descriptor = decode_msgpack(data) if is_packed else decode_json(data)
    check(descriptor)
    return canonical(descriptor)


def decode_json(data: bytes) -> Descriptor:
    """What a JSON text says, in any spacing and order of names; not yet checked.

    Raises:
        MalformedDescriptor: Not UTF-8, not JSON, not the schema; floats, a name twice.
        UnknownPart: Another version, or a field that this version lacks.
        LimitExceeded: Too long, too deep, or numbers too large.
    """
    _check_length(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise MalformedDescriptor(f"byte {error.start} is not UTF-8") from None
    if text.startswith("\ufeff"):
        raise MalformedDescriptor("a byte order mark is not allowed")
    _check_depth(text)
    try:
        tree = json.loads(text, object_pairs_hook=_read_object, parse_int=_read_integer)
    except json.JSONDecodeError as error:
        raise MalformedDescriptor(f"not JSON: {error.msg} at character {error.pos}") from None
    return _descriptor(tree)


def decode_msgpack(data: bytes) -> Descriptor:
    """What a MessagePack document says, encoded as `encode_msgpack` does it; not yet checked.

    Raises:
        MalformedDescriptor: Another encoding of the same, other types, bytes missing or left.
        UnknownPart: Another version, or a field that this version lacks.
        LimitExceeded: Too long, too deep, or numbers too large.
    """
    _check_length(data)
    return _descriptor(unpack(data))


def _writable(descriptor: Descriptor) -> Tree:
    tree = tree_of(canonical(descriptor))
    inspect(tree)
    return tree


def _check_length(data: bytes) -> None:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise LimitExceeded(f"expected {MAX_DOCUMENT_BYTES} bytes or fewer, got {len(data)}")


def _check_depth(text: str) -> None:
    """Refuse what would make the JSON module recurse deeply."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match["open"]:
            depth += 1
            if depth > MAX_DEPTH:
                raise LimitExceeded(f"arrays and objects nest deeper than {MAX_DEPTH}")
        elif match["close"]:
            depth -= 1


def _read_object(pairs: list[tuple[str, Tree]]) -> dict[str, Tree] | Repeated:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    names = set()
    for name, _ in pairs:
        if name in names:
            return Repeated(name)
        names.add(name)
    raise AssertionError("a dict loses pairs only where a name is there twice")


def _read_integer(digits: str) -> int:
    # A longer number is beyond the limits, and takes a time to read that is not.
    if len(digits) > _MAX_DIGITS:
        return -MAX_INTEGER - 1 if digits.startswith("-") else MAX_INTEGER + 1
    return int(digits)


def _descriptor(tree: Tree) -> Descriptor:
    if isinstance(tree, Repeated):
        inspect(tree)
    if not isinstance(tree, dict):
        raise MalformedDescriptor(f"expected an object, got {quote(tree)}")
    version = tree.get("abi")
    if version != VERSION:
        got = quote(version) if "abi" in tree else "none"
        raise UnknownPart(f"expected {VERSION!r}, got {got}", "abi")
    inspect(tree)
    try:
        return msgspec.convert(_known_fields(tree, Descriptor, ""), Descriptor, strict=True)
    except msgspec.ValidationError as error:
        raise _schema_error(str(error)) from None


def _known_fields(tree: Tree, struct: type[msgspec.Struct], path: str) -> Tree:
    """A tree without its extensions; what it leaves as it came, `convert` refuses."""
    if not isinstance(tree, dict):
        return tree
    fields = nested(struct)
    known = {}
    for name, item in tree.items():
        if name.startswith(EXTENSION_PREFIX):
            continue
        if name not in fields:
            raise UnknownPart("a field that this version lacks", join(path, name))
        inner, below = fields[name], join(path, name)
        if inner is None:
            known[name] = item
        elif not inner.is_array:
            known[name] = _known_fields(item, inner.struct, below)
        elif isinstance(item, list):
            known[name] = [
                _known_fields(each, inner.struct, f"{below}[{index}]")
                for index, each in enumerate(item)
            ]
        else:
            known[name] = item
    return known


def _schema_error(text: str) -> MalformedDescriptor | UnknownPart:
    """An error of msgspec in our words: its path loses the `$`."""
    found = _AT.search(text)
    path = found[1] if found else ""
    message = _AT.sub("", text)
    if message.startswith("Invalid enum value "):
        value = message.removeprefix("Invalid enum value ").strip("'")
        return UnknownPart(f"{quote(value)} is none of those that this version knows", path)
    return MalformedDescriptor(message[:1].lower() + message[1:], path)
