"""MessagePack as `connector/ABI.md` allows it, 1 and 1.2: one spelling for each value.

For messages and descriptors alike. Knows nothing of fields.
"""

import struct
from typing import Any, Final, NoReturn

MAX_TEXT: Final = 512
MAX_DEPTH: Final = 12
MAX_NUMBER: Final = 2**53 - 1


class RefusedError(Exception):
    """Bytes, or a value in them, that the document refuses; `path` is the field, if any."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}" if path else why)
        self.path = path


def refuse(path: str, why: str) -> NoReturn:
    raise RefusedError(path, why)


def need(holds: object, path: str, why: str) -> None:
    if not holds:
        refuse(path, why)


def pack(value: Any) -> bytes:
    """Write a tree; the names of maps are put in order."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return _pack_integer(value)
    if isinstance(value, str):
        text = value.encode()
        return _pack_length(len(text), 32, 0xA0, {1: 0xD9, 2: 0xDA, 4: 0xDB}) + text
    if isinstance(value, dict):
        head = _pack_length(len(value), 16, 0x80, {2: 0xDE, 4: 0xDF})
        return head + b"".join(pack(name) + pack(value[name]) for name in sorted(value))
    head = _pack_length(len(value), 16, 0x90, {2: 0xDC, 4: 0xDD})
    return head + b"".join(map(pack, value))


def _pack_length(length: int, below: int, short: int, codes: dict[int, int]) -> bytes:
    if length < below:
        return bytes([short + length])
    size = next(size for size in codes if length < 1 << 8 * size)
    return bytes([codes[size]]) + length.to_bytes(size, "big")


def _pack_integer(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack("b", value)
    if value >= 0:
        code = next(i for i in range(4) if value < 1 << (8 << i))
        return bytes([0xCC + code]) + value.to_bytes(1 << code, "big")
    code = next(i for i in range(4) if value >= -(1 << ((8 << i) - 1)))
    return bytes([0xD0 + code]) + value.to_bytes(1 << code, "big", signed=True)


def unpack(body: bytes) -> Any:
    """Read one tree and refuse what is not in its one spelling, or beyond the limits of 1."""
    cursor = _Cursor(bytes(body))
    value = cursor.value("", 0)
    need(cursor.at == len(cursor.body), "", "bytes after the end")
    return value


class _Cursor:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def take(self, count: int) -> bytes:
        need(self.at + count <= len(self.body), "", "the bytes end early")
        self.at += count
        return self.body[self.at - count : self.at]

    def length(self, size: int, least: int) -> int:
        number = int.from_bytes(self.take(size), "big")
        need(number >= least, "", "a length in a longer form than it needs")
        return number

    def value(self, path: str, depth: int) -> Any:
        code = self.take(1)[0]
        if code < 0x80 or code >= 0xE0:
            return code - 256 * (code >= 0xE0)
        if 0xCC <= code <= 0xD3:
            return self.integer(code, path)
        if 0xA0 <= code < 0xC0 or 0xD9 <= code <= 0xDB:
            return self.text(code, path)
        if 0x90 <= code < 0xA0 or code in (0xDC, 0xDD):
            length = code - 0x90 if code < 0xA0 else self.counted(code - 0xDC)
            return self.array(length, path, depth + 1)
        if code < 0x90 or code in (0xDE, 0xDF):
            length = code - 0x80 if code < 0x90 else self.counted(code - 0xDE)
            return self.map(length, path, depth + 1)
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        refuse(path, f"the byte {code:02x} begins nothing that is allowed")

    def counted(self, wide: int) -> int:
        return self.length(4, 1 << 16) if wide else self.length(2, 16)

    def integer(self, code: int, path: str) -> int:
        size = 1 << (code & 3)
        raw = self.take(size)
        number = int.from_bytes(raw, "big", signed=code >= 0xD0)
        need(_pack_integer(number) == bytes([code]) + raw, path, "an integer in a longer form")
        need(abs(number) <= MAX_NUMBER, path, "beyond 2^53-1")
        return number

    def text(self, code: int, path: str) -> str:
        if code < 0xC0:
            length = code - 0xA0
        else:
            length = self.length(1 << (code - 0xD9), {0xD9: 32, 0xDA: 1 << 8, 0xDB: 1 << 16}[code])
        need(length <= 4 * MAX_TEXT, path, "text is too long")
        try:
            text = self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            refuse(path, "text that is not UTF-8")
        need(len(text) <= MAX_TEXT, path, "text is too long")
        is_control = any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in text)
        need(not is_control, path, "text with a control character")
        return text

    def array(self, length: int, path: str, depth: int) -> list[Any]:
        need(depth <= MAX_DEPTH, "", "too deep")
        need(length <= len(self.body) - self.at, "", "the bytes end early")
        return [self.value(f"{path}[{i}]", depth) for i in range(length)]

    def map(self, length: int, path: str, depth: int) -> dict[str, Any]:
        need(depth <= MAX_DEPTH, "", "too deep")
        found: dict[str, Any] = {}
        last = ""
        for i in range(length):
            name = self.value(path, depth)
            need(isinstance(name, str), path, "a name that is no text")
            need(all(0x20 <= ord(c) < 0x7F for c in name), path, "a name beyond printable ASCII")
            need(i == 0 or name > last, path, f"the name {name!r} is out of order")
            last = name
            found[name] = self.value(f"{path}.{name}" if path else name, depth)
        return found
