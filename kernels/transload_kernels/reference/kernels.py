"""The reference as an `Implementation`."""

from transload_kernels.reference.convert import convert_rows
from transload_kernels.reference.digest import digest_blocks
from transload_kernels.reference.moves import (
    copy_runs,
    relayout_rows,
    transpose_pages,
    zero_tail,
)


class ReferenceKernels:
    """The specification: slow, on the CPU only."""

    name = "reference"

    copy_runs = staticmethod(copy_runs)
    relayout_rows = staticmethod(relayout_rows)
    transpose_pages = staticmethod(transpose_pages)
    convert_rows = staticmethod(convert_rows)
    zero_tail = staticmethod(zero_tail)
    digest_blocks = staticmethod(digest_blocks)
