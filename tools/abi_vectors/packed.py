"""MessagePack as the ABI's twin is spelled: maps in order, everything as short as it can be."""

from __future__ import annotations


def pack(value: object) -> bytes:
    """The one spelling of texts, whole numbers, truth values, None, lists and objects."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, str):
        raw = value.encode()
        if 32 <= len(raw) < 256:
            return bytes([0xD9, len(raw)]) + raw
        return _head(len(raw), 0xA0, 32, 0xDA) + raw
    if isinstance(value, list):
        return _head(len(value), 0x90, 16, 0xDC) + b"".join(map(pack, value))
    assert isinstance(value, dict), "a descriptor holds nothing else"
    pairs = (pack(key) + pack(value[key]) for key in sorted(value))
    return _head(len(value), 0x80, 16, 0xDE) + b"".join(pairs)


def _head(length: int, short: int, limit: int, long: int) -> bytes:
    """The first bytes of what is `length` long: one, or three from `limit` on."""
    if length < limit:
        return bytes([short | length])
    return bytes([long]) + length.to_bytes(2, "big")


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return value.to_bytes(1, "big", signed=True)
    for code, size in enumerate((1, 2, 4, 8)):
        if 0 <= value < 1 << 8 * size:
            return bytes([0xCC + code]) + value.to_bytes(size, "big")
        if -1 << 8 * size - 1 <= value < 0:
            return bytes([0xD0 + code]) + value.to_bytes(size, "big", signed=True)
    raise OverflowError(value)
