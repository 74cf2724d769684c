"""Floats as text, exactly: a descriptor has no fractional numbers, so that its text is one text.

`f32:3f800000` is the IEEE 754 binary32 whose bits, most significant first, are those hex digits;
`f64:3ff0000000000000` a binary64. Both are lower case and of full length.
"""

import math
import re
import struct
from typing import Final

from transload_abi.errors import MalformedDescriptor
from transload_abi.limits import MAX_QUOTED_CHARS

_TEXT: Final = re.compile(r"f32:[0-9a-f]{8}|f64:[0-9a-f]{16}")


def f32(value: float) -> str:
    """The text of a float that binary32 holds exactly.

    Raises:
        ValueError: It is not finite, or binary32 would round it.
    """
    try:
        packed = struct.pack(">f", value)
    except OverflowError:
        packed = b""
    if not packed or not math.isfinite(value) or struct.unpack(">f", packed)[0] != value:
        raise ValueError(f"{value!r} is not a binary32 value")
    return f"f32:{packed.hex()}"


def f64(value: float) -> str:
    """The text of a finite float.

    Raises:
        ValueError: It is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not finite")
    return f"f64:{struct.pack('>d', value).hex()}"


def read_float(text: str, path: str = "") -> float:
    """The value of `f32:...` or `f64:...`.

    Raises:
        MalformedDescriptor: It is neither, or not finite.
    """
    if not _TEXT.fullmatch(text):
        raise MalformedDescriptor(
            f"expected f32: or f64: and hex digits, got {text[:MAX_QUOTED_CHARS]!r}", path
        )
    digits = bytes.fromhex(text[4:])
    (value,) = struct.unpack(">f" if text.startswith("f32") else ">d", digits)
    if not math.isfinite(value):
        raise MalformedDescriptor(f"{text} is not finite", path)
    return float(value)
