"""Numbers in words for people: sizes, counts, ranges, lists of layers."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Final

_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size_words(bits: int) -> str:
    """A size without rounding: `256 B`, `33 KiB`, `12 bit`."""
    whole, rest = divmod(bits, 8)
    if rest:
        return f"{bits} bit"
    for unit, name in _UNITS:
        if whole and whole % unit == 0:
            return f"{whole // unit} {name}"
    return f"{whole} B"


def times_words(count: int, word: str) -> str:
    """A count and what is counted: `1 head`, `8 heads`."""
    return f"{count} {word}" + ("" if count == 1 else "s")


def scale_words(value: float) -> str:
    """The shortest decimal text that reads as this binary32: `0.1`."""
    exact = pack(">f", value)
    for digits in range(1, 9):
        text = f"{value:.{digits}g}"
        try:
            if pack(">f", float(text)) == exact:
                return text
        except OverflowError:  # Rounded up, beyond the largest.
            continue
    return f"{value:.9g}"


def range_words(first: int, end: int) -> str:
    """The numbers from `first` to below `end`: `3`, `0-7`."""
    return str(first) if end == first + 1 else f"{first}-{end - 1}"


def layer_words(layers: Sequence[int]) -> str:
    """Layers in their order, runs of equal steps together: `0-3, 8-12 by 2, 30`."""
    found, index = [], 0
    while index < len(layers):
        end = _run_end(layers, index)
        first, last = layers[index], layers[end - 1]
        if end - index == 1:
            found.append(f"{first}")
        else:
            step = layers[index + 1] - first
            found.append(f"{first}-{last}" + (f" by {step}" if step != 1 else ""))
        index = end
    return ", ".join(found)


def _run_end(layers: Sequence[int], start: int) -> int:
    """Where a run of equal steps ends; two layers are one only if they are neighbours."""
    end = start + 1
    if end == len(layers):
        return end
    step = layers[end] - layers[start]
    while end < len(layers) and layers[end] - layers[end - 1] == step:
        end += 1
    return end if step == 1 or (step > 0 and end - start > 2) else start + 1
