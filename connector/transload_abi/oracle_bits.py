"""Elements of any width at any bit address of a pool: read and written, nothing else.

Knows nothing of what elements are worth (`oracle_numbers`). An element of less than a byte lies in
one byte; the other bits of that byte are left alone.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from transload_abi.dtypes import DTYPES
from transload_abi.errors import ProofFailed
from transload_abi.oracle_numbers import Bits, bits_type
from transload_abi.roles import ROLES

Pool = NDArray[np.uint8]
Addresses = NDArray[np.int64]
Terms = tuple[tuple[str, int, int, int], ...]

_BYTE_BITS: Final = 8


def extents(role: str, shape: dict[str, int]) -> tuple[int, ...]:
    """Of a role's axes, in the order of `roles.ROLES`."""
    return tuple(shape[axis] for axis in ROLES[role].axes)


def offsets(role: str, shape: dict[str, int], terms: Terms) -> Addresses:
    """Bits from index 0 to each element, `[*axes]`."""
    axes = ROLES[role].axes
    found = np.zeros(extents(role, shape), np.int64)
    for axis, div, extent, stride in terms:
        digit = np.arange(shape[axis], dtype=np.int64) // div % extent
        shape_along = [-1 if each == axis else 1 for each in axes]
        found += (digit * stride).reshape(shape_along)
    return found


def spans(pool: Pool, addresses: Addresses, num_bytes: int) -> Addresses:
    """The address of each byte, `[*addresses, num_bytes]`.

    Raises:
        ProofFailed: One is outside of the pool.
    """
    found = addresses[..., None] + np.arange(num_bytes, dtype=np.int64)
    if found.size and (found.min() < 0 or found.max() >= len(pool)):
        raise ProofFailed(
            f"bytes {found.min()} to {found.max()} of a pool that has {len(pool)} bytes"
        )
    return found


def gather(pool: Pool, bits: Addresses, dtype: str) -> Bits:
    """The elements at bit addresses, `[*bits]`, of `bits_type(dtype)`.

    Raises:
        ProofFailed: One is outside of the pool.
    """
    kind, num_bits = bits_type(dtype), DTYPES[dtype].bits
    starts, shifts = _parted(bits, num_bits)
    raw = pool[spans(pool, starts, kind.itemsize)].view(kind)[..., 0]
    if num_bits >= _BYTE_BITS:
        return raw
    return ((raw >> shifts) & (1 << num_bits) - 1).astype(kind)


def scatter(pool: Pool, bits: Addresses, elements: Bits, dtype: str) -> None:
    """Writes elements at bit addresses; of two at one address one is written.

    Raises:
        ProofFailed: One is outside of the pool.
    """
    kind, num_bits = bits_type(dtype), DTYPES[dtype].bits
    starts, shifts = _parted(bits, num_bits)
    where = spans(pool, starts, kind.itemsize)
    elements = np.ascontiguousarray(elements, kind)
    if num_bits >= _BYTE_BITS:
        pool[where] = elements[..., None].view(np.uint8)
        return
    # Neighbours share a byte, so those of one shift are written at a time.
    mask = (1 << num_bits) - 1
    for shift in range(0, _BYTE_BITS, num_bits):
        chosen = shifts == shift
        at = starts[chosen]
        pool[at] = pool[at] & (0xFF ^ mask << shift) | elements[chosen] << shift


def _parted(bits: Addresses, num_bits: int) -> tuple[Addresses, NDArray[np.uint8]]:
    """The byte of each element, and the bit in it where the element begins."""
    unit = min(num_bits, _BYTE_BITS)
    assert not np.any(bits % unit), f"elements of {num_bits} bits begin at a multiple of {unit}"
    return bits // _BYTE_BITS, (bits % _BYTE_BITS).astype(np.uint8)
