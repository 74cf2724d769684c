"""Movers and converters of KV blocks: tensors and integers in, bytes moved.

`operations` has the rules that all calls share; `DESIGN.md` beside this package has the reasons.
"""

from transload_kernels.dispatch import explain
from transload_kernels.errors import BadArgument, BuildFailed, KernelError, Unsupported
from transload_kernels.formats import ElementType, Format, ScalePlace, ScaleType
from transload_kernels.implementation import Implementation, Loop
from transload_kernels.operations import (
    convert_rows,
    copy_runs,
    digest_blocks,
    relayout_rows,
    transpose_pages,
    zero_tail,
)
from transload_kernels.records import (
    DSV4,
    DSV41,
    FP8_DS_MLA,
    TokenRecord,
    bf16_to_fp8,
    bf16_to_records,
    bf16_to_token_head,
    fp8_to_bf16,
    records_to_bf16,
    token_head_to_bf16,
)

__all__ = [
    "DSV4",
    "DSV41",
    "FP8_DS_MLA",
    "BadArgument",
    "BuildFailed",
    "ElementType",
    "Format",
    "Implementation",
    "KernelError",
    "Loop",
    "ScalePlace",
    "ScaleType",
    "TokenRecord",
    "Unsupported",
    "bf16_to_fp8",
    "bf16_to_records",
    "bf16_to_token_head",
    "convert_rows",
    "copy_runs",
    "digest_blocks",
    "explain",
    "fp8_to_bf16",
    "records_to_bf16",
    "relayout_rows",
    "token_head_to_bf16",
    "transpose_pages",
    "zero_tail",
]
