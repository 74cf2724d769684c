"""The operations in C++ on the CPU, as an `Implementation`.

They are called by ctypes, which lets the interpreter's other threads run meanwhile.
"""

import ctypes
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from transload_kernels.cpu import build
from transload_kernels.errors import BadArgument, Unsupported
from transload_kernels.formats import ELEMENT_BITS, SCALE_BYTES, Format, ScalePlace
from transload_kernels.implementation import Loop

THREADS_VARIABLE: Final = "TRANSLOAD_KERNEL_THREADS"

_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_PAIR: Final = (_POINTER, _POINTER, _POINTER, _POINTER, _INT64)
_LOOPS: Final = (_POINTER, _INT64, _INT32)
_SIGNATURES: Final = {
    "relayout_rows": (*_PAIR, _INT64, *_LOOPS),
    "copy_runs": (_POINTER, _POINTER, _POINTER, _INT64, _INT32),
    "transpose_pages": (*_PAIR, _INT64, _POINTER, *_LOOPS),
    "convert_rows": (
        *_PAIR[:4],
        *_PAIR[:2],
        _INT64,
        _INT64,
        *_LOOPS[:2],
        _POINTER,
        _POINTER,
        _INT32,
    ),
    "zero_tail": (_POINTER, _POINTER, _INT64, _INT64, *_LOOPS),
    "digest_blocks": (_POINTER, _POINTER, _POINTER, _INT64, _INT64, *_LOOPS),
}
_ELEMENTS: Final = {name: number for number, name in enumerate(ELEMENT_BITS)}
_SCALES: Final = {name: number for number, name in enumerate(SCALE_BYTES)}


class _Format(ctypes.Structure):
    """`Format` of convert.cpp."""

    _fields_ = (
        ("element", _INT64),
        ("scale", _INT64),
        ("group_elements", _INT64),
        ("group_stride", _INT64),
        ("scale_value", ctypes.c_double),
    )


def default_threads() -> int:
    """`TRANSLOAD_KERNEL_THREADS`, or half the cores this process may use, four at most.

    Two threads moved 1.1 to 1.25 times what one does from 4 to 64 MiB (two vCPUs of an AMD EPYC,
    wall time, best of 140, `bench/kernels.py --threads`). More than two, and larger machines, are
    not measured: four is a guess that leaves the engine its cores.

    Raises:
        BadArgument: The variable is no whole number above 0.
    """
    named = os.environ.get(THREADS_VARIABLE)
    if named is None:
        return max(1, min(4, len(os.sched_getaffinity(0)) // 2))
    if not named.isascii() or not named.isdigit() or not 1 <= int(named) <= 1024:
        raise BadArgument(f"{THREADS_VARIABLE}: expected 1..1024, got {named!r}")
    return int(named)


class CpuKernels:
    """C++ with vectors and stores past the caches; splits large calls over a few threads.

    Safe to call from several threads at once, and after a fork.

    Args:
        threads: Most threads of one call; None: `default_threads`. Small calls stay on the
            caller's.
        library: The shared object; None: `build.shared_object`, which compiles where needed.

    Raises:
        Unsupported: No compiler, or its result cannot be kept or loaded here.
        BuildFailed: The compiler failed.
    """

    name = "cpu"

    def __init__(self, threads: int | None = None, library: pathlib.Path | None = None) -> None:
        self.threads = default_threads() if threads is None else threads
        path = build.shared_object() if library is None else library
        try:
            loaded = ctypes.CDLL(str(path))
            self._functions = {op: getattr(loaded, f"transload_{op}") for op in _SIGNATURES}
        except (OSError, AttributeError) as error:
            raise Unsupported(f"cannot load the compiled kernels, remove them: {error}") from error
        for op, function in self._functions.items():
            function.argtypes = _SIGNATURES[op]
            function.restype = _INT32

    def copy_runs(self, dst: Sequence[Tensor], src: Sequence[Tensor], runs: Tensor) -> None:
        """Copy runs; see `operations.copy_runs`."""
        sides = [_numbers(buffer.data_ptr() for buffer in side) for side in (dst, src)]
        _check(self._functions["copy_runs"](*sides, runs.data_ptr(), len(runs), self.threads))

    def relayout_rows(
        self,
        dst: Tensor,
        src: Tensor,
        dst_offsets: Tensor,
        src_offsets: Tensor,
        row_bytes: int,
        loops: tuple[Loop, ...],
    ) -> None:
        """Copy rows; see `operations.relayout_rows`."""
        status = self._functions["relayout_rows"](
            dst.data_ptr(),
            src.data_ptr(),
            dst_offsets.data_ptr(),
            src_offsets.data_ptr(),
            dst_offsets.numel(),
            row_bytes,
            _destination_first(loops),
            len(loops),
            self.threads,
        )
        _check(status)

    def transpose_pages(
        self,
        dst: Tensor,
        src: Tensor,
        dst_offsets: Tensor,
        src_offsets: Tensor,
        element_bytes: int,
        tile: tuple[Loop, Loop],
        loops: tuple[Loop, ...],
    ) -> None:
        """Copy tiles; see `operations.transpose_pages`."""
        status = self._functions["transpose_pages"](
            dst.data_ptr(),
            src.data_ptr(),
            dst_offsets.data_ptr(),
            src_offsets.data_ptr(),
            dst_offsets.numel(),
            element_bytes,
            _destination_first(tile),
            _destination_first(loops),
            len(loops),
            self.threads,
        )
        _check(status)

    def convert_rows(
        self,
        dst: Tensor,
        src: Tensor,
        dst_offsets: Tensor,
        src_offsets: Tensor,
        num_elements: int,
        loops: tuple[Loop, ...],
        src_format: Format,
        dst_format: Format,
        src_scales: ScalePlace | None,
        dst_scales: ScalePlace | None,
    ) -> None:
        """Convert rows; see `operations.convert_rows`."""
        nowhere = ScalePlace(0, (0,) * len(loops), 0)
        to, of = dst_scales or nowhere, src_scales or nowhere
        strides = zip(loops, to.strides, of.strides, strict=True)
        status = self._functions["convert_rows"](
            dst.data_ptr(),
            src.data_ptr(),
            _moved(dst, to.delta),
            _moved(src, of.delta),
            dst_offsets.data_ptr(),
            src_offsets.data_ptr(),
            dst_offsets.numel(),
            num_elements,
            _numbers(
                number
                for (count, src_stride, dst_stride), dst_scale, src_scale in strides
                for number in (count, dst_stride, src_stride, dst_scale, src_scale)
            ),
            len(loops),
            ctypes.byref(_format(src_format, of)),
            ctypes.byref(_format(dst_format, to)),
            self.threads,
        )
        _check(status)

    def zero_tail(
        self, dst: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
    ) -> None:
        """Write zeros; see `operations.zero_tail`."""
        status = self._functions["zero_tail"](
            dst.data_ptr(),
            offsets.data_ptr(),
            offsets.numel(),
            row_bytes,
            _numbers(number for loop in loops for number in loop),
            len(loops),
            self.threads,
        )
        _check(status)

    def digest_blocks(
        self, src: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
    ) -> Tensor:
        """A digest for each offset; see `operations.digest_blocks`."""
        digests = torch.zeros(len(offsets), dtype=torch.int64, device="cpu")
        status = self._functions["digest_blocks"](
            digests.data_ptr(),
            src.data_ptr(),
            offsets.data_ptr(),
            offsets.numel(),
            row_bytes,
            _numbers(number for loop in loops for number in loop),
            len(loops),
            self.threads,
        )
        _check(status)
        return digests


def _check(status: int) -> None:
    """`Status` of threads.h: no exception of C++ crosses into Python."""
    if status:
        raise MemoryError("cpu: out of memory within a call, which has written a part")


def _moved(buffer: Tensor, delta: int) -> int:
    """An address near a buffer, which may lie before it: offsets lead back inside."""
    return (int(buffer.data_ptr()) + delta) % 2**64


def _numbers(values: Iterable[int]) -> ctypes.Array[ctypes.c_int64] | None:
    """An int64 array that C++ reads during the call; None: nothing to read."""
    listed = list(values)
    return (ctypes.c_int64 * len(listed))(*listed) if listed else None


def _destination_first(loops: Sequence[Loop]) -> ctypes.Array[ctypes.c_int64] | None:
    if not loops:
        return None
    return _numbers(
        number
        for count, src_stride, dst_stride in loops
        for number in (count, dst_stride, src_stride)
    )


def _format(of: Format, place: ScalePlace) -> _Format:
    return _Format(
        _ELEMENTS[of.element],
        _SCALES[of.scale],
        of.group_elements,
        place.group_stride,
        of.scale_value,
    )
