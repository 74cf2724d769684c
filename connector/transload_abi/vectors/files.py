"""Arrays and pools on file, and the first place at which two of them differ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from transload_abi.errors import VectorFailed

Pools = dict[str, bytes]
"""All bytes of each pool, by its id."""

UNWRITTEN: Final = b"\xa5"
"""A byte that nobody wrote."""


def read_pools(folder: Path) -> Pools:
    """The pools in a folder.

    Raises:
        VectorFailed: There is none.
    """
    pools = {file.stem: file.read_bytes() for file in sorted(folder.glob("*.bin"))}
    if not pools:
        raise VectorFailed("expected pools, found none", folder.name)
    return pools


def write_blank(folder: Path, sizes: dict[str, int]) -> str:
    """Make a folder of pools that nobody has written to; its path."""
    folder.mkdir()
    for pool, num_bytes in sizes.items():
        (folder / f"{pool}.bin").write_bytes(UNWRITTEN * num_bytes)
    return str(folder)


def array(file: str, data: bytes, shape: list[int], num_bytes: int | None = None) -> NDArray[Any]:
    """Elements of a file as unsigned integers of `num_bytes`, by default as long as they fill it.

    Raises:
        VectorFailed: The file has another length than the shape.
    """
    count = int(np.prod(shape))
    size = num_bytes or len(data) // max(count, 1)
    if size not in (1, 2, 4, 8) or len(data) != count * size:
        raise VectorFailed(f"expected {count} elements, got {len(data)} bytes", file)
    return np.frombuffer(data, f"<u{size}").reshape(shape)


def differences(file: str, found: bytes, due: bytes) -> Iterator[str]:
    """A sentence with the first byte at which bytes differ."""
    yield from _compared(file, *(np.frombuffer(each, np.uint8) for each in (found, due)))


def array_differences(file: str, found: bytes, due: NDArray[Any]) -> Iterator[str]:
    """A sentence with the first index at which elements differ."""
    if len(found) != due.nbytes:
        yield f"{file}: expected {due.nbytes} bytes, got {len(found)}"
        return
    yield from _compared(file, np.frombuffer(found, due.dtype).reshape(due.shape), due)


def value_differences(file: str, found: bytes, due: NDArray[Any]) -> Iterator[str]:
    """Likewise of binary32 by their bits, so that zeros have signs; a NaN is like any other."""
    if len(found) != due.nbytes:
        yield f"{file}: expected {due.nbytes} bytes, got {len(found)}"
        return
    values = np.frombuffer(found, "<f4").reshape(due.shape), due.view("<f4")
    yield from _compared(file, *values)


def _compared(file: str, found: NDArray[Any], due: NDArray[Any]) -> Iterator[str]:
    if found.shape != due.shape:
        yield f"{file}: expected the shape {due.shape}, got {found.shape}"
        return
    same = found == due
    if due.dtype.kind == "f":
        same = (found.view("<u4") == due.view("<u4")) | (np.isnan(found) & np.isnan(due))
    if np.all(same):
        return
    where = np.argwhere(~same)
    index = tuple(int(each) for each in where[0])
    words = f"at {list(index)} expected {_shown(due[index])}, got {_shown(found[index])}"
    yield f"{file}: {words}; {len(where)} of {due.size} differ"


def _shown(value: Any) -> str:
    return f"{value!s}" if value.dtype.kind == "f" else f"{int(value):#x}"
