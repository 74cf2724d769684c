# mypy: disable-error-code="import-untyped,no-untyped-def,no-untyped-call,untyped-decorator"
# mypy: disable-error-code="valid-type"
"""The kernel that copies or clears rows of bytes: `copy_runs`, `relayout_rows`, `zero_tail`.

A program walks tiles of ROWS rows by COLS units of WIDTH bytes, `num_programs` tiles apart. A unit
is one access of a thread: 16 bytes are two neighbouring int64, which the compiler joins because
every address is built as (bytes >> log2 WIDTH) * (elements in WIDTH). Bytes past the last whole
unit of a row go one by one.
"""

import triton
import triton.language as tl

from transload_kernels.gpu.indexing import peel

SCALARS = (
    *("num_rows", "row_bytes", "num_tiles", "num_col_tiles", "col_multiplier", "col_shift"),
    *(f"{field}{loop}" for loop in range(4) for field in ("count", "mul", "shift", "src", "dst")),
)


@triton.jit(do_not_specialize=("dst_ptr", "src_ptr", *SCALARS))
def rows_kernel(
    dst_ptr: "*fp32",  # noqa: F722 - Triton's name of a type
    src_ptr: "*fp32",  # noqa: F722 - Triton's name of a type
    dst_offsets_ptr,
    src_offsets_ptr,
    lengths_ptr,
    num_rows: tl.int64,
    row_bytes: tl.int64,
    num_tiles: tl.int32,
    num_col_tiles: tl.uint32,
    col_multiplier: tl.uint32,
    col_shift: tl.uint32,
    count0: tl.uint32,
    mul0: tl.uint32,
    shift0: tl.uint32,
    src0: tl.int64,
    dst0: tl.int64,
    count1: tl.uint32,
    mul1: tl.uint32,
    shift1: tl.uint32,
    src1: tl.int64,
    dst1: tl.int64,
    count2: tl.uint32,
    mul2: tl.uint32,
    shift2: tl.uint32,
    src2: tl.int64,
    dst2: tl.int64,
    count3: tl.uint32,
    mul3: tl.uint32,
    shift3: tl.uint32,
    src3: tl.int64,
    dst3: tl.int64,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    LOOPS: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    HAS_TAIL: tl.constexpr,
    IS_ZERO: tl.constexpr,
):
    """Copy rows, or clear them where IS_ZERO. Loop 0 is the innermost.

    Offsets are bytes from the two pointers; a row's length is `row_bytes`, or its own of
    `lengths_ptr` where HAS_LENGTHS. All but the lengths are multiples of WIDTH.
    """
    element: tl.constexpr = (
        tl.int64 if WIDTH >= 8 else tl.int32 if WIDTH == 4 else tl.int16 if WIDTH == 2 else tl.int8
    )
    PER_UNIT: tl.constexpr = 2 if WIDTH == 16 else 1
    LOG: tl.constexpr = (
        4 if WIDTH == 16 else 3 if WIDTH == 8 else 2 if WIDTH == 4 else 1 if WIDTH == 2 else 0
    )
    dst_units = tl.multiple_of(dst_ptr.to(tl.pointer_type(element)), WIDTH)
    src_units = tl.multiple_of(src_ptr.to(tl.pointer_type(element)), WIDTH)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        tile_row, tile_col = peel(tl.cast(tile, tl.int64), num_col_tiles, col_multiplier, col_shift)
        row = tile_row * ROWS + tl.arange(0, ROWS)
        is_row = row < num_rows
        block = row
        src_bytes = tl.zeros_like(row)
        dst_bytes = tl.zeros_like(row)
        if LOOPS > 0:
            block, at = peel(block, count0, mul0, shift0)
            src_bytes += at * src0
            dst_bytes += at * dst0
        if LOOPS > 1:
            block, at = peel(block, count1, mul1, shift1)
            src_bytes += at * src1
            dst_bytes += at * dst1
        if LOOPS > 2:
            block, at = peel(block, count2, mul2, shift2)
            src_bytes += at * src2
            dst_bytes += at * dst2
        if LOOPS > 3:
            block, at = peel(block, count3, mul3, shift3)
            src_bytes += at * src3
            dst_bytes += at * dst3
        dst_bytes += tl.load(dst_offsets_ptr + block, mask=is_row, other=0)
        if not IS_ZERO:
            src_bytes += tl.load(src_offsets_ptr + block, mask=is_row, other=0)

        if HAS_LENGTHS:
            length = tl.load(lengths_ptr + block, mask=is_row, other=0)
            num_units = (length >> LOG)[:, None]
        else:
            num_units = row_bytes >> LOG
        first = tile_col * (COLS * PER_UNIT)
        col = first + tl.arange(0, COLS * PER_UNIT)[None, :]
        mask = is_row[:, None] & (col < num_units * PER_UNIT)
        dst_at = ((dst_bytes >> LOG) * PER_UNIT)[:, None] + col
        if IS_ZERO:
            values = tl.zeros((ROWS, COLS * PER_UNIT), dtype=element)
        else:
            src_at = ((src_bytes >> LOG) * PER_UNIT)[:, None] + col
            values = tl.load(src_units + src_at, mask=mask)
        tl.store(dst_units + dst_at, values, mask=mask)

        if HAS_TAIL:  # noqa: SIM102 - the first is decided when compiling
            if tile_col == 0:
                byte = num_units * WIDTH + tl.arange(0, WIDTH)[None, :]
                if HAS_LENGTHS:
                    in_tail = is_row[:, None] & (byte < length[:, None])
                else:
                    in_tail = is_row[:, None] & (byte < row_bytes)
                if IS_ZERO:
                    last = tl.zeros((ROWS, WIDTH), dtype=tl.uint8)
                else:
                    last = tl.load(
                        src_units.to(tl.pointer_type(tl.uint8)) + (src_bytes[:, None] + byte),
                        mask=in_tail,
                    )
                tl.store(
                    dst_units.to(tl.pointer_type(tl.uint8)) + (dst_bytes[:, None] + byte),
                    last,
                    mask=in_tail,
                )
