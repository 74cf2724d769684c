"""Descriptors as trees of dicts, lists, text and integers: what both encodings have in common.

Knows the shape of the values in `types` by their annotations, and nothing of what they mean.
"""

import json
import re
from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from transload_abi.errors import LimitExceeded, MalformedDescriptor
from transload_abi.limits import MAX_DEPTH, MAX_INTEGER, MAX_QUOTED_CHARS, MAX_TEXT_CHARS

Tree = Any
"""dict[str, Tree] | list[Tree] | str | int | bool | None, once `inspect` has seen it."""

EXTENSION_PREFIX: Final = "x_"

_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Repeated(NamedTuple):
    """Stands in a tree for an object that has a name twice."""

    name: str


class Nested(NamedTuple):
    """What a field of a struct holds, where that is structs.

    Attributes:
        struct: Their type.
        is_array: Whether there are several.
    """

    struct: type[msgspec.Struct]
    is_array: bool


def quote(text: object) -> str:
    """A stranger's text for an error message: quoted, and not at full length."""
    full = str(text)
    return repr(full[:MAX_QUOTED_CHARS]) + ("..." if len(full) > MAX_QUOTED_CHARS else "")


def join(path: str, name: str) -> str:
    """The path of a field below `path`."""
    short = quote(name) if len(name) > MAX_QUOTED_CHARS else name
    return f"{path}.{short}" if path else short


@cache
def nested(struct: type[msgspec.Struct]) -> dict[str, Nested | None]:
    """By name of each field of a struct: the structs in it, None where there are none."""
    found: dict[str, Nested | None] = {}
    for field in msgspec.structs.fields(struct):
        is_array = get_origin(field.type) is tuple
        inner = get_args(field.type)[0] if is_array else field.type
        is_struct = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
        found[field.encode_name] = Nested(inner, is_array) if is_struct else None
    return found


def tree_of(value: object) -> Tree:
    """A value of `types` as a tree, at every level without the fields that equal their default."""
    if isinstance(value, msgspec.Struct):
        defaults = _defaults(type(value))
        pairs = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {
            name: tree_of(item)
            for name, item in pairs
            if name not in defaults or item != defaults[name]
        }
    if isinstance(value, tuple | list):
        return [tree_of(item) for item in value]
    if isinstance(value, dict):
        return {name: tree_of(item) for name, item in value.items()}
    return value


def canonical_text(tree: Tree) -> bytes:
    """The one JSON text of an inspected tree: UTF-8, names sorted, no spaces (RFC 8785)."""
    text = json.dumps(tree, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


def inspect(value: Tree, path: str = "") -> None:
    """See that a tree is one: bounded text, numbers and depth, and nothing JSON would not carry.

    Numbers may be negative among `params` and in extensions only.

    Raises:
        MalformedDescriptor: Floats, bytes, names that are not printable ASCII, a name twice,
            control characters, halves of surrogate pairs.
        LimitExceeded: Too deep, too long, too large, negative.
    """
    _inspect(value, path, 0, 0)


def _inspect(value: Tree, path: str, depth: int, least: int) -> None:
    kind = type(value)
    if kind is int:
        _inspect_integer(value, path, least)
    elif kind is str:
        inspect_text(value, path)
    elif kind is list:
        _inspect_depth(depth, path)
        for index, item in enumerate(value):
            if type(item) is not int or not least <= item <= MAX_INTEGER:
                _inspect(item, f"{path}[{index}]", depth + 1, least)
    elif kind is dict:
        _inspect_depth(depth, path)
        for name, item in value.items():
            _inspect_name(name, path)
            is_free = name == "params" or name.startswith(EXTENSION_PREFIX)
            _inspect(item, join(path, name), depth + 1, -MAX_INTEGER if is_free else least)
    elif kind is Repeated:
        raise MalformedDescriptor(f"the name {quote(value.name)} occurs twice", path)
    elif value is not None and kind is not bool:
        raise MalformedDescriptor(f"expected an integer, got {quote(value)}", path)


def inspect_text(text: str, path: str) -> None:
    """See that text can be carried and shown.

    Raises:
        MalformedDescriptor: Control characters, or halves of surrogate pairs.
        LimitExceeded: Longer than `limits.MAX_TEXT_CHARS`.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise LimitExceeded(f"expected {MAX_TEXT_CHARS} characters or fewer: {len(text)}", path)
    if _UNPRINTABLE.search(text):
        raise MalformedDescriptor(f"control character or half a character in {quote(text)}", path)


def _inspect_integer(value: int, path: str, least: int) -> None:
    if value < least:
        raise LimitExceeded(f"expected {least} or more, got {quote(value)}", path)
    if value > MAX_INTEGER:
        raise LimitExceeded("expected at most 2**53 - 1, got a larger number", path)


def _inspect_depth(depth: int, path: str) -> None:
    if depth >= MAX_DEPTH:
        raise LimitExceeded(f"arrays and objects nest deeper than {MAX_DEPTH}", path[:40])


def _inspect_name(name: object, path: str) -> None:
    if type(name) is not str or not name.isascii() or not name.isprintable():
        raise MalformedDescriptor(f"expected a name in ASCII, got {quote(name)}", path)
    inspect_text(name, path)


@cache
def _defaults(struct: type[msgspec.Struct]) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(struct):
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = field.default_factory()
    return found
