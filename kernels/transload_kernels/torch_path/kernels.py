"""The torch path as an `Implementation`."""

from transload_kernels.torch_path.convert import convert_rows
from transload_kernels.torch_path.digest import digest_blocks
from transload_kernels.torch_path.moves import (
    copy_runs,
    relayout_rows,
    transpose_pages,
    zero_tail,
)


class TorchKernels:
    """On every device of torch; offsets on a GPU are waited for."""

    name = "torch"

    copy_runs = staticmethod(copy_runs)
    relayout_rows = staticmethod(relayout_rows)
    transpose_pages = staticmethod(transpose_pages)
    convert_rows = staticmethod(convert_rows)
    zero_tail = staticmethod(zero_tail)
    digest_blocks = staticmethod(digest_blocks)
