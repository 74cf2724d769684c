"""JSON and MessagePack as `kvabi/1` spells them, from its document alone (sections 1 to 1.2)."""

import json
import re
from collections.abc import Callable
from typing import Any

Tree = dict[str, Any]


class RefusedError(Exception):
    """A document that no reader may accept; `path` is the field that is wrong, or empty."""

    def __init__(self, path: str, why: str) -> None:
        """Say where and why."""
        super().__init__(f"{path}: {why}" if path else why)
        self.path = path


def need(holds: object, path: str, why: str) -> None:
    """Refuse unless `holds`."""
    if not holds:
        raise RefusedError(path, why)


class Fraction:
    """A number with a point, an exponent or a name, kept until `abi` was looked at."""

    def __init__(self, text: str) -> None:
        """Keep what was read."""
        self.text = text


def _integer(text: str) -> int:
    digits = text.lstrip("-")
    return int(text) if len(digits) <= 16 else (-(10**16) if text[0] == "-" else 10**16)


def _members(pairs: list[tuple[str, Any]]) -> Tree:
    tree: Tree = {}
    for name, value in pairs:
        need(name not in tree, name[:40], "twice in an object")
        tree[name] = value
    return tree


def parse_json(data: bytes) -> Any:
    """Read JSON as strictly as section 1 wants it, depth first of all."""
    need(len(data) <= 1 << 20, "", "more than a MiB")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RefusedError("", "not UTF-8") from error
    depth = 0
    for sign in re.findall(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', text, re.DOTALL):
        depth += (sign in "[{") - (sign in "]}")
        need(depth <= 12, "", "nests deeper than 12")
    try:
        return json.loads(
            text,
            object_pairs_hook=_members,
            parse_float=Fraction,
            parse_constant=Fraction,
            parse_int=_integer,
        )
    except ValueError as error:
        raise RefusedError("", f"not JSON: {error}") from error


class _Twin:
    """A reader of the twin; it knows the one spelling of each value."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        need(count <= len(self.data) - self.at, "", "cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def size(self, width: int, least: int) -> int:
        number = int.from_bytes(self.take(width), "big")
        need(number >= least, "", f"{number} has a shorter form")
        return number

    def below_zero(self, width: int, most: int) -> int:
        number = int.from_bytes(self.take(width), "big", signed=True)
        need(number <= most, "", f"{number} has a shorter form, or one without a sign")
        return number

    def value(self, depth: int = 1) -> Any:
        code = self.take(1)[0]
        if code < 0x80:
            return code
        if code < 0x90:
            return self.map(code & 15, depth)
        if code < 0xA0:
            return self.array(code & 15, depth)
        if code < 0xC0:
            return self.text(code & 31)
        if code >= 0xE0:
            return code - 0x100
        forms: dict[int, Callable[[], Any]] = {
            0xC0: lambda: None,
            0xC2: lambda: False,
            0xC3: lambda: True,
            0xCC: lambda: self.size(1, 128),
            0xCD: lambda: self.size(2, 1 << 8),
            0xCE: lambda: self.size(4, 1 << 16),
            0xCF: lambda: self.size(8, 1 << 32),
            0xD0: lambda: self.below_zero(1, -33),
            0xD1: lambda: self.below_zero(2, -(1 << 7) - 1),
            0xD2: lambda: self.below_zero(4, -(1 << 15) - 1),
            0xD3: lambda: self.below_zero(8, -(1 << 31) - 1),
            0xD9: lambda: self.text(self.size(1, 32)),
            0xDA: lambda: self.text(self.size(2, 1 << 8)),
            0xDB: lambda: self.text(self.size(4, 1 << 16)),
            0xDC: lambda: self.array(self.size(2, 16), depth),
            0xDD: lambda: self.array(self.size(4, 1 << 16), depth),
            0xDE: lambda: self.map(self.size(2, 16), depth),
            0xDF: lambda: self.map(self.size(4, 1 << 16), depth),
        }
        need(code in forms, "", f"the type {code:#x} is not used")
        return forms[code]()

    def text(self, count: int) -> str:
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise RefusedError("", "text is not UTF-8") from error

    def array(self, count: int, depth: int) -> list[Any]:
        need(depth <= 12, "", "nests deeper than 12")
        need(count <= len(self.data) - self.at, "", "cut off")
        return [self.value(depth + 1) for _ in range(count)]

    def map(self, count: int, depth: int) -> Tree:
        need(depth <= 12, "", "nests deeper than 12")
        need(2 * count <= len(self.data) - self.at, "", "cut off")
        tree: Tree = {}
        last = None
        for _ in range(count):
            name = self.value(13)
            need(isinstance(name, str), "", "a key that is not text")
            need(last is None or name > last, str(name)[:40], "a key twice or out of order")
            tree[name] = self.value(depth + 1)
            last = name
        return tree


def parse_twin(data: bytes) -> Any:
    """Read the MessagePack twin."""
    need(len(data) <= 1 << 20, "", "more than a MiB")
    reader = _Twin(data)
    tree = reader.value()
    need(reader.at == len(data), "", "bytes after the end")
    return tree


def write_twin(value: Any) -> bytes:
    """Write a tree as its MessagePack twin."""

    def head(count: int, small: int, limit: int, forms: list[tuple[int, int]]) -> bytes:
        if count < limit:
            return bytes([small + count])
        code, width = next(form for form in forms if count < 1 << 8 * form[1])
        return bytes([code]) + count.to_bytes(width, "big")

    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int) and value < 0:
        if value >= -32:
            return bytes([0x100 + value])
        code, width = next(
            form
            for form in [(0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)]
            if value >= -(1 << 8 * form[1] - 1)
        )
        return bytes([code]) + value.to_bytes(width, "big", signed=True)
    if isinstance(value, int):
        return head(value, 0, 128, [(0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)])
    if isinstance(value, str):
        data = value.encode()
        return head(len(data), 0xA0, 32, [(0xD9, 1), (0xDA, 2), (0xDB, 4)]) + data
    if isinstance(value, list):
        parts = [write_twin(item) for item in value]
        return head(len(value), 0x90, 16, [(0xDC, 2), (0xDD, 4)]) + b"".join(parts)
    parts = [write_twin(name) + write_twin(value[name]) for name in sorted(value)]
    return head(len(value), 0x80, 16, [(0xDE, 2), (0xDF, 4)]) + b"".join(parts)


def write_json(value: Any) -> str:
    """Write a tree in the one spelling of section 1.1."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
