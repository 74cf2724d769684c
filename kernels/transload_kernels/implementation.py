"""What an implementation of the operations is: the same six functions, over checked arguments.

`arguments` has checked what callers give before an implementation sees it: buffers are flat uint8
tensors of one device, offsets are int64, contiguous and inside, loops are tuples of ints. An
implementation checks nothing again and allocates nothing that the caller would have to free.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from transload_kernels.formats import Format, ScalePlace

Loop = tuple[int, int, int]
"""Count, source stride, destination stride; bytes, outermost loop first."""


class Implementation(Protocol):
    """One way to run the operations; `reference` is the specification of all others."""

    name: str

    def copy_runs(self, dst: Sequence[Tensor], src: Sequence[Tensor], runs: Tensor) -> None:
        """Copy `runs[i]` = (dst buffer, dst offset, src buffer, src offset, num_bytes)."""

    def relayout_rows(
        self,
        dst: Tensor,
        src: Tensor,
        dst_offsets: Tensor,
        src_offsets: Tensor,
        row_bytes: int,
        loops: tuple[Loop, ...],
    ) -> None:
        """Copy `row_bytes` for each pair of offsets and each index of the loops."""

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
        """Copy each element of a tile of rows and columns, for each offset and loop index."""

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
        """Convert rows of `num_elements` elements, for each offset and loop index."""

    def zero_tail(
        self, dst: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
    ) -> None:
        """Write zeros over rows; `loops` are (count, stride)."""

    def digest_blocks(
        self, src: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
    ) -> Tensor:
        """A 64-bit digest of each block's rows, as int64 `[n]` on the buffer's device."""
