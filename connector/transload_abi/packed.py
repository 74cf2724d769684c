"""MessagePack in one encoding: sorted names, shortest forms, and no types that JSON lacks.

The reader accepts exactly the bytes that the writer makes, so equal trees are equal bytes.
"""

from typing import Final, NamedTuple

import msgspec

from transload_abi.errors import LimitExceeded, MalformedDescriptor
from transload_abi.limits import MAX_DEPTH
from transload_abi.tree import Tree, quote


class _Form(NamedTuple):
    """How a first byte goes on.

    Attributes:
        kind: `int`, `str`, `array` or `map`.
        num_bytes: Of the number or length that follows.
        least: The smallest number or length that has no shorter form.
    """

    kind: str
    num_bytes: int
    least: int


_FORMS: Final = {
    0xCC: _Form("int", 1, 1 << 7),
    0xCD: _Form("int", 2, 1 << 8),
    0xCE: _Form("int", 4, 1 << 16),
    0xCF: _Form("int", 8, 1 << 32),
    0xD9: _Form("str", 1, 1 << 5),
    0xDA: _Form("str", 2, 1 << 8),
    0xDB: _Form("str", 4, 1 << 16),
    0xDC: _Form("array", 2, 1 << 4),
    0xDD: _Form("array", 4, 1 << 16),
    0xDE: _Form("map", 2, 1 << 4),
    0xDF: _Form("map", 4, 1 << 16),
}
_NEGATIVE: Final = {0xD0: (1, -(1 << 5)), 0xD1: (2, -(1 << 7)), 0xD2: (4, -(1 << 15))}
_NEGATIVE_8: Final = {0xD3: (8, -(1 << 31))}
"""First byte to bytes that follow and the number that every number of this form is below."""

_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def pack(tree: Tree) -> bytes:
    """The bytes of an inspected tree."""
    return msgspec.msgpack.encode(tree, order="sorted")


def unpack(data: bytes) -> Tree:
    """The tree of a document.

    Raises:
        MalformedDescriptor: Not what `pack` makes of any tree; says at which byte.
        LimitExceeded: Nested deeper than `limits.MAX_DEPTH`.
    """
    reader = _Reader(data)
    tree = reader.value(0)
    if reader.at != len(data):
        raise MalformedDescriptor(f"{len(data) - reader.at} bytes after the end")
    return tree


class _Reader:
    """Reads values one after the other; `at` is the next byte."""

    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data

    def value(self, depth: int) -> Tree:
        first = self._take(1)[0]
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first in _NEGATIVE or first in _NEGATIVE_8:
            return self._negative(*(_NEGATIVE.get(first) or _NEGATIVE_8[first]))
        kind, number = self._form(first)
        if kind == "int":
            return number
        if kind == "str":
            return self._text(number)
        if depth >= MAX_DEPTH:
            raise LimitExceeded(f"byte {self.at}: nests deeper than {MAX_DEPTH}")
        return self._map(number, depth) if kind == "map" else self._array(number, depth)

    def _form(self, first: int) -> tuple[str, int]:
        """Kind, and number or length."""
        if first < 0xC0:
            is_text = first >= 0xA0
            kind = "str" if is_text else "array" if first >= 0x90 else "map"
            return kind, first & (0x1F if is_text else 0x0F)
        form = _FORMS.get(first)
        if form is None:
            raise MalformedDescriptor(
                f"byte {self.at - 1}: type 0x{first:02x} (a float, bytes or an extension)"
            )
        number = int.from_bytes(self._take(form.num_bytes), "big")
        if number < form.least:
            raise MalformedDescriptor(f"byte {self.at}: {number} has a shorter form")
        return form.kind, number

    def _negative(self, num_bytes: int, bound: int) -> int:
        number = int.from_bytes(self._take(num_bytes), "big", signed=True)
        if number >= bound:
            raise MalformedDescriptor(f"byte {self.at}: {number} has another form")
        return number

    def _text(self, num_bytes: int) -> str:
        start = self.at
        try:
            return self._take(num_bytes).decode()
        except UnicodeDecodeError as error:
            raise MalformedDescriptor(f"byte {start + error.start} is not UTF-8") from None

    def _array(self, length: int, depth: int) -> list[Tree]:
        return [self.value(depth + 1) for _ in range(length)]

    def _map(self, length: int, depth: int) -> dict[str, Tree]:
        found: dict[str, Tree] = {}
        last = None
        for _ in range(length):
            start = self.at
            name = self.value(depth + 1)
            if type(name) is not str:
                raise MalformedDescriptor(f"byte {start}: expected a name, got {quote(name)}")
            if last is not None and name <= last:
                raise MalformedDescriptor(
                    f"byte {start}: the name {quote(name)} is twice or out of order"
                )
            found[name] = self.value(depth + 1)
            last = name
        return found

    def _take(self, num_bytes: int) -> bytes:
        """The next bytes; every value takes one, so no length makes anything by itself."""
        end = self.at + num_bytes
        if end > len(self._data):
            raise MalformedDescriptor(f"byte {self.at}: a length beyond the end")
        taken = self._data[self.at : end]
        self.at = end
        return taken
