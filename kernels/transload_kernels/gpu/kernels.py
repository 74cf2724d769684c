"""The operations on GPUs by Triton, as an `Implementation`; knows nothing of what a block is.

Rules:

- Widths come from every address of a call: the buffers' bases, all offsets, all strides. One run
  that is off by two narrows what it is launched with; `copy_runs` launches it apart.
- A launch has at most `Tuning.num_programs` programs, each of which walks its share.
- Offsets that lie on the GPU are looked at there, which waits for them; those on the CPU are not
  waited for, and are sent.
- Nothing is allocated but tables of offsets: a few words for each row of the outer loops or run.
"""

import os
from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from transload_kernels import autotune, stopwatches
from transload_kernels.formats import Format, ScalePlace
from transload_kernels.gpu import conversion, moves, sums, turns
from transload_kernels.gpu.launch import PROGRAMS_VARIABLE, tuning_of
from transload_kernels.gpu.launcher import Launcher, TritonLauncher
from transload_kernels.implementation import Loop


class TritonKernels:
    """Triton's kernels for CUDA and ROCm; on the CPU where TRITON_INTERPRET=1.

    Calls return when their launches are queued on the current stream of the buffers' device.
    Kernels are compiled when first needed, in tenths of a second each, and kept on disk by Triton.

    Args:
        launcher: How kernels are started; by default `default_launcher(os.environ)`.
    """

    name = "triton"

    def __init__(self, launcher: Launcher | None = None) -> None:
        self._store = autotune.Store(autotune.default_folder(os.environ))
        self.launcher = launcher or default_launcher(os.environ, self._store)

    def explain(self) -> str:
        """For operators, in lines: the tuning of launches, and measurements that were ignored."""
        tuning = self.launcher.tuning
        cap = f"at most {tuning.num_programs}" if tuning.num_programs else "as many as fill the GPU"
        lines = [f"triton: programs of a launch: {cap} ({PROGRAMS_VARIABLE})"]
        return "\n".join((*lines, *self._store.explain().splitlines()))

    def copy_runs(self, dst: Sequence[Tensor], src: Sequence[Tensor], runs: Tensor) -> None:
        """See `Implementation`."""
        if len(runs):
            launcher = self.launcher.tuned("copy_runs", int(runs[:, 4].max()), len(runs))
            moves.copy_runs(launcher, dst, src, runs)

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
        launcher = self._tuned("relayout_rows", row_bytes, src_offsets, loops)
        moves.relayout_rows(launcher, dst, src, dst_offsets, src_offsets, row_bytes, loops)

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
        launcher = self._tuned("transpose_pages", element_bytes, src_offsets, (*loops, *tile))
        turns.transpose_pages(
            launcher, dst, src, dst_offsets, src_offsets, element_bytes, tile, loops
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
        launcher = self._tuned("convert_rows", num_elements, src_offsets, loops)
        conversion.convert_rows(
            *(launcher, dst, src, dst_offsets, src_offsets, num_elements, loops),
            (src_format, dst_format),
            (src_scales, dst_scales),
        )

    def zero_tail(
        self, dst: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
    ) -> None:
        """See `Implementation`."""
        launcher = self._tuned("zero_tail", row_bytes, offsets, loops)
        moves.zero_tail(launcher, dst, offsets, row_bytes, loops)

    def digest_blocks(
        self, src: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
    ) -> Tensor:
        """See `Implementation`."""
        launcher = self._tuned("digest_blocks", row_bytes, offsets, loops)
        return sums.digest_blocks(launcher, src, offsets, row_bytes, loops)

    def _tuned(
        self, op: str, run_bytes: int, offsets: Tensor, loops: tuple[tuple[int, ...], ...]
    ) -> Launcher:
        return self.launcher.tuned(op, run_bytes, len(offsets) * prod(loop[0] for loop in loops))


def default_launcher(environment: Mapping[str, str], store: autotune.Store) -> Launcher:
    """Starts kernels on the GPU, as measured on the current one if it was; see `autotune`.

    The cap on programs is the operator's: if the environment has one, measurements do not change
    it. Raises `Unsupported` if what the environment says is no number.
    """
    tuning = tuning_of(environment)
    if not torch.cuda.is_available():
        return TritonLauncher(tuning)
    table = store.load(stopwatches.device_of(torch.device("cuda")))
    held = frozenset({"num_programs"}) if PROGRAMS_VARIABLE in environment else frozenset()
    return TritonLauncher(tuning, table.best, held)
