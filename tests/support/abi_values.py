"""Numbers that a role holds without rounding, whatever its codec; made by arithmetic alone."""

from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transload_abi.codecs import CODECS, scale_param
from transload_abi.floats import read_float
from transload_abi.roles import ROLES
from transload_abi.types import Group, Role

Values = NDArray[np.float32]


class _Small(NamedTuple):
    """A small float: significant bits, exponent of its least value above zero, its largest."""

    significant_bits: int
    least_exponent: int
    largest: float


_SMALL: Final = {
    "e2m1": _Small(2, -1, 6),
    "e4m3": _Small(4, -9, 448),
    "e5m2": _Small(3, -16, 57344),
    "e4m3fnuz": _Small(4, -10, 240),
    "e5m2fnuz": _Small(3, -17, 57344),
}


def numbers(dtype: str) -> list[float]:
    """Values of a dtype, its largest last; of small floats all, without zero's other sign."""
    if dtype == "i8":
        return [float(each) for each in range(-127, 128)]
    if dtype not in _SMALL:
        return [each / 8 for each in range(-127, 128)]
    bits, least, largest = _SMALL[dtype]
    half = 1 << bits - 1
    found = {each * 2.0**least for each in range(half)}
    exponent = least
    while half * 2.0**exponent <= largest:
        found |= {(half + each) * 2.0**exponent for each in range(half)}
        exponent += 1
    positive = sorted(each for each in found if 0 < each <= largest)
    return [-each for each in positive] + [0.0, *positive]


def representable(group: Group, role: Role, num_blocks: int, chance: np.random.Generator) -> Values:
    """Values that the elements of a role can have, `[layers, blocks, *axes]`.

    Scales in the page come to powers of two by the rules for making them. A layer's scale among
    the codec's parameters has to be a power of two, unless there are none in the page.
    """
    axes = tuple(role.shape[axis] for axis in ROLES[role.role].axes)
    shape = (len(group.layers), num_blocks, *axes)
    inline = group.role(CODECS[group.codec.id].scale_role.get(role.role, ""))
    if inline is None:
        values = chance.choice(numbers(role.dtype), shape)
    elif group.codec.id == "int4_zero_point":
        values = _with_zero_points(shape, chance)
    else:
        values = _grouped(shape, role.dtype, inline.shape.get("G", 1), chance)
    scales = group.codec.params.get(scale_param(role.role))
    if isinstance(scales, list):
        of_layers = np.array([read_float(str(each)) for each in scales], np.float32)
        values = values.astype(np.float32) * of_layers.reshape(-1, *[1] * (len(shape) - 1))
    return values.astype(np.float32)


def _grouped(
    shape: tuple[int, ...], dtype: str, num_groups: int, chance: np.random.Generator
) -> NDArray[np.floating[Any]]:
    """In each group one element is the largest that there is; its scale is a power of two."""
    known = numbers(dtype)
    groups = (prod(shape[:-1]) * num_groups, shape[-1] // num_groups)
    elements = chance.choice(known, groups)
    peak = chance.integers(0, groups[1], groups[0])
    elements[np.arange(groups[0]), peak] = known[-1]
    powers = 2.0 ** chance.integers(-3, 4, (groups[0], 1))
    products: NDArray[np.floating[Any]] = elements * powers
    return products.reshape(shape)


def _with_zero_points(
    shape: tuple[int, ...], chance: np.random.Generator
) -> NDArray[np.floating[Any]]:
    """Sixteen steps, of which each row has the first and, where it has room, the last."""
    codes = chance.integers(0, 16, shape)
    codes[..., -1] = 15
    codes[..., 0] = 0
    outer = (*shape[:-1], 1)
    powers = 2.0 ** chance.integers(-3, 4, outer) if shape[-1] > 1 else 1.0
    steps: NDArray[np.floating[Any]] = codes - chance.integers(0, 16, outer) + 0.0
    return steps * powers
