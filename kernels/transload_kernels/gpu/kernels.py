"""The operations on GPUs by Triton, as an `Implementation`; knows nothing of what a block is.

Rules:

- Widths come from every address of a call: the buffers' bases, all offsets, all strides. One run
  that is off by two narrows what it is launched with; `copy_runs` launches it apart.
- A launch has at most `Tuning.num_programs` programs, each of which walks its share.
- Offsets that lie on the GPU are looked at there, which waits for them; those on the CPU are not
  waited for, and are sent.
- Nothing is allocated but tables of offsets: a few words for each row of the outer loops or run.
"""

from collections.abc import Sequence

from torch import Tensor

from transload_kernels.formats import Format, ScalePlace
from transload_kernels.gpu import conversion, moves, sums, turns
from transload_kernels.gpu.launch import tuning_from_environment
from transload_kernels.gpu.launcher import Launcher, TritonLauncher
from transload_kernels.implementation import Loop


class TritonKernels:
    """Triton's kernels for CUDA and ROCm; on the CPU where TRITON_INTERPRET=1.

    Calls return when their launches are queued on the current stream of the buffers' device.
    Kernels are compiled when first needed, in tenths of a second each, and kept on disk by Triton.

    Args:
        launcher: How kernels are started; by default on the GPU, tuned by the environment.
    """

    name = "triton"

    def __init__(self, launcher: Launcher | None = None) -> None:
        self.launcher = launcher or TritonLauncher(tuning_from_environment())

    def copy_runs(self, dst: Sequence[Tensor], src: Sequence[Tensor], runs: Tensor) -> None:
        """See `Implementation`."""
        moves.copy_runs(self.launcher, dst, src, runs)

    def relayout_rows(
        self,
        dst: Tensor,
        src: Tensor,
        dst_offsets: Tensor,
        src_offsets: Tensor,
        row_bytes: int,
        loops: tuple[Loop, ...],
    ) -> None:
        """See `Implementation`."""
        moves.relayout_rows(self.launcher, dst, src, dst_offsets, src_offsets, row_bytes, loops)

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
        """See `Implementation`."""
        turns.transpose_pages(
            self.launcher, dst, src, dst_offsets, src_offsets, element_bytes, tile, loops
        )

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
        """See `Implementation`."""
        conversion.convert_rows(
            *(self.launcher, dst, src, dst_offsets, src_offsets, num_elements, loops),
            (src_format, dst_format),
            (src_scales, dst_scales),
        )

    def zero_tail(
        self, dst: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
    ) -> None:
        """See `Implementation`."""
        moves.zero_tail(self.launcher, dst, offsets, row_bytes, loops)

    def digest_blocks(
        self, src: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
    ) -> Tensor:
        """See `Implementation`."""
        return sums.digest_blocks(self.launcher, src, offsets, row_bytes, loops)
